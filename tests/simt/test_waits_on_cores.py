"""Kernels that wait, with their blocks on several cores."""

import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from numba import cuda, int64

from gpushmem.artifacts.launch_shape import shape_of
from gpushmem.errors import KernelError
from gpushmem.native.structs import view
from gpushmem.simt.base.layout import LAUNCH
from gpushmem.simt.compiler.primitives import core_word
from gpushmem.simt.run import cores, queue
from gpushmem.simt.run.kernel import Kernel, running
from gpushmem.simt.run.waits import unstarted, waits
from tests.simt.conftest import hanging, launch, spread

as_launch = view(LAUNCH)


@pytest.fixture(autouse=True)
def three_cores():
    """As many threads, and no launch too small for them; this machine may have fewer cores."""
    queue.of_process["alone_ns"], queue.of_process["alone_until"] = queue.ALONE_NS, 0
    with spread(3):
        yield


def run(function, grid, block, *args, lockstep=True):
    """Run a kernel."""
    kernel = Kernel(function, cache=True, lockstep=lockstep)
    running = kernel.prepare(shape_of(grid, block, 0), args)
    assert running.entry.kind == ("lockstep" if lockstep else "fibers")
    running()


ways = pytest.mark.parametrize("lockstep", [True, False], ids=["lockstep", "fibers"])


@ways
def test_every_block_runs_once(lockstep):
    def mark(first, out):
        b = cuda.blockIdx.x + cuda.gridDim.x * (cuda.blockIdx.y + cuda.gridDim.y * cuda.blockIdx.z)
        t = cuda.threadIdx.x
        first[b, t] += 1
        cuda.cg.this_grid().sync()
        out[b, t] += 10 * first[(b + 7) % out.shape[0], t]

    kernel = Kernel(mark, lockstep=lockstep)
    for grid in (2, 3, 17, 200, (2, 40), (3, 2, 5)):
        for threads in (33,) if lockstep else (1, 33):
            first, out = np.zeros((2, int(np.prod(grid)), threads), np.int64)
            launched = kernel.prepare(shape_of(grid, threads, 0), (first, out))
            for k in range(1, 21):
                launched()
                np.testing.assert_array_equal(first, k)
                np.testing.assert_array_equal(out, 5 * k * (k + 1))


@ways
@pytest.mark.parametrize("crowded", [0, 50], ids=["", "crowded"])
def test_blocks_move_to_other_cores(lockstep, crowded):
    """All are admitted by one core before there is work: half of them must go to another.

    A crowded core gives its blocks back; if that is the first one, all others do.
    """

    def iterate(x, y, at, rounds, crowded):
        grid, i, n = cuda.cg.this_grid(), cuda.grid(1), cuda.gridsize(1)
        for r in range(rounds):
            for k in range(i, x.size, n):
                y[k] = x[k] + 3 * x[(k + 1) % x.size] + r
            grid.sync()
            for k in range(i, x.size, n):
                x[k] = y[k]
            if cuda.threadIdx.x == 0:
                launch = as_launch(core_word())
                at[cuda.blockIdx.x, launch.part] += 1
                if crowded and (r * 7 + cuda.blockIdx.x) % crowded == 0:
                    launch.crowded = 1
            grid.sync()

    rng, kernel = np.random.default_rng(0), Kernel(iterate, lockstep=lockstep)
    queue.of_process["alone_ns"] = 0 if crowded else queue.ALONE_NS
    for blocks, threads, rounds in ((2, 32, 2000), (5, 7, 3000), (16, 64, 300)):
        x = rng.integers(0, 9, 997)
        wanted, at = x.copy(), np.zeros((blocks, 3), np.int64)
        for r in range(rounds):
            wanted = wanted + 3 * np.roll(wanted, -1) + r
        args = (again := x.copy()), x * 0, at, rounds, crowded
        launched = kernel.prepare(shape_of(blocks, threads, 0), args)
        turns, end = 0, time.monotonic() + 60
        # A launch may end before the system has given a busy machine's core to a helper.
        while turns < 5 or (np.count_nonzero(at, 1).max() < 2 and time.monotonic() < end):
            again[:] = x
            launched()
            np.testing.assert_array_equal(again, wanted)
            turns += 1
        assert at.sum() == turns * blocks * rounds
        assert np.count_nonzero(at, 1).max() > 1  # some block was on more than one core


@pytest.mark.quiet
def test_others_on_the_cores():
    """Blocks meet 4000 times: not with a turn of everybody else between two meetings."""

    def meet(x):
        grid = cuda.cg.this_grid()
        for r in range(4000):
            x[cuda.grid(1)] += r
            grid.sync()

    launched = Kernel(meet).prepare(shape_of(2, 32, 0), (x := np.zeros(64),))
    launched()
    queue.of_process["worth"] = queue.WORTH_SHARING
    others = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"])
        for _ in range(3 * cores.available())
    ]
    try:
        time.sleep(0.5)
        began = time.monotonic()
        for _ in range(50):
            launched()
        seconds = time.monotonic() - began
    finally:
        for other in others:
            other.kill()
            other.wait()
    np.testing.assert_array_equal(x, 51 * 4000 * 3999 / 2)
    assert seconds < 3


@ways
@pytest.mark.parametrize("step", [1, -1], ids=["before", "next"])
def test_blocks_wait_for_one_another(lockstep, step):
    def chain(flags, sums, rounds):
        b, t = cuda.blockIdx.x, cuda.threadIdx.x
        last = 0 if step > 0 else cuda.gridDim.x - 1
        for r in range(1, rounds + 1):
            if b != last and t == 0:
                while cuda.atomic.add(flags, b - step, 0) < r:
                    pass
            cuda.syncthreads()
            sums[b, t] = r * t + (sums[b - step, t] if b != last else 0)
            cuda.threadfence()
            cuda.syncthreads()
            if t == 0:
                cuda.atomic.add(flags, b, 1)

    for blocks, threads, rounds in ((2, 40, 50), (7, 3, 50), (40, 33, 5)):
        flags, sums = np.zeros(blocks, np.int64), np.zeros((blocks, threads), np.int64)
        run(chain, blocks, threads, flags, sums, rounds, lockstep=lockstep)
        assert set(flags.tolist()) == {rounds}
        end = sums[blocks - 1 if step > 0 else 0]
        assert end[1] >= rounds * blocks  # at least: later blocks may lag behind by rounds


@ways
def test_blocks_that_return_do_not_hold_up_the_grid(lockstep):
    def leave(out):
        b, t, grid = cuda.blockIdx.x, cuda.threadIdx.x, cuda.cg.this_grid()
        for r in range(cuda.gridDim.x):
            if b == r or (t == 5 and b == r + 1):
                return
            cuda.atomic.add(out, r, 1)
            grid.sync()

    for _ in range(20):
        out = np.zeros(12, np.int64)
        run(leave, 12, 40, out, lockstep=lockstep)
        gone = 1  # thread 5 of the block that is next
        np.testing.assert_array_equal(out, [*(40 * (11 - r) - gone for r in range(11)), 0])


def test_a_launch_in_which_nothing_moves_gets_no_more_cores():
    """Else a core that others use would come and leave for ever, which looks like progress."""

    def hang(flags):
        while cuda.atomic.add(flags, cuda.blockIdx.x, 0) == 0:
            if as_launch(core_word()).part != 0:
                as_launch(core_word()).crowded = 1

    queue.of_process["alone_ns"] = 20_000_000
    launched = Kernel(hang).prepare(shape_of(4, 4, 0), (np.zeros(4, np.int64),))
    with hanging(launched):
        while not running():
            time.sleep(0.01)
        time.sleep(0.5)
        for _ in range(100):
            assert len(running()) == 1
            time.sleep(0.002)


def test_a_thread_that_returns_is_seen_by_the_core_that_gets_its_block():
    """The others' block moves, while they wait, to a core on which nothing has moved for long."""

    def leave(out, moved, sums):
        b, t, k = cuda.blockIdx.x, cuda.threadIdx.x, 0
        if b == 1:
            while as_launch(core_word()).part == 0 and k < 1000:
                cuda.nanosleep(1)
                k += 1
        if b == 1 and t == 5:
            return
        if b == 1:
            for r in range(300_000):  # a millisecond
                sums[t] = sums[t] * 0.5 + r
            if t == 0:
                moved[0] = as_launch(core_word()).part
            as_launch(core_word()).crowded = 1
        cuda.cg.this_grid().sync()
        cuda.atomic.add(out, b, 1)

    queue.of_process["alone_ns"] = 0
    out, moved, sums = np.zeros(2, np.int64), np.zeros(1, np.int64), np.zeros(40)
    launched = Kernel(leave).prepare(shape_of(2, 40, 0), (out, moved, sums))
    turn, end = 0, time.monotonic() + 60
    while turn < 3 or (not moved[0] and time.monotonic() < end):
        moved[0], turn = 0, turn + 1
        launched()
        np.testing.assert_array_equal(out, [40 * turn, 39 * turn])
    assert moved[0]


@ways
def test_a_failure_on_any_core_ends_all(lockstep):
    def fail(x, bad):
        b = cuda.blockIdx.x
        for r in range(200):
            cuda.cg.this_grid().sync()
            if r == 150 and b == bad and cuda.threadIdx.x == 3:
                raise ValueError("here")

    for bad in range(6):
        with pytest.raises(KernelError, match=rf"block \({bad}, 0, 0\), thread \(3, 0, 0\).*here"):
            run(fail, 6, 16, np.zeros(6), bad, lockstep=lockstep)


@ways
def test_prints_come_from_all_cores(lockstep, capfd):
    def show():
        for r in range(50):
            cuda.cg.this_grid().sync()
            if cuda.threadIdx.x == 1:
                print("block", cuda.blockIdx.x, "round", r)

    run(show, 5, 2, lockstep=lockstep)
    lines = capfd.readouterr().out.splitlines()
    assert sorted(lines) == sorted(f"block {b} round {r}" for b in range(5) for r in range(50))


@ways
def test_what_waits_for_good_is_seen_on_all_cores_and_can_be_cancelled(lockstep):
    def hang(flags):
        for _ in range(2000):
            cuda.cg.this_grid().sync()
        if cuda.threadIdx.x == 0:
            while cuda.atomic.add(flags, cuda.blockIdx.x, 0) == 0:
                pass

    flags = np.zeros(6, np.int64)
    launched = Kernel(hang, lockstep=lockstep).prepare(shape_of(6, 4, 0), (flags,))
    parts, end = 0, time.monotonic() + 60
    while parts < 2 and time.monotonic() < end:  # a busy machine may have no core for a helper
        with hanging(launched):
            found = []
            while len({wait.block for wait in found}) < 6:
                time.sleep(0.01)
                found = waits()
            parts = len(running())
            assert {wait.block[0] for wait in found} == set(range(6))
            assert {wait.kernel for wait in found} == {"hang"}
            assert sum(run.whole for run in running()) == 1
            assert unstarted() == []
    assert parts > 1


def test_more_blocks_than_may_be_resident():
    """Each core admits what there is room for; the others start when some have ended."""

    def count(x, most):
        now = cuda.atomic.add(x, 0, 1) + 1
        cuda.atomic.max(most, 0, now)
        for _ in range(3):
            cuda.nanosleep(10)
        cuda.atomic.sub(x, 0, 1)
        cuda.atomic.add(x, 1, 1)

    x, most = np.zeros(2, np.int64), np.zeros(1, np.int64)
    assert launch(count, 3000, 1, x, most, twice=False) == "fibers"
    assert x.tolist() == [0, 3000]


def test_random_launches_one_after_the_other():
    """Of all sizes, from several threads at once: nobody is left behind, nothing is done twice."""

    def add(out, rounds):
        s = cuda.shared.array(64, int64)
        t = cuda.threadIdx.x
        for r in range(rounds):
            s[t] = r + t
            cuda.syncthreads()
            cuda.atomic.add(out, cuda.blockIdx.x, s[(t + 1) % cuda.blockDim.x])
            cuda.cg.this_grid().sync()

    def body(seed):
        rng = np.random.default_rng(seed)
        kernel = Kernel(add)
        for _ in range(60):
            blocks, threads, rounds = (int(n) for n in rng.integers(1, (20, 64, 40)))
            out = np.zeros(blocks, np.int64)
            kernel.prepare(shape_of(blocks, threads, 0), (out, rounds))()
            each = threads * rounds * (rounds - 1) // 2 + rounds * threads * (threads - 1) // 2
            if set(out.tolist()) != {each}:
                wrong.append((blocks, threads, rounds, out, each))

    wrong = []
    threads = [threading.Thread(target=body, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not wrong
    assert not any(thread.is_alive() for thread in threads)


@ways
def test_a_lock_goes_from_block_to_block(lockstep):
    """All threads of a block wait for it in step, until one has it and the others do not."""

    def count(lock, total):
        for _ in range(3):
            while cuda.atomic.cas(lock, 0, 0, 1) != 0:
                pass
            seen = total[0]
            cuda.threadfence()
            total[0] = seen + 1
            cuda.threadfence()
            cuda.atomic.exch(lock, 0, 0)
            cuda.cg.this_grid().sync()

    for blocks, threads in ((3, 32), (5, 7)):
        for _ in range(5):
            total = np.zeros(1, np.int64)
            run(count, blocks, threads, np.zeros(1, np.int32), total, lockstep=lockstep)
            assert total[0] == 3 * blocks * threads


@ways
def test_blocks_on_their_way_when_a_launch_is_cancelled(lockstep):
    """Their stacks are given back once: the launches after it get each of them once."""

    def hang(flags):
        while cuda.atomic.add(flags, cuda.blockIdx.x, 0) == 0:
            if cuda.threadIdx.x == 0:
                as_launch(core_word()).crowded = 1

    def meet(x):
        for _ in range(200):
            cuda.cg.this_grid().sync()
        x[cuda.grid(1)] += 1

    queue.of_process["alone_ns"] = 0
    flags, x = np.zeros(6, np.int64), np.zeros(24)
    hangs = Kernel(hang, lockstep=lockstep).prepare(shape_of(6, 4, 0), (flags,))
    meets = Kernel(meet, lockstep=lockstep).prepare(shape_of(6, 4, 0), (x,))
    for k in range(60):
        with hanging(hangs):
            while not running():
                time.sleep(0.001)
            time.sleep(0.0005 * (k % 20))
        meets()
        np.testing.assert_array_equal(x, k + 1)
