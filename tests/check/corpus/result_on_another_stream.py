# A good report: race, broadcast at 1 and the read; missing: the host has to wait, or both run on
# one stream.
"""A collective is queued on one stream, a kernel of another one uses its result."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def use(dst, out):
    out[cuda.threadIdx.x] = dst[cuda.threadIdx.x]  # <- 2


shmem.init()
src, dst, out = (shmem.ones(32, dtype="float32") for _ in range(3))
first, second = shmem.stream(), shmem.stream()
shmem.broadcast(shmem.TEAM_WORLD, dst, src, 0, stream=first)  # <- 1
if FIXED:
    first.synchronize()
use[1, 32, second](dst, out)
shmem.finalize()
