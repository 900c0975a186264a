"""How many threads read, after a barrier alone, what one of them has begun to copy in bulk."""

import sys

from numba import cuda

import gpushmem as shmem

FIXED, N, TILES = "fixed" in sys.argv, 32, 8


@shmem.jit
def kernel(x, late):
    tile, t = cuda.shared.array((2, N), "int32", alignment=16), cuda.threadIdx.x
    bars = cuda.shared.array(2, "uint64")
    tile[0, t] = tile[1, t] = -1
    if t < 2:
        shmem.mbarrier_init(bars, t, 1)
    cuda.syncthreads()
    for k in range(TILES):
        s = k % 2
        if t == 0:
            shmem.mbarrier_arrive_and_expect_tx(bars, s, 4 * N)
            shmem.copy_bulk(tile[s], 0, x, k * N, N, bars, s)
        cuda.syncthreads()
        if FIXED:
            shmem.mbarrier_wait(bars, s, k // 2 & 1)
        late[t] += tile[s, N - 1 - t] != x[k * N + N - 1 - t]
        cuda.syncthreads()
        shmem.mbarrier_wait(bars, s, k // 2 & 1)


shmem.init()
x, late = shmem.zeros(N * TILES, "int32"), shmem.zeros(N, "int32")
x[:] = range(N * TILES)
kernel[1, N](x, late)
print(late.numpy().sum())
shmem.finalize()
