"""Data and what tells of them, in the way that the argument names; fails if old data are seen."""

import sys

import numpy as np
from numba import cuda

import gpushmem as shmem

N, ROUNDS = 24, 12  # in each other round data begin at an odd element: other code copies them


@shmem.jit(device=True)
def look(data, value, wrong):
    for i in range(cuda.threadIdx.x, N, cuda.blockDim.x):
        if data[i] != value:
            cuda.atomic.add(wrong, 0, 1)


@shmem.jit(device=True)
def read(data, read_so_far):
    """Read what is about to change, as a neighbour in a cache would: the values do not matter."""
    for i in range(4 * N):
        read_so_far[0] += data[i % N]


def by_thread(send):
    """PE 0 sends in each round, by one thread; PE 1 answers when it has looked.

    The other thread of each PE reads meanwhile.
    """

    @shmem.jit
    def kernel(data, src, flag, wrong, reader):
        for k in range(1, ROUNDS + 1):
            there, here = data[k % 2 : N + k % 2], src[k % 2 : N + k % 2]
            if cuda.threadIdx.x == 1:
                read(there, reader)
            elif shmem.my_pe() == 0:
                for i in range(N):
                    here[i] = k
                send(there, here, flag, k)
                shmem.signal_wait_until(flag, shmem.CMP_GE, k)
            else:
                shmem.signal_wait_until(flag, shmem.CMP_GE, k)
                for i in range(N):
                    if there[i] != k:
                        wrong[0] += 1
                shmem.signal_op(flag, k, shmem.SIGNAL_SET, 0)
            cuda.syncthreads()

    return kernel, 2


def fetching(complete):
    """PE 0 gets what PE 1 has written, by one thread, and all threads 0 call `complete`."""

    @shmem.jit
    def kernel(data, src, flag, wrong, reader):
        for k in range(1, ROUNDS + 1):
            there, here = data[k % 2 : N + k % 2], src[k % 2 : N + k % 2]
            if cuda.threadIdx.x == 1:
                read(there, reader)
            elif shmem.my_pe() == 1:
                for i in range(N):
                    here[i] = k
                shmem.quiet()
                shmem.signal_op(flag, k, shmem.SIGNAL_SET, 0)
                complete()
                shmem.signal_wait_until(flag, shmem.CMP_GE, k)
            else:
                shmem.signal_wait_until(flag, shmem.CMP_GE, k)
                shmem.get_nbi(there, here, 1)
                complete()
                for i in range(N):
                    if there[i] != k:
                        wrong[0] += 1
                shmem.signal_op(flag, k, shmem.SIGNAL_SET, 1)
            cuda.syncthreads()

    return kernel, 2


def by_block(send):
    """The same by a block of 32 threads, of which one waits."""

    @shmem.jit
    def kernel(data, src, flag, wrong, reader):
        for k in range(1, ROUNDS + 1):
            there, here = data[k % 2 : N + k % 2], src[k % 2 : N + k % 2]
            if shmem.my_pe() == 0:
                for i in range(cuda.threadIdx.x, N, 32):
                    here[i] = k
                cuda.syncthreads()
                send(there, here, flag, k)
            if cuda.threadIdx.x == 0:
                shmem.signal_wait_until(flag, shmem.CMP_GE, k)
            cuda.syncthreads()
            if shmem.my_pe() == 1:
                look(there, k, wrong)
                cuda.syncthreads()
                if cuda.threadIdx.x == 0:
                    shmem.signal_op(flag, k, shmem.SIGNAL_SET, 0)

    return kernel, 32


def all_together(share):
    """All PEs call `share` with their number of the round, by a block, and look at the result."""

    @shmem.jit
    def kernel(data, src, flag, wrong, reader):
        for k in range(1, ROUNDS + 1):
            there, here = data[k % 2 : N + k % 2], src[k % 2 : N + k % 2]
            for i in range(cuda.threadIdx.x, N, 32):
                here[i] = k
            cuda.syncthreads()
            share(there, here, k)
            cuda.syncthreads()
            look(there, k, wrong)
            shmem.barrier_all_block()

    return kernel, 32


@shmem.jit(device=True)
def put_signal(data, src, flag, k):
    shmem.put_signal(data, src, flag, k, shmem.SIGNAL_SET, 1)


@shmem.jit(device=True)
def put_signal_block(data, src, flag, k):
    shmem.put_signal_block(data, src, flag, k, shmem.SIGNAL_SET, 1)


@shmem.jit(device=True)
def put_fence(data, src, flag, k):
    shmem.put(data, src, 1)
    shmem.fence()
    shmem.signal_op(flag, k, shmem.SIGNAL_SET, 1)


@shmem.jit(device=True)
def put_quiet(data, src, flag, k):
    shmem.put_nbi(data, src, 1)
    shmem.quiet()
    shmem.signal_op(flag, k, shmem.SIGNAL_SET, 1)


@shmem.jit(device=True)
def elements(data, src, flag, k):
    for i in range(N):
        shmem.p(data[i : i + 1], src[i], 1)
    shmem.fence()
    shmem.p(flag, k, 1)


@shmem.jit(device=True)
def add(data, src, flag, k):
    shmem.put_nbi(data, src, 1)
    shmem.quiet()
    shmem.atomic_add(flag, 1, 1)


@shmem.jit(device=True)
def swap(data, src, flag, k):
    shmem.put_nbi(data, src, 1)
    shmem.quiet()
    shmem.atomic_swap(flag, k, 1)


@shmem.jit(device=True)
def quiet():
    shmem.quiet()


@shmem.jit(device=True)
def barrier():
    shmem.barrier_all()


@shmem.jit(device=True)
def put_barrier_block(data, src, k):
    shmem.put_block(data, src, 1 - shmem.my_pe())
    shmem.barrier_all_block()


@shmem.jit(device=True)
def put_barrier(data, src, k):
    shmem.put_block(data, src, 1 - shmem.my_pe())
    if cuda.threadIdx.x == 0:
        shmem.barrier_all()


@shmem.jit(device=True)
def broadcast(data, src, k):
    shmem.broadcast_block(shmem.TEAM_WORLD, data, src, 0)


@shmem.jit(device=True)
def reduce(data, src, k):
    shmem.reduce_block(shmem.TEAM_WORLD, data, src, "max")


@shmem.jit(device=True)
def alltoall(data, src, k):
    shmem.alltoall_block(shmem.TEAM_WORLD, data, src)


WAYS = {
    "put_signal": by_thread(put_signal), "put_signal_block": by_block(put_signal_block),
    "fence": by_thread(put_fence), "quiet": by_thread(put_quiet), "p": by_thread(elements),
    "atomic_add": by_thread(add), "atomic_swap": by_thread(swap), "get": fetching(quiet),
    "get_barrier": fetching(barrier),
    "barrier": all_together(put_barrier), "barrier_block": all_together(put_barrier_block),
    "broadcast": all_together(broadcast), "reduce": all_together(reduce),
    "alltoall": all_together(alltoall),
}  # fmt: skip

kernel, threads = WAYS[sys.argv[1]]
with shmem.session():
    data, src = shmem.zeros(N + 1, np.int64), shmem.zeros(N + 1, np.int64)
    flag, wrong = shmem.zeros(1, np.uint64), shmem.zeros(1, np.int64)
    kernel[1, threads](data, src, flag, wrong, shmem.zeros(1, np.int64))
    shmem.synchronize()
    found = int(wrong.numpy()[0])
if found:
    sys.exit(f"old data seen {found} times")
