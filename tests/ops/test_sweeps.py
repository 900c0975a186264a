"""Long sweeps: the same promises under delays, load and many PEs. `pytest -m sweep` runs them all.

CI runs the rows marked as its sample.
"""

import os
import signal

import numpy as np
import pytest
from gpushmem.kernels import AllReduce
from numba import cuda

import gpushmem as shmem
from tests.pes import NODES, to_send, whole_warps

ON_ONE_NODE = NODES == 1  # whose PEs may send from shared memory


def sweep(*rows, ci):
    """Parametrize with `rows`; those in `ci` run always, the others are of the sweep."""
    return [row if row in ci else pytest.param(row, marks=pytest.mark.sweep) for row in rows]


@pytest.fixture
def busy_machine():
    """Other processes that compute on every core meanwhile."""
    hogs = []
    for _ in range(2 * os.cpu_count()):
        pid = os.posix_spawn("/bin/sh", ["sh", "-c", "while :; do :; done"], os.environ)
        hogs.append(pid)
    yield
    for pid in hogs:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@shmem.jit
def pipeline(inbox, signal, sent, wrong, delays, rounds):
    """Every block passes numbers round the ring, each with delays of its own."""
    me, n = shmem.my_pe(), shmem.n_pes()
    right, left = (me + 1) % n, (me - 1) % n
    b, t, size = cuda.blockIdx.x, cuda.threadIdx.x, cuda.blockDim.x
    message = cuda.shared.array(64, np.int64) if ON_ONE_NODE else sent[b]
    for k in range(1, rounds + 1):
        turns = delays[(k * 7 + b * 3 + me) % delays.size]
        for _ in range(turns):
            cuda.atomic.add(wrong, 1, 1)
        for i in range(t, 64, size):
            message[i] = 10_000_000 * k + 10_000 * me + 100 * b + i
        cuda.syncthreads()
        shmem.put_signal_block(inbox[k % 2, b], message, signal[0, b:], k, shmem.SIGNAL_SET, right)
        if t == 0:
            shmem.signal_wait_until(signal[0, b:], shmem.CMP_GE, k)
        cuda.syncthreads()
        for i in range(t, 64, size):
            if inbox[k % 2, b, i] != 10_000_000 * k + 10_000 * left + 100 * b + i:
                cuda.atomic.add(wrong, 0, 1)
        cuda.syncthreads()
        if t == 0:
            shmem.signal_op(signal[1, b:], k, shmem.SIGNAL_SET, left)
            shmem.signal_wait_until(signal[1, b:], shmem.CMP_GE, k)
        cuda.syncthreads()


def run_pipeline(blocks, threads, rounds):
    shmem.init()
    rng = np.random.default_rng(100 + shmem.my_pe())
    delays = shmem.to_device(np.where(rng.random(97) < 0.1, rng.integers(0, 20_000, 97), 0))
    inbox, signal = shmem.zeros((2, blocks, 64), "int64"), shmem.zeros((2, blocks), "uint64")
    wrong = shmem.to_device(np.zeros(2, "int64"))
    sent = shmem.empty((blocks, 64), "int64")
    pipeline[blocks, whole_warps(threads)](inbox, signal, sent, wrong, delays, rounds)
    shmem.barrier_all()
    result = int(wrong.numpy()[0])
    shmem.finalize()
    return result


@pytest.mark.parametrize("n_pes", sweep(1, 2, 3, 5, 7, 8, 16, 32, 64, ci=(3, 7)))
def test_pipelines_with_delays(run_pes, n_pes):
    assert run_pes(run_pipeline, n_pes, 3, 48, 300, timeout=170) == [0] * n_pes


@pytest.mark.parametrize("n_pes", sweep(2, 3, 8, ci=(3,)))
def test_pipelines_on_a_busy_machine(run_pes, busy_machine, n_pes):
    assert run_pes(run_pipeline, n_pes, 2, 32, 100, timeout=170) == [0] * n_pes


@pytest.mark.parametrize("n_pes", sweep(*range(1, 17), ci=(3,)))
def test_all_reduce_of_many_sizes(run_pes, n_pes):
    sizes = [0, 1, 2, n_pes - 1, n_pes, n_pes + 1, 127, 1000, 65_537]

    def body():
        shmem.init()
        good = True
        for size in sizes:
            for blocks, algorithm in ((1, "ring"), (3, "ring"), (3, "one_shot"), (2, "two_shot")):
                plan = AllReduce(size=size, dtype="int64", algorithm=algorithm, blocks=blocks)
                x = to_send(np.arange(size) * (shmem.my_pe() + 1))
                for _ in range(3):
                    plan(x)
                expected = np.arange(size) * (n_pes * (n_pes + 1) // 2) * n_pes**2
                good &= np.array_equal(x.numpy(), expected)
                plan.free()
        shmem.finalize()
        return good

    assert run_pes(body, n_pes, timeout=170) == [True] * n_pes


@pytest.mark.sweep
def test_a_thousand_jobs_end_cleanly(run_pes):
    def body(k):
        shmem.init()
        total = int(shmem.full(10, k).numpy().sum())
        shmem.finalize()
        return total

    for k in range(1000):
        assert run_pes(body, 2, k) == [10 * k] * 2
