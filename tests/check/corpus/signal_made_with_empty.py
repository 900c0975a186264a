"""A signal is waited for in memory that nobody has set to zero."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def kernel(dst, src, signal):
    if shmem.my_pe() == 0:
        shmem.put_signal(dst, src, signal, 1, shmem.SIGNAL_SET, 1)
    else:
        shmem.signal_wait_until(signal, shmem.CMP_NE, 0)  # <- 1
        src[0] = dst[0]


shmem.init()
src, dst = shmem.ones(1, dtype="float32"), shmem.zeros(1, dtype="float32")
make = shmem.zeros if FIXED else shmem.empty
signal = make(1, dtype="uint64")
kernel[1, 1](dst, src, signal)
shmem.finalize()
