"""What a test has found decides what is done, and one of the ways is wrong.

Each function is a program: the first argument is its name.
"""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv


def early_data(pes=2):
    """Data that a test finds early are used before they are sure to be complete."""

    @shmem.jit
    def kernel(dst, src, out, flags):
        if shmem.my_pe() == 0:
            if not shmem.test(flags, shmem.CMP_EQ, 1):
                shmem.signal_wait_until(flags[1:], shmem.CMP_EQ, 1)
            out[0] = dst[0]  # <- 2
        else:
            shmem.put(dst, src, 0)  # <- 1
            if FIXED:
                shmem.fence()
            shmem.signal_op(flags, 1, shmem.SIGNAL_SET, 0)
            shmem.fence()
            shmem.signal_op(flags[1:], 1, shmem.SIGNAL_SET, 0)

    src, dst, out = (shmem.ones(4, dtype="float32") for _ in range(3))
    kernel[1, 1](dst, src, out, shmem.zeros(2, dtype="uint64"))


def default_when_it_is_late(pes=2):
    """A PE whose data have not come yet fills in a default, which may come after them."""

    @shmem.jit
    def kernel(dst, src, out, flag):
        if shmem.my_pe() == 0:
            if not shmem.test(flag, shmem.CMP_EQ, 1) and not FIXED:
                dst[0] = -1  # <- 2
            shmem.signal_wait_until(flag, shmem.CMP_EQ, 1)
            out[0] = dst[0]
        else:
            shmem.put_signal(dst, src, flag, 1, shmem.SIGNAL_SET, 0)  # <- 1

    src, dst, out = (shmem.ones(1, dtype="float32") for _ in range(3))
    kernel[1, 1](dst, src, out, shmem.zeros(1, dtype="uint64"))


def the_second_is_there_so_the_first_is(pes=3):
    """If test_any finds the flag of PE 2, that of PE 1 is thought to have come, too."""

    @shmem.jit
    def kernel(dst, src, out, flags):
        me = shmem.my_pe()
        if me > 0:
            shmem.put_signal(dst[me:], src, flags[me - 1 :], 1, shmem.SIGNAL_SET, 0)  # <- 1
        else:
            k = shmem.test_any(flags, None, shmem.CMP_EQ, 1)
            if k != 1 or FIXED:
                shmem.wait_until_all(flags, None, shmem.CMP_EQ, 1)
            out[0] = dst[1] + dst[2]  # <- 2

    src, dst, out = (shmem.ones(k, dtype="float32") for k in (1, 3, 1))
    kernel[1, 1](dst, src, out, shmem.zeros(2, dtype="uint64"))


def how_many_but_not_which(pes=3):
    """That test_some finds one flag is taken for the one of the PE that usually is first."""

    @shmem.jit
    def kernel(dst, src, out, flags, found):
        me = shmem.my_pe()
        if me > 0:
            shmem.put_signal(dst[me:], src, flags[me - 1 :], 1, shmem.SIGNAL_SET, 0)  # <- 1
        else:
            n = shmem.test_some(flags, found, None, shmem.CMP_EQ, 1)
            for k in range(n):
                out[0] += dst[1 + (found[k] if FIXED else k)]  # <- 2

    src, dst, out = (shmem.ones(k, dtype="float32") for k in (1, 3, 1))
    kernel[1, 1](dst, src, out, shmem.zeros(2, dtype="uint64"), shmem.zeros(2, dtype="int64"))


def excluded_by_the_wrong_branch(pes=3):
    """A flag that has not been seen is left out of the wait that follows."""

    @shmem.jit
    def kernel(dst, src, out, flags, status):
        me = shmem.my_pe()
        if me > 0:
            shmem.put_signal(dst[me:], src, flags[me - 1 :], 1, shmem.SIGNAL_SET, 0)  # <- 1
        else:
            there = shmem.test(flags, shmem.CMP_EQ, 1)
            if not there and not FIXED:
                status[0] = 1
            shmem.wait_until_all(flags, status, shmem.CMP_EQ, 1)
            out[0] = dst[1] + dst[2]  # <- 2

    src, dst, out = (shmem.ones(k, dtype="float32") for k in (1, 3, 1))
    kernel[1, 1](dst, src, out, shmem.zeros(2, dtype="uint64"), shmem.zeros(2, dtype="int32"))


def all_of_the_first_two(pes=4):
    """Whether all have come is tested with a slice that is too short."""

    @shmem.jit
    def kernel(dst, src, out, flags):
        me = shmem.my_pe()
        if me > 0:
            shmem.put_signal(dst[me:], src, flags[me - 1 :], 1, shmem.SIGNAL_SET, 0)  # <- 1
        elif shmem.test_all(flags if FIXED else flags[:2], None, shmem.CMP_EQ, 1):
            out[0] = dst[1] + dst[2] + dst[3]  # <- 2

    src, dst, out = (shmem.ones(k, dtype="float32") for k in (1, 4, 1))
    kernel[1, 1](dst, src, out, shmem.zeros(3, dtype="uint64"))


def credit_given_too_early(pes=2):
    """The next message is written over the last one if its reader had given the credit in time."""

    @shmem.jit
    def kernel(box, other_box, src, out, flag, credit):
        if shmem.my_pe() == 0:
            shmem.put_signal(box, src, flag, 1, shmem.SIGNAL_SET, 1)
            if shmem.test(credit, shmem.CMP_EQ, 1):
                shmem.put_signal(box, src, flag, 2, shmem.SIGNAL_SET, 1)  # <- 1
            else:
                shmem.put_signal(other_box, src, flag[1:], 1, shmem.SIGNAL_SET, 1)
        else:
            shmem.signal_wait_until(flag, shmem.CMP_GE, 1)
            if not FIXED:
                shmem.signal_op(credit, 1, shmem.SIGNAL_SET, 0)
            out[0] = box[0]  # <- 2
            if FIXED:
                shmem.signal_op(credit, 1, shmem.SIGNAL_SET, 0)

    box, other_box, src, out = (shmem.ones(4, dtype="float32") for _ in range(4))
    flag, credit = shmem.zeros(2, dtype="uint64"), shmem.zeros(1, dtype="uint64")
    kernel[1, 1](box, other_box, src, out, flag, credit)


def as_many_as_have_come(pes=2):
    """As many items are used as a signal says, and only the first one has been fenced."""

    @shmem.jit
    def kernel(items, src, out, count):
        if shmem.my_pe() == 0:
            for k in range(shmem.signal_fetch(count)):
                out[0] += items[k]  # <- 2
        else:
            for k in range(2):
                shmem.put(items[k:], src, 0)  # <- 1
                if k == 0 or FIXED:
                    shmem.fence()
                shmem.signal_op(count, 1, shmem.SIGNAL_ADD, 0)

    src, items, out = (shmem.ones(k, dtype="float32") for k in (1, 2, 1))
    kernel[1, 1](items, src, out, shmem.zeros(1, dtype="uint64"))


def no_wait_if_g_has_seen_it(pes=2):
    """Where g has seen the flag, nobody waits for it; but g orders nothing."""

    @shmem.jit
    def kernel(dst, src, out, flag):
        me = shmem.my_pe()
        if me == 1:
            shmem.put_signal(dst, src, flag, 1, shmem.SIGNAL_SET, 0)  # <- 1
        else:
            if shmem.g(flag, 0) == 0 or FIXED:
                shmem.signal_wait_until(flag, shmem.CMP_EQ, 1)
            out[0] = dst[0]  # <- 2

    src, dst, out = (shmem.ones(1, dtype="float32") for _ in range(3))
    kernel[1, 1](dst, src, out, shmem.zeros(1, dtype="uint64"))


def given_up_after_three_tests(pes=2):
    """After a few tests in vain the data are used all the same."""

    @shmem.jit
    def kernel(dst, src, out, flag):
        if shmem.my_pe() == 1:
            shmem.put_signal(dst, src, flag, 1, shmem.SIGNAL_SET, 0)  # <- 1
        else:
            there, tries = False, 0
            while not there and tries < 3:
                there = shmem.test(flag, shmem.CMP_EQ, 1)
                tries += 1
            if FIXED and not there:
                shmem.signal_wait_until(flag, shmem.CMP_EQ, 1)
            out[0] = dst[0]  # <- 2

    src, dst, out = (shmem.ones(1, dtype="float32") for _ in range(3))
    kernel[1, 1](dst, src, out, shmem.zeros(1, dtype="uint64"))


def forwarded_if_it_was_there(pes=3):
    """A PE forwards the news of data for a third one if it has seen them, which a fence
    does not order."""

    @shmem.jit
    def kernel(dst, src, out, news, box):
        me = shmem.my_pe()
        if me == 0:
            shmem.put(dst, src, 2)  # <- 1
            if FIXED:
                shmem.quiet()
            else:
                shmem.fence()
            shmem.signal_op(news, 1, shmem.SIGNAL_SET, 1)
            shmem.signal_op(news, 1, shmem.SIGNAL_SET, 2)
        elif me == 1:
            there = shmem.test(news, shmem.CMP_EQ, 1)
            shmem.signal_op(box, 1 if there else 2, shmem.SIGNAL_SET, 2)
        else:
            if shmem.signal_wait_until(box, shmem.CMP_NE, 0) == 2:
                shmem.signal_wait_until(news, shmem.CMP_EQ, 1)
            out[0] = dst[0]  # <- 2

    src, dst, out = (shmem.ones(1, dtype="float32") for _ in range(3))
    kernel[1, 1](dst, src, out, shmem.zeros(1, dtype="uint64"), shmem.zeros(1, dtype="uint64"))


shmem.init()
globals()[sys.argv[1]]()
shmem.finalize()
