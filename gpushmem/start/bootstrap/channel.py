"""The interface of a bootstrap's message channel, and helpers shared by all bootstraps."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable

from gpushmem import settings
from gpushmem.errors import BootstrapError
from gpushmem.job.pe_ranges import compact

__all__ = ["GRACE", "Channel", "Deadline", "Missing", "note", "number", "place"]


GRACE = 3.0  # other PEs wait this many seconds longer than PE 0, to receive its error


class Missing(BootstrapError):
    """Some PEs did not arrive; the message names them."""


class Channel:
    """Carries a few bytes from each PE to PE 0, and a few back: enough to agree on a meeting place.

    For messages: `found` says how the PEs found each other, `where` the place where PE 0 is
    expected, `idle` the state while nothing has been tried. `key` is the job's key, if the PEs know
    one before they meet. Arguments of `say` and `announce` must be shorter than 64 KiB.
    """

    key: bytes | None = None

    def __init__(self, my_pe: int, n_pes: int, found: str, where: str, idle: str) -> None:
        self.my_pe, self.n_pes = my_pe, n_pes
        self.found, self.where, self.idle = found, where, idle
        self._troubles: list[str] = []

    def failed(self, why: str) -> None:
        """Record the outcome of a failed attempt to reach PE 0."""
        if why not in self._troubles:
            self._troubles.append(why)

    @property
    def trouble(self) -> str:
        """The outcomes of the attempts to reach PE 0, each once, for messages."""
        return ", then: ".join(self._troubles[-3:]) or self.idle

    def say(self, identity: bytes) -> None:
        """PEs other than 0: tell PE 0 that this PE has arrived."""

    def gather(self, deadline: Deadline) -> dict[int, bytes]:
        """PE 0: collect what the others said; empty if they cannot speak. Raises `Missing`."""
        raise NotImplementedError

    def announce(self, answer: bytes) -> None:
        """PE 0: send this to all PEs that have arrived, if possible also to later ones."""
        raise NotImplementedError

    def answer(self, deadline: Deadline) -> bytes | None:
        """PEs other than 0: return PE 0's announcement; None if there is none, or no new one."""
        raise NotImplementedError

    def close(self) -> None:
        """Clean up. On PE 0: all PEs have met, or PE 0 has given up."""


class Deadline:
    """A point in time at which waiting ends."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._at = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Seconds that are left; 0 after the deadline."""
        return max(0.0, self._at - time.monotonic())

    def later(self, seconds: float) -> Deadline:
        """Return a deadline that is `seconds` later than this one."""
        made = Deadline(self.seconds)
        made._at = self._at + seconds
        return made


def missing(pes: Iterable[int], n_pes: int, seconds: float, where: str) -> Missing:
    """Return PE 0's error for PEs that do not arrive."""
    pes = list(pes)
    have = "has" if len(pes) == 1 else "have"
    return Missing(
        f"{compact(pes)} of {n_pes} {have} not arrived: PE 0 waited {seconds:g} s for all PEs to "
        f"call init ({where}). Check whether they run, or have failed earlier; for more time set "
        "GPUSHMEM_BOOTSTRAP_TIMEOUT"
    )


def number(name: str, least: int, most: int = settings.MOST) -> int:
    """Parse a launcher's environment variable as an integer; raises `BootstrapError` naming it."""
    text = os.environ.get(name, "").strip()
    if not (text.isascii() and text.isdecimal() and len(text) < 19 and least <= int(text) <= most):
        raise BootstrapError(
            f"environment variable {name}={text!r} is not a whole number from {least} to {most}: "
            "the launcher sets it; choose another bootstrap with init(bootstrap=...), or set "
            "GPUSHMEM_BOOTSTRAP=local if this process is not part of a larger job"
        )
    return int(text)


def place(rank: str, size: str) -> tuple[int, int]:
    """Return this PE's number and the number of PEs, from a launcher's variables of these names."""
    n_pes = number(size, 1)
    my_pe = number(rank, 0)
    if my_pe >= n_pes:
        raise BootstrapError(
            f"environment variables {rank}={my_pe} and {size}={n_pes} contradict each other: "
            "PEs are numbered from 0"
        )
    return my_pe, n_pes


def note(text: str) -> None:
    """Print a line on standard error, if GPUSHMEM_VERBOSE is set."""
    if settings.get("GPUSHMEM_VERBOSE"):
        sys.stderr.write(f"gpushmem: {text}\n")
        sys.stderr.flush()
