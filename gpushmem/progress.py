"""How far something long has come, on a terminal: a line that is drawn again and wiped at the end.

    with progress("iterating", 1000) as bar:
        for k in bar.each(range(1000)):
            ...

It is drawn on standard error, and only if that is a terminal: nothing is printed where it is piped,
and nothing is ever written to standard output but by `print`. The first step draws it. In a job one
PE shows it: `progress(..., shown=shmem.my_pe() == 0)`.

No thread draws: a PE with one could never be told to be in a deadlock, and processes are forked
while it is shown. So it is drawn when something is done, and the cursor is never hidden: also a
process that is killed leaves a terminal that can be used.

For compilations there is a thread, since one call of LLVM may take minutes. It lives only while the
thread that compiles computes, so it hides no deadlock; and it writes past Python's buffers, since a
process that is forked meanwhile would inherit their locks.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, TypeVar

from gpushmem import settings

__all__ = ["Progress", "compiling", "progress", "watched"]

T = TypeVar("T")
BAR = 24  # columns
TOGETHER = 1 << 13  # items, until the next look at the clock


def progress(what: str, total: int | None = None, *, shown: bool = True) -> Progress:
    """Return a context in which `what` is done in so many steps (None: not known).

    Shows nothing unless `shown`, standard error is a terminal, GPUSHMEM_PROGRESS is 1, and this is
    the main thread.
    """
    shown = shown and threading.current_thread() is threading.main_thread()
    return Progress(what, total, shown and settings.get("GPUSHMEM_PROGRESS") and _on_a_terminal())


def watched(what: str, items: Iterable[T], total: int, since: float) -> Iterator[T]:
    """Yield the items; show how many there have been, from a second after the time `since` on."""
    with progress(what, total) as bar:
        for done, item in enumerate(items):
            if done % TOGETHER == 0 and time.monotonic() > since + SHOWN:
                bar.reach(done)
            yield item


def _on_a_terminal() -> bool:
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):  # none; closed
        return False


class Progress:
    """What is shown of a number of steps; see `progress`. One thread uses it."""

    def __init__(self, what: str, total: int | None, shown: bool) -> None:
        self._what, self._total, self._shown = what, total, shown
        self._done, self._text = 0, ""
        self._line: Any = None  # rich's
        self._drawn = False
        self._on_interrupt: Any = None  # who was there before
        self._drawing = False
        self._late: tuple[Any, ...] | None = None  # a signal that came then

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:  # fmt: skip
        self._wipe()
        self._shown = False

    def each(self, items: Iterable[T], name: Callable[[T], object] = str) -> Iterator[T]:
        """Yield the items, each of which is a step, and show the name of that which is done."""
        for item in items:
            self.now(name(item))
            yield item
            self._done += 1
        self._draw()

    def now(self, text: object) -> None:
        """Show what is done at present."""
        self._text = str(text)
        self._draw()

    def advance(self, steps: int = 1, text: object = None) -> None:
        """Count steps that are done; a `text` is shown as by `now`."""
        self._done += steps
        self._text = self._text if text is None else str(text)
        self._draw()

    def reach(self, done: int) -> None:
        """So many steps are done."""
        self._done = done
        self._draw()

    def print(self, *values: object) -> None:
        """Print to standard output, as `print` does, above the line."""
        drawn = self._drawn
        self._wipe()
        print(*values, flush=True)
        if drawn:
            self._draw()

    def _draw(self) -> None:
        if not self._shown:
            return
        self._drawing = True
        try:
            if self._line is None:
                self._line = _new_line(self._what, self._total)
            if not self._drawn:
                self._begin()
            self._line.update(0, completed=self._done, text=self._text, refresh=True)
        finally:
            self._drawing = False
        if self._late is not None:
            self._interrupted(*self._late)

    def _begin(self) -> None:
        self._drawn = True
        self._line.start()
        handler = signal.getsignal(signal.SIGINT)
        if handler is signal.default_int_handler or not callable(handler):
            return  # an exception leaves the context; or nobody can do anything
        if threading.current_thread() is threading.main_thread():
            self._on_interrupt = handler
            signal.signal(signal.SIGINT, self._interrupted)

    def _interrupted(self, *args: Any) -> None:
        """Ctrl-C, where its handler may end the process at once; after what is being written."""
        if self._drawing:
            self._late = args
            return
        handler, self._late = self._on_interrupt, None
        self._wipe()
        handler(*args)

    def _wipe(self) -> None:
        if not self._drawn:
            return
        self._drawn = False
        self._line.stop()
        if self._on_interrupt is not None:
            signal.signal(signal.SIGINT, self._on_interrupt)
            self._on_interrupt = None


def _new_line(what: str, total: int | None) -> Any:
    """Rich's display with one task, which is not drawn yet."""
    from rich import progress as rich  # noqa: PLC0415  (only where something is shown)
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Column  # noqa: PLC0415

    class VisibleCursor(Console):
        def show_cursor(self, show: bool = True) -> bool:  # rich would hide it
            return False

    if total is None:
        columns: tuple[Any, ...] = (rich.TextColumn("{task.completed:,}"),)
    else:
        columns = rich.BarColumn(BAR), rich.MofNCompleteColumn(), rich.TimeRemainingColumn(True)
    rest = Column(no_wrap=True, overflow="ellipsis", ratio=1)  # what the others leave
    line = rich.Progress(
        rich.TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True)),
        *columns, rich.TextColumn("{task.fields[text]}", markup=False, table_column=rest),
        console=VisibleCursor(stderr=True), auto_refresh=False, transient=True,
        redirect_stdout=False, redirect_stderr=False, expand=True,
    )  # fmt: skip
    line.add_task(what, total=total, text="")
    return line


SHOWN, EVERY, SAID = 1.0, 0.5, 5.0  # seconds: until and between what a terminal shows; elsewhere
WIPE = "\r\x1b[K"
OPTIONS = {
    "check": "--check", "weak": "--memory weak", "trace": "--trace", "stats": "--stats",
}  # fmt: skip
_now: set[int] = set()  # threads that compile
os.register_at_fork(after_in_child=_now.clear)


@contextmanager
def compiling(what: str, observers: str = "") -> Iterator[None]:
    """Say that `what` is compiled inside, if it takes long.

    `observers` are the names of those whose code goes into it, as options of `gpushmem run`.
    """
    me = threading.get_ident()
    if me in _now or not settings.get("GPUSHMEM_PROGRESS"):  # what it is compiled for is told
        yield
        return
    options = " ".join(option for name, option in OPTIONS.items() if name in observers)
    _now.add(me)
    ended = threading.Event()
    teller = threading.Thread(
        target=_tell, args=(f"{what} once more, for {options}" if options else what, ended),
        name="gpushmem notice", daemon=True,
    )  # fmt: skip
    try:
        with suppress(RuntimeError):  # the system allows no more threads
            teller.start()
        yield
    finally:
        _now.discard(me)
        ended.set()
        if teller.ident is not None:
            teller.join()


def _tell(what: str, ended: threading.Event) -> None:
    began = time.monotonic()
    with suppress(Exception):  # stderr may be closed, or something that has no file
        fd = sys.stderr.fileno()
        if not os.isatty(fd):
            if not ended.wait(SAID):
                os.write(fd, f"gpushmem: compiling {what}: {SAID:.0f} s so far\n".encode())
            return
        columns = os.get_terminal_size(fd).columns or 80
        over = ended.wait(SHOWN)
        while not over:
            line = f"gpushmem: compiling {what}, {time.monotonic() - began:.0f} s"[: columns - 1]
            os.write(fd, f"{WIPE}{line}".encode())
            over = ended.wait(EVERY)
            if over:
                os.write(fd, WIPE.encode())
