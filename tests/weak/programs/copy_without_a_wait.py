"""How many threads read, after a barrier alone, what others have begun to copy to shared memory."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED, N, TILES = "fixed" in sys.argv, 32, 8


@shmem.jit
def kernel(x, late):
    tile, t = cuda.shared.array((2, N), "int32"), cuda.threadIdx.x
    tile[0, t] = tile[1, t] = -1
    for k in range(TILES):
        one = tile[k % 2]
        shmem.copy_async(one, t, x, k * N + t, 1)
        shmem.copy_async_commit()
        if FIXED:
            shmem.copy_async_wait(0)
        else:
            shmem.copy_async_wait(1)  # all but the last
        cuda.syncthreads()
        other = (t + 1) % N
        late[t] += one[other] != x[k * N + other]
        cuda.syncthreads()


shmem.init()
x, late = shmem.zeros(N * TILES, "int32"), shmem.zeros(N, "int32")
x[:] = range(N * TILES)
kernel[1, N](x, late)
print(late.numpy().sum())
shmem.finalize()
