"""The operation table, read by every room and importing none of them: a file per family."""

# ruff: noqa: I001  (the families are in the order of the pages)

from gpushmem.ops import constants, pes, rma, atomics, signals, waits, ordering, teams
from gpushmem.ops import collectives, accesses, mbarriers, ll, local, memory, smem, tracing
from gpushmem.ops.constants import *  # noqa: F403
from gpushmem.ops.row import OPS, Op, host

__all__ = ["FAMILIES", "OPS", "Op", "constants", "host", *constants.__all__]

FAMILIES = (
    pes, rma, atomics, signals, waits, ordering, teams, collectives, memory, accesses, mbarriers,
    local, ll, smem, tracing,
)  # fmt: skip
