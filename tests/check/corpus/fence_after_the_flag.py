"""The fence is called after the flag is sent, not before."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def kernel(dst, src, out, flag):
    other = 1 - shmem.my_pe()
    shmem.put_nbi(dst, src, other)  # <- 1
    if FIXED:
        shmem.fence()
    shmem.p(flag, 1, other)
    shmem.fence()
    shmem.wait_until(flag, shmem.CMP_EQ, 1)
    out[0] = dst[0]  # <- 2


shmem.init()
src, dst, out = (shmem.ones(8, dtype="float32") for _ in range(3))
kernel[1, 1](dst, src, out, shmem.zeros(1, dtype="int64"))
shmem.finalize()
