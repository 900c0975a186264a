"""Rank 1 is killed while the others wait for it."""

import os
import signal
import time

from mpi4py import MPI

comm = MPI.COMM_WORLD
comm.Barrier()
if comm.rank == 1:
    time.sleep(0.5)
    print("now", time.monotonic(), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
comm.Barrier()
