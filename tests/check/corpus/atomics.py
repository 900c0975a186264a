"""Counters, locks and queues of several PEs.

Each function is a program: the first argument is its name.
"""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv


def accumulated_by_get_and_put(pes=3):
    """Two PEs add to a number of a third one with g and put."""

    @shmem.jit
    def kernel(total, mine):
        me = shmem.my_pe()
        if me > 0:
            if FIXED:
                shmem.atomic_add(total, me, 0)
            else:
                mine[0] = shmem.g(total, 0) + me  # <- 1
                shmem.put(total, mine, 0)  # <- 2

    kernel[1, 1](shmem.zeros(1, dtype="int32"), shmem.zeros(1, dtype="int32"))


def additions_lost_by_a_reset(pes=3):
    """The owner sets a counter to 0 for the next round, when other PEs may have added to it."""

    @shmem.jit
    def kernel(arrived):
        me = shmem.my_pe()
        if me == 0:
            shmem.atomic_set(arrived, 0, 0)  # <- 1
        if FIXED:
            shmem.barrier_all()
        if me > 0:
            shmem.atomic_add(arrived, 1, 0)  # <- 2

    kernel[1, 1](shmem.zeros(1, dtype="int32"))


def atomic_and_plain_increments(pes=2):
    """A PE counts with a plain addition in the counter to which another one adds atomically."""

    @shmem.jit
    def kernel(hits):
        me = shmem.my_pe()
        for _ in range(4):
            if me == 0 and not FIXED:
                hits[0] += 1  # <- 2
            else:
                shmem.atomic_inc(hits, 0)  # <- 1

    kernel[1, 1](shmem.zeros(1, dtype="uint64"))


def counter_of_two_gpus(pes=2):
    """The owner counts with cuda.atomic in a word to which other PEs add."""

    @shmem.jit
    def kernel(count):
        me = shmem.my_pe()
        if me == 1 or FIXED:
            shmem.atomic_add(count, 1, 0)  # <- 1
        else:
            cuda.atomic.add(count, 0, 1)  # <- 2

    count = shmem.zeros(1, dtype="int64")
    kernel[1, 32](count)
    shmem.barrier_all()


def counter_read_by_get(pes=3):
    """A counter is read with get, while other PEs add to it."""

    @shmem.jit
    def kernel(counter, out):
        me = shmem.my_pe()
        if me == 1:
            shmem.atomic_add(counter, 3, 0)  # <- 1
        elif me == 2:
            if FIXED:
                out[0] = shmem.atomic_fetch(counter, 0)
            else:
                shmem.get(out, counter, 0)  # <- 2

    kernel[1, 1](shmem.zeros(1, dtype="int32"), shmem.zeros(1, dtype="int32"))


def flag_of_one_gpu(pes=2):
    """A flag on another PE is set by cuda.atomic, which is atomic for the threads of its own
    GPU."""

    @shmem.jit
    def kernel(dst, out, flag):
        other = 1 - shmem.my_pe()
        shmem.peer_array(dst, other)[0] = 5
        cuda.threadfence_system()
        if FIXED:
            shmem.atomic_set(flag, 1, other)
        else:
            cuda.atomic.exch(shmem.peer_array(flag, other), 0, 1)  # <- 1
        shmem.wait_until(flag, shmem.CMP_EQ, 1)  # <- 2
        out[0] = dst[0]

    dst, out = shmem.zeros(8, dtype="float32"), shmem.zeros(8, dtype="float32")
    kernel[1, 1](dst, out, shmem.zeros(1, dtype="int32"))
    shmem.barrier_all()


def flag_stored_to_a_peer(pes=2):
    """A flag is a plain store through peer_array, for which the peer waits."""

    @shmem.jit
    def kernel(dst, src, out, flag):
        other = 1 - shmem.my_pe()
        shmem.put(dst, src, other)
        shmem.fence()
        if FIXED:
            shmem.p(flag, 1, other)
        else:
            shmem.peer_array(flag, other)[0] = 1  # <- 1
        shmem.wait_until(flag, shmem.CMP_EQ, 1)  # <- 2
        out[0] = dst[0]

    src, dst, out = (shmem.ones(8, dtype="float32") for _ in range(3))
    kernel[1, 1](dst, src, out, shmem.zeros(1, dtype="int32"))


def plain_store_to_a_counter(pes=2):
    """The owner of a counter resets it with a plain store."""

    @shmem.jit
    def kernel(counter, ready):
        other = 1 - shmem.my_pe()
        counter[0] = 0  # <- 2
        if FIXED:
            shmem.sync_all()
        shmem.atomic_add(counter, 1, other)  # <- 1

    kernel[1, 1](shmem.zeros(1, dtype="int64"), 0)


def sum_of_atomics(pes=3):
    """All PEs add to a sum on PE 0, which reads it when all have called sync, but not completed."""

    @shmem.jit
    def kernel(total, out):
        shmem.atomic_add(total, 1.5, 0)  # <- 1
        if FIXED:
            shmem.barrier_all()
        else:
            shmem.sync_all()
        if shmem.my_pe() == 0:
            out[0] = total[0]  # <- 2

    kernel[1, 1](shmem.zeros(1, dtype="float64"), shmem.zeros(1, dtype="float64"))


def the_last_one_adds(pes=3):
    """PEs put their parts to PE 0 and count themselves; the last one gets all parts and adds
    them."""

    # A good report: ordering, what put writes may arrive after it is read; missing: quiet() before
    # atomic_fetch_inc. The fixed program is right: who gets 2 knows that the others are complete.
    @shmem.jit
    def kernel(parts, own, all_parts, arrived):
        me, n = shmem.my_pe(), shmem.n_pes()
        shmem.put(parts[me:], own, 0)  # <- 1
        if FIXED:
            shmem.quiet()
        if shmem.atomic_fetch_inc(arrived, 0) == n - 1:
            shmem.get(all_parts, parts, 0)  # <- 2

    parts, own, all_parts = (shmem.ones(k, dtype="float32") for k in (3, 1, 3))
    kernel[1, 1](parts, own, all_parts, shmem.zeros(1, dtype="int32"))


def reserved_is_not_written(pes=3):
    """A queue's tail is moved to reserve a place; its owner reads as far as the tail."""

    @shmem.jit
    def kernel(queue, src, out, tail, written):
        if shmem.my_pe() > 0:
            place = shmem.atomic_fetch_add(tail, 2, 0)
            shmem.put(queue[place:], src, 0)  # <- 1
            shmem.fence()
            shmem.atomic_add(written, 2, 0)
        else:
            shmem.wait_until(written if FIXED else tail, shmem.CMP_GE, 4)
            for k in range(4):
                out[k] = queue[k]  # <- 2

    src, queue, out = shmem.ones(2), shmem.zeros(4), shmem.zeros(4)
    kernel[1, 1](queue, src, out, shmem.zeros(1, dtype="int64"), shmem.zeros(1, dtype="int64"))


def lock(pes=3):
    """PEs add to a number, which a lock that is made of atomic operations protects."""

    # A good report: race, nothing orders the two puts; in the fixed program the lock does.
    @shmem.jit
    def kernel(number, lock, mine):
        me = shmem.my_pe()
        while FIXED and shmem.atomic_compare_swap(lock, 0, me + 1, 0) != 0:
            pass
        shmem.get(mine, number, 0)  # <- 1
        mine[0] += 1
        shmem.put(number, mine, 0)  # <- 2
        shmem.quiet()
        if FIXED:
            shmem.atomic_set(lock, 0, 0)

    number, mine = shmem.zeros(1, dtype="int64"), shmem.zeros(1, dtype="int64")
    kernel[1, 1](number, shmem.zeros(1, dtype="int64"), mine)


def lock_of_one_bit(pes=3):
    """PEs add to a number under a lock, a bit of a word, and give it back before that is there."""

    @shmem.jit
    def kernel(number, word, mine):
        while shmem.atomic_fetch_or(word, 4, 0) & 4:
            pass
        shmem.get(mine, number, 0)  # <- 2
        mine[0] += 1
        shmem.put(number, mine, 0)  # <- 1
        if FIXED:
            shmem.quiet()
        shmem.atomic_and(word, ~4, 0)

    number, mine = shmem.zeros(1, dtype="int64"), shmem.zeros(1, dtype="int64")
    kernel[1, 1](number, shmem.zeros(1, dtype="int64"), mine)


def lock_on_a_pe(pes=3):
    """PEs add to numbers on PE 0 under a lock, and give it back before they have arrived."""

    @shmem.jit
    def kernel(lock, total, mine):
        while shmem.atomic_compare_swap(lock, 0, 1, 0) != 0:
            pass
        shmem.get(mine, total, 0)  # <- 2
        for i in range(mine.size):
            mine[i] += 1.0
        shmem.put(total, mine, 0)  # <- 1
        if FIXED:
            shmem.quiet()
        shmem.atomic_set(lock, 0, 0)

    lock, total, mine = (
        shmem.zeros(1, "int32"),
        shmem.zeros(4, "float32"),
        shmem.zeros(4, "float32"),
    )
    kernel[1, 1](lock, total, mine)
    shmem.barrier_all()
    assert shmem.my_pe() != 0 or total.numpy()[0] == pes


def loser_writes_too(pes=3):
    """Two PEs claim a place with compare_swap, and both write to it, whoever has won."""

    @shmem.jit
    def kernel(owner, place, src):
        me = shmem.my_pe()
        if me > 0:
            before = shmem.atomic_compare_swap(owner, 0, me, 0)
            if before == 0 or not FIXED:
                shmem.put(place, src, 0)  # <- 1 <- 2

    kernel[1, 1](shmem.zeros(1, dtype="int32"), shmem.zeros(8), shmem.ones(8))


def half_of_a_word(pes=3):
    """A counter of 64 bits, half of which another PE adds to as to one of 32."""

    @shmem.jit
    def kernel(words, halves):
        me = shmem.my_pe()
        if me == 1:
            shmem.atomic_add(words, 1, 0)  # <- 1
        elif me == 2:
            if FIXED:
                shmem.atomic_add(words, 1, 0)
            else:
                shmem.atomic_add(halves, 1, 0)  # <- 2

    words = shmem.zeros(2, dtype="int64")
    kernel[1, 1](words, words.view("int32"))


def signal_by_four_bytes(pes=2):
    """A flag of 64 bits that is set by a `p` of 32 bits."""

    @shmem.jit
    def kernel(flag, half):
        if shmem.my_pe() == 1:
            if FIXED:
                shmem.p(flag, 1, 0)
            else:
                shmem.p(half, 1, 0)  # <- 1
        else:
            shmem.wait_until(flag, shmem.CMP_EQ, 1)  # <- 2

    flag = shmem.zeros(1, dtype="int64")
    kernel[1, 1](flag, flag.view("int32"))


shmem.init()
globals()[sys.argv[1]]()
shmem.finalize()
