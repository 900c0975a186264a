"""What the host of a PE tells those who read its events: the checker, the trace, the counters.

A backend tells its `Readers` what the host does, and need not know who they are. A reader is a
`Reader` with a method for each thing that it wants to know of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any

from gpushmem.ops import Op

__all__ = ["Reader", "Readers"]

During = AbstractContextManager[None]
NOTHING: During = nullcontext()


class Reader:
    """Reads nothing. Methods that return a context are entered for as long as something takes."""

    allocated: Callable[[], Sequence[Any]] = list  # the symmetric arrays there are

    def mapped(self) -> None:
        """The heap has been mapped."""

    def meeting(self, what: str) -> During:
        """All PEs make this call, and wait for each other in it."""
        return NOTHING

    def calling(self, what: str) -> During:
        """The host makes a call that waits, or takes a while."""
        return NOTHING

    def ranging(self, name: str) -> During:
        """The program names what it does."""
        return NOTHING

    def preparing(self, kernel: str) -> During:
        """The host prepares a launch, and compiles the kernel unless it is known."""
        return NOTHING

    def launched(self, kernel: str) -> None:
        """The host has queued a launch, or is about to."""

    def call(self, op: Op, arguments: dict[str, Any], run: Callable[[], Any]) -> Any:
        """The host performs an operation, which `run` does; returns its result."""
        return run()

    def queued(
        self, op: Op, arguments: dict[str, Any], run: Callable[[], Any], stream: int
    ) -> Callable[[], Any]:
        """The host queues an operation on a stream; returns what is to be run there."""
        return run

    def collective(self, what: str, team: int, run: Callable[[], None]) -> None:
        """The host makes a call in which all members of a team wait for each other."""
        with self.calling(what):
            run()

    def synchronized(self) -> None:
        """The host has waited for all that it has queued."""

    def read(self, native: Any) -> None:
        """The host reads an array of its PE."""

    def written(self, native: Any, values: Any) -> None:
        """The host writes an array of its PE."""

    def exposed(self, native: Any) -> None:
        """The host has an array, which it may write to unseen."""

    def arrays(self) -> None:
        """There may be new arrays among `allocated()`."""

    def released(self, offset: int) -> None:
        """A symmetric array has been freed."""

    def close(self) -> None:
        """The PE's part of the job is over; it may begin another."""


class Readers(Reader):
    """Several readers as one; the first is told first, and the last that something is over."""

    def __init__(self, readers: Iterable[Reader | None]) -> None:
        self._all = tuple(each for each in readers if each is not None)

    def __bool__(self) -> bool:
        return bool(self._all)

    def look_at(self, allocated: Callable[[], Sequence[Any]]) -> None:
        """Tell them who knows the symmetric arrays."""
        for each in self._all:
            each.allocated = allocated

    def mapped(self) -> None:
        for each in self._all:
            each.mapped()

    def meeting(self, what: str) -> During:
        return _all_of([each.meeting(what) for each in self._all])

    def calling(self, what: str) -> During:
        return _all_of([each.calling(what) for each in self._all])

    def ranging(self, name: str) -> During:
        return _all_of([each.ranging(name) for each in self._all])

    def preparing(self, kernel: str) -> During:
        return _all_of([each.preparing(kernel) for each in self._all])

    def launched(self, kernel: str) -> None:
        for each in self._all:
            each.launched(kernel)

    def call(self, op: Op, arguments: dict[str, Any], run: Callable[[], Any]) -> Any:
        for each in self._all:
            run = partial(each.call, op, arguments, run)
        return run()

    def queued(
        self, op: Op, arguments: dict[str, Any], run: Callable[[], Any], stream: int
    ) -> Callable[[], Any]:
        for each in self._all:
            run = each.queued(op, arguments, run, stream)
        return run

    def collective(self, what: str, team: int, run: Callable[[], None]) -> None:
        for each in self._all:
            run = partial(each.collective, what, team, run)
        run()

    def synchronized(self) -> None:
        for each in self._all:
            each.synchronized()

    def read(self, native: Any) -> None:
        for each in self._all:
            each.read(native)

    def written(self, native: Any, values: Any) -> None:
        for each in self._all:
            each.written(native, values)

    def exposed(self, native: Any) -> None:
        for each in self._all:
            each.exposed(native)

    def arrays(self) -> None:
        for each in self._all:
            each.arrays()

    def released(self, offset: int) -> None:
        for each in self._all:
            each.released(offset)

    def close(self) -> None:
        for each in self._all:
            each.close()


def _all_of(contexts: Sequence[During]) -> During:
    if len(contexts) > 1:
        return _nested(contexts)
    return contexts[0] if contexts else NOTHING


@contextmanager
def _nested(contexts: Sequence[During]) -> Iterator[None]:
    with ExitStack() as stack:
        for each in contexts:
            stack.enter_context(each)
        yield
