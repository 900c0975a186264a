"""Clocks: what somebody knows to be over.

`times` has for a thread how far it has come, and for a block or a grid how often it has met: all
before that is known, but for stores to other PEs' memory, of which it has times of their own: of
those that have arrived, that have been fenced, and that arrive before what is written to one PE.
`masks` has numbers of many things, and those in a set are known: the launches of a
PE that have ended, and of the operations that a PE has called for another (or for itself) those
that were called, that have read their sources, whose data have arrived, and whose data arrive
before what is written to the same PE from now on, on the same queue pair. Of the calls that put
units, or wait for them, those that are known by units alone: that orders nothing but units.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from gpushmem.ops import QP_ANY, QP_DEFAULT

__all__ = [
    "CALLED", "DEFAULT_QPS", "DONE", "EARLIER", "ENDED", "NONE", "OUT", "PHASES", "READ", "SENT",
    "UNITS", "UPDATED", "Bit", "Bits", "Clock", "Masks", "fenced_on", "is_fenced", "qps_in",
]  # fmt: skip

# What a mask is of: (one of these, PE, its target; the launch of an atomic operation of numba.cuda;
# the call that has made an mbarrier)
CALLED, READ, DONE, FENCED, ENDED, UPDATED, BEFORE, UNITS, PHASES = range(9)
# What ends a key of `Clock.times`: of what was stored to other PEs' memory, and has arrived there,
# or has been fenced (for what arrives before what is written to one PE see `_to`); of loads, and of
# stores that another PE need not see, but may overwrite.
OUT, SENT, LOADS = "out", "sent", "loads"


# A set of queue pairs: a bit for each number modulo 64.
DEFAULT_QPS = 1 << QP_DEFAULT


def _to(pe: int) -> str:
    return f"to {pe}"


def qps_in(qps: int) -> list[int]:
    """The numbers, modulo 64, of the queue pairs in a set."""
    return [qp for qp in range(64) if qps >> qp & 1]


def fenced_on(qp: int) -> Any:
    """FENCED, for what is written on a queue pair from now on; if that is any, nothing is."""
    if qp & 63 == QP_DEFAULT:
        return FENCED
    return FENCED, None if qp == QP_ANY else qp & 63


def is_fenced(kind: Any) -> bool:
    """Whether the kind of a mask is one of those of `fenced_on`."""
    return kind == FENCED or isinstance(kind, tuple)


class Bits:
    """A set of numbers, never changed: all below `base`, and `base + k` for each bit k of `rest`.

    What a thread knows of its own operations is all up to the last one: short, however many.
    """

    __slots__ = ("base", "rest")

    def __init__(self, base: int = 0, rest: int = 0) -> None:
        if rest & 1:
            ones = (~rest & (rest + 1)).bit_length() - 1
            base, rest = base + ones, rest >> ones
        self.base, self.rest = base, rest

    def has(self, number: int) -> bool:
        """Whether a number is one of them."""
        return number < self.base or bool(self.rest >> (number - self.base) & 1)

    def plus(self, number: int) -> Bits:
        """These and one more."""
        place = number - self.base
        return self if place < 0 else Bits(self.base, self.rest | 1 << place)

    def above(self, start: int) -> int:
        """Those from a number on, as an integer with a bit for each."""
        behind = self.base - start
        if behind <= 0:
            return self.rest >> -behind
        return self.rest << behind | (1 << behind) - 1

    def __or__(self, other: Bits) -> Bits:
        high, low = (self, other) if self.base >= other.base else (other, self)
        rest = high.rest | low.above(high.base)
        return high if rest == high.rest else Bits(high.base, rest)

    def __and__(self, other: Bits) -> Bits:
        high, low = (self, other) if self.base >= other.base else (other, self)
        if low.rest == 0 or high is low:
            return low
        return Bits(low.base, low.rest & high.above(low.base))

    def covers(self, other: Bits) -> bool:
        """Whether all of another set are in this one."""
        if other.base > self.base:
            return False
        return not other.above(self.base) & ~self.rest

    def without(self, other: Bits) -> Iterator[int]:
        """Those that are not in another set."""
        left = self.above(other.base) & ~other.rest
        while left:
            bit = left & -left
            left ^= bit
            yield other.base + bit.bit_length() - 1

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Bits) and (self.base, self.rest) == (other.base, other.rest)

    def __hash__(self) -> int:
        return hash((self.base, self.rest))


NONE = Bits()
Masks = dict[Any, Bits]


class Clock:
    """What somebody knows to be over."""

    __slots__ = ("masks", "times")

    def __init__(self, times: dict[Any, int] | None = None, masks: Masks | None = None) -> None:
        self.times: dict[Any, int] = {} if times is None else times
        self.masks: Masks = {} if masks is None else masks

    def copy(self) -> Clock:
        """Another clock that knows the same."""
        return Clock(self.times.copy(), self.masks.copy())

    def join(self, other: Clock) -> None:
        """Know what `other` knows, too."""
        times, masks = self.times, self.masks
        for key, time in other.times.items():
            if times.get(key, -1) < time:
                times[key] = time
        for key, mask in other.masks.items():
            mine = masks.get(key)
            if mine is None:
                masks[key] = mask
            elif mine is mask or (mask.rest == 0 and mask.base <= mine.base):
                pass  # copies of a clock share what they have not changed
            elif mine.rest == 0 and mine.base <= mask.base:
                masks[key] = mask
            else:
                masks[key] = mine | mask

    def meet(self, other: Clock) -> None:
        """Know only what `other` knows, too."""
        self.times = {
            key: min(time, other.times[key])
            for key, time in self.times.items()
            if key in other.times
        }
        self.masks = {
            key: mask & other.masks[key] for key, mask in self.masks.items() if key in other.masks
        }

    def has_all(self, other: Clock) -> bool:
        """Whether it knows all that another one knows."""
        return all(self.masks.get(k, NONE).covers(bits) for k, bits in other.masks.items()) and all(
            self.times.get(k, -1) >= time for k, time in other.times.items()
        )

    def has(self, kind: int, pe: int, target: int, bit: int) -> bool:
        """Whether a bit is set."""
        return self.masks.get((kind, pe, target), NONE).has(bit)

    def put(self, key: Any, bit: int) -> None:
        """Set a bit of the mask that a key names."""
        self.masks[key] = self.masks.get(key, NONE).plus(bit)

    def know(self, key: Any, bits: Bits) -> None:
        """Set bits of the mask that a key names."""
        mine = self.masks.get(key)
        self.masks[key] = bits if mine is None else mine | bits

    def time(self, key: tuple[Any, ...], away: int | None, seen: bool) -> int:
        """Up to when it knows what a thread or a block did; see `Launch.over`."""
        if away is not None:
            return max(self.times.get((*key, OUT), -1), self.times.get((*key, _to(away)), -1))
        time = self.times.get(key, -1)
        return time if seen else max(time, self.times.get((*key, LOADS), -1))

    def know_of_calls(self, pe: int, kind: Any, on: Callable[[int], int] = lambda _: -1) -> None:
        """Of calls of a PE to PEs that are known, know this, too: of those in `on(target)`."""
        for key, mask in list(self.masks.items()):
            if key[0] == CALLED and key[1] == pe and key[2] >= 0:
                bits = on(key[2])
                found = mask if bits == -1 else Bits(0, mask.above(0) & bits)
                self.know((kind, pe, key[2]), found)

    def complete(self, pe: int, on: Callable[[int], int] = lambda _: -1) -> None:
        """`quiet` of a PE: all that is known to have been called is over."""
        for kind in (READ, DONE):
            self.know_of_calls(pe, kind, on)
        self.stores_are(OUT, pe)

    def fence(self, pe: int, qps: int, on: Callable[[int], int]) -> None:
        """What is known to have been called or stored by a PE is fenced, on these queue pairs.

        So is what has arrived: gets, which a fence does not order, leave no gaps then.
        """
        for qp in qps_in(qps):
            self.know_of_calls(pe, fenced_on(qp), on)
            for key, mask in list(self.masks.items()):
                if key[0] == DONE and key[1] == pe:
                    self.know((fenced_on(qp), pe, key[2]), mask)
        self.stores_are(SENT, pe)

    def stores_are(self, what: str, pe: int) -> None:
        """What a PE is known to have stored to others' memory: arrived, or fenced."""
        self.times |= {(*key, what): time for key, time in self._of(pe)}

    def before_writes_to(self, pe: int, target: int, qp: int = QP_DEFAULT) -> None:
        """What is known when something arrives that a PE writes to another, or to itself, now."""
        self.know((DONE, pe, target), self.masks.get((fenced_on(qp), pe, target), NONE))
        for key, _ in self._of(pe):
            sent, arrived = (*key, SENT), (*key, _to(target))
            if sent in self.times:
                self.times[arrived] = self.times[sent]
        if target != pe:
            self._keep_fenced(pe)

    def _keep_fenced(self, pe: int) -> None:
        """What another PE learns: of what was stored before, only what was fenced is seen there."""
        for key, time in self._of(pe):
            begun = (*key, LOADS)
            self.times[begun] = max(time, self.times.get(begun, -1))
            self.times[key] = max(self.times.get((*key, how), -1) for how in (OUT, SENT))

    def _of(self, pe: int) -> list[tuple[Any, int]]:
        """The times of a PE's threads and blocks."""
        return [
            (key, time)
            for key, time in self.times.items()
            if key[0] == pe and not isinstance(key[-1], str)
        ]

    def forget_threads(self) -> None:
        """Drop what follows from the end of launches that is known."""
        ended = {key[1]: mask for key, mask in self.masks.items() if key[0] == ENDED}
        self.times = {
            key: time
            for key, time in self.times.items()
            if not (isinstance(key, tuple) and ended.get(key[0], NONE).has(key[1]))
        }


class Bit(NamedTuple):
    """What a clock has that knows a step of an operation to be over."""

    kind: int
    pe: int
    target: int
    bit: int

    def known(self, clock: Clock) -> bool:
        """Whether a clock has it."""
        kind, pe, target, bit = self
        if clock.masks.get((kind, pe, target), NONE).has(bit):
            return True
        # Data that have arrived have been read.
        return kind == READ and clock.masks.get((DONE, pe, target), NONE).has(bit)

    def tell(self, clock: Clock) -> None:
        """Let a clock have it."""
        clock.put(self[:3], self.bit)


EARLIER = Bit(BEFORE, 0, 0, 0)  # all know it: what was before this part of a job
