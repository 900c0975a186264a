"""Kernels that wait, as loops from wait to wait: the same as on fibers, whatever the threads do."""

import re
import time

import llvmlite.binding as llvm
import numpy as np
import pytest
from numba import cuda, float32, int64, uint8
from numba import types as cuda_types

from gpushmem.artifacts.launch_shape import shape_of
from gpushmem.errors import KernelError
from gpushmem.simt.base.llvm_contexts import new_context
from gpushmem.simt.blocks import llvm_code, transform, uniformity
from gpushmem.simt.grid.entry import ONE, ROW, ROWS
from gpushmem.simt.run.kernel import Kernel
from gpushmem.simt.run.waits import waits
from tests.simt.conftest import hanging, launch

FULL = 0xFFFFFFFF
BLOCKS = [2, 33, 128, 1000, (5, 7), (3, 4, 5)]


def flat(block):
    return int(np.prod(block))


def both(function, grid, block, *args, **options):
    """Run in lockstep and on fibers, which must agree; return the last argument."""
    assert launch(function, grid, block, *args, **options) == "fibers"
    return args[-1]


@cuda.jit(device=True)
def index():
    """The number of a thread in its block."""
    t = cuda.threadIdx
    return t.x + cuda.blockDim.x * (t.y + cuda.blockDim.y * t.z)


@cuda.jit(device=True)
def meet_in_a_function(x, t):
    cuda.syncthreads()
    value = x[t]
    cuda.syncthreads()
    return value


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_barriers_in_device_functions(block):
    def rotate(out):
        s = cuda.shared.array(1000, int64)
        t, n = index(), cuda.blockDim.x * cuda.blockDim.y * cuda.blockDim.z
        s[t] = t
        for k in range(3):
            value = meet_in_a_function(s, (t + k) % n)
            s[t] = value + 1
        out[cuda.blockIdx.x, t] = s[t]

    n = flat(block)
    wanted = np.arange(n)
    for k in range(3):
        wanted = np.roll(wanted, -k) + 1
    out = both(rotate, 2, block, np.zeros((2, n), np.int64))
    np.testing.assert_array_equal(out, [wanted, wanted])


# --- loops that are dealt out to the threads


@pytest.mark.parametrize("threads", [2, 7, 64, 256])
@pytest.mark.parametrize("size", [0, 1, 63, 64, 1000])
def test_loops_dealt_out_to_the_threads(threads, size):
    def work(x, y, sums, firsts, out):
        t, n = cuda.threadIdx.x, cuda.blockDim.x
        cuda.syncwarp()
        for i in range(t, x.size, n):
            x[i] += 2 * y[i]
        cuda.syncthreads()
        total = 0.0
        for i in range(t, x.size, n):
            total += x[i]
        sums[t] = total
        for i in range(3 + t, x.size - 2, n):
            if x[i] > 5:
                continue
            out[i] = x[i] + t - i
        first = -1
        for i in range(t, x.size, n):
            if y[i] > 3:
                first = i
                break
        firsts[t] = first
        cuda.syncthreads()
        for i in range(t, x.size, 2 * n):
            for k in range(3):
                out[i] += k * y[i]
        cuda.syncthreads()
        for i in range(2 * t, x.size, 2 * n):  # not neighbours
            out[i] += 7 * i
        for i in range(n - 1 - t, x.size, n):  # backwards
            sums[t] += x[i]

    rng = np.random.default_rng(threads * 1000 + size)
    x, y = rng.integers(0, 9, (2, size)).astype(float)
    both(work, 1, threads, x, y, np.zeros(threads), np.zeros(threads, int), np.zeros(size))


@pytest.mark.parametrize("block", [(32, 4), (8, 3, 2), (1, 64)], ids=str)
def test_loops_dealt_out_to_rows_of_threads(block):
    def work(x, out):
        t = cuda.threadIdx
        cuda.syncwarp()
        row, rows = t.y + cuda.blockDim.y * t.z, cuda.blockDim.y * cuda.blockDim.z
        for r in range(row, x.shape[0], rows):
            for c in range(t.x, x.shape[1], cuda.blockDim.x):
                out[r, c] = x[r, c] + 1000 * r + c
        cuda.syncthreads()
        for i in range(index(), out.shape[1], cuda.blockDim.x * rows):
            out[0, i] += i

    x = np.arange(7 * 50).reshape(7, 50)
    out = both(work, 1, block, x, np.zeros((7, 50), np.int64))
    wanted = x + 1000 * np.arange(7)[:, None] + np.arange(50)
    wanted[0] += np.arange(50)
    np.testing.assert_array_equal(out, wanted)


def test_an_index_error_in_a_dealt_out_loop_names_the_thread():
    def over(x):
        cuda.syncwarp()
        for i in range(cuda.threadIdx.x, x.size + 3, cuda.blockDim.x):
            x[i] = 1

    running = Kernel(over, debug=True).prepare(shape_of(1, 64), (np.zeros(70),))
    assert running.entry.kind == "lockstep"
    with pytest.raises(KernelError, match=r"thread \(6, 0, 0\).*IndexError"):
        running()


# --- threads that go different ways


def test_one_thread_waits_for_what_another_does_later():
    """The other must not be held where the first will come: there is no barrier in between."""

    def hand_over(flags, waits, tells, out):
        t = cuda.threadIdx.x
        for k in range(1, 20):
            if waits[t]:
                while cuda.atomic.add(flags, 0, 0) != k:
                    pass
            if tells[t]:
                cuda.atomic.add(flags, 0, 1)
            cuda.syncthreads()
            out[t] += k * t

    for threads in (2, 40, 256):
        out, t = np.zeros(threads, np.int64), np.arange(threads)
        both(hand_over, 1, threads, np.zeros(1, np.int64), t == 0, t == 1, out)
        np.testing.assert_array_equal(out, 190 * np.arange(threads))


def test_threads_wait_for_each_other_in_a_chain():
    def chain(flags, out):
        t = cuda.threadIdx.x
        if t > 0:
            while flags[t - 1] == 0:
                pass
        out[t] = out[t - 1] + t if t > 0 else 0
        cuda.threadfence()
        flags[t] = 1

    out = both(chain, 1, 100, np.zeros(100, np.int32), np.zeros(100, np.int64))
    np.testing.assert_array_equal(out, np.cumsum(np.arange(100)))


def test_values_of_loops_that_threads_leave_at_different_times(monkeypatch):
    """What is the same for all in each turn is not so afterwards."""

    def leave(limits, out):
        t = cuda.threadIdx.x
        k, square = 0, 0
        while k < limits[t]:
            cuda.syncwarp(1 << (t % 32))
            k += 1
            square = k * k
        out[t] = 1000 * k + square

    limits = np.arange(64) * 7 % 10
    out = both(leave, 1, 64, limits, np.zeros(64, np.int64))
    np.testing.assert_array_equal(out, 1000 * limits + limits**2)
    monkeypatch.setattr(uniformity.Analysis, "_leave", lambda *_: None)
    wrong = np.zeros(64, np.int64)
    Kernel(leave).prepare(shape_of(1, 64), (limits, wrong))()
    assert not np.array_equal(wrong, out), "this test sees that"


@pytest.mark.parametrize("barriers", [(0, 0, 0), (1, 0, 0), (0, 0, 1), (1, 1, 1)], ids=str)
@pytest.mark.parametrize("last", [3, 100])
def test_what_follows_from_a_counter_is_that_of_the_threads_last_turn(barriers, last):
    """It could be computed again, but not from the counter of those that left the loop first."""

    def kernel(barriers, last, seen, out):
        t, i = cuda.threadIdx.x, 0
        first, second, third = 7, t, 4
        while i < 3:
            seen[t] = second
            if barriers[i] > 0:
                cuda.syncthreads()
            second, third, first = third, first, i & 0xFFFF
            if t > last:
                break
            i += 1
        out[t] = first

    n = 15
    seen, out = np.zeros(n, np.int64), np.zeros(n, np.int64)
    both(kernel, 1, n, np.array(barriers), last, seen, out)
    left = np.arange(n) > last
    assert out.tolist() == np.where(left, 0, 2).tolist()
    assert seen.tolist() == np.where(left, np.arange(n), 7).tolist()


def test_barriers_that_not_all_threads_come_to():
    def work(x, out):
        t = cuda.threadIdx.x
        for k in range(t % 5):
            cuda.syncwarp(1 << (t % 32))
            x[t] += k
        if t % 3 == 1:
            out[t] = x[t]
            return
        for k in range(4):
            cuda.syncthreads()
            value = x[(t + 3) % 60] * k
            cuda.syncthreads()
            x[t] += value
        out[t] = x[t]

    both(work, 1, 60, np.arange(60), np.zeros(60, np.int64))


def test_atomics_of_one_value_count_for_each_thread():
    def count(total, out):
        s = cuda.shared.array(2, int64)
        t = cuda.threadIdx.x
        if t < 2:
            s[t] = 0
        cuda.syncthreads()
        cuda.syncwarp()
        cuda.atomic.add(s, 0, 1)
        cuda.atomic.add(total, 0, 2)
        cuda.atomic.max(s, 1, t)
        cuda.syncthreads()
        out[t] = s[0] * 1000 + s[1]

    total = np.zeros(1, np.int64)
    out = both(count, 3, 70, total, np.zeros(70, np.int64))
    assert total[0] == 2 * 3 * 70
    np.testing.assert_array_equal(out, 70 * 1000 + 69)


def test_private_memory_lives_through_waits():
    def work(out):
        mine = cuda.local.array(5, float32)
        t = cuda.threadIdx.x
        for k in range(5):
            mine[k] = 10 * t + k
            cuda.syncwarp()
        total = float32(0)
        for k in range(5):
            cuda.syncthreads()
            total += mine[(t + k) % 5] * k
        out[t] = total

    out = both(work, 1, 90, np.zeros(90))
    wanted = [sum((10 * t + (t + k) % 5) * k for k in range(5)) for t in range(90)]
    np.testing.assert_array_equal(out, wanted)


def test_a_grid_meets_in_lockstep_many_times():
    def rounds(x):
        g = cuda.cg.this_grid()
        i, n = cuda.blockIdx.x, cuda.gridDim.x
        for k in range(50):
            if cuda.threadIdx.x == k % cuda.blockDim.x:
                x[(k + 1) % 2, i] = x[k % 2, (i + 1) % n] + 1
            g.sync()

    for blocks, threads in ((7, 33), (64, 128)):
        x = np.zeros((2, blocks), np.int64)
        x[0] = np.arange(blocks)
        both(rounds, blocks, threads, x)
        np.testing.assert_array_equal(x[0], (np.arange(blocks) + 50) % blocks + 50)


# --- reports


def waiting_threads(kernel, shape, args, enough):
    """Run a kernel that hangs until `enough(waits())`; returns these, and cancels it."""
    launch = kernel.prepare(shape, args)
    assert launch.entry.kind == "lockstep"
    with hanging(launch):
        end = time.monotonic() + 30
        while not enough(found := waits()):
            assert time.monotonic() < end, found
            time.sleep(0.01)
    return found


def test_a_report_lists_those_that_wait_together_and_those_at_a_barrier():
    def hang(flag, out):
        t = cuda.threadIdx.x
        cuda.syncwarp()
        if t == 3:
            while flag[0] == 0:
                pass
        cuda.syncthreads()
        out[t] = 1

    found = waiting_threads(
        Kernel(hang), shape_of(2, 50), (np.zeros(1, np.int32), np.zeros(50)),
        lambda waits: sum(w.what == "syncthreads" for w in waits) >= 98,
    )  # fmt: skip
    line = hang.__code__.co_firstlineno
    barriers = [w for w in found if w.what == "syncthreads"]
    assert {(w.block[0], w.thread[0]) for w in barriers} == {
        (b, t) for b in range(2) for t in range(50) if t != 3
    }
    assert {w.site.split(" in ")[0] for w in barriers} == {f"test_lockstep.py:{line + 6}"}


def test_a_report_lists_all_threads_of_a_wait_of_all():
    def hang(flag):
        cuda.syncwarp()
        while flag[0] == 0:
            pass

    found = waiting_threads(
        Kernel(hang), shape_of(1, (8, 4)), (np.zeros(1, np.int32),),
        lambda waits: len(waits) == 32,
    )  # fmt: skip
    assert {w.thread[:2] for w in found} == {(x, y) for x in range(8) for y in range(4)}
    assert {w.what for w in found} == {"a loop that reads memory"}


@pytest.mark.parametrize("block", [33, 128, (40, 3), (8, 4, 2)], ids=str)
def test_some_threads_have_something_to_do(block):
    """Conditions on the first index, of all kinds, with bounds that are in the block and not."""

    def choose(bounds, out):
        x, t = cuda.threadIdx.x, index()
        for k in range(bounds.size):
            n = bounds[k]
            cuda.syncthreads()
            if x < n:
                out[t] += 1
            cuda.syncthreads()
            if x >= n:
                out[t] += 10
            cuda.syncthreads()
            if x == n:
                out[t] += 100
            cuda.syncthreads()
            if x != n:
                out[t] += 1000
            cuda.syncthreads()
            if n < x:
                out[t] += 10_000
            cuda.syncthreads()
            if x > n // 2:
                out[t] += 100_000
                if x <= n:
                    out[t] += 1_000_000
            meet_in_a_function(out, t)

    bounds = np.array([0, 1, 5, 8, 32, 33, 34, 127, 128, 129, 2**40, -1, -7, -(2**40), 2**63 - 1])
    for kind in (np.int64, np.int32):
        fit = bounds[np.abs(bounds) < 2**31] if kind is np.int32 else bounds
        both(choose, 1, block, fit.astype(kind), np.zeros(flat(block), np.int64))


@pytest.mark.parametrize("threads", [3, 32, 128, 200])
def test_loops_dealt_out_to_the_threads_with_branches_inside(threads):
    """Their range loops come from LLVM in other forms."""

    def relax(x, out, wide, times):
        t, n = cuda.threadIdx.x, cuda.blockDim.x
        for r in range(times):
            for i in range(1 + t, x.size - 1, n):
                total = x[i - 1] + x[i + 1]
                if wide > 1:
                    total += 3 * x[i]
                if i % 3 == 0:
                    total -= r
                out[i] = total
            cuda.syncthreads()
            for i in range(t, x.size, n):
                x[i] = out[i] % 1000
            meet_in_a_function(out, t % x.size)

    def numpys(x, wide, times):
        x, out = x.copy(), np.zeros_like(x)
        i = np.arange(1, x.size - 1)
        for r in range(times):
            out[1:-1] = x[:-2] + x[2:] + (3 * x[1:-1] if wide > 1 else 0) - r * (i % 3 == 0)
            x = out % 1000
        return x

    for size in (2, 3, threads, threads + 2, 5 * threads + 7):
        for wide in (1, 2):
            x = np.random.default_rng(size).integers(0, 99, size)
            found = x.copy()
            launch(relax, 1, threads, found, np.zeros_like(x), wide, 7)
            np.testing.assert_array_equal(found, numpys(x, wide, 7))


def test_an_error_in_a_loop_over_elements_names_the_thread():
    def negative(x, out):
        for i in range(cuda.threadIdx.x, x.size, cuda.blockDim.x):
            if x[i] < 0:
                raise ValueError("negative")
            out[i] = x[i]
        meet_in_a_function(out, cuda.threadIdx.x)

    for threads, thread in ((34, 2), (70, 0), (71, 70), (100, 70)):
        x = np.zeros(100)
        x[70] = -1
        with pytest.raises(KernelError, match=rf"thread \({thread}, 0, 0\).*negative"):
            launch(negative, 1, threads, x, np.zeros(100))


def test_an_index_error_in_a_loop_names_the_thread():
    def beyond(x, out):
        for i in range(cuda.threadIdx.x, 100, cuda.blockDim.x):
            out[i] = x[i]
        meet_in_a_function(out, cuda.threadIdx.x)

    with pytest.raises(KernelError, match=r"thread \(2, 0, 0\)"):  # element 70
        launch(beyond, 1, 34, np.zeros(70), np.zeros(100), debug=True, opt=False)


def test_reshapes_and_tuples_are_the_same_for_all_threads():
    """Their memory has many words, of which threads that part take copies, aligned or not."""

    def shapes(x, flags, out):
        t, n = cuda.threadIdx.x, cuda.blockDim.x
        flat_x = x.reshape(x.shape[0] * x.shape[1] * x.shape[2])
        cube = flat_x.reshape((x.shape[2], x.shape[0], x.shape[1]))
        for k in range(1, 6):
            if t % 3 == k % 3:
                cuda.atomic.add(flags, 0, 1)
                while cuda.atomic.add(flags, 0, 0) < k * ((n + 2) // 3):
                    pass
                out[t] += cube.reshape(cube.size)[t % cube.size] + cube.shape[k % 3]
            for i in range(t, flat_x.size, n):
                out[i % n] += flat_x[i] * cube.shape[k % 3]
            cuda.syncthreads()

    for threads in (3, 33, 90):
        x = np.arange(4 * 5 * 6).reshape(4, 5, 6)
        out = np.zeros(threads, np.int64)
        both(shapes, 1, threads, x, np.zeros(1, np.int64), out)
        assert out.any()


def test_what_all_have_in_common_goes_with_each_thread():
    """Some stop where all meet, and go on alone later; those have what all had in common, too."""

    def pass_on(flags, given, out):
        t, total = cuda.threadIdx.x, 0
        a, b, c, d = given[0], given[1] * 2, given[2] + given[3], given[4]
        for k in range(given.size):
            a, b, c, d = b + given[k], c, d - a, a
            if t == k:
                while cuda.atomic.add(flags, 0, 0) < k:
                    pass
                total += a * b
            cuda.atomic.max(flags, 0, k + 1 if t == k + 1 or k == given.size - 1 else 0)
            total += c * t - d
        cuda.syncthreads()
        out[t] = total + a - b + c - d

    given = np.arange(3, 12)
    both(pass_on, 1, 40, np.zeros(1, np.int64), given, np.zeros(40, np.int64))


@pytest.mark.parametrize("block", [1, 3, 128, (5, 7)])
@pytest.mark.parametrize("ends", [False, True])
def test_a_loop_dealt_out_in_a_kernel_that_never_waits(block, ends):
    """It goes through memory in its order, also if threads may leave it."""

    def scale(y, x, most):
        for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
            if ends and x[i] > most:
                break
            y[i, cuda.threadIdx.y] += 2 * x[i]

    x = np.arange(1000.0)
    rows = 1 if isinstance(block, int) else block[1]
    y = np.ones((1000, rows))
    running = Kernel(scale, cache=True).prepare(shape_of(3, block), (y, x, 400))
    serves = (ONE,) if block == 1 else (ROW, ROWS)
    assert (running.entry.kind, running.entry.serves) == ("loops", serves)
    running()
    wanted = 1 + 2 * np.where((x <= 400) | (not ends), x, 0)
    np.testing.assert_array_equal(y, wanted[:, None].repeat(rows, 1))


def test_threads_that_were_apart_meet_again_in_a_loop_that_each_runs_alone():
    def kernel(x, out):
        t = cuda.threadIdx.x
        for _, z in zip(range(x.size), range(t, t + 3)):  # noqa: B905
            out[t] += z
            cuda.syncthreads()
        for i, (y, z) in enumerate(zip(x, x)):  # noqa: B905
            out[t] += i * y * z

    both(kernel, 1, 3, np.arange(2), np.zeros(3, np.int64))


LIMITS = [-(2**63), -1, 0, 1, 37, 95, 96, 2**31 - 1, 2**63 - 1]


@pytest.mark.parametrize("op", ["<", "<=", ">", ">=", "==", "!="])
@pytest.mark.parametrize("typ", ["int64", "uint64", "int32", "uint32"])
def test_only_some_threads_of_a_grid(typ, op):
    """A comparison of the index in the grid: the loop is over those for which it holds."""
    scope = {"cuda": cuda, "typ": getattr(cuda_types, typ)}
    exec(
        f"""def kernel(out, n):
    i = typ(cuda.blockIdx.x) * typ(cuda.blockDim.x) + typ(cuda.threadIdx.x)
    if i {op} n:
        out[cuda.grid(1)] += i + 1
    if n {op} cuda.grid(1):
        out[cuda.grid(1)] += 1000
""",
        scope,
    )
    i, kernel = np.arange(96), Kernel(scope["kernel"])
    for limit in LIMITS:
        if not np.iinfo(typ).min <= limit <= np.iinfo(typ).max:
            continue
        n = np.dtype(typ).type(limit)
        out = np.zeros(96, np.int64)
        kernel.prepare(shape_of(3, 32), (out, n))()
        first = [eval(f"a {op} b", {"a": k, "b": int(n)}) for k in range(96)]
        second = [eval(f"b {op} a", {"a": k, "b": int(n)}) for k in range(96)]
        np.testing.assert_array_equal(out, (i + 1) * first + 1000 * np.array(second), str(n))


@pytest.mark.parametrize("waits", [False, True])
def test_a_kernel_that_does_nothing_but_fail(waits):
    def fails(x):
        if waits:
            cuda.syncthreads()
        raise ValueError("nothing else")

    with pytest.raises(KernelError, match="nothing else"):
        launch(fails, 2, 32, np.zeros(1), twice=False)


@pytest.mark.parametrize("align", [16, 256, 512])
def test_local_arrays_are_aligned(align):
    """In a block's frame, where each thread's are behind the others', as on a stack."""

    def fill(at, out):
        a = cuda.local.array(3, float32, alignment=align)
        b = cuda.local.array(5, uint8, alignment=align)
        t, i = cuda.threadIdx.x, cuda.grid(1)
        for k in range(3):
            a[k], b[k] = t + k, t
        at[i, 0], at[i, 1] = a.ctypes.data, b.ctypes.data
        cuda.syncthreads()
        if t % 3 == 1:
            cuda.nanosleep(10)
            for k in range(3):
                a[k] += b[k]
        cuda.syncthreads()
        out[i] = a[0] + a[1] + a[2]

    for threads in (1, 3, 33):
        at, out = np.zeros((2 * threads, 2), np.uint64), np.zeros(2 * threads, np.float32)
        kind = launch(fill, 2, threads, at, out, twice=False)
        assert kind == ("lockstep" if threads > 1 and align < 512 else "fibers")
        assert not (at % align).any()
        t = np.arange(2 * threads) % threads
        np.testing.assert_array_equal(out, 3 + 3 * t * np.where(t % 3 == 1, 2, 1))


def test_code_for_one_row_is_not_used_for_rows():
    """Each shape has the code that it needs, in any order of launches, with the same results."""

    def turn(out):
        shared = cuda.shared.array(64, float32)
        k = cuda.threadIdx.x + cuda.blockDim.x * (
            cuda.threadIdx.y + cuda.blockDim.y * cuda.threadIdx.z
        )
        shared[k] = 100 * cuda.threadIdx.z + 10 * cuda.threadIdx.y + cuda.threadIdx.x
        cuda.syncthreads()
        out[k] = shared[63 - k]

    kernel = Kernel(turn)
    names = set()
    for block in ((64,), (8, 8), (4, 4, 4), (64,), (1, 64), (64, 1, 1)):
        out = np.zeros(64)
        running = kernel.prepare(shape_of(1, block), (out,))
        names.add((running.entry.name, running.entry.serves))
        running()
        z, y, x = np.unravel_index(np.arange(64), (*block, 1, 1)[2::-1])
        np.testing.assert_array_equal(out, (100 * z + 10 * y + x)[::-1], str(block))
    assert sorted(serves for _, serves in names) == [(ROW,), (ROWS,)]


def test_a_kernel_whose_threads_never_part_has_no_code_for_one():
    def meets(out):
        cuda.syncthreads()
        if cuda.threadIdx.x < 5:
            out[cuda.threadIdx.x] += 1
        cuda.syncthreads()

    def parts(out):
        if cuda.threadIdx.x < 5:
            cuda.syncwarp(0x1F)
            out[cuda.threadIdx.x] += 1
        cuda.syncthreads()

    lengths = []
    for function in (meets, parts):
        out = np.zeros(32)
        running = Kernel(function).prepare(shape_of(1, 32), (out,))
        running()
        assert running.entry.kind == "lockstep"
        np.testing.assert_array_equal(out, np.arange(32) < 5)
        module = llvm.parse_bitcode(running.entry.bitcode, new_context())
        functions = [f for f in module.functions if f.name.endswith(".lane")]
        alone = [f for f in functions if ".entry." not in f.name]
        lengths.append(sum(1 for f in alone for block in f.blocks for _ in block.instructions))
    assert lengths[0] <= 1
    assert lengths[1] > 20


@pytest.mark.parametrize("joined", [True, False])
def test_what_one_thread_does_at_the_end_of_a_turn_changes_nothing_for_all(monkeypatch, joined):
    """The loop goes on from three places: those where a thread of its own went bring the same."""

    def turns(skipped, out):
        row, total = out[0], 0
        for k in range(5):
            if skipped[k] > 0:
                continue
            for i in range(total):
                cuda.nanosleep(1)
                row[cuda.threadIdx.x] += i
            row, total = out[k], total + 1
            cuda.syncthreads()
            if cuda.threadIdx.x == 0:
                if out[5, 0] < 3:
                    out[5, 0] += 1
                out[5, 1] = k
        out[6, cuda.threadIdx.x] = total

    if not joined:
        monkeypatch.setattr(transform, "JOINS", 0)
    running = Kernel(turns).prepare(
        shape_of(1, 40), (skipped := np.array([0, 1, 0, 0, 0]), out := np.zeros((7, 40), np.int64))
    )
    running()
    wanted = np.zeros((7, 40), np.int64)
    turns_of(skipped, wanted)
    np.testing.assert_array_equal(out, wanted)
    assert (running.entry.reason == "") == joined


def turns_of(skipped, out):
    """What the kernel above does, for all threads at once."""
    row, total = out[0], 0
    for k in np.flatnonzero(skipped == 0):
        row += sum(range(total))
        row, total = out[k], total + 1
        out[5, :2] = min(total, 3), k
    out[6] = total


def test_texts_that_look_like_attributes_stay_as_they_are(capfd):
    def say(out):
        if cuda.threadIdx.x == 3:
            print("attributes #0 = { noinline optnone }")
            cuda.syncwarp(8)
        cuda.syncthreads()
        out[cuda.threadIdx.x] = 1

    out = np.zeros(8)
    running = Kernel(say).prepare(shape_of(1, 8), (out,))
    running()
    assert running.entry.kind == "lockstep"
    assert capfd.readouterr().out == "attributes #0 = { noinline optnone }\n"


INSTRUCTIONS = """
define {i64, i1} @f(i32 %a, i64 %b, float %x, ptr %p, i1 %c, {i32, [2 x i8]} %s, <2 x float> %v) {
entry:
  %1 = add nuw nsw i32 %a, 1
  %2 = or disjoint i64 %b, 8
  %3 = fmul fast float %x, %x
  %4 = fneg nnan float %3
  %5 = icmp samesign ult i32 %1, %a
  %6 = load volatile ptr, ptr %p, align 8
  %7 = load atomic i64, ptr %p seq_cst, align 8
  %8 = zext nneg i32 %1 to i64
  %9 = select i1 %5, ptr %6, ptr %p
  %10 = atomicrmw volatile add ptr %p, i32 1 monotonic
  %11 = atomicrmw add ptr getelementptr (i8, ptr @g, i64 8), i64 1 monotonic
  %12 = cmpxchg weak ptr %p, i64 %2, i64 %8 acq_rel monotonic
  %13 = extractvalue {i32, [2 x i8]} %s, 1
  %14 = insertvalue {i32, [2 x i8]} %s, i32 %1, 0
  %15 = freeze i64 %7
  %16 = tail call noundef i64 @h(i64 %15, ptr %9)
  %17 = call range(i32 0, 5) i32 @k()
  %18 = fadd <2 x float> %v, %v
  %19 = extractelement <2 x float> %18, i32 0
  %20 = getelementptr inbounds nuw i8, ptr %p, i64 %16
  %21 = alloca [4 x i32], align 4
  %22 = ptrtoint ptr %20 to i64
  store i32 %10, ptr %21, align 4
  fence seq_cst
  switch i32 %a, label %one [ i32 7, label %two ]
one:
  br label %two
two:
  %23 = phi {i64, i1} [ %12, %one ], [ zeroinitializer, %entry ]
  ret {i64, i1} %23
}
@g = external global [2 x i64]
declare i64 @h(i64, ptr)
declare i32 @k()
"""


def test_types_are_read_from_the_text_as_llvm_has_them():
    module = llvm.parse_assembly(re.sub(r"%(\d+)", r"%v\1", INSTRUCTIONS), new_context())
    theirs = [str(i.type) for b in module.get_function("f").blocks for i in b.instructions]
    blocks = llvm_code._blocks(
        llvm_code._whole_lines(iter(str(module.get_function("f")).splitlines()))
    )
    ours = [inst.type for block in blocks.values() for inst in block.insts]
    unknown = {k for k, kind in enumerate(ours) if not kind}
    assert [theirs[k] for k in range(len(ours)) if k not in unknown] == [t for t in ours if t]
    assert len(ours) == len(theirs) == 28
    assert len(unknown) == 5  # a constant expression, a range, one of an aggregate's, vectors
    read = llvm_code.read(module, "f")
    assert [inst.type for block in read for inst in block.insts] == theirs
