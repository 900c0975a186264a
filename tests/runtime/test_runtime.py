"""init to finalize, symmetric arrays, host operations, and what goes wrong with them."""

import gc
import re
import subprocess
import sys

import numpy as np
import pytest
from numba import cuda

import gpushmem as shmem
from gpushmem.errors import (
    ArgumentError,
    BackendUnavailable,
    CollectiveMismatch,
    HeapExhausted,
    KernelError,
    NotInitializedError,
    ShmemError,
    SymmetryError,
)

PES = [1, 2, 3, 8]


def failing(function, *args, **kwargs):
    """Return what kind of error a call raises, and its text."""
    try:
        function(*args, **kwargs)
    except Exception as error:
        return type(error).__name__, str(error)
    return None, "no error"


# --- lifetime


@pytest.mark.parametrize("n_pes", PES)
def test_every_pe_knows_its_number(run_pes, n_pes):
    def body():
        shmem.init()
        numbers = shmem.my_pe(), shmem.n_pes()
        shmem.finalize()
        return numbers

    assert run_pes(body, n_pes) == [(pe, n_pes) for pe in range(n_pes)]


def test_init_finalize_init(run_pes):
    def body():
        seen = []
        for _ in range(5):
            assert not shmem.is_initialized()
            shmem.init()
            a = shmem.empty(1000, "int64")
            seen.append(int(a.numpy().max()))  # what the last round wrote is gone
            a.copy_from(shmem.my_pe() + 1)
            shmem.barrier_all()
            shmem.finalize()
        shmem.finalize()  # does nothing
        return seen

    assert run_pes(body, 3) == [[0] * 5] * 3


def test_many_inits_use_no_more_mappings(run_pes):
    def mappings():
        gc.collect()  # tests collect seldom, and a runtime that has ended is garbage
        with open("/proc/self/maps") as maps:
            return len(maps.readlines())

    def body():
        counts = []
        for _ in range(100):
            shmem.init()
            shmem.ones(10)
            shmem.finalize()
            counts.append(mappings())
        return counts[-1] - counts[9]

    assert max(run_pes(body, 3)) < 45  # of 90: the C library takes and gives back some, too


def test_heap_size_may_change_between_inits(run_pes):
    def body():
        for mib in (1, 64, 2):
            shmem.init(heap_size=mib << 20)
            a = shmem.ones((mib << 20) // 2, "int8")
            shmem.put(a, a, 0)
            shmem.barrier_all()
            shmem.finalize()

    run_pes(body, 2)


def test_calls_before_init_say_so():
    for call in (
        shmem.my_pe, shmem.barrier_all, lambda: shmem.zeros(3), lambda: shmem.put(1, 2, 0),
        shmem.stream, lambda: shmem.to_device(np.zeros(1)),
    ):  # fmt: skip
        with pytest.raises(NotInitializedError, match=r"call gpushmem.init\(\) first"):
            call()


def test_a_kernel_launched_before_init_says_so():
    @shmem.jit
    def early(x):
        x[0] = 1

    with pytest.raises(NotInitializedError, match=r"kernel early: call gpushmem.init\(\) first"):
        early[1, 1](np.zeros(1))


def test_init_twice_and_unknown_backends(alone, monkeypatch):
    with pytest.raises(ArgumentError, match="already initialised"):
        shmem.init()
    shmem.finalize()
    with pytest.raises(
        BackendUnavailable, match="no backend 'abacus' in this version; available: cpu"
    ):
        shmem.init("abacus")
    monkeypatch.setenv("GPUSHMEM_BACKEND", "quipu")
    with pytest.raises(BackendUnavailable, match="quipu"):
        shmem.init()
    monkeypatch.delenv("GPUSHMEM_BACKEND")
    shmem.init()


def test_heap_size_from_the_environment(monkeypatch):
    monkeypatch.setenv("GPUSHMEM_HEAP_SIZE", "3M")
    shmem.init()
    with pytest.raises(HeapExhausted, match="3145728 bytes"):
        shmem.empty(4 << 20, "int8")
    shmem.finalize()
    monkeypatch.setenv("GPUSHMEM_HEAP_SIZE", "many")
    with pytest.raises(ArgumentError, match="GPUSHMEM_HEAP_SIZE: 'many' is not a size"):
        shmem.init()


def test_the_memory_of_a_job_is_given_back(run_pes):
    def body():
        for _ in range(3):
            shmem.init()
            a = shmem.ones(40 << 20, "int8")
            shmem.barrier_all()
            del a
            shmem.finalize()
        with open("/proc/self/smaps_rollup") as smaps:
            return next(int(line.split()[1]) for line in smaps if line.startswith("Pss_Shmem"))

    assert max(run_pes(body, 2)) < 8 << 10  # KiB


# --- symmetric arrays


def test_symmetric_arrays_follow_numpy(alone):
    a = shmem.array(np.arange(12, dtype=np.int32).reshape(3, 4))
    assert (a.shape, a.dtype, a.size, a.nbytes, a.ndim, len(a)) == ((3, 4), np.int32, 12, 48, 2, 3)
    assert a[1, 2] == 6
    assert a[1].shape == (4,)
    np.testing.assert_array_equal(a[1:, 2].numpy(), [6, 10])
    a[0] = 7
    a[2, 3] = -1
    np.testing.assert_array_equal(a.numpy(), [[7] * 4, [4, 5, 6, 7], [8, 9, 10, -1]])
    a.reshape(12)[1:3].copy_from([70, 71])
    assert a[0, 2] == 71
    assert np.asarray(a)[0, 1] == 70
    np.asarray(a)[0, 0] = 5
    assert a[0, 0] == 5, "asarray shares memory on the cpu backend"
    a[..., 1] = 3
    assert a[..., 1].numpy().tolist() == [3, 3, 3]
    assert a[1, 1, ...].shape == ()
    assert [int(row[0]) for row in a] == [5, 4, 8]
    with pytest.raises(IndexError):
        a[3]
    assert shmem.zeros(()).numpy().shape == ()
    assert shmem.empty((2, 0, 3)).size == 0
    assert shmem.ones(3).dtype == np.float64
    assert shmem.full(2, 3).dtype == np.asarray(3).dtype
    assert (shmem.full(4, True, dtype=bool).numpy()).all()


def test_repr_names_pe_and_offset(run_pes):
    def body():
        shmem.init()
        shmem.empty(100, "int8")
        text = repr(shmem.empty((4, 2), "float32")), repr(shmem.device_array(3))
        shmem.finalize()
        return text

    for pe, (symmetric, device) in enumerate(run_pes(body, 2)):
        assert re.fullmatch(
            rf"SymmetricArray\((\[.*\], )?shape=\(4, 2\), dtype=float32, pe={pe}, offset=0x100\)",
            symmetric, re.DOTALL,
        )  # fmt: skip
        assert device.endswith("shape=(3,), dtype=float64)")


def test_offsets_are_the_same_everywhere_and_memory_is_reused(run_pes):
    def body():
        shmem.init()
        arrays = [shmem.empty(n, "int8") for n in (100, 5000, 300, 1)]
        shmem.free(arrays[1])
        shmem.free(arrays[2])
        again = [shmem.empty(n, "int8") for n in (5300, 10)]
        offsets = [a.offset for a in (arrays[0], arrays[3], *again)]
        shmem.finalize()
        return offsets

    results = run_pes(body, 3)
    assert results == [results[0]] * 3
    assert results[0][2] == 256, "two freed neighbours make one block"
    assert all(offset % 256 == 0 for offset in results[0])


def test_use_after_free_and_after_finalize():
    shmem.init()
    a, b = shmem.zeros(4), shmem.zeros(4)
    view = a[1:]
    with pytest.raises(ShmemError, match="view at offset 0x8 of the array at 0x0"):
        shmem.free(view)
    shmem.free(a)
    for use in (a.numpy, view.numpy, lambda: shmem.free(a), lambda: shmem.put(a, a, 0)):
        with pytest.raises(SymmetryError, match=r"shape \(4,\) at offset 0x0 was used after free"):
            use()
    with pytest.raises(SymmetryError, match="not a symmetric array but ndarray"):
        shmem.free(np.zeros(3))
    shmem.finalize()
    with pytest.raises(SymmetryError, match="after finalize"):
        b.numpy()
    assert "released by finalize" in repr(b)


def test_heap_exhaustion_names_the_numbers_on_every_pe(run_pes):
    def body():
        shmem.init()
        a = shmem.empty(48 << 20, "int8")
        kind, text = failing(shmem.empty, 20 << 20, "int8")
        b = shmem.empty(10 << 20, "int8")  # the heap is still whole
        shmem.free(a)
        shmem.free(b)
        shmem.empty(60 << 20, "int8")
        shmem.finalize()
        return kind, text

    for kind, text in run_pes(body, 2):
        assert kind == "HeapExhausted"
        for part in (
            "20971520 bytes",
            "16 MiB",
            "50331648 of 67108864",
            "--heap-size",
            "GPUSHMEM_HEAP_SIZE",
        ):
            assert part in text


def test_different_sizes_in_one_allocation(run_pes):
    def body():
        shmem.init()
        kind, text = failing(shmem.empty, 100 + shmem.my_pe() // 2, "int32")
        offset = shmem.empty(10).offset  # the heap is still symmetric
        shmem.finalize()
        return kind, text, offset

    for kind, text, offset in run_pes(body, 3):
        assert kind == "CollectiveMismatch"
        assert (
            "PE 0: empty of 400 bytes; PE 1: empty of 400 bytes; PE 2: empty of 404 bytes" in text
        )
        assert offset == 0


def test_different_collective_calls(run_pes):
    def body():
        shmem.init()
        a = shmem.zeros(8, "int8")
        calls = [lambda: shmem.zeros(4), shmem.barrier_all, lambda: shmem.free(a)]
        result = failing(calls[shmem.my_pe()])
        shmem.finalize()
        return result

    for kind, text in run_pes(body, 3):
        assert kind == "CollectiveMismatch"
        assert "PE 0: zeros of 32 bytes; PE 1: barrier_all; PE 2: free at 0x0 of 8 bytes" in text


def test_collectives_of_kernels_and_host_do_not_mix_up(run_pes):
    @shmem.jit
    def meet_often(x, times):
        for _ in range(times):
            shmem.barrier_all()
        x[0] += 1

    def body():
        shmem.init()
        x = shmem.zeros(1)
        for k in range(20):
            meet_often[1, 1](x, 1 + k % 3)
            y = shmem.full(3, k)  # waits for the kernel before it meets the others itself
            assert x[0] == k + 1
            if shmem.my_pe() == k % 3:
                meet_often[1, 1](x, 1)  # this PE meets the others' hosts from a kernel
                x[0] = k + 1
            else:
                shmem.barrier_all()
            shmem.free(y)
        shmem.finalize()

    run_pes(body, 3)


def test_bad_shapes():
    shmem.init()
    with pytest.raises(ArgumentError, match="not -3"):
        shmem.empty(-3)
    with pytest.raises(ArgumentError, match=r"not \(2, 1.5\)"):
        shmem.empty((2, 1.5))
    shmem.finalize()


# --- host operations


@pytest.mark.parametrize("n_pes", PES)
def test_host_put_get_p_g(run_pes, n_pes):
    def body():
        shmem.init()
        me, n = shmem.my_pe(), shmem.n_pes()
        right, left = (me + 1) % n, (me - 1) % n
        a, b = shmem.full(10, -1, dtype="int64"), shmem.array(1000 * me + np.arange(6))
        shmem.barrier_all()
        shmem.put(a[2:], shmem.to_device(1000 * me + np.arange(5)), right)
        shmem.p(a, 1000 * me + 99, right)
        shmem.quiet()
        shmem.barrier_all()
        got = shmem.device_array(4, "int64")
        shmem.get(got, b[1:], left)
        element = int(shmem.g(b[5:], left))
        stream = shmem.stream()
        shmem.put(a[9:], b[:1], right, stream=stream)
        stream.synchronize()
        shmem.barrier_all()
        result = a.numpy().tolist(), got.numpy().tolist(), element
        shmem.finalize()
        return result

    for pe, (a, got, element) in enumerate(run_pes(body, n_pes)):
        left = 1000 * ((pe - 1) % n_pes)
        assert a == [left + 99, -1, *range(left, left + 5), -1, -1, left]
        assert got == [left + 1, left + 2, left + 3, left + 4]
        assert element == left + 5


def test_host_operations_refuse_what_does_not_fit(alone):
    a, b = shmem.zeros(4, "float32"), shmem.device_array(5, "float32")
    doubles = shmem.device_array(2)
    cases = [
        (lambda: shmem.put(a, b, 0), ArgumentError, "target has 4 elements, 5 are to be copied"),
        (lambda: shmem.get(b, a, 0), ArgumentError, "source has 4 elements, 5 are to be copied"),
        (lambda: shmem.put(a, b[:2], 1), ArgumentError, "there is no PE 1: PEs are 0 to 0"),
        (lambda: shmem.p(a, 1, -1), ArgumentError, "there is no PE -1: PEs are 0 to 0"),
        (
            lambda: shmem.put(b, a, 0),
            SymmetryError,
            r"\(ndarray \(5,\)\) is not on the symmetric heap",
        ),
        (lambda: shmem.g(b, 0), SymmetryError, "not on the symmetric heap"),
        (lambda: shmem.put(a, doubles, 0), ArgumentError, "float32, src of float64"),
        (lambda: shmem.put(a[::2], b[:2], 0), ArgumentError, "remote array is not contiguous"),
        (lambda: shmem.p(a[4:], 1, 0), ArgumentError, "has no element 0"),
        (lambda: shmem.put_block(a, b, 0), ShmemError, "inside kernels only"),
        (lambda: shmem.put_nbi(a, b, 0), ShmemError, "inside kernels only"),
    ]
    for call, kind, text in cases:
        with pytest.raises(kind, match=text):
            call()
    assert not a.numpy().any()


def test_host_copies_are_of_contiguous_arrays_as_those_of_kernels(alone):
    values = np.arange(6.0).reshape(3, 2)
    a, got = shmem.zeros((3, 2)), np.zeros((2, 3))
    for array in (values, got):
        shmem.register(array)
    shmem.put(a, values, 0)
    shmem.get(got, a, 0)  # of another shape: element by element, in order
    np.testing.assert_array_equal(got, values.reshape(2, 3))
    for refused, what in (
        (lambda: shmem.put(a, values.T, 0), "put: src"),
        (lambda: shmem.get(got.T, a, 0), "get: dst"),
        (lambda: shmem.put(a[:, 1], got[0], 0), "put: the remote array"),
    ):
        with pytest.raises(ArgumentError, match=f"{what} is not contiguous"):
            refused()
    np.testing.assert_array_equal(a.numpy(), values)


def test_host_operations_on_arrays_without_axes_and_on_records(alone):
    number, pairs = shmem.zeros(()), shmem.zeros(2, [("value", "f4"), ("from", "i4")])
    count, flag = shmem.zeros((), "int64"), shmem.zeros((), "uint64")
    shmem.p(number, 2.5, 0)
    shmem.p(pairs, (1.5, 7), 0)
    shmem.atomic_add(count, 3, 0)
    shmem.signal_op(flag, 9, shmem.SIGNAL_SET, 0)
    seen = [shmem.g(array, 0) for array in (number, pairs, number)]
    assert [value.tolist() for value in seen] == [2.5, (1.5, 7), 2.5]
    assert (shmem.atomic_fetch(count, 0), shmem.signal_fetch(flag)) == (3, 9)


# --- kernels through jit


def test_numpy_arguments_are_copied_in_and_out(alone):
    @shmem.jit
    def double(x, y):
        i = cuda.grid(1)
        x[i] *= 2
        y[i] = x[i]

    x = np.arange(8.0)
    fixed = np.arange(8.0)
    fixed.flags.writeable = False
    double[1, 8](x, y := np.zeros(8))
    np.testing.assert_array_equal(x, 2 * np.arange(8))
    np.testing.assert_array_equal(y, x)
    double[1, 8](fixed, y)
    np.testing.assert_array_equal(fixed, np.arange(8))


def test_numpy_arguments_that_share_memory_are_copied(alone):
    @shmem.jit
    def move(x, y):
        i = cuda.grid(1)
        y[i] = x[i]

    whole = np.arange(9.0)
    move[1, 8](whole[:8], whole[1:])
    assert whole.tolist() == [0, 0, 1, 2, 3, 4, 5, 6, 7]

    @shmem.jit
    def first_of_two(x, pair):
        pair[1][cuda.grid(1)] = x[cuda.grid(1)] + pair[0][cuda.grid(1)]

    x, y = np.arange(4.0), shmem.zeros(4)
    first_of_two[1, 4](x, (y, y))
    assert y.numpy().tolist() == [0, 1, 2, 3]


@pytest.mark.cpu_backend
def test_numpy_arguments_are_used_where_they_are_if_that_is_the_same(alone):
    @shmem.jit
    def places(x, y, out):
        out[0], out[1] = x.ctypes.data, y.ctypes.data

    def used(x, y):
        out = np.zeros(2, "int64")
        places[1, 1](x, y, out)
        return (out == [x.ctypes.data, y.ctypes.data]).tolist()

    a, b, fixed = np.zeros(4), np.zeros((4, 4)), np.zeros(4)
    fixed.flags.writeable = False
    assert used(a, b) == [True, True]
    assert used(a[:2], a[2:]) == [True, True]
    assert used(a, a[1:]) == [False, False]
    assert used(fixed, b.T) == [False, False]
    assert used(a[::2], np.ndarray(2, "f8", bytearray(24), 1)) == [False, False]


def test_device_functions_of_jit_and_options(alone):
    @shmem.jit(device=True)
    def triple(x):
        return 3 * x

    @shmem.jit(fastmath=True, lineinfo=True)
    def use(x):
        x[cuda.grid(1)] = triple(cuda.grid(1))

    x = shmem.zeros(4)
    use[1, 4](x)
    np.testing.assert_array_equal(x.numpy(), [0, 3, 6, 9])
    assert triple(5) == 15
    with pytest.raises(ArgumentError, match="jit has no option speed"):
        shmem.jit(lambda x: None, speed=11)[1, 1](x)
    with pytest.raises(ArgumentError, match=r"use\[grid, block\]\(...\)"):
        use(x)
    with pytest.raises(ArgumentError, match="kernel use: launch it as"):
        use[1](x)
    with pytest.raises(ArgumentError, match="jit takes a function"):
        shmem.jit("void(float32[:])")
    with pytest.raises(ArgumentError, match=r"a stream comes from gpushmem.stream\(\)"):
        use[1, 4, 17](x)


def test_launches_on_streams_with_dynamic_shared_memory(alone):
    @shmem.jit
    def mirror(out, base):
        block = cuda.shared.array(0, np.int64)
        t, n = cuda.threadIdx.x, cuda.blockDim.x
        block[t] = base + t
        cuda.syncthreads()
        out[t] = block[n - 1 - t]

    streams, arrays = (
        [shmem.stream() for _ in range(3)],
        [shmem.zeros(16, "int64") for _ in range(3)],
    )
    for _ in range(20):
        for k, (stream, out) in enumerate(zip(streams, arrays, strict=True)):
            mirror[1, 16, stream, 16 * 8](out, 100 * k)
    streams[1].synchronize()
    for k, out in enumerate(arrays):
        np.testing.assert_array_equal(out.numpy(), 100 * k + 15 - np.arange(16))


def test_a_kernel_compiles_once_per_signature(alone):
    from gpushmem.simt.grid import entry

    built, build = [], entry.build
    entry.build = lambda f, args, **options: built.append(args) or build(f, args, **options)
    try:

        @shmem.jit
        def fill(x):
            x[0] = 1

        for dtype in ("float32", "float32", "int64", "float32"):
            fill[1, 1](shmem.zeros(1, dtype))
        shmem.synchronize()
    finally:
        entry.build = build
    assert len(built) == 2


BAD_CALLS = {
    "pe too large": (
        "shmem.put(a, b, shmem.n_pes())",
        "ArgumentError",
        "there is no PE 2: PEs are 0 to 1",
    ),
    "pe negative": ("shmem.p(a, 1, -1)", "ArgumentError", "there is no PE -1: PEs are 0 to 1"),
    "not symmetric": (
        "shmem.put(b, a, 0)",
        "SymmetryError",
        "32 bytes at 0x.* is not on the symmetric heap",
    ),
    "too small": (
        "shmem.put(a[1:], b, 0)",
        "ArgumentError",
        "the target has 3 elements, the source 4",
    ),
    "past the end": (
        "shmem.get(b, a[2:], 0)",
        "ArgumentError",
        "the target has 4 elements, the source 2",
    ),
    "empty": ("shmem.p(a[4:], 1, 0)", "ArgumentError", "the array has no element 0"),
    "signal op": ("shmem.signal_op(s, 1, 99, 0)", "ArgumentError", "no signal operation 99"),
    "comparison": ("shmem.signal_wait_until(s, 77, 1)", "ArgumentError", "no comparison 77"),
}


@pytest.mark.parametrize("name", BAD_CALLS)
def test_bad_calls_in_kernels_name_the_line(run_pes, name):
    call, kind, text = BAD_CALLS[name]
    source = f"def wrong(a, b, s):\n    {call}\n"

    def body():
        scope = {"shmem": shmem}
        exec(compile(source, "mykernel.py", "exec"), scope)
        shmem.init()
        a, s = shmem.zeros(4), shmem.zeros(1, "uint64")
        shmem.jit(scope["wrong"])[1, 1](a, shmem.to_device(np.zeros(4)), s)
        result = failing(shmem.synchronize)
        shmem.barrier_all()
        shmem.finalize()
        return result

    for pe, (got_kind, got) in enumerate(run_pes(body, 2)):
        assert got_kind == kind
        assert got.startswith(
            f"PE {pe}, kernel wrong, block (0, 0, 0), thread (0, 0, 0), mykernel.py:2 in wrong: "
        )
        assert __import__("re").search(text, got)


def test_arrays_that_do_not_match_are_typing_errors(alone):
    from numba.core.errors import TypingError

    @shmem.jit
    def mixed(a, b):
        shmem.put(a, b, 0)

    a = shmem.zeros((4, 4), "float32")
    with pytest.raises(TypingError, match="float32, src of float64"):
        mixed[1, 1](a, shmem.zeros(4))
    with pytest.raises(TypingError, match=r"src is not contiguous"):
        mixed[1, 1](a, a[:, 1])
    with pytest.raises(TypingError, match="src must be an array, not int64"):
        mixed[1, 1](a, 3)


def test_a_kernels_error_comes_at_the_next_synchronisation(alone):
    @shmem.jit
    def fails(x):
        if cuda.grid(1) == 5:
            raise ValueError("five")

    a = shmem.zeros(8)
    fails[1, 8](a)
    with pytest.raises(KernelError, match=r"PE 0, kernel fails, .* thread \(5, 0, 0\).*five"):
        a.numpy()
    a.numpy()


def test_a_script_without_the_launcher_is_one_pe():
    code = (
        "import gpushmem as shmem; shmem.init(); print(shmem.my_pe(), shmem.n_pes(), "
        "shmem.ones(3).numpy().sum()); shmem.finalize()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "0 1 3.0\n"


def test_errors_are_one_tree():
    for name in shmem.__all__:
        value = getattr(shmem, name)
        if isinstance(value, type) and issubclass(value, Exception):
            assert issubclass(value, ShmemError)
    assert issubclass(HeapExhausted, MemoryError)
    assert issubclass(CollectiveMismatch, RuntimeError)
