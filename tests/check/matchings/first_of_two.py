"""Which of two PEs is first decides what is read: if it is PE 2, what PE 1 has not sent, too."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 3


@shmem.jit
def kernel(dst, src, out, flags):
    me = shmem.my_pe()
    if me > 0:
        shmem.put_signal(dst[me:], src, flags[me - 1 :], 1, shmem.SIGNAL_SET, 0)  # <- 1
        return
    first = shmem.wait_until_any(flags, None, shmem.CMP_EQ, 1)
    if first == 1 and FIXED:
        shmem.wait_until(flags, shmem.CMP_EQ, 1)
    if first == 1:
        out[0] = dst[1] + dst[2]  # <- 2
    else:
        out[0] = dst[1]


shmem.init()
src, dst, out = (shmem.ones(k, dtype="float32") for k in (1, 3, 1))
kernel[1, 1](dst, src, out, shmem.zeros(2, dtype="uint64"))
shmem.finalize()
