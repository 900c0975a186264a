"""How the heap was used, by which line, and what was never given back."""

import dataclasses
import gc
import warnings

import numpy as np
import pytest

import gpushmem as shmem
from gpushmem.errors import ArgumentError, NotInitializedError, ShmemError, SymmetryError
from gpushmem.memory.stats import HeapStats
from tests.pes import sendable


def line_of(marker):
    """This file and the line that ends with a comment, as `where` says it."""
    with open(__file__) as source:
        return next(
            f"test_stats.py:{n}"
            for n, line in enumerate(source, 1)
            if line.endswith(f"# {marker}\n")
        )


# --- heap_stats


def test_stats_of_a_heap_in_use(run_pes):
    def make(shape):
        return shmem.empty(shape, "int32")  # the helper

    def body():
        shmem.init(heap_size=1 << 20)
        a = shmem.zeros((3, 4), "float32")  # first
        b, c = make(1000), shmem.alloc_bytes(5)  # third
        full = shmem.heap_stats()
        shmem.free(b)
        less = shmem.heap_stats()
        for array in (a, c):
            shmem.free(array)
        nothing = shmem.heap_stats()
        shmem.finalize()
        return full, less, nothing

    for full, less, nothing in run_pes(body, 2):
        assert (full.total, full.used, full.peak) == (1 << 20, 256 + 4096 + 256, 4608)
        assert full.allocations == (
            (0, 48, (3, 4), np.dtype("float32"), line_of("first")),
            (256, 4000, (1000,), np.dtype("int32"), line_of("the helper")),
            (4352, 5, (5,), np.dtype("uint8"), line_of("third")),
        )
        assert full.allocations[1].where == line_of("the helper")
        assert (full.largest_free, full.fragmentation) == ((1 << 20) - 4608, 0)
        assert (less.used, less.peak) == (512, 4608)
        assert less.fragmentation == pytest.approx(4096 / ((1 << 20) - 512))
        assert nothing == HeapStats(1 << 20, 0, 4608, 1 << 20, ())


def test_stats_are_of_their_moment_and_not_collective(run_pes):
    def body():
        shmem.init()
        if shmem.my_pe() == 0:
            before = shmem.heap_stats()
        shmem.zeros(4)
        if shmem.my_pe() == 0:
            assert (before.used, shmem.heap_stats().used) == (0, 256)
            with pytest.raises(dataclasses.FrozenInstanceError):
                before.used = 1
        shmem.finalize()

    run_pes(body, 2)


def test_a_full_heap_is_not_fragmented(alone):
    shmem.alloc_bytes(16 << 20)
    stats = shmem.heap_stats()
    assert (stats.largest_free, stats.fragmentation) == (0, 0)


def test_stats_as_text(alone):
    assert str(shmem.heap_stats()) == (
        "symmetric heap: 0 bytes of 16 MiB used by 0 symmetric arrays, at most 0 bytes so far; "
        "largest free block 16 MiB, fragmentation 0%"
    )
    hole = shmem.alloc_bytes(4 << 20)
    shmem.zeros((20, 30), "int8")  # the one left
    shmem.free(hole)
    assert str(shmem.heap_stats()).splitlines() == [
        "symmetric heap: 768 bytes of 16 MiB used by 1 symmetric array, at most 4.001 MiB so far; "
        "largest free block 12 MiB, fragmentation 25%",
        "    offset  bytes  shape     dtype  allocated at",
        f"  0x400000    600  (20, 30)  int8   {line_of('the one left')}",
    ]


def test_long_tables_are_cut(alone):
    for _ in range(13):
        shmem.zeros(1)
    lines = str(shmem.heap_stats()).splitlines()
    assert len(lines) == 1 + 1 + 10 + 1
    assert lines[-1] == "  and 3 more"
    assert len(shmem.heap_stats().allocations) == 13


def test_ready_kernels_are_named_as_the_makers_of_their_workspace(alone):
    from gpushmem.kernels import AllReduce

    AllReduce(size=10, dtype="float32")
    assert {a.where.split(":")[0] for a in shmem.heap_stats().allocations} == {"all_reduce.py"}


LARGE = r"an array of shape \(.* is 2\*\*63 bytes or more"
IMPOSSIBLE = {
    1 << 62: LARGE, (1 << 40, 1 << 40): LARGE, (1 << 32, 1 << 32): LARGE, (0, 1 << 62): LARGE,
    (1,) * 70: "at most 32 axes, not 70", 1 << 70: "a shape consists of integers",
}  # fmt: skip


def test_allocations_that_fail_leave_nothing(run_pes):
    def body():
        shmem.init()
        for shape, said in IMPOSSIBLE.items():
            for make in (shmem.empty, shmem.zeros):
                with pytest.raises(shmem.ArgumentError, match=said):
                    make(shape)
        with pytest.raises(shmem.HeapExhausted):
            shmem.zeros(1 << 50)
        with pytest.raises(ValueError, match="could not convert"):
            shmem.full(3, "five", "float64")
        stats = shmem.heap_stats()
        return stats.used, stats.allocations, shmem.zeros(3).numpy().sum()

    assert run_pes(body, 2) == [(0, (), 0)] * 2


def test_stats_need_init():
    with pytest.raises(NotInitializedError, match="heap_stats: call"):
        shmem.heap_stats()


# --- what finalize reports


def finalized():
    """What `finalize` warns of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        shmem.finalize()
    return [(w.category, str(w.message), w.filename) for w in caught]


def test_arrays_never_freed_are_reported_once(run_pes):
    def body():
        shmem.init()
        shmem.free(shmem.zeros(100))
        shmem.zeros((2, 3), "int16")  # leak
        shmem.alloc_bytes(1000)  # another leak
        return finalized()

    on_pe_0, on_pe_1 = run_pes(body, 2)
    [(category, text, filename)] = on_pe_0
    assert category is ResourceWarning
    assert text.splitlines() == [
        "finalize: 2 symmetric arrays never freed, 1012 bytes in all",
        "  offset  bytes  shape    dtype  allocated at",
        f"     0x0     12  (2, 3)   int16  {line_of('leak')}",
        f"   0x100   1000  (1000,)  uint8  {line_of('another leak')}",
    ]
    assert filename == __file__, "the warning is attributed to the line that calls finalize"
    assert on_pe_1 == []


def test_many_leaks_are_counted():
    shmem.init()
    for _ in range(12):
        shmem.zeros(1)
    [(_, text, _)] = finalized()
    assert text.startswith("finalize: 12 symmetric arrays never freed, 96 bytes in all\n")
    assert text.endswith("\n  and 2 more")


def test_no_leak_no_report():
    shmem.init()
    shmem.free(shmem.zeros(3))
    with shmem.ones(4):
        pass
    assert finalized() == []
    assert finalized() == [], "nor without an init"


def test_a_report_made_an_error_finds_the_runtime_closed(run_pes):
    def body():
        shmem.init()
        a = shmem.zeros(3)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            if shmem.my_pe() == 0:
                with pytest.raises(ResourceWarning, match="1 symmetric array never freed, 24 byt"):
                    shmem.finalize()
            else:
                shmem.finalize()
        assert not shmem.is_initialized()
        with pytest.raises(SymmetryError, match="after finalize"):
            a.numpy()
        shmem.init()
        offset = shmem.zeros(3).offset
        shmem.finalize()
        return offset

    assert run_pes(body, 2) == [0, 0]


# --- alloc_bytes, with


def test_bytes_and_views_of_them(run_pes):
    def body():
        shmem.init()
        me, n = shmem.my_pe(), shmem.n_pes()
        raw = shmem.alloc_bytes(48)
        words = raw.view("int32").reshape(3, 4)
        words.copy_from(1000 * me + np.arange(12).reshape(3, 4))
        shmem.barrier_all()
        got = sendable(shmem.device_array(48, "uint8"))
        shmem.get(got, raw, (me + 1) % n)
        result = got.view("int32").numpy().tolist(), words[1:].view(np.int64).shape, raw.shape
        shmem.free(words)
        shmem.finalize()
        return result

    for pe, (words, shape, raw) in enumerate(run_pes(body, 3)):
        assert words == [1000 * ((pe + 1) % 3) + k for k in range(12)]
        assert (shape, raw) == ((2, 2), (48,))


def test_views_refuse_what_numpy_refuses(alone):
    a = shmem.zeros((4, 6), "int16")
    assert a.view("uint16").dtype == np.uint16
    assert a[:, ::2].view("uint16").shape == (4, 3)
    with pytest.raises(ValueError, match="last axis must be contiguous"):
        a[:, ::2].view("int8")
    with pytest.raises(ValueError, match="divisor"):
        a.view("int64")
    with pytest.raises(ArgumentError, match="cannot allocate -1 bytes"):
        shmem.alloc_bytes(-1)
    with pytest.raises(TypeError):
        shmem.alloc_bytes(1.5)
    shmem.free(a)
    with pytest.raises(SymmetryError, match="after free"):
        a.view("int8")


def test_an_array_is_freed_at_the_end_of_its_block(run_pes):
    def body():
        shmem.init()
        with shmem.zeros(8) as a:
            a[0] = 1
            assert shmem.heap_stats().used == 256
        assert shmem.heap_stats().used == 0
        with pytest.raises(SymmetryError, match="after free"):
            a.numpy()
        shmem.finalize()

    run_pes(body, 2)


def test_an_exception_leaves_the_array_allocated(run_pes):
    def body():
        shmem.init()
        array = shmem.zeros(8)
        if shmem.my_pe() == 0:  # alone: the other PE is in barrier_all
            with pytest.raises(KeyError), array:
                raise KeyError
        shmem.barrier_all()
        shmem.free(array)
        shmem.finalize()

    run_pes(body, 2)


def test_a_view_is_no_block_of_its_own(alone):
    a = shmem.zeros(8)
    with pytest.raises(ShmemError, match="view at offset 0x8 of the array at 0x0"), a[1:]:
        pytest.fail("entered")
    shmem.free(a)
    with pytest.raises(SymmetryError, match="after free"), a:
        pytest.fail("entered")


def test_garbage_collection_frees_nothing(run_pes):
    def body():
        shmem.init()
        array = shmem.zeros(8)
        if shmem.my_pe() == 0:
            del array  # alone: a collective call from here would wait for the other PE
            gc.collect()
        used = shmem.heap_stats().used
        shmem.finalize()
        return used

    assert run_pes(body, 2) == [256, 256]
