"""Who sees what programs of numba.cuda queue on streams, and wait for: a checker, or nobody."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from gpushmem.simt.run.kernel import Running

__all__ = ["QueueObserver", "Work", "present", "witnessed_by"]


class Work(NamedTuple):
    """What is queued on a stream besides launches."""

    name: str
    reads: int = 0  # the first byte that it reads, 0 if it reads none
    writes: int = 0
    nbytes: int = 0
    contents: Callable[[], bytes] = bytes  # what it writes, once or often
    after: int = 0  # the number of what it waits for, on another stream
    tells_host: bool = False  # that it has been reached


class QueueObserver(Protocol):
    """Numbers launches and works in the order in which they are queued."""

    def submitted(self, launch: Running, stream: int) -> int:
        """The host queues a launch, on a stream (0: the default one); returns its number."""

    def running(self, launch: Running, number: int) -> AbstractContextManager[None]:
        """A launch runs."""

    def queues(self, work: Work, stream: int) -> tuple[int, Callable[[], None]]:
        """The host queues a work; returns its number, and what is called when it is its turn."""

    def got_memory(self, address: int, nbytes: int, guard: int) -> None:
        """The host has allocated memory; nothing else gets these addresses any more.

        Nor what is within `guard` bytes before and after it.
        """

    def returned(self, number: int) -> None:
        """The host has waited for what has this number."""

    def end(self) -> None:
        """The program is over; another one may begin."""


_provided: list[Callable[[], QueueObserver | None]] = []


def witnessed_by(witness: Callable[[], QueueObserver | None] | None) -> None:
    """Let `witness()` say who sees what is queued from now on; None: nobody does."""
    _provided[:] = [] if witness is None else [witness]


def present() -> QueueObserver | None:
    """The witness, if there is one."""
    return _provided[0]() if _provided else None
