"""Warps, barriers that count, grids, and waiting for memory."""

import numpy as np
import pytest
from numba import cuda

from gpushmem.artifacts.launch_shape import shape_of
from gpushmem.errors import ArgumentError, KernelError
from gpushmem.simt.run.kernel import Kernel
from tests.simt.conftest import launch

FULL = 0xFFFFFFFF
LANES = np.arange(32)


def lanes(function, *args, threads=32, dtype=np.int64):
    """What `function(lane)` gives on each lane of one warp."""
    call = cuda.jit(device=True)(function)

    def kernel(out):
        t = cuda.threadIdx.x
        out[t] = call(t)

    out = np.full(threads, 99, dtype)
    assert launch(kernel, 1, threads, out) == "fibers"
    return out


def test_shuffles_take_from_the_lane_they_name():
    value = 1000 + LANES
    np.testing.assert_array_equal(lanes(lambda t: cuda.shfl_sync(FULL, 1000 + t, 5)), 1005)
    up = lanes(lambda t: cuda.shfl_up_sync(FULL, 1000 + t, 3))
    np.testing.assert_array_equal(up, np.where(LANES < 3, value, value - 3))
    down = lanes(lambda t: cuda.shfl_down_sync(FULL, 1000 + t, 3))
    np.testing.assert_array_equal(down, np.where(LANES > 28, value, value + 3))
    np.testing.assert_array_equal(
        lanes(lambda t: cuda.shfl_xor_sync(FULL, 1000 + t, 6)), 1000 + (LANES ^ 6)
    )


def test_shuffles_move_64_bits_and_floats():
    def move(floats, words):
        t = cuda.threadIdx.x
        floats[t] = cuda.shfl_xor_sync(FULL, t * 1.25e10 + 0.5, 1)
        words[t] = cuda.shfl_sync(FULL, (t + 1) << 40, 31)

    floats, words = np.zeros(32), np.zeros(32, np.int64)
    launch(move, 1, 32, floats, words)
    np.testing.assert_array_equal(floats, (LANES ^ 1) * 1.25e10 + 0.5)
    np.testing.assert_array_equal(words, 32 << 40)


def test_a_sum_over_a_warp_by_shuffles():
    def total(out, x):
        t = cuda.grid(1)
        value = x[t]
        offset = 16
        while offset > 0:
            value += cuda.shfl_down_sync(FULL, value, offset)
            offset //= 2
        if cuda.laneid == 0:
            out[t // cuda.warpsize] = value

    x = np.arange(256, dtype=np.int64) ** 2
    out = np.zeros(8, np.int64)
    assert launch(total, 2, 128, out, x) == "fibers"
    np.testing.assert_array_equal(out, x.reshape(8, 32).sum(1))


def test_votes():
    def votes(out):
        t = cuda.threadIdx.x
        out[0, t] = cuda.ballot_sync(FULL, t % 3 == 0)
        out[1, t] = cuda.all_sync(FULL, t < 32)
        out[2, t] = cuda.all_sync(FULL, t < 31)
        out[3, t] = cuda.any_sync(FULL, t == 31)
        out[4, t] = cuda.any_sync(FULL, t == 32)
        out[5, t] = cuda.eq_sync(FULL, t >= 0)
        out[6, t] = cuda.eq_sync(FULL, t > 0)

    out = np.full((7, 32), 99, np.uint32)
    assert launch(votes, 1, 32, out) == "fibers"
    ballot = sum(1 << int(t) for t in LANES if t % 3 == 0)
    for found, wanted in zip(out, (ballot, 1, 0, 1, 0, 1, 0), strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_match():
    groups = lanes(lambda t: cuda.match_any_sync(FULL, t % 3), dtype=np.uint32)
    wanted = [sum(1 << int(u) for u in LANES if u % 3 == t % 3) for t in LANES]
    np.testing.assert_array_equal(groups, wanted)
    assert lanes(lambda t: cuda.match_all_sync(FULL, 7)[1]).all()
    assert not lanes(lambda t: cuda.match_all_sync(FULL, t)[1]).any()


@pytest.mark.usefixtures("optimised")
def test_halves_of_a_warp_shuffle_independently():
    def split(t):
        if t < 16:
            return cuda.shfl_sync(0xFFFF, t * 10, 3)
        for _ in range(5):  # more often than the others, and to no effect on them
            cuda.shfl_xor_sync(0xFFFF0000, t, 1)
        return cuda.shfl_sync(0xFFFF0000, t * 10, 20)

    np.testing.assert_array_equal(lanes(split), np.where(LANES < 16, 30, 200))


def test_lanes_that_have_returned_are_not_waited_for():
    def leave(out):
        t = cuda.threadIdx.x
        if t % 2:
            return
        cuda.syncwarp()
        out[t] = cuda.ballot_sync(FULL, 1)

    out = np.zeros(32, np.uint32)
    launch(leave, 1, 32, out)
    np.testing.assert_array_equal(out[::2], 0x55555555)


def test_the_last_warp_may_be_short():
    out = lanes(lambda t: cuda.ballot_sync(FULL, 1), threads=40, dtype=np.uint32)
    np.testing.assert_array_equal(out[:32], FULL)
    np.testing.assert_array_equal(out[32:], 0xFF)


def test_activemask_is_the_lanes_that_are_there_together():
    def split(t):
        if t % 4 == 0:
            return cuda.activemask()
        return cuda.activemask() + 0

    out = lanes(split, dtype=np.uint32)
    quarter = sum(1 << int(t) for t in LANES if t % 4 == 0)
    np.testing.assert_array_equal(out, np.where(LANES % 4 == 0, quarter, FULL - quarter))


@pytest.mark.parametrize("meet", ["syncthreads()", "syncwarp()", "shfl_sync(0xFFFFFFFF, 1, 0)"])
def test_activemask_counts_the_lanes_that_a_barrier_has_just_let_go(meet):
    scope = {"cuda": cuda}
    exec(
        f"def kernel(out):\n    cuda.{meet}\n    out[cuda.grid(1)] = cuda.activemask()\n",
        scope,
    )
    out = np.zeros(80, np.uint32)
    assert launch(scope["kernel"], 2, 40, out) == "fibers"
    np.testing.assert_array_equal(out.reshape(2, 40)[:, :32], 0xFFFFFFFF)
    np.testing.assert_array_equal(out.reshape(2, 40)[:, 32:], 0xFF)


@pytest.mark.usefixtures("optimised")
def test_activemask_can_be_the_mask_of_the_next_operation():
    def split(t):
        if t < 10:
            mask = cuda.activemask()
            return cuda.shfl_sync(mask, t + 1, 9)
        return 0

    np.testing.assert_array_equal(lanes(split), np.where(LANES < 10, 10, 0))


def test_lanemask_and_laneid():
    out = lanes(lambda t: cuda.lanemask_lt() + 0 * cuda.ballot_sync(FULL, 1), dtype=np.uint32)
    np.testing.assert_array_equal(out, (1 << LANES) - 1)

    def rows(out):
        out[cuda.threadIdx.y, cuda.threadIdx.x] = cuda.laneid

    out = np.zeros((5, 16), np.int32)
    launch(rows, 1, (16, 5), out)
    np.testing.assert_array_equal(out.reshape(-1), np.arange(80) % 32)


def test_a_mask_without_the_calling_lane_is_an_error():
    def wrong(out):
        out[0] = cuda.ballot_sync(1, 1)

    with pytest.raises(KernelError, match=r"test_meeting.py:\d+ in wrong: trap 64"):
        launch(wrong, 1, 2, np.zeros(1))


@pytest.mark.parametrize("threads", [1, 31, 256, 1000])
def test_barriers_that_count(threads):
    def count(out):
        t = cuda.threadIdx.x
        for k in range(3):  # once more than the groups could mix up
            out[t, 3 * k] = cuda.syncthreads_count(int(t % 3 == k))
            out[t, 3 * k + 1] = cuda.syncthreads_and(int(t >= k))
            out[t, 3 * k + 2] = cuda.syncthreads_or(int(t == 30 + k))

    out = np.full((threads, 9), -1)
    launch(count, 1, threads, out)
    t = np.arange(threads)
    for k in range(3):
        np.testing.assert_array_equal(out[:, 3 * k], (t % 3 == k).sum())
        np.testing.assert_array_equal(out[:, 3 * k + 1], int((t >= k).all()))
        np.testing.assert_array_equal(out[:, 3 * k + 2], int((t == 30 + k).any()))


@pytest.mark.parametrize(("grid", "block"), [(1, 1), (3, 64), (100, 17), ((4, 5), (8, 2))])
def test_a_grid_meets(grid, block):
    def rounds(x):
        g = cuda.cg.this_grid()
        i = cuda.blockIdx.x + cuda.gridDim.x * cuda.blockIdx.y
        n = cuda.gridDim.x * cuda.gridDim.y
        for k in range(4):
            if cuda.threadIdx.x == 0 and cuda.threadIdx.y == 0:
                x[k + 1, i] = x[k, (i + 1) % n] + 1
            g.sync()

    n = int(np.prod(grid))
    x = np.zeros((5, n), np.int64)
    x[0] = np.arange(n)
    assert launch(rounds, grid, block, x) == "fibers"
    np.testing.assert_array_equal(x[4], (np.arange(n) + 4) % n + 4)


def test_a_grid_that_cannot_be_resident_is_refused():
    def meet(x):
        cuda.cg.this_grid().sync()

    with pytest.raises(ArgumentError, match=r"100000 blocks .* at most \d+ fit"):
        Kernel(meet).prepare(shape_of(100_000, 256), (np.zeros(1),))
    # A multiprocessor of the H100 has 228 KiB of shared memory; each block takes 1 KiB more.
    with pytest.raises(ArgumentError, match=r"397 blocks .* at most 396 fit"):
        Kernel(meet).prepare(shape_of(397, 32, 57 << 10), (np.zeros(1),))


@pytest.mark.usefixtures("optimised")
def test_polling_loops_let_the_others_run():
    def hand_over(flag, out):
        if cuda.blockIdx.x == 0:
            while flag[0] == 0:
                pass
            out[0] = flag[0]
        elif cuda.blockIdx.x == cuda.gridDim.x - 1:
            flag[0] = 7

    out = np.zeros(1)
    assert launch(hand_over, 5, 1, np.zeros(1, np.int32), out) == "fibers"
    assert out[0] == 7


def test_a_spin_lock_keeps_threads_apart():
    def locked(mutex, counter):
        while cuda.atomic.cas(mutex, 0, 0, 1) != 0:
            pass
        seen = counter[0]
        cuda.nanosleep(100)
        counter[0] = seen + 1
        cuda.threadfence()
        cuda.atomic.exch(mutex, 0, 0)

    counter = np.zeros(1, np.int64)
    launch(locked, 6, 50, np.zeros(1, np.int32), counter)
    assert counter[0] == 300


def test_a_search_is_no_polling():
    def search(a, x, out):
        i = cuda.grid(1)
        low, high = 0, a.size
        while low < high:
            middle = (low + high) // 2
            if a[middle] < x[i]:
                low = middle + 1
            else:
                high = middle
        out[i] = low

    a, x = np.arange(0.0, 100.0, 2), np.array([3.0, 50.5, 98.0, 200.0])
    out = np.zeros(4, np.int64)
    assert launch(search, 1, 4, a, x, out) == "loops"
    np.testing.assert_array_equal(out, np.searchsorted(a, x))


def test_following_links_is_no_polling():
    def follow(parents, out):
        i = cuda.grid(1)
        at = i
        while parents[at] != at:
            at = parents[at]
        out[i] = at

    out = np.zeros(6, np.int64)
    assert launch(follow, 1, 6, np.array([0, 0, 1, 3, 3, 4]), out) == "loops"
    np.testing.assert_array_equal(out, [0, 0, 0, 3, 3, 3])


def test_counting_is_no_polling():
    def count(x, bounds, steps, out):
        i = cuda.grid(1)
        while i < bounds[0]:  # which is read in every turn
            out[i] = x[i]
            i += cuda.gridsize(1)
        low, turns = 0.0, 0
        while low * steps[0] < bounds[1] - low and turns < bounds[0]:
            low += 0.5
            turns += 1
        left, k = x[0], -1
        while left > 0 and k < 9:  # ends in any case
            k += 1
            left -= steps[0] * x[k]
        if cuda.grid(1) == 0:
            out[10], out[11], out[12] = low, left, k

    x, out = np.arange(1.0, 11.0), np.zeros(13)
    assert launch(count, 2, 2, x, np.array([10, 6]), np.array([1.0]), out) == "loops"
    np.testing.assert_array_equal(out, [*x, 3, 0, 0])


def test_a_wait_that_counts_its_turns_is_polling():
    def gather(box, out):
        if cuda.blockIdx.x == 0:
            got, turns = 0, 0
            while got < cuda.gridDim.x - 1:
                got += cuda.atomic.exch(box, 0, 0)
                turns += 1
            seen, tries = 0, 0
            while (seen == 0) & (tries < 1_000_000):
                seen = box[1]
                tries += 1
            out[0], out[1] = got, seen
        else:
            cuda.atomic.add(box, 0, 1)
            cuda.threadfence()
            box[1] = 5

    out = np.zeros(2)
    assert launch(gather, 5, 1, np.zeros(2, np.int32), out) == "fibers"
    np.testing.assert_array_equal(out, [4, 5])
