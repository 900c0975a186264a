# A good report: ordering, what put_warp writes may arrive after it is read; missing: quiet(), as
# fence orders no gets.
"""A PE puts data and gets them back: a fence orders puts, not gets."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def kernel(there, src, back):
    other = 1 - shmem.my_pe()
    shmem.put_warp(there, src, other)  # <- 1
    if FIXED:
        shmem.quiet()
    else:
        shmem.fence()
    shmem.get_warp(back, there, other)  # <- 2


shmem.init()
there, src, back = (shmem.ones(32, dtype="float64") for _ in range(3))
kernel[1, 32](there, src, back)
shmem.finalize()
