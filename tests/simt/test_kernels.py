"""Kernels on the engine, compared with NumPy."""

import gc
import math
import re
import sys
import threading

import numpy as np
import pytest
from numba import cuda, float32, int32, njit
from numba.core.errors import NumbaError, TypingError

from gpushmem.artifacts.launch_shape import shape_of
from gpushmem.errors import ArgumentError, KernelError
from gpushmem.gc_control import OBJECTS, seldom_collected
from gpushmem.simt.compiler.target import compiling
from gpushmem.simt.grid.entry import _entry_text
from gpushmem.simt.run.kernel import Kernel
from gpushmem.simt.run.stream import Device


def launch(function, grid, block, *args, shared=0, kind="", **options):
    """Compile and run a kernel, as fibers if that is its `kind`; return what ran its threads."""
    if kind == "fibers":
        options["lockstep"] = False
    kernel = Kernel(function, cache=True, **options)
    running = kernel.prepare(shape_of(grid, block, shared), args)
    running()
    return running.entry.kind


# Kernels that never wait, that meet in a barrier, and that wait on fibers.
KINDS = ["loops", "lockstep", "fibers"]
every_kind = pytest.mark.parametrize("kind", KINDS)


def test_grid_covers_every_element_once():
    def mark(out):
        i = cuda.grid(1)
        if i < out.size:
            out[i] += i + 1

    out = np.zeros(1000, np.int64)
    assert launch(mark, 8, 128, out) == "loops"
    np.testing.assert_array_equal(out, np.arange(1000) + 1)


def test_three_dimensions_and_gridsize():
    def mark(out, sizes):
        x, y, z = cuda.grid(3)
        if x < out.shape[0] and y < out.shape[1] and z < out.shape[2]:
            out[x, y, z] = 10000 * x + 100 * y + z
        sx, sy, sz = cuda.gridsize(3)
        if x == 0 and y == 0 and z == 0:
            sizes[0], sizes[1], sizes[2] = sx, sy, sz

    out, sizes = np.full((5, 7, 3), -1), np.zeros(3, np.int64)
    launch(mark, (3, 2, 2), (2, 4, 2), out, sizes)
    x, y, z = np.indices(out.shape)
    np.testing.assert_array_equal(out, 10000 * x + 100 * y + z)
    assert sizes.tolist() == [6, 8, 4]


@every_kind
def test_indices_are_those_of_cuda(kind):
    barrier, warp = kind == "lockstep", kind == "fibers"

    def indices(out):
        if barrier:
            cuda.syncthreads()
        if warp:
            cuda.syncwarp()
        t = cuda.threadIdx.x + cuda.blockDim.x * (
            cuda.threadIdx.y + cuda.blockDim.y * cuda.threadIdx.z
        )
        b = cuda.blockIdx.x + cuda.gridDim.x * (cuda.blockIdx.y + cuda.gridDim.y * cuda.blockIdx.z)
        n = cuda.blockDim.x * cuda.blockDim.y * cuda.blockDim.z
        out[b * n + t] += 1000 * b + t

    grid, block = (2, 3, 2), (4, 2, 3)
    out = np.zeros(math.prod(grid) * math.prod(block), np.int64)
    assert launch(indices, grid, block, out, kind=kind) == kind
    n = math.prod(block)
    np.testing.assert_array_equal(out, [1000 * (i // n) + i % n for i in range(out.size)])


@pytest.mark.parametrize("threads", [1, 2, 31, 32, 33, 100, 256, 1024])
def test_block_reduction_in_shared_memory(threads):
    def reduce(out, x):
        part = cuda.shared.array(1024, float32)
        t = cuda.threadIdx.x
        part[t] = x[cuda.blockIdx.x * cuda.blockDim.x + t]
        cuda.syncthreads()
        width = 1024
        while width > 1:
            half = width // 2
            if t < half and t + half < cuda.blockDim.x:
                part[t] += part[t + half]
            cuda.syncthreads()
            width = half
        if t == 0:
            out[cuda.blockIdx.x] = part[0]

    x = np.arange(5 * threads, dtype=np.float32)
    out = np.zeros(5, np.float32)
    assert launch(reduce, 5, threads, out, x) == ("lockstep" if threads > 1 else "fibers")
    np.testing.assert_allclose(out, x.reshape(5, threads).sum(1))


def test_static_and_dynamic_shared_arrays_do_not_overlap():
    def fill(out):
        a = cuda.shared.array(9, int32)  # so that the others do not begin at a multiple of 64
        b = cuda.shared.array((2, 4), float32)
        c = cuda.shared.array(0, int32)
        t = cuda.threadIdx.x
        a[t] = 100 + t
        b[t // 4, t % 4] = 200 + t
        c[t] = 300 + t
        cuda.syncthreads()
        r = 7 - t
        out[t, 0], out[t, 1], out[t, 2], out[t, 3] = a[r], b[r // 4, r % 4], c[r], c.size

    out = np.zeros((8, 4), np.int64)
    launch(fill, 1, 8, out, shared=8 * 4)
    r = 7 - np.arange(8)
    np.testing.assert_array_equal(out, np.stack([100 + r, 200 + r, 300 + r, np.full(8, 8)], 1))


def test_shared_memory_is_per_block_when_blocks_run_together():
    def neighbours(out, gate):
        mine = cuda.shared.array(1, int32)
        if cuda.threadIdx.x == 0:
            mine[0] = cuda.blockIdx.x
            cuda.atomic.add(gate, 0, 1)
        cuda.syncthreads()
        for _ in range(3):
            cuda.syncthreads()
        out[cuda.blockIdx.x, cuda.threadIdx.x] = mine[0]

    out, gate = np.full((6, 16), -1), np.zeros(1, np.int32)
    launch(neighbours, 6, 16, out, gate)
    np.testing.assert_array_equal(out, np.arange(6)[:, None].repeat(16, 1))
    assert gate[0] == 6


@every_kind
def test_local_arrays_are_per_thread(kind):
    barrier, warp = kind == "lockstep", kind == "fibers"

    def permute(out):
        mine = cuda.local.array(4, int32)
        t = cuda.grid(1)
        for k in range(4):
            mine[k] = 10 * t + k
        if barrier:
            cuda.syncthreads()
        if warp:
            cuda.syncwarp()
        for k in range(4):
            out[t, k] = mine[3 - k]

    out = np.zeros((40, 4), np.int64)
    launch(permute, 2, 20, out)
    t, k = np.indices(out.shape)
    np.testing.assert_array_equal(out, 10 * t + 3 - k)


def test_large_local_arrays_do_not_need_a_large_stack():
    def big(out):
        mine = cuda.local.array(256 * 1024, float32)  # 1 MiB, four times a fiber's stack
        t = cuda.threadIdx.x
        for k in range(mine.size):
            mine[k] = t
        cuda.syncthreads()
        total = 0.0
        for k in range(mine.size):
            total += mine[k]
        out[t] = total

    out = np.zeros(8)
    launch(big, 1, 8, out)
    np.testing.assert_array_equal(out, np.arange(8) * 256 * 1024)


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint64", "float32", "float64"])
def test_atomic_add_returns_the_old_value(dtype):
    def count(total, seen, hist):
        old = cuda.atomic.add(total, 0, 1)
        seen[int(old)] = 1
        cuda.atomic.add(hist, (cuda.threadIdx.x % 2, cuda.threadIdx.x % 3), 2)

    total, seen, hist = np.zeros(1, dtype), np.zeros(600, np.int8), np.zeros((2, 3), dtype)
    launch(count, 10, 60, total, seen, hist)
    assert total[0] == 600
    assert seen.all()
    assert (hist == 200).all()


def test_device_functions_of_both_decorators_take_the_context():
    @cuda.jit(device=True)
    def index():
        return cuda.grid(1)

    @cuda.jit(device=True)
    def meet_and_double(x):
        cuda.syncthreads()
        return 2 * x

    def use(out):
        out[index()] = meet_and_double(index())

    out = np.zeros(64, np.int64)
    assert launch(use, 2, 32, out) == "lockstep", "a wait inside a device function counts"
    np.testing.assert_array_equal(out, 2 * np.arange(64))


@every_kind
def test_print(capfd, kind):
    barrier, warp = kind == "lockstep", kind == "fibers"

    @cuda.jit(device=True)
    def show(x):
        print("x is", x)

    def printing(x):
        if barrier:
            cuda.syncthreads()
        if warp:
            cuda.syncwarp()
        if cuda.threadIdx.x < 3:
            print(cuda.threadIdx.x, x[cuda.threadIdx.x], "text")
            show(x[0])

    assert launch(printing, 1, 8, np.arange(8) + 0.5, kind=kind) == kind
    assert capfd.readouterr().out == "".join(
        f"{t} {t}.500000 text\nx is 0.500000\n" for t in range(3)
    )


def test_threads_that_return_early_do_not_hold_up_the_others():
    def some(out, n):
        t = cuda.threadIdx.x
        if t >= n:
            return
        for _ in range(t % 3):
            out[t] += 1
        cuda.syncthreads()
        out[t] += 10

    out = np.zeros(64, np.int64)
    launch(some, 1, 64, out, 40)
    np.testing.assert_array_equal(out[:40], 10 + np.arange(40) % 3)
    assert not out[40:].any()


def test_a_grid_larger_than_what_is_resident_runs_block_by_block():
    def add(out):
        cuda.syncthreads()
        if cuda.threadIdx.x == 0:
            cuda.atomic.add(out, 0, 1)

    out = np.zeros(1, np.int64)
    launch(add, 3000, 64, out)
    assert out[0] == 3000


def test_scalars_tuples_and_numpy_types_as_arguments():
    def mixed(out, i, f, pair, flag):
        if flag:
            out[0] = i + f + pair[0] + pair[1]

    out = np.zeros(1)
    launch(mixed, 1, 1, out, 1, np.float32(0.5), (10, 20.0), True)
    assert out[0] == 31.5


def test_barriers_order_memory_over_many_rounds():
    def rotate(x, rounds):
        t, n = cuda.threadIdx.x, cuda.blockDim.x
        for _ in range(rounds):
            right = x[(t + 1) % n]
            cuda.syncthreads()
            x[t] = right
            cuda.syncthreads()

    x = np.arange(37)
    launch(rotate, 1, 37, x, 500)
    np.testing.assert_array_equal(x, np.roll(np.arange(37), -(500 % 37)))


# --- what goes wrong


def test_exceptions_name_kernel_block_thread_and_line():
    def fails(x):
        if cuda.grid(1) == 70:
            raise ValueError("seventy")
        cuda.syncthreads()

    with pytest.raises(
        KernelError,
        match=r"fails, block \(2, 0, 0\), thread \(6, 0, 0\), test_kernels.py:\d+ in fails: ",
    ) as e:
        launch(fails, 4, 32, np.zeros(1))
    assert isinstance(e.value.__cause__, ValueError)
    assert "seventy" in str(e.value)


@every_kind
def test_kernels_with_the_same_arguments_have_one_entry_and_their_own_names(kind):
    barrier, warp = kind == "lockstep", kind == "fibers"

    def failing(number):
        def kernel(x):
            if barrier:
                cuda.syncthreads()
            if warp:
                cuda.syncwarp()
            if cuda.threadIdx.x == number:
                raise ValueError

        kernel.__name__ = kernel.__qualname__ = f"fails_{number}"
        return kernel

    before = _entry_text.cache_info()
    for number in (1, 2, 3):
        match = rf"kernel fails_{number}, .*thread \({number}, 0, 0\)"
        with pytest.raises(KernelError, match=match):
            launch(failing(number), 1, 4, np.zeros(1, np.int16), kind=kind)
    after = _entry_text.cache_info()
    assert after.hits >= before.hits + 2
    assert after.misses <= before.misses + 1


@every_kind
def test_index_checks_with_debug_name_the_thread_and_the_line(kind):
    barrier, warp = kind == "lockstep", kind == "fibers"

    def outside(x):
        if barrier:
            cuda.syncthreads()
        if warp:
            cuda.syncwarp()
        x[cuda.grid(1) + 3] = 1

    line = outside.__code__.co_firstlineno + 5
    with pytest.raises(KernelError, match="IndexError") as e:
        launch(outside, 1, 4, np.zeros(4), debug=True)
    assert re.search(rf"thread \([123], 0, 0\), test_kernels.py:{line} in", str(e.value))


def test_the_engine_works_after_a_failure():
    def half(x):
        cuda.syncthreads()
        if cuda.threadIdx.x == 3:
            raise RuntimeError
        cuda.syncthreads()
        x[cuda.threadIdx.x] = 1

    x = np.zeros(16)
    kernel = Kernel(half)
    for _ in range(50):
        with pytest.raises(KernelError):
            kernel.prepare(shape_of(4, 16), (x,))()
    assert not x.any()
    launch(lambda x: cuda.syncthreads(), 4, 16, x)


def test_a_kernel_that_cannot_be_typed_names_the_users_line():
    def wrong(x):
        x[0] = "text" + 1  # this line

    with pytest.raises(TypingError, match='x\\[0\\] = "text" \\+ 1  # this line'):
        launch(wrong, 1, 1, np.zeros(1))


def test_a_kernel_of_many_branches_is_compiled():
    """Numba follows them by functions that call themselves: Python must let it."""
    lines = [f"    if v > {i}: v = v * 2 + x[{i % 7}]" for i in range(600)]
    scope = {}
    exec("\n".join(["def kernel(x):", "    v = x[0]", *lines, "    x[0] = v % 1000"]), scope)
    x = np.arange(-3, 5)
    limit = sys.getrecursionlimit()
    assert launch(scope["kernel"], 1, 1, x) == "loops"
    assert x[0] == -3 % 1000
    assert sys.getrecursionlimit() == limit


def test_a_generator_is_refused_in_words():
    @cuda.jit(device=True)
    def count(n):
        yield n

    def kernel(out):
        for k in count(3):  # this line
            out[k] = k

    with pytest.raises(TypingError, match=r"count \(test_kernels.py:\d+\) is a generator") as e:
        launch(kernel, 1, 1, np.zeros(3))
    assert "# this line" in str(e.value)
    with pytest.raises(TypingError, match="Write its values to an array"):
        launch(count.py_func, 1, 1, 3)


@pytest.mark.parametrize(
    ("grid", "block", "shared", "message"),
    [
        (1, 1025, 0, r"block dimension x is 1025; it must be 1 to 1024"),
        (1, (32, 33), 0, r"32 x 33 x 1 has 1056 threads; at most 1024"),
        (0, 32, 0, r"grid dimension x is 0"),
        (1, (1, 1, 65), 0, r"block dimension z is 65; it must be 1 to 64"),
        ((1, 2, 3, 4), 32, 0, r"1 to 3 dimensions, not 4"),
        (1.5, 32, 0, r"grid must be an int or a tuple"),
        (1, 32, -1, r"dynamic shared memory must be 0 bytes or more, not -1"),
        (1, 32, 300_000, r"needs 300000 bytes of shared memory .* 232448 are possible"),
    ],
)
def test_launch_limits_are_named(grid, block, shared, message):
    with pytest.raises(ArgumentError, match=message):
        launch(lambda x: None, grid, block, np.zeros(1), shared=shared)


def test_wrong_argument_count_and_returned_values():
    with pytest.raises(ArgumentError, match="takes 1 arguments, got 2"):
        launch(lambda x: None, 1, 1, np.zeros(1), 2)
    with pytest.raises(ArgumentError, match="returns a value"):
        launch(lambda x: x[0], 1, 1, np.zeros(1))


def test_plain_numba_still_refuses_cuda_names():
    @njit
    def plain():
        cuda.syncthreads()

    with pytest.raises(NumbaError):
        plain()


# --- streams


def test_a_stream_keeps_order_and_errors_wait_for_synchronisation():
    def step(x, factor, term):
        i = cuda.grid(1)
        x[i] = x[i] * factor + term

    def fails(x):
        raise ValueError

    device, x = Device(), np.ones(64)
    stream, kernel = device.stream(), Kernel(step)
    for k in range(50):
        stream.submit(kernel.prepare(shape_of(1, 64), (x, 2.0 if k == 0 else 1.0, 1.0)))
    stream.synchronize()
    assert (x == 52).all()
    stream.submit(Kernel(fails).prepare(shape_of(1, 1), (x,)))
    stream.submit(kernel.prepare(shape_of(1, 64), (x, 0.0, 0.0)))
    with pytest.raises(KernelError, match="kernel fails"):
        stream.synchronize()
    assert (x == 52).all(), "work behind a failed launch is dropped"
    stream.submit(kernel.prepare(shape_of(1, 64), (x, 0.0, 3.0)))
    stream.synchronize()
    assert (x == 3).all()


def test_two_streams_run_at_the_same_time_with_their_own_indices():
    device = Device()
    meeting = threading.Barrier(2)
    streams = [device.stream(), device.stream()]
    for stream in streams:
        stream.submit(lambda: meeting.wait(10) and None)
    device.synchronize()  # raises BrokenBarrierError if one ran after the other

    def fill(x, base):
        for _ in range(20):
            cuda.syncthreads()
        x[cuda.grid(1)] = base + cuda.grid(1)

    arrays, kernel = [np.zeros(4096, np.int64) for _ in range(2)], Kernel(fill)
    for base, (stream, x) in enumerate(zip(streams, arrays, strict=True)):
        stream.submit(kernel.prepare(shape_of(64, 64), (x, 10000 * base)))
    device.synchronize()
    for base, x in enumerate(arrays):
        np.testing.assert_array_equal(x, 10000 * base + np.arange(4096))


def test_the_default_stream_waits_for_others_and_they_for_it():
    device, order, gate = Device(), [], threading.Event()
    other = device.stream()
    other.submit(lambda: gate.wait(10) and order.append("other"))
    device.default.submit(lambda: order.append("default"))
    late = device.stream()
    late.submit(lambda: order.append("late"))
    assert order == []
    gate.set()
    device.synchronize()
    assert order == ["other", "default", "late"]


def test_a_nonblocking_stream_and_the_default_stream_do_not_wait_for_each_other():
    device, order, gate = Device(), [], threading.Event()
    first, second = threading.Event(), threading.Event()
    beside = device.stream(blocking=False)
    beside.submit(lambda: gate.wait(10) and order.append("beside"))
    device.default.submit(lambda: order.append("default") or first.set())
    assert first.wait(5)
    device.default.submit(lambda: gate.wait(10) and None)
    device.stream(blocking=False).submit(lambda: order.append("late") or second.set())
    assert second.wait(5)
    gate.set()
    device.synchronize()
    assert order == ["default", "late", "beside"]


def test_work_and_errors_of_a_stream_nobody_holds_are_not_lost():
    def fails(x):
        raise ValueError("dropped")

    device, gate, done = Device(), threading.Event(), []
    stream = device.stream()
    stream.submit(lambda: gate.wait(10) and None)
    stream.submit(lambda: done.append(1))
    stream.submit(Kernel(fails).prepare(shape_of(1, 1), (np.zeros(1),)))
    del stream
    gate.set()
    with pytest.raises(KernelError, match="dropped"):
        device.synchronize()
    assert done == [1]
    device.synchronize()


def test_garbage_is_collected_seldom_while_a_kernel_is_compiled():
    """Afterwards as the user wants it, also if that was never, or compiling has failed."""
    before = gc.get_threshold()

    def kernel(x):
        x[0] = 1

    def wrong(x):
        x[0] = undefined  # noqa: F821

    try:
        for wanted in (700, 11, 12), (0, 11, 12):
            gc.set_threshold(*wanted)
            most = wanted[0] and OBJECTS
            with compiling():
                assert gc.get_threshold()[0] == most
            with seldom_collected():
                with compiling():
                    assert gc.get_threshold()[0] == most
                assert gc.get_threshold()[0] == most
            launch(kernel, 1, 1, np.zeros(1))
            with pytest.raises(NumbaError):
                launch(wrong, 1, 1, np.zeros(1))
            assert gc.get_threshold() == wanted
    finally:
        gc.set_threshold(*before)
