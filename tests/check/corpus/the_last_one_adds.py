# A good report: ordering, what put writes may arrive after it is read; missing: quiet() before
# atomic_fetch_inc. The fixed program is right: who gets 2 knows that the others are complete.
"""PEs put their parts to PE 0 and count themselves; the last one gets all parts and adds them."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 3


@shmem.jit
def kernel(parts, own, all_parts, arrived):
    me, n = shmem.my_pe(), shmem.n_pes()
    shmem.put(parts[me:], own, 0)  # <- 1
    if FIXED:
        shmem.quiet()
    if shmem.atomic_fetch_inc(arrived, 0) == n - 1:
        shmem.get(all_parts, parts, 0)  # <- 2


shmem.init()
parts, own, all_parts = (shmem.ones(k, dtype="float32") for k in (3, 1, 3))
kernel[1, 1](parts, own, all_parts, shmem.zeros(1, dtype="int32"))
shmem.finalize()
