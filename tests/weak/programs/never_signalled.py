"""A deadlock, after an operation that may be late."""

import gpushmem as shmem


@shmem.jit
def kernel(x, flag):
    shmem.p(x, 1, 1 - shmem.my_pe())
    shmem.signal_wait_until(flag, shmem.CMP_EQ, 1)


shmem.init()
kernel[1, 1](shmem.zeros(1, "int32"), shmem.zeros(1, "uint64"))
shmem.finalize()
