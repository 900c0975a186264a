"""Two PEs add to a signal; the reader waits for one, and reads both's data."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 3


@shmem.jit
def kernel(dst, src, out, flag):
    me = shmem.my_pe()
    if me == 0:
        shmem.signal_wait_until(flag, shmem.CMP_GE, 2 if FIXED else 1)
        out[0] = dst[1] + dst[2]  # <- 2
    else:
        shmem.put_signal(dst[me:], src[:1], flag, 1, shmem.SIGNAL_ADD, 0)  # <- 1


shmem.init()
src = shmem.full(64, shmem.my_pe(), dtype="float32")
dst = shmem.zeros(64, dtype="float32")
flag = shmem.zeros(1, dtype="uint64")
kernel[1, 1](dst, src, shmem.zeros(1, dtype="float32"), flag)
shmem.finalize()
