"""The user's own buffers as symmetric memory: one memory at two addresses, for as long as asked."""

import gc
import mmap
import os
import weakref

import ml_dtypes
import numpy as np
import pytest

import gpushmem as shmem
from gpushmem.errors import (
    ArgumentError,
    CollectiveMismatch,
    HeapExhausted,
    ShmemError,
    SymmetryError,
)

PAGE = mmap.PAGESIZE
pytestmark = pytest.mark.host_memory


@shmem.jit
def send(dst, src, pe):
    shmem.put(dst, src, pe)


@shmem.jit
def send_back(x, n, pe):
    """To a PE: what this one has received, plus 1."""
    for i in range(n):
        shmem.p(x[n + i :], x[i] + 1, pe)


def pages(n=1, dtype=np.int64):
    return np.frombuffer(mmap.mmap(-1, n * PAGE), dtype)


def own(me, n):
    return 1000 * me + np.arange(n)


@pytest.mark.parametrize("n_pes", [1, 3, 8])
def test_what_a_buffer_is_given_its_array_has_and_the_other_way_round(run_pes, n_pes):
    def body():
        shmem.init()
        me, n = shmem.my_pe(), shmem.n_pes()
        right, left = (me + 1) % n, (me - 1) % n
        before = shmem.full(3, -1)  # the block begins at a page all the same
        buffer = pages(2)
        buffer[:] = own(me, buffer.size)
        a = shmem.register_symmetric(buffer)
        assert isinstance(a, shmem.SymmetricArray)
        assert (a.shape, a.dtype, a.offset % PAGE) == (buffer.shape, buffer.dtype, 0)
        assert (a.numpy() == own(me, buffer.size)).all()
        shmem.barrier_all()
        src = shmem.array(own(me, 4))
        send[1, 1](a[2:6], src, right)  # into the buffer of another PE, by a kernel
        shmem.put(a[8:], src, right)  # and by its host
        shmem.barrier_all()
        assert buffer[2:6].tolist() == buffer[8:12].tolist() == own(left, 4).tolist()
        buffer[20:24] = 7 * me
        shmem.barrier_all()
        assert (shmem.peer_array(a, left)[20:24] == 7 * left).all()
        shmem.barrier_all()
        send_back[1, 1](a[30:], 2, right)  # read from and written to by kernels
        shmem.barrier_all()
        assert buffer[32:34].tolist() == (own(left, 32)[30:] + 1).tolist()
        now = buffer.copy()
        shmem.unregister_symmetric(a)
        assert (buffer == now).all()
        later = shmem.full(buffer.size, -5, dtype="int64")  # where it was
        assert (buffer == now).all()
        buffer[:] = 3
        assert (later.numpy() == -5).all()
        with pytest.raises(SymmetryError, match="was used after unregister_symmetric"):
            a.numpy()
        assert (before.numpy() == -1).all()
        shmem.finalize()

    run_pes(body, n_pes)


def test_the_buffer_itself_is_taken_for_its_array(run_pes):
    def body():
        shmem.init()
        me, n = shmem.my_pe(), shmem.n_pes()
        right, left = (me + 1) % n, (me - 1) % n
        buffer = pages().reshape(-1, 8)
        buffer[:] = own(me, buffer.size).reshape(buffer.shape)
        a = shmem.register_symmetric(buffer)
        shmem.put(buffer[2], buffer[1], right)
        send[1, 1](buffer[4], buffer[3], right)  # without a copy, which would undo the peer's put
        shmem.barrier_all()
        assert (a[2] == own(left, 16)[8:]).all()
        assert (a[4] == own(left, 32)[24:]).all()
        assert shmem.peer_array(buffer[1:3], left).shape == (2, 8)
        assert (shmem.peer_array(buffer, left) == shmem.peer_array(a, left)).all()
        assert (shmem.multicast_array(buffer, shmem.TEAM_WORLD).shape) == buffer.shape
        shmem.barrier_all()
        shmem.unregister_symmetric(buffer)
        with pytest.raises(ArgumentError, match=r"put: src .* is ordinary host memory"):
            shmem.put(shmem.empty(8, "int64"), buffer[0], 0)
        shmem.finalize()

    run_pes(body, 3)


@pytest.mark.parametrize("dtype", ["uint8", "float32", "complex128", "bfloat16", "float8_e5m2"])
def test_buffers_of_numpy_and_torch(alone, dtype):
    torch = pytest.importorskip("torch")
    wanted = np.dtype(getattr(ml_dtypes, dtype, dtype))
    memory = mmap.mmap(-1, PAGE)
    for buffer in (
        np.frombuffer(memory, np.uint8).view(wanted),
        torch.frombuffer(memory, dtype=torch.uint8).view(getattr(torch, dtype)),
    ):
        with shmem.register_symmetric(buffer) as a:
            assert (a.dtype, a.nbytes) == (wanted, PAGE)
            shmem.p(a[3:], 1, 0)
            shmem.put(a[:3], shmem.ones(3, wanted), 0)
            shmem.quiet()
            assert [complex(x) for x in buffer[:5]] == [1, 1, 1, 1, 0]
            buffer[:4] = 0
            assert not a.numpy().view(np.uint8).any()


def test_a_part_of_a_large_array_is_registered(alone):
    whole = np.arange(5 * PAGE, dtype=np.uint8)
    start = -whole.__array_interface__["data"][0] % PAGE
    part = whole[start : start + 2 * PAGE]
    wanted = whole.copy()
    a = shmem.register_symmetric(part)
    shmem.p(a[5:], 99, 0)
    wanted[start + 5] = 99
    assert (whole == wanted).all()
    shmem.unregister_symmetric(a)
    assert (whole == wanted).all()


def test_finalize_ends_registrations_and_keeps_contents(run_pes):
    def body():
        shmem.init()
        me, n = shmem.my_pe(), shmem.n_pes()
        buffer, other = pages(), pages()
        a = shmem.register_symmetric(buffer)
        shmem.register_symmetric(other)
        shmem.put(a, shmem.array(own(me, buffer.size)), (me + 1) % n)
        other[:] = 4
        shmem.finalize()
        assert (buffer == own((me - 1) % n, buffer.size)).all()
        assert (other == 4).all()
        with pytest.raises(SymmetryError, match="was used after finalize"):
            a.numpy()
        shmem.init()
        b = shmem.register_symmetric(buffer)
        assert (b == own((me - 1) % n, buffer.size)).all()
        shmem.finalize()

    run_pes(body, 3)


def test_a_program_may_end_with_a_registered_buffer(run_pes):
    def body():
        shmem.init()
        buffer = pages()
        shmem.register_symmetric(buffer)
        buffer[0] = 1
        return os.getpid()

    assert len(set(run_pes(body, 2))) == 2


def test_the_buffer_lives_as_long_as_it_is_registered(alone):
    class Buffer(np.ndarray):
        pass

    buffer = pages().view(Buffer)
    gone = weakref.ref(buffer)
    a = shmem.register_symmetric(buffer)
    del buffer
    gc.collect()
    assert gone() is not None
    shmem.unregister_symmetric(a)
    del a
    gc.collect()
    assert gone() is None


def test_the_session_ends_with_an_error(run_pes):
    """Peers may still write: the pages stay symmetric, and so the buffer alive."""

    def body():
        buffer = pages()
        gone = weakref.ref(buffer.base)
        with pytest.raises(ZeroDivisionError), shmem.session() as world:
            shmem.register_symmetric(buffer)
            1 / (world.my_pe * 0)
        buffer[:] = 5
        del buffer
        gc.collect()
        assert gone() is not None

    run_pes(body, 2)


def test_statistics_and_reports_name_it(alone):
    buffer = pages(3)
    a = shmem.register_symmetric(buffer)
    stats = shmem.heap_stats()
    assert 3 * PAGE <= stats.used <= 3 * PAGE + 512
    (made,) = stats.allocations
    assert (made.nbytes, made.shape, made.dtype) == (3 * PAGE, buffer.shape, buffer.dtype)
    assert "test_symmetric_buffers.py" in str(stats)
    with pytest.raises(ArgumentError, match=rf"\b{buffer.size} elements"):
        shmem.put(a, shmem.zeros(buffer.size + 1, "int64"), 0)
    shmem.unregister_symmetric(a)
    assert made not in shmem.heap_stats().allocations


def test_buffers_that_are_no_whole_pages_say_how_to_make_one(alone, tmp_path):
    memory = np.frombuffer(mmap.mmap(-1, 2 * PAGE), np.uint8)
    for wrong, says in (
        (memory[8:], rf"has {2 * PAGE - 8} bytes, the first of them 8 bytes into its page"),
        (memory[: PAGE - 4], rf"has {PAGE - 4} bytes.*numpy.frombuffer\(mmap.mmap\(-1, {PAGE}\)"),
        (memory[:0], r"has 0 bytes"),
    ):
        with pytest.raises(ArgumentError, match=rf"whole pages of {PAGE} bytes, .*{says}"):
            shmem.register_symmetric(wrong)
    for wrong, says in (
        (memory[::2], "not contiguous"),
        (np.zeros(PAGE, "O"), "Python objects"), (3, "not an array"),
        (shmem.empty(PAGE, "u1"), "SymmetricArray .* is device memory"),
        (np.asarray(shmem.empty(PAGE, "u1")), "is device memory"),
        (shmem.device_array(PAGE, "u1"), "is device memory"),
    ):  # fmt: skip
        with pytest.raises(ArgumentError, match=f"register_symmetric: .*{says}"):
            shmem.register_symmetric(wrong)
    file = tmp_path / "values"
    file.write_bytes(bytes(PAGE))
    with pytest.raises(ArgumentError, match=f"mapped from {file}"):
        shmem.register_symmetric(np.memmap(file))
    assert [made.nbytes for made in shmem.heap_stats().allocations] == [PAGE, PAGE]


def test_overlapping_registrations(alone):
    memory = pages(4)
    middle = memory[PAGE // 8 : 3 * PAGE // 8]
    a = shmem.register_symmetric(middle)
    for again in (middle, memory, memory[: 2 * PAGE // 8], a):
        with pytest.raises(ArgumentError, match=r"symmetric already|is device memory"):
            shmem.register_symmetric(again)
        with pytest.raises(ArgumentError, match="symmetric"):
            shmem.register(again)
    shmem.register(memory[: PAGE // 8])
    with pytest.raises(ArgumentError, match="already registered: unregister those first"):
        shmem.register_symmetric(memory[: PAGE // 8])
    shmem.register_symmetric(memory[3 * PAGE // 8 :])


def test_what_ends_a_registration(alone):
    a, plain = shmem.register_symmetric(pages()), shmem.empty(4)
    with pytest.raises(ArgumentError, match="registered buffer: use unregister_symmetric"):
        shmem.free(a)
    with pytest.raises(ShmemError, match=r"view at offset 0x8 .* pass that one"):
        shmem.unregister_symmetric(a[1:])
    for wrong in (plain, pages(), 3, None, np.zeros(3)):
        with pytest.raises(ArgumentError, match="is not registered by register_symmetric"):
            shmem.unregister_symmetric(wrong)
    shmem.unregister_symmetric(a)
    with pytest.raises(ShmemError, match="after unregister_symmetric"):
        shmem.unregister_symmetric(a)


def test_a_heap_without_room(alone):
    buffer = pages((16 << 20) // PAGE - 1)
    held = shmem.empty(PAGE)
    with pytest.raises(HeapExhausted, match=rf"register_symmetric: .*{buffer.nbytes} bytes"):
        shmem.register_symmetric(buffer)
    shmem.free(held)
    shmem.unregister_symmetric(shmem.register_symmetric(buffer))


@pytest.mark.gpushmem_check(False)  # the job fails as it should
def test_sizes_that_differ(run_pes):
    def body():
        shmem.init()
        buffer = pages(1 + shmem.my_pe())
        with pytest.raises(CollectiveMismatch, match=rf"PE 1: register_symmetric .*{2 * PAGE}"):
            shmem.register_symmetric(buffer)
        assert not shmem.heap_stats().allocations
        shmem.finalize()

    run_pes(body, 2)


def test_null_backend():
    with shmem.session("null"):
        buffer = pages()
        buffer[:] = own(0, buffer.size)
        a = shmem.register_symmetric(buffer)
        assert (a == own(0, buffer.size)).all()
        shmem.p(a[3:], 77, 0)
        shmem.put(buffer[:1], buffer[3:4], 0)
        assert buffer[:4].tolist() == [77, 1, 2, 77]
        shmem.unregister_symmetric(buffer)
        shmem.zeros(3 * PAGE, "u1")
        assert buffer[:4].tolist() == [77, 1, 2, 77]
        b = shmem.register_symmetric(buffer)
        shmem.p(b, 5, 0)
    assert buffer[:4].tolist() == [5, 1, 2, 77]
