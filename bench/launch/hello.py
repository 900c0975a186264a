"""gpushmem's hello: each PE tells its right neighbour its number, from a kernel in the store.

With `new` the kernel is another in each run: it mentions the launcher's process id.
"""

import os
import sys

import gpushmem as shmem

RUN = os.getppid() if "new" in sys.argv else 0


@shmem.jit
def hello(left):
    me = shmem.my_pe() + 0 * RUN
    shmem.p(left, me, (me + 1) % shmem.n_pes())


shmem.init()
left = shmem.zeros(1, "int64")
hello[1, 1](left)
shmem.barrier_all()
assert left[0] == (shmem.my_pe() - 1) % shmem.n_pes()
shmem.finalize()
