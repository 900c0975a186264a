"""LL, for small messages: each word of 8 bytes has data, and a flag that tells of them."""

from __future__ import annotations

from gpushmem.ops.roles import Loaded, OwnUnits, Pe, RemoteUnits, Stored, SwitchReduction, UnitFlag
from gpushmem.ops.row import BLOCK, UNIT, WARP, declare, reads, writes

LL = """A *unit* is a word of 8 bytes, an element of a uint64 array: 4 bytes of data, then the low
32 bits of the flag. It is written and read in one piece, so whoever finds the flag has the data,
and needs neither a fence nor a signal. NCCL calls this protocol LL, for low latency."""


@declare(reads("src"), writes("dst", "src", UNIT), scopes=(BLOCK, WARP), note=LL)
def put_ll(dst: RemoteUnits, src: Loaded, flag: UnitFlag, pe: Pe) -> None:
    """Send `src` as units to the first elements of `dst` on `pe`, for `reduce_ll` to receive.

    `src` is contiguous memory that this PE can load from, of any dtype; `dst` (symmetric, uint64)
    has a unit for each 4 bytes of it or fewer. `pe` must be in TEAM_SHARED, and may be the caller:
    for others the cpu backend raises `SymmetryError`. On return `src` may be changed. Units arrive
    one by one, in any order, and order nothing else: `fence` has no say, `quiet` completes them.

    `flag` must differ from the flag that each unit has had before, and a unit must not be put again
    before its receiver has it. Zeroed memory has flag 0. On GPUs 16 bytes at a time.
    """


@declare(
    reads("src", "dst", UNIT), writes("dst"), scopes=(BLOCK, WARP), waits_for="src", note=LL
)  # fmt: skip
def reduce_ll(dst: Stored, src: OwnUnits, flag: UnitFlag, op: SwitchReduction) -> None:
    """Wait for rows of units, and combine them: `dst[i] = row 0 [i] + row 1 [i] + ...`, for "sum".

    `src` (n, units) is the caller's own memory (symmetric, uint64), n from 1 on: each row is what
    one `put_ll` sends, the caller's too, of as many bytes as `dst` has; more units in a row are not
    looked at. The units of a row are adjacent, rows need not be. With one row this is a plain
    receive. `dst` is contiguous, of the dtype that was sent, and apart from `src`. `op`, written as
    a literal in the call, and how rows are combined, are as in `reduce_rows`.

    Waits until every unit that it needs has `flag`. On return `dst` is visible to the threads that
    called; nothing is known of what else the senders have written. Do not load units in other ways.
    """
