"""Barriers in shared memory that count arrivals and bytes, and copies in bulk, which they count."""

from __future__ import annotations

from gpushmem.ops.roles import Barriers, Count, Integer, Loaded, Place, SharedTarget
from gpushmem.ops.row import BULK, declare, reads, writes

NOTE = """`bars` is an array in the block's shared memory (`cuda.shared.array(n, "uint64")`); each
element of it is an mbarrier, to be used by these operations alone. Its *phases* follow each other:
one is complete when as many arrivals have come as `mbarrier_init` says, and as many bytes have been
copied as these expect. Phase 0 is of parity 0, the next of parity 1, and so on by turns. The cpu
backend raises for other memory, and for arrivals and bytes that a phase does not wait for; these
are undefined on GPUs."""
TMA = "On GPUs before compute capability 9.0 there is no such thing: use `copy_async`."


@declare(writes("bars", "0"), note=NOTE)
def mbarrier_init(bars: Barriers, i: Place, count: Count) -> None:
    """Make element `i` of `bars` an mbarrier in phase 0, with `count` arrivals for each phase.

    One thread calls it, then all do `cuda.syncthreads()`. `count` is from 1 to 2**20 - 1; others
    are an `ArgumentError` on the cpu backend. PTX ISA: mbarrier.init; CUTLASS: mbarrier_init.
    """


@declare(reads("bars", "0"), orders="arrival", note=NOTE)
def mbarrier_arrive(bars: Barriers, i: Place) -> None:
    """Arrive at mbarrier `i`, once, and go on.

    Any thread of the block calls. Threads that wait for the phase then see what this one has
    stored before, and what they store comes after its loads. PTX ISA: mbarrier.arrive, a release of
    the scope cta; CUTLASS: mbarrier_arrive.
    """


@declare(reads("bars", "0"), orders="arrival", note=f"{TMA}\n\n{NOTE}")
def mbarrier_arrive_and_expect_tx(bars: Barriers, i: Place, nbytes: Count) -> None:
    """Arrive at mbarrier `i`, and have the phase wait for `nbytes` bytes of copies, too.

    Usually by the thread that then begins the copies, as many bytes as they have in all. `nbytes`
    is from 0 to 2**20 - 1. PTX ISA: mbarrier.arrive.expect_tx; CUTLASS:
    mbarrier_arrive_and_expect_tx.
    """


@declare(reads("bars", "0"), orders="phase", note=NOTE)
def mbarrier_wait(bars: Barriers, i: Place, parity: Integer) -> None:
    """Wait until the phase of mbarrier `i` that has this `parity`, 0 or 1, is complete.

    Any thread of the block calls. Meant is the phase that goes on, or the one before: if that one
    has the parity, the call returns at once, as it does for parity 1 of a fresh mbarrier. On return
    the thread sees what the phase's copies have brought, and what those who arrived had stored.
    Common mistake: a thread that is two phases late, and waits for the wrong one. So later phases
    have to depend on an arrival of each thread that waits, at this mbarrier or at another. If a
    phase never completes, the cpu backend ends the job with a report of what it lacks. PTX ISA:
    mbarrier.try_wait.parity, in a loop, an acquire of the scope cta; CUTLASS: mbarrier_wait.
    """


@declare(
    reads("src", "n"), writes("dst", "n"), reads("bars", "0"), completion=BULK,
    note=f"{TMA}\n\n{NOTE}",
)  # fmt: skip
def copy_bulk(
    dst: SharedTarget, i: Place, src: Loaded, j: Place, n: Count, bars: Barriers, k: Place
) -> None:
    """Begin to copy elements `j` to `j + n` of `src` to `i` and following of `dst`, by TMA.

    One thread calls, for all of a tile. Arrays, places and memory are as in `copy_async`, but that
    both begin at multiples of 16 bytes, and `n`, any integer, makes a multiple of 16 bytes, 16 at
    least. The bytes count for the phase of mbarrier `k` of `bars` that goes on, which an arrival by
    `mbarrier_arrive_and_expect_tx` has made wait for them, or will. What the caller has stored
    before, or knows of others by a barrier, an mbarrier or a signal, is copied: a fence of the
    async proxy is part of the call. `copy_async_wait`, `quiet` and barriers complete no such
    copies. PTX ISA: cp.async.bulk.shared::cluster.global; CUTLASS: CopyBulkG2SOp.
    """
