# A good report: ordering, what put writes may arrive after it is read; missing: quiet() before
# atomic_set. The fixed program is right: the data are complete before the flag is set.
"""A flag on PE 0 tells that data on PE 0 are complete; PE 1 polls it with atomic_fetch."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def kernel(data, src, copy, flag):
    if shmem.my_pe() == 0:
        shmem.put(data, src, 0)  # <- 1
        if FIXED:
            shmem.quiet()
        shmem.atomic_set(flag, 1, 0)
    else:
        while shmem.atomic_fetch(flag, 0) != 1:
            pass
        shmem.get(copy, data, 0)  # <- 2


shmem.init()
data, src, copy = (shmem.ones(8, dtype="float32") for _ in range(3))
kernel[1, 1](data, src, copy, shmem.zeros(1, dtype="int32"))
shmem.finalize()
