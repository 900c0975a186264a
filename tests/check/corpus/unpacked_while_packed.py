"""What has come is added to an array on one stream, from which another one still packs."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def pack(field, face):
    face[cuda.threadIdx.x] = field[cuda.threadIdx.x]  # <- 1


@shmem.jit
def unpack(field, ghost, flag):
    if cuda.threadIdx.x == 0:
        shmem.signal_wait_until(flag, shmem.CMP_EQ, 1)
    cuda.syncthreads()
    field[cuda.threadIdx.x] += ghost[cuda.threadIdx.x]  # <- 2


shmem.init()
field, face, ghost, sent = (shmem.ones(32, dtype="float32") for _ in range(4))
flag, other = shmem.zeros(1, dtype="uint64"), 1 - shmem.my_pe()
first, second = shmem.stream(), shmem.stream()
pack[1, 32, first](field, face)
if FIXED:
    first.synchronize()
shmem.put_signal(ghost, sent, flag, 1, shmem.SIGNAL_SET, other, stream=second)
unpack[1, 32, second](field, ghost, flag)
shmem.finalize()
