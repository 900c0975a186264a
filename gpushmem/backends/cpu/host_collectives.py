"""Collectives of a team's hosts, of memory that is not symmetric.

Each member copies what it sends, piece by piece, to its stage: shared memory that each PE has for
each row of its table of teams. One round (`rounds`) tells all that the pieces are there; then each
member takes what is for it, or combines the pieces of all, and puts it where it belongs. Each byte
is so copied once, and read once by each that needs it. A stage has two halves, used in turns, so
that copying a piece needs no other round.

Memory order: pieces are stored before the round's number, with release order, and read after it has
been loaded with acquire order. The half of round k is overwritten in round k + 2, by a member that
has seen all others in round k + 1: they have stored its number after their last load from round k.
"""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import numpy as np
from numba import types

from gpushmem.artifacts.argument_packing import address_of
from gpushmem.artifacts.launch_shape import shape_of
from gpushmem.backends.cpu.operations.access import array_at, copy_or_stream
from gpushmem.backends.cpu.sync import host_barrier
from gpushmem.backends.cpu.sync.barrier import as_line, as_team, away, line, post, say
from gpushmem.backends.cpu.sync.host_barrier import HostBarrier
from gpushmem.backends.cpu.sync.world import HALF_BYTES, World
from gpushmem.backends.host.event_readers import Readers
from gpushmem.backends.reductions import COMBINE
from gpushmem.errors import CollectiveMismatch, WaitTimeout
from gpushmem.native.c_function import c_function
from gpushmem.native.internal import internal
from gpushmem.native.memory import call_address, copy_bytes, full_fence, set_word, word_at
from gpushmem.native.structs import offset, view
from gpushmem.simt.functions import device
from gpushmem.simt.launch import Kernel, Running
from gpushmem.simt.observe import unseen

__all__ = ["HostCollectives"]

# One call of a member, as far as it has come. Lists of places are arrays of words, the addresses
# first, then numbers of bytes.
CALL = np.dtype(
    [
        ("team", "i8"),  # address of the TEAM
        ("kind", "i8"),  # of the call, see `meeting`
        ("detail", "i8"),
        ("longest", "i8"),  # bytes of the longest that any member sends to one
        ("piece", "i8"),  # bytes that fit a half at once, for one member
        ("sends", "i8"),  # what this one sends: to each member, ...
        ("same", "i8"),  # ... or, if this is set, the same to all
        ("takes", "i8"),  # where what each member sends to this one belongs
        ("fold", "i8"),  # the C function that combines all, 0: nothing does; ...
        ("fold_launch", "i8"),  # ... its LAUNCH, ...
        ("fold_words", "i8"),  # ... and its arguments: where to, members, elements, pieces
        ("itemsize", "i8"),
        ("cached", "i8"),  # whether what is taken stays in the caches
        ("at", "i8"),  # bytes that are done
        ("number", "i8"),  # the round that is waited for; 0: none yet
        ("differs", "i8"),  # the member whose call is another, plus one
    ],
    align=True,
)
FIELDS = CALL.names or ()
DIFFERS, NUMBER, WORD = offset(CALL, "differs"), offset(CALL, "number"), struct.Struct("q")

as_call = view(CALL)
passed = internal(host_barrier.passed)
stream = internal(copy_or_stream.py_func)


@internal
def fill(address: int, half: int) -> None:
    """Copy the next piece for each member to the stage."""
    call = as_call(address)
    n, own = as_team(call.team).n_pes, as_team(call.team).my_pe
    for rank in range(1 if call.same else n):
        if rank == own and not call.same and not call.fold:
            continue  # see `take`
        nbytes = min(word_at(call.sends + 8 * (n + rank)) - call.at, call.piece)
        if nbytes > 0:
            source = word_at(call.sends + 8 * rank) + call.at
            copy_bytes(half + rank * call.piece, source, nbytes)


@internal
def take(address: int, half: int) -> None:
    """Put the pieces that are for this member where they belong."""
    call = as_call(address)
    record = as_team(call.team)
    n, mine = record.n_pes, 0 if call.same else record.my_pe * call.piece
    for rank in range(n):
        there = half + away(call.team, rank) + mine
        if call.fold:
            set_word(call.fold_words + 8 * (3 + rank), there)
        else:
            nbytes = min(word_at(call.takes + 8 * (n + rank)) - call.at, call.piece)
            if rank == record.my_pe:
                there = word_at(call.sends + 8 * (0 if call.same else rank)) + call.at
            if nbytes > 0:
                stream(word_at(call.takes + 8 * rank) + call.at, there, nbytes, call.cached != 0)
    nbytes = min(word_at(call.takes + 8 * n) - call.at, call.piece)
    if call.fold and nbytes > 0 and n == 1:
        copy_bytes(word_at(call.takes) + call.at, half, nbytes)
    elif call.fold and nbytes > 0:
        set_word(call.fold_words, word_at(call.takes) + call.at)
        set_word(call.fold_words + 8, n)
        set_word(call.fold_words + 16, nbytes // call.itemsize)
        call_address(call.fold, call.fold_launch)


@internal
def compare(address: int) -> bool:
    """Whether all members are in the same call; how long it is, too, is known from them."""
    call = as_call(address)
    record = as_team(call.team)
    for rank in range(record.n_pes):
        if rank != record.my_pe:
            theirs = as_line(line(call.team, call.number, rank)).said
            if theirs[0] != call.kind or theirs[1] != call.detail:
                call.differs = rank + 1
            call.longest = max(call.longest, theirs[3])
    if 2 * record.n_pes * call.longest > call.cached:
        call.cached = 0
    return call.differs == 0


def advance(address: int, first: int) -> bool:
    """Go on with a call, for a while if others do not come; returns whether it has ended.

    `first` is as in `host_barrier.passed`.
    """
    call = as_call(address)
    team = call.team
    record = as_team(team)
    while True:
        if call.number == 0:
            if not passed(team, record.round, first):
                return False
            call.number = record.round = record.round + 1
            record.unchecked = 0
            half = record.stage + (call.number & 1) * HALF_BYTES
            fill(address, half)
            say(team, call.kind, call.detail, 0, call.longest)
            for rank in range(record.n_pes):
                if rank != record.my_pe:
                    post(team, call.number, rank)
        if not passed(team, call.number, first):
            return False
        if not compare(address):  # in later pieces, too: a member may have given up
            return True
        take(address, record.stage + (call.number & 1) * HALF_BYTES)
        call.at += call.piece
        call.number = 0
        if call.at >= call.longest:
            full_fence()  # of copies past the caches
            return True


@cache
def _advance() -> Any:
    code = c_function(types.boolean(types.intp, types.intp), advance)
    return code.callable(ctypes.c_bool, ctypes.c_int64, ctypes.c_int64)


# --- combining


def _folder(op: str) -> Callable[..., None]:
    """A kernel that combines the pieces of all members, four at a time, in the members' order."""
    combine = device(COMBINE[op])

    def fold(like, words):  # type: ignore[no-untyped-def]
        n, count = words[1], words[2]
        out = array_at(like, words[0], count)
        a = array_at(like, words[3], count)
        done = 1
        while done < n:
            b = array_at(like, words[3 + done], count)
            c = array_at(like, words[min(4 + done, 2 + n)], count)
            d = array_at(like, words[min(5 + done, 2 + n)], count)
            left = n - done
            if left == 1:
                for i in range(count):
                    out[i] = combine(a[i], b[i])
            elif left == 2:
                for i in range(count):
                    out[i] = combine(combine(a[i], b[i]), c[i])
            else:
                for i in range(count):
                    out[i] = combine(combine(combine(a[i], b[i]), c[i]), d[i])
            a = out
            done += 3

    fold.__qualname__ = f"fold({op})"
    return fold


_kernels = {op: Kernel(_folder(op), cache=True) for op in COMBINE}


class HostCollectives:
    """The collectives of one team; one call at a time."""

    def __init__(
        self, world: World, barrier: HostBarrier, team: int, readers: Readers | None = None
    ) -> None:
        self._world, self._barrier, self.team, self._readers = world, barrier, team, readers
        record = world.teams[team : team + 1]
        self.n_pes, self.my_pe = int(record["n_pes"][0]), int(record["my_pe"][0])
        self._record, self._advance = address_of(record), _advance()
        self._words = np.zeros(3 + self.n_pes, np.int64)
        # The CALL, and behind it the lists of what is sent and taken.
        self._memory = bytearray(CALL.itemsize + 32 * self.n_pes)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._lists = self._address + CALL.itemsize
        self._pack = struct.Struct(f"{len(FIELDS) + 4 * self.n_pes}q").pack_into
        self._go_on = partial(self._advance, self._address)
        self._folds: dict[Any, tuple[int, int, int, int]] = {}
        self._kept: list[Running] = []
        self._cached = int(world.native["cached"][0])
        self._kinds: dict[Any, int] = {}

    def _fold(self, op: str, dtype: np.dtype[Any]) -> tuple[int, int, int, int]:
        """What a call needs to combine elements of this dtype by an operation of `COMBINE`."""
        known = self._folds.get((op, dtype))
        if known is None:
            with unseen():  # the pieces are nothing that a program knows
                running = _kernels[op].prepare(ONE, (np.zeros(0, dtype), self._words), lasting=True)
            self._kept.append(running)
            launch = running.launch
            launch["args"] = running.args
            known = (
                int(launch["entry"][0]), address_of(launch), address_of(self._words), dtype.itemsize
            )  # fmt: skip
            self._folds[op, dtype] = known
        return known

    def call(
        self,
        what: str,
        dtype: np.dtype[Any],
        sends: Sequence[int],
        takes: Sequence[int],
        same: bool,
        nbytes: int,
        root: int = 0,
        op: str = "",
        seconds: float = math.inf,
    ) -> None:
        """Do one collective; all members do the same, in the same order.

        `sends` are the addresses of what is sent to each member, then the numbers of bytes, and
        `takes` where it belongs what each sends to this one. With `same`, the first of `sends` is
        sent to all; with `op`, what all send is combined, and belongs at the first of `takes`.
        `nbytes` is the same on all members, or 0. Raises `CollectiveMismatch` if a member is in
        another call, `WaitTimeout` if they do not come in `seconds`, and what `HostBarrier.wait`
        does.
        """
        fold = self._fold(op, dtype) if op else (0, 0, 0, 1)
        kind = self._kind(what, op, dtype) + nbytes * host_barrier.BYTES
        n = self.n_pes
        piece = HALF_BYTES if same else HALF_BYTES // n // 64 * 64
        self._pack(
            self._memory, 0, self._record, kind, root, nbytes or max(sends[n:]), piece, self._lists,
            same, self._lists + 16 * n, *fold, self._cached, 0, 0, 0, *sends, *takes,
        )  # fmt: skip
        run = partial(self.end, what, seconds)
        if self._readers is None:
            run()
        else:
            self._readers.collective(what, self.team, run)

    @property
    def seen(self) -> bool:
        """Whether somebody reads of each call, such as a trace."""
        return bool(self._readers)

    @property
    def memory(self) -> dict[str, int]:
        """Addresses of the CALL and of its lists, and what else compiled code needs to fill it."""
        return {
            "call": self._address, "lists": self._lists, "n_pes": self.n_pes,
            "cached": self._cached,
        }  # fmt: skip

    def prepared(self, what: str, op: str, dtype: np.dtype[Any]) -> tuple[int, ...]:
        """The kind of a call, less its bytes, its fold (zeros without `op`) and the itemsize."""
        fold = self._fold(op, dtype) if op else (0, 0, 0, dtype.itemsize)
        return self._kind(what, op, dtype), *fold

    def end(self, what: str, seconds: float) -> None:
        """End the call that is in the CALL; errors as in `call`."""
        if not self._go_on(0):
            try:
                self._barrier.wait(what, self._go_on, self._missing, self.team, seconds)
            except WaitTimeout:
                (number,) = WORD.unpack_from(self._memory, NUMBER)
                if number:  # this PE has come to a round, which others must not complete
                    self._barrier.give_up(self.team, number)
                raise
        differs: int = WORD.unpack_from(self._memory, DIFFERS)[0]
        if differs:
            self._raise(what, differs - 1)

    def _kind(self, what: str, op: str, dtype: np.dtype[Any]) -> int:
        found = self._kinds.get((what, op, dtype))
        if found is None:
            code = host_barrier.KINDS.index(f"{what}({op})" if op else what)
            found = code + host_barrier.dtype_number(dtype.name) * host_barrier.DTYPE
            self._kinds[what, op, dtype] = found
        return found

    def _missing(self) -> list[int]:
        return self._barrier.missing(self.team, int(self._world.teams["round"][self.team]))

    def _raise(self, what: str, rank: int) -> None:
        number = int(self._world.teams["round"][self.team])
        theirs = self._barrier.lines(self.team, number)["said"][rank].tolist()
        ours = self._world.teams["said"][self.team].tolist()
        pe = self._barrier.pes(self.team)[rank]
        if theirs[0] == host_barrier.GIVEN_UP:
            raise WaitTimeout(
                f"{what}: this PE is late: PE {pe} has given up the call at its limit"
            )
        calls = (theirs[0], ours[0], self.team, theirs[1], ours[1])
        raise CollectiveMismatch(host_barrier.mismatch(pe, *calls))


ONE = shape_of(1, 1)
