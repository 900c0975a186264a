"""Work stealing: blocks of PEs have deques of tasks, and take from others' when theirs are empty.

A task is an int64: an index, or several numbers in its bits. A pool is one symmetric int64 array:
row 0 has how many blocks are idle, for each of two slots; row 1 + b is the deque of block b:

    span     32 bits: how many tasks have been stolen from it (`first`); 32 bits: how many it has
    read     how many of the stolen ones their thieves have read
    safe     how many were stolen when all of those had been read: their places may be used again
    victim   how far behind it is whom it has stolen from last
    places   tasks first, first + 1, ..., each at its number modulo their number

**Taking.** Both ends of a deque are in one word, so who takes tasks does it by one compare-and-swap
of `span`: the owner the last one, a thief the first half. What is between the ends when that
succeeds is what has been taken, even if the deque has been empty in between; and its places are not
used for other tasks before the thief has read them and added to `read`. The owner looks at `read`
before `span`: if both are equal, all that were stolen until now have been read. A push completes
what the pushing thread wrote before (`quiet`), then adds to `span`, and who takes the task has read
that: so the task's data are visible to it.

**The end.** A block that finds nothing counts itself idle. Before it steals it counts itself out
again, so no block that is idle has a task, or is about to have one: when all are idle, there are no
tasks. The count of call e is in slot e % 2; the first block of the first PE takes all blocks out of
it at the end of call e + 1, when all have ended call e. A block that is in call e + 2 before that
finds more than all of them idle, never as many, since it looks only when it is idle itself.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gpushmem.kernels.parts import member
from gpushmem.kernels.plan import SLOTS, Plan
from numba import cuda

import gpushmem as shmem

__all__ = ["NO_TASK", "TaskPool", "next_task", "push_task"]

SPAN, READ, SAFE, VICTIM, PLACES = range(5)  # of a row of the pool
LOW = 0xFFFFFFFF
MOST = 1 << 24  # places
NO_TASK = -(1 << 63)


@shmem.jit(device=True)
def span_of(first, count):
    return (first & LOW) << 32 | count


@shmem.jit(device=True)
def parts_of_span(span):
    return span >> 32 & LOW, span & LOW


@shmem.jit(device=True)
def place(deque, number):
    """Where a task is in its deque."""
    return PLACES + number % (deque.size - PLACES)


@shmem.jit(device=True)
def room(deque):
    """Return how many tasks the caller's own deque can take."""
    me, places = shmem.my_pe(), deque.size - PLACES
    read = shmem.atomic_fetch(deque[READ:], me) & LOW
    first, count = parts_of_span(shmem.atomic_fetch(deque[SPAN:], me))
    if read == first:
        deque[SAFE] = first
    return places - count - (first - deque[SAFE] & LOW)


@shmem.jit(device=True)
def push_task(pool, task):
    """Add a task to the block's own deque, for this or another block; called by one thread.

    What the thread wrote before is complete, and visible to whoever gets the task. Returns False if
    the deque is full: do the task yourself.
    """
    me, deque = shmem.my_pe(), pool[1 + cuda.blockIdx.x]
    if room(deque) == 0:
        return False
    first, count = parts_of_span(shmem.atomic_fetch(deque[SPAN:], me))
    shmem.atomic_set(deque[place(deque, first + count) :], task, me)
    shmem.quiet()
    shmem.atomic_add(deque[SPAN:], 1, me)
    return True


@shmem.jit(device=True)
def taken(deque, share, pe):
    """Take tasks from the deque of `pe`: a `share` of the first, or the last one (0).

    Returns the number of the first of them, and how many they are.
    """
    while True:
        span = shmem.atomic_fetch(deque[SPAN:], pe)
        first, count = parts_of_span(span)
        if count == 0:
            return np.int64(0), np.int64(0)
        many, number, left = np.int64(1), first + count - 1, span_of(first, count - 1)
        if share > 0:
            many = min((count + 1) // 2, share)
            number, left = first, span_of(first + many, count - many)
        if shmem.atomic_compare_swap(deque[SPAN:], span, left, pe) == span:
            return number, many


@shmem.jit(device=True)
def stolen(pool, b, pe):
    """Steal tasks from block b of `pe`: return one, or NO_TASK, and push the others."""
    mine, deque = pool[1 + cuda.blockIdx.x], pool[1 + b]
    number, many = taken(deque, room(mine) + 1, pe)
    if many == 0:
        return np.int64(NO_TASK)
    task = shmem.atomic_fetch(deque[place(deque, number) :], pe)
    for k in range(1, many):
        push_task(pool, shmem.atomic_fetch(deque[place(deque, number + k) :], pe))
    shmem.atomic_add(deque[READ:], many, pe)
    return task


@shmem.jit(device=True)
def began_to_steal(idle, everybody, home):
    """Count the caller out of the idle ones, unless all are: then return False."""
    while True:
        known = shmem.atomic_fetch(idle, home)
        if known == everybody:
            return False
        if shmem.atomic_compare_swap(idle, known, known - 1, home) == known:
            return True


@shmem.jit(device=True)
def from_others(pool, idle, team):
    """Return a task of another block, NO_TASK if no block has any; the caller is idle meanwhile."""
    mine, home, blocks = pool[1 + cuda.blockIdx.x], member(team, 0), pool.shape[0] - 1
    everybody = shmem.team_n_pes(team) * blocks
    me = shmem.team_my_pe(team) * blocks + cuda.blockIdx.x
    shmem.quiet()  # what this block's tasks have written is visible to all when all are idle
    known, far = shmem.atomic_fetch_add(idle, 1, home) + 1, mine[VICTIM]
    while known != everybody:
        for _ in range(everybody):
            victim = (me + 1 + far) % everybody
            pe, b = member(team, victim // blocks), victim % blocks
            if shmem.atomic_fetch(pool[1 + b, SPAN:], pe) & LOW:
                if not began_to_steal(idle, everybody, home):
                    break
                task = stolen(pool, b, pe)
                if task != NO_TASK:
                    mine[VICTIM] = far
                    return task
                shmem.atomic_fetch_add(idle, 1, home)
            far = (far + 1) % everybody
        known = shmem.atomic_fetch(idle, home)
    return np.int64(NO_TASK)


@shmem.jit(device=True)
def next_task(pool, team, epoch):
    """Return a task to all threads of the block, once NO_TASK when all are done.

    The block's own last one, else the first of another's, of which it takes half: where it has
    found some before it looks first, at first on its own PE. `epoch` is what `begin` says. NO_TASK
    comes when all blocks of all members have called and have none: all that tasks have written is
    visible then, and the call ends. All threads call; the block is synchronised.
    """
    told = cuda.shared.array(1, np.int64)
    cuda.syncthreads()  # all have read what the call before has told
    if cuda.threadIdx.x == 0:
        me, deque = shmem.my_pe(), pool[1 + cuda.blockIdx.x]
        number, many = taken(deque, 0, me)
        if many:
            told[0] = shmem.atomic_fetch(deque[place(deque, number) :], me)
        else:
            told[0] = from_others(pool, pool[0, epoch % SLOTS :], team)
            first = cuda.blockIdx.x == 0 and shmem.team_my_pe(team) == 0
            if told[0] == NO_TASK and first and epoch > 1:
                everybody = shmem.team_n_pes(team) * (pool.shape[0] - 1)
                shmem.atomic_add(pool[0, (epoch - 1) % SLOTS :], -everybody, me)
    cuda.syncthreads()
    return told[0]


class TaskPool(Plan):
    """Deques of tasks for kernels whose blocks share work that nobody can deal out beforehand.

    `pool(kernel, *args)` launches `kernel(*args, tasks, team, epochs)`, a kernel with
    `collective=True`: its blocks push tasks (`push_task`), and do what `next_task` gives them until
    that is NO_TASK. A deque takes `places` tasks, or somewhat more; `push_task` says when it is
    full.
    """

    def __init__(
        self, *, places: int = 1024, team: Any = shmem.TEAM_WORLD, blocks: int | None = None,
        threads: int | None = None,
    ):  # fmt: skip
        super().__init__(team, blocks=blocks, threads=threads)
        if not 1 <= places <= MOST:
            raise shmem.ArgumentError(f"TaskPool: places is {places}; it must be from 1 to {MOST}")
        self.places = 1 << (places - 1).bit_length()  # numbers of tasks wrap around at 2^32
        self.tasks = self.memory(1 + self.blocks, PLACES + self.places, dtype="int64")

    def __call__(self, kernel: Any, *args: Any, stream: Any = 0) -> None:
        """Launch a kernel in the stream's order; all members of the team make the same calls."""
        self.launch(kernel, stream, *args, self.tasks)
