"""Fork PEs on this machine and see them through to the end.

The PEs are one process group of their own, so a terminal's Ctrl-C reaches the launcher alone,
which passes it on once, and everything they start can be ended with them. When one PE fails the
others are ended at once: they may be waiting for it. Should the launcher itself be killed, the
kernel kills the PEs (PR_SET_PDEATHSIG).
"""

from __future__ import annotations

import gc
import os
import selectors
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from gpushmem.errors import ShmemError
from gpushmem.job.job import Job, create
from gpushmem.launch import pe as pe_main
from gpushmem.launch.output import Tagger

__all__ = ["Outcome", "launch", "preload"]

GRACE = 0.5  # seconds between asking PEs to end and ending them
CLEAN_UP = 10.0  # seconds for the other PEs when one has ended after Ctrl-C
REPORT = 1.0  # seconds for the reports of who waits, after a timeout
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass
class Outcome:
    """How a job ended."""

    n_pes: int
    codes: dict[int, int] = field(default_factory=dict)  # PE -> code as a shell gives it
    first: int | None = None  # the first PE that failed
    stopped_by: int | None = None  # signal the launcher got
    timed_out: bool = False

    @property
    def code(self) -> int:
        """Exit code of the job: the first failing PE's, else 0; 124 after a timeout."""
        if self.timed_out:
            return 124
        if self.stopped_by is not None:
            return 128 + self.stopped_by
        return 0 if self.first is None else self.codes[self.first]

    def summary(self) -> str | None:
        """One line on what went wrong, None if nothing did."""
        if self.timed_out:
            return "the job ran into its timeout; all PEs were ended"
        if self.stopped_by is not None or self.first is None:
            return None
        code, others = self.codes[self.first], self.n_pes - 1
        how = (
            f"was killed by {signal.Signals(code - 128).name}"
            if _is_signal(code)
            else f"ended with exit code {code}"
        )
        ended = {0: "", 1: "; the other PE was ended"}.get(
            others, f"; the other {others} PEs were ended"
        )
        return f"PE {self.first} of {self.n_pes} {how}{ended}"


def _is_signal(code: int) -> bool:
    return code - 128 in {int(s) for s in signal.Signals}


def preload() -> None:
    """Import and compile what PEs will need, once, before they are forked."""
    from gpushmem import jit  # noqa: F401, PLC0415  (heavy, and so is what it imports)
    from gpushmem.backends.cpu import backend  # noqa: PLC0415

    backend.warm_up()


def launch(
    n_pes: int,
    target: Callable[[], object],
    *,
    heap_size: int | None = None,
    tag_output: bool = False,
    timeout: float | None = None,
    threads_per_pe: int | None = None,
) -> Outcome:
    """Run `target()` in `n_pes` forked PEs until all have ended; return how.

    `heap_size` in bytes is what PEs' `init` uses. With `tag_output` each line that a PE prints is
    prefixed with its number. After `timeout` seconds every PE prints what it waits for, and the
    job is ended. A PE's kernels use `threads_per_pe` cores: by default what GPUSHMEM_THREADS says,
    or an equal part of the cores there are. Call it from the main thread.
    """
    if not sys.platform.startswith("linux"):
        raise ShmemError(f"the cpu backend needs Linux (memfd, pidfd); this is {sys.platform}")
    from gpushmem.backends.cpu.backend import share_of_cores  # noqa: PLC0415  (heavy)

    def on_its_cores() -> None:
        os.environ.update(share_of_cores(n_pes, threads_per_pe))
        target()

    return _Launcher(create(n_pes, heap_size), tag_output, timeout).run(on_its_cores)


class _Launcher:
    def __init__(self, job: Job, tag_output: bool, timeout: float | None) -> None:
        self.job, self.board = job, job.board()
        self.outcome = Outcome(job.n_pes)
        self.tagger = Tagger() if tag_output else None
        self.selector = selectors.DefaultSelector()
        self.pids: dict[int, int] = {}  # PE -> pid, of those that run
        self.group = 0
        self.timeout_at = None if timeout is None else time.monotonic() + timeout
        self.kill_at: float | None = None

    def run(self, target: Callable[[], object]) -> Outcome:
        try:
            with self._signals():
                self._start(target)
                while self.pids:
                    self._turn()
                self._kill_group()  # what PEs started and left behind
                if self.tagger is not None:
                    self.tagger.drain()
        finally:
            self._kill_group()
            for pid in self.pids.values():
                os.waitpid(pid, 0)
            for fd in self.job.fds:
                os.close(fd)
            self.selector.close()
        return self.outcome

    # --- start

    def _start(self, target: Callable[[], object]) -> None:
        token, write_end = os.pipe()
        os.write(write_end, b"1")
        parent = os.getpid()
        sys.stdout.flush()
        sys.stderr.flush()
        gc.freeze()  # or a collection in a PE would write to, and so copy, all memory it shares
        for pe in range(self.job.n_pes):
            pipes = self.tagger.pipes() if self.tagger is not None else None
            pid = _fork()
            if pid == 0:
                if pipes is not None:
                    Tagger.redirect(pipes)
                os.setpgid(0, self.group)
                pe_main.run(self.job.of(pe), target, parent, token)
            self.group = self.group or pid
            with suppress(PermissionError, ProcessLookupError):
                os.setpgid(pid, self.group)  # whichever of the two is first
            self.pids[pe] = pid
            self.selector.register(os.pidfd_open(pid), selectors.EVENT_READ, ("ended", pe))
            if self.tagger is not None and pipes is not None:
                for fd in self.tagger.adopt(pe, pipes):
                    self.selector.register(fd, selectors.EVENT_READ, ("output", fd))
        gc.unfreeze()
        os.close(token)
        os.close(write_end)

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Turn signals into bytes to select on; the handlers are put back at the end."""
        reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        before = {s: signal.signal(s, lambda *_: None) for s in FORWARDED}
        previous_fd = signal.set_wakeup_fd(writer)
        self.selector.register(reader, selectors.EVENT_READ, ("signal", reader))
        try:
            yield
        finally:
            signal.set_wakeup_fd(previous_fd)
            for number, handler in before.items():
                signal.signal(number, handler)
            os.close(reader)
            os.close(writer)

    # --- until the end

    def _turn(self) -> None:
        deadlines = [t for t in (self.timeout_at, self.kill_at) if t is not None]
        wait = max(0.0, min(deadlines) - time.monotonic()) if deadlines else None
        for key, _ in self.selector.select(wait):
            kind, value = key.data
            if kind == "ended":
                self._ended(value, key.fd)
            elif kind == "signal":
                for number in os.read(value, 64):
                    self._signalled(number)
            elif self.tagger is not None and not self.tagger.read(value):
                self.selector.unregister(value)
        now = time.monotonic()
        if self.timeout_at is not None and now >= self.timeout_at:
            self._timed_out(now)
        if self.kill_at is not None and now >= self.kill_at:
            self.kill_at = None
            self._kill_group()

    def _ended(self, pe: int, pidfd: int) -> None:
        _, status = os.waitpid(self.pids.pop(pe), 0)
        self.selector.unregister(pidfd)
        os.close(pidfd)
        code = os.waitstatus_to_exitcode(status)
        self.outcome.codes[pe] = code = code if code >= 0 else 128 - code
        self.board.mark_ended(pe, code)
        if code and self.outcome.first is None:
            self.outcome.first = pe
            interrupted = self.outcome.stopped_by is not None
            if self.kill_at is None:
                self.kill_at = time.monotonic() + (CLEAN_UP if interrupted else GRACE)
            if not interrupted:
                self._to_each(signal.SIGTERM)

    def _signalled(self, number: int) -> None:
        if number not in FORWARDED:
            return
        if self.outcome.stopped_by is not None:  # asked twice: no more patience
            self._kill_group()
        elif self.outcome.first is None:
            self.outcome.stopped_by = number
            self._to_each(number)
            if number != signal.SIGINT:
                self.kill_at = time.monotonic() + GRACE

    def _timed_out(self, now: float) -> None:
        self.timeout_at = None
        self.outcome.timed_out = True
        self._to_each(signal.SIGUSR1)
        self.kill_at = now + REPORT

    def _to_each(self, number: int) -> None:
        for pid in self.pids.values():
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def _kill_group(self) -> None:
        if self.group:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.group, signal.SIGKILL)


def _fork() -> int:
    with warnings.catch_warnings():
        # Python warns of threads it does not know. They are the worker pools of numerical
        # libraries, idle here, and those libraries see to themselves across a fork.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()
