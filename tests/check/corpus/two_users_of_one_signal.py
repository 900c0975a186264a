"""Two PEs set one signal, and who waits for it takes it for that of the first."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 3


@shmem.jit
def kernel(dst, src, out, flags):
    me = shmem.my_pe()
    if me == 0:
        shmem.signal_wait_until(flags, shmem.CMP_EQ, 1)
        out[0] = dst[1]  # <- 2
    else:
        flag = flags[me - 1 :] if FIXED else flags
        shmem.put_signal(dst[me:], src, flag, 1, shmem.SIGNAL_SET, 0)  # <- 1


shmem.init()
src, dst = shmem.ones(1, dtype="float32"), shmem.zeros(3, dtype="float32")
kernel[1, 1](dst, src, shmem.zeros(1, dtype="float32"), shmem.zeros(2, dtype="uint64"))
shmem.finalize()
