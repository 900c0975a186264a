# A good report: ordering, get_nbi may read after the store at 1; missing: quiet() before signal_op,
# as flush is for the sources of puts.
"""A reader calls flush after get_nbi, and tells the owner of the source to go on."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def kernel(a, copy, ready, done):
    if shmem.my_pe() == 0:
        shmem.signal_op(ready, 1, shmem.SIGNAL_SET, 1)
        shmem.signal_wait_until(done, shmem.CMP_EQ, 1)
        a[0] = 2  # <- 1
    else:
        shmem.signal_wait_until(ready, shmem.CMP_EQ, 1)
        shmem.get_nbi(copy, a, 0)  # <- 2
        if FIXED:
            shmem.quiet()
        else:
            shmem.flush()
        shmem.signal_op(done, 1, shmem.SIGNAL_SET, 0)
        shmem.quiet()


shmem.init()
a, copy = shmem.zeros(1, dtype="float32"), shmem.zeros(1, dtype="float32")
kernel[1, 1](a, copy, shmem.zeros(1, dtype="uint64"), shmem.zeros(1, dtype="uint64"))
shmem.finalize()
