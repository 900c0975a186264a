"""Data and the flag that tells of them, which nothing orders.

Each function is a program: the first argument is its name.
"""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv


def fence_after_p(pes=2):
    """A number and a flag, without a fence."""

    @shmem.jit
    def kernel(dst, out, flag):
        other = 1 - shmem.my_pe()
        shmem.p(dst, 5, other)  # <- 1
        if FIXED:
            shmem.fence()
        shmem.signal_op(flag, 1, shmem.SIGNAL_SET, other)
        shmem.signal_wait_until(flag, shmem.CMP_EQ, 1)
        out[0] = dst[0]  # <- 2

    src = shmem.full(64, shmem.my_pe(), dtype="float32")
    dst = shmem.zeros(64, dtype="float32")
    flag = shmem.zeros(1, dtype="uint64")
    kernel[1, 1](dst, src, flag)


def fence_after_the_flag(pes=2):
    """The fence is called after the flag is sent, not before."""

    @shmem.jit
    def kernel(dst, src, out, flag):
        other = 1 - shmem.my_pe()
        shmem.put_nbi(dst, src, other)  # <- 1
        if FIXED:
            shmem.fence()
        shmem.p(flag, 1, other)
        shmem.fence()
        shmem.wait_until(flag, shmem.CMP_EQ, 1)
        out[0] = dst[0]  # <- 2

    src, dst, out = (shmem.ones(8, dtype="float32") for _ in range(3))
    kernel[1, 1](dst, src, out, shmem.zeros(1, dtype="int64"))


def flag_before_the_data(pes=2):
    """The flag is sent first, then the data."""

    @shmem.jit
    def kernel(dst, src, out, flag):
        other = 1 - shmem.my_pe()
        if not FIXED:
            shmem.signal_op(flag, 1, shmem.SIGNAL_SET, other)
            shmem.fence()
        shmem.put(dst, src, other)  # <- 1
        if FIXED:
            shmem.fence()
            shmem.signal_op(flag, 1, shmem.SIGNAL_SET, other)
        shmem.signal_wait_until(flag, shmem.CMP_EQ, 1)
        out[0] = dst[0]  # <- 2

    src, dst = shmem.ones(8, dtype="int32"), shmem.zeros(8, dtype="int32")
    kernel[1, 1](dst, src, shmem.zeros(1, dtype="int32"), shmem.zeros(1, dtype="uint64"))


def column_before_flag(pes=2):
    """A column is sent with iput, and a flag is set with p, without a fence."""

    @shmem.jit
    def kernel(dst, src, out, ready):
        other = 1 - shmem.my_pe()
        shmem.iput(dst, src, 8, 8, 8, other)  # <- 1
        if FIXED:
            shmem.fence()
        shmem.p(ready, 1, other)
        shmem.wait_until(ready, shmem.CMP_NE, 0)
        for k in range(8):
            out[k] = dst[8 * k]  # <- 2

    src, dst = shmem.ones(64, dtype="float32"), shmem.zeros(64, dtype="float32")
    kernel[1, 1](dst, src, shmem.zeros(8, dtype="float32"), shmem.zeros(1, dtype="int32"))


def flag_by_atomic_set(pes=2):
    """A flag is set by an atomic operation, which does not order the elements put before it."""

    @shmem.jit
    def kernel(dst, out, flag):
        i, other = cuda.threadIdx.x, 1 - shmem.my_pe()
        shmem.p(dst[i:], 2 * i, other)  # <- 1
        cuda.syncthreads()
        if i == 0:
            if FIXED:
                shmem.fence()
            shmem.atomic_set(flag, 1, other)
            shmem.wait_until(flag, shmem.CMP_EQ, 1)
        cuda.syncthreads()
        out[i] = dst[i]  # <- 2

    dst, out = shmem.zeros(32, dtype="int16"), shmem.zeros(32, dtype="int16")
    kernel[1, 32](dst, out, shmem.zeros(1, dtype="uint32"))


def flag_by_swap(pes=2):
    """A flag is swapped in after the data, without a fence."""

    @shmem.jit
    def kernel(dst, src, out, flag):
        other = 1 - shmem.my_pe()
        shmem.iput_block(dst, src, 2, 1, 16, other)  # <- 1
        if cuda.threadIdx.x == 0:
            if FIXED:
                shmem.fence()
            shmem.atomic_swap(flag, 7, other)
            shmem.wait_until(flag, shmem.CMP_EQ, 7)
            out[0] = dst[4]  # <- 2

    src, dst = shmem.ones(16, dtype="int32"), shmem.zeros(32, dtype="int32")
    kernel[1, 32](dst, src, shmem.zeros(1, dtype="int32"), shmem.zeros(1, dtype="int64"))


def fetching_atomic_is_no_fence(pes=2):
    """An atomic operation that returns a value does not order the puts before it."""

    @shmem.jit
    def kernel(dst, src, out, arrived):
        other = 1 - shmem.my_pe()
        shmem.put(dst, src, other)  # <- 1
        if FIXED:
            shmem.fence()
        shmem.atomic_fetch_inc(arrived, other)
        shmem.wait_until(arrived, shmem.CMP_EQ, 1)
        out[0] = dst[7]  # <- 2

    src, dst = shmem.ones(8, dtype="float32"), shmem.zeros(8, dtype="float32")
    kernel[1, 1](dst, src, shmem.zeros(1, dtype="float32"), shmem.zeros(1, dtype="int32"))


def flush_is_no_fence(pes=2):
    """A flush makes sources free again, but does not order the data before a signal."""

    @shmem.jit
    def kernel(dst, src, out, flag):
        other = 1 - shmem.my_pe()
        shmem.put_nbi(dst, src, other)  # <- 1
        shmem.flush()
        src[0] = 3
        if FIXED:
            shmem.fence()
        shmem.signal_op(flag, 1, shmem.SIGNAL_ADD, other)
        shmem.signal_wait_until(flag, shmem.CMP_GE, 1)
        out[0] = dst[0]  # <- 2

    src, dst = shmem.ones(16, dtype="float64"), shmem.zeros(16, dtype="float64")
    kernel[1, 1](dst, src, shmem.zeros(1), shmem.zeros(1, dtype="uint64"))


def signal_orders_its_own_data(pes=2):
    """put_signal does not order the put before it."""

    @shmem.jit
    def kernel(dst, src, flag):
        other = 1 - shmem.my_pe()
        shmem.put(dst[:32], src[:32], other)  # <- 1
        if FIXED:
            shmem.fence()
        shmem.put_signal(dst[32:], src[32:], flag, 1, shmem.SIGNAL_SET, other)
        shmem.signal_wait_until(flag, shmem.CMP_EQ, 1)
        src[40] = dst[40]
        src[0] = dst[0]  # <- 2

    src = shmem.full(64, shmem.my_pe(), dtype="float32")
    dst = shmem.zeros(64, dtype="float32")
    flag = shmem.zeros(1, dtype="uint64")
    kernel[1, 1](dst, src, flag)


def stores_to_a_peer(pes=2):
    """Stores through peer_array, then a flag, without a fence."""

    @shmem.jit
    def kernel(dst, out, flag):
        i, other = cuda.threadIdx.x, 1 - shmem.my_pe()
        there = shmem.peer_array(dst, other)
        there[i] = i  # <- 1
        cuda.syncthreads()
        if i == 0:
            if FIXED:
                shmem.fence()
            shmem.signal_op(flag, 1, shmem.SIGNAL_SET, other)
            shmem.signal_wait_until(flag, shmem.CMP_EQ, 1)
        cuda.syncthreads()
        out[i] = dst[i]  # <- 2

    dst, out = shmem.zeros(64, dtype="float32"), shmem.zeros(64, dtype="float32")
    kernel[1, 64](dst, out, shmem.zeros(1, dtype="uint64"))


def stored_on_all_members(pes=3):
    """A block stores rows on all PEs of a team, then signals them, without a fence."""

    @shmem.jit
    def kernel(dst, src, out, flags):
        me, i = shmem.my_pe(), cuda.threadIdx.x
        shmem.multimem_store_block(dst[me], src, shmem.TEAM_WORLD)  # <- 1
        if i == 0:
            if FIXED:
                shmem.fence()
            for k in range(1, 3):
                shmem.signal_op(flags[me:], 1, shmem.SIGNAL_SET, (me + k) % 3)
            for k in range(1, 3):
                shmem.signal_wait_until(flags[(me + k) % 3 :], shmem.CMP_EQ, 1)
        cuda.syncthreads()
        for k in range(1, 3):
            out[k, i] = dst[(me + k) % 3, i]  # <- 2

    dst, out = shmem.zeros((3, 32)), shmem.device_array((3, 32))
    kernel[1, 32](dst, shmem.ones(32), out, shmem.zeros(3, dtype="uint64"))


def own_copy_of_what_all_have(pes=2):
    """A PE reads in its own memory what it has stored on all PEs, without a quiet."""

    @shmem.jit
    def kernel(dst, src, out):
        i = cuda.threadIdx.x
        shmem.multimem_store_block(dst[shmem.my_pe()], src, shmem.TEAM_WORLD)  # <- 1
        if FIXED and i == 0:
            shmem.quiet()
        cuda.syncthreads()
        out[i] = dst[shmem.my_pe(), i]  # <- 2

    kernel[1, 32](shmem.zeros((2, 32)), shmem.ones(32), shmem.device_array(32))


def multicast_store(pes=2):
    """A store reaches all PEs of a team, then a signal, without a fence."""

    @shmem.jit
    def kernel(dst, out, flag):
        i, other = cuda.threadIdx.x, 1 - shmem.my_pe()
        if shmem.my_pe() == 0:
            everywhere = shmem.multicast_array(dst, shmem.TEAM_WORLD)
            everywhere[i] = i  # <- 1
            cuda.syncthreads()
            if i == 0:
                if FIXED:
                    shmem.quiet()
                shmem.signal_op(flag, 1, shmem.SIGNAL_SET, other)
        else:
            if i == 0:
                shmem.signal_wait_until(flag, shmem.CMP_EQ, 1)
            cuda.syncthreads()
            out[i] = dst[i]  # <- 2

    dst, out = shmem.zeros(32, dtype="float32"), shmem.zeros(32, dtype="float32")
    kernel[1, 32](dst, out, shmem.zeros(1, dtype="uint64"))


def two_sets_of_one_signal(pes=2):
    """A signal is set to 1 and to 2 without a fence: the last one to arrive may be the first."""

    @shmem.jit
    def kernel(flag):
        if shmem.my_pe() == 0:
            for step in range(1, 3):
                shmem.signal_op(flag, step, shmem.SIGNAL_SET, 1)  # <- 1
                if FIXED:
                    shmem.fence()
        else:
            shmem.signal_wait_until(flag, shmem.CMP_EQ, 2)  # <- 2

    kernel[1, 1](shmem.zeros(1, dtype="uint64"))


def two_puts_one_place(pes=2):
    """An array is cleared and then filled by two puts, which may arrive in either order."""

    @shmem.jit
    def kernel(dst, zero, src):
        other = 1 - shmem.my_pe()
        shmem.put(dst, zero, other)  # <- 1
        if FIXED:
            shmem.fence()
        shmem.put(dst, src, other)  # <- 2

    zero, src, dst = (shmem.full(10, k, dtype="int64") for k in range(3))
    kernel[1, 1](dst, zero, src)


def flag_of_each_step(pes=2):
    """Each step has a flag of its own, which the host allocates or clears, and lacks the fence."""

    @shmem.jit
    def exchange(dst, src, flag):
        other = 1 - shmem.my_pe()
        shmem.put(dst, src, other)  # <- 1
        if FIXED:
            shmem.fence()
        shmem.signal_op(flag, 1, shmem.SIGNAL_SET, other)
        shmem.signal_wait_until(flag, shmem.CMP_EQ, 1)
        for i in range(dst.size):
            src[i] += dst[i]  # <- 2

    src, dst = shmem.ones(8, dtype="float32"), shmem.zeros(8, dtype="float32")
    for _ in range(2):
        flag = shmem.zeros(1, dtype="uint64")  # where the one before has been
        for _ in range(2):
            exchange[1, 1](dst, src, flag)
            shmem.barrier_all()
            flag.copy_from(0)
            shmem.barrier_all()
        exchange[1, 1](dst, src, flag)
        shmem.free(flag)


def chunks_counted_by_one_signal(pes=2):
    """A counter tells how many chunks have come, not which: those of put_signal_nbi may
    overtake."""

    @shmem.jit
    def kernel(dst, src, out, done):
        other = 1 - shmem.my_pe()
        for k in range(3):
            chunk = slice(8 * k, 8 * k + 8)
            signal = done[k:] if FIXED else done
            shmem.put_signal_nbi(dst[chunk], src[chunk], signal, 1, shmem.SIGNAL_ADD, other)  # <- 1
        for k in range(3):
            signal = done[k:] if FIXED else done
            shmem.signal_wait_until(signal, shmem.CMP_GE, 1 if FIXED else k + 1)
            out[k] = dst[8 * k]  # <- 2

    src, dst = shmem.ones(24, dtype="float32"), shmem.zeros(24, dtype="float32")
    kernel[1, 1](dst, src, shmem.zeros(3, dtype="float32"), shmem.zeros(3, dtype="uint64"))


def tokens_behind_their_count(pes=2):
    """A signal tells how many tokens come, and is sent before them."""

    @shmem.jit
    def kernel(tokens, src, out, count):
        i, other = cuda.threadIdx.x, 1 - shmem.my_pe()
        if not FIXED and i == 0:
            shmem.signal_op(count, 3, shmem.SIGNAL_SET, other)
        shmem.put_nbi_block(tokens, src, other)  # <- 1
        if FIXED and i == 0:
            shmem.fence()
            shmem.signal_op(count, 3, shmem.SIGNAL_SET, other)
        n = shmem.signal_wait_until(count, shmem.CMP_NE, 0)
        for k in range(n):
            out[32 * k + i] = tokens[32 * k + i]  # <- 2

    src, tokens, out = (shmem.ones(96, dtype="float16") for _ in range(3))
    kernel[1, 32](tokens, src, out, shmem.zeros(1, dtype="uint64"))


def bit_of_each_sender(pes=3):
    """Each sender sets its bit when its data are on the way, not when they have arrived."""

    @shmem.jit
    def kernel(dst, src, out, bits):
        me = shmem.my_pe()
        if me > 0:
            shmem.put(dst[me:], src, 0)  # <- 1
            if FIXED:
                shmem.quiet()
            shmem.atomic_or(bits, 1 << me, 0)
        else:
            shmem.wait_until(bits, shmem.CMP_EQ, 6)
            out[0] = dst[1] + dst[2]  # <- 2

    src, dst = shmem.ones(1, dtype="float32"), shmem.zeros(3, dtype="float32")
    kernel[1, 1](dst, src, shmem.zeros(1, dtype="float32"), shmem.zeros(1, dtype="uint32"))


shmem.init()
globals()[sys.argv[1]]()
shmem.finalize()
