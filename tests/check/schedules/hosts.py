"""Hosts whose own operations on words may come in another order.

Each function is a program: the first argument is its name.
"""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv


def ticket_of_a_host(pes=3):
    """Hosts put their parts and take a ticket; the last one gets all, and PE 2 has not completed
    what it has put."""
    parts, src = shmem.zeros(3, dtype="float32"), shmem.ones(1, dtype="float32")
    copy, tickets = shmem.zeros(3, dtype="float32"), shmem.zeros(1, dtype="int32")
    me = shmem.my_pe()
    shmem.put(parts[me:], src, 0)  # <- 1
    if me < 2 or FIXED:
        shmem.quiet()
    if shmem.atomic_fetch_add(tickets, 1, 0) == 2:
        if me == 2:
            shmem.quiet()
        shmem.get(copy, parts, 0)  # <- 2


def polled_by_a_host(pes=2):
    """A host looks three times whether data have come, and then uses what there is."""
    src, dst = shmem.ones(1, dtype="float32"), shmem.zeros(1, dtype="float32")
    flag = shmem.zeros(1, dtype="uint64")
    if shmem.my_pe() == 1:
        shmem.put_signal(dst, src, flag, 1, shmem.SIGNAL_SET, 0)  # <- 1
    else:
        for _ in range(3):
            if shmem.test(flag, shmem.CMP_EQ, 1):
                break
        else:
            if FIXED:
                shmem.signal_wait_until(flag, shmem.CMP_EQ, 1)
        src.copy_from(dst.numpy())  # <- 2


def kernel_chosen_by_a_host(pes=2):
    """A host launches the kernel that waits unless it has seen a signal that comes earlier than
    the data."""

    @shmem.jit
    def wait_and_add(dst, out, flag):
        shmem.signal_wait_until(flag, shmem.CMP_GE, 2)
        out[0] += dst[0]

    @shmem.jit
    def add(dst, out):
        out[0] += dst[0]  # <- 2

    src, dst, out = (shmem.ones(1, dtype="float32") for _ in range(3))
    flag = shmem.zeros(1, dtype="uint64")
    if shmem.my_pe() == 1:
        shmem.signal_op(flag, 1, shmem.SIGNAL_SET, 0)
        shmem.fence()
        shmem.put_signal(dst, src, flag, 2, shmem.SIGNAL_SET, 0)  # <- 1
    elif shmem.signal_fetch(flag) >= (2 if FIXED else 1):
        add[1, 1](dst, out)
    else:
        wait_and_add[1, 1](dst, out, flag)


def work_given_out_once_too_often(pes=2):
    """Hosts take work as long as there is some: how much there is is read and then counted
    down."""
    left, done = shmem.full(1, 1, dtype="int32"), shmem.zeros(1, dtype="int32")
    if FIXED:
        mine = shmem.atomic_fetch_add(left, -1, 0) > 0
    else:
        mine = shmem.atomic_fetch(left, 0) > 0
        shmem.atomic_add(left, -1, 0)  # <- fails
    if mine:
        shmem.atomic_inc(done, 0)
    shmem.barrier_all()
    if shmem.my_pe() == 0 and done.numpy()[0] != 1:
        raise RuntimeError("the same has been done twice")


def host_and_its_kernel(pes=1):
    """A host and the kernel that it has launched each count in a word; the kernel stores what the
    host reads if it is the second, after it has counted itself."""

    @shmem.jit
    def kernel(data, come):
        if FIXED:
            data[0] = 1
            shmem.quiet()
        first = shmem.atomic_fetch_inc(come, 0) == 0
        if first and not FIXED:
            data[0] = 1  # <- 1

    data, out, come = (shmem.zeros(1, dtype="int32") for _ in range(3))
    kernel[1, 1](data, come)
    if shmem.atomic_fetch_inc(come, 0) == 1:
        shmem.get(out, data, 0)  # <- 2


shmem.init()
globals()[sys.argv[1]]()
shmem.finalize()
