"""How PEs find each other: by inheritance from a launcher of ours, or with another's help."""

from __future__ import annotations

from gpushmem.bootstrap import local
from gpushmem.job import job as jobs

__all__ = ["join"]


def join() -> jobs.Job:
    """The job that this process belongs to; joins it if that has not happened yet."""
    found = jobs.current()
    if found is None:
        found = local.join()
        jobs.adopt(found)
    return found
