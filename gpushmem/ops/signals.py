"""Signals: words that tell another PE that data has arrived."""

from __future__ import annotations

from gpushmem.ops.roles import (
    OwnSignal,
    Pe,
    Remote,
    RemoteSignal,
    SignalOp,
    SignalResult,
    SignalValue,
    Source,
)
from gpushmem.ops.row import (
    EVERY_SCOPE,
    LOCAL_ON_HOST,
    PUT,
    SIGNAL,
    declare,
    reads,
    updates,
    writes,
)


@declare(
    reads("src"),
    writes("dst", "src"),
    updates("signal", "0", SIGNAL),
    scopes=EVERY_SCOPE,
    nbi=True,
    qp=True,
    on_host=True,
    host_note=LOCAL_ON_HOST,
    completion=PUT,
)
def put_signal(
    dst: Remote, src: Source, signal: RemoteSignal, value: SignalValue, op: SignalOp, pe: Pe
) -> None:
    """`put(dst, src, pe)`, then update `signal` (uint64, symmetric, on `pe`).

    `op` is SIGNAL_SET or SIGNAL_ADD. A PE that sees the signal also sees the data of this call.
    Earlier puts are not ordered. OpenSHMEM 1.5: shmem_put_signal; NVSHMEM 3:
    nvshmemx_put_signal_block.
    """


@declare(updates("signal", "0", SIGNAL), on_host=True, qp=True)
def signal_op(signal: RemoteSignal, value: SignalValue, op: SignalOp, pe: Pe) -> None:
    """Update element 0 of `signal` (uint64, symmetric, on `pe`) atomically: set it or add to it.

    `op` is SIGNAL_SET or SIGNAL_ADD. Not ordered after earlier puts: call `fence` first.
    NVSHMEM 3: nvshmemx_signal_op.
    """


@declare(reads("signal", "0", SIGNAL), on_host=True, stream=False)
def signal_fetch(signal: OwnSignal) -> SignalResult:
    """Return element 0 of `signal` (uint64, symmetric, the caller's own), read atomically.

    Data that was put before the signal was updated is visible to the caller. OpenSHMEM 1.5:
    shmem_signal_fetch.
    """
