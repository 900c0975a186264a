"""Fence and quiet."""

from __future__ import annotations

from gpushmem.ops.row import declare


@declare(on_host=True, orders="fence")
def fence() -> None:
    """Order what the caller sent to a PE before this call before what it sends there after it.

    It orders per target PE and completes nothing: data may still be under way on return.
    Classic mistake: `put(data)`, `signal_op(flag)` with no fence between. OpenSHMEM 1.5:
    shmem_fence.
    """


@declare(on_host=True, orders="quiet")
def quiet() -> None:
    """Complete what the caller sent before: on return it has arrived, on every PE.

    Classic mistake: reusing the buffer of a `put_nbi` before `quiet`. OpenSHMEM 1.5: shmem_quiet.
    """
