"""Let every PE read the numbers of all PEs from their memory."""

from numba import cuda

import gpushmem as shmem


@shmem.jit
def ask(seen, number):
    pe = cuda.threadIdx.x
    seen[pe] = shmem.g(number, pe)


with shmem.session() as world:
    me, n = world.my_pe, world.n_pes
    number = shmem.full(1, 10 * me, dtype="int32")
    seen = shmem.device_array(n, dtype="int32")  # only this PE uses it
    shmem.barrier_all()  # all numbers are there
    ask[1, n](seen, number)
    print(f"PE {me} of {n} has {seen.numpy().tolist()}")
    assert seen.numpy().tolist() == [10 * k for k in range(n)]
    shmem.barrier_all()  # all have read
