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

What is only *quiet*, polling included, for long is reported, once, and goes on. What becomes of
the job is said in the board's verdict: waits of all PEs then end with its error.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
import threading
import time
from pathlib import Path
from typing import Any

from gpushmem import settings
from gpushmem.backends.cpu.account import Accountant
from gpushmem.backends.cpu.meeting import Meeting
from gpushmem.job.board import DEADLOCK, FAILED, NONE, TIMEOUT, Board
from gpushmem.job.job import Job
from gpushmem.job.report import gone, report
from gpushmem.simt.kernel import Running, running
from gpushmem.simt.parking import OURS, moves, parked

__all__ = ["Watch"]

PERIOD = 0.1  # seconds
ANSWERS = 1.0  # seconds that PEs have for their accounts
LAST = 5.0  # seconds from the verdict to the end of a process that does not end by itself
NEVER = 1 << 62


class Watch:
    """The watch of the calling PE, from `init` to `finalize`."""

    def __init__(self, job: Job, board: Board, meeting: Meeting, accountant: Accountant) -> None:
        self._pe, self._board, self._meeting = job.my_pe, board, meeting
        self._me = board.pes[job.my_pe : job.my_pe + 1]
        self._accountant = accountant
        self._stillness = Stillness()
        self._neighbour: tuple[int, int] | None = None  # PE, pidfd
        self._gathered: Any = None  # the numbers that the probe is about
        self._over_at = 0.0  # when the verdict was seen
        self._deadlocks = settings.get("GPUSHMEM_DEADLOCK")
        self._patience = settings.get("GPUSHMEM_NOTICE")
        self._noticed = False
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"{OURS}-watch", daemon=True)

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
        self._me["still"] = self._me["quiet_since"] = 0
        self._me["initialised"] = 2
        self._end.set()
        self._thread.join()
        if self._neighbour is not None:
            os.close(self._neighbour[1])

    # --- every PERIOD

    def _run(self) -> None:
        while not self._end.wait(PERIOD):
            try:
                self._look()
            except Exception as error:  # noqa: BLE001  (the job goes on without its watch)
                sys.stderr.write(f"gpushmem: PE {self._pe}: the watch has ended: {error!r}\n")
                return

    def _look(self) -> None:
        board = self._board
        if board["verdict"] != NONE:
            self._end_waits()
        self._answer()
        self._publish()
        self._watch_neighbour()
        if board["verdict"] == NONE:
            self._check_timeout()
            if self._pe == self._coordinator():
                self._coordinate()

    def _end_waits(self) -> None:
        """Let launches that wait end; what cannot be ended must not keep the process for ever."""
        for launch in list(running):
            launch.cancel()
        self._over_at = self._over_at or time.monotonic()
        waiting = any(not wait.worker for wait in list(parked.values()))
        if time.monotonic() > self._over_at + LAST and waiting and not self._board["launcher"]:
            _print(f"gpushmem: PE {self._pe} has a kernel that does not end: ended the process\n")
            os._exit(1)

    def _answer(self) -> None:
        asked = self._board["asked"]
        if asked > self._me["answered"][0]:
            account = self._accountant.account(stacks=self._board["stacks"] == asked)
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

    def _coordinator(self) -> int:
        pes = self._board.pes
        return int(((pes["ended"] == 0) & (pes["initialised"] == 1)).argmax())

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
        now = time.monotonic()
        for wait in list(parked.values()) if limit else ():
            if not wait.worker and now - wait.since > limit and not wait.ready():
                reason = f"PE {self._pe} has waited for {limit:g} s in {wait.what}"
                self._say(TIMEOUT, reason, stacks=True)

    # --- failures, where no launcher of ours sees to them

    def _watch_neighbour(self) -> None:
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
                    return pe, os.pidfd_open(int(pes["pid"][pe]))
                except ProcessLookupError:
                    self._lost(pe)
                    return None
        return None

    def _lost(self, pe: int) -> None:
        pes = self._board.pes
        if not pes["ended"][pe]:
            failed = pes["initialised"][pe] == 1
            self._board.mark_ended(pe, -1)
            if failed:
                pid = int(pes["pid"][pe])
                self._board.claim(FAILED, pe, f"process {pid} died without a word (was it killed?)")


class Stillness:
    """Whether this PE's threads have moved, from one look to the next."""

    def __init__(self) -> None:
        self.number = 0  # while the PE is still: counts how often it has become so
        self.quiet_since = 0  # monotonic nanoseconds, while nothing but polls happens; else 0
        self.confirms = False  # whether the PE has been still for two rounds since the probe
        self._count = 0
        self._state: Any = None
        self._quiet_state: Any = None
        self._turns: dict[Running, int] = {}  # at the last look
        self._probe = 0
        self._probed: dict[Running, int] = {}  # ... and when the probe was seen

    def look(self, probe: int) -> None:
        before, bystanders = moves(), not _all_parked()
        launches = [wait.launch for wait in list(parked.values()) if wait.launch is not None]
        words = {launch: launch.launch[0] for launch in launches}
        turns = {launch: int(word["turns"]) for launch, word in words.items()}
        went_round = all(turns[k] >= self._turns.get(k, NEVER) + 2 for k in launches)
        self._turns = turns
        quiet = (before, [(k, int(word["progress"])) for k, word in words.items()])
        state = (quiet, [int(word["polls"]) for word in words.values()])
        idle = (
            went_round
            and set(running) <= words.keys()
            and len(parked) > 0
            and not any(wait.ready() for wait in list(parked.values()))
            and moves() == before
        )
        self._look_quiet(quiet if idle else None)
        free = bystanders or any(word["timed"] for word in words.values())
        self._look_still(state if idle and not free else None)
        if probe != self._probe:
            self._probe, self._probed = probe, turns
        self.confirms = all(turns[k] >= self._probed.get(k, NEVER) + 2 for k in launches)

    def _look_quiet(self, state: Any) -> None:
        if state is None:
            self.quiet_since = 0
        elif self._quiet_state != state or not self.quiet_since:
            self.quiet_since = time.monotonic_ns()
        self._quiet_state = state

    def _look_still(self, state: Any) -> None:
        """A number is published at the second look that finds the same."""
        if state is None or state != self._state:
            self.number = 0
        elif not self.number:
            self._count += 1
            self.number = self._count
        self._state = state


def _all_parked() -> bool:
    """Whether all Python threads wait for the engine, but those that only act for others."""
    return all(
        thread.ident in parked or thread.name.startswith(OURS) for thread in threading.enumerate()
    )


def _ended(pidfd: int) -> bool:
    return bool(select.select([pidfd], [], [], 0)[0])


def _print(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # nobody reads any more
        sys.stderr.write(text)
        sys.stderr.flush()
