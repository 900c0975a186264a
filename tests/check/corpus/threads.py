"""Threads of a block and their memory, without communication.

Each function is a program: the first argument is its name.
"""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv


def cleared_and_filled(pes=1):
    """All threads clear an array, which the first one then fills."""

    @shmem.jit
    def kernel(a):
        a[cuda.threadIdx.x] = 0  # <- 1
        if FIXED:
            cuda.syncthreads()
        if cuda.threadIdx.x == 0:
            for k in range(a.size):
                a[k] = k  # <- 2

    kernel[1, 64](shmem.zeros(64, dtype="int32"))


def half_of_the_warp(pes=1):
    """The lanes of half a warp meet, and the other half reads what they have written."""

    @shmem.jit
    def kernel(a, out):
        i = cuda.threadIdx.x
        if i < 16:
            a[i] = i  # <- 2
            if not FIXED:
                cuda.syncwarp(0xFFFF)
        if FIXED:
            cuda.syncwarp()
        if i >= 16:
            out[i] = a[i - 16]  # <- 1

    kernel[1, 32](shmem.zeros(16, dtype="int32"), shmem.zeros(32, dtype="int32"))


def lanes(pes=1):
    """Lanes of a warp exchange numbers through memory, without syncwarp."""

    @shmem.jit
    def kernel(a, out):
        i = cuda.threadIdx.x
        a[i] = i  # <- 2
        if FIXED:
            cuda.syncwarp()
        out[i] = a[i ^ 1]  # <- 1

    kernel[1, 32](shmem.zeros(32, dtype="int32"), shmem.zeros(32, dtype="int32"))


def next_tile_too_early(pes=1):
    """A tile in shared memory is loaded when some threads still use the last one."""

    @shmem.jit
    def kernel(a, out):
        i = cuda.threadIdx.x
        tile = cuda.shared.array(32, "float32")
        for k in range(4):
            tile[i] = a[32 * k + i]  # <- 1
            cuda.syncthreads()
            for j in range(32):
                out[i] += tile[j]  # <- 2
            if FIXED:
                cuda.syncthreads()

    kernel[1, 32](shmem.ones(128, dtype="float32"), shmem.zeros(32, dtype="float32"))


def partial_sums_of_warps(pes=1):
    """The first warp adds the sums of all warps, which may not be there."""

    @shmem.jit
    def kernel(a, out):
        i = cuda.threadIdx.x
        sums = cuda.shared.array(4, "float32")
        value = a[i]
        for k in (16, 8, 4, 2, 1):
            value += cuda.shfl_down_sync(0xFFFFFFFF, value, k)
        if i % 32 == 0:
            sums[i // 32] = value  # <- 1
        if FIXED:
            cuda.syncthreads()
        if i == 0:
            out[0] = sums[0] + sums[1] + sums[2] + sums[3]  # <- 2

    kernel[1, 128](shmem.ones(128, dtype="float32"), shmem.zeros(1, dtype="float32"))


def prefix_sums_in_place(pes=1):
    """Each step of a prefix sum reads what other threads replace in the same step."""

    @shmem.jit
    def kernel(a):
        i = cuda.threadIdx.x
        step = 1
        while step < 32:
            left = a[i - step] if i >= step else 0  # <- 1
            if FIXED:
                cuda.syncthreads()
            a[i] += left  # <- 2
            cuda.syncthreads()
            step *= 2

    kernel[1, 32](shmem.ones(32, dtype="int32"))


def product_before_the_barrier(pes=2):
    """The threads fill a matrix and multiply it, without having met."""

    @shmem.jit
    def kernel(c, a, b):
        i = cuda.threadIdx.x
        for k in range(4):
            a[i, k] = i + k  # <- 2
        if FIXED:
            cuda.syncthreads()
        shmem.gemm_block(c, a, b, False)  # <- 1

    c, a, b = (shmem.ones(shape, dtype="float32") for shape in ((32, 4), (32, 4), (4, 4)))
    kernel[1, 32](c, a, b)


def product_of_a_tile(pes=1):
    """Threads load a tile to shared memory and multiply it, without a barrier."""

    # A good report: race, the store at 1 and gemm_block; missing: cuda.syncthreads() between the
    # two.
    @shmem.jit
    def kernel(c, a, b):
        i = cuda.threadIdx.x
        tile = cuda.shared.array((32, 4), "float32")
        for k in range(4):
            tile[i, k] = a[i, k]  # <- 1
        if FIXED:
            cuda.syncthreads()
        shmem.gemm_block(c, tile, b, False)  # <- 2

    c, a, b = (shmem.ones(shape, dtype="float32") for shape in ((32, 4), (32, 4), (4, 4)))
    kernel[1, 32](c, a, b)


def reversed_in_place(pes=1):
    """Threads reverse an array in place, without a barrier between reading and writing."""

    @shmem.jit
    def kernel(a):
        i = cuda.threadIdx.x
        value = a[63 - i]  # <- 1
        if FIXED:
            cuda.syncthreads()
        a[i] = value  # <- 2

    kernel[1, 64](shmem.ones(64, dtype="int32"))


def scratch_of_the_last_step(pes=1):
    """Each step leaves its sum in shared memory, and the next one overwrites it while it is
    read."""

    @shmem.jit
    def kernel(out):
        i = cuda.threadIdx.x
        total = cuda.shared.array(1, "float32")
        for step in range(3):
            if i == 0:
                total[0] = step  # <- 1
            cuda.syncthreads()
            out[i] += total[0]  # <- 2
            if FIXED:
                cuda.syncthreads()

    kernel[1, 64](shmem.zeros(64, dtype="float32"))


def shared_memory(pes=1):
    """Threads read what others write to shared memory, without a barrier."""

    @shmem.jit
    def kernel(out):
        i = cuda.threadIdx.x
        row = cuda.shared.array(64, "float32")
        row[i] = i  # <- 2
        if FIXED:
            cuda.syncthreads()
        out[cuda.grid(1)] = row[63 - i]  # <- 1

    kernel[2, 64](shmem.zeros(128, dtype="float32"))


def transposed_through_shared_memory(pes=1):
    """Threads transpose a tile through shared memory, without a barrier."""

    @shmem.jit
    def kernel(a, b):
        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        tile = cuda.shared.array((8, 8), "float32")
        tile[y, x] = a[y, x]  # <- 2
        if FIXED:
            cuda.syncthreads()
        b[y, x] = tile[x, y]  # <- 1

    kernel[1, (8, 8)](shmem.ones((8, 8), dtype="float32"), shmem.zeros((8, 8), dtype="float32"))


def tree_in_a_block(pes=1):
    """Threads add in a tree in shared memory, with a barrier after the first step only."""

    @shmem.jit
    def kernel(out):
        i = cuda.threadIdx.x
        sums = cuda.shared.array(64, "int32")
        sums[i] = 1
        cuda.syncthreads()
        half = 32
        while half > 0:
            if i < half:
                sums[i] += sums[i + half]  # <- 1 <- 2
            if FIXED:
                cuda.syncthreads()
            half //= 2
        out[i] = sums[i]

    kernel[1, 64](shmem.zeros(64, dtype="int32"))


shmem.init()
globals()[sys.argv[1]]()
shmem.finalize()
