"""A kernel reduces on one stream, and one of another stream uses the sum."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def reduce(total, part):
    shmem.reduce_warp(shmem.TEAM_WORLD, total, part, "sum")  # <- 1


@shmem.jit
def use(total, out):
    out[cuda.threadIdx.x] = total[cuda.threadIdx.x]  # <- 2


shmem.init()
total, part, out = (shmem.ones(32, dtype="float32") for _ in range(3))
communicate, compute = shmem.stream(), shmem.stream()
reduce[1, 32, communicate](total, part)
use[1, 32, communicate if FIXED else compute](total, out)
shmem.finalize()
