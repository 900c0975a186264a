"""Code for several neighbouring threads at once: masks, and loops that they leave one by one."""

import numpy as np
import pytest
from numba import cuda, float32, int8, int32

from gpushmem.artifacts.launch_shape import shape_of
from gpushmem.simt.blocks import vectors
from gpushmem.simt.run.kernel import Kernel, KernelFailure

N = 777


def run(function, grid, block, *args):
    Kernel(function, cache=True).prepare(shape_of(grid, block), args)()


def check(kernel, *args, blocks=(64, 37, (16, 3), (5, 4, 2))):
    """The same from threads alone in their blocks, and from those of several kinds of blocks."""
    expected = [a.copy() for a in args]
    run(kernel, N, 1, *expected)
    for block in blocks:
        size = int(np.prod(block))
        got = [a.copy() for a in args]
        run(kernel, -(-N // size), block, *got)
        for e, g in zip(expected, got, strict=True):
            np.testing.assert_array_equal(g, e)


def data(kind=np.float32, seed=0):
    return (np.random.default_rng(seed).random(N) * 100).astype(kind)


@cuda.jit(device=True)
def number():
    t = cuda.threadIdx.x + cuda.blockDim.x * (cuda.threadIdx.y + cuda.blockDim.y * cuda.threadIdx.z)
    return t + cuda.blockIdx.x * (cuda.blockDim.x * cuda.blockDim.y * cuda.blockDim.z)


def test_code_is_written_with_vectors(monkeypatch):
    written = []
    write = vectors.Vectors.write
    monkeypatch.setattr(
        vectors.Vectors, "write", lambda self, *args: written.append(self) or write(self, *args)
    )

    def kernel(x, y):
        i = cuda.grid(1)
        if i < x.size and x[i] > 50:
            y[i] = x[i]

    Kernel(kernel).prepare(shape_of(4, 32), (data(), data()))
    assert written


def test_loops_that_lanes_leave_at_different_times():
    def kernel(x, steps, last):
        i = number()
        if i >= x.size:
            return
        n = x[i] * 1000 + 1
        count, before, odd = 0, n, 0
        while n != 1:
            before = n
            if n % 2:
                n = 3 * n + 1
                odd += 1
            else:
                n //= 2
            count += 1
            if count > 60 and odd > 20:
                break
        steps[i] = count * 1000 + odd
        last[i] = before

    check(kernel, data(np.int64), np.zeros(N, np.int64), np.zeros(N, np.int64))


def test_loops_in_loops_and_different_ways_out():
    def kernel(x, y):
        i = number()
        if i < x.size:
            found = -1
            for j in range(7):
                total = 0
                for k in range(j, x.size, 100):
                    if x[k] == x[i]:
                        continue
                    total += x[k] % 3
                    if total > x[i]:
                        break
                for _ in range(total % 4):
                    found += 1
                if found > 9:
                    found += 100 * j
                    break
            else:
                found = -2
            y[i] = found

    check(kernel, data(np.int32), np.zeros(N, np.int32))


def test_a_value_goes_from_such_a_loop_to_the_one_around():
    def kernel(x, rounds, y):
        i = number()
        value = i * 3
        for _ in range(rounds.size):
            for k in range(5):
                if i < 4:
                    break
                value = (value * 31 + x[k]) % 1_000_003
        if i < y.size:
            y[i] = value

    check(kernel, data(np.int64), np.zeros(2), np.zeros(N, np.int64))


def test_elements_in_other_orders_and_of_other_sizes():
    def kernel(x, y, small, pairs, order):
        i = number()
        if i < x.size:
            y[x.size - 1 - i] = x[i]
            if x[i] < 70:
                small[i] = int8(x[i])
                pairs[i].a = i
                pairs[i].b = x[order[i]]

    pairs = np.zeros(N, np.dtype([("a", np.int16), ("b", np.float64)], align=True))
    order = np.random.default_rng(1).permutation(N)
    order[100:400] = np.arange(100, 400)  # these are neighbours
    x = data()
    check(kernel, x, np.zeros(N, np.float32), np.zeros(N, np.int8), pairs, order)


def test_structures_live_across_a_barrier():
    """No element of a vector is one: such code runs thread by thread."""

    def kernel(x, y):
        t = cuda.threadIdx.x
        pair = (x[t], t) if t % 3 else (x[0], -1)
        number = complex(x[t], t)
        cuda.syncthreads()
        if pair[0] > 50:
            y[t] = pair[1] + abs(number)

    x, y = data(np.float64)[:96], np.zeros(96)
    run(kernel, 1, 96, x, y)
    t = np.arange(96)
    first, second = np.where(t % 3, x, x[0]), np.where(t % 3, t, -1)
    np.testing.assert_allclose(y, np.where(first > 50, second + np.hypot(x, t), 0))


def test_negative_indices_and_memory_of_each_thread():
    def kernel(x, y):
        i = number()
        own = cuda.local.array(4, float32)
        if i < x.size:
            for k in range(4):
                own[k] = x[i - 3 + k] if i % 5 else x[k - i % 4]
            most = 0
            for k in range(4):
                if own[k] > own[most]:
                    most = k
            y[i] = own[most] + own[-1]
            y[i] -= x[i - x.size]

    check(kernel, data(), np.zeros(N, np.float32))


def test_the_last_lane_that_is_on_writes_last_and_negative_indices_of_lanes_that_are_on():
    def kernel(x, keep, back, y, last):
        t = cuda.threadIdx.x
        if keep[t]:
            y[t] = x[t - back[0]]
            last[cuda.blockIdx.x] = t

    x, t, compiled = data()[:64], np.arange(64), Kernel(kernel)
    for seed in range(6):
        keep = np.random.default_rng(seed).random(64) > 0.2 + 0.15 * seed
        y, last = np.zeros(64, np.float32), np.zeros(3, np.int64)
        made = compiled.prepare(shape_of(3, 64), (x, keep, np.array([11]), y, last))
        assert made.form.entry.vectors
        made()
        np.testing.assert_array_equal(y, np.where(keep, x[t - 11], 0))
        np.testing.assert_array_equal(last, t[keep][-1])


@pytest.mark.parametrize("block", [32, 100, (16, 4)])
def test_atomics_and_what_lasts_until_a_barrier(block):
    threads = int(np.prod(block))

    def kernel(x, counts, y, late):
        bins = cuda.shared.array(8, int32)
        t = cuda.threadIdx.x + cuda.blockDim.x * cuda.threadIdx.y
        if t < 8:
            bins[t] = 0
        cuda.syncthreads()
        i = cuda.blockIdx.x * (cuda.blockDim.x * cuda.blockDim.y) + t
        rounds, is_small = 0, False
        if i < x.size:
            value = x[i]
            is_small = value < 50
            while value > 1:
                cuda.atomic.add(bins, int(value) % 8, 1)
                value /= 3
                rounds += 1
        cuda.syncthreads()
        if t < 8:
            cuda.atomic.add(counts, t, bins[t])
        if i < x.size:
            old = cuda.atomic.max(late, rounds, i)
            y[i] = rounds * 10 + is_small + 0 * old

    x = data()
    counts, y, late = np.zeros(8, np.int32), np.zeros(N, np.int64), np.zeros(8, np.int64)
    run(kernel, -(-N // threads), block, x, counts, y, late)
    bins, rounds, value = np.zeros(8, np.int32), np.zeros(N, np.int64), x.copy()
    while (on := value > 1).any():
        np.add.at(bins, value[on].astype(int) % 8, 1)
        value = np.where(on, value / np.float32(3), value)
        rounds += on
    np.testing.assert_array_equal(counts, bins)
    np.testing.assert_array_equal(y, rounds * 10 + (x < 50))
    last = np.zeros(8, np.int64)
    np.maximum.at(last, rounds, np.arange(N))
    np.testing.assert_array_equal(late, last)


def test_lanes_take_atomics_in_turns():
    def kernel(x, counts, y):
        bins = cuda.shared.array(8, int32)
        t = cuda.threadIdx.x
        if t < 8:
            bins[t] = 0
        cuda.syncthreads()
        i = cuda.grid(1)
        if i < x.size:
            total = 0
            for k in range(5):
                total += x[(i + k) % x.size]
            old = cuda.atomic.add(bins, total % 8, 1)
            y[i] = total + 0 * cuda.atomic.add(counts, 8 + (old < 0), total)
        cuda.syncthreads()
        if t < 8:
            cuda.atomic.add(counts, t, bins[t])

    x, y, counts = data(np.int64), np.zeros(N, np.int64), np.zeros(10, np.int64)
    run(kernel, 9, 100, x, counts, y)
    total = sum(np.roll(x, -k) for k in range(5))
    np.testing.assert_array_equal(y, total)
    np.testing.assert_array_equal(counts, [*np.bincount(total % 8, minlength=8), total.sum(), 0])


def test_locks_are_taken_by_one_thread_after_the_other():
    def kernel(lock, total):
        while cuda.atomic.cas(lock, 0, 0, 1) != 0:
            pass
        total[0] += 1
        cuda.threadfence()
        cuda.atomic.exch(lock, 0, 0)

    lock, total = np.zeros(1, np.int32), np.zeros(1, np.int64)
    run(kernel, 3, 40, lock, total)
    assert total[0] == 120


def test_divisions_of_lanes_that_are_off():
    def kernel(x, y):
        i = number()
        if i < x.size:
            d = x[i] % 4
            if d:
                y[i] = i // d + i % d

    check(kernel, data(np.int32), np.zeros(N, np.int32))


def test_a_thread_that_fails_is_named():
    @cuda.jit
    def kernel(x, y):
        i = cuda.grid(1)
        if i < x.size:
            if x[i] < 0:
                raise ValueError("negative")
            y[i] = x[i]

    x = data()
    x[201] = -1
    running = Kernel(kernel.py_func, debug=True, opt=False).prepare(
        shape_of(8, 100), (x, np.zeros(N, np.float32))
    )
    with pytest.raises(KernelFailure, match=r"block \(2, 0, 0\), thread \(1, 0, 0\).*negative"):
        running()
