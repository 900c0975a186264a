"""All checks, in the order in which they are printed, and their summary."""

from __future__ import annotations

import sys

from gpushmem.doctor import fabric, gpu, limits, startup
from gpushmem.doctor.check import MADE, Check, Row, warning
from gpushmem.doctor.gpu_inventory import gpus
from gpushmem.doctor.system import System

__all__ = ["CHECKS", "run", "summary"]

MODULES = (limits, startup, gpu, fabric)
CHECKS = sorted(MADE, key=lambda check: MODULES.index(sys.modules[check.look.__module__]))


def run(system: System, n_pes: int) -> list[Row]:
    """Run all checks, in order. A check that raises is reported, and the others still run."""
    return [_row(check, system, n_pes) for check in CHECKS]


def _row(check: Check, system: System, n_pes: int) -> Row:
    try:
        finding = check.look(system, n_pes)
    except Exception as error:  # noqa: BLE001  (an unexpected file must not end the run)
        finding = warning(
            f"this check failed: {type(error).__name__}: {error}",
            "Please report it, with the output of `gpushmem info --json`.",
        )
    return Row(
        check.name, check.title, check.concerns, finding.verdict, finding.found, finding.fix,
        check.source,
    )  # fmt: skip


def summary(system: System, rows: list[Row], n_pes: int) -> list[str]:
    """Summarise the outcome in sentences: for the cpu backend, and for GPUs."""
    pes = "1 PE" if n_pes == 1 else f"{n_pes} PEs"
    mine = [row for row in rows if row.concerns != "nvshmem"]
    stops = [row.name for row in mine if row.verdict == "problem"]
    can = f"can run {pes}" if not stops else f"cannot run {pes} until this is fixed: "
    told = f"cpu backend: this machine {can}{', '.join(stops)} ({_done(mine)} checks)."
    theirs = [row for row in rows if row.concerns == "nvshmem"]
    bad = [row.name for row in theirs if row.verdict == "problem"]
    if not bad and not gpus(system):
        return [told, f"No GPU found: {len(theirs)} GPU checks do not apply."]
    outcome = f"problems: {', '.join(bad)}" if bad else "no problem"
    return [told, f"NVSHMEM on GPUs: {outcome} ({_done(theirs)} checks)."]


def _done(rows: list[Row]) -> int:
    return sum(row.verdict != "not applicable" for row in rows)
