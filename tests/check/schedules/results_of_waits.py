"""What a wait has returned, or who was first in one, decides what is done.

Each function is a program: the first argument is its name.
"""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv


def the_other_index(pes=3):
    """Of two flags wait_until_some finds one; the other index is taken from where none is."""

    @shmem.jit
    def kernel(dst, src, out, flags, found):
        me = shmem.my_pe()
        if me > 0:
            shmem.put_signal(dst[me:], src, flags[me - 1 :], 1, shmem.SIGNAL_SET, 0)  # <- 1
        else:
            n = shmem.wait_until_some(flags, found, None, shmem.CMP_EQ, 1)
            if n == 1:
                k = 1 - found[0] if FIXED else found[1]
                shmem.signal_wait_until(flags[k:], shmem.CMP_EQ, 1)
            out[0] = dst[1] + dst[2]  # <- 2

    src, dst, out = (shmem.ones(k, dtype="float32") for k in (1, 3, 1))
    kernel[1, 1](dst, src, out, shmem.zeros(2, dtype="uint64"), shmem.zeros(2, dtype="int64"))


def more_than_one_is_both(pes=3):
    """PE 1 adds 1 and PE 2 adds 2: a value of 2 or more is not yet both."""

    @shmem.jit
    def kernel(dst, src, out, sum_):
        me = shmem.my_pe()
        if me > 0:
            shmem.put_signal(dst[me:], src, sum_, me, shmem.SIGNAL_ADD, 0)  # <- 1
        else:
            came = shmem.signal_wait_until(sum_, shmem.CMP_GE, 1)
            if came == 1 or (came == 2 and FIXED):
                out[0] = dst[came]
            else:
                out[0] = dst[1] + dst[2]  # <- 2

    src, dst, out = (shmem.ones(k, dtype="float32") for k in (1, 3, 1))
    kernel[1, 1](dst, src, out, shmem.zeros(1, dtype="uint64"))


def the_wrong_rest(pes=3):
    """Each sender has a bit; whether the other one's has come is asked by a comparison."""

    @shmem.jit
    def kernel(dst, src, out, bits):
        me = shmem.my_pe()
        if me > 0:
            shmem.put(dst[me:], src, 0)  # <- 1
            shmem.fence()
            shmem.atomic_or(bits, me, 0)
        else:
            shmem.wait_until(bits, shmem.CMP_NE, 0)
            if shmem.atomic_fetch(bits, 0) != 3:
                if FIXED:
                    shmem.wait_until(bits, shmem.CMP_EQ, 3)
                else:
                    shmem.wait_until(bits, shmem.CMP_GE, 2)
            out[0] = dst[1] + dst[2]  # <- 2

    src, dst, out = (shmem.ones(k, dtype="float32") for k in (1, 3, 1))
    kernel[1, 1](dst, src, out, shmem.zeros(1, dtype="uint32"))


def answers_from_one_buffer(pes=3):
    """Who asks first is answered first; the buffer of the answer is used again, and one of
    two ways there completes what was sent from it."""

    @shmem.jit
    def kernel(box, answer, asked, answered):
        me = shmem.my_pe()
        if me > 0:
            shmem.signal_op(asked[me - 1 :], 1, shmem.SIGNAL_SET, 0)
            shmem.signal_wait_until(answered, shmem.CMP_EQ, 1)
        else:
            first = shmem.wait_until_any(asked, None, shmem.CMP_EQ, 1) + 1
            answer[0] = 10 * first
            shmem.put_signal_nbi(  # <- 1
                box, answer, answered, 1, shmem.SIGNAL_SET, first
            )
            if first == 1 or FIXED:
                shmem.quiet()
            shmem.wait_until_all(asked, None, shmem.CMP_EQ, 1)
            answer[0] = 10 * (3 - first)  # <- 2
            shmem.put_signal(box, answer, answered, 1, shmem.SIGNAL_SET, 3 - first)

    box, answer = shmem.zeros(1, dtype="int32"), shmem.zeros(1, dtype="int32")
    kernel[1, 1](box, answer, shmem.zeros(2, dtype="uint64"), shmem.zeros(1, dtype="uint64"))


def slot_by_rank(pes=3):
    """Slots are given to those who ask in their order, and one PE takes the one of its rank."""

    @shmem.jit
    def kernel(slots, src, asked, given):
        me = shmem.my_pe()
        if me > 0:
            shmem.signal_op(asked[me - 1 :], 1, shmem.SIGNAL_SET, 0)
            slot = shmem.signal_wait_until(given, shmem.CMP_NE, 0) - 1
            if me == 2 and not FIXED:
                slot = 1
            shmem.put(slots[slot:], src, 0)  # <- 1 <- 2
        else:
            first = shmem.wait_until_any(asked, None, shmem.CMP_EQ, 1) + 1
            shmem.signal_op(given, 1, shmem.SIGNAL_SET, first)
            shmem.signal_op(given, 2, shmem.SIGNAL_SET, 3 - first)

    slots, src = shmem.zeros(2, dtype="int32"), shmem.ones(1, dtype="int32")
    kernel[1, 1](slots, src, shmem.zeros(2, dtype="uint64"), shmem.zeros(1, dtype="uint64"))


def the_second_answers_nobody(pes=3):
    """A server waits for any request twice, and does not leave out the one it has served."""

    # Where both requests are there at once, any of them is returned.
    @shmem.jit
    def kernel(asked, answered, served):
        me = shmem.my_pe()
        if me > 0:
            shmem.signal_op(asked[me - 1 :], 1, shmem.SIGNAL_SET, 0)
            shmem.signal_wait_until(answered, shmem.CMP_GE, 1)
        else:
            if not FIXED:
                shmem.signal_wait_until(asked[1:], shmem.CMP_EQ, 1)
            for _ in range(2):
                k = shmem.wait_until_any(asked, served, shmem.CMP_EQ, 1)
                served[k] = 1 if FIXED else served[k]  # <- fails
                shmem.signal_op(answered, 1, shmem.SIGNAL_ADD, k + 1)

    asked, answered = shmem.zeros(2, dtype="uint64"), shmem.zeros(1, dtype="uint64")
    kernel[1, 1](asked, answered, shmem.zeros(2, dtype="int32"))


def both_are_polite(pes=2):
    """Each of two PEs asks the other one, and lets it go first if it has asked, too."""

    @shmem.jit
    def kernel(asked, over):
        me = shmem.my_pe()
        shmem.atomic_set(asked, 1, 1 - me)
        if shmem.test(asked, shmem.CMP_EQ, 1) and (me == 1 or not FIXED):
            shmem.signal_wait_until(over, shmem.CMP_EQ, 1)  # <- fails
        shmem.signal_op(over, 1, shmem.SIGNAL_SET, 1 - me)

    kernel[1, 1](shmem.zeros(1, dtype="int32"), shmem.zeros(1, dtype="uint64"))


shmem.init()
globals()[sys.argv[1]]()
shmem.finalize()
