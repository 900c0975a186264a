"""All elements hold: which index does `wait_until_any` return, call after call?"""

import numpy as np

import gpushmem as shmem


@shmem.jit
def ask(flags, found):
    for i in range(found.size):
        found[i] = shmem.wait_until_any(flags, None, shmem.CMP_EQ, 1)


with shmem.session():
    flags, found = shmem.zeros(3, np.int32), shmem.zeros(6, np.int64)
    flags[:] = np.ones(3, np.int32)
    ask[1, 1](flags, found)
    shmem.synchronize()
    print("finds", *found.numpy())
