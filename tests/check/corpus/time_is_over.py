"""A wait has a timeout, and nobody looks whether it has ended by that."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def kernel(dst, src, out, flag, go):
    if shmem.my_pe() == 0:
        came = shmem.signal_wait_until(flag, shmem.CMP_EQ, 1, 1000)
        shmem.signal_op(go, 1, shmem.SIGNAL_SET, 1)
        if FIXED and not came:
            shmem.signal_wait_until(flag, shmem.CMP_EQ, 1)
        out[0] = dst[3]  # <- 2
    else:
        shmem.signal_wait_until(go, shmem.CMP_EQ, 1)
        shmem.put_signal(dst, src, flag, 1, shmem.SIGNAL_SET, 0)  # <- 1


shmem.init()
src, dst = shmem.ones(8, dtype="float32"), shmem.zeros(8, dtype="float32")
flag, go = shmem.zeros(1, dtype="uint64"), shmem.zeros(1, dtype="uint64")
kernel[1, 1](dst, src, shmem.zeros(1, dtype="float32"), flag, go)
shmem.finalize()
