"""Copies to shared memory that are read, or whose source is changed, before they are complete.

Each function is a program: the first argument is its name.
"""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv
N, TILES = 32, 4


def barrier_without_a_wait(pes=1):
    """Threads read what others copy: these have met with them, but have not waited."""

    @shmem.jit
    def kernel(x, out):
        tile, t = cuda.shared.array(4 * 32, "float32", alignment=16), cuda.threadIdx.x
        shmem.copy_async(tile, 4 * t, x, 4 * t, 4)  # <- 1
        shmem.copy_async_commit()
        if FIXED:
            shmem.copy_async_wait(0)
        else:
            shmem.quiet()
        cuda.syncthreads()
        out[t] = tile[4 * N - 1 - t]  # <- 2

    kernel[1, N](shmem.zeros(4 * N, "float32"), shmem.device_array(N, "float32"))


def last_tile_is_not_waited_for(pes=1):
    """A loop with two stages: all but the last group is complete, at its end, too."""

    @shmem.jit
    def kernel(x, out):
        tile, t, s = cuda.shared.array((2, N), "float64"), cuda.threadIdx.x, 0.0
        shmem.copy_async(tile, t, x, t, 1)  # <- 3
        shmem.copy_async_commit()
        for k in range(TILES):
            if k + 1 < TILES:
                n = (k + 1) * N + t
                shmem.copy_async(tile, (k + 1) % 2 * N + t, x, n, 1)  # <- 1
                shmem.copy_async_commit()
            elif FIXED:
                shmem.copy_async_commit()
            shmem.copy_async_wait(1)
            cuda.syncthreads()
            s += tile[k % 2, N - 1 - t]  # <- 2
            cuda.syncthreads()
        out[t] = s

    kernel[1, N](shmem.ones(TILES * N, "float64"), shmem.device_array(N, "float64"))


def source_changed_before_the_wait(pes=1):
    """A thread writes what it has begun to copy, and not committed."""

    @shmem.jit
    def kernel(x, out):
        tile, t = cuda.shared.array(N, "int64"), cuda.threadIdx.x
        shmem.copy_async(tile, t, x, t, 1)  # <- 1
        if FIXED:
            shmem.copy_async_commit()
        shmem.copy_async_wait(0)
        x[t] = 7  # <- 2
        if FIXED:
            out[t] = tile[t]

    kernel[1, N](shmem.zeros(N, "int64"), shmem.device_array(N, "int64"))


shmem.init()
globals()[sys.argv[1]]()
shmem.finalize()
