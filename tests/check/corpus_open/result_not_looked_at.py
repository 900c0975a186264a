# A good report: race, put_signal and the read: nothing depends on what signal_fetch returns.
"""A signal is fetched, but what it is does not matter for what follows."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def kernel(dst, src, out, flag):
    shmem.put_signal(dst, src, flag, 1, shmem.SIGNAL_SET, 1 - shmem.my_pe())  # <- 1
    shmem.sync_all()
    value = shmem.signal_fetch(flag)
    while FIXED and value != 1:
        value = shmem.signal_fetch(flag)
    out[0] = dst[0]  # <- 2


shmem.init()
src, dst, out = (shmem.ones(8, dtype="float32") for _ in range(3))
kernel[1, 1](dst, src, out, shmem.zeros(1, dtype="uint64"))
shmem.finalize()
