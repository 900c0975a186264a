"""What a check is: a row of a table, and a function of a `System` and the number of PEs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass

from gpushmem.doctor.system import System

__all__ = ["CHECKS", "Check", "Finding", "Row", "check", "na", "ok", "problem", "run", "warning"]

VERDICTS = ("ok", "warning", "problem", "not applicable")


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


CHECKS: dict[str, Check] = {}  # filled by the modules of checks, in the order of import


def check(name: str, title: str, concerns: str, source: str) -> Callable[[Look], Look]:
    """Make the function a check; its docstring is what docs/doctor.md says."""

    def add(look: Look) -> Look:
        meaning = " ".join((look.__doc__ or "").split())
        CHECKS[name] = Check(name, title, concerns, meaning, source, look)
        return look

    return add


def run(system: System, n_pes: int) -> list[Row]:
    """All checks' rows, in order. A check that fails itself says so, and the others go on."""
    return [_row(check, system, n_pes) for check in CHECKS.values()]


def _row(check: Check, system: System, n_pes: int) -> Row:
    try:
        finding = check.look(system, n_pes)
    except Exception as error:  # noqa: BLE001  (a file of an unforeseen form must not end it all)
        finding = warning(
            f"this check failed: {type(error).__name__}: {error}",
            "Please report it, with the output of `gpushmem info --json`.",
        )
    return Row(
        check.name, check.title, check.concerns, finding.verdict, finding.found, finding.fix,
        check.source,
    )  # fmt: skip
