"""The job of PEs forked by the launcher on this machine, or of one PE without a launcher.

PEs find each other through file descriptors they inherit: nothing has a name, nothing goes
through the environment, so a process the user starts from a PE is not mistaken for one.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from gpushmem.errors import ArgumentError

__all__ = ["Job", "adopt", "create", "current"]


@dataclass(frozen=True)
class Job:
    """How a PE finds the others. The descriptors are memfds that `init` sizes.

    The control page starts with a byte for each PE, which the launcher sets when the PE has ended.
    """

    my_pe: int
    n_pes: int
    heap_size: int | None  # bytes asked of the launcher; None: not asked
    heap_fds: tuple[int, ...]  # one segment per PE
    control_fd: int
    max_teams: int

    def of(self, pe: int) -> Job:
        """The same job as `pe` sees it."""
        return replace(self, my_pe=pe)

    def mark_ended(self, pe: int) -> None:
        """Tell the others that `pe` has ended; for the launcher."""
        os.pwrite(self.control_fd, b"\1", pe)


_current: Job | None = None


def create(n_pes: int, heap_size: int | None = None) -> Job:
    """Make the shared memory of a job, empty; the job is PE 0's until `of` gives another's."""
    max_teams = _positive("GPUSHMEM_MAX_TEAMS", 256)
    fds = [os.memfd_create(f"gpushmem-{name}") for name in ("control", *map(str, range(n_pes)))]
    return Job(0, n_pes, heap_size, tuple(fds[1:]), fds[0], max_teams)


def _positive(variable: str, default: int) -> int:
    text = os.environ.get(variable, str(default))
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentError(f"environment variable {variable}: {text!r} is no positive number")
    return int(text)


def adopt(job: Job) -> None:
    """Make `job` the one this process belongs to."""
    global _current  # noqa: PLW0603
    _current = job


def current() -> Job:
    """The job of this process; one PE by itself if no launcher started it."""
    if _current is None:
        adopt(create(1))
    assert _current is not None
    return _current
