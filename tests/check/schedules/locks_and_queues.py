"""Locks, barriers, queues and mailboxes of a program's own, each right in all orders but some.

Each function is a program: the first argument is its name.
"""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv


def goes_on_without_the_lock(pes=3):
    """Who does not get a lock counts that, and goes on as if it had."""

    @shmem.jit
    def kernel(lock, total, mine, missed):
        me = shmem.my_pe()
        if me > 0:
            got = shmem.atomic_compare_swap(lock, 0, me, 0) == 0
            if not got:
                shmem.atomic_inc(missed, 0)
            if got or not FIXED:
                mine[0] = shmem.g(total, 0) + me  # <- 3
                shmem.put(total, mine, 0)  # <- 1 <- 2
                shmem.quiet()
            if got:
                shmem.atomic_compare_swap(lock, me, 0, 0)

    total, mine = shmem.zeros(1, dtype="int32"), shmem.zeros(1, dtype="int32")
    kernel[1, 1](shmem.zeros(1, dtype="int32"), total, mine, shmem.zeros(1, dtype="int32"))


def reader_in_a_writers_section(pes=2):
    """A reader looks for a writer before it says that it reads, instead of after it."""

    # 0: nobody has been there, 1: the writer is, 4: it has been; 2 more if the reader has.
    @shmem.jit
    def kernel(data, src, copy, state):
        if shmem.my_pe() == 0:
            if shmem.atomic_compare_swap(state, 0, 1, 0) == 0:
                shmem.put(data, src, 0)  # <- 1
                shmem.quiet()
                shmem.atomic_add(state, 3, 0)
        else:
            if FIXED:
                seen = shmem.atomic_fetch_add(state, 2, 0)
            else:
                seen = shmem.atomic_fetch(state, 0)
                shmem.atomic_add(state, 2, 0)
            if seen != 1:
                shmem.get(copy, data, 0)  # <- 2

    data, src, copy = (shmem.ones(4, dtype="float32") for _ in range(3))
    kernel[1, 1](data, src, copy, shmem.zeros(1, dtype="int32"))


def reader_that_leaves_no_trace(pes=2):
    """A reader looks for a writer before it counts itself; both take back what they have added."""

    @shmem.jit
    def kernel(data, src, copy, state):
        if shmem.my_pe() == 0:
            if shmem.atomic_compare_swap(state, 0, 1, 0) == 0:
                shmem.put(data, src, 0)  # <- 1
                shmem.quiet()
                shmem.atomic_add(state, -1, 0)
        elif FIXED:
            if shmem.atomic_fetch_add(state, 2, 0) % 2 == 0:
                shmem.get(copy, data, 0)
                shmem.quiet()
            shmem.atomic_add(state, -2, 0)
        elif shmem.atomic_fetch(state, 0) == 0:
            shmem.atomic_add(state, 2, 0)
            shmem.get(copy, data, 0)  # <- 2
            shmem.atomic_add(state, -2, 0)

    data, src, copy = (shmem.ones(4, dtype="float32") for _ in range(3))
    kernel[1, 1](data, src, copy, shmem.zeros(1, dtype="int32"))


def arrival_swapped_away(pes=2):
    """A PE makes the counter of a barrier ready for the next one, for which another one may have
    come."""

    @shmem.jit
    def kernel(count):
        me, n = shmem.my_pe(), shmem.n_pes()
        for _ in range(2):
            for pe in range(n):
                shmem.atomic_inc(count, pe)
            shmem.wait_until(count, shmem.CMP_GE, n)
            if FIXED:
                shmem.atomic_add(count, -n, me)
            else:
                shmem.atomic_swap(count, 0, me)  # <- fails

    kernel[1, 1](shmem.zeros(1, dtype="int32"))


def nobody_wakes_it(pes=2):
    """A PE looks for work and then says that it sleeps; between the two some may come."""

    @shmem.jit
    def kernel(work, sleeps, wake):
        if shmem.my_pe() == 0:
            if FIXED:
                shmem.atomic_set(sleeps, 1, 0)
            if not shmem.test(work, shmem.CMP_EQ, 1):
                shmem.atomic_set(sleeps, 1, 0)  # <- fails
                shmem.signal_wait_until(wake, shmem.CMP_EQ, 1)
        else:
            shmem.atomic_set(work, 1, 0)
            shmem.fence()
            if shmem.atomic_fetch(sleeps, 0) == 1:
                shmem.signal_op(wake, 1, shmem.SIGNAL_SET, 0)

    work, sleeps = shmem.zeros(1, dtype="int32"), shmem.zeros(1, dtype="int32")
    kernel[1, 1](work, sleeps, shmem.zeros(1, dtype="uint64"))


def message_swapped_away(pes=3):
    """Two PEs swap messages into a mailbox; one that had not been fetched is lost."""

    @shmem.jit
    def kernel(box, more, got, sent):
        me = shmem.my_pe()
        if me > 0:
            old = shmem.atomic_swap(box, me, 0)  # <- fails
            if FIXED and old != 0:
                shmem.atomic_add(more, old, 0)
            shmem.fence()
            shmem.signal_op(sent, 1, shmem.SIGNAL_ADD, 0)
        else:
            shmem.signal_wait_until(sent, shmem.CMP_GE, 1)
            got[0] = shmem.atomic_swap(box, 0, 0)
            shmem.signal_wait_until(sent, shmem.CMP_GE, 2)
            got[0] += shmem.atomic_swap(box, 0, 0) + shmem.atomic_fetch(more, 0)

    box, more, got = (shmem.zeros(1, dtype="int32") for _ in range(3))
    kernel[1, 1](box, more, got, shmem.zeros(1, dtype="uint64"))
    if shmem.my_pe() == 0 and got.numpy()[0] != 3:
        raise RuntimeError("a message is lost")


def two_locks_in_two_orders(pes=2):
    """Each PE takes two ticket locks, one PE in the other order."""

    @shmem.jit
    def kernel(tickets, served):
        me = shmem.my_pe()
        first = 0 if FIXED else me
        for k in range(2):
            lock = (first + k) % 2
            mine = shmem.atomic_fetch_inc(tickets[lock:], 0)
            shmem.wait_until(served[lock:], shmem.CMP_GE, mine)  # <- fails
        for lock in range(2):
            for pe in range(2):
                shmem.atomic_inc(served[lock:], pe)

    kernel[1, 1](shmem.zeros(2, dtype="int32"), shmem.zeros(2, dtype="int32"))


def queue_left_without_a_look(pes=2):
    """A lock is a queue: who gives it back and sees nobody behind it empties the queue, though
    somebody may just have joined."""

    @shmem.jit
    def kernel(tail, behind, go):
        me = shmem.my_pe()
        before = shmem.atomic_swap(tail, me + 1, 0)
        if before != 0:
            shmem.atomic_set(behind, me + 1, before - 1)
            shmem.signal_wait_until(go, shmem.CMP_EQ, 1)
        if not shmem.test(behind, shmem.CMP_NE, 0):
            if not FIXED:
                shmem.atomic_set(tail, 0, 0)  # <- fails
                return
            if shmem.atomic_compare_swap(tail, me + 1, 0, 0) == me + 1:
                return
            shmem.wait_until(behind, shmem.CMP_NE, 0)
        shmem.signal_op(go, 1, shmem.SIGNAL_SET, shmem.atomic_fetch(behind, me) - 1)

    tail, behind = shmem.zeros(1, dtype="int32"), shmem.zeros(1, dtype="int32")
    kernel[1, 1](tail, behind, shmem.zeros(1, dtype="uint64"))


def the_same_item_twice(pes=2):
    """The owner takes from one end of a list of tasks, a thief from the other, and the last one
    both."""

    @shmem.jit
    def kernel(results, src, top, bottom):
        me, task = shmem.my_pe(), -1
        if me == 0:
            last = shmem.atomic_fetch(bottom, 0) - 1
            shmem.atomic_set(bottom, last, 0)
            first = shmem.atomic_fetch(top, 0)
            if first < last or (
                first == last
                and (not FIXED or shmem.atomic_compare_swap(top, first, first + 1, 0) == first)
            ):
                task = last
        else:
            first = shmem.atomic_fetch(top, 0)
            if (
                first < shmem.atomic_fetch(bottom, 0)
                and shmem.atomic_compare_swap(top, first, first + 1, 0) == first
            ):
                task = first
        if task >= 0:
            shmem.put(results[task:], src, 0)  # <- 1 <- 2

    results, src = shmem.zeros(2, dtype="float32"), shmem.ones(1, dtype="float32")
    top, bottom = shmem.zeros(1, dtype="int32"), shmem.full(1, 1, dtype="int32")
    kernel[1, 1](results, src, top, bottom)


def reference_taken_too_late(pes=2):
    """A PE sees that others use a buffer, and counts itself as a user when they may be gone."""

    @shmem.jit
    def kernel(buffer, src, copy, users):
        if shmem.my_pe() == 0:
            if shmem.atomic_fetch_add(users, -1, 0) == 1:
                shmem.put(buffer, src, 0)  # <- 1
        else:
            seen = shmem.atomic_fetch(users, 0)
            if FIXED:
                mine = seen > 0 and shmem.atomic_compare_swap(users, seen, seen + 1, 0) == seen
            else:
                mine = seen > 0
                if mine:
                    shmem.atomic_inc(users, 0)
            if mine:
                shmem.get(copy, buffer, 0)  # <- 2

    buffer, src, copy = (shmem.ones(1, dtype="float32") for _ in range(3))
    kernel[1, 1](buffer, src, copy, shmem.ones(1, dtype="int32"))


def ended_between_two_tasks(pes=3):
    """Nobody works when a PE has ended its task, and not yet counted the one that follows."""

    @shmem.jit
    def kernel(result, src, out, active, over):
        me = shmem.my_pe()
        if me == 1:
            if not FIXED:
                shmem.atomic_add(active, -1, 0)
                shmem.fence()
                shmem.atomic_inc(active, 0)
            shmem.put(result, src, 0)  # <- 1
            shmem.fence()
            shmem.atomic_add(active, -1, 0)
            shmem.signal_op(over, 1, shmem.SIGNAL_SET, 0)
        elif me == 0:
            if shmem.atomic_fetch(active, 0) != 0:
                shmem.signal_wait_until(over, shmem.CMP_EQ, 1)
            out[0] = result[0]  # <- 2

    result, src, out = (shmem.ones(1, dtype="float32") for _ in range(3))
    kernel[1, 1](result, src, out, shmem.ones(1, dtype="int32"), shmem.zeros(1, dtype="uint64"))


shmem.init()
globals()[sys.argv[1]]()
shmem.finalize()
