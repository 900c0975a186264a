"""From the ring in a GPU's memory to the file: what kernels have recorded since the last look.

Nothing here needs a GPU: `read(address, nbytes)` copies memory. An event is taken when its round
of the ring can be told from the one before, and its number was given out before the last look, by
when whoever took the number has written. Waits and blocks that had not ended are looked at again.

Blocks become the events of their kernels: one KERNEL for each number of a grid, from the beginning
of its first block to the end of its last one. Blocks of kernels that wait stay events, as on the
cpu backend.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from gpushmem.backends.nvshmem.trace.instrumentation import LAP, MOST_BLOCKS
from gpushmem.trace.ring import BLOCK, EVENT, FIRST_OP, KERNEL, PLACES, RING, Ring

__all__ = ["Drain", "Meaning", "new_header"]

Read = Callable[[int, int], np.ndarray[Any, Any]]
AT = RING.itemsize  # where the events are, from the ring's address
NEAR = 1024  # events: those to look at again that are not farther apart are one copy


class Meaning(NamedTuple):
    """What the number of a kernel means: that of its name in the facts, and whether it waits."""

    name: int
    waits: bool


def new_header(address: int, most: int) -> np.ndarray[Any, Any]:
    """What is at the beginning of a ring at an address of the GPU's; all behind it is 0."""
    header = np.zeros(1, RING)
    header["most"], header["events"] = most, address + AT
    return header


class Grid:
    """A launch: the number of its event in the file, and its blocks."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.blocks = 0  # that record; 0: not known yet
        self.seen: set[int] = set()
        self.open = 0  # of those seen
        self.ended = 0  # the last event
        self.over: int | None = None  # once it is: how many events there were when that was seen


class Taken(NamedTuple):
    """An event that had not ended when it was taken."""

    number: int  # in the file; -1: it is not there
    grid: Grid
    is_block: bool


class Drain:
    """Copies events of one GPU's ring, which is at `address`, to the ring of a file."""

    def __init__(self, read: Read, address: int, ring: Ring) -> None:
        self._read, self._address, self._ring = read, address, ring
        self._most = len(ring.events)
        self._next = self._before = 0  # to take next; given out at the last look
        self._late: set[int] = set()  # not written when it was their turn
        self._open: dict[int, Taken] = {}
        self._grids: dict[int, Grid] = {}
        self._lanes: list[Grid | None] = []
        self.heap = 0  # its address
        self.meanings: dict[int, Meaning] = {}

    def look(self, idle: bool = False) -> None:
        """Take what is new. `idle`: kernels have been waited for, and have written it."""
        n = self._given_out()
        if self._next == n and not (self._late or self._open or self._grids):
            return
        until, self._before = n if idle else self._before, n
        for numbers in _runs(sorted({*self._late, *self._open})):
            self._look_again(numbers, self._events(numbers[0], numbers[-1] + 1))
        first = max(self._next, n - self._most)
        self._lose(first - self._next)
        self._next = max(first, until)
        if first < until:
            self._take(np.arange(first, until), self._events(first, until))
        for number, grid in list(self._grids.items()):
            self._end_if_over(grid, n)
            if grid.over is not None and grid.over <= self._next and not self._late:
                del self._grids[number]

    def end(self) -> None:
        """Take what is left. Kernels have ended, also those of which blocks are lost."""
        self.look(idle=True)
        for grid in self._grids.values():
            if grid.over is None and grid.open == 0:
                grid.over = self._next
                self._ended(grid, 0)
        self._grids.clear()

    def _given_out(self) -> int:
        at = self._address + PLACES["n"]
        return int(self._read(at, 8).view(np.int64)[0])

    def _events(self, first: int, until: int) -> np.ndarray[Any, Any]:
        """The events in the places of these numbers, in at most two copies."""
        parts, most = [], self._most
        while first < until:
            place = first % most
            count = min(until - first, most - place)
            at = self._address + AT + place * EVENT.itemsize
            parts.append(self._read(at, count * EVENT.itemsize).view(EVENT))
            first += count
        return np.concatenate(parts)

    def _lose(self, count: int) -> None:
        self._ring.header["lost"] += count

    def _take(self, numbers: np.ndarray[Any, Any], events: np.ndarray[Any, Any]) -> None:
        """Keep events that have just been copied; what was overwritten meanwhile is lost."""
        there = numbers >= self._given_out() - self._most
        self._lose(int((~there).sum()))
        written = (events["kind"] & LAP) == np.where(numbers & self._most, 0, LAP)
        self._late |= set(numbers[there & ~written].tolist())
        good = there & written
        self._keep(numbers[good], events[good])

    def _keep(self, numbers: np.ndarray[Any, Any], events: np.ndarray[Any, Any]) -> None:
        if not len(events):
            return
        events = events.copy()
        events["kind"] &= LAP - 1
        placed = (events["kind"] >= FIRST_OP) & (events["at"] != -1)
        events["at"][placed] -= self.heap
        blocks, taken_by = events["kind"] == BLOCK, np.empty(len(events), object)
        _, firsts = np.unique(events["launch"], return_index=True)
        for number in events["launch"][np.sort(firsts)].tolist():  # in the order in which they came
            which = np.flatnonzero(events["launch"] == number)
            while len(which):
                grid = self._grid(number, int(events["began"][which[0]]))
                count = self._note_blocks(grid, events[which])
                taken_by[which[:count]] = grid
                self._note_times(grid, events[which[:count]])
                which = which[count:]
                if len(which):
                    del self._grids[number]
        events["launch"] = [(grid.number + 1) & 0xFFFFFFFF for grid in taken_by]
        stays = ~blocks
        for k in np.flatnonzero(blocks).tolist():
            stays[k] = self._meaning(events[k]).waits
        for field, value in (("at", -1), ("value", 0), ("nbytes", 0)):
            events[field][blocks] = value
        first = self._ring.extend(events[stays])
        places = np.where(stays, first + np.cumsum(stays) - 1, -1)
        for k in np.flatnonzero(events["ended"] == 0).tolist():
            self._open[int(numbers[k])] = Taken(int(places[k]), taken_by[k], bool(blocks[k]))

    # --- kernels

    def _grid(self, number: int, began: int) -> Grid:
        """The launch of a number; the event of one that is new, and began then, is written."""
        grid = self._grids.get(number)
        if grid is None:
            new = np.zeros(1, EVENT)
            new["kind"], new["value"] = KERNEL, self._lane(began)
            grid = self._grids[number] = Grid(self._ring.extend(new))
            self._lanes[int(new["value"][0]) - 1] = grid
        return grid

    def _lane(self, began: int) -> int:
        """Which stream it ran on is not known: kernels that overlap are on different ones."""
        for grid in self._grids.values():
            self._end_if_over(grid, self._before)
        for k, last in enumerate(self._lanes, 1):
            if last is None or (last.over is not None and last.ended <= began):
                return k
        self._lanes.append(None)
        return len(self._lanes)

    def _note_blocks(self, grid: Grid, events: np.ndarray[Any, Any]) -> int:
        """Note the blocks among events; how many events are before a block that was there before.

        A graph that is launched again may give its grids the same number again.
        """
        for k in np.flatnonzero(events["kind"] == BLOCK).tolist():
            event = events[k]
            if not grid.seen:
                blocks, kernel = int(event["at"]), self._ring.event(grid.number)
                grid.blocks = -(-blocks // -(-blocks // MOST_BLOCKS))
                kernel["pe"], kernel["at"] = self._meaning(event).name, blocks
                kernel["nbytes"] = event["nbytes"]
            if int(event["block"]) in grid.seen:
                grid.over = self._next
                self._ended(grid, 0)
                return k
            grid.seen.add(int(event["block"]))
            grid.open += int(event["ended"] == 0)
        return len(events)

    def _note_times(self, grid: Grid, events: np.ndarray[Any, Any]) -> None:
        kernel = self._ring.event(grid.number)
        began = int(events["began"].min())
        kernel["began"] = np.where(kernel["began"] == 0, began, np.minimum(kernel["began"], began))
        self._ended(grid, int(max(events["began"].max(), events["ended"].max())))

    def _ended(self, grid: Grid, ended: int) -> None:
        grid.ended = max(grid.ended, ended)
        if grid.over is not None:
            self._ring.event(grid.number)["ended"] = grid.ended

    def _end_if_over(self, grid: Grid, n: int) -> None:
        whole = len(grid.seen) == grid.blocks > 0
        if grid.over is None and whole and grid.open == 0:
            grid.over = n
            self._ended(grid, 0)

    def _meaning(self, event: Any) -> Meaning:
        return self.meanings.get(int(event["value"]), Meaning(0, False))

    # --- what had not been written, or had not ended

    def _look_again(self, numbers: list[int], events: np.ndarray[Any, Any]) -> None:
        oldest = self._given_out() - self._most
        late = np.array([number for number in numbers if number in self._late], np.int64)
        self._late.difference_update(late.tolist())
        if len(late):
            self._take(late, events[late - numbers[0]])
        for number in numbers:
            taken = self._open.get(number)
            if taken is None:
                continue
            ended = int(events[number - numbers[0]]["ended"])
            if number < oldest:  # when it ended is lost, so all of it is
                self._lose(1)
                self._ring.event(taken.number)["began"] = 0
            elif ended:
                self._ring.event(taken.number)["ended"] = ended
                self._ended(taken.grid, ended)
            if number < oldest or ended:
                del self._open[number]
                taken.grid.open -= int(taken.is_block)


def _runs(numbers: list[int]) -> Iterator[list[int]]:
    """Numbers in groups of which each is near the one before."""
    run: list[int] = []
    for number in numbers:
        if run and number - run[-1] > NEAR:
            yield run
            run = []
        run.append(number)
    if run:
        yield run
