"""Calls of hosts, among themselves and with kernels.

Each function is a program: the first argument is its name.
"""

import sys

import numpy as np
from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv


def copy_from_and_a_put(pes=2):
    """The host fills an array, to which its neighbour may have put something."""
    src, dst = shmem.ones(8, dtype="int32"), shmem.empty(8, dtype="int32")
    dst.copy_from(0)  # <- 2
    if FIXED:
        shmem.sync_all()
    shmem.put(dst, src, 1 - shmem.my_pe())  # <- 1


def counter_reset_by_the_host(pes=3):
    """Hosts set their counters to 0 for the next step, when other PEs may have begun it."""

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

    data, out = shmem.zeros(4, "int64"), shmem.zeros(4, "int64")
    count = shmem.zeros(1, "int64")
    for step in range(3):
        kernel[1, 1](data, out, count, step)
        shmem.barrier_all()
        count.copy_from(np.zeros(1, "int64"))  # <- 2
        if FIXED:
            shmem.barrier_all()


def host_counts_for_a_kernel(pes=2):
    """Hosts add to a counter that a kernel of its PE reads with a plain load."""

    @shmem.jit
    def show(counter, out):
        out[0] = counter[0]  # <- 2

    counter, out = shmem.zeros(1, dtype="int64"), shmem.zeros(1, dtype="int64")
    shmem.atomic_add(counter, 5, 1 - shmem.my_pe())  # <- 1
    shmem.quiet()
    if FIXED:
        shmem.sync_all()
    show[1, 1](counter, out)


def host_fetches_too_early(pes=3):
    """A host gets an array that its neighbour's host is still filling."""
    me, n = shmem.my_pe(), shmem.n_pes()
    a, b = shmem.zeros(8, dtype="float32"), shmem.zeros(8, dtype="float32")
    a.copy_from(me)  # <- 2
    if FIXED:
        shmem.sync_all()
    shmem.get(b, a, (me + 1) % n)  # <- 1


def host_gather_of_puts(pes=2):
    """Hosts gather what they have put to each other, without having met."""
    # A good report: race, put at 1 and fcollect at 2; missing: PE 0 has to tell PE 1.
    me = shmem.my_pe()
    part, src, parts = (shmem.ones(k, dtype="float32") for k in (4, 4, 8))
    shmem.put(part, src, 1 - me)  # <- 1
    if FIXED:
        shmem.barrier_all()
    shmem.fcollect(shmem.TEAM_WORLD, parts, part)  # <- 2


def host_gets_what_a_kernel_writes(pes=2):
    """A host gets an array of its neighbour, whose kernel may still be writing it."""

    @shmem.jit
    def compute(a):
        a[cuda.threadIdx.x] = cuda.threadIdx.x  # <- 2

    a, b = shmem.zeros(32, dtype="float32"), shmem.zeros(32, dtype="float32")
    compute[1, 32](a)
    if FIXED:
        shmem.sync_all()
    shmem.get(b, a, 1 - shmem.my_pe())  # <- 1


def host_number_for_a_kernel(pes=2):
    """A host puts a number to its neighbour, whose kernel reads it, and only then a barrier
    follows."""

    @shmem.jit
    def scale(a, factor):
        a[cuda.threadIdx.x] *= factor[0]  # <- 2

    a, factor = shmem.ones(32, dtype="float64"), shmem.ones(1, dtype="float64")
    shmem.p(factor, 3.0, 1 - shmem.my_pe())  # <- 1
    if FIXED:
        shmem.barrier_all()
    scale[1, 32](a, factor)
    shmem.barrier_all()


def host_polls_once(pes=2):
    """A host tests a flag once before it asks for data, and then reads them in any case."""
    src, dst = shmem.ones(8, dtype="int32"), shmem.zeros(8, dtype="int32")
    flag, asked = shmem.zeros(1, dtype="uint64"), shmem.zeros(1, dtype="uint64")
    if shmem.my_pe() == 0:
        there = shmem.test(flag, shmem.CMP_EQ, 1)
        shmem.signal_op(asked, 1, shmem.SIGNAL_SET, 1)
        if FIXED and not there:
            shmem.signal_wait_until(flag, shmem.CMP_EQ, 1)
        dst.numpy()  # <- 2
    else:
        shmem.signal_wait_until(asked, shmem.CMP_EQ, 1)
        shmem.put_signal(dst, src, flag, 1, shmem.SIGNAL_SET, 0)  # <- 1


def host_signals_for_a_kernel(pes=2):
    """A host calls quiet and signals, while its kernel may still be putting."""

    @shmem.jit
    def send(dst, src, other):
        shmem.put_block(dst, src, other)  # <- 1

    @shmem.jit
    def use(dst, out, flag):
        shmem.signal_wait_until(flag, shmem.CMP_EQ, 1)
        out[0] = dst[0]  # <- 2

    src, dst = shmem.ones(32, dtype="int32"), shmem.zeros(32, dtype="int32")
    out, flag = shmem.zeros(1, dtype="int32"), shmem.zeros(1, dtype="uint64")
    if shmem.my_pe() == 0:
        send[1, 32](dst, src, 1)
        if FIXED:
            shmem.synchronize()
        shmem.quiet()
        shmem.signal_op(flag, 1, shmem.SIGNAL_SET, 1)
    else:
        use[1, 1](dst, out, flag)


def host_signals_without_fence(pes=2):
    """A host puts data and then a signal, for which a kernel of the neighbour waits."""

    @shmem.jit
    def use(dst, out, flag):
        shmem.signal_wait_until(flag, shmem.CMP_EQ, 1)
        out[0] = dst[0]  # <- 2

    src, dst = shmem.ones(8, dtype="int32"), shmem.zeros(8, dtype="int32")
    out, flag = shmem.zeros(1, dtype="int32"), shmem.zeros(1, dtype="uint64")
    use[1, 1](dst, out, flag)
    other = 1 - shmem.my_pe()
    shmem.put(dst, src, other)  # <- 1
    if FIXED:
        shmem.fence()
    shmem.signal_op(flag, 1, shmem.SIGNAL_SET, other)


def host_sync_is_no_barrier(pes=2):
    """Hosts put and call sync_all, which completes nothing."""
    src, dst = shmem.ones(8, dtype="int32"), shmem.zeros(8, dtype="int32")
    shmem.iput(dst, src, 2, 1, 4, 1 - shmem.my_pe())  # <- 1
    if FIXED:
        shmem.quiet()
    shmem.sync_all()
    src.copy_from(dst.numpy())  # <- 2


shmem.init()
globals()[sys.argv[1]]()
shmem.finalize()
