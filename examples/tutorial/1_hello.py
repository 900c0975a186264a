"""Let every PE write its number into the memory of all PEs.

gpushmem run -n 4 examples/tutorial/1_hello.py
"""

from numba import cuda

import gpushmem as shmem


@shmem.jit
def hello(seen):
    me, pe = shmem.my_pe(), cuda.threadIdx.x
    shmem.p(seen[me:], 10 * me, pe)


with shmem.session() as world:
    me, n = world.my_pe, world.n_pes
    seen = shmem.zeros(n, dtype="int32")
    hello[1, n](seen)
    shmem.barrier_all()
    print(f"PE {me} of {n} has {seen.numpy().tolist()}")
    assert seen.numpy().tolist() == [10 * k for k in range(n)]
