"""Who is first, or last, is found out by an atomic operation, and one of the ways is wrong.

Each function is a program: the first argument is its name.
"""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv


def told_to_higher_ranks_only(pes=3):
    """The first one to set a word leads, and tells those behind it, but not those before it."""

    @shmem.jit
    def kernel(leader, told):
        me, n = shmem.my_pe(), shmem.n_pes()
        if shmem.atomic_compare_swap(leader, 0, me + 1, 0) == 0:
            for pe in range(0 if FIXED else me, n):  # <- fails
                shmem.signal_op(told, me + 1, shmem.SIGNAL_SET, pe)
        shmem.signal_wait_until(told, shmem.CMP_NE, 0)

    kernel[1, 1](shmem.zeros(1, dtype="int32"), shmem.zeros(1, dtype="uint64"))


def the_leader_calls_fence(pes=3):
    """The leader puts a table into PE 0's memory and tells all; where it is PE 0 itself it stores
    it, but others would have to call quiet."""

    @shmem.jit
    def kernel(leader, table, src, copy, told):
        me, n = shmem.my_pe(), shmem.n_pes()
        if shmem.atomic_compare_swap(leader, 0, me + 1, 0) == 0:
            if me == 0:
                table[0] = 1
                shmem.quiet()
            else:
                shmem.put(table, src, 0)  # <- 1
                if FIXED:
                    shmem.quiet()
                else:
                    shmem.fence()
            for pe in range(n):
                shmem.signal_op(told, 1, shmem.SIGNAL_SET, pe)
        shmem.signal_wait_until(told, shmem.CMP_EQ, 1)
        shmem.get(copy, table, 0)  # <- 2

    table, src, copy = (shmem.ones(1, dtype="float32") for _ in range(3))
    told = shmem.zeros(1, dtype="uint64")
    kernel[1, 1](shmem.zeros(1, dtype="int32"), table, src, copy, told)


def the_second_in_a_queue(pes=3):
    """Each PE swaps itself into the end of a queue and gets the number of the one before it,
    which has published only if its rank is below."""

    @shmem.jit
    def kernel(tail, number, got):
        me = shmem.my_pe()
        number[0] = 10 + me  # <- 1
        if FIXED or me < 2:
            shmem.quiet()
        before = shmem.atomic_swap(tail, me + 1, 0)
        if before != 0:
            shmem.get(got, number, before - 1)  # <- 2

    number, got = shmem.zeros(1, dtype="int32"), shmem.zeros(1, dtype="int32")
    kernel[1, 1](shmem.zeros(1, dtype="int32"), number, got)


def the_last_bit_combines(pes=3):
    """Who sees the bits of all others adds their parts; the PE that used to be last does not
    fence its own."""

    @shmem.jit
    def kernel(parts, src, copy, bits):
        me, n = shmem.my_pe(), shmem.n_pes()
        shmem.put(parts[me:], src, 0)  # <- 1
        if me < n - 1 or FIXED:
            shmem.quiet()
        bit = 1 << me
        if shmem.atomic_fetch_or(bits, bit, 0) | bit == (1 << n) - 1:
            if me == n - 1:
                shmem.quiet()
            shmem.get(copy, parts, 0)  # <- 2

    parts, copy = shmem.zeros(3, dtype="float32"), shmem.zeros(3, dtype="float32")
    src = shmem.ones(1, dtype="float32")
    kernel[1, 1](parts, src, copy, shmem.zeros(1, dtype="uint32"))


def counted_down_to_the_first_bit(pes=3):
    """Each PE takes its bit away; the one that leaves bit 0 thinks that it leaves nothing."""

    @shmem.jit
    def kernel(parts, src, copy, bits):
        me = shmem.my_pe()
        shmem.put(parts[me:], src, 0)  # <- 1
        shmem.quiet()
        left = shmem.atomic_fetch_and(bits, ~(1 << me), 0) & ~(1 << me)
        if left == 0 or (left == 1 and not FIXED):
            shmem.get(copy, parts, 0)  # <- 2

    parts, copy = shmem.zeros(3, dtype="float32"), shmem.zeros(3, dtype="float32")
    src = shmem.ones(1, dtype="float32")
    kernel[1, 1](parts, src, copy, shmem.full(1, 7, dtype="int32"))


def toggled_twice(pes=3):
    """Each of two PEs toggles a bit, by which a third one sees that there is something: or not,
    if both have."""

    @shmem.jit
    def kernel(bell):
        me = shmem.my_pe()
        if me > 0 and FIXED:
            shmem.atomic_add(bell, 1, 0)
        elif me > 0:
            shmem.atomic_xor(bell, 1, 0)  # <- 1
        else:
            shmem.wait_until(bell, shmem.CMP_NE, 0)  # <- 2

    kernel[1, 1](shmem.zeros(1, dtype="uint32"))


def parity_of_two(pes=3):
    """Who sees 0 when it toggles a bit fills the first half, else the second; there are three."""

    @shmem.jit
    def kernel(halves, src, turn):
        me = shmem.my_pe()
        half = shmem.atomic_fetch_xor(turn, 1, 0)
        if me > 0:
            where = me - 1 if FIXED else half
            shmem.put(halves[where:], src, 0)  # <- 1 <- 2

    halves, src = shmem.zeros(2, dtype="float32"), shmem.ones(1, dtype="float32")
    kernel[1, 1](halves, src, shmem.zeros(1, dtype="uint32"))


def the_header_of_the_first(pes=3):
    """The first to take a number writes the header; the last one reads it, and knows that it is
    there if that has been PE 0."""

    @shmem.jit
    def kernel(header, src, copy, taken, ready):
        me, n = shmem.my_pe(), shmem.n_pes()
        number = shmem.atomic_fetch_inc(taken, 0)
        if number == 0:
            shmem.put(header, src, 0)  # <- 1
            shmem.quiet()
            for pe in range(n):
                shmem.signal_op(ready, 1, shmem.SIGNAL_SET, pe)
        elif number == n - 1:
            if me > 0 or FIXED:
                shmem.signal_wait_until(ready, shmem.CMP_EQ, 1)
            shmem.get(copy, header, 0)  # <- 2

    header, src, copy = (shmem.ones(1, dtype="float32") for _ in range(3))
    taken, ready = shmem.zeros(1, dtype="int32"), shmem.zeros(1, dtype="uint64")
    kernel[1, 1](header, src, copy, taken, ready)


def two_in_one_slot(pes=3):
    """The next free slot is read and then advanced: two PEs may have the same one."""

    @shmem.jit
    def kernel(slots, src, free):
        me = shmem.my_pe()
        if me > 0:
            if FIXED:
                slot = shmem.atomic_fetch_inc(free, 0)
            else:
                slot = shmem.atomic_fetch(free, 0)
                shmem.atomic_inc(free, 0)
            shmem.put(slots[slot:], src, 0)  # <- 1 <- 2

    slots, src = shmem.zeros(2, dtype="float32"), shmem.ones(1, dtype="float32")
    kernel[1, 1](slots, src, shmem.zeros(1, dtype="int32"))


def initialised_twice(pes=3):
    """Whether a table has been filled is read, and set when it has been."""

    @shmem.jit
    def kernel(table, src, filled):
        me = shmem.my_pe()
        if me > 0:
            if FIXED:
                mine = shmem.atomic_compare_swap(filled, 0, 1, 0) == 0
            else:
                mine = shmem.atomic_fetch(filled, 0) == 0
            if mine:
                shmem.put(table, src, 0)  # <- 1 <- 2
                shmem.quiet()
                shmem.atomic_set(filled, 2, 0)

    table, src = shmem.zeros(4, dtype="float32"), shmem.ones(4, dtype="float32")
    kernel[1, 1](table, src, shmem.zeros(1, dtype="int32"))


def the_last_task(pes=2):
    """PEs take tasks as they come; who gets the last one adds the results, of which the other PE
    may still work on one."""

    @shmem.jit
    def kernel(results, src, copy, taken, done):
        tasks, last = 2, False
        task = shmem.atomic_fetch_inc(taken, 0)
        while task < tasks:
            shmem.put(results[task:], src, 0)  # <- 1
            shmem.quiet()
            finished = shmem.atomic_fetch_inc(done, 0)
            last = (finished if FIXED else task) == tasks - 1
            task = shmem.atomic_fetch_inc(taken, 0)
        if last:
            shmem.get(copy, results, 0)  # <- 2

    results, copy = shmem.zeros(2, dtype="float32"), shmem.zeros(2, dtype="float32")
    src = shmem.ones(1, dtype="float32")
    taken, done = shmem.zeros(1, dtype="int32"), shmem.zeros(1, dtype="int32")
    kernel[1, 1](results, src, copy, taken, done)


shmem.init()
globals()[sys.argv[1]]()
shmem.finalize()
