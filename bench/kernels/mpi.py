"""The same jobs in NumPy and mpi4py, and by PyTorch, where a family has that.

mpirun -n N python bench/kernels/mpi.py FAMILY
"""

import importlib
import sys

from clock import Clock
from mpi4py import MPI

comm = MPI.COMM_WORLD
family = importlib.import_module(sys.argv[1])
clock = Clock(comm.rank, comm.Barrier, comm.bcast)
peers = [name for name in ("mpi", "pytorch") if hasattr(family, name)]
for case in family.CASES:
    seconds = clock.seconds(*(getattr(family, name)(case, comm) for name in peers))
    said = dict(zip(peers, seconds, strict=True))
    clock.say(label=family.label(case), n_pes=comm.size, **said)
