"""A PE loads its symmetric memory, gets another PE's to it, and loads it again."""

import sys

import gpushmem as shmem

STRIDED = "iget" in sys.argv


@shmem.jit
def kernel(copy, data, out):
    if shmem.signal_fetch(data[40:]) != 0:
        shmem.quiet()  # never: so that threads are fibers
    for i in range(copy.size):
        out[i] = copy[i]
    if STRIDED:
        shmem.iget(copy, data, 1, 1, copy.size, 1)
    else:
        shmem.get(copy, data, 1)
    for i in range(copy.size):
        out[i] += copy[i]


shmem.init()
copy, data, out = shmem.zeros(16, "uint64"), shmem.zeros(41, "uint64"), shmem.zeros(16, "uint64")
data.copy_from([5] * 40 + [0])
shmem.barrier_all()
kernel[1, 1](copy, data, out)
print("right" if (out.numpy() == 5).all() else out.numpy())
shmem.finalize()
