"""A signal has kept its value of the step before, so the wait for the next one ends at once."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def kernel(dst, src, out, flag):
    other = 1 - shmem.my_pe()
    for step in range(1, 4):
        value = step if FIXED else 1
        part = dst[8 * step : 8 * step + 8]
        shmem.fence()
        shmem.put_signal(part, src, flag, value, shmem.SIGNAL_SET, other)  # <- 1
        shmem.signal_wait_until(flag, shmem.CMP_GE, value)
        out[step] = part[0]  # <- 2


shmem.init()
src, dst = shmem.ones(8, dtype="float32"), shmem.zeros(32, dtype="float32")
kernel[1, 1](dst, src, shmem.zeros(4, dtype="float32"), shmem.zeros(1, dtype="uint64"))
shmem.finalize()
