"""Each sender has a bit of a signal; a wait for any value does not tell whose bit has come."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 3


@shmem.jit
def kernel(dst, src, out, bits):
    me = shmem.my_pe()
    if me == 0:
        if FIXED:
            shmem.signal_wait_until(bits, shmem.CMP_GE, 2)
        else:
            shmem.signal_wait_until(bits, shmem.CMP_NE, 0)
        out[0] = dst[2]  # <- 2
    else:
        shmem.put_signal(dst[me:], src, bits, me, shmem.SIGNAL_ADD, 0)  # <- 1


shmem.init()
src, dst = shmem.ones(1, dtype="float32"), shmem.zeros(3, dtype="float32")
kernel[1, 1](dst, src, shmem.zeros(1, dtype="float32"), shmem.zeros(1, dtype="uint64"))
shmem.finalize()
