"""Who is next: calls that words depend on, one at a time, in an order that is given to a run.

`exploration` runs a job again and again, each time with another order of the operations whose
results depend on who is first. An operation on words *takes its turn*: it begins when those that
are to come before it have ended, and while it goes on no other one does. The order is a list of
threads; after it everyone goes on as they come. A wait gives its turn away while it waits.

Where a list cannot be followed, as a thread in it waits for something that comes later, everyone
goes on after `PATIENCE`: the run is then one in another order, and says so (`given_up`).
"""

from __future__ import annotations

import ctypes
import mmap
import operator
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numba import types

from gpushmem.artifacts.gpu_model import LANES
from gpushmem.check.log import LOG, PHASE
from gpushmem.native.c_function import c_function
from gpushmem.native.internal import internal
from gpushmem.native.memory import (
    compare_swap_word,
    load_acquire,
    monotonic_ns,
    set_word,
    store_release,
    usleep,
    word_at,
)
from gpushmem.native.structs import offset, view
from gpushmem.ops import Op
from gpushmem.ops.row import DATA, READS
from gpushmem.simt.functions import device, kept
from gpushmem.simt.layout import FIBER, LAUNCH, THREAD
from gpushmem.simt.thread import fiber_word, launch_word, pause, site_word, thread_word

__all__ = [
    "CHANGES_NOTHING", "PAUSES", "Schedule", "argument_of", "begin", "changes_nothing", "counted",
    "end", "named", "only_reads", "schedule_word", "takes_turns", "thread_named",
]  # fmt: skip

# `holder`: the thread whose turn it is, 0 if none; `turn`: how many there have been; `listed`: how
# many there are in the list.
SCHEDULE = np.dtype([(name, "i8") for name in ("holder", "turn", "listed", "given_up")])
LIST, MOST = 64, 1 << 16  # where the list begins, in bytes, and how long it is at most
SLOT_BITS, SLOT = 12, 32
POLLS, SLOTS = LIST + 8 * MOST, 1 << SLOT_BITS  # of each poll what it saw
SIZE = POLLS + SLOTS * SLOT
TURN, LISTED = (offset(SCHEDULE, name) for name in ("turn", "listed"))
PATIENCE = 5_000_000_000  # nanoseconds in which nobody has had a turn
SHORT = 5_000_000  # ... and after which a poll that will see nothing new needs none
PE_BITS, LAUNCH_BITS = 48, 28
MIX = -0x61C8864680B583EB  # odd; of numbers that are spread over the slots
SPREAD_PES = 1 << 16
LONGEST, HALF_LIFE = 4095, 6  # microseconds of a thread's sleep; half after 2**6 events of its own

as_log, as_schedule, as_launch = map(view, (LOG, SCHEDULE, LAUNCH))
as_fiber, as_thread = map(view, (FIBER, THREAD))


def takes_turns(op: Op) -> bool:
    """Whether the order of calls of an operation may matter for what others return."""
    words = any(effect.kind != DATA for effect in op.facts.effects)
    return not op.facts.meets and (words or op.plain in ("p", "g"))


# Whether an operation has changed nothing, by what it returns and its argument.
CHANGES_NOTHING: dict[Any, Callable[[int, int], bool]] = {
    "atomic_compare_swap": operator.ne, "atomic_swap": operator.eq,
    "atomic_fetch_or": lambda old, bits: old | bits == old,
    "atomic_fetch_and": lambda old, bits: old & bits == old,
    "atomic_fetch_add": lambda _, value: value == 0,
}  # fmt: skip


def argument_of(op: Op, compare: int, value: int) -> int:
    """Of a call's arguments the one that CHANGES_NOTHING asks for."""
    return compare if op.base == "atomic_compare_swap" else value


def only_reads(op: Op) -> bool:
    """Whether an operation changes no memory, but for what its caller gives it for results."""
    return all(effect.how == READS or effect.array == "indices" for effect in op.facts.effects)


def changes_nothing(op: Op, result: int, compare: int, value: int) -> bool:
    """Whether a call, with these arguments, has changed nothing: one that reads, or has failed."""
    if op.base in CHANGES_NOTHING:
        return CHANGES_NOTHING[op.base](result, argument_of(op, compare, value))
    failed = not op.base.startswith("test") or result < ("_any" not in op.base)
    return only_reads(op) and failed


def named(pe: int, launch: int, thread: int) -> int:
    """A thread, in the list; of the host: launch 0. A group that calls is its first thread."""
    return pe << PE_BITS | launch << LAUNCH_BITS | thread + 1


def thread_named(who: int) -> str:
    """A thread, for people; that of a kernel of one thread as its PE."""
    thread = (who & (1 << LAUNCH_BITS) - 1) - 1
    return f"PE {who >> PE_BITS}" + f", thread {thread}" * (thread > 0)


# --- in kernels, and in C functions for hosts


def place_in_list(schedule, who):
    """How many turns have to be over before that of a thread: all that are listed at most."""
    here = as_schedule(schedule)
    for k in range(here.turn, here.listed):
        if word_at(schedule + LIST + 8 * k) == who:
            return k
    return here.listed


def give_up(schedule):
    """Leave the rest of the list."""
    here = as_schedule(schedule)
    here.given_up = 1
    store_release(schedule + LISTED, load_acquire(schedule + TURN))


place, forget_list = device(place_in_list), device(give_up)
place_for_host = internal(place_in_list)


@device
def schedule_word():
    """Address of the schedule; 0: there is none, all go on as they come."""
    log = as_launch(launch_word()).log
    return as_log(log).schedule if log != 0 else 0


@device
def own_name(group):
    """The calling thread's name, of a group (1: a warp, 2: a block) that of its first thread."""
    here, launch = as_thread(thread_word()), as_launch(launch_word())
    threads = types.intp(here.bdim[0] * here.bdim[1] * here.bdim[2])
    thread = here.number
    if group == 2:
        thread -= thread % threads
    elif group == 1:
        thread -= thread % threads % LANES
    return as_log(launch.log).pe << PE_BITS | launch.number << LAUNCH_BITS | thread + 1


@device
def sees_nothing_new(schedule, who, turn):
    """Whether a thread has seen what there is, at this line, and nobody has had a turn since."""
    name = who * MIX ^ site_word()
    last, calls = slot(schedule, name * MIX), slot(schedule, who * MIX)
    same = word_at(last) == name and word_at(calls) == who
    return same and word_at(last + 16) == word_at(calls + 8) and word_at(last + 24) == turn


@device
def give_way():
    """Let others go first, now and then, as the seed of the run says; without a seed never."""
    log = as_launch(launch_word()).log
    seed = as_log(log).seed if log != 0 else 0
    if seed == 0:
        return
    here, pe = as_fiber(fiber_word()), as_log(log).pe
    name = (seed * MIX ^ here.clock) * MIX ^ (as_thread(thread_word()).number * SPREAD_PES + pe)
    chance = (name * MIX ^ as_launch(launch_word()).number) * MIX
    if (chance >> 62 & 3) == 0:
        age = min(here.clock - (here.clock >> PHASE << PHASE) >> HALF_LIFE, 12)
        usleep((chance >> 32 & LONGEST) >> age)
    if (chance >> 60 & 3) == 0:
        pause()


@kept
def begin(group):
    """Take a turn; without a schedule, give way now and then."""
    schedule = schedule_word()
    if schedule == 0:
        give_way()
        return
    who = own_name(group)
    before = place(schedule, who)
    turn = load_acquire(schedule + TURN)
    since = monotonic_ns()
    while turn < before:
        as_launch(as_fiber(fiber_word()).launch).polls += 1  # it is not stuck
        pause()
        now, seen = monotonic_ns(), load_acquire(schedule + TURN)
        if seen != turn:
            turn, since = seen, now
        elif now - since > SHORT and sees_nothing_new(schedule, who, turn):
            break
        elif now - since > PATIENCE:
            forget_list(schedule)
        before = min(before, load_acquire(schedule + LISTED))
    while compare_swap_word(schedule, 0, who) != 0:
        pause()


@kept
def end(group):
    """Let others have theirs."""
    schedule = schedule_word()
    if schedule != 0 and word_at(schedule) == own_name(group):
        store_release(schedule, 0)


@device
def leave():
    """A thread that has its turn is going to pause."""
    end(0)


@device
def back():
    """... and has paused."""
    begin(0)


PAUSES = leave, back


@kept
def counted(group, nothing, seen):
    """The number of the present turn, from 1; 0 if it is none.

    `nothing`: the call has changed nothing, and `seen` something. It is no turn if the thread has
    seen the same at this line before, and has made nothing but such calls since: it polls.
    """
    schedule = schedule_word()
    if schedule == 0:
        return 0
    who = own_name(group)
    if word_at(schedule) != who:  # of an atomic operation that takes no turns
        return 0
    calls = slot(schedule, who * MIX)
    if word_at(calls) != who:
        set_word(calls, who)
        set_word(calls + 8, 0)
    if nothing != 0:
        name = who * MIX ^ site_word()
        last = slot(schedule, name * MIX)
        known = word_at(last) == name and word_at(last + 8) == seen
        known = known and word_at(last + 16) == word_at(calls + 8)
        set_word(last, name)
        set_word(last + 8, seen)
        set_word(last + 16, word_at(calls + 8))
        set_word(last + 24, as_schedule(schedule).turn + (0 if known else 1))
        if known:
            here = as_schedule(schedule)
            if here.turn < here.listed and word_at(schedule + LIST + 8 * here.turn) == who:
                forget_list(schedule)  # a turn that is listed, and is none
            return 0
    else:
        set_word(calls + 8, word_at(calls + 8) + 1)
    here = as_schedule(schedule)
    number = here.turn + 1
    store_release(schedule + TURN, number)
    return number


@device
def slot(schedule, number):
    """One of the slots for what polls saw."""
    return schedule + POLLS + SLOT * ((number >> 64 - SLOT_BITS) & (SLOTS - 1))


# --- on hosts


def try_to_begin(schedule: int, who: int) -> int:
    """0 if the turn has been taken; else 1 plus the number of the turns so far."""
    turn = load_acquire(schedule + TURN)
    if turn < place_for_host(schedule, who) or compare_swap_word(schedule, 0, who) != 0:
        return turn + 1
    return 0


def hold(schedule: int, who: int) -> int:
    return compare_swap_word(schedule, 0, who)


def count_and_end(schedule: int) -> int:
    number = load_acquire(schedule + TURN) + 1
    store_release(schedule + TURN, number)
    return number


def let_go(schedule: int, who: int) -> None:
    compare_swap_word(schedule, who, 0)


@cache
def _compiled() -> tuple[Any, ...]:
    word, c_word = types.intp, ctypes.c_int64
    return (
        c_function(word(word, word), try_to_begin).callable(c_word, c_word, c_word),
        c_function(word(word), count_and_end).callable(c_word, c_word),
        c_function(types.void(word, word), let_go).callable(None, c_word, c_word),
        c_function(types.void(word), give_up).callable(None, c_word),
        c_function(word(word, word), hold).callable(c_word, c_word, c_word),
    )


class Schedule:
    """The schedule of a run, in a file that its processes share."""

    def __init__(self, folder: Path) -> None:
        with open(folder / "schedule", "r+b") as file:
            self._memory = np.frombuffer(mmap.mmap(file.fileno(), SIZE), np.uint8)
        self.address = int(self._memory.ctypes.data)
        self._head = self._memory[: SCHEDULE.itemsize].view(SCHEDULE)
        self._polls: dict[int, dict[Any, tuple[Any, int]]] = {}  # of hosts: what they saw, when

    @classmethod
    def made(cls, folder: Path, threads: Iterable[int]) -> Schedule:
        """A new one, with this list."""
        with open(folder / "schedule", "w+b") as file:
            file.truncate(SIZE)
        made, wanted = cls(folder), np.array([*threads], np.int64)[:MOST]
        made._memory[LIST : LIST + 8 * len(wanted)] = wanted.view(np.uint8)
        made._head["listed"] = len(wanted)
        return made

    @staticmethod
    def of(folder: Path) -> Schedule | None:
        """That of a job, if it has one."""
        return Schedule(folder) if (folder / "schedule").exists() else None

    @property
    def turns(self) -> int:
        """How many there have been."""
        return int(self._head["turn"][0])

    @property
    def given_up(self) -> bool:
        """Whether the list could not be followed."""
        return bool(self._head["given_up"][0])

    @contextmanager
    def turn(self, who: int, place: Any) -> Iterator[Callable[[bool, Any], int]]:
        """A call of the host, at a place, takes its turn; gives what counts it, as `counted`."""
        begin, count, let_go, give_up, hold = _compiled()
        turn, since = -1, time.monotonic_ns()
        polls = self._polls.setdefault(who, {})

        def counted(nothing: bool, seen: Any) -> int:
            before = polls.get(place)
            if not nothing:
                polls.clear()
            elif before is not None and before[0] == seen:
                polls[place] = seen, self.turns
                return 0
            number = int(count(self.address))
            if nothing:
                polls[place] = seen, number
            return number

        while seen := begin(self.address, who):
            if seen != turn:
                turn, since = seen, time.monotonic_ns()
            elif time.monotonic_ns() - since > PATIENCE:
                give_up(self.address)
            elif polls.get(place, (0, -1))[1] == self.turns and hold(self.address, who) == 0:
                break  # it sees nothing new
            time.sleep(1e-4)
        try:
            yield counted
        finally:
            let_go(self.address, who)

    def release(self, pe: int) -> None:
        """End the turn of a kernel's thread that has failed."""
        holder = int(self._head["holder"][0])
        if holder >> PE_BITS == pe and holder >> LAUNCH_BITS & (1 << PE_BITS - LAUNCH_BITS) - 1:
            _compiled()[2](self.address, holder)
