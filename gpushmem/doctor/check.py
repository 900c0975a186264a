"""What a check is: a row of a table, and a function of a `System` and the number of PEs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass

from gpushmem.doctor.system import System

__all__ = ["MADE", "NO_GPU", "Check", "Finding", "Row", "check", "na", "ok", "problem", "warning"]

VERDICTS = ("ok", "warning", "problem", "not applicable")
NO_GPU = "no GPU"

# Where things are documented.
NVSHMEM_DOCS = "https://docs.nvidia.com/nvshmem/"
ENV = NVSHMEM_DOCS + "api/gen/env.html"
FAQ = NVSHMEM_DOCS + "api/faq.html"
INSTALL = NVSHMEM_DOCS + "release-notes-install-guide/install-guide/abstract.html"


@dataclass(frozen=True)
class Finding:
    """What a check found, what it makes of it, and what to do."""

    verdict: str
    found: str
    fix: str = ""


def ok(found: str) -> Finding:
    """Nothing to do."""
    return Finding("ok", found)


def warning(found: str, fix: str) -> Finding:
    """It works, but slower, or not in every case."""
    return Finding("warning", found, fix)


def problem(found: str, fix: str) -> Finding:
    """It will not work."""
    return Finding("problem", found, fix)


def na(found: str) -> Finding:
    """It does not matter on this machine."""
    return Finding("not applicable", found)


Look = Callable[[System, int], Finding]


@dataclass(frozen=True)
class Check:
    """A check: `name` is stable, `concerns` the backend, or "both"."""

    name: str
    title: str
    concerns: str
    meaning: str
    source: str
    look: Look


@dataclass(frozen=True)
class Row:
    """A check's outcome, as it is printed and as --json gives it."""

    name: str
    title: str
    concerns: str
    verdict: str
    found: str
    fix: str
    source: str

    def as_json(self) -> dict[str, str]:
        """Its fields."""
        return asdict(self)


MADE: list[Check] = []  # filled as the modules of checks are imported


def check(name: str, title: str, concerns: str, source: str) -> Callable[[Look], Look]:
    """Make the function a check; its docstring is what docs/doctor.md says."""

    def add(look: Look) -> Look:
        meaning = " ".join((look.__doc__ or "").split())
        MADE.append(Check(name, title, concerns, meaning, source, look))
        return look

    return add
