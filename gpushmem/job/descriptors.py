"""Descriptors of ours stay above 2, so that nobody writes to them what is for standard error.

Where a standard descriptor is closed, as under many daemons, the system gives its number to the
next file that is opened: a socket, or the memory of a job. So before we make any, the numbers are
taken.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress

__all__ = ["above_standard", "fill_standard"]

STANDARD = (0, 1, 2)


def fill_standard() -> None:
    """Open the null device wherever a standard descriptor is closed; children have it, too."""
    for fd in STANDARD:
        try:
            os.fstat(fd)
        except OSError:
            with suppress(OSError):  # there is no null device
                os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest: this one


def above_standard(fd: int) -> int:
    """A new descriptor, under another number if it has got a standard one's."""
    if fd > max(STANDARD):
        return fd
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, max(STANDARD) + 1)
    finally:
        os.close(fd)
