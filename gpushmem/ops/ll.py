"""LL and LL128, for small messages: data travel with flags that tell of them."""

from __future__ import annotations

from gpushmem.ops.roles import Loaded, OwnUnits, Pe, RemoteUnits, Stored, SwitchReduction, UnitFlag
from gpushmem.ops.row import BLOCK, LINE, UNIT, WARP, declare, reads, writes

LL = """A *unit* is a word of 8 bytes, an element of a uint64 array: 4 bytes of data, then the low
32 bits of the flag. It is written and read in one piece, so whoever finds the flag has the data,
and needs neither a fence nor a signal. NCCL calls this protocol LL, for low latency."""
LL128 = """A *line* is 16 words of 8 bytes at a multiple of 128: 15 of data, then the low 32 bits of
the flag. Lines come in pairs, for 240 bytes of data each. On GPUs eight threads store a line by one
instruction, and load it so: over NVLink, and in a GPU's own memory, it arrives in one piece, though
PTX does not promise it. Do not use lines between GPUs that PCIe links. On CPUs a line's flag is
released after its data, and acquired before they are read. NCCL calls this protocol LL128."""


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


@declare(reads("src"), writes("dst", "src", LINE), scopes=(BLOCK, WARP), note=LL128)
def put_ll128(dst: RemoteUnits, src: Loaded, flag: UnitFlag, pe: Pe) -> None:
    """Send `src` as lines to the first elements of `dst` on `pe`, for `reduce_ll128` to receive.

    As `put_ll`, with 16/15 of the bytes in place of twice as many; for some KiB or more. `dst`
    begins at a multiple of 128 bytes, and has 32 elements for each 240 bytes of `src` or fewer.
    Lines arrive one by one, in any order, and order nothing else. On GPUs whole warps act: launch
    blocks of 32 threads at least; others of a block only wait. Two accesses of 16 bytes a thread.
    """


@declare(
    reads("src", "dst", LINE), writes("dst"), scopes=(BLOCK, WARP), waits_for="src", note=LL128
)  # fmt: skip
def reduce_ll128(dst: Stored, src: OwnUnits, flag: UnitFlag, op: SwitchReduction) -> None:
    """Wait for rows of lines, and combine them: `dst[i] = row 0 [i] + row 1 [i] + ...`, for "sum".

    As `reduce_ll`, of what `put_ll128` sends: each row of `src` begins at a multiple of 128 bytes.
    On GPUs whole warps act, as there.
    """
