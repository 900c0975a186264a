# A good report: ordering, the store at 1 may be seen after the signal; missing: quiet() before
# signal_op.
"""A PE stores to its own memory and signals its neighbour, which gets it: the store may be late."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def kernel(a, out, flag):
    other = 1 - shmem.my_pe()
    a[0] = 7  # <- 1
    if FIXED:
        shmem.quiet()
    shmem.signal_op(flag, 1, shmem.SIGNAL_SET, other)
    shmem.signal_wait_until(flag, shmem.CMP_EQ, 1)
    shmem.get(out, a, other)  # <- 2


shmem.init()
a, out = shmem.zeros(1, dtype="float32"), shmem.zeros(1, dtype="float32")
kernel[1, 1](a, out, shmem.zeros(1, dtype="uint64"))
shmem.finalize()
