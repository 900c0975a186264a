"""What is used, sent on or overwritten before it is complete.

Each function is a program: the first argument is its name.
"""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv


def fence_before_get(pes=2):
    """A PE puts data and gets them back: a fence orders puts, not gets."""

    # A good report: ordering, what put_warp writes may arrive after it is read; missing: quiet(),
    # as fence orders no gets.
    @shmem.jit
    def kernel(there, src, back):
        other = 1 - shmem.my_pe()
        shmem.put_warp(there, src, other)  # <- 1
        if FIXED:
            shmem.quiet()
        else:
            shmem.fence()
        shmem.get_warp(back, there, other)  # <- 2

    there, src, back = (shmem.ones(32, dtype="float64") for _ in range(3))
    kernel[1, 32](there, src, back)


def put_then_get(pes=2):
    """A PE gets back what it has put, which need not have arrived."""

    @shmem.jit
    def kernel(there, src, back):
        other = 1 - shmem.my_pe()
        shmem.put_warp(there, src, other)  # <- 1
        if FIXED:
            shmem.quiet()
        shmem.get_warp(back, there, other)  # <- 2

    there, src, back = (shmem.ones(32, dtype="float64") for _ in range(3))
    kernel[1, 32](there, src, back)


def quiet_before_the_last_put(pes=2):
    """A PE calls quiet, puts once more, and meets the others by sync."""

    @shmem.jit
    def kernel(dst, src, out):
        other = 1 - shmem.my_pe()
        shmem.put(dst[:4], src, other)
        shmem.quiet()
        shmem.put_nbi(dst[4:], src, other)  # <- 1
        if FIXED:
            shmem.quiet()
        shmem.sync_all()
        out[0] = dst[0]
        out[1] = dst[7]  # <- 2

    src, dst, out = (shmem.ones(k, dtype="float32") for k in (4, 8, 2))
    kernel[1, 1](dst, src, out)


def flush_for_a_get(pes=2):
    """A reader calls flush after get_nbi, and tells the owner of the source to go on."""

    # A good report: ordering, get_nbi may read after the store at 1; missing: quiet() before
    # signal_op, as flush is for the sources of puts.
    @shmem.jit
    def kernel(a, copy, ready, done):
        if shmem.my_pe() == 0:
            shmem.signal_op(ready, 1, shmem.SIGNAL_SET, 1)
            shmem.signal_wait_until(done, shmem.CMP_EQ, 1)
            a[0] = 2  # <- 1
        else:
            shmem.signal_wait_until(ready, shmem.CMP_EQ, 1)
            shmem.get_nbi(copy, a, 0)  # <- 2
            if FIXED:
                shmem.quiet()
            else:
                shmem.flush()
            shmem.signal_op(done, 1, shmem.SIGNAL_SET, 0)
            shmem.quiet()

    a, copy = shmem.zeros(1, dtype="float32"), shmem.zeros(1, dtype="float32")
    kernel[1, 1](a, copy, shmem.zeros(1, dtype="uint64"), shmem.zeros(1, dtype="uint64"))


def flush_by_one_thread(pes=2):
    """Every thread has sent something, but only thread 0 makes sure that its source was read."""

    @shmem.jit
    def kernel(dst, src):
        i = cuda.threadIdx.x
        shmem.put_nbi(dst[i : i + 1], src[i : i + 1], 1 - shmem.my_pe())  # <- 1
        if FIXED or i == 0:
            shmem.flush()
        src[i] = 0  # <- 2

    kernel[1, 32](shmem.zeros(32, dtype="float32"), shmem.ones(32, dtype="float32"))


def fetched_and_passed_on(pes=3):
    """What get_nbi fetches is put to the next PE before it has arrived."""

    @shmem.jit
    def kernel(here, box, src):
        me, n = shmem.my_pe(), shmem.n_pes()
        shmem.get_nbi_block(here, src, (me + n - 1) % n)  # <- 1
        if FIXED:
            shmem.quiet()
        shmem.put_block(box, here, (me + 1) % n)  # <- 2

    src, here, box = (shmem.ones(64, dtype="float32") for _ in range(3))
    kernel[1, 32](here, box, src)


def fetched_by_a_warp(pes=2):
    """What get_nbi_warp fetches is used at once."""

    # A good report for the bug: ordering; missing: quiet(). The fixed program is right: get_warp is
    # complete for all lanes when it returns.
    @shmem.jit
    def kernel(dst, src, out):
        i = cuda.threadIdx.x
        if FIXED:
            shmem.get_warp(dst, src, 1 - shmem.my_pe())
        else:
            shmem.get_nbi_warp(dst, src, 1 - shmem.my_pe())  # <- 1
        out[i] = dst[31 - i]  # <- 2

    src, dst, out = (shmem.ones(32, dtype="float32") for _ in range(3))
    kernel[1, 32](dst, src, out)


def quiet_by_one_thread_for_gets(pes=2):
    """Each thread fetches its part, and one thread calls quiet without having met the others."""

    @shmem.jit
    def kernel(dst, src, out):
        i = cuda.threadIdx.x
        shmem.get_nbi(dst[4 * i : 4 * i + 4], src[4 * i : 4 * i + 4], 1 - shmem.my_pe())  # <- 1
        if FIXED:
            cuda.syncthreads()
        if i == 0:
            shmem.quiet()
        cuda.syncthreads()
        out[i] = dst[255 - i]  # <- 2

    src, dst = shmem.ones(256, dtype="float32"), shmem.zeros(256, dtype="float32")
    kernel[1, 64](dst, src, shmem.zeros(64, dtype="float32"))


def new_values_before_the_old_were_fetched(pes=2):
    """A server counts a request as done when its answer is fetched, not when it has arrived."""

    @shmem.jit
    def kernel(a, copy, ready, done):
        if shmem.my_pe() == 0:
            for step in range(1, 3):
                a[0] = step  # <- 2
                shmem.quiet()
                shmem.signal_op(ready, step, shmem.SIGNAL_SET, 1)
                shmem.signal_wait_until(done, shmem.CMP_GE, step)
        else:
            for step in range(1, 3):
                shmem.signal_wait_until(ready, shmem.CMP_GE, step)
                shmem.get_nbi(copy[step : step + 1], a, 0)  # <- 1
                if FIXED:
                    shmem.quiet()
                shmem.signal_op(done, step, shmem.SIGNAL_SET, 0)
            shmem.quiet()

    a, copy = shmem.zeros(1, dtype="float32"), shmem.zeros(3, dtype="float32")
    kernel[1, 1](a, copy, shmem.zeros(1, dtype="uint64"), shmem.zeros(1, dtype="uint64"))


def fence_for_a_get(pes=2):
    """A fence between get_nbi and the signal that lets the owner change what is fetched."""

    # fence orders no gets: OpenSHMEM 1.5, "shmem_fence": Put, AMO, and memory store routines.
    @shmem.jit
    def kernel(a, copy, done):
        if shmem.my_pe() == 0:
            shmem.signal_wait_until(done, shmem.CMP_GE, 1)
            a[0] = 2  # <- 2
        else:
            shmem.get_nbi(copy, a, 0)  # <- 1
            if FIXED:
                shmem.quiet()
            else:
                shmem.fence()
            shmem.signal_op(done, 1, shmem.SIGNAL_SET, 0)
            shmem.quiet()

    a, copy = shmem.zeros(1, dtype="float32"), shmem.zeros(1, dtype="float32")
    kernel[1, 1](a, copy, shmem.zeros(1, dtype="uint64"))


def source_of_put_signal_nbi(pes=2):
    """The source of put_signal_nbi is filled again while it is being sent."""

    @shmem.jit
    def kernel(dst, src, flag):
        i, other = cuda.threadIdx.x, 1 - shmem.my_pe()
        for step in range(1, 3):
            src[i] = step  # <- 2
            cuda.syncthreads()
            part = dst[32 * step : 32 * step + 32]
            shmem.put_signal_nbi_block(part, src, flag, step, shmem.SIGNAL_SET, other)  # <- 1
            if FIXED:
                shmem.flush_block()

    src, dst = shmem.zeros(32, dtype="int32"), shmem.zeros(96, dtype="int32")
    kernel[1, 32](dst, src, shmem.zeros(1, dtype="uint64"))


def own_stores_and_signal(pes=2):
    """A PE stores to its own memory and tells its neighbour, which gets it, without quiet."""

    @shmem.jit
    def kernel(a, out, flag):
        i, other = cuda.threadIdx.x, 1 - shmem.my_pe()
        a[i] = i  # <- 2
        if FIXED:
            cuda.syncthreads()
        if i == 0:
            shmem.quiet()
            shmem.signal_op(flag, 1, shmem.SIGNAL_SET, other)
            shmem.signal_wait_until(flag, shmem.CMP_EQ, 1)
        cuda.syncthreads()
        shmem.get_block(out, a, other)  # <- 1

    a, out = shmem.zeros(64, dtype="float32"), shmem.zeros(64, dtype="float32")
    kernel[1, 64](a, out, shmem.zeros(1, dtype="uint64"))


def own_stores_without_quiet(pes=2):
    """A PE stores to its own memory and signals its neighbour, which gets it: the store may be
    late."""

    # A good report: ordering, the store at 1 may be seen after the signal; missing: quiet() before
    # signal_op.
    @shmem.jit
    def kernel(a, out, flag):
        other = 1 - shmem.my_pe()
        a[0] = 7  # <- 1
        if FIXED:
            shmem.quiet()
        shmem.signal_op(flag, 1, shmem.SIGNAL_SET, other)
        shmem.signal_wait_until(flag, shmem.CMP_EQ, 1)
        shmem.get(out, a, other)  # <- 2

    a, out = shmem.zeros(1, dtype="float32"), shmem.zeros(1, dtype="float32")
    kernel[1, 1](a, out, shmem.zeros(1, dtype="uint64"))


def peer_stores_then_sync(pes=2):
    """Stores to a peer's memory are complete after quiet, not after sync."""

    @shmem.jit
    def kernel(dst, out):
        i = cuda.threadIdx.x
        there = shmem.peer_array(dst, 1 - shmem.my_pe())
        there[i] = 2 * i  # <- 1
        if FIXED:
            shmem.quiet()
        cuda.syncthreads()
        if i == 0:
            shmem.sync_all()
        cuda.syncthreads()
        out[i] = dst[i]  # <- 2

    kernel[1, 64](shmem.zeros(64, dtype="int32"), shmem.zeros(64, dtype="int32"))


def sync_of_a_team(pes=4):
    """The PEs of a team call sync for data that they have put without quiet."""

    @shmem.jit
    def kernel(dst, src, out, team):
        me, n = shmem.team_my_pe(team), shmem.team_n_pes(team)
        right = shmem.team_translate_pe(team, (me + 1) % n, shmem.TEAM_WORLD)
        shmem.iput(dst, src, 1, 2, 4, right)  # <- 1
        if FIXED:
            shmem.quiet()
        shmem.sync(team)
        out[0] = dst[3]  # <- 2

    src, dst = shmem.ones(8, dtype="float32"), shmem.zeros(4, dtype="float32")
    _, team = shmem.team_split_2d(shmem.TEAM_WORLD, 2)
    kernel[1, 1](dst, src, shmem.zeros(1, dtype="float32"), team)


def sync_of_the_block_after_a_put(pes=2):
    """The whole block puts and calls sync, which completes nothing."""

    @shmem.jit
    def kernel(dst, src, out):
        i = cuda.threadIdx.x
        shmem.put_nbi_block(dst, src, 1 - shmem.my_pe())  # <- 1
        if FIXED:
            shmem.barrier_all_block()
        else:
            shmem.sync_all_block()
        out[i] = dst[i]  # <- 2

    src, dst, out = (shmem.ones(64, dtype="int32") for _ in range(3))
    kernel[1, 64](dst, src, out)


def fence_for_a_third_pe(pes=3):
    """A store to one PE's memory, a fence, and a signal to another PE, which gets what was
    stored."""

    @shmem.jit
    def kernel(dst, out, flag):
        me = shmem.my_pe()
        if me == 0:
            shmem.peer_array(dst, 2)[0] = 5  # <- 1
            if FIXED:
                shmem.quiet()
            else:
                shmem.fence()
            shmem.signal_op(flag, 1, shmem.SIGNAL_SET, 1)
        elif me == 1:
            shmem.signal_wait_until(flag, shmem.CMP_EQ, 1)
            shmem.get(out, dst, 2)  # <- 2

    dst, out = shmem.zeros(1, dtype="float32"), shmem.zeros(1, dtype="float32")
    kernel[1, 1](dst, out, shmem.zeros(1, dtype="uint64"))


def signal_passed_on(pes=3):
    """Data for two PEs; the first is told, and tells the second, whose data need not be there."""

    @shmem.jit
    def kernel(dst, src, out, flag):
        me = shmem.my_pe()
        if me == 0:
            shmem.put(dst, src, 2)  # <- 1
            if FIXED:
                shmem.quiet()
            shmem.put_signal(dst, src, flag, 1, shmem.SIGNAL_SET, 1)
        else:
            shmem.signal_wait_until(flag, shmem.CMP_EQ, 1)
            out[0] = dst[0]  # <- 2
            if me == 1:
                shmem.signal_op(flag, 1, shmem.SIGNAL_SET, 2)

    src, dst = shmem.ones(8, dtype="float32"), shmem.zeros(8, dtype="float32")
    kernel[1, 1](dst, src, shmem.zeros(1, dtype="float32"), shmem.zeros(1, dtype="uint64"))


shmem.init()
globals()[sys.argv[1]]()
shmem.finalize()
