"""A collective is complete on the PE that returns from it; others may still be in it."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 3


@shmem.jit
def kernel(dst, src, out):
    me, n = shmem.my_pe(), shmem.n_pes()
    shmem.fcollect(shmem.TEAM_WORLD, dst, src)  # <- 1
    if FIXED:
        shmem.sync_all()
    shmem.get(out, dst, (me + 1) % n)  # <- 2


shmem.init()
src, dst, out = (shmem.ones(k, dtype="float32") for k in (4, 12, 12))
kernel[1, 1](dst, src, out)
shmem.finalize()
