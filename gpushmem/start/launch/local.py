"""Start PEs on this machine and monitor them until all have ended.

The PEs form a process group of their own: a terminal's Ctrl-C reaches only the launcher, which
forwards it once, and everything the PEs start can be ended with them. When a PE fails, the others
learn of it through the job's board, and their waits raise; PEs that do not end then are killed. If
the launcher itself is killed, the kernel kills the PEs (PR_SET_PDEATHSIG).
"""

from __future__ import annotations

import os
import selectors
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field

import gpushmem
from gpushmem import settings
from gpushmem.backends import registry
from gpushmem.diagnosis.report import report_on
from gpushmem.errors import ShmemError, where_to_read_on
from gpushmem.gc_control import seldom_collected
from gpushmem.job.board import DEADLOCK, FAILED, HANDLED, NONE, TIMEOUT
from gpushmem.job.job import Job, create
from gpushmem.job.limits import SPARE, check_open_files, within_limits
from gpushmem.start.launch.output import Pipes, Tagger
from gpushmem.start.launch.pe import HELD
from gpushmem.start.launch.process import ExecStarter, ForkStarter, Starter
from gpushmem.start.launch.profiler import Profiler
from gpushmem.start.launch.program import Program

__all__ = ["Outcome", "check_room", "launch", "preload"]

TICK = 0.1  # seconds between checks of the board
GRACE = 0.25  # seconds PEs have to end by themselves when the job is over, before SIGTERM
ASKED = 0.25  # ... and from SIGTERM to SIGKILL
CLEAN_UP = 10.0  # ... for exit handlers: of the PE that failed; of all PEs after Ctrl-C
ANSWERS = 1.0  # seconds PEs have to send their accounts
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass
class Outcome:
    """How a job ended."""

    n_pes: int
    codes: dict[int, int] = field(default_factory=dict)  # PE -> exit code as in a shell
    first: int | None = None  # the first PE that failed
    stopped_by: int | None = None  # signal the launcher received
    verdict: int = NONE  # of the job's board
    reason: str = ""  # ... and its reason
    report: str = ""  # ... and its report: of a PE that failed, its traceback

    @property
    def code(self) -> int:
        """Exit code of the job: that of the first PE that failed, else 0; 124 after a timeout."""
        if self.verdict == TIMEOUT:
            return 124
        if self.stopped_by is not None:
            return 128 + self.stopped_by
        if self.verdict == DEADLOCK:
            return 1
        return 0 if self.first is None else self.codes[self.first]

    def summary(self) -> str | None:
        """Return one line on what went wrong; None if nothing did."""
        if self.verdict in (DEADLOCK, TIMEOUT):
            return f"{self.reason}; all PEs were ended"
        if self.stopped_by is not None or self.first is None:
            return None
        others = self.n_pes - 1
        ended = {0: "", 1: "; the other PE was ended"}.get(
            others, f"; the other {others} PEs were ended"
        )
        how = _how(self.codes[self.first])
        if how in self.reason:  # the reason has more detail
            how = self.failure
        return f"PE {self.first} of {self.n_pes} {how}{ended}"

    @property
    def failure(self) -> str:
        """How the first PE failed."""
        return self.reason.partition(" failed: ")[2] or _how(self.codes[self.first or 0])


def _under_nohup(number: int) -> bool:
    return number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN


def _how(code: int) -> str:
    """Describe how a process ended, from its exit code as in a shell."""
    if code - 128 in {int(s) for s in signal.Signals}:
        return f"was killed by {signal.Signals(code - 128).name}"
    return f"ended with exit code {code}"


def preload(backend: str, n_pes: int | None = None) -> bool:
    """Import and compile what so many PEs (None: many) need, once, before they are forked.

    Returns whether PEs of this backend can be forked; for those that cannot, does nothing. A
    backend whose packages are missing is left to the PEs too: their `init` says which.
    """
    about = registry.about(backend)
    if about.warm_up is None or about.missing() is not None:
        return False
    with seldom_collected():
        gpushmem.jit  # noqa: B018  (names are loaded when first used: this loads what kernels need)
        registry.load(about.warm_up)(n_pes)
    return True


def launch(
    n_pes: int,
    what: Callable[[], object] | Program,
    *,
    heap_size: int | None = None,
    tag_output: bool = False,
    pipes: bool | Pipes = False,
    timeout: float | None = None,
    limit: float | None = None,
    threads_per_pe: int | None = None,
    environ: Mapping[str, str] | None = None,
    keep: Sequence[int] = (),
    say_verdict: bool = True,
    profiler: Profiler | None = None,
) -> Outcome:
    """Run `what` in `n_pes` PEs until all have ended; return how the job ended.

    A function runs in forked copies of this process, a `Program` in new processes, which inherit
    the descriptors `keep`, and which a `profiler` starts if there is one. `heap_size` in bytes is
    the default of the PEs' `init`. With `tag_output`, each line that a PE prints is prefixed with
    its number; with `pipes`, output of PEs goes through these, or, if there are none of the
    caller's (True), to Python's streams, not to the process's
    descriptors.

    If a host waits for `timeout` seconds in one call, or the job takes more than `limit` seconds, a
    report is made and the job is ended. Kernels of the cpu backend use `threads_per_pe` cores: by
    default the value of GPUSHMEM_THREADS, or an equal share of the cores. `environ` is added to the
    PEs' environment. A deadlock or timeout is reported on stderr as soon as it is known, unless
    `say_verdict` is False. Signals are forwarded if the caller is the main thread.
    """
    if not sys.platform.startswith("linux"):
        raise ShmemError(f"PEs need Linux (memfd, pidfd); this is {sys.platform}")
    environ = {**_cores(n_pes, threads_per_pe), **(environ or {})}
    starter: Starter = (
        ExecStarter(what, environ, keep, profiler)
        if isinstance(what, Program)
        else ForkStarter(what, environ)
    )
    job = create(n_pes, heap_size, f"{starter.how} by gpushmem run (pid {os.getpid()})")
    seconds = timeout or settings.get("GPUSHMEM_TIMEOUT") or 0
    through = Tagger() if tag_output else Pipes() if pipes is True else pipes or None
    with ExitStack() as made:
        for fd in job.fds:
            made.callback(os.close, fd)
        with within_limits(f"cannot start a job of {n_pes} PEs"):
            launcher = _Launcher(job, through, seconds, limit, say_verdict)
        return launcher.run(starter)


def check_room(n_pes: int, pipes: bool = False) -> None:
    """Raise `BootstrapError` if the limit on open files does not allow so many PEs."""
    each = 3 + 2 * pipes  # memory, result, process; output
    check_open_files(n_pes, each * n_pes + SPARE)


@contextmanager
def _held_back() -> Iterator[None]:
    """Block signals while a PE starts; it receives them when it is ready."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, HELD)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _cores(n_pes: int, threads_per_pe: int | None) -> dict[str, str]:
    """Return the variable that gives a PE its cores, unless the user has set it."""
    if threads_per_pe is None and settings.is_set("GPUSHMEM_THREADS"):
        return {}
    here = len(os.sched_getaffinity(0))
    return {"GPUSHMEM_THREADS": str(threads_per_pe or max(1, here // n_pes))}


class _Launcher:
    def __init__(
        self, job: Job, pipes: Pipes | None, timeout: float, limit: float | None, say_verdict: bool
    ) -> None:
        self.job, self.board, self.say_verdict = job, job.board, say_verdict
        self.board["launcher"] = os.getpid()
        self.board["timeout"] = int(timeout * 1e9)
        self.outcome = Outcome(job.n_pes)
        self.pipes = pipes
        self.selector = selectors.DefaultSelector()
        self.pids: dict[int, int] = {}  # PE -> pid, of running PEs
        self.pidfds: dict[int, int] = {}  # ... -> pidfd
        self.group = 0
        self.limit, self.started = limit, time.monotonic()
        self.heard = 0.0  # when it has heard of the verdict
        self.final = False  # the job is to end, whether or not a deadlock is handled
        self.end_at: float | None = None  # when to send SIGTERM
        self.kill_at: float | None = None  # when to send SIGKILL
        self.culprit_waited = False
        self.profiled = False

    def run(self, starter: Starter) -> Outcome:
        self.profiled = starter.profiled
        try:
            with self._signals():
                self._start(starter)
                while self.pids:
                    self._turn()
                self._kill_group()  # processes that PEs started and left behind
                if self.pipes is not None:
                    self.pipes.drain()
        finally:
            self._kill_group()
            for pid in self.pids.values():
                os.waitpid(pid, 0)
            for fd in self.pidfds.values():
                os.close(fd)
            if self.pipes is not None:
                self.pipes.close()
            self.selector.close()
        return self.outcome

    # --- start

    def _start(self, starter: Starter) -> None:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):  # broken pipe; closed
                if stream is not None:
                    stream.flush()
        for pe in range(self.job.n_pes):
            with within_limits(f"cannot start PE {pe} of {self.job.n_pes}"):
                self._start_one(starter, pe)

    def _start_one(self, starter: Starter, pe: int) -> None:
        pipes = self.pipes.pipes() if self.pipes is not None else None
        with _held_back():
            pid = starter.start(self.job.of(pe), self.group, pipes)
        self.group = self.group or pid
        with suppress(PermissionError, ProcessLookupError):
            os.setpgid(pid, self.group)  # the PE does the same: either may be first
        self.pids[pe] = pid
        self.board.pes["pid"][pe] = pid
        self.pidfds[pe] = os.pidfd_open(pid)
        self.selector.register(self.pidfds[pe], selectors.EVENT_READ, ("ended", pe))
        if self.pipes is not None and pipes is not None:
            for fd in self.pipes.take_readers(pe, pipes):
                self.selector.register(fd, selectors.EVENT_READ, ("output", fd))

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Turn signals into bytes to select on; restores the handlers at the end."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        with within_limits(f"cannot start a job of {self.job.n_pes} PEs"):
            reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        numbers = [s for s in (*FORWARDED, signal.SIGUSR1) if not _under_nohup(s)]
        previous_fd = signal.set_wakeup_fd(writer)  # first: a handler alone would lose a signal
        before = {s: signal.signal(s, lambda *_: None) for s in numbers}
        self.selector.register(reader, selectors.EVENT_READ, ("signal", reader))
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
            signal.set_wakeup_fd(previous_fd)
            os.close(reader)
            os.close(writer)

    # --- monitoring

    def _turn(self) -> None:
        deadlines = [t - time.monotonic() for t in (self.end_at, self.kill_at) if t is not None]
        for key, _ in self.selector.select(max(0.0, min([TICK, *deadlines]))):
            kind, value = key.data
            if kind == "ended":
                self._ended(value)
            elif kind == "signal":
                for number in os.read(value, 64):
                    self._signalled(number)
            elif self.pipes is not None and not self.pipes.read(value):
                self.selector.unregister(value)
        now = time.monotonic()
        if self.limit is not None and now - self.started >= self.limit:
            self._over_limit()
        self._hear_verdict()
        if self.end_at is not None and now >= self.end_at:
            self.end_at = None
            # The one that failed may still be writing its traceback.
            self._to_each(signal.SIGTERM, but=self.board["culprit"])
        if self.kill_at is not None and now >= self.kill_at:
            self._kill(now)

    def _kill(self, now: float) -> None:
        """Kill the remaining PEs; the one that failed by itself has time for its exit handlers."""
        culprit = self.board["culprit"] if self.outcome.verdict == FAILED else -1
        if culprit in self.pids and not self.culprit_waited:
            self.culprit_waited, self.kill_at = True, now + CLEAN_UP
            self._to_each(signal.SIGKILL, but=culprit)
        else:
            self.kill_at = None
            self._kill_group()

    def _ended(self, pe: int) -> None:
        _, status = os.waitpid(self.pids.pop(pe), 0)
        pidfd = self.pidfds.pop(pe)
        self.selector.unregister(pidfd)
        os.close(pidfd)
        code = os.waitstatus_to_exitcode(status)
        self.outcome.codes[pe] = code = code if code >= 0 else 128 - code
        if code and self.outcome.stopped_by is None:
            self.board.claim(FAILED, pe, _how(code) + self.board.in_kernel(pe, code - 128))
        elif code and self.kill_at is None:
            self.kill_at = time.monotonic() + CLEAN_UP
        self.board.mark_ended(pe, code)

    def _hear_verdict(self) -> None:
        """When there is a verdict: report it, and give the PEs a moment to end."""
        outcome, board = self.outcome, self.board
        if outcome.verdict == NONE and board["verdict"] != NONE:
            outcome.verdict, outcome.reason = board["verdict"], board.heading()
            outcome.report = board.text
            if outcome.report and self.say_verdict and outcome.verdict != FAILED:
                page = where_to_read_on(board.error())
                _say(f"gpushmem: {outcome.reason}\n\n{outcome.report}{page}")
            self.heard = time.monotonic()
            self.end_at = self.heard + GRACE
            self.kill_at = self.end_at + ASKED
        elif outcome.verdict != DEADLOCK or self.final:
            pass
        elif board.renew():
            outcome.verdict = NONE
            self.end_at = self.kill_at = None
        elif self.end_at and board.pes["handled"].any():
            self.end_at = self.heard + HANDLED  # the others have time to do so, too
            self.kill_at = self.end_at + ASKED
        if outcome.verdict == FAILED and board["culprit"] in outcome.codes:
            outcome.first = board["culprit"]

    def _signalled(self, number: int) -> None:
        if number == signal.SIGUSR1:
            _say(report_on(self.board, ANSWERS, stacks=True))
        elif self.outcome.stopped_by is not None:  # second signal: end at once
            self._kill_group()
        elif self.board["verdict"] == NONE:
            self.outcome.stopped_by = number
            if number == signal.SIGINT and self._somebody_waits():
                _say(report_on(self.board, ANSWERS))
            self._to_each(number)
            if number != signal.SIGINT:
                self.kill_at = time.monotonic() + GRACE
        else:
            self.final = True

    def _over_limit(self) -> None:
        reason = f"the job exceeded its limit of {self.limit:g} s"
        self.limit, self.final = None, True
        self.board.claim(TIMEOUT, -1, reason, report_on(self.board, ANSWERS, stacks=True))

    def _somebody_waits(self) -> bool:
        return bool((self.board.pes["quiet_since"] != 0).any())

    def _to_each(self, number: int, but: int = -1) -> None:
        for pe, pid in self.pids.items():
            for process in (pid, *(_started_by(pid) if self.profiled else ())) if pe != but else ():
                with suppress(ProcessLookupError):
                    os.kill(process, number)

    def _kill_group(self) -> None:
        if self.profiled:  # which may put the PE into a group of its own
            self._to_each(signal.SIGKILL)
        if self.group:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.group, signal.SIGKILL)


def _started_by(pid: int) -> list[int]:
    """The processes that this one has started, and so on: what a terminal's Ctrl-C would reach."""
    import psutil  # noqa: PLC0415  (for who profiles)

    with suppress(psutil.Error):
        return [process.pid for process in psutil.Process(pid).children(recursive=True)]
    return []


def _say(text: str) -> None:
    with suppress(OSError, ValueError):  # broken pipe; closed
        sys.stderr.write(text)
        sys.stderr.flush()
