"""The definition of a check: a function of a `System` and the number of PEs, with its metadata."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass

from gpushmem.doctor.system import System

__all__ = ["MADE", "NO_GPU", "Check", "Finding", "Row", "check", "na", "ok", "problem", "warning"]

VERDICTS = ("ok", "warning", "problem", "not applicable")
NO_GPU = "no GPU"

# Documentation that checks refer to.
NVSHMEM_DOCS = "https://docs.nvidia.com/nvshmem/"
ENV = NVSHMEM_DOCS + "api/gen/env.html"
FAQ = NVSHMEM_DOCS + "api/faq.html"
INSTALL = NVSHMEM_DOCS + "release-notes-install-guide/install-guide/abstract.html"


@dataclass(frozen=True)
class Finding:
    """The result of a check: the verdict, the facts behind it, and the fix."""

    verdict: str
    found: str
    fix: str = ""


def ok(found: str) -> Finding:
    """Nothing needs to be done."""
    return Finding("ok", found)


def warning(found: str, fix: str) -> Finding:
    """It works, but slower, or not in all cases."""
    return Finding("warning", found, fix)


def problem(found: str, fix: str) -> Finding:
    """It will not work."""
    return Finding("problem", found, fix)


def na(found: str) -> Finding:
    """The check does not apply to this machine."""
    return Finding("not applicable", found)


Look = Callable[[System, int], Finding]


@dataclass(frozen=True)
class Check:
    """A check: `name` is stable, `concerns` is a backend or "both"."""

    name: str
    title: str
    concerns: str
    meaning: str
    source: str
    look: Look


@dataclass(frozen=True)
class Row:
    """The outcome of a check, as printed and as in --json."""

    name: str
    title: str
    concerns: str
    verdict: str
    found: str
    fix: str
    source: str

    def as_json(self) -> dict[str, str]:
        """Return the fields as a dictionary."""
        return asdict(self)


MADE: list[Check] = []  # filled when the modules with checks are imported


def check(name: str, title: str, concerns: str, source: str) -> Callable[[Look], Look]:
    """Register the function as a check; its docstring is its text in docs/doctor.md."""

    def add(look: Look) -> Look:
        meaning = " ".join((look.__doc__ or "").split())
        MADE.append(Check(name, title, concerns, meaning, source, look))
        return look

    return add
