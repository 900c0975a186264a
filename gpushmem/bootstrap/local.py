"""A job of one PE, for a process that nobody started as part of a larger one."""

from __future__ import annotations

from gpushmem.job.job import Job, create

__all__ = ["join"]


def join() -> Job:
    """Be a job by oneself."""
    return create(1, bootstrap="by itself")
