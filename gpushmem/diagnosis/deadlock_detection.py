"""One PE's watch: it finds deadlocks, hears of failures, and answers who asks what the PE does.

A thread of its own looks every PERIOD at what this PE's threads do.

*Nothing can move* is proved, not guessed. A PE is *still* when each of its threads is parked
(`simt.parking`) without what it waits for, and each of its launches has gone round its ring twice
without a thread moving: every waiting thread then has looked at its own condition since the last
one moved. Memory changes only where somebody moves. So a PE that is still publishes a number that
stays while it has not moved, and takes it back when it has. When all PEs that live have published
one, the coordinator (the first of them) counts `probe` up; each PE confirms the probe when it finds
itself still again, with two rounds begun after it saw the probe, and not having moved since it
published. All confirmed, numbers unchanged: then at the moment of the probe every PE was still, and
looked at its conditions once more after it; so nobody will ever move. Threads that poll, or whose
wait has a timeout, may move at any time: such a PE is not still. Nor is one with Python threads
that are not known to wait.

Threads in lockstep that wait at a barrier are let go alone, one by one, when nothing has moved for
many rounds (`simt.run.scheduler.LATE`): they may do what others wait for, or be told of a mistake.
Until then their launch is not still: such rounds are not counted (`rests`).

*What moves without a thread of Python's* (`wakeup_sources`). A signal's handler runs in the main
thread, on top of whatever that waits in. While it runs, the thread's innermost frame is not the one
that parked, or one that only waits for it: the thread is not at rest, and the PE not still. It may
begin after we have looked, though, and end before we look again. But it begins only after its
signal has come, and that is seen: no timer is set when we look (`setitimer`, `timer_create`), and
then no signal is on its way to the main thread. So if a handler is still to begin, the system has
already handed the signal over (a handler of C has taken note of it), and Python's begins at the
latest when the main thread next is back in Python. Its wait counts these *turns*; a PE is still
only if two of them have begun since a look that found all this. By then the handler has ended,
before the PE has said that it is still, or is on top of the wait, which this look sees, or has set
what a look finds. Signals that others send are no part of this, nor timers that a handler sets and
that end before anybody looks.

The system is asked about threads that run no Python, and about those of Python's that are in no
wait of ours but in one for a lock of this process. One that is running, or sleeps until a time of
its own choice, may move: the PE is not still. For the others, that they have not run from one look
to the next is part of what has to stay the same. What they wait for comes from a thread, of which
the same is known, or from outside. A main thread that waits for a lock runs handlers of signals
when it has the lock, or begins with them as soon as a signal comes, which ends its system call.

What is only *quiet*, polling included, for long is reported, once, and goes on; hosts that poll in
Python (`host_polling`) are quiet, too. What becomes of the job is said in the board's verdict:
waits of all PEs then end with its error.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

from gpushmem import settings
from gpushmem.diagnosis import wakeup_sources
from gpushmem.diagnosis.host_polling import Asking
from gpushmem.diagnosis.pe_state import Accountant
from gpushmem.diagnosis.report import gone, report
from gpushmem.job.board import DEADLOCK, FAILED, NONE, TIMEOUT
from gpushmem.job.descriptors import above_standard
from gpushmem.job.job import Job
from gpushmem.simt.waits import running
from gpushmem.waiting_threads import Parked, help_others, hosts, moves, parked, restless

__all__ = ["Watch"]

PERIOD = 0.1  # seconds
ANSWERS = 1.0  # seconds for which no PE answers before the others are given up
# Seconds that the watch waits for the interpreter before it claims it, while it makes an account:
# source is read for that, and each read gives the interpreter away. A thread that polls gives it
# back for moments that are too short, but end the usual wait of 5 ms, which then begins anew.
SHORT = 1e-6
LAST = 5.0  # seconds from the verdict to the end of a process that does not end by itself


class Late(Protocol):
    """Operations that are performed late; while some are pending, a PE is not still."""

    @property
    def pending(self) -> bool:
        """Whether some are."""

    def late(self) -> None:
        """Perform those that have waited for too long."""


class Watch:
    """The watch of the calling PE, from `init` to `finalize`."""

    def __init__(
        self, job: Job, accountant: Accountant, asking: Asking, late: Sequence[Late] = ()
    ) -> None:
        self._pe, self._board, self._accountant = job.my_pe, job.board, accountant
        self._asking, self._late = asking, late
        self._me = self._board.pes[job.my_pe : job.my_pe + 1]
        self._stillness = Stillness(asking, late)
        self._neighbour: tuple[int, int] | None = None  # PE, pidfd
        self._gathered: Any = None  # the numbers that the probe is about
        self._deadlocks = settings.get("GPUSHMEM_DEADLOCK")
        self._patience = settings.get("GPUSHMEM_NOTICE")
        self._noticed = self._troubled = False
        self._over: Over | None = None
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gpushmem-watch", daemon=True)

    @property
    def over(self) -> bool:
        """Whether there is a verdict."""
        return self._over is not None

    def start(self) -> None:
        """Begin; before the PE waits for the first time."""
        me, board = self._me, self._board
        if board.n_pes == 1:
            board["verdict"] = NONE  # what became of the last `init` is no concern of this one
        if not board["launcher"] and not board["timeout"]:
            board["timeout"] = int((settings.get("GPUSHMEM_TIMEOUT") or 0) * 1e9)
        me["pid"], me["namespace"] = os.getpid(), Path("/proc/self/ns/pid").stat().st_ino
        me["still"], me["answered"] = 0, board["asked"]
        me["initialised"] = 1
        self._thread.start()

    def stop(self) -> None:
        """End."""
        self._end.set()
        self._thread.join()
        self._me["still"] = self._me["quiet_since"] = 0
        self._me["initialised"] = 2
        if self._neighbour is not None:
            os.close(self._neighbour[1])

    # --- every PERIOD

    def _run(self) -> None:
        help_others()
        while not self._end.wait(PERIOD):
            for look in self._looks():
                try:
                    look()
                except Exception as error:  # noqa: BLE001  (the watch goes on)
                    if not self._troubled:
                        self._troubled = True
                        _print(f"gpushmem: PE {self._pe}: an error in the watch: {error!r}\n")

    def _looks(self) -> tuple[Callable[[], None], ...]:
        looks = self._hear, self._answer, self._asking.look, self._publish, self._neighbours
        return *looks, *(each.late for each in self._late), self._judge

    def _hear(self) -> None:
        """When there is a verdict, end the waits of this PE."""
        board = self._board
        if board["verdict"] == NONE:
            self._over = None
        else:
            self._over = self._over or Over()
            if self._over.end(alone=board.n_pes == 1, for_good=not board["launcher"]):
                board["verdict"], self._over = NONE, None  # of one PE by itself: it may go on

    def _answer(self) -> None:
        asked, answered = self._board["asked"], self._me["answered"][0]
        if asked > answered:
            usual = sys.getswitchinterval()
            sys.setswitchinterval(SHORT)
            try:
                stacks, blocked = self._board["stacks"] > answered, self._stillness.blocked
                account = self._accountant.account(stacks, blocked)
            except Exception as error:  # noqa: BLE001  (who asks is told)
                account = {"pe": self._pe, "error": repr(error)}
            finally:
                sys.setswitchinterval(usual)
            self._board.answer(self._pe, asked, account)

    # --- deadlock

    def _publish(self) -> None:
        """Tell the others whether this PE is still, and confirm a probe."""
        still, probe = self._stillness, self._board["probe"]
        still.look(probe)
        self._me["still"] = still.number
        self._me["quiet_since"] = still.quiet_since
        if still.number and still.confirms:
            self._me["confirmed"] = probe

    def _judge(self) -> None:
        if self._board["verdict"] == NONE:
            self._check_timeout()
            pes = self._board.pes
            alive = (pes["ended"] == 0) & (pes["initialised"] == 1)
            if alive.any() and self._pe == int(alive.argmax()):  # none: all are at their exit
                self._coordinate()

    def _coordinate(self) -> None:
        pes, board = self._board.pes, self._board
        alive = pes["ended"] == 0
        confirmed = (pes["confirmed"][alive] == board["probe"]).all()
        numbers = pes["still"][alive].tolist()
        if not all(numbers) or not self._deadlocks:
            self._gathered = None
            self._notice(pes["quiet_since"][alive])
        elif self._gathered != (alive.tolist(), numbers):
            self._gathered = alive.tolist(), numbers
            board["probe"] += 1
        elif confirmed:
            self._say(DEADLOCK, "no PE can go on")

    def _say(self, verdict: int, reason: str, stacks: bool = False) -> None:
        text = self._report(stacks)
        if self._board.claim(verdict, self._pe, reason, text) and not self._board["launcher"]:
            _print(f"gpushmem: {self._board.heading()}\n\n{text}")

    def _report(self, stacks: bool = False) -> str:
        number = self._board.ask(stacks)
        self._answer()
        return report(self._board.accounts(number, ANSWERS), gone(self._board))

    # --- what is slow

    def _notice(self, quiet_since: Any) -> None:
        """Say once that nothing has moved for long, though it is not proved that nothing will."""
        if self._noticed or not quiet_since.all():
            return
        seconds = (time.monotonic_ns() - int(quiet_since.max())) / 1e9
        if seconds > self._patience:
            self._noticed = True
            _print(
                f"gpushmem: no PE has made progress for {seconds:.0f} s; the job goes on "
                f"(GPUSHMEM_NOTICE)\n\n{self._report()}"
            )

    def _check_timeout(self) -> None:
        limit = self._board["timeout"] / 1e9
        waits = [wait for _, wait in hosts()] + [*self._asking.waits().values()]
        if self._stillness.number and self._stillness.blocked:
            waits.append(self._stillness.blocked)
        for wait in waits if limit else ():
            if time.monotonic() - wait.since > limit and not wait.ready():
                reason = f"PE {self._pe} has waited for {limit:g} s in {wait.what}"
                return self._say(TIMEOUT, reason, stacks=True)
        return None

    # --- failures, where no launcher of ours sees to them

    def _neighbours(self) -> None:
        """Each PE watches the next one that lives; so whoever dies is missed by somebody."""
        board = self._board
        if board["launcher"] or board.n_pes == 1:
            return
        if self._neighbour is None:
            self._neighbour = self._next_neighbour()
        if self._neighbour is not None and _ended(self._neighbour[1]):
            pe, fd = self._neighbour
            self._neighbour = None
            os.close(fd)
            self._lost(pe)

    def _next_neighbour(self) -> tuple[int, int] | None:
        pes = self._board.pes
        for step in range(1, len(pes)):
            pe = (self._pe + step) % len(pes)
            if pes["initialised"][pe] and not pes["ended"][pe]:
                if pes["namespace"][pe] != self._me["namespace"][0]:
                    return None
                try:
                    return pe, above_standard(os.pidfd_open(int(pes["pid"][pe])))
                except ProcessLookupError:
                    self._lost(pe)
                    return None
        return None

    def _lost(self, pe: int) -> None:
        pes = self._board.pes
        if not pes["ended"][pe]:
            if pes["initialised"][pe] == 1:
                pid = int(pes["pid"][pe])
                name = bytes(pes["kernel"][pe]).decode(errors="replace")
                why = (
                    f"in kernel {name}: try @gpushmem.jit(debug=True)" if name else "was it killed?"
                )
                self._board.claim(FAILED, pe, f"process {pid} died without a word ({why})")
            self._board.mark_ended(pe, -1)


class Over:
    """What is left to end of this PE's waits, from the verdict on."""

    def __init__(self) -> None:
        self._since = time.monotonic()
        self._launches = running()
        self._ended = False

    def end(self, alone: bool, for_good: bool) -> bool:
        """Let launches that wait end; True when a PE that is alone may go on.

        What cannot be ended, a kernel that computes without end, must not keep a process for ever
        that nobody else ends: `for_good`.
        """
        now = running()
        self._launches &= now
        for launch in self._launches if alone else now:
            launch.cancel()
        waiting = [wait for _, wait in hosts() if wait.since < self._since]
        if waiting and for_good and time.monotonic() > self._since + LAST:
            _print(
                f"gpushmem: {waiting[0].what} does not end after the verdict: ended the process\n"
            )
            os._exit(1)
        ended, self._ended = self._ended, not waiting and not self._launches
        return alone and for_good and ended


class Stillness:
    """Whether this PE's threads have moved, from one look to the next."""

    def __init__(self, asking: Asking, late: Sequence[Late]) -> None:
        self._asking, self._late = asking, late
        self.number = 0  # while the PE is still: counts how often it has become so
        self.quiet_since = 0  # monotonic nanoseconds, while nothing but polls happens; else 0
        self.confirms = False  # whether the PE has been still for two rounds since the probe
        self.blocked: Parked | None = None  # the main thread's wait, if it is none of ours
        self._switches: Any = None  # by which it is known
        self._count = 0
        self._still, self._quiet = Same(), Same()
        self._probe, self._probed = 0, Turns()

    def look(self, probe: int) -> None:
        """Look once; `probe` is what the board has shown before."""
        before, waits, main = moves(), list(parked.values()), self._main()
        turns = Turns(waits)  # before what threads may have set meanwhile is looked at
        words = [(launch, launch.launch[0]) for launch in turns.launches]
        quiet: Any = (before, main, [(launch, int(word["progress"])) for launch, word in words])
        still: Any = None
        if main is None or not running() <= turns.launches or any(w.ready() for w in waits):
            quiet = None
        elif main in waits or self.blocked:
            others = None if wakeup_sources.alarmed() else wakeup_sources.others(restless())
            if others is None and self.blocked:
                quiet = None  # who is to release the lock may be computing
            elif others is not None and not any(word["timed"] for _, word in words):
                still = quiet, [int(word["polls"]) for _, word in words], others
        if moves() != before or any(each.pending for each in self._late):
            quiet = still = None
        if not self._quiet.look(quiet, turns):
            self.quiet_since = 0
        elif not self.quiet_since:
            self.quiet_since = time.monotonic_ns()
        if not self._still.look(still, turns):
            self.number = 0
        elif not self.number:
            self._count += 1
            self.number = self._count
        if probe != self._probe:
            self._probe, self._probed = probe, turns
        self.confirms = turns.rounds_since(self._probed)

    def _main(self) -> Parked | None:
        """What the main thread waits in; None if it does not."""
        ident = threading.main_thread().ident or 0
        known = parked.get(ident) or self._asking.waits().get(ident)
        switches = None if known else wakeup_sources.blocked(ident)
        if switches is None:
            self.blocked = None
        elif self.blocked is None or switches != self._switches:
            self.blocked = Parked("a wait for another thread", lambda: False)
        self._switches = switches
        return known or self.blocked


class Turns(dict[Any, int]):
    """The turns of the rings of launches, and of the main thread's wait, at some moment."""

    def __init__(self, waits: Iterable[Parked] = ()) -> None:
        self.launches = {run for wait in waits if (run := wait.launch()) is not None}
        super().__init__((launch, int(launch.launch[0]["rests"])) for launch in self.launches)
        main = parked.get(threading.main_thread().ident or 0)
        if main is not None:
            self[main] = main.turns

    def rounds_since(self, before: Turns) -> bool:
        """Whether each has gone round as a whole since then."""
        return all(turns >= before.get(each, turns) + 2 for each, turns in self.items())


class Same:
    """Since when a state has been the same."""

    def __init__(self) -> None:
        self._state: Any = None
        self._turns = Turns()

    def look(self, state: Any, turns: Turns) -> bool:
        """Whether it is the same as before, with a round of each launch between; None never is."""
        if state is None or state != self._state:
            self._state, self._turns = state, turns
            return False
        return turns.rounds_since(self._turns)


def _ended(pidfd: int) -> bool:
    return bool(select.select([pidfd], [], [], 0)[0])


def _print(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # nobody reads any more
        sys.stderr.write(text)
        sys.stderr.flush()
