"""Hosts set their counters to 0 for the next step, when other PEs may have begun it."""

import sys

import numpy as np

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 3


@shmem.jit
def kernel(data, out, count, step):
    me, n = shmem.my_pe(), shmem.n_pes()
    for pe in range(n):
        shmem.p(data[me:], step, pe)
        shmem.fence()
        shmem.atomic_add(count, 1, pe)  # <- 1
    shmem.wait_until(count, shmem.CMP_EQ, n)
    for pe in range(n):
        out[pe] = data[pe]


shmem.init()
data, out = shmem.zeros(4, "int64"), shmem.zeros(4, "int64")
count = shmem.zeros(1, "int64")
for step in range(3):
    kernel[1, 1](data, out, count, step)
    shmem.barrier_all()
    count.copy_from(np.zeros(1, "int64"))  # <- 2
    if FIXED:
        shmem.barrier_all()
shmem.finalize()
