"""Host operations of a job of one PE, in NumPy: `OPERATIONS` has one for each row of the table.

Arguments have been checked (`call_arguments`, `call_checks`). A remote array is the caller's own, a
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

from gpushmem.artifacts.argument_packing import address_of
from gpushmem.backends.host.call_checks import not_symmetric
from gpushmem.backends.host.host_kernels import (
    ask_smem,
    copy_strided,
    multiply_batched,
    multiply_scaled,
)
from gpushmem.backends.null.teams import Teams
from gpushmem.backends.operation_errors import EMPTY, TOO_SHORT, UNALIGNED, error_of
from gpushmem.errors import Deadlock
from gpushmem.ops import OPS, SIGNAL_SET
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

    def check(self, name: str, array: Any) -> None:
        """Raise unless it is an array on the heap."""
        if not isinstance(array, np.ndarray) or not self.holds(array):
            raise not_symmetric(name, array)


def word(name: str, array: Array) -> Array:
    """Element 0, as an array, which must be aligned to its size."""
    if not array.size:
        raise error_of(EMPTY, name)
    first = _first(array)
    if not first.flags.aligned:
        raise error_of(UNALIGNED, name, address_of(first), first.itemsize)
    return first


def _first(array: Array) -> Array:
    """Element 0, as an array."""
    index: Any = (..., *(slice(1),) * array.ndim)
    return array[index].reshape(-1)


# --- copies


def put(here: Here, dst: Any, src: Any, pe: int) -> None:
    dst.reshape(-1)[: src.size] = src.reshape(-1)


def get(here: Here, dst: Any, src: Any, pe: int) -> None:
    dst.reshape(-1)[:] = src.reshape(-1)[: dst.size]


def strided(here: Here, dst: Any, src: Any, pe: int = 0, team: int = 0, **counts: int) -> None:
    copy_strided("", dst, src, **counts)


def p(here: Here, dst: Any, value: Any, pe: int) -> None:
    _first(dst)[0] = value


def g(here: Here, src: Any, pe: int) -> Any:
    return _first(src)[0]


def peer_array(here: Here, array: Any, pe: int) -> Array:
    own: Array = array
    return own


def multicast_array(here: Here, array: Any, team: int) -> list[Array]:
    here.teams.check(team)
    return [array]


def gemm(here: Here, dst: Any, a: Any, b: Any, accumulate: bool) -> None:
    multiply_batched(dst, a, b, accumulate)


# --- atomics

Change = Callable[[Any, Any], Any]
# Operation -> the new element, from the old one and `value`.
CHANGES: dict[str, Change] = {
    "set": lambda old, value: value,
    "add": operator.add,
    "inc": lambda old, value: old + old.dtype.type(1),
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
}


def _atomic(
    here: Here, dst: Any, pe: int, value: Any = 0, *, name: str, change: str | None, fetch: bool
) -> Any:
    target = word(name, dst)
    old = target[0]
    if change:
        target[:] = CHANGES[change](target, value)
    return old if fetch else None


def atomic_compare_swap(here: Here, dst: Any, cond: Any, value: Any, pe: int) -> Any:
    target = word("atomic_compare_swap", dst)
    old = target[0]
    if old == cond:
        target[0] = value
    return old


# --- signals


def put_signal(here: Here, dst: Any, src: Any, signal: Any, value: int, op: int, pe: int) -> None:
    update = _signalling("put_signal", signal, value, op)
    put(here, dst, src, pe)
    update()


def signal_op(here: Here, signal: Any, value: int, op: int, pe: int) -> None:
    _signalling("signal_op", signal, value, op)()


def _signalling(name: str, signal: Any, value: int, op: int) -> Callable[[], None]:
    """The function that updates a signal; raises now if that cannot be done."""
    target, number = word(name, signal), np.uint64(value)

    def update() -> None:
        target[:] = number if op == SIGNAL_SET else target + number

    return update


def signal_fetch(here: Here, signal: Any) -> Any:
    return word("signal_fetch", signal)[0]


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
        element = word(name, ivars) if first or ivars.size else ivars
        self.flat = element if first else ivars.reshape(-1)
        self.name, self.cmp, self.indices, n = name, cmp, indices, self.flat.size
        lengths = [x.size for x in (status, indices, value) if isinstance(x, np.ndarray)]
        if min(lengths, default=n) < n:
            raise error_of(TOO_SHORT, name, n, min(lengths))
        several = isinstance(value, np.ndarray)
        self.value = value.reshape(-1)[:n].astype(ivars.dtype) if several else value
        self.counts = np.ones(n, bool) if status is None else status.reshape(-1)[:n] == 0

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
    return word(name, signal)[0] if timeout_ns is None else held


# --- order, meetings, collectives: there is no other PE


def _of_teams(name: str, here: Here, **given: Any) -> Any:
    return here.teams.calls[name](**given)


def _nothing(here: Here, team: int = 0) -> None:
    """Nothing to do: everything is complete and in order."""


def _collect(here: Here, team: int, dst: Any, src: Any, op: str = "", root: int = 0) -> None:
    """The data of one PE."""
    dst.reshape(-1)[: src.size] = src.reshape(-1)


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


ORDERING = "fence", "flush", "quiet", "barrier_all", "sync_all", "barrier", "sync"
COPYING = "broadcast", "fcollect", "collect", "alltoall", "reduce", "reducescatter"
OPERATIONS: dict[str, Operation] = {
    "my_pe": lambda here: 0,
    "n_pes": lambda here: 1,
    "pe_accessible": lambda here, pe: pe == 0,
    "ask_smem": lambda here, amount: ask_smem(amount),
    "put": put, "get": get, "p": p, "g": g, "gemm": gemm, "gemm_batched": gemm,
    "gemm_scaled": lambda here, **given: multiply_scaled(**given),
    **dict.fromkeys(("iput", "iget", "alltoalls"), strided),
    "peer_array": peer_array, "multicast_array": multicast_array,
    "atomic_compare_swap": atomic_compare_swap, **_atomics(),
    "put_signal": put_signal, "signal_op": signal_op, "signal_fetch": signal_fetch,
    "signal_wait_until": signal_wait_until, **_waits(),
    **dict.fromkeys(ORDERING, _nothing),
    **dict.fromkeys(COPYING, _collect),
    **{name: partial(_of_teams, name) for name in OPS if name.startswith("team_")},
}  # fmt: skip
