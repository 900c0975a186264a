"""Blocks of a grid, which only meet within themselves.

Each function is a program: the first argument is its name.
"""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv


def bins_of_two_blocks(pes=1):
    """Blocks count in one histogram, with plain additions."""

    @shmem.jit
    def kernel(bins, values):
        i = cuda.grid(1)
        k = values[i]
        if FIXED:
            cuda.atomic.add(bins, k, 1)
        else:
            bins[k] += 1  # <- 1 <- 2

    values = shmem.array([k % 4 for k in range(64)], dtype="int64")
    kernel[2, 32](shmem.zeros(4, dtype="int32"), values)


def histogram(pes=1):
    """Blocks count in one histogram, with plain additions."""

    # A good report: race, the two additions. The fixed program is right: its additions are atomic.
    @shmem.jit
    def kernel(bins, values):
        i = cuda.grid(1)
        k = values[i]
        if FIXED:
            cuda.atomic.add(bins, k, 1)
        else:
            bins[k] += 1  # <- 1 <- 2

    values = shmem.array([k // 3 % 4 for k in range(64)], dtype="int64")
    kernel[2, 32](shmem.zeros(4, dtype="int32"), values)


def block_that_does_not_wait(pes=2):
    """The first block waits for the data of all blocks."""

    @shmem.jit
    def kernel(dst, src, out, flag):
        i, b = cuda.threadIdx.x, cuda.blockIdx.x
        if b == 0:
            shmem.put_signal_block(dst, src, flag, 1, shmem.SIGNAL_SET, 1 - shmem.my_pe())  # <- 1
        if i == 0 and (b == 0 or FIXED):
            shmem.signal_wait_until(flag, shmem.CMP_EQ, 1)
        cuda.syncthreads()
        out[32 * b + i] = dst[32 * b + i]  # <- 2

    src, dst, out = (shmem.ones(64, dtype="float32") for _ in range(3))
    kernel[2, 32](dst, src, out, shmem.zeros(1, dtype="uint64"))


def blocks_of_a_grid(pes=1):
    """A block reads what another one writes."""

    @shmem.jit(collective=True)
    def kernel(a, out):
        b = cuda.blockIdx.x
        if cuda.threadIdx.x == 0:
            a[b] = b + 1  # <- 2
        if FIXED:
            cuda.cg.this_grid().sync()
        if cuda.threadIdx.x == 0:
            out[b] = a[1 - b]  # <- 1

    kernel[2, 32](shmem.zeros(2, dtype="int32"), shmem.zeros(2, dtype="int32"))


def blocks_write_the_same(pes=1):
    """Two blocks write one element."""

    @shmem.jit
    def kernel(out):
        b = cuda.blockIdx.x
        if cuda.threadIdx.x == 0:
            out[b if FIXED else 0] = b  # <- 1 <- 2

    kernel[2, 32](shmem.zeros(2, dtype="int32"))


def epoch_of_all_blocks(pes=1):
    """A block advances the epoch, when others may not have looked which of two buffers is
    theirs."""

    @shmem.jit(collective=True)
    def kernel(epoch, buffers):
        i, b = cuda.threadIdx.x, cuda.blockIdx.x
        half = epoch[0] % 2  # <- 2
        buffers[64 * half + 32 * b + i] = i
        if FIXED:
            cuda.cg.this_grid().sync()
        else:
            cuda.syncthreads()
        if b == 0 and i == 0:
            epoch[0] += 1  # <- 1

    kernel[2, 32](shmem.zeros(1, dtype="int64"), shmem.zeros(128, dtype="float32"))


def last_block_sums(pes=1):
    """The last block to arrive sums what all have written, which they have not fenced."""
    blocks = 3

    @shmem.jit(collective=True)
    def kernel(parts, count, total):
        if cuda.threadIdx.x == 0:
            parts[cuda.blockIdx.x] = 1.0  # <- 1
            if FIXED:
                cuda.threadfence()
            if cuda.atomic.add(count, 0, 1) == blocks - 1:
                cuda.threadfence()
                for b in range(blocks):
                    total[0] += parts[b]  # <- 2

    count = shmem.zeros(1, dtype="int32")
    kernel[blocks, 32](shmem.zeros(blocks, dtype="float32"), count, shmem.zeros(1, dtype="float32"))


def not_the_last_block(pes=1):
    """A block sums what others have written when half of them have arrived."""
    blocks = 4

    @shmem.jit(collective=True)
    def kernel(parts, count, total):
        if cuda.threadIdx.x == 0:
            parts[cuda.blockIdx.x] = 1.0 + cuda.blockIdx.x  # <- 1
            cuda.threadfence()
            if cuda.atomic.add(count, 0, 1) == (blocks - 1 if FIXED else blocks // 2):
                cuda.threadfence()
                for b in range(blocks):
                    total[0] += parts[b]  # <- 2

    count = shmem.zeros(1, dtype="int32")
    kernel[blocks, 32](shmem.zeros(blocks, dtype="float32"), count, shmem.zeros(1, dtype="float32"))


def lock_given_back_unfenced(pes=1):
    """Blocks add to a number, one at a time by a lock, and give it back without a fence."""

    @shmem.jit(collective=True)
    def kernel(lock, total):
        if cuda.threadIdx.x == 0:
            while cuda.atomic.cas(lock, 0, 0, 1) != 0:
                pass
            cuda.threadfence()
            total[0] += 1.0  # <- 1 # <- 2
            if FIXED:
                cuda.threadfence()
            cuda.atomic.exch(lock, 0, 0)

    kernel[3, 32](shmem.zeros(1, dtype="int32"), shmem.zeros(1, dtype="float32"))


def lock_taken_unfenced(pes=1):
    """Blocks add to a number, one at a time by a lock, each may still see an old one."""

    @shmem.jit(collective=True)
    def kernel(lock, total):
        if cuda.threadIdx.x == 0:
            while cuda.atomic.cas(lock, 0, 0, 1) != 0:
                pass
            if FIXED:
                cuda.threadfence()
            total[0] += 1.0  # <- 1 # <- 2
            cuda.threadfence()
            cuda.atomic.exch(lock, 0, 0)

    kernel[3, 32](shmem.zeros(1, dtype="int32"), shmem.zeros(1, dtype="float32"))


def lock_of_another_name(pes=1):
    """Two blocks add to a number, each under a lock of its own."""

    @shmem.jit(collective=True)
    def kernel(locks, total):
        k = 0 if FIXED else cuda.blockIdx.x
        if cuda.threadIdx.x == 0:
            while cuda.atomic.cas(locks, k, 0, 1) != 0:
                pass
            cuda.threadfence()
            total[0] += 1.0  # <- 1 # <- 2
            cuda.threadfence()
            cuda.atomic.exch(locks, k, 0)

    kernel[2, 32](shmem.zeros(2, dtype="int32"), shmem.zeros(1, dtype="float32"))


def one_block_signals_for_all(pes=2):
    """Every block sends its page, and the first one signals when its own is sent."""

    @shmem.jit(collective=True)
    def kernel(pages, src, out, flag):
        i, b, other = cuda.threadIdx.x, cuda.blockIdx.x, 1 - shmem.my_pe()
        page = slice(32 * b, 32 * b + 32)
        shmem.put_block(pages[page], src[page], other)  # <- 1
        if FIXED:
            cuda.cg.this_grid().sync()
        if b == 0 and i == 0:
            shmem.fence()
            shmem.signal_op(flag, 1, shmem.SIGNAL_SET, other)
        if i == 0:
            shmem.signal_wait_until(flag, shmem.CMP_EQ, 1)
        cuda.syncthreads()
        out[32 * b + i] = pages[32 * b + i]  # <- 2

    pages, src, out = (shmem.ones(64, dtype="float32") for _ in range(3))
    kernel[2, 32](pages, src, out, shmem.zeros(1, dtype="uint64"))


def stencil_of_two_blocks(pes=1):
    """A step of a stencil reads across the border of blocks, which only meet within themselves."""

    @shmem.jit(collective=True)
    def kernel(old, new, last):
        i = cuda.grid(1)
        new[i + 1] = old[i] + old[i + 2]  # <- 2
        if FIXED:
            cuda.cg.this_grid().sync()
        else:
            cuda.syncthreads()
        last[i + 1] = new[i] + new[i + 2]  # <- 1

    old, new, last = (shmem.ones(66, dtype="float32") for _ in range(3))
    kernel[2, 32](old, new, last)


def sum_seen_by_another_block(pes=2):
    """One block of a grid takes part in a reduction, another one reads its result."""

    @shmem.jit(collective=True)
    def kernel(dst, src, out):
        b = cuda.blockIdx.x
        if b == 0:
            shmem.reduce_block(shmem.TEAM_WORLD, dst, src, "sum")  # <- 1
        if FIXED:
            cuda.cg.this_grid().sync()
        out[32 * b + cuda.threadIdx.x] = dst[cuda.threadIdx.x]  # <- 2

    src, dst = shmem.ones(32, dtype="float32"), shmem.zeros(32, dtype="float32")
    kernel[2, 32](dst, src, shmem.zeros(64, dtype="float32"))


def the_last_block_adds(pes=1):
    """Blocks store partial sums and count themselves; the last one adds them."""

    # A good report: race, blocks of a grid; missing: cuda.threadfence() before the counter. The
    # fixed program is right: the last block comes after the fences of the others.
    @shmem.jit
    def kernel(sums, out, count):
        if cuda.threadIdx.x == 0:
            sums[cuda.blockIdx.x] = 1  # <- 1
            if FIXED:
                cuda.threadfence()
            if cuda.atomic.add(count, 0, 1) == cuda.gridDim.x - 1:
                cuda.threadfence()
                for k in range(cuda.gridDim.x):
                    out[0] += sums[k]  # <- 2

    kernel[3, 32](
        shmem.zeros(3, dtype="float32"),
        shmem.zeros(1, dtype="float32"),
        shmem.zeros(1, dtype="int32"),
    )


def total_before_all_have_added(pes=1):
    """Blocks add to a total atomically, and the first of them reads it."""

    @shmem.jit(collective=True)
    def kernel(total, out):
        if cuda.threadIdx.x == 0:
            cuda.atomic.add(total, 0, 1)  # <- 1
        if FIXED:
            cuda.cg.this_grid().sync()
        if cuda.grid(1) == 0:
            out[0] = total[0]  # <- 2

    kernel[3, 32](shmem.zeros(1, dtype="int32"), shmem.zeros(1, dtype="int32"))


def two_blocks_one_slot(pes=2):
    """Two blocks of a PE send to one slot of another PE."""

    @shmem.jit
    def kernel(slots, src):
        b = cuda.blockIdx.x
        slot = 16 * b if FIXED else 0
        shmem.put_block(slots[slot:], src[16 * b : 16 * b + 16], 1 - shmem.my_pe())  # <- 1 <- 2

    kernel[2, 32](shmem.zeros(32, dtype="float32"), shmem.ones(32, dtype="float32"))


def two_teams_one_result(pes=4):
    """Two blocks reduce along rows and columns, to one array."""

    @shmem.jit
    def kernel(dst, src, row, column):
        team = row if cuda.blockIdx.x == 0 else column
        at = 4 * cuda.blockIdx.x if FIXED else 0
        shmem.reduce(team, dst[at : at + 4], src, "sum")  # <- 1 <- 2

    dst, src = shmem.zeros(8, dtype="int64"), shmem.ones(4, dtype="int64")
    kernel[2, 1](dst, src, *shmem.team_split_2d(shmem.TEAM_WORLD, 2))


def waits_for_another_block(pes=2):
    """A block waits for another of its launch, which may have no room until this one has ended."""

    @shmem.jit(collective=FIXED)
    def kernel(dst, src, flag):
        me = shmem.my_pe()
        if cuda.blockIdx.x == 1:
            shmem.put_signal(dst, src, flag, 1, shmem.SIGNAL_SET, me)  # <- 1
        else:
            shmem.signal_wait_until(flag, shmem.CMP_EQ, 1)  # <- 2
            src[0] = dst[0]

    src, dst = shmem.ones(4, dtype="float32"), shmem.zeros(4, dtype="float32")
    kernel[2, 1](dst, src, shmem.zeros(1, dtype="uint64"))


def barrier_made_of_a_counter(pes=1):
    """Blocks wait until all have come; the last may have no room until the first have ended."""

    @shmem.jit(collective=FIXED)
    def kernel(parts, sums, count):
        b, n = cuda.blockIdx.x, cuda.gridDim.x
        parts[b] = b
        cuda.threadfence()
        cuda.atomic.add(count, 0, 1)  # <- 1
        while cuda.atomic.add(count, 0, 0) < n:  # <- 2
            pass
        cuda.threadfence()
        sums[b] = parts[b] + parts[(b + 1) % n]

    kernel[3, 1](*(shmem.zeros(3, dtype="int32") for _ in range(3)))


def neighbours_in_a_grid(pes=1):
    """Threads read their neighbours' elements of this step, which may have those of the next
    one."""

    @shmem.jit(collective=True)
    def kernel(a, out, steps):
        i = cuda.grid(1)
        for step in range(steps):
            a[i] = step  # <- 1
            cuda.cg.this_grid().sync()
            out[i] += a[(i + 1) % a.size]  # <- 2
            if FIXED:
                cuda.cg.this_grid().sync()

    kernel[4, 75](shmem.zeros(300, dtype="int32"), shmem.zeros(300, dtype="int32"), 3)


shmem.init()
globals()[sys.argv[1]]()
shmem.finalize()
