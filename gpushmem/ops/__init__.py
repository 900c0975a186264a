"""The operation table, read by every room and importing none of them: a file per family."""

from gpushmem.ops import (
    accesses,
    atomics,
    collectives,
    constants,
    ll,
    local,
    memory,
    ordering,
    pes,
    rma,
    signals,
    smem,
    teams,
    tracing,
    waits,
)
from gpushmem.ops.constants import *  # noqa: F403
from gpushmem.ops.row import OPS, Op, host

__all__ = ["FAMILIES", "OPS", "Op", "constants", "host", *constants.__all__]

FAMILIES = (
    pes, rma, atomics, signals, waits, ordering, teams, collectives, memory, accesses, local, ll,
    smem, tracing,
)  # fmt: skip
