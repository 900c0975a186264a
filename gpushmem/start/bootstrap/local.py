"""A job of one PE, for a process that was not started as part of a larger job."""

from __future__ import annotations

from gpushmem.job.job import Job, create

__all__ = ["join"]


def join() -> Job:
    """Create a job of which this process is the only PE."""
    return create(1, bootstrap="by itself")
