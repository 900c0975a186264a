"""All checks, in the order in which they are printed: importing their modules lists them."""

from __future__ import annotations

from gpushmem.doctor import fabric, gpu, limits, startup
from gpushmem.doctor.check import CHECKS, Row, run
from gpushmem.doctor.gpus import gpus
from gpushmem.doctor.system import System

__all__ = ["CHECKS", "run", "summary"]

MODULES = (limits, startup, gpu, fabric)


def summary(system: System, rows: list[Row], n_pes: int) -> list[str]:
    """What it comes to, in sentences: the cpu backend's part, and the GPUs'."""
    pes = "1 PE" if n_pes == 1 else f"{n_pes} PEs"
    mine = [row for row in rows if row.concerns in {"cpu", "both"} and _counts(row)]
    stops = [row.name for row in mine if row.verdict == "problem"]
    can = f"can run {pes}" if not stops else f"cannot run {pes} before this is solved: "
    told = [f"cpu backend: this machine {can}{', '.join(stops)} ({len(mine)} checks)."]
    theirs = [row for row in rows if row.concerns == "nvshmem"]
    if not gpus(system) and all(row.verdict != "problem" for row in theirs):
        return [*told, f"There is no GPU here: {len(theirs)} checks of GPUs do not apply."]
    bad = [row.name for row in theirs if row.verdict == "problem"]
    done = sum(map(_counts, theirs))
    return [
        *told,
        f"GPUs: {done} checks, " + (f"problems: {', '.join(bad)}." if bad else "no problem."),
    ]


def _counts(row: Row) -> bool:
    return row.verdict != "not applicable"
