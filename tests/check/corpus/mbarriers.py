"""Copies in bulk that are read, or whose source is changed, before their phase is complete.

Each function is a program: the first argument is its name.
"""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv
N, TILES = 32, 5


def tile_is_not_waited_for(pes=1):
    """Threads have met with the one that copies, but have not waited for the phase."""

    @shmem.jit
    def kernel(x, out):
        tile, t = cuda.shared.array(N, "float32", alignment=16), cuda.threadIdx.x
        bars = cuda.shared.array(1, "uint64")
        if t == 0:
            shmem.mbarrier_init(bars, 0, 1)
            shmem.mbarrier_arrive_and_expect_tx(bars, 0, 4 * N)
            shmem.copy_bulk(tile, 0, x, 0, N, bars, 0)  # <- 1
        cuda.syncthreads()
        if FIXED:
            shmem.mbarrier_wait(bars, 0, 0)
        out[t] = tile[N - 1 - t]  # <- 2

    kernel[1, N](shmem.zeros(N, "float32"), shmem.device_array(N, "float32"))


def second_phase_alone_is_waited_for(pes=1):
    """Who waits for parity 1 and has not waited for phase 0 may go on before that is complete."""

    @shmem.jit
    def kernel(x, out):
        tile, t = cuda.shared.array((2, N), "float32", alignment=16), cuda.threadIdx.x
        bars = cuda.shared.array(2, "uint64")
        if t < 2:
            shmem.mbarrier_init(bars, t, 1)
        cuda.syncthreads()
        if t == 0:
            for k in range(2):
                b = k if FIXED else 0
                shmem.mbarrier_arrive_and_expect_tx(bars, b, 4 * N)
                shmem.copy_bulk(tile[k], 0, x, k * N, N, bars, b)  # <- 1
                shmem.mbarrier_wait(bars, b, k - b)
        else:
            shmem.mbarrier_wait(bars, 1 if FIXED else 0, 0 if FIXED else 1)
            out[t] = tile[1, N - 1 - t]  # <- 2

    kernel[1, N](shmem.zeros(2 * N, "float32"), shmem.device_array(N, "float32"))


def tile_is_copied_to_again_while_it_is_read(pes=1):
    """Threads arrive, so that the tile is copied to again, and read it then."""

    @shmem.jit
    def kernel(x, out):
        tile, t = cuda.shared.array((2, N), "float32", alignment=16), cuda.threadIdx.x
        bars, s = cuda.shared.array(4, "uint64"), 0.0
        if t == 0:
            for k in range(2):
                shmem.mbarrier_init(bars, k, 1)
                shmem.mbarrier_init(bars, 2 + k, N)
        cuda.syncthreads()
        for k in range(TILES):
            parity = k // 2 & 1
            if t == N:
                shmem.mbarrier_wait(bars, 2 + k % 2, 1 - parity)
                shmem.mbarrier_arrive_and_expect_tx(bars, k % 2, 4 * N)
                shmem.copy_bulk(tile, k % 2 * N, x, k * N, N, bars, k % 2)  # <- 1
            else:
                shmem.mbarrier_wait(bars, k % 2, parity)
                if not FIXED:
                    shmem.mbarrier_arrive(bars, 2 + k % 2)
                s += tile[k % 2, N - 1 - t]  # <- 2
                if FIXED:
                    shmem.mbarrier_arrive(bars, 2 + k % 2)
        if t < N:
            out[t] = s

    kernel[1, N + 1](shmem.ones(TILES * N, "float32"), shmem.device_array(N, "float32"))


def source_of_a_tile_changed_early(pes=1):
    """A thread writes what it has begun to copy."""

    @shmem.jit
    def kernel(x, out):
        tile, t = cuda.shared.array(N, "int64", alignment=16), cuda.threadIdx.x
        bars = cuda.shared.array(1, "uint64")
        if t == 0:
            shmem.mbarrier_init(bars, 0, 1)
            shmem.mbarrier_arrive_and_expect_tx(bars, 0, 8 * N)
            shmem.copy_bulk(tile, 0, x, 0, N, bars, 0)  # <- 1
            if FIXED:
                shmem.mbarrier_wait(bars, 0, 0)
            x[0] = 7  # <- 2
            if FIXED:
                out[0] = tile[0]

    kernel[1, 1](shmem.zeros(N, "int64"), shmem.device_array(N, "int64"))


def stored_before_nobody_waits(pes=1):
    """Threads read what another one has stored before it arrived, and do not wait."""

    @shmem.jit
    def kernel(out):
        word, t = cuda.shared.array(1, "int64"), cuda.threadIdx.x
        bars = cuda.shared.array(1, "uint64")
        if t == 0:
            shmem.mbarrier_init(bars, 0, 1)
        cuda.syncthreads()
        if t == 0:
            word[0] = 7  # <- 1
            shmem.mbarrier_arrive(bars, 0)
        else:
            if FIXED:
                shmem.mbarrier_wait(bars, 0, 0)
            out[t] = word[0]  # <- 2

    kernel[1, 2](shmem.device_array(2, "int64"))


def mbarrier_is_used_before_all_have_met(pes=1):
    """Nothing comes between the initialisation and the first arrivals of others."""

    @shmem.jit
    def kernel():
        bars = cuda.shared.array(1, "uint64")
        if cuda.threadIdx.x == 0:
            shmem.mbarrier_init(bars, 0, cuda.blockDim.x)  # <- 1
        if FIXED:
            cuda.syncthreads()
        shmem.mbarrier_arrive(bars, 0)  # <- 2
        shmem.mbarrier_wait(bars, 0, 0)  # <- 3

    kernel[1, N]()


shmem.init()
globals()[sys.argv[1]]()
shmem.finalize()
