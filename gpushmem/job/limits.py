"""System limits that jobs exceed, as errors that name the limit and how to raise it."""

from __future__ import annotations

import errno
import resource
from collections.abc import Iterator
from contextlib import contextmanager

from gpushmem.errors import BootstrapError, ShmemError

__all__ = ["SPARE", "check_open_files", "within_limits"]

SPARE = 64  # descriptors a process needs besides those of the job

# errno -> the process's limit, what it counts, how to raise it.
LIMITS = {
    errno.EMFILE: (resource.RLIMIT_NOFILE, "open files per process", "ulimit -n"),
    errno.ENFILE: (None, "the machine's open files", "sysctl fs.file-max"),
    errno.EAGAIN: (
        resource.RLIMIT_NPROC, "processes and threads of this user",
        "ulimit -u; in a container, its --pids-limit",
    ),
    errno.ENOMEM: (resource.RLIMIT_AS, "bytes of address space", "ulimit -v"),
    errno.EFBIG: (resource.RLIMIT_FSIZE, "bytes per file", "ulimit -f"),
}  # fmt: skip


def check_open_files(n_pes: int, needed: int) -> None:
    """Raise `BootstrapError` unless a process may have `needed` open files."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit != resource.RLIM_INFINITY and needed > limit:
        raise BootstrapError(
            f"a job of {n_pes} PEs needs {needed} open files per process, the limit is {limit}: "
            f"raise it (ulimit -n {needed}), or start fewer PEs"
        )


@contextmanager
def within_limits(what: str) -> Iterator[None]:
    """Raise `ShmemError` if `what` fails because a system limit is reached."""
    try:
        yield
    except OSError as error:
        if error.errno not in LIMITS:
            raise
        raise ShmemError(f"{what}: {error.strerror}; {_advice(error.errno)}") from error


def _advice(number: int) -> str:
    which, counted, how = LIMITS[number]
    limit = resource.RLIM_INFINITY if which is None else resource.getrlimit(which)[0]
    known = "" if limit == resource.RLIM_INFINITY else f" {limit}"
    return f"the limit is{known} {counted}: raise it ({how}), or start fewer PEs"
