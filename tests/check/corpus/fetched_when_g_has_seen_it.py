"""A PE writes its part and the step it has made; another polls that with g, and gets the part."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def kernel(part, copy, step, ack, out):
    me = shmem.my_pe()
    for k in range(1, 4):
        if me == 0:
            for i in range(part.size):
                part[i] = 10 * k + i  # <- 1
            shmem.quiet()
            shmem.atomic_set(step, k, 0)
            shmem.signal_wait_until(ack, shmem.CMP_GE, k)
        else:
            if FIXED:
                while shmem.atomic_fetch(step, 0) != k:
                    cuda.nanosleep(1000)
            else:
                while shmem.g(step, 0) != k:
                    cuda.nanosleep(1000)
            shmem.get(copy, part, 0)  # <- 2
            for i in range(copy.size):
                out[k] += copy[i]
            shmem.signal_op(ack, 1, shmem.SIGNAL_ADD, 0)


shmem.init()
part, copy, out = (shmem.zeros(n, dtype="int64") for n in (8, 8, 4))
kernel[1, 1](part, copy, shmem.zeros(1, "int64"), shmem.zeros(1, "uint64"), out)
shmem.finalize()
