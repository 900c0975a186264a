"""pdb in a thread of a kernel, and coverage.py in greenlets."""

from __future__ import annotations

import pdb  # noqa: T100
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from greenlet import getcurrent

from gpushmem.simt.interpret.threads import Fiber, Thread, current, user_frame

__all__ = ["stop", "watched"]


class KernelPdb(pdb.Pdb):
    """A pdb that says in which thread it has stopped, and steps through that one alone."""

    def __init__(self) -> None:
        super().__init__(skip=["gpushmem.simt.interpret.*", "numpy.*", "contextlib"])
        self.thread: Thread | None = None
        self.told: Thread | None = None

    def stop_here(self, frame: Any) -> bool:
        """Whether a step ends here: not in another thread."""
        return running() is self.thread and bool(super().stop_here(frame))

    def get_stack(self, *args: Any) -> tuple[list[Any], int]:
        """The frames above, without the interpreter's."""
        stack, at = super().get_stack(*args)
        kept = [k for k, (frame, _) in enumerate(stack) if user_frame(frame) is frame]
        return [stack[k] for k in kept], max(0, len([k for k in kept if k <= at]) - 1)

    def break_anywhere(self, frame: Any) -> bool:
        """Whether to follow a function: all the user's, in which a breakpoint may be set later."""
        return running() is not None and user_frame(frame) is frame

    def set_trace(self, *args: Any, **options: Any) -> None:
        """Stop, and follow what the other threads are in, too."""
        for block in current().block.grid.blocks:
            for thread in block.threads:
                frame = thread.fiber and user_frame(thread.fiber.gr_frame)
                while frame is not None:
                    frame.f_trace = self.trace_dispatch
                    frame = user_frame(frame.f_back)
        super().set_trace(*args, **options)

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
    that a kernel has begun traces kernels alone.
    """
    tracer: Any = sys.gettrace()
    tells = hasattr(tracer, "concur_id_func") and tracer.concur_id_func is None
    if tells:
        tracer.concur_id_func = getcurrent
    if _pdb and _pdb[0].breaks:
        sys.settrace(_pdb[0].trace_dispatch)
    try:
        yield
    finally:
        if tells:
            tracer.concur_id_func = None
        if sys.gettrace() is not tracer:
            sys.settrace(tracer)
