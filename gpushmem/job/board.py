"""The job's visible state: which PEs have ended, the verdict, and each PE's account.

The board is memory mapped by all PEs, by the launcher and, through `/proc`, by other processes of
the same user. Every number is a 64-bit word with one writer at a time, so no word is read
half-written. An *account* is a PE's description of its own state: JSON in a box of its own, written
on request (requests increment `asked`), and complete when the PE's `answered` has reached that
number.

The *verdict* is the reason a job ends before its PEs return: a PE failed, no PE can go on, or a
host waited too long. The first PE to claim a verdict wins; a lock on the board's file decides which
one that is, and the system releases the lock of a process that dies. A deadlock is no longer one
when all PEs have handled its error, and begin anew.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import mmap
import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from gpushmem.errors import Deadlock, PeerFailed, ShmemError, WaitTimeout
from gpushmem.job.safe_text import plain, plain_data, plain_lines

__all__ = [
    "ACCOUNT_BYTES", "DEADLOCK", "FAILED", "HANDLED", "JOB", "MAGIC", "NONE", "PE", "PES_AT",
    "TIMEOUT", "Board", "board_bytes", "boxes_at",
]  # fmt: skip

NONE, FAILED, DEADLOCK, TIMEOUT = range(4)  # verdicts
HANDLED = 5.0  # seconds for all PEs to handle a deadlock that one has handled
MAGIC = 0x47505553484D0003
ACCOUNT_BYTES = 1 << 20  # size of a box; memory is committed only when written
TEXT_BYTES = 1 << 20

JOB = np.dtype(
    [
        ("magic", "i8"),
        ("n_pes", "i8"),
        ("launcher", "i8"),  # pid of the launcher that monitors the PEs; 0: not started by gpushmem
        ("started", "i8"),  # nanoseconds since 1970
        ("asked", "i8"),  # number of requests for accounts
        ("stacks", "i8"),  # ... the last request that includes Python stacks
        ("probe", "i8"),  # see `diagnosis/termination`
        ("timeout", "i8"),  # nanoseconds a host may wait in one call; 0: no limit
        ("verdict", "i8"),
        ("culprit", "i8"),  # the PE that failed, or waited for too long
        ("reason_bytes", "i8"),
        ("text_bytes", "i8"),  # size of the report behind the verdict
        ("announced", "i8"),  # size of PE 0's announcement plus 1; 0: none yet
        ("stamp", "i8"),  # events of all PEs so far, while they are checked
        ("performed", "i8"),  # operations of all PEs so far, while memory is weak
    ],
    align=True,
)
PE = np.dtype(
    {
        # `itemsize` keeps PEs on separate cache lines. Kernels read `ended`: it comes first.
        "names": [
            "ended", "code", "pid", "namespace", "initialised", "still", "confirmed",
            "quiet_since", "answered", "account_bytes", "met", "turns", "handled", "kernel",
        ],
        "formats": ["i8"] * 13 + ["S40"],
        "itemsize": 192,
    }
)  # fmt: skip
# ended: 1 when the PE has ended, with exit code `code` (-1: unknown). initialised: 0 before
# `init`, 1 until `finalize`, 2 after it. still, confirmed, quiet_since: `diagnosis/termination`.
# met: 1 when the PE waits for the announcement (`start/bootstrap/inherited`). turns:
# `backends/cpu/weak/pending`. handled: see `handle`. kernel: name of a running kernel.
# Signals that a kernel with a wild store may be killed by:
WILD = (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)
PAGE = mmap.PAGESIZE
_threads = threading.Lock()
ANNOUNCEMENT_AT, ANNOUNCEMENT_BYTES = 512, 512
REASON_AT, REASON_BYTES = 1024, PAGE - 1024
PES_AT = PAGE + TEXT_BYTES
LONGEST = 10  # waiting for all accounts ends after this many times the limit for one


def boxes_at(n_pes: int) -> int:
    """Return the offset of the boxes for accounts."""
    return PES_AT + _whole(n_pes * PE.itemsize)


def board_bytes(n_pes: int) -> int:
    """Return the size of the board of a job of `n_pes` PEs."""
    return boxes_at(n_pes) + n_pes * ACCOUNT_BYTES


class Board:
    """A job's board, mapped from a descriptor that the caller keeps."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._memory = mmap.mmap(fd, 0)
        whole = np.frombuffer(self._memory, np.uint8)
        self._job = whole[: JOB.itemsize].view(JOB)
        if self._job["magic"][0] != MAGIC:
            raise ValueError("not the board of a gpushmem job of this version")
        self.n_pes = int(self._job["n_pes"][0])
        start = ANNOUNCEMENT_AT
        self._announcement = whole[start : start + ANNOUNCEMENT_BYTES]
        self._reason = whole[REASON_AT : REASON_AT + REASON_BYTES]
        self._text = whole[PAGE : PAGE + TEXT_BYTES]
        self.pes = whole[PES_AT:][: self.n_pes * PE.itemsize].view(PE)
        self._boxes = whole[boxes_at(self.n_pes) :].reshape(self.n_pes, ACCOUNT_BYTES)

    @staticmethod
    def create(fd: int, n_pes: int) -> None:
        """Set the size and the header of a board in an empty file."""
        os.ftruncate(fd, board_bytes(n_pes))
        job = np.zeros(1, JOB)
        job["magic"], job["n_pes"], job["started"] = MAGIC, n_pes, time.time_ns()
        os.pwrite(fd, job.tobytes(), 0)

    def __getitem__(self, field: str) -> int:
        return int(self._job[field][0])

    def address(self, field: str) -> int:
        """Where a number of the job is, for compiled code."""
        return self._job[field].ctypes.data

    def __setitem__(self, field: str, value: int) -> None:
        self._job[field] = value

    # --- the end

    def mark_ended(self, pe: int, code: int) -> None:
        """Record that `pe` has ended, with this exit code (-1: unknown)."""
        self.pes["code"][pe] = code
        self.pes["ended"][pe] = 1

    def in_kernel(self, pe: int, number: int) -> str:
        """Name the kernel that `pe` ran when this signal killed it, if it may be the cause."""
        name = bytes(self.pes["kernel"][pe]).decode(errors="replace")
        if not name or number not in WILD:
            return ""
        return (
            f" in kernel {name}: decorate it with @gpushmem.jit(debug=True), which checks indices, "
            "to find the line"
        )

    def claim(self, verdict: int, culprit: int, reason: str, text: str = "") -> bool:
        """Set the verdict; False, and nothing changes, if there is one already."""
        with self._locked():
            if self["verdict"] != NONE:
                return False
            self["culprit"] = culprit
            self["reason_bytes"] = _write(self._reason, reason)
            self["text_bytes"] = _write(self._text, text)
            self["verdict"] = verdict
            return True

    def handle(self, pe: int) -> None:
        """Record that the program of `pe` goes on after a deadlock; if all do, so does the job."""
        if self["verdict"] == DEADLOCK:
            self.pes["handled"][pe] = 1
            if not self["launcher"]:  # which is to hear of the deadlock first
                self.renew()

    def renew(self) -> bool:
        """Take back a deadlock that all PEs have handled; returns whether they have."""
        with self._locked():
            gone = self.pes["ended"].any()
            if self["verdict"] != DEADLOCK or gone or not self.pes["handled"].all():
                return False
            self.pes["handled"] = 0
            self["verdict"] = NONE
            return True

    def error(self) -> ShmemError | None:
        """Return the exception that waits now raise; None without a verdict."""
        verdict = self["verdict"]
        if verdict == FAILED:
            return PeerFailed(self["culprit"], self.reason)
        kinds: dict[int, type[ShmemError]] = {DEADLOCK: Deadlock, TIMEOUT: WaitTimeout}
        return kinds[verdict](self.heading()) if verdict in kinds else None

    def heading(self) -> str:
        """Return the verdict as one line."""
        if self["verdict"] == FAILED:
            return f"PE {self['culprit']} failed: {self.reason}"
        return ("deadlock: " if self["verdict"] == DEADLOCK else "") + self.reason

    @property
    def reason(self) -> str:
        """The reason given with the verdict."""
        return plain(_read(self._reason, self["reason_bytes"]))

    @property
    def text(self) -> str:
        """The report given with the verdict."""
        return plain_lines(_read(self._text, self["text_bytes"]))

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with _threads:  # file locks belong to the process, not the thread
            fcntl.lockf(self._fd, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.lockf(self._fd, fcntl.LOCK_UN)

    # --- PE 0's announcement

    def announce(self, payload: bytes) -> None:
        """PE 0: publish these bytes to all PEs; once per job."""
        if len(payload) > ANNOUNCEMENT_BYTES:
            raise ValueError(
                f"{len(payload)} bytes are too many: the board has room for {ANNOUNCEMENT_BYTES}"
            )
        self._announcement[: len(payload)] = np.frombuffer(payload, np.uint8)
        self["announced"] = len(payload) + 1

    def announcement(self) -> bytes | None:
        """Return PE 0's announcement; None if there is none yet."""
        size = self["announced"] - 1
        return None if size < 0 else self._announcement[:size].tobytes()

    # --- accounts

    def ask(self, stacks: bool = False) -> int:
        """Request accounts from all PEs; returns the number to pass to `accounts`."""
        with self._locked():
            number = self["asked"] + 1
            if stacks:
                self["stacks"] = number
            self["asked"] = number
        return number

    def answer(self, pe: int, number: int, account: dict[str, Any]) -> None:
        """Write the account of `pe` in answer to request `number`."""
        text = json.dumps(account, default=int)
        if len(text) > ACCOUNT_BYTES:
            nothing = {"words": [], "puts": [], "lost": True}
            text = json.dumps(account | {"journal": nothing}, default=int)
        self.pes["account_bytes"][pe] = _write(self._boxes[pe], text)
        self.pes["answered"][pe] = number

    def accounts(self, number: int, seconds: float) -> dict[int, dict[str, Any] | None]:
        """Return the PEs' accounts; None for PEs that have not answered.

        Waits until no PE has answered for `seconds`, up to a limit. Does not wait for PEs that have
        ended or are not between `init` and `finalize`.
        """
        over = time.monotonic() + LONGEST * seconds
        until, fewest = over, self.n_pes + 1
        while (waiting := self._unanswered(number)) and (now := time.monotonic()) < until:
            if waiting < fewest:
                until, fewest = min(now + seconds, over), waiting
            time.sleep(0.005)
        answered = self.pes["answered"] >= number
        return {pe: self._account(pe, over) if answered[pe] else None for pe in range(self.n_pes)}

    def _unanswered(self, number: int) -> int:
        pes = self.pes
        alive = (pes["ended"] == 0) & (pes["initialised"] == 1)
        return int((alive & (pes["answered"] < number)).sum())

    def _account(self, pe: int, over: float) -> dict[str, Any]:
        for _ in range(3):
            text = self._told(pe, int(self.pes["account_bytes"][pe]))
            try:
                account: dict[str, Any] = plain_data(json.loads(text))
            except (ValueError, RecursionError):  # it is being rewritten for another request
                time.sleep(max(0, min(0.05, over - time.monotonic())))
            else:
                return account
        return {"pe": pe, "error": "its account cannot be read"}

    def _told(self, pe: int, nbytes: int) -> bytes:
        return self._boxes[pe][:nbytes].tobytes()


def _whole(nbytes: int) -> int:
    return -(-nbytes // PAGE) * PAGE


def _write(box: np.ndarray[Any, Any], text: str) -> int:
    data = text.encode(errors="replace")[: len(box)]
    box[: len(data)] = np.frombuffer(data, np.uint8)
    return len(data)


def _read(box: np.ndarray[Any, Any], nbytes: int) -> str:
    return box[:nbytes].tobytes().decode(errors="replace")
