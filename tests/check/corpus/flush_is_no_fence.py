"""A flush makes sources free again, but does not order the data before a signal."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def kernel(dst, src, out, flag):
    other = 1 - shmem.my_pe()
    shmem.put_nbi(dst, src, other)  # <- 1
    shmem.flush()
    src[0] = 3
    if FIXED:
        shmem.fence()
    shmem.signal_op(flag, 1, shmem.SIGNAL_ADD, other)
    shmem.signal_wait_until(flag, shmem.CMP_GE, 1)
    out[0] = dst[0]  # <- 2


shmem.init()
src, dst = shmem.ones(16, dtype="float64"), shmem.zeros(16, dtype="float64")
kernel[1, 1](dst, src, shmem.zeros(1), shmem.zeros(1, dtype="uint64"))
shmem.finalize()
