"""Fence, flush and quiet."""

from __future__ import annotations

from gpushmem.ops.row import EVERY_SCOPE, declare


@declare(on_host=True, orders="fence")
def fence() -> None:
    """Order what the caller sent to a PE before this call before what it sends there after it.

    It orders per target PE and completes nothing: data may still be under way on return.
    Classic mistake: `put(data)`, `signal_op(flag)` with no fence between. OpenSHMEM 1.5:
    shmem_fence.
    """


@declare(scopes=EVERY_SCOPE, on_host=True, orders="flush")
def flush() -> None:
    """Complete the sources of the caller's earlier non-blocking puts: they may be changed again.

    It says nothing of the targets: the data may arrive later, and in any order. `quiet` does what
    this does, and waits for arrival, too. NVSHMEM 3: nvshmemx_flush, nvshmemx_flush_warp,
    nvshmemx_flush_block.
    """


@declare(on_host=True, orders="quiet")
def quiet() -> None:
    """Complete what the caller sent before: on return it has arrived, on every PE.

    Classic mistake: reading the `dst` of a `get_nbi` before `quiet`. OpenSHMEM 1.5: shmem_quiet.
    """
