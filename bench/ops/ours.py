"""gpushmem's side: the operations, called by one thread of a kernel.

Started by __main__.py; the arguments are explained in measure.py.
"""

from functools import partial

import numpy as np
from measure import ITEM, LARGE, Bench, source

import gpushmem as shmem


@shmem.jit
def p(cell, reps):
    if shmem.my_pe() == 0:
        for i in range(reps):
            shmem.p(cell, i, 1)
        shmem.quiet()


@shmem.jit
def atomic_add(cell, reps):
    if shmem.my_pe() == 0:
        for _ in range(reps):
            shmem.atomic_add(cell, 1, 1)
        shmem.quiet()


@shmem.jit
def atomic_fetch_add(cell, reps):
    if shmem.my_pe() == 0:
        total = 0
        for _ in range(reps):
            total += shmem.atomic_fetch_add(cell, 1, 1)
        cell[0] = total  # what is fetched is used


@shmem.jit
def ping_pong(cell, reps):
    me = shmem.my_pe()
    for i in range(1, reps + 1):
        if i % 2 == me:
            shmem.p(cell, i, 1 - me)
        else:
            shmem.wait_until(cell, shmem.CMP_EQ, i)
    cell[0] = 0


@shmem.jit
def put(dst, src, reps):
    if shmem.my_pe() == 0:
        for _ in range(reps):
            shmem.put(dst, src, 1)
        shmem.quiet()


@shmem.jit
def barrier_all(reps):
    for _ in range(reps):
        shmem.barrier_all()


@shmem.jit
def allreduce(dst, src, reps):
    for _ in range(reps):
        shmem.reduce(shmem.TEAM_WORLD, dst, src, "sum")


@shmem.jit
def alltoall(dst, src, reps):
    for _ in range(reps):
        shmem.alltoall(shmem.TEAM_WORLD, dst, src)


@shmem.jit
def fcollect(dst, src, reps):
    for _ in range(reps):
        shmem.fcollect(shmem.TEAM_WORLD, dst, src)


def run(kernel, *args):
    kernel[1, 1](*args)
    shmem.synchronize()


def main():
    shmem.init()
    me, n = shmem.my_pe(), shmem.n_pes()
    cell, shared = shmem.zeros(1, "int64"), shmem.zeros(1, "float64")
    src, dst = (shmem.ones(LARGE // ITEM, "float32") for _ in range(2))

    def share(value):
        if me == 0:
            for pe in range(n):
                shmem.p(shared, value, pe)
        shmem.barrier_all()
        return shared[0]

    bench = Bench(me, n, shmem.barrier_all, share)
    if n == 2:
        bench.measure("put", 8, partial(run, p, cell))
        bench.measure("atomic add", 8, partial(run, atomic_add, cell))
        bench.measure("atomic fetch-add", 8, partial(run, atomic_fetch_add, cell))
        cell[0] = 0
        bench.measure("put and wait, one way", 8, partial(run, ping_pong, cell))
        bench.measure("put", LARGE, partial(run, put, dst, src))
    bench.measure("barrier", 0, partial(run, barrier_all))
    for kernel in (allreduce, alltoall, fcollect):
        what = kernel.__name__
        for nbytes, n_src, n_dst in bench.shapes(what):
            src[:n_src], dst[:n_dst] = source(me, n_src), -1
            measured = partial(run, kernel, dst[:n_dst], src[:n_src])
            shmem.barrier_all()
            measured(1)
            np.testing.assert_array_equal(dst[:n_dst].numpy(), bench.wanted(what, n_src))
            bench.measure(what, nbytes, measured)
    shmem.finalize()


main()
