"""Fence, flush and quiet."""

from __future__ import annotations

from gpushmem.ops.row import EVERY_SCOPE, declare


@declare(on_host=True, orders="fence")
def fence() -> None:
    """Order the caller's earlier writes to each PE before its later writes to the same PE.

    It orders per target PE and completes nothing: data may still be in transit on return.
    Common mistake: `put(data)`, then `signal_op(flag)` without a fence between them. OpenSHMEM 1.5:
    shmem_fence.
    """


@declare(scopes=EVERY_SCOPE, on_host=True, orders="flush")
def flush() -> None:
    """Complete the sources of the caller's earlier non-blocking puts: they may be changed again.

    The data may arrive later, and in any order. `quiet` does the same and also waits for
    arrival. NVSHMEM 3: nvshmemx_flush, nvshmemx_flush_warp, nvshmemx_flush_block.
    """


@declare(on_host=True, orders="quiet")
def quiet() -> None:
    """Complete the caller's earlier operations: on return all data has arrived, on every PE.

    Common mistake: reading the `dst` of a `get_nbi` before `quiet`. OpenSHMEM 1.5: shmem_quiet.
    """
