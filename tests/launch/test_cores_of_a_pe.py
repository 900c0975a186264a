"""PEs whose kernels wait for one another, with the blocks of each PE on several cores."""

import re

import numpy as np
import pytest
from numba import cuda

import gpushmem as shmem

BLOCKS, THREADS, SIZE, ROUNDS = 6, 40, 100, 400


@shmem.jit
def shift(x, inbox, arrived, used, parts, rounds):
    """Each block sends its part of `x` round the ring of PEs, and adds what comes."""
    me, n, b, t = shmem.my_pe(), shmem.n_pes(), cuda.blockIdx.x, cuda.threadIdx.x
    to, back = (me + 1) % n, (me - 1 + n) % n
    for r in range(1, rounds + 1):
        if r > 1 and t == 0:  # the inbox has been read
            shmem.signal_wait_until(used[b : b + 1], shmem.CMP_GE, r - 1)
        cuda.syncthreads()
        shmem.put_signal_block(inbox[b], x[b], arrived[b : b + 1], r, shmem.SIGNAL_SET, to)
        shmem.signal_wait_until(arrived[b : b + 1], shmem.CMP_GE, r)
        for k in range(t, x.shape[1], cuda.blockDim.x):
            x[b, k] += inbox[b, k] % 1000
        cuda.syncthreads()
        if t == 0:
            shmem.signal_op(used[b : b + 1], r, shmem.SIGNAL_SET, back)
    if t == 0:
        cuda.atomic.add(parts, 0, 1)


def exchanged(n_pes):
    """The same, with NumPy."""
    x = np.arange(n_pes * BLOCKS * SIZE).reshape(n_pes, BLOCKS, SIZE)
    for _ in range(ROUNDS):
        x = x + np.roll(x, 1, 0) % 1000
    return x


@pytest.mark.parametrize("n_pes", [1, 3])
def test_blocks_of_all_pes_exchange(n_pes):
    def body():
        shmem.init()
        x, inbox = (shmem.zeros((BLOCKS, SIZE), "int64") for _ in range(2))
        arrived, used = (shmem.zeros(BLOCKS, "uint64") for _ in range(2))
        ended = shmem.zeros(1, "int64")
        first = np.arange(n_pes * BLOCKS * SIZE).reshape(n_pes, BLOCKS, SIZE)[shmem.my_pe()]
        x.copy_from(first)
        shmem.barrier_all()
        shift[BLOCKS, THREADS](x, inbox, arrived, used, ended, ROUNDS)
        shmem.barrier_all()
        assert ended.numpy()[0] == BLOCKS
        result = x.numpy().copy()
        shmem.finalize()
        return result

    found = shmem.spawn(body, n_pes, threads_per_pe=3)
    np.testing.assert_array_equal(np.array(found), exchanged(n_pes))


@shmem.jit
def hang(signals, rounds):
    grid = cuda.cg.this_grid()
    for _ in range(rounds):
        grid.sync()
    if cuda.threadIdx.x == 3:
        b = cuda.blockIdx.x
        shmem.signal_wait_until(signals[b : b + 1], shmem.CMP_EQ, 7)


def test_a_deadlock_shows_the_blocks_of_all_cores():
    def body():
        shmem.init()
        signals = shmem.zeros(BLOCKS, "uint64")
        hang[BLOCKS, 8](signals, 20_000)  # time for the others to join
        shmem.finalize()

    with pytest.raises(shmem.Deadlock) as caught:
        shmem.spawn(body, 2, threads_per_pe=2)
    report = str(caught.value)
    shown = re.findall(r"PEs 0, 1: kernel hang, block \((\d), 0, 0\), thread \(3, 0, 0\)", report)
    assert shown == [str(b) for b in range(BLOCKS)], report
