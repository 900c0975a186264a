"""Locks and queues that PEs share: device functions, called by one thread but where it is said.

Words are symmetric arrays of zeros, and their home is one PE, the same for all who use them. All
of these are fair: who asks first is served first. Remote waits poll the home's memory, except
those of `mcs_lock`, whose waiters each look at a word of their own.

**Why what is guarded is seen.** Who gives a lock back calls `quiet`, after which all that it wrote
under the lock, on whichever PE, is complete; then it writes the word that the next one waits for.
That one has seen the word by an atomic operation or a wait, so all of it is visible to it. Items of
a queue travel with the signal that says that the cell is full (`put_signal`), and a cell is said to
be empty only when its item has been copied out of it, by a `get` that has returned.
"""

from __future__ import annotations

import numpy as np
from numba import cuda

import gpushmem as shmem

__all__ = [
    "mcs_lock", "mcs_unlock", "pop", "push", "ticket_lock", "ticket_unlock", "try_pop", "try_push",
]  # fmt: skip

NEXT, SERVED = 0, 1  # words of a ticket lock
LAST, AFTER, GRANTS = 0, 1, 2  # words of an MCS lock
TAIL, HEAD, CELLS = 0, 1, 2  # words of a queue: the next to be pushed, popped; a turn for each cell


@shmem.jit(device=True)
def wait_at(words, value, pe):
    """Wait until element 0 of `words` is `value` on `pe`."""
    if pe == shmem.my_pe():
        shmem.signal_wait_until(words, shmem.CMP_EQ, value)
    else:
        while np.int64(shmem.atomic_fetch(words, pe)) != value:
            pass


@shmem.jit(device=True)
def ticket_lock(words, home):
    """Take a lock of two uint64 `words`, waiting for those who asked before.

    Two messages, and those that poll. Returns the ticket, for `ticket_unlock`.
    """
    ticket = np.int64(shmem.atomic_fetch_add(words[NEXT:], 1, home))
    wait_at(words[SERVED:], ticket, home)
    return ticket


@shmem.jit(device=True)
def ticket_unlock(words, ticket, home):
    """Give back what `ticket_lock` has taken; what the caller wrote before is complete."""
    shmem.quiet()
    shmem.signal_op(words[SERVED:], ticket + 1, shmem.SIGNAL_SET, home)


@shmem.jit(device=True)
def mcs_lock(words, home):
    """Take a lock of three uint64 `words`, waiting for those who asked before.

    By one thread of a PE at a time. A waiter looks at its own memory alone, whatever the number of
    PEs. J. M. Mellor-Crummey and M. L. Scott, "Algorithms for Scalable Synchronization on
    Shared-Memory Multiprocessors", 1991.
    """
    me = shmem.my_pe()
    grants = np.int64(shmem.atomic_fetch(words[GRANTS:], me))
    before = np.int64(shmem.atomic_swap(words[LAST:], me + 1, home))
    if before != 0:
        shmem.signal_op(words[AFTER:], me + 1, shmem.SIGNAL_SET, before - 1)
        shmem.signal_wait_until(words[GRANTS:], shmem.CMP_EQ, grants + 1)


@shmem.jit(device=True)
def mcs_unlock(words, home):
    """Give back what `mcs_lock` has taken; what the caller wrote before is complete."""
    me = shmem.my_pe()
    shmem.quiet()
    if shmem.atomic_fetch(words[AFTER:], me) == 0:
        if shmem.atomic_compare_swap(words[LAST:], me + 1, 0, home) == me + 1:
            return
        shmem.signal_wait_until(words[AFTER:], shmem.CMP_NE, 0)  # somebody is about to say who
    after = np.int64(shmem.atomic_swap(words[AFTER:], 0, me))
    shmem.signal_op(words[GRANTS:], 1, shmem.SIGNAL_ADD, after - 1)


@shmem.jit(device=True)
def turn_of(words, ticket):
    """Where the turn of a ticket's cell is in a queue's `words`, and the turn when it is empty."""
    cells = words.size - CELLS
    return CELLS + ticket % cells, ticket // cells * 2


@shmem.jit(device=True)
def claimed(words, end, home):
    """Return a ticket whose cell is empty (`end` is TAIL) or full (HEAD); -1 if there is none."""
    while True:
        ticket = np.int64(shmem.atomic_fetch(words[end:], home))
        at, empty = turn_of(words, ticket)
        turn = np.int64(shmem.atomic_fetch(words[at:], home))
        if turn < empty + end:
            return np.int64(-1)
        if np.int64(shmem.atomic_compare_swap(words[end:], ticket, ticket + 1, home)) == ticket:
            return ticket


@shmem.jit(device=True)
def cell_for(words, end, home, waits):
    """Return where the turn of the block's cell is, and the turn when it is empty; -1: none is.

    As `claimed` says, or if it `waits`, as soon as it is there. Synchronises the block.
    """
    told = cuda.shared.array(1, np.int64)
    cuda.syncthreads()  # all have read what the call before has told
    if cuda.threadIdx.x == 0:
        if waits:
            ticket = np.int64(shmem.atomic_fetch_add(words[end:], 1, home))
            at, empty = turn_of(words, ticket)
            wait_at(words[at:], empty + end, home)
        else:
            ticket = claimed(words, end, home)
        told[0] = ticket
    cuda.syncthreads()
    if told[0] < 0:
        return np.int64(-1), np.int64(0)
    return turn_of(words, told[0])


@shmem.jit(device=True)
def pushed(words, cells, item, home, waits):
    """Put an item into a cell, and say so, if there is one; whether there was. See `cell_for`."""
    at, empty = cell_for(words, TAIL, home, waits)
    if at >= 0:
        cell, full = cells[at - CELLS], words[at:]
        shmem.put_signal_block(cell, item, full, empty + 1, shmem.SIGNAL_SET, home)
    return at >= 0


@shmem.jit(device=True)
def popped(words, cells, out, home, waits):
    """Take an item out of a cell, and say so; then all threads see it. Otherwise as `pushed`."""
    at, empty = cell_for(words, HEAD, home, waits)
    if at >= 0:
        shmem.get_block(out, cells[at - CELLS], home)
        if cuda.threadIdx.x == 0:
            shmem.signal_op(words[at:], empty + 2, shmem.SIGNAL_SET, home)
    return at >= 0


@shmem.jit(device=True)
def push(words, cells, item, home):
    """Append an item to the queue on `home`, waiting for room; all threads of a block call.

    Any block of any PE pushes and pops. `cells` (c, ...) are symmetric, as are `words` (c + 2,),
    uint64 zeros; `item` has the shape of a cell, and may be changed on return. Items are popped in
    the order of their turns, which are taken by one addition. Synchronises the block.
    """
    pushed(words, cells, item, home, True)


@shmem.jit(device=True)
def try_push(words, cells, item, home):
    """As `push`, but if there is no room return False at once; otherwise True."""
    return pushed(words, cells, item, home, False)


@shmem.jit(device=True)
def pop(words, cells, out, home):
    """Take the first item of the queue on `home` to `out`, waiting for one; see `push`."""
    popped(words, cells, out, home, True)


@shmem.jit(device=True)
def try_pop(words, cells, out, home):
    """As `pop`, but if there is no item return False at once; otherwise True."""
    return popped(words, cells, out, home, False)
