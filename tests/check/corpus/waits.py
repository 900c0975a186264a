"""A wait for something else than what is used, or none.

Each function is a program: the first argument is its name.
"""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv


def all_but_the_last_flag(pes=4):
    """A PE waits for the flags of all others but one."""

    @shmem.jit
    def kernel(dst, src, out, flags):
        me = shmem.my_pe()
        if me > 0:
            shmem.put_signal(dst[me:], src, flags[me:], 1, shmem.SIGNAL_SET, 0)  # <- 1
        else:
            end = 4 if FIXED else 3
            shmem.wait_until_all(flags[1:end], None, shmem.CMP_EQ, 1)
            for k in range(1, 4):
                out[0] += dst[k]  # <- 2

    src, dst = shmem.ones(1, dtype="float32"), shmem.zeros(4, dtype="float32")
    kernel[1, 1](dst, src, shmem.zeros(1, dtype="float32"), shmem.zeros(4, dtype="uint64"))


def answers_in_one_box(pes=3):
    """A server answers two clients, and one client looks into the box of the other."""

    @shmem.jit
    def kernel(request, answer, got, asked, answered):
        me = shmem.my_pe()
        if me > 0:
            shmem.put_signal(request[me:], got[:1], asked[me:], 1, shmem.SIGNAL_SET, 0)
            shmem.signal_wait_until(answered, shmem.CMP_EQ, 1)
            shmem.get(got, answer[me if FIXED else 3 - me :], 0)  # <- 1
        else:
            for pe in range(1, 3):
                shmem.signal_wait_until(asked[pe:], shmem.CMP_EQ, 1)
                answer[pe] = 2 * request[pe]  # <- 2
                shmem.quiet()
                shmem.signal_op(answered, 1, shmem.SIGNAL_SET, pe)

    request, answer = shmem.ones(3, dtype="int32"), shmem.zeros(3, dtype="int32")
    got = shmem.ones(1, dtype="int32")
    kernel[1, 1](
        request, answer, got, shmem.zeros(3, dtype="uint64"), shmem.zeros(1, dtype="uint64")
    )


def any_bit(pes=3):
    """Each sender sets a bit; a wait for any of them is taken for one for all."""

    # A good report: race, put and the read; missing: PE 1 (or 2) has to tell PE 0, as the wait
    # holds when the bit of the other one is set.
    @shmem.jit
    def kernel(dst, src, out, bits):
        me = shmem.my_pe()
        if me > 0:
            shmem.put(dst[me:], src, 0)  # <- 1
            shmem.fence()
            shmem.atomic_or(bits, me, 0)
        else:
            if FIXED:
                shmem.wait_until(bits, shmem.CMP_EQ, 3)
            else:
                shmem.wait_until(bits, shmem.CMP_NE, 0)
            out[0] = dst[1] + dst[2]  # <- 2

    src, dst, out = (shmem.ones(k, dtype="float32") for k in (1, 3, 1))
    kernel[1, 1](dst, src, out, shmem.zeros(1, dtype="uint32"))


def any_is_not_all(pes=3):
    """One of several flags is waited for, and the data of all of them are used."""

    @shmem.jit
    def kernel(dst, src, out, flags):
        me = shmem.my_pe()
        if me == 0:
            if FIXED:
                shmem.wait_until_all(flags, None, shmem.CMP_GE, 1)
            else:
                shmem.wait_until_any(flags, None, shmem.CMP_GE, 1)
            out[0] = dst[1] + dst[2]  # <- 2
        else:
            shmem.put_signal(dst[me:], src, flags[me - 1 :], me, shmem.SIGNAL_SET, 0)  # <- 1

    src, dst = shmem.ones(1, dtype="float32"), shmem.zeros(3, dtype="float32")
    kernel[1, 1](dst, src, shmem.zeros(1, dtype="float32"), shmem.zeros(2, dtype="uint64"))


def bits_of_a_signal(pes=3):
    """Each sender has a bit of a signal; a wait for any value does not tell whose bit has come."""

    @shmem.jit
    def kernel(dst, src, out, bits):
        me = shmem.my_pe()
        if me == 0:
            if FIXED:
                shmem.signal_wait_until(bits, shmem.CMP_GE, 2)
            else:
                shmem.signal_wait_until(bits, shmem.CMP_NE, 0)
            out[0] = dst[2]  # <- 2
        else:
            shmem.put_signal(dst[me:], src, bits, me, shmem.SIGNAL_ADD, 0)  # <- 1

    src, dst = shmem.ones(1, dtype="float32"), shmem.zeros(3, dtype="float32")
    kernel[1, 1](dst, src, shmem.zeros(1, dtype="float32"), shmem.zeros(1, dtype="uint64"))


def data_after_a_test_that_failed(pes=2):
    """A test has failed, so the data are asked for; but they are read without another test."""

    @shmem.jit
    def kernel(dst, src, out, flag, wanted):
        if shmem.my_pe() == 0:
            there = shmem.test(flag, shmem.CMP_EQ, 1)
            shmem.signal_op(wanted, 1, shmem.SIGNAL_SET, 1)
            while FIXED and not there:
                there = shmem.test(flag, shmem.CMP_EQ, 1)
            out[0] = dst[0]  # <- 2
        else:
            shmem.signal_wait_until(wanted, shmem.CMP_EQ, 1)
            shmem.put_signal(dst, src, flag, 1, shmem.SIGNAL_SET, 0)  # <- 1

    src, dst = shmem.ones(8, dtype="float32"), shmem.zeros(8, dtype="float32")
    flag, wanted = shmem.zeros(1, dtype="uint64"), shmem.zeros(1, dtype="uint64")
    kernel[1, 1](dst, src, shmem.zeros(1, dtype="float32"), flag, wanted)


def excluded_by_status(pes=3):
    """A wait for all flags leaves one out, as status says so, and its data are read
    nevertheless."""

    # A good report: race, put_signal of PE 2 and the read; missing: PE 2 has to tell PE 0.
    @shmem.jit
    def kernel(dst, src, out, flags, status):
        me = shmem.my_pe()
        if me == 0:
            shmem.wait_until_all(flags, status, shmem.CMP_EQ, 1)
            out[0] = dst[1] + dst[2]  # <- 2
        else:
            shmem.put_signal(dst[me:], src, flags[me - 1 :], 1, shmem.SIGNAL_SET, 0)  # <- 1

    src, dst, out = (shmem.ones(k, dtype="float32") for k in (1, 3, 1))
    status = shmem.array([0, 0 if FIXED else 1], dtype="int32")
    kernel[1, 1](dst, src, out, shmem.zeros(2, dtype="uint64"), status)


def halo_of_one_side(pes=3):
    """A PE gets rows from both neighbours, and waits for only one of them."""

    @shmem.jit
    def kernel(grid, new, flags):
        i, me, n = cuda.threadIdx.x, shmem.my_pe(), shmem.n_pes()
        above, below = (me + n - 1) % n, (me + 1) % n
        shmem.put_signal_block(grid[96:], grid[32:64], flags, 1, shmem.SIGNAL_SET, above)
        shmem.put_signal_block(  # <- 1
            grid[:32], grid[64:96], flags[1:], 1, shmem.SIGNAL_SET, below
        )
        if i < (2 if FIXED else 1):
            shmem.signal_wait_until(flags[i:], shmem.CMP_EQ, 1)
        cuda.syncthreads()
        new[i] = grid[64 + i] + grid[96 + i]
        new[32 + i] = grid[i] + grid[32 + i]  # <- 2

    grid, new = shmem.ones(128, dtype="float32"), shmem.ones(64, dtype="float32")
    kernel[1, 32](grid, new, shmem.zeros(2, dtype="uint64"))


def index_of_nothing(pes=2):
    """The index that test_any returns is -1 as long as nothing has come."""

    @shmem.jit
    def kernel(dst, src, out, flags, go):
        if shmem.my_pe() == 0:
            k = shmem.test_any(flags, None, shmem.CMP_GT, 0)
            shmem.p(go, 1, 1)
            while FIXED and k < 0:
                k = shmem.test_any(flags, None, shmem.CMP_GT, 0)
            out[0] = dst[k % 2]  # <- 2
        else:
            shmem.wait_until(go, shmem.CMP_EQ, 1)
            shmem.put_signal(dst[1:], src, flags[1:], 5, shmem.SIGNAL_ADD, 0)  # <- 1

    src, dst = shmem.ones(1, dtype="float32"), shmem.zeros(2, dtype="float32")
    flags, go = shmem.zeros(2, dtype="uint64"), shmem.zeros(1, dtype="int32")
    kernel[1, 1](dst, src, shmem.zeros(1, dtype="float32"), flags, go)


def nothing_is_waited_for(pes=2):
    """The reader does not wait for the data at all."""

    @shmem.jit
    def send(dst, src):
        shmem.put_block(dst, src, 1 - shmem.my_pe())  # <- 1

    @shmem.jit
    def use(dst, src):
        i = cuda.threadIdx.x
        src[i] = dst[i]  # <- 2

    src = shmem.full(64, shmem.my_pe(), dtype="float32")
    dst = shmem.zeros(64, dtype="float32")
    out = shmem.zeros(64, dtype="float32")
    send[1, 64](dst, src)
    if FIXED:
        shmem.barrier_all()
    use[1, 64](dst, out)


def one_child_of_two(pes=3):
    """A parent in a tree adds the sums of both children, and waits for the signal of either."""

    @shmem.jit
    def kernel(sums, flags):
        me = shmem.my_pe()
        if me > 0:
            shmem.p(sums[me:], 10 * me, 0)  # <- 1
            shmem.fence()
            shmem.signal_op(flags[me:], 1, shmem.SIGNAL_SET, 0)
        else:
            shmem.signal_wait_until(flags[1:], shmem.CMP_EQ, 1)
            if FIXED:
                shmem.signal_wait_until(flags[2:], shmem.CMP_EQ, 1)
            sums[0] += sums[1] + sums[2]  # <- 2

    kernel[1, 1](shmem.zeros(3, dtype="float32"), shmem.zeros(3, dtype="uint64"))


def one_of_two_signals(pes=3):
    """Two PEs add to a signal; the reader waits for one, and reads both's data."""

    @shmem.jit
    def kernel(dst, src, out, flag):
        me = shmem.my_pe()
        if me == 0:
            shmem.signal_wait_until(flag, shmem.CMP_GE, 2 if FIXED else 1)
            out[0] = dst[1] + dst[2]  # <- 2
        else:
            shmem.put_signal(dst[me:], src[:1], flag, 1, shmem.SIGNAL_ADD, 0)  # <- 1

    src = shmem.full(64, shmem.my_pe(), dtype="float32")
    dst = shmem.zeros(64, dtype="float32")
    flag = shmem.zeros(1, dtype="uint64")
    kernel[1, 1](dst, src, shmem.zeros(1, dtype="float32"), flag)


def own_arrival_counted(pes=3):
    """A PE waits for one arrival of each PE, but has counted its own before the others' data."""

    @shmem.jit
    def kernel(parts, src, out, arrived):
        me, n = shmem.my_pe(), shmem.n_pes()
        for pe in range(n):
            shmem.put_signal(parts[me:], src, arrived, 1, shmem.SIGNAL_ADD, pe)  # <- 1
        shmem.signal_wait_until(arrived, shmem.CMP_GE, n if FIXED else n - 1)
        for pe in range(n):
            out[0] += parts[pe]  # <- 2

    src, parts = shmem.ones(1, dtype="float32"), shmem.zeros(3, dtype="float32")
    kernel[1, 1](parts, src, shmem.zeros(1, dtype="float32"), shmem.zeros(1, dtype="uint64"))


def polled_by_atomic_fetch(pes=2):
    """A flag on PE 0 tells that data on PE 0 are complete; PE 1 polls it with atomic_fetch."""

    # A good report: ordering, what put writes may arrive after it is read; missing: quiet() before
    # atomic_set. The fixed program is right: the data are complete before the flag is set.
    @shmem.jit
    def kernel(data, src, copy, flag):
        if shmem.my_pe() == 0:
            shmem.put(data, src, 0)  # <- 1
            if FIXED:
                shmem.quiet()
            shmem.atomic_set(flag, 1, 0)
        else:
            while shmem.atomic_fetch(flag, 0) != 1:
                pass
            shmem.get(copy, data, 0)  # <- 2

    data, src, copy = (shmem.ones(8, dtype="float32") for _ in range(3))
    kernel[1, 1](data, src, copy, shmem.zeros(1, dtype="int32"))


def polled_by_g(pes=2):
    """Each step's data come with a signal; the reader polls it with g, which orders nothing."""

    @shmem.jit
    def kernel(data, src, flag, ack, out):
        me = shmem.my_pe()
        for step in range(1, 4):
            if me == 0:
                shmem.put_signal(data, src[8 * step :][:8], flag, step, shmem.SIGNAL_SET, 1)  # <- 1
                shmem.signal_wait_until(ack, shmem.CMP_GE, step)
            else:
                if FIXED:
                    shmem.signal_wait_until(flag, shmem.CMP_EQ, step)
                else:
                    while shmem.g(flag, 1) != step:
                        cuda.nanosleep(1000)
                for i in range(data.size):
                    out[8 * step + i] = data[i]  # <- 2
                shmem.signal_op(ack, 1, shmem.SIGNAL_ADD, 0)

    src, out = shmem.ones(32, dtype="int64"), shmem.zeros(32, dtype="int64")
    data, ack = shmem.zeros(8, dtype="int64"), shmem.zeros(1, dtype="uint64")
    kernel[1, 1](data, src, shmem.zeros(1, dtype="uint64"), ack, out)


def time_is_over(pes=2):
    """A wait has a timeout, and nobody looks whether it has ended by that."""

    @shmem.jit
    def kernel(dst, src, out, flag, go):
        if shmem.my_pe() == 0:
            came = shmem.signal_wait_until(flag, shmem.CMP_EQ, 1, 1000)
            shmem.signal_op(go, 1, shmem.SIGNAL_SET, 1)
            if FIXED and not came:
                shmem.signal_wait_until(flag, shmem.CMP_EQ, 1)
            out[0] = dst[3]  # <- 2
        else:
            shmem.signal_wait_until(go, shmem.CMP_EQ, 1)
            shmem.put_signal(dst, src, flag, 1, shmem.SIGNAL_SET, 0)  # <- 1

    src, dst = shmem.ones(8, dtype="float32"), shmem.zeros(8, dtype="float32")
    flag, go = shmem.zeros(1, dtype="uint64"), shmem.zeros(1, dtype="uint64")
    kernel[1, 1](dst, src, shmem.zeros(1, dtype="float32"), flag, go)


def two_users_of_one_signal(pes=3):
    """Two PEs set one signal, and who waits for it takes it for that of the first."""

    @shmem.jit
    def kernel(dst, src, out, flags):
        me = shmem.my_pe()
        if me == 0:
            shmem.signal_wait_until(flags, shmem.CMP_EQ, 1)
            out[0] = dst[1]  # <- 2
        else:
            flag = flags[me - 1 :] if FIXED else flags
            shmem.put_signal(dst[me:], src, flag, 1, shmem.SIGNAL_SET, 0)  # <- 1

    src, dst = shmem.ones(1, dtype="float32"), shmem.zeros(3, dtype="float32")
    kernel[1, 1](dst, src, shmem.zeros(1, dtype="float32"), shmem.zeros(2, dtype="uint64"))


def values_of_a_vector(pes=3):
    """One of several flags is waited for with its value, and the data of all of them are used."""

    # A good report: race, put_signal and the read; missing: PE 1 (or 2) has to tell PE 0. The fixed
    # program is right.
    @shmem.jit
    def kernel(dst, src, out, flags, values):
        me = shmem.my_pe()
        if me == 0:
            if FIXED:
                shmem.wait_until_all_vector(flags, None, shmem.CMP_EQ, values)
            else:
                shmem.wait_until_any_vector(flags, None, shmem.CMP_EQ, values)
            out[0] = dst[1] + dst[2]  # <- 2
        else:
            shmem.put_signal(dst[me:], src, flags[me - 1 :], me, shmem.SIGNAL_SET, 0)  # <- 1

    src, dst = shmem.ones(1, dtype="float32"), shmem.zeros(3, dtype="float32")
    values = shmem.array([1, 2], dtype="uint64")
    kernel[1, 1](dst, src, shmem.zeros(1, dtype="float32"), shmem.zeros(2, dtype="uint64"), values)


def wait_until_any(pes=3):
    """The data of another PE than the one that was waited for is read."""

    @shmem.jit
    def kernel(dst, src, out, flags):
        me = shmem.my_pe()
        if me == 0:
            k = shmem.wait_until_any(flags[1:], None, shmem.CMP_EQ, 1) + 1
            out[0] = dst[k if FIXED else 3 - k]  # <- 2
        else:
            shmem.put_signal(dst[me:], src[:1], flags[me:], 1, shmem.SIGNAL_SET, 0)  # <- 1

    src, dst = shmem.ones(4, dtype="float32"), shmem.zeros(4, dtype="float32")
    kernel[1, 1](dst, src, shmem.zeros(1, dtype="float32"), shmem.zeros(3, dtype="uint64"))


def fetched_when_g_has_seen_it(pes=2):
    """A PE writes its part and the step it has made; another polls that with g, and gets the
    part."""

    @shmem.jit
    def kernel(part, copy, step, ack, out):
        me = shmem.my_pe()
        for k in range(1, 4):
            if me == 0:
                for i in range(part.size):
                    part[i] = 10 * k + i  # <- 1
                shmem.quiet()
                shmem.atomic_set(step, k, 0)
                shmem.signal_wait_until(ack, shmem.CMP_GE, k)
            else:
                if FIXED:
                    while shmem.atomic_fetch(step, 0) != k:
                        cuda.nanosleep(1000)
                else:
                    while shmem.g(step, 0) != k:
                        cuda.nanosleep(1000)
                shmem.get(copy, part, 0)  # <- 2
                for i in range(copy.size):
                    out[k] += copy[i]
                shmem.signal_op(ack, 1, shmem.SIGNAL_ADD, 0)

    part, copy, out = (shmem.zeros(n, dtype="int64") for n in (8, 8, 4))
    kernel[1, 1](part, copy, shmem.zeros(1, "int64"), shmem.zeros(1, "uint64"), out)


def credits_one_too_few(pes=2):
    """A window of three slots, and a sender that goes on when there is no room yet."""
    window, messages = 3, 8

    @shmem.jit
    def kernel(box, src, out, arrived, credit):
        me, short = shmem.my_pe(), 0 if FIXED else 1
        for m in range(messages):
            slot = m % window
            if me == 0:
                if m >= window + short:
                    shmem.signal_wait_until(credit, shmem.CMP_GE, m - window + 1 - short)
                src[m] = m
                there, arrives = box[slot : slot + 1], arrived[slot:]
                shmem.put_signal(there, src[m : m + 1], arrives, m + 1, shmem.SIGNAL_SET, 1)  # <- 1
            else:
                shmem.signal_wait_until(arrived[slot:], shmem.CMP_GE, m + 1)  # <- 3
                out[m] = box[slot]  # <- 2
                shmem.signal_op(credit, 1, shmem.SIGNAL_ADD, 0)

    box, src, out = (shmem.zeros(n, dtype="int32") for n in (window, messages, messages))
    kernel[1, 1](box, src, out, shmem.zeros(window, "uint64"), shmem.zeros(1, "uint64"))


def put_into_flag(pes=2):
    """A flag is put, and not sent as a signal: the wait may see a part of it."""

    # A good cure: p, atomic_set or signal_op instead of put.
    @shmem.jit
    def kernel(flag, one):
        if shmem.my_pe() == 0:
            shmem.wait_until(flag, shmem.CMP_EQ, 1)  # <- 2
        elif FIXED:
            shmem.p(flag, 1, 0)
        else:
            shmem.put(flag, one, 0)  # <- 1

    kernel[1, 1](shmem.zeros(1, dtype="int64"), shmem.ones(1, dtype="int64"))


shmem.init()
globals()[sys.argv[1]]()
shmem.finalize()
