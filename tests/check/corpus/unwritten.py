"""Memory that nobody has written, or nobody has allocated.

Each function is a program: the first argument is its name.
"""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv


def allocated_again(pes=2):
    """What an array was left with when it was freed is not in the next one."""

    @shmem.jit
    def kernel(counts, src):
        for k in range(src.size):
            counts[0] += src[k]

    @shmem.jit
    def sum_of(counts, out):
        for k in range(counts.size):
            out[0] += counts[k]  # <- 1

    src, out = shmem.ones(8, dtype="int64"), shmem.zeros(1, dtype="int64")
    counts = shmem.zeros(4, dtype="int64")
    kernel[1, 1](counts, src)
    shmem.free(counts)
    counts = (shmem.zeros if FIXED else shmem.empty)(4, dtype="int64")
    sum_of[1, 1](counts, out)


def halo_nobody_fills(pes=2):
    """The outermost cell of a line is read, and no neighbour fills it."""
    size = 32

    @shmem.jit
    def fill(line):
        i = cuda.threadIdx.x
        me = shmem.my_pe()
        line[i + 1] = i
        if FIXED and me == 0 and i == 0:
            line[0] = 0
        cuda.syncthreads()
        if me + 1 < shmem.n_pes():
            shmem.put_block(line[:1], line[size:], me + 1)

    @shmem.jit
    def smooth(line, out):
        i = cuda.threadIdx.x
        out[i] = line[i] + line[i + 1]  # <- 1

    line, out = shmem.empty(size + 1, dtype="float32"), shmem.zeros(size, dtype="float32")
    fill[1, size](line)
    shmem.barrier_all()
    smooth[1, size](line, out)


def last_bin_of_a_histogram(pes=1):
    """The threads that clear a histogram in shared memory are one too few."""
    n = 33

    @shmem.jit
    def kernel(out, src):
        i = cuda.threadIdx.x
        bins = cuda.shared.array(n, "int32")
        for k in range(i, n if FIXED else 32, cuda.blockDim.x):
            bins[k] = 0
        cuda.syncthreads()
        cuda.atomic.add(bins, src[cuda.grid(1)], 1)
        cuda.syncthreads()
        for k in range(i, n, cuda.blockDim.x):
            cuda.atomic.add(out, k, bins[k])  # <- 1

    src = shmem.array([k % 32 for k in range(64)], dtype="int32")
    kernel[2, 32](shmem.zeros(n, dtype="int32"), src)


def never_written(pes=2):
    """A sum is added up in memory that was allocated without zeros."""

    @shmem.jit
    def kernel(total, src):
        for k in range(src.size):
            total[0] += src[k]  # <- 1

    src = shmem.ones(8, dtype="float32")
    make = shmem.zeros if FIXED else shmem.empty
    total = make(1, dtype="float32")
    kernel[1, 1](total, src)


def one_element_too_many(pes=1):
    """A loop writes one element more than the array has."""

    @shmem.jit
    def kernel(row, n):
        for k in range(n):
            row[k] = k  # <- 1 <- 2

    row, _next_row = shmem.zeros(32, dtype="float64"), shmem.zeros(32, dtype="float64")
    kernel[1, 1](row, 32 if FIXED else 33)


def signal_made_with_empty(pes=2):
    """A signal is waited for in memory that nobody has set to zero."""

    @shmem.jit
    def kernel(dst, src, signal):
        if shmem.my_pe() == 0:
            shmem.put_signal(dst, src, signal, 1, shmem.SIGNAL_SET, 1)
        else:
            shmem.signal_wait_until(signal, shmem.CMP_NE, 0)  # <- 1
            src[0] = dst[0]

    src, dst = shmem.ones(1, dtype="float32"), shmem.zeros(1, dtype="float32")
    make = shmem.zeros if FIXED else shmem.empty
    signal = make(1, dtype="uint64")
    kernel[1, 1](dst, src, signal)


def sum_of_blocks_from_nothing(pes=1):
    """Blocks add to a sum that none of them has set to zero."""

    @shmem.jit
    def clear(total):
        cuda.atomic.exch(total, 0, 0)

    @shmem.jit
    def kernel(total, src):
        cuda.atomic.add(total, 0, src[cuda.grid(1)])  # <- 1

    src, total = shmem.ones(64, dtype="int32"), shmem.empty(1, dtype="int32")
    if FIXED:
        clear[1, 1](total)
    kernel[4, 16](total, src)


def tickets_from_nowhere(pes=3):
    """PEs draw numbers from a counter that nobody has set to zero."""

    @shmem.jit
    def kernel(slots, counter):
        mine = shmem.atomic_fetch_inc(counter, 0)  # <- 1
        shmem.p(slots[mine % 3 :], shmem.my_pe(), 0)

    slots, counter = shmem.zeros(3, dtype="int64"), shmem.empty(1, dtype="int64")
    if FIXED:
        counter.copy_from(0)
        shmem.barrier_all()
    kernel[1, 1](slots, counter)
    shmem.barrier_all()


shmem.init()
globals()[sys.argv[1]]()
shmem.finalize()
