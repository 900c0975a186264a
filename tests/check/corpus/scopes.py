"""Threads of a block that have not met before or after one of them, or all, communicate.

Each function is a program: the first argument is its name.
"""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv


def fence_of_one_warp_for_all(pes=2):
    """Each warp puts its half; thread 0 signals before the other warp has come that far."""

    @shmem.jit
    def kernel(dst, src, out, flag):
        i, other = cuda.threadIdx.x, 1 - shmem.my_pe()
        half = i // 32 * 32
        shmem.put_warp(dst[half : half + 32], src[half : half + 32], other)  # <- 1
        if FIXED:
            cuda.syncthreads()
        if i == 0:
            shmem.fence()
            shmem.signal_op(flag, 1, shmem.SIGNAL_SET, other)
            shmem.signal_wait_until(flag, shmem.CMP_EQ, 1)
        cuda.syncthreads()
        out[i] = dst[i]  # <- 2

    src, dst, out = (shmem.ones(64, dtype="float32") for _ in range(3))
    kernel[1, 64](dst, src, out, shmem.zeros(1, dtype="uint64"))


def peer_stores_of_all_warps(pes=2):
    """All threads store to a peer; thread 0 calls fence and signals when its own stores are
    done."""

    @shmem.jit
    def kernel(dst, out, flag):
        i, other = cuda.threadIdx.x, 1 - shmem.my_pe()
        there = shmem.peer_array(dst, other)
        there[i] = i  # <- 1
        if FIXED:
            cuda.syncthreads()
        if i == 0:
            shmem.fence()
            shmem.signal_op(flag, 1, shmem.SIGNAL_ADD, other)
            shmem.signal_wait_until(flag, shmem.CMP_GE, 1)
        cuda.syncthreads()
        out[i] = dst[i]  # <- 2

    dst, out = shmem.zeros(96, dtype="float32"), shmem.zeros(96, dtype="float32")
    kernel[1, 96](dst, out, shmem.zeros(1, dtype="uint64"))


def barrier_of_one_warp(pes=2):
    """A warp calls a barrier of all PEs for what another warp puts."""

    @shmem.jit
    def kernel(dst, src, out):
        i = cuda.threadIdx.x
        if i >= 32:
            shmem.put_warp(dst, src, 1 - shmem.my_pe())  # <- 1
        if FIXED:
            cuda.syncthreads()
        if i < 32:
            shmem.barrier_all_warp()
        cuda.syncthreads()
        out[i] = dst[i % 32]  # <- 2

    src, dst, out = (shmem.ones(k, dtype="float32") for k in (32, 32, 64))
    kernel[1, 64](dst, src, out)


def lanes_after_a_barrier(pes=2):
    """A warp calls a barrier of all PEs for what another warp puts."""

    # A good report: race, put_warp and the read; missing: cuda.syncthreads() before the barrier.
    # The fixed program is right: when barrier_all_warp returns, it is complete for all lanes.
    @shmem.jit
    def kernel(dst, src, out):
        i = cuda.threadIdx.x
        if i >= 32:
            shmem.put_warp(dst, src, 1 - shmem.my_pe())  # <- 1
        if FIXED:
            cuda.syncthreads()
        if i < 32:
            shmem.barrier_all_warp()
            out[i] = dst[i]  # <- 2

    src, dst, out = (shmem.ones(32, dtype="float32") for _ in range(3))
    kernel[1, 64](dst, src, out)


def barrier_of_the_block(pes=2):
    """A barrier of all PEs by the whole block completes what all its threads have put."""

    @shmem.jit
    def kernel(dst, out):
        i, other = cuda.threadIdx.x, 1 - shmem.my_pe()
        shmem.p(dst[i:], i, other)  # <- 1
        if FIXED:
            shmem.barrier_all_block()
        elif i == 0:
            shmem.barrier_all()
        out[i] = dst[i]  # <- 2

    dst, out = shmem.zeros(64, dtype="float32"), shmem.zeros(64, dtype="float32")
    kernel[1, 64](dst, out)


def gathered_by_one_warp(pes=2):
    """One warp gathers numbers of all PEs, and the others use them."""

    @shmem.jit
    def kernel(sizes, size, out):
        i = cuda.threadIdx.x
        if i < 32:
            shmem.fcollect_warp(shmem.TEAM_WORLD, sizes, size)  # <- 1
        if FIXED:
            cuda.syncthreads()
        out[i] = sizes[i % 2]  # <- 2

    size = shmem.full(1, 10 * shmem.my_pe(), dtype="int32")
    kernel[1, 64](shmem.zeros(2, dtype="int32"), size, shmem.zeros(64, dtype="int32"))


def loss_of_one_thread(pes=2):
    """Thread 0 reduces, and all threads scale by the result."""

    @shmem.jit
    def kernel(total, part, gradient):
        i = cuda.threadIdx.x
        if i == 0:
            shmem.reduce(shmem.TEAM_WORLD, total, part, "sum")  # <- 1
        if FIXED:
            cuda.syncthreads()
        gradient[i] = gradient[i] / total[0]  # <- 2

    total, part = shmem.zeros(1, dtype="float32"), shmem.ones(1, dtype="float32")
    kernel[1, 32](total, part, shmem.ones(32, dtype="float32"))


def filled_by_threads_then_reduced(pes=2):
    """All threads fill the source of a reduction, and call it without having met."""

    @shmem.jit
    def kernel(dst, src):
        i = cuda.threadIdx.x
        src[i] = i  # <- 2
        if FIXED:
            cuda.syncthreads()
        shmem.reduce_block(shmem.TEAM_WORLD, dst, src, "max")  # <- 1

    kernel[1, 64](shmem.zeros(64, dtype="int32"), shmem.zeros(64, dtype="int32"))


def marked_while_exchanged(pes=2):
    """Threads mark elements of what an exchange fills, without a barrier of the block before it."""

    @shmem.jit
    def kernel(dst, src):
        i = cuda.threadIdx.x
        dst[2 * i] = -1  # <- 2
        if FIXED:
            cuda.syncthreads()
            shmem.sync_all_block()
        shmem.alltoalls_block(shmem.TEAM_WORLD, dst, src, 2, 1, 16)  # <- 1

    dst, src = shmem.zeros(64, dtype="int32"), shmem.ones(32, dtype="int32")
    kernel[1, 32](dst, src)


def strided_exchange(pes=2):
    """Threads mark elements of an array, one of two of which an exchange is about to write."""

    # A good report: race, the stores at 2 and alltoalls_block; missing: cuda.syncthreads(). The
    # fixed program is right: it stores to the elements in between.
    @shmem.jit
    def kernel(dst, src):
        i = cuda.threadIdx.x
        dst[2 * i + 1 if FIXED else 2 * i] = -1  # <- 2
        shmem.alltoalls_block(shmem.TEAM_WORLD, dst, src, 2, 1, 16)  # <- 1

    dst, src = shmem.zeros(64, dtype="int32"), shmem.ones(32, dtype="int32")
    kernel[1, 32](dst, src)


def wait_then_syncwarp(pes=2):
    """One thread waits for the data, and tells only its own warp."""

    @shmem.jit
    def kernel(dst, src, out, flag):
        i = cuda.threadIdx.x
        shmem.put_signal_block(dst, src, flag, 1, shmem.SIGNAL_ADD, 1 - shmem.my_pe())  # <- 1
        if i == 0:
            shmem.signal_wait_until(flag, shmem.CMP_EQ, 1)
        if FIXED:
            cuda.syncthreads()
        else:
            cuda.syncwarp()
        out[i] = dst[i]  # <- 2

    src, dst, out = (shmem.ones(96, dtype="float32") for _ in range(3))
    kernel[1, 96](dst, src, out, shmem.zeros(1, dtype="uint64"))


def a_block_call_is_no_barrier(pes=2):
    """A call of the whole block does not order what its threads do around it."""

    @shmem.jit
    def kernel(a, out, dst, src):
        i = cuda.threadIdx.x
        a[i] = i  # <- 2
        shmem.put_block(dst, src, 1 - shmem.my_pe())
        if FIXED:
            cuda.syncthreads()
        out[i] = a[63 - i]  # <- 1

    a, out, dst, src = (shmem.zeros(64, dtype="float32") for _ in range(4))
    kernel[1, 64](a, out, dst, src)


def sync_of_the_block(pes=2):
    """A PE gets a column of a matrix whose rows its owner's threads are still writing."""

    # A good report: race, the store at 2 and iget_warp; missing: a barrier. The fixed program is
    # right: sync_all_block is a barrier of the block, too, so all its threads have stored.
    @shmem.jit
    def kernel(matrix, column):
        i = cuda.threadIdx.x
        for k in range(4):
            matrix[4 * i + k] = k  # <- 2
        if FIXED:
            shmem.sync_all_block()
        shmem.iget_warp(column, matrix[1:], 1, 4, 32, 1 - shmem.my_pe())  # <- 1

    kernel[1, 32](shmem.zeros(128, dtype="int32"), shmem.zeros(32, dtype="int32"))


def column_fetched_too_early(pes=2):
    """A PE gets a column of a matrix whose rows its owner's threads are still writing."""

    @shmem.jit
    def kernel(matrix, column):
        i = cuda.threadIdx.x
        for k in range(4):
            matrix[4 * i + k] = k  # <- 2
        cuda.syncthreads()
        if FIXED:
            shmem.sync_all_block()
        shmem.iget_warp(column, matrix[1:], 1, 4, 32, 1 - shmem.my_pe())  # <- 1

    kernel[1, 32](shmem.zeros(128, dtype="int32"), shmem.zeros(32, dtype="int32"))


def own_part_of_a_gather(pes=3):
    """A ring sends its own part on before all threads have copied it to its place."""

    @shmem.jit
    def kernel(parts, own, flags):
        i, me, n = cuda.threadIdx.x, shmem.my_pe(), shmem.n_pes()
        parts[32 * me + i] = own[i]  # <- 2
        if FIXED:
            cuda.syncthreads()
        for step in range(n - 1):
            k = (me + n - step) % n
            part = parts[32 * k : 32 * k + 32]
            right = (me + 1) % n
            shmem.put_signal_block(part, part, flags[k:], 1, shmem.SIGNAL_SET, right)  # <- 1
            if i == 0:
                shmem.signal_wait_until(flags[(me + n - step - 1) % n :], shmem.CMP_EQ, 1)
            cuda.syncthreads()

    parts, own = shmem.zeros(96, dtype="float32"), shmem.ones(32, dtype="float32")
    kernel[1, 32](parts, own, shmem.zeros(3, dtype="uint64"))


def flags_reset_by_a_block(pes=2):
    """Each thread has a flag, set to 1 in each step; the threads do not reset them in between."""
    threads = 4

    @shmem.jit
    def kernel(slots, src, out, flags, acks):
        t = cuda.threadIdx.x
        own, flag, ack = src[t : t + 1], flags[t : t + 1], acks[t : t + 1]
        for step in range(1, 4):
            if shmem.my_pe() == 0:
                shmem.put_signal(slots[step, t : t + 1], own, flag, 1, shmem.SIGNAL_SET, 1)  # <- 1
                shmem.signal_wait_until(ack, shmem.CMP_GE, step if FIXED else 0)
            else:
                shmem.signal_wait_until(flag, shmem.CMP_EQ, 1)
                out[step, t] = slots[step, t]  # <- 2
                if FIXED:
                    flags[t] = 0
                    shmem.quiet()
                    shmem.signal_op(ack, step, shmem.SIGNAL_SET, 0)

    src = shmem.ones(threads, dtype="float32")
    slots = shmem.ones((4, threads), dtype="float32")
    out = shmem.ones((4, threads), dtype="float32")
    flags = shmem.zeros(threads, dtype="uint64")
    acks = shmem.zeros(threads, dtype="uint64")
    kernel[1, threads](slots, src, out, flags, acks)


def product_sent_by_a_thread(pes=2):
    """A thread sends rows of a matrix into which another block of its PE still adds a product."""

    @shmem.jit(collective=True)
    def kernel(c, a, b, there):
        if cuda.blockIdx.x == 1:
            shmem.gemm_block(c, a, b, True)  # <- 1
        if FIXED:
            cuda.cg.this_grid().sync()
        if cuda.grid(1) == 0:
            shmem.put(there, c, 1 - shmem.my_pe())  # <- 2

    c, a, b, there = (shmem.ones((8, 8), dtype="float64") for _ in range(4))
    kernel[2, 32](c, a, b, there)


shmem.init()
globals()[sys.argv[1]]()
shmem.finalize()
