"""A mistake: the array that other PEs write to is not on the symmetric heap."""

from numba import cuda

import gpushmem as shmem


@shmem.jit
def hello(seen):
    me, pe = shmem.my_pe(), cuda.threadIdx.x
    shmem.p(seen[me:], 10 * me, pe)


with shmem.session() as world:
    seen = shmem.device_array(world.n_pes, dtype="int32")  # was: shmem.zeros
    hello[1, world.n_pes](seen)
    shmem.barrier_all()
