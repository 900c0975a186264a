"""`gpushmem run --check --check-runs all`: a job in every order of what its words depend on.

The first run is like any other. Each further one is made in a copy of this process, which has
loaded what PEs need, by a list of who goes first (`exploration`, `turns`); what it prints is shown
if it fails. As many as there are cores go on at once, until none is left, or the time is over.
"""

from __future__ import annotations

import gc
import json
import os
import pickle
import selectors
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import IO, Any, NamedTuple

from gpushmem import code_store
from gpushmem.check import command, log
from gpushmem.check.exploration import Exploration, Loops, Run, run_of
from gpushmem.check.turns import Schedule
from gpushmem.errors import ArgumentError, ShmemError
from gpushmem.progress import Progress, progress

__all__ = ["load", "run_all", "run_by"]

SUFFIX = ".schedule"
FAILURES, SHOWN = 3, 3  # whose output is shown; operations that change places
INTERRUPTED = 128  # exit codes of jobs that signals have ended are larger
AGAIN = 60.0  # as PATIENCE, of one that is run again
PATIENCE = 10.0  # seconds in which nobody has had a turn: the job is stuck, or 5 times slower
MOST_POLLS = 1 << 18  # records of a job that is stuck: those of more are not looked at
GRACE = 10  # seconds that runs may go on when the time is over


class _Result(NamedTuple):
    """What a run has shown."""

    code: int
    seen: command.Seen
    foreseen: command.Seen | None  # what other orders may show, as far as this one tells
    run: Run
    followed: bool  # whether it went as it was told
    stuck: bool  # whether it was ended, as nobody had a turn for long
    seconds: float


def run_all(
    run: Callable[[], int], found: command.Findings, seconds: float, jobs: int | None = None
) -> int:
    """Run a job in every order, as far as time goes, and add what is found; returns its exit code.

    That is the code of the first run that fails.
    """
    end = time.monotonic() + seconds
    every = _Every(run, found)
    with progress("checking schedules") as bar:
        first = _made(run, [], found, Loops(), foresee=True)
        every.take(first, [], ())
        if first.code < INTERRUPTED:
            every.go_on(end, jobs or len(os.sched_getaffinity(0)), bar)
        every.foresee()
    found.remark(every.remarks(min(seconds, time.monotonic() - end + seconds)))
    found.schedules = every.data()
    return every.code


def run_by(run: Callable[[], int], found: command.Findings, threads: list[int]) -> int:
    """Run a job once, in this order."""
    result = _made(run, threads, found, Loops(), AGAIN, foresee=True)
    for seen in (result.seen, result.foreseen):
        if seen is not None:
            found.take(seen)
    if not result.followed:
        found.remark(["the program did not follow the schedule: it has changed, or it is another"])
    return result.code


def load(name: str) -> list[int]:
    """The schedule of a name that a report has given, or of a file."""
    path = Path(name) if name.endswith(SUFFIX) else code_store.folder() / f"{name}{SUFFIX}"
    try:
        threads = json.loads(path.read_text())
        assert all(isinstance(thread, int) for thread in threads)
    except (OSError, ValueError, TypeError, AssertionError):
        raise ArgumentError(
            f"--check-schedule {name}: {path} is no schedule of gpushmem; `--check-runs all` says "
            "the names of those with problems, and `gpushmem cache clear` deletes them"
        ) from None
    return list(threads)


def _made(
    run: Callable[[], int], threads: list[int], found: command.Findings, loops: Loops,
    longest: float | None = None, *, foresee: bool = False,
) -> _Result:  # fmt: skip
    """Run a job, its operations in this order; end it if nobody has a turn for `longest` seconds.

    Threads that poll for what does not come would go on for ever.
    """
    began, over = time.monotonic(), threading.Event()
    with command.recorded() as folder:
        schedule = Schedule.made(folder, threads)
        watch = threading.Thread(target=_end_if_stuck, args=(schedule, longest, over), daemon=True)
        if longest is not None:
            watch.start()
        code = run()
        seconds, stuck = time.monotonic() - began, over.is_set()
        over.set()
        traces = list(log.read(folder))
        if stuck and sum(len(trace.records) for trace in traces) > MOST_POLLS:
            traces = []
        history, seen = found.see(traces, exact=True)
        foreseen = found.see(traces)[1] if foresee else None
        return _Result(
            code, seen, foreseen, run_of(history, loops), not schedule.given_up, stuck, seconds
        )


def _end_if_stuck(schedule: Schedule, longest: float, over: threading.Event) -> None:
    turn, since = -1, time.monotonic()
    while not over.wait(longest / 20):
        if schedule.turns != turn:
            turn, since = schedule.turns, time.monotonic()
        elif time.monotonic() - since > longest:
            over.set()
            os.kill(os.getpid(), signal.SIGTERM)  # the launcher ends the PEs


class _Every:
    """The runs of a job."""

    def __init__(self, run: Callable[[], int], found: command.Findings) -> None:
        self._run, self._found = run, found
        self._exploration = Exploration()
        self._not_followed, self._not_ended = 0, 0
        self._failed: list[dict[str, Any]] = []  # runs
        self._foreseen: command.Seen | None = None
        self._seconds = 0.0  # that the first one took
        self.code = 0

    def take(self, result: _Result, threads: list[int], chain: tuple[str, ...]) -> None:
        """Take what a run has shown."""
        self._exploration.add(result.run._replace(chain=chain))
        self._not_followed += not result.followed
        self._seconds = self._seconds or result.seconds
        self._found.take(result.seen, partial(self._only_if, chain, threads) if chain else None)
        self._foreseen = self._foreseen or result.foreseen
        if result.code:
            self.code = self.code or result.code
            name = _name(result.run.threads if not chain else threads)
            self._failed.append(
                {"schedule": name, "only_if": _shown(chain), "code": result.code,
                 "polls": result.stuck, "output": ""}
            )  # fmt: skip
            if not chain:
                again = self._again(name)
                sys.stderr.write(f"gpushmem check: the job fails in its first run; {again}\n")

    def _only_if(self, chain: tuple[str, ...], threads: list[int]) -> command.When:
        """Which runs show a problem."""
        name = _name(threads)
        data = {"schedule": name, "only_if": _shown(chain)}
        return command.When(f"only if {_text(chain)}; {self._again(name)}", data)

    def _again(self, name: str) -> str:
        """How to run a schedule again."""
        return f"repeat it with {self._found.options}check-schedule {name}"

    def _made(self, threads: list[int]) -> _Result:
        longest = max(PATIENCE, 5 * self._seconds)
        return _made(self._run, threads, self._found, self._exploration.loops, longest)

    def foresee(self) -> None:
        """Where not all schedules have been run, take what the first one tells of others."""
        if self._foreseen is not None and self.left:
            told = "as the first run tells of orders that were not tried"
            self._found.take(self._foreseen, lambda: command.When(told, {"schedule": None}))

    @property
    def left(self) -> int:
        """How many schedules have not been run, at least."""
        lost = self._not_ended + self._not_followed + bool(self._exploration.left_out)
        return self._exploration.more() + lost

    def go_on(self, end: float, jobs: int, bar: Progress) -> None:
        """Run the others, so many at once, up to a time."""
        with selectors.DefaultSelector() as results, _ended(results):
            while True:
                while len(results.get_map()) < jobs and time.monotonic() < end:
                    following = self._exploration.next()
                    if following is None:
                        break
                    _start(partial(self._made, following[0]), *following, results)
                if not results.get_map():
                    return
                ready = results.select(max(end + GRACE - time.monotonic(), 0))
                if not ready:
                    self._not_ended = len(results.get_map())
                    return
                for key, _ in ready:
                    results.unregister(key.fileobj)
                    self._finish(key.data)
                    bar.advance(1)

    def _finish(self, one: _Child) -> None:
        data = one.result.read()
        one.result.close()
        os.waitpid(one.pid, 0)
        one.output.seek(0)
        output = one.output.read().decode(errors="replace")
        one.output.close()
        if not data:
            raise ShmemError(f"--check-runs all: a run ended without a result:\n{output}")
        result = pickle.loads(data)  # noqa: S301  (of a process of our own)
        self.take(result, one.threads, one.chain)
        if result.code and len(self._failed) <= FAILURES:
            fails = "does not end: threads poll for ever" if result.stuck else "fails"
            head = f"gpushmem check: the job {fails}, if {_text(one.chain)}"
            self._failed[-1]["output"] = output = "" if result.stuck else output
            sys.stderr.write(f"{head}; {self._again(self._failed[-1]['schedule'])}\n{output}")

    def data(self) -> dict[str, Any]:
        """The same as `remarks`, and which schedules fail, for programs."""
        n, left = self._exploration.schedules, self.left
        return {"run": n, "all": not left, "at_least": n + left, "failed": self._failed}

    def remarks(self, seconds: float) -> list[str]:
        """How many schedules have been run, of how many."""
        n, left = self._exploration.schedules, self.left
        schedules = f"{n} schedule{'s' * (n != 1)}"
        fails = f"; the job fails in {len(self._failed)}" if self._failed else ""
        if not left:
            of = f" ({self._exploration.orders()})"
            if self._found.problems or self.code:
                return [f"{schedules}, all there are{of}{fails}"]
            every = f"any of its {schedules}" if n > 1 else "its only schedule"
            return [f"no problem in {every}{of}"]
        no_problem = "" if self._found.problems or self.code else "no problem in "
        said = [f"{no_problem}{schedules}, of at least {n + left}, in {seconds:.3g} s{fails}"]
        if self._exploration.more() or self._not_ended:
            said[0] += f"; {self._found.options}check-budget gives more time"
        if self._not_followed:
            said.append(
                f"{self._not_followed} orders could not be followed: a thread waits there for what "
                "comes later, and not by an operation of gpushmem"
            )
        if self._exploration.left_out:
            said.append(
                f"{self._exploration.left_out} operations of the longest run were not looked at: "
                "check fewer steps"
            )
        return said


def _shown(chain: tuple[str, ...]) -> list[str]:
    """Which operations change places, each once."""
    return [*dict.fromkeys(chain)]


def _text(chain: tuple[str, ...]) -> str:
    """The last three of them."""
    shown = _shown(chain)
    return "..., " * (len(shown) > SHOWN) + ", and ".join(shown[-SHOWN:])


def _name(threads: list[int]) -> str:
    """The name of a schedule, by which it can be run again."""
    text = json.dumps(threads)
    name = blake2b(text.encode(), digest_size=4).hexdigest()
    with suppress(OSError):
        code_store.folder().mkdir(parents=True, exist_ok=True)
        (code_store.folder() / f"{name}{SUFFIX}").write_text(text)
    return name


# --- runs in processes of their own


class _Child(NamedTuple):
    """A process that makes a run."""

    pid: int
    result: IO[bytes]
    output: IO[bytes]
    threads: list[int]
    chain: tuple[str, ...]


def _start(
    made: Callable[[], _Result], threads: list[int], chain: tuple[str, ...],
    results: selectors.BaseSelector,
) -> None:  # fmt: skip
    """Make a run in a copy of this process."""
    reader, writer = os.pipe()
    output = tempfile.TemporaryFile()  # noqa: SIM115
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        try:
            gc.freeze()  # see `ForkStarter`
            os.close(reader)
            nothing = os.open(os.devnull, os.O_RDONLY)
            for source, target in ((nothing, 0), (output.fileno(), 1), (output.fileno(), 2)):
                os.dup2(source, target)
            # pytest has others in their place.
            sys.stdout, sys.stderr = (open(fd, "w", 1, closefd=False) for fd in (1, 2))  # noqa: SIM115
            result = pickle.dumps(made())
            with open(writer, "wb") as file:
                file.write(result)
        except BaseException:  # noqa: BLE001  (it is told by its output)
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)
    os.close(writer)
    child = _Child(pid, open(reader, "rb"), output, threads, chain)  # noqa: SIM115
    results.register(child.result, selectors.EVENT_READ, child)


@contextmanager
def _ended(results: selectors.BaseSelector) -> Iterator[None]:
    """End the processes that are left."""
    try:
        yield
    finally:
        for key in list(results.get_map().values()):
            os.kill(key.data.pid, signal.SIGTERM)
        for key in list(results.get_map().values()):
            _wait_for(key.data.pid)
            key.data.result.close()
            key.data.output.close()


def _wait_for(pid: int) -> None:
    """Wait for the end of a process that has been asked to end."""
    end = time.monotonic() + GRACE
    while not os.waitpid(pid, os.WNOHANG)[0]:
        if time.monotonic() > end:
            os.kill(pid, signal.SIGKILL)  # its PEs end with it
        time.sleep(0.01)
