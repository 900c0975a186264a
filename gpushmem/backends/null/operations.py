"""Host operations of a job of one PE, in NumPy: `OPERATIONS` has one for each row of the table.

Arguments have been checked (`host_arguments.checked`). A remote array is the caller's own, a
collective copies from `src` to `dst`, and a wait ends at once or by its timeout.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from gpushmem.artifacts.arguments import address_of
from gpushmem.backends.hostcalls import (
    ask_smem,
    check_contiguous,
    check_pe,
    copy_from,
    copy_strided,
    copy_to,
    not_symmetric,
)
from gpushmem.backends.null.teams import Teams
from gpushmem.errors import ArgumentError, Deadlock
from gpushmem.ops import SIGNAL_ADD, SIGNAL_SET
from gpushmem.ops.constants import CMP_EQ, CMP_GE, CMP_GT, CMP_LE, CMP_LT, CMP_NE, COMPARISONS
from gpushmem.size import span

__all__ = ["OPERATIONS", "Here"]

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Here:
    """The PE: its heap as bytes, and its teams."""

    heap: Array
    teams: Teams

    def offset(self, array: Array) -> int:
        """Offset in the heap of an array's element 0, in bytes."""
        return address_of(array) - address_of(self.heap)

    def holds(self, array: Array) -> bool:
        """Whether all of the array is on the heap."""
        return self.locate(*span(array)) is not None

    def locate(self, start: int, end: int) -> tuple[int, bool] | None:
        """Offset of addresses in the heap, and that it is this PE's; None: they are elsewhere."""
        low, high = span(self.heap)
        return (start - low, True) if low <= start and end <= high else None

    def remote(self, name: str, array: Any, pe: int) -> Array:
        """The elements of `array` on `pe`, which is this PE; or the error of the operation."""
        check_pe(name, pe, 1)
        if not isinstance(array, np.ndarray) or not self.holds(array):
            raise not_symmetric(name, array)
        check_contiguous(name, "the remote array", array)
        return array.reshape(-1)

    def element(self, name: str, array: Any, pe: int) -> Array:
        """Element 0 of `array` on `pe`, as an array."""
        check_pe(name, pe, 1)
        if not isinstance(array, np.ndarray) or not self.holds(array):
            raise not_symmetric(name, array)
        if not array.size:
            raise ArgumentError(f"{name}: the array has no element 0: it is empty")
        first: Any = (..., *(slice(1),) * array.ndim)
        return self.remote(name, array[first], pe)

    def word(self, name: str, array: Any, pe: int = 0) -> Array:
        """As `element`, which must be aligned to its size."""
        first = self.element(name, array, pe)
        if not first.flags.aligned:
            raise ArgumentError(
                f"{name}: the element at {address_of(first):#x} is not aligned to its "
                f"{first.itemsize} bytes; atomic operations, signals and waits need that"
            )
        return first


# --- copies


def put(here: Here, dst: Any, src: Any, pe: int, name: str = "put") -> None:
    copy_to(name, here.remote(name, dst, pe), src)


def get(here: Here, dst: Any, src: Any, pe: int) -> None:
    copy_from("get", dst, here.remote("get", src, pe))


def iput(here: Here, dst: Any, src: Any, pe: int, **counts: int) -> None:
    copy_strided("iput", here.remote("iput", dst, pe), src, **counts)


def iget(here: Here, dst: Any, src: Any, pe: int, **counts: int) -> None:
    copy_strided("iget", dst, here.remote("iget", src, pe), **counts)


def p(here: Here, dst: Any, value: Any, pe: int) -> None:
    here.element("p", dst, pe)[0] = value


def g(here: Here, src: Any, pe: int) -> Any:
    return here.element("g", src, pe)[0]


def peer_array(here: Here, array: Any, pe: int, name: str = "peer_array") -> Array:
    here.remote(name, array, pe)
    own: Array = array
    return own


def multicast_array(here: Here, array: Any, team: int) -> list[Array]:
    here.teams.check(team)
    return [peer_array(here, array, 0, "multicast_array")]


# --- atomics

INTEGERS = ("int32", "int64", "uint32", "uint64")
NUMBERS = (*INTEGERS, "float32", "float64")
Change = Callable[[Any, Any], Any]
# Operation -> the new element, from the old one and `value`; and the kinds of dtypes it is for.
CHANGES: dict[str, tuple[Change, tuple[str, ...]]] = {
    "set": (lambda old, value: value, NUMBERS),
    "add": (operator.add, NUMBERS),
    "inc": (lambda old, value: old + old.dtype.type(1), INTEGERS),
    "and": (operator.and_, INTEGERS),
    "or": (operator.or_, INTEGERS),
    "xor": (operator.xor, INTEGERS),
}


def _atomic(
    here: Here, dst: Any, pe: int, value: Any = 0, *, name: str, change: str | None, fetch: bool
) -> Any:
    becomes, dtypes = CHANGES[change] if change else (None, NUMBERS)
    target = _atomic_word(here, name, dst, pe, dtypes)
    old = target[0]
    if becomes is not None:
        target[:] = becomes(target, value)
    return old if fetch else None


def atomic_compare_swap(here: Here, dst: Any, cond: Any, value: Any, pe: int) -> Any:
    target = _atomic_word(here, "atomic_compare_swap", dst, pe, INTEGERS)
    old = target[0]
    if old == cond:
        target[0] = value
    return old


def _atomic_word(here: Here, name: str, dst: Any, pe: int, dtypes: tuple[str, ...]) -> Array:
    here.element(name, dst, pe)
    if dst.dtype.name not in dtypes:
        raise ArgumentError(
            f"{name}: dst must be an array of {', '.join(dtypes)}, not of {dst.dtype}"
        )
    return here.word(name, dst, pe)


# --- signals


def put_signal(here: Here, dst: Any, src: Any, signal: Any, value: int, op: int, pe: int) -> None:
    update = _signalling(here, "put_signal", signal, value, op, pe)
    put(here, dst, src, pe, "put_signal")
    update()


def signal_op(here: Here, signal: Any, value: int, op: int, pe: int) -> None:
    _signalling(here, "signal_op", signal, value, op, pe)()


def _signalling(
    here: Here, name: str, signal: Any, value: int, op: int, pe: int
) -> Callable[[], None]:
    """The function that updates a signal; raises now if that cannot be done."""
    if op not in (SIGNAL_SET, SIGNAL_ADD):
        raise ArgumentError(
            f"{name}: there is no signal operation {op}: use SIGNAL_SET or SIGNAL_ADD"
        )
    target = _signal(here, name, signal, pe)
    number = np.uint64(value)

    def update() -> None:
        target[:] = number if op == SIGNAL_SET else target + number

    return update


def signal_fetch(here: Here, signal: Any) -> Any:
    return _signal(here, "signal_fetch", signal, 0)[0]


def _signal(here: Here, name: str, signal: Any, pe: int) -> Array:
    here.element(name, signal, pe)
    if signal.dtype != np.uint64:
        raise ArgumentError(f"{name}: signal must be an array of uint64, not {signal.dtype}")
    return here.word(name, signal, pe)


# --- waits and tests

COMPARE = {
    CMP_EQ: operator.eq, CMP_NE: operator.ne, CMP_GT: operator.gt, CMP_LE: operator.le,
    CMP_LT: operator.lt, CMP_GE: operator.ge,
}  # fmt: skip
LOOK = 1e-4  # seconds between two looks of a wait with a timeout: another thread may write


class Candidates:
    """The elements that a wait or a test compares."""

    def __init__(
        self, here: Here, name: str, ivars: Any, cmp: int, value: Any, status: Any = None,
        indices: Any = None, first: bool = False,
    ) -> None:  # fmt: skip
        if not isinstance(value, np.ndarray):
            value = ivars.dtype.type(value)
        word = here.word(name, ivars) if first or ivars.size else ivars
        self.flat = word if first else here.remote(name, ivars, 0)
        self.name, self.cmp, self.indices, n = name, cmp, indices, self.flat.size
        lengths = [x.size for x in (status, indices, value) if isinstance(x, np.ndarray)]
        if min(lengths, default=n) < n:
            raise ArgumentError(
                f"{name}: {n} elements are to be compared, but status, indices or value has "
                f"{min(lengths)} elements"
            )
        several = isinstance(value, np.ndarray)
        self.value = value.reshape(-1)[:n].astype(ivars.dtype) if several else value
        self.counts = np.ones(n, bool) if status is None else status.reshape(-1)[:n] == 0
        if cmp not in COMPARE and self.counts.any():
            raise ArgumentError(
                f"{name}: there is no comparison {cmp}: use CMP_EQ, NE, GT, LE, LT or GE"
            )

    def found(self) -> Array:
        """The indices of those that count and compare."""
        if not self.counts.any():
            return np.empty(0, np.int64)
        return np.flatnonzero(COMPARE[self.cmp](self.flat, self.value) & self.counts)

    def all_hold(self) -> Any:
        """Whether all that count compare."""
        return np.bool_(self.found().size == self.counts.sum())

    def some_hold(self) -> bool:
        """Whether one that counts compares; or none counts, and there is nothing to wait for."""
        return bool(self.found().size or not self.counts.any())

    def first(self) -> Any:
        """The lowest index that compares, or -1."""
        return np.int64(next(iter(self.found()), -1))

    def written(self) -> Any:
        """How many compare, their indices being written."""
        found = self.found()
        self.indices.reshape(-1)[: found.size] = found
        return np.int64(found.size)

    def wait(self, over: Callable[[], Any], timeout_ns: int | None) -> None:
        """Poll until `over()`, which only another thread of this process can cause."""
        began = time.monotonic_ns()
        while not over():
            if timeout_ns is None:
                raise Deadlock(
                    f"{self.name} waits for {COMPARISONS[self.cmp]} {self.value}, and there is no "
                    "other PE to write it"
                )
            if time.monotonic_ns() - began >= timeout_ns:
                return
            time.sleep(LOOK)


# Of each family: what ends a wait, and what a wait with a timeout and a test return.
FAMILIES: dict[str, tuple[Any, Any]] = {
    "all": (Candidates.all_hold, Candidates.all_hold),
    "any": (Candidates.some_hold, Candidates.first),
    "some": (Candidates.some_hold, Candidates.written),
}


def _look(here: Here, *, name: str, family: str, **given: Any) -> Any:
    """A wait if there is an argument `timeout_ns`, which may be None; else a test."""
    waits, timeout_ns = "timeout_ns" in given, given.pop("timeout_ns", None)
    candidates = Candidates(here, name, **given)
    over, answer = FAMILIES[family]
    if waits:
        candidates.wait(partial(over, candidates), timeout_ns)
    forever = waits and timeout_ns is None and family == "all"
    return None if forever else answer(candidates)


def _look_at_first(here: Here, *, name: str, ivar: Any, **given: Any) -> Any:
    return _look(here, name=name, family="all", ivars=ivar, first=True, **given)


def signal_wait_until(here: Here, signal: Any, timeout_ns: int | None, **given: Any) -> Any:
    name = "signal_wait_until"
    held = _look_at_first(here, name=name, ivar=signal, timeout_ns=timeout_ns, **given)
    return here.word(name, signal)[0] if timeout_ns is None else held


# --- order, meetings, collectives: there is no other PE


def _nothing(here: Here) -> None:
    """Nothing to do: everything is complete and in order."""


def _of_team(here: Here, team: int, name: str) -> None:
    here.teams.check(team, name)


def _collect(here: Here, team: int, dst: Any, src: Any, op: str = "", *, name: str) -> None:
    """The data of one PE."""
    _of_team(here, team, name)
    _check_room(name, dst, src.size)
    target, source = here.remote(name, dst, 0), here.remote(name, src, 0)
    target[: source.size] = source


def broadcast(here: Here, team: int, dst: Any, src: Any, root: int) -> None:
    _of_team(here, team, "broadcast")
    if root != 0:
        raise ArgumentError(
            f"broadcast: there is no PE {root} in the team to be the root: its PEs are 0 to 0"
        )
    _collect(here, team, dst, src, name="broadcast")


def alltoalls(here: Here, team: int, dst: Any, src: Any, **counts: int) -> None:
    _of_team(here, team, "alltoalls")
    target, source = here.remote("alltoalls", dst, 0), here.remote("alltoalls", src, 0)
    copy_strided("alltoalls", target, source, **counts)


def _check_room(name: str, dst: Any, needed: int) -> None:
    if dst.size < needed:
        raise ArgumentError(f"{name}: dst has {dst.size} elements, and needs {needed}")


# --- the table: an operation for each row, by `Op.base`

Operation = Callable[..., Any]


def _atomics() -> dict[str, Operation]:
    rows = {f"{how}{change}": (change, bool(how)) for how in ("", "fetch_") for change in CHANGES}
    rows |= {"fetch": (None, True), "swap": ("set", True)}  # type: ignore[dict-item]
    del rows["fetch_set"]
    return {
        f"atomic_{row}": partial(_atomic, name=f"atomic_{row}", change=change, fetch=fetch)
        for row, (change, fetch) in rows.items()
    }


def _waits() -> dict[str, Operation]:
    rows: dict[str, Operation] = {}
    for verb in ("wait_until", "test"):
        rows[verb] = partial(_look_at_first, name=verb)
        for family in FAMILIES:
            for name in (f"{verb}_{family}", f"{verb}_{family}_vector"):
                rows[name] = partial(_look, name=name, family=family)
    return rows


COPYING = ("fcollect", "collect", "alltoall", "reduce", "reducescatter")
OPERATIONS: dict[str, Operation] = {
    "my_pe": lambda here: 0,
    "n_pes": lambda here: 1,
    "pe_accessible": lambda here, pe: pe == 0,
    "ask_smem": lambda here, amount: ask_smem(amount),
    "put": put, "get": get, "iput": iput, "iget": iget, "p": p, "g": g,
    "peer_array": peer_array, "multicast_array": multicast_array,
    "atomic_compare_swap": atomic_compare_swap, **_atomics(),
    "put_signal": put_signal, "signal_op": signal_op, "signal_fetch": signal_fetch,
    "signal_wait_until": signal_wait_until, **_waits(),
    **dict.fromkeys(("fence", "flush", "quiet", "barrier_all", "sync_all"), _nothing),
    **{name: partial(_of_team, name=name) for name in ("barrier", "sync")},
    **{name: partial(_collect, name=name) for name in COPYING},
    "broadcast": broadcast, "alltoalls": alltoalls,
    "team_my_pe": lambda here, team: here.teams.my_pe(team),
    "team_n_pes": lambda here, team: here.teams.n_pes(team),
    "team_translate_pe": lambda here, **given: here.teams.translate_pe(**given),
    "team_split_strided": lambda here, **given: here.teams.split_strided(**given),
    "team_split_2d": lambda here, **given: here.teams.split_2d(**given),
    "team_init": lambda here, pes: here.teams.init(pes),
    "team_destroy": lambda here, team: here.teams.destroy(team),
}  # fmt: skip
