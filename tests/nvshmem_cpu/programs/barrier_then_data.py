"""A thread reads after `barrier_all` what another PE has put before it; does it see old values?

Another thread of the block reads the numbers between, which nobody writes.
"""

import numpy as np
from numba import cuda

import gpushmem as shmem

N, ROUNDS = 16, 40


@shmem.jit
def kernel(data, between, old):
    for k in range(1, ROUNDS + 1):
        if cuda.threadIdx.x == 1:
            for i in range(8 * N):
                between[0] += data[2 * (i % N) + 1]
        else:
            for i in range(N):
                shmem.p(data[2 * i : 2 * i + 1], k, 1 - shmem.my_pe())
            shmem.barrier_all()
            for i in range(N):
                if data[2 * i] != k:
                    old[0] += 1
            shmem.barrier_all()
        cuda.syncthreads()


with shmem.session():
    data = shmem.zeros(2 * N, np.int32)
    between, old = (shmem.zeros(1, np.int64) for _ in range(2))
    kernel[1, 2](data, between, old)
    shmem.synchronize()
    print("sees old" if old.numpy()[0] else "sees new")
