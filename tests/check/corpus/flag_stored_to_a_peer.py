"""A flag is a plain store through peer_array, for which the peer waits."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def kernel(dst, src, out, flag):
    other = 1 - shmem.my_pe()
    shmem.put(dst, src, other)
    shmem.fence()
    if FIXED:
        shmem.p(flag, 1, other)
    else:
        shmem.peer_array(flag, other)[0] = 1  # <- 1
    shmem.wait_until(flag, shmem.CMP_EQ, 1)  # <- 2
    out[0] = dst[0]


shmem.init()
src, dst, out = (shmem.ones(8, dtype="float32") for _ in range(3))
kernel[1, 1](dst, src, out, shmem.zeros(1, dtype="int32"))
shmem.finalize()
