"""What a way of finding each other has to supply, and what all of them use."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable

from gpushmem import settings
from gpushmem.errors import BootstrapError

__all__ = ["Channel", "Deadline", "Missing", "name_pes", "note", "number", "place"]


class Missing(BootstrapError):
    """Some PEs have not come; the message says which."""


class Channel:
    """A few bytes from each PE to PE 0, and a few back: enough to agree on a place to meet.

    `found` says how the PEs find each other, `where` where PE 0 is looked for, `idle` what
    the matter is as long as nothing was tried: all for people. `key` is the job's, if its PEs know
    one before they meet. What `say` and `announce` are given is shorter than 64 KiB.
    """

    key: bytes | None = None

    def __init__(self, my_pe: int, n_pes: int, found: str, where: str, idle: str) -> None:
        self.my_pe, self.n_pes = my_pe, n_pes
        self.found, self.where, self.idle = found, where, idle
        self._troubles: list[str] = []

    def failed(self, why: str) -> None:
        """Note what became of an attempt to reach PE 0."""
        if why not in self._troubles:
            self._troubles.append(why)

    @property
    def trouble(self) -> str:
        """What became of the attempts to reach PE 0, each outcome once, for people."""
        return ", then: ".join(self._troubles[-3:]) or self.idle

    def say(self, identity: bytes) -> None:
        """PEs other than 0: tell PE 0 that this PE is there."""

    def gather(self, deadline: Deadline) -> dict[int, bytes]:
        """PE 0: what the others say; nothing if they cannot. Raises `Missing`."""
        raise NotImplementedError

    def announce(self, answer: bytes) -> None:
        """PE 0: give this to all that have come, and to those that come later if possible."""
        raise NotImplementedError

    def answer(self, deadline: Deadline) -> bytes | None:
        """PEs other than 0: what PE 0 announces, None if there is nothing (new) at present."""
        raise NotImplementedError

    def close(self) -> None:
        """Remove what was put anywhere. On PE 0 all have met, or it has given up."""


class Deadline:
    """The moment after which nobody waits any more."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._at = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Seconds that are left, 0 at the end."""
        return max(0.0, self._at - time.monotonic())

    def later(self, seconds: float) -> Deadline:
        """As long as this one, and `seconds` more."""
        made = Deadline(self.seconds)
        made._at = self._at + seconds
        return made


def name_pes(pes: Iterable[int], n_pes: int) -> str:
    """PEs for people: "PEs 3, 5-7 of 8"."""
    ranges: list[list[int]] = []
    for pe in sorted(pes):
        if ranges and ranges[-1][1] == pe - 1:
            ranges[-1][1] = pe
        else:
            ranges.append([pe, pe])
    text = ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in ranges)
    plural = len(ranges) != 1 or ranges[0][0] != ranges[0][1]
    return f"PE{'s' * plural} {text} of {n_pes}"


def missing(pes: Iterable[int], n_pes: int, seconds: float, where: str) -> Missing:
    """PE 0's error when others do not come."""
    pes = list(pes)
    have = "has" if len(pes) == 1 else "have"
    return Missing(
        f"{name_pes(pes, n_pes)} {have} not come: PE 0 waited {seconds:g} s for all to call "
        f"init ({where}). See whether they run, or have failed earlier; for more time set "
        "GPUSHMEM_BOOTSTRAP_TIMEOUT"
    )


def number(name: str, least: int, most: int = settings.MOST) -> int:
    """A whole number from a launcher's environment variable; raises `BootstrapError` naming it."""
    text = os.environ.get(name, "").strip()
    if not (text.isascii() and text.isdecimal() and len(text) < 19 and least <= int(text) <= most):
        raise BootstrapError(
            f"environment variable {name}={text!r} is not a whole number from {least} to {most}: "
            "the launcher sets it; choose another way with init(bootstrap=...) or "
            "GPUSHMEM_BOOTSTRAP=local if this process is no part of a larger job"
        )
    return int(text)


def place(rank: str, size: str) -> tuple[int, int]:
    """Read which PE this is, and of how many, from a launcher's variables of these names."""
    n_pes = number(size, 1)
    my_pe = number(rank, 0)
    if my_pe >= n_pes:
        raise BootstrapError(
            f"environment variables {rank}={my_pe} and {size}={n_pes} contradict each other: "
            "PEs are numbered from 0"
        )
    return my_pe, n_pes


def note(text: str) -> None:
    """Say something on standard error, if the user wants to know."""
    if settings.get("GPUSHMEM_VERBOSE"):
        sys.stderr.write(f"gpushmem: {text}\n")
        sys.stderr.flush()
