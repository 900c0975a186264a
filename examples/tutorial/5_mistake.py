"""A mistake: one thread calls what all threads of the block have to call."""

from numba import cuda

import gpushmem as shmem


@shmem.jit
def by_operation(x):
    if cuda.threadIdx.x == 0:
        shmem.reduce_block(shmem.TEAM_WORLD, x, x, "sum")
    cuda.syncthreads()


with shmem.session() as world:
    x = shmem.ones(256, dtype="float32")
    by_operation[1, 128](x)
    shmem.barrier_all()
