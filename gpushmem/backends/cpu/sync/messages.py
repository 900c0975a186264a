"""Messages from one member of a team to another, of memory that is not symmetric.

Each member has, in its stage, a ring for each other one, which writes there: for each message a
line with its tag and its length, then its bytes, in whole lines. Two counters of bytes say how much
has been written and how much has been taken. A message longer than the ring goes through it in
parts, as both sides find time.

Memory order: bytes are stored before `written`, with release order, and read after it has been
loaded with acquire order; the same holds for `taken` and the bytes that are written over them.
"""

from __future__ import annotations

import ctypes
import math
from collections import deque
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
from numba import types

from gpushmem.artifacts.argument_packing import address_of
from gpushmem.backends.cpu.sync.host_barrier import ASLEEP, SLEEPS, HostBarrier, rest
from gpushmem.backends.cpu.sync.world import CROWDED, HALF_BYTES, LINE, RING_BYTES, World
from gpushmem.errors import ArgumentError, ShmemError
from gpushmem.native.c_function import c_function
from gpushmem.native.internal import internal
from gpushmem.native.memory import copy_bytes, load_acquire, set_word, store_release, word_at

__all__ = ["ANY", "Letter", "Mailbox"]

ANY = -1  # a rank: from whichever member
WRITTEN, TAKEN, DATA = 0, LINE, 2 * LINE  # offsets in a ring
ROOM = RING_BYTES - DATA
HEADER = -1  # progress of a message whose line is still to be written, or taken


@internal
def whole(nbytes: int) -> int:
    """In whole lines."""
    return (nbytes + LINE - 1) // LINE * LINE


def push(ring: int, source: int, nbytes: int, tag: int, at: int) -> int:
    """Write what there is room for of a message; returns how far it has come."""
    written = word_at(ring + WRITTEN)
    room = ROOM - (written - load_acquire(ring + TAKEN))
    if at == HEADER and room >= LINE:
        line = ring + DATA + written % ROOM
        set_word(line, tag)
        set_word(line + 8, nbytes)
        written, room, at = written + LINE, room - LINE, 0
    while 0 <= at < nbytes and room > 0:
        start = written % ROOM
        part = min(nbytes - at, room, ROOM - start)
        copy_bytes(ring + DATA + start, source + at, part)
        at += part
        written, room = written + whole(part), room - whole(part)
    store_release(ring + WRITTEN, written)
    return at


def pull(ring: int, target: int, nbytes: int, at: int) -> int:
    """Take what has come of a message; returns how far it has come."""
    taken = word_at(ring + TAKEN)
    come = load_acquire(ring + WRITTEN) - taken
    if at == HEADER:  # which has come
        taken, come, at = taken + LINE, come - LINE, 0
    while at < nbytes and come > 0:
        start = taken % ROOM
        part = min(nbytes - at, come, ROOM - start)
        copy_bytes(target + at, ring + DATA + start, part)
        at += part
        taken, come = taken + whole(part), come - whole(part)
    store_release(ring + TAKEN, taken)
    return at


def peek(ring: int, out: int) -> bool:
    """Whether a message has come; its tag and length go to the two words at `out`."""
    taken = word_at(ring + TAKEN)
    if load_acquire(ring + WRITTEN) - taken < LINE:
        return False
    line = ring + DATA + taken % ROOM
    set_word(out, word_at(line))
    set_word(out + 8, word_at(line + 8))
    return True


ONCE = ASLEEP + SLEEPS - 1  # as `first`: one look


def changed(words: int, n: int, first: int) -> bool:
    """Wait a while until one of `n` words is not what it was.

    At `words` are their addresses, then the values, then the address of the team's `crowded`.
    `first` is as in `host_barrier.passed`.
    """
    turn, crowded = first, word_at(words + 16 * n)
    while turn < ASLEEP + SLEEPS:
        for k in range(n):
            if load_acquire(word_at(words + 8 * k)) != word_at(words + 8 * (n + k)):
                return True
        turn = rest(turn, crowded)
    return False


@cache
def _native() -> dict[str, Any]:
    i8, word = ctypes.c_int64, types.intp
    return {
        "push": c_function(word(*[word] * 5), push).callable(i8, *[i8] * 5),
        "pull": c_function(word(*[word] * 4), pull).callable(i8, *[i8] * 4),
        "peek": c_function(types.boolean(word, word), peek).callable(ctypes.c_bool, i8, i8),
        "changed": c_function(types.boolean(*[word] * 3), changed).callable(
            ctypes.c_bool, *[i8] * 3
        ),
    }


class Letter:
    """A message that is sent to, or expected from, another member."""

    def __init__(self, rank: int, tag: int, address: int, nbytes: int, keep: Any = None) -> None:
        self.rank, self.tag, self.address, self.nbytes = rank, tag, address, nbytes
        self.at, self.done, self.error = HEADER, False, None
        self.told: Callable[[], None] = lambda: None  # called when it has ended
        self._keep = keep

    error: ShmemError | None

    def end(self, error: ShmemError | None = None) -> None:
        """It has been delivered, or cannot be."""
        self.error, self.done = error, True
        self.told()


class Arrived:
    """A message, or the part of it that has come, with the letter that it is for, if any."""

    letter: Letter | None = None
    error: ShmemError | None = None  # why that cannot have it
    address = 0  # where its bytes go

    def __init__(self, tag: int, nbytes: int) -> None:
        self.tag, self.nbytes, self.at = tag, nbytes, HEADER

    def keep(self) -> None:
        """Give it memory of its own."""
        self._memory = np.empty(max(1, self.nbytes), np.uint8)
        self.address = address_of(self._memory)


class Watch:
    """Words in memory, to wait for a change."""

    def __init__(
        self, changed: Callable[..., bool], words: list[int], values: list[int], crowded: int
    ) -> None:
        self._memory = np.array([*words, *values, crowded], np.int64)
        # `passed(first)`, as `HostBarrier.wait` has it
        self.passed = partial(changed, address_of(self._memory), len(words))
        self.sleeping = partial(self.passed, ASLEEP)  # waits for some 10 ms
        self.now = partial(self.passed, ONCE)  # looks once


class Mailbox:
    """One member's messages. To be used by one thread at a time."""

    def __init__(self, world: World, barrier: HostBarrier, team: int) -> None:
        self._world, self._barrier, self._team = world, barrier, team
        record = world.teams[team]
        self._crowded = address_of(world.teams[team : team + 1]) + CROWDED
        self._n, self._me = int(record["n_pes"]), int(record["my_pe"])
        pes = barrier.pes(team)
        rings = int(record["stage"]) + 2 * HALF_BYTES
        away = [(pe - int(record["world_pe"])) * int(record["span"]) for pe in pes]
        self._inbox = [rings + rank * RING_BYTES for rank in range(self._n)]
        self._outbox = [rings + a + self._me * RING_BYTES for a in away]
        native = _native()
        self._push, self._pull, self._peek = native["push"], native["pull"], native["peek"]
        self._changed, self._line = native["changed"], np.zeros(2, np.int64)
        self._sends: list[deque[Letter]] = [deque() for _ in range(self._n)]
        self._seen = [0] * self._n  # of `taken`, before writing last
        self._receives: list[Letter] = []
        self._coming: list[Arrived | None] = [None] * self._n
        self._stored: list[deque[Arrived]] = [deque() for _ in range(self._n)]

    @property
    def pending(self) -> bool:
        """Whether there are letters that have not been delivered."""
        return bool(self._receives) or any(self._sends) or any(self._coming)

    def send(self, letter: Letter) -> None:
        """Begin to send."""
        self._sends[letter.rank].append(letter)
        self.progress()

    def receive(self, letter: Letter) -> None:
        """Expect a message with the letter's tag from its rank, or from `ANY`."""
        self._receives.append(letter)
        self.progress()

    def progress(self) -> None:
        """Go on with all letters as far as possible."""
        for rank in range(self._n):
            while self._sent(rank):
                pass
        for rank in self._expected():
            while self._received(rank):
                pass

    def _expected(self) -> set[int]:
        """The members from which something is to be taken."""
        begun = {rank for rank, coming in enumerate(self._coming) if coming is not None}
        return begun.union(*map(self._from, self._receives))

    def watch(self, *more: int) -> Watch:
        """What has to change before a letter can go on, or the words at the addresses `more`."""
        words, values = list(more), [_word(word) for word in more]
        for rank in range(self._n):
            if self._sends[rank]:
                words.append(self._outbox[rank] + TAKEN)
                values.append(self._seen[rank])
        for rank in self._expected():
            ring = self._inbox[rank]
            words.append(ring + WRITTEN)
            values.append(_word(ring + TAKEN))  # what has been written since is a change, too
        return Watch(self._changed, words, values, self._crowded)

    def wait(self, what: str, letter: Letter, watch: Watch, seconds: float = math.inf) -> None:
        """Wait until something changes, for the sake of a letter; as `HostBarrier.wait`."""
        pes, ended = self._barrier.pes(self._team), self._world.board.pes["ended"]
        others = [pes[rank] for rank in self._from(letter) if rank != self._me]

        def missing() -> list[int]:
            if watch.passed(ONCE):
                return []
            return [pe for pe in others if not ended[pe]] or others  # one of them is enough

        self._barrier.wait(what, watch.passed, missing, self._team, seconds)

    def _from(self, letter: Letter) -> range:
        return range(self._n) if letter.rank == ANY else range(letter.rank, letter.rank + 1)

    def _sent(self, rank: int) -> bool:
        """Write more to a member; returns whether a letter has ended."""
        queue = self._sends[rank]
        if not queue:
            return False
        letter = queue[0]
        self._seen[rank] = _word(self._outbox[rank] + TAKEN)
        letter.at = self._push(
            self._outbox[rank], letter.address, letter.nbytes, letter.tag, letter.at
        )
        if letter.at != letter.nbytes:
            return False
        queue.popleft()
        letter.end()
        return True

    def _received(self, rank: int) -> bool:
        """Take more from a member; returns whether a message has ended."""
        for stored in self._stored[rank]:
            letter = self._asked(rank, stored)
            if letter is not None:
                self._stored[rank].remove(stored)
                if letter.nbytes == stored.nbytes:
                    ctypes.memmove(letter.address, stored.address, stored.nbytes)
                    letter.end()
                else:
                    letter.end(_of_another_length(letter, stored))
                return True
        coming = self._coming[rank]
        if coming is None:
            coming = self._coming[rank] = self._next(rank)
            if coming is None:
                return False
        coming.at = self._pull(self._inbox[rank], coming.address, coming.nbytes, coming.at)
        if coming.at != coming.nbytes:
            return False
        self._coming[rank] = None
        if coming.letter is not None:
            coming.letter.end(coming.error)
        else:
            self._stored[rank].append(coming)
        return True

    def _next(self, rank: int) -> Arrived | None:
        """The next message of a member, with where its bytes go; None: there is none yet."""
        if not self._peek(self._inbox[rank], address_of(self._line)):
            return None
        coming = Arrived(*self._line.tolist())
        letter = coming.letter = self._asked(rank, coming)
        if letter is not None and letter.nbytes == coming.nbytes:
            coming.address = letter.address
        else:  # asked for later, or never
            coming.keep()
            if letter is not None:
                coming.error = _of_another_length(letter, coming)
        return coming

    def _asked(self, rank: int, message: Arrived) -> Letter | None:
        """The first letter that a message is for, which is no longer expected then."""
        for letter in self._receives:
            if letter.rank in (rank, ANY) and letter.tag == message.tag:
                self._receives.remove(letter)
                letter.rank = rank
                return letter
        return None


def _of_another_length(letter: Letter, message: Arrived) -> ShmemError:
    return ArgumentError(
        f"rank {letter.rank} sends {message.nbytes} bytes with tag {message.tag}, and "
        f"{letter.nbytes} are expected"
    )


def _word(address: int) -> int:
    return ctypes.c_int64.from_address(address).value
