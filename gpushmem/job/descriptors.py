"""Keeps gpushmem's descriptors above 2, so that nothing writes standard output or error into them.

Where a standard descriptor is closed, as under many daemons, the system gives its number to the
next file that is opened: a socket, or a job's memory. So these numbers are taken before gpushmem
opens anything.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress

__all__ = ["above_standard", "fill_standard"]

STANDARD = (0, 1, 2)


def fill_standard() -> None:
    """Open the null device for each standard descriptor that is closed; children inherit it."""
    for fd in STANDARD:
        try:
            os.fstat(fd)
        except OSError:
            with suppress(OSError):  # no null device
                os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # becomes `fd`


def above_standard(fd: int) -> int:
    """Return the descriptor, moved to a new number if it has that of a standard one."""
    if fd > max(STANDARD):
        return fd
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, max(STANDARD) + 1)
    finally:
        os.close(fd)
