"""Fence, flush and quiet, of all operations and of those on some queue pairs."""

from __future__ import annotations

from gpushmem.ops.roles import Pe, QueuePairs
from gpushmem.ops.row import EVERY_SCOPE, declare


@declare(on_host=True, orders="fence")
def fence() -> None:
    """Order the caller's earlier writes to each PE before its later writes to the same PE.

    It orders per target PE and completes nothing: data may still be in transit on return.
    Common mistake: `put(data)`, then `signal_op(flag)` without a fence between them. Writes on
    queue pairs are ordered by `qp_fence`. OpenSHMEM 1.5: shmem_fence.
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


QPS = """`qps` is what `qp_create` returned, or a part of it. The caller's own stores, also
through `peer_array`, are treated like those writes."""


@declare(scopes=EVERY_SCOPE, orders="fence", note=QPS)
def qp_fence(pe: Pe, qps: QueuePairs) -> None:
    """Order the caller's earlier writes to `pe` on the queue pairs `qps` before its later ones.

    Both are writes on any of `qps`: those on other queue pairs, or without one, may come before or
    after. It completes nothing. NVSHMEM 3: nvshmemx_qp_fence, nvshmemx_qp_fence_block.
    """


@declare(scopes=EVERY_SCOPE, orders="quiet", note=QPS)
def qp_quiet(pe: Pe, qps: QueuePairs) -> None:
    """Complete the caller's earlier operations to `pe` on the queue pairs `qps`.

    On return their data has arrived, and their sources may be changed. Operations on other queue
    pairs, or without one, may be incomplete. NVSHMEM 3: nvshmemx_qp_quiet,
    nvshmemx_qp_quiet_block.
    """
