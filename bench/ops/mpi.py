"""mpi4py's side: a window for what is one-sided, MPI's collectives on NumPy arrays.

A call from Python costs what it costs: that is what a Python program gets. Started by
__main__.py; the arguments are explained in measure.py.
"""

import numpy as np
from measure import ITEM, LARGE, Bench, source
from mpi4py import MPI

comm = MPI.COMM_WORLD
me, n = comm.rank, comm.size


def one_sided(bench):
    window = MPI.Win.Allocate(LARGE, 1, comm=comm)
    cell = memoryview(window.tomemory())[:8].cast("q")
    cell[0] = 0
    number = np.ones(1, "i8")
    value, fetched = [number, MPI.INT64_T], [np.zeros(1, "i8"), MPI.INT64_T]
    large = [np.ones(LARGE, "i1"), MPI.INT8_T]

    def put(what, reps):
        if me == 0:
            for _ in range(reps):
                window.Put(what, 1)
            window.Flush(1)

    def add(reps):
        if me == 0:
            for _ in range(reps):
                window.Accumulate(value, 1, op=MPI.SUM)
            window.Flush(1)

    def fetch_add(reps):
        if me == 0:
            for _ in range(reps):
                window.Fetch_and_op(value, fetched, 1, op=MPI.SUM)
                window.Flush(1)

    def ping_pong(reps):
        for i in range(1, reps + 1):
            if i % 2 == me:
                number[0] = i
                window.Put(value, 1 - me)
                window.Flush(1 - me)
            else:
                while cell[0] != i:
                    window.Sync()
        cell[0] = 0

    window.Lock_all()
    bench.measure("put", 8, lambda reps: put(value, reps))
    bench.measure("atomic add", 8, add)
    bench.measure("atomic fetch-add", 8, fetch_add)
    cell[0] = 0
    bench.measure("put and wait, one way", 8, ping_pong)
    bench.measure("put", LARGE, lambda reps: put(large, reps))
    window.Unlock_all()
    window.Free()


def many(call, *args):
    def run(reps):
        for _ in range(reps):
            call(*args)

    return run


bench = Bench(me, n, comm.Barrier, comm.bcast)
if n == 2:
    one_sided(bench)
bench.measure("barrier", 0, many(comm.Barrier))
all_src, all_dst = (np.empty(LARGE // ITEM, "f4") for _ in range(2))
for what, call in (
    ("allreduce", comm.Allreduce), ("alltoall", comm.Alltoall), ("fcollect", comm.Allgather)
):  # fmt: skip
    for nbytes, n_src, n_dst in bench.shapes(what):
        src, dst = all_src[:n_src], all_dst[:n_dst]
        src[:], dst[:] = source(me, n_src), -1
        buffers = [src, MPI.FLOAT], [dst, MPI.FLOAT]
        call(*buffers)
        np.testing.assert_array_equal(dst, bench.wanted(what, n_src))
        bench.measure(what, nbytes, many(call, *buffers))
