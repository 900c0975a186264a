"""The outermost cell of a line is read, and no neighbour fills it."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2
N = 32


@shmem.jit
def fill(line):
    i = cuda.threadIdx.x
    me = shmem.my_pe()
    line[i + 1] = i
    if FIXED and me == 0 and i == 0:
        line[0] = 0
    cuda.syncthreads()
    if me + 1 < shmem.n_pes():
        shmem.put_block(line[:1], line[N:], me + 1)


@shmem.jit
def smooth(line, out):
    i = cuda.threadIdx.x
    out[i] = line[i] + line[i + 1]  # <- 1


shmem.init()
line, out = shmem.empty(N + 1, dtype="float32"), shmem.zeros(N, dtype="float32")
fill[1, N](line)
shmem.barrier_all()
smooth[1, N](line, out)
shmem.finalize()
