"""An all-reduce of the ranks of MPI, and of some of them."""

import sys

import nvshmem.core
from cuda.core import Device, system
from mpi4py import MPI

comm = MPI.COMM_WORLD
device = Device(comm.Get_rank() % system.num_devices)
device.set_current()
nvshmem.core.init(device=device, mpi_comm=comm, initializer_method=sys.argv[1])
assert (nvshmem.core.my_pe(), nvshmem.core.n_pes()) == (comm.Get_rank(), comm.Get_size())
stream = device.create_stream()
x = nvshmem.core.array((4,), dtype="float64")
x[:] = comm.Get_rank() + 1
nvshmem.core.barrier_all(stream)
total = nvshmem.core.array((4,), dtype="float64")
nvshmem.core.reduce(nvshmem.core.Teams.TEAM_WORLD, total, x, "sum", stream=stream)
stream.sync()
assert (total == comm.allreduce(comm.Get_rank() + 1)).all()
nvshmem.core.free_array(x)
nvshmem.core.free_array(total)
nvshmem.core.finalize()
print(f"{comm.Get_rank()} done")
