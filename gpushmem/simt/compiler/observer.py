"""What an embedder wants to see of kernels as they run: nothing, unless it says so.

An observer is given before the first kernel is compiled, and its device functions are compiled into
all of them. The threads of a kernel are then fibers or plain loops, never loops between barriers.
`FIBER.clock`, `FIBER.poll` and `BLOCK.phase` are the observer's own, 0 when a thread or block
starts, and so are `FIBER.call` and `THREAD.mark`, and `BLOCK.met_at` and `met_by`, which may be
anything at first.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

__all__ = [
    "ADD", "AND", "ATOMIC", "CAS", "EXCHANGE", "LOAD", "OR", "OTHER", "PLACE_BYTES",
    "RELAXED", "SET", "STORE", "VALUED", "XOR", "Observer", "SharedArray", "compiled_with",
    "current", "moves", "name", "observe", "observe_also", "seen_by", "unseen",
]  # fmt: skip

PLACE_BYTES = 256  # what an observer has for each load and store of a kernel, zero at first


class Observer(NamedTuple):
    """Device functions, called by the thread that is observed."""

    name: str  # kernels that are observed have a name of their own in the store
    fences: Any  # (scope): before a fence of the block (0), the GPU (1) or the system (2)
    block_met: Any  # (): after a barrier of the block
    warp_meets: Any  # (mask): before syncwarp
    warp_met: Any  # (mask): after it
    grid_meets: Any  # (): before a barrier of the grid
    grid_met: Any  # (): after it
    # (place, address, nbytes, how, value): before a load, a store (of this, if an integer: VALUED),
    # or an atomic operation.
    access: Any = None
    # (place, address, what, operand, expected, old, used): after an atomic operation on integers;
    # `used`: whether the program looks at the old value.
    updated: Any = None
    updates: Any = None  # (): before such an operation
    # (address, nbytes, how, place of the value to be stored) -> the address at which a load or
    # store takes place instead.
    moved: Any = None


class SharedArray(NamedTuple):
    """An array in shared memory that a statement of an observed kernel makes."""

    name: str  # of the variable; "" if it has none
    dtype: str
    item: int  # bytes of an element
    shape: tuple[int, ...]  # (0,): all of the dynamic memory
    where: str


LOAD, STORE, ATOMIC, EXCHANGE = range(4)  # `how` of an access; the last one is atomic, too
VALUED = 4  # added to it
# Added to ATOMIC: loads and stores that are atomic and order nothing, volatile and relaxed ones of
# bitcode libraries. Where an observer moves no accesses: operations that are atomic for all PEs.
RELAXED = 8
# `what` an atomic operation does: another one, ...
OTHER, ADD, SET, CAS, OR, AND, XOR = range(7)
_current: list[Observer | None] = [None]
_also: list[str] = []
compiled_with: set[str] = set()  # names of the observers of this process's kernels


def current() -> Observer | None:
    """The observer of kernels that are being compiled."""
    return _current[0]


def moves() -> bool:
    """Whether the present observer moves accesses: only such ones see bitcode libraries'."""
    seen = current()
    return seen is not None and seen.moved is not None


def name() -> str:
    """Who observes, accesses or an embedder's operations, by name; "" if nobody does."""
    seen = current()
    return "+".join([*([] if seen is None else [seen.name]), *_also])


def observe_also(name: str, on: bool = True) -> None:
    """Let kernels compiled from now on have names of their own: an embedder observes them."""
    if on and name not in _also:
        _also.append(name)
    elif not on and name in _also:
        _also.remove(name)


@contextmanager
def seen_by(observer: Observer | None) -> Iterator[None]:
    """What is compiled meanwhile is observed by this one, or by nobody."""
    before = _current[0]
    _current[0] = observer
    try:
        yield
    finally:
        _current[0] = before


def unseen() -> AbstractContextManager[None]:
    """What is compiled meanwhile is not observed."""
    return seen_by(None)


def observe(observer: Observer | None) -> None:
    """Let kernels compiled from now on be observed."""
    _current[0] = observer
