"""PE 1 polls its own word with `g`, which PE 0 writes after PE 1 has read it once."""

import numpy as np

import gpushmem as shmem


@shmem.jit
def poll(flag, seen):
    if shmem.my_pe() == 0:
        shmem.signal_wait_until(flag[1:], shmem.CMP_EQ, 1)
        shmem.p(flag, 1, 1)
    else:
        seen[0] = shmem.g(flag, 1)
        shmem.signal_op(flag[1:], 1, shmem.SIGNAL_SET, 0)
        while shmem.g(flag, 1) != 1:
            pass


with shmem.session():
    flag, seen = shmem.zeros(2, np.uint64), shmem.zeros(1, np.uint64)
    poll[1, 1](flag, seen)
    shmem.synchronize()
print("ended")
