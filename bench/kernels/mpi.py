"""The same jobs in NumPy and mpi4py; mpirun -n N python bench/kernels/mpi.py FAMILY."""

import importlib
import sys

from clock import Clock
from mpi4py import MPI

comm = MPI.COMM_WORLD
family = importlib.import_module(sys.argv[1])
clock = Clock(comm.rank, comm.Barrier, comm.bcast)
for case in family.CASES:
    (seconds,) = clock.seconds(family.mpi(case, comm))
    clock.say(label=family.label(case), n_pes=comm.size, mpi=seconds)
