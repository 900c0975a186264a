"""pdb in a thread of a kernel, and coverage.py in greenlets."""

from __future__ import annotations

import pdb
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from greenlet import getcurrent

from gpushmem.simt.interpret.threads import Fiber, Thread, current

__all__ = ["stop", "watched"]


class KernelPdb(pdb.Pdb):
    """A pdb that says in which thread it has stopped, and steps through that one alone."""

    def __init__(self) -> None:
        super().__init__(skip=["gpushmem.simt.interpret.*", "contextlib"])
        self.thread: Thread | None = None
        self.told: Thread | None = None

    def stop_here(self, frame: Any) -> bool:
        """Whether a step ends here: not in another thread."""
        return running() is self.thread and bool(super().stop_here(frame))

    def interaction(self, *args: Any, **options: Any) -> None:
        """Ask what to do."""
        thread = self.thread = running()
        if thread is not None and thread is not self.told:
            self.told = thread
            self.message(f"kernel {thread.block.grid.name}, {thread}")
        super().interaction(*args, **options)


_pdb: list[KernelPdb] = []  # the only one: it keeps its breakpoints


def running() -> Thread | None:
    """The thread of a kernel that runs; None on the host."""
    fiber = getcurrent()
    return fiber.thread if isinstance(fiber, Fiber) else None


def stop(*args: Any, **options: Any) -> None:
    """`breakpoint` in a kernel."""
    if not _pdb:
        _pdb.append(KernelPdb())
    _pdb[0].thread = current()
    _pdb[0].set_trace(sys._getframe().f_back)


@contextmanager
def watched() -> Iterator[None]:
    """Let who traces this thread follow greenlets, while they run.

    coverage.py's tracer keeps a stack of calls, one for each greenlet if it is told who runs. A pdb
    that was stepping when the kernel ended does not go on in the host's code.
    """
    tracer = sys.gettrace()
    tells = hasattr(tracer, "concur_id_func") and tracer.concur_id_func is None
    if tells:
        tracer.concur_id_func = getcurrent  # type: ignore[union-attr]
    try:
        yield
    finally:
        if tells:
            tracer.concur_id_func = None  # type: ignore[union-attr]
        if _pdb and not _pdb[0].breaks and sys.gettrace() is not tracer:
            sys.settrace(tracer)
