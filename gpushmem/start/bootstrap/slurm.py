"""PEs started by srun: the variables of a Slurm job step."""

from __future__ import annotations

import os

from gpushmem.errors import BootstrapError
from gpushmem.start.bootstrap import machines
from gpushmem.start.bootstrap.channel import Channel, number, place
from gpushmem.start.bootstrap.shared_directory import Directory

__all__ = ["channel", "recognised"]

# Step numbers of batch scripts, the shell of `salloc` and the like: one process, whatever the
# number of tasks.
SPECIAL_STEPS = 0xFFFFFFF0
NODES = ("SLURM_STEP_NUM_NODES", "SLURM_NNODES")
TASKS = ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
HOW = "start the processes with srun"


def recognised() -> bool:
    """Whether this is a task of a job step; a batch script outside a step is not."""
    step = os.environ.get("SLURM_STEP_ID", "")
    return (
        "SLURM_PROCID" in os.environ
        and _first(TASKS) is not None
        and step.isdecimal()
        and int(step) < SPECIAL_STEPS
    )


def _first(names: tuple[str, ...]) -> str | None:
    return next((name for name in names if os.environ.get(name)), None)


def channel(several: bool = False) -> Channel | None:
    """Return the channel between the step's PEs; None for one. `several`: on several machines."""
    if not recognised():
        absent = [n for n in ("SLURM_STEP_ID", "SLURM_PROCID", TASKS[0]) if n not in os.environ]
        what = f"{', '.join(absent)} not set" if absent else "SLURM_STEP_ID is a batch script's"
        raise BootstrapError(f"bootstrap slurm: this is not a task of a job step ({what}): {HOW}")
    size = _first(TASKS)
    assert size is not None
    my_pe, n_pes = place("SLURM_PROCID", size)
    if n_pes == 1:
        return None
    nodes = _first(NODES)
    if nodes is not None and number(nodes, 1) > 1:
        raise machines.elsewhere(n_pes, _pes_here(my_pe), _because(nodes), several)
    job, step = (os.environ.get(name, "") for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
    restarts = os.environ.get("SLURM_RESTART_COUNT", "")
    return Directory(
        my_pe, n_pes, f"slurm (step {job}.{step})", f"slurm {n_pes} {job}.{step}.{restarts}"
    )


def _pes_here(my_pe: int) -> list[int]:
    """Return the tasks on this node, as far as known."""
    listed = os.environ.get("SLURM_GTIDS", "").split(",")
    return [int(pe) for pe in listed if pe.isdecimal()] or [my_pe]


def _because(nodes: str) -> str:
    listed = os.environ.get("SLURM_STEP_NODELIST") or os.environ.get("SLURM_JOB_NODELIST")
    return f"{nodes}={os.environ[nodes]}" + (f", nodes {listed}" if listed else "")
