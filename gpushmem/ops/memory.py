"""Other PEs' memory, of one or of all of a team: as arrays, summed, and stored to."""

from __future__ import annotations

from gpushmem.ops.roles import (
    FromMembers,
    Loaded,
    MulticastView,
    Pe,
    Stored,
    SwitchReduction,
    TeamHandle,
    ToMembers,
    View,
    Views,
)
from gpushmem.ops.row import EVERY_SCOPE, PUT, declare, reads, writes


@declare(on_host=True, stream=False)
def peer_array(array: Views, pe: Pe) -> View:
    """Return `array` (symmetric) as it is on `pe`: loads and stores then reach that PE's memory.

    `fence`, `quiet` and barriers treat these stores like `p`. The memory of a PE that is not in
    TEAM_SHARED cannot be reached so: on the host that raises `SymmetryError`; in a kernel the array
    is null (`a.ctypes.data == 0`) and must not be used, on the cpu backend that is an error. Ask
    `team_translate_pe(TEAM_WORLD, pe, TEAM_SHARED) >= 0` first. NVSHMEM 3: nvshmem_ptr.
    """


@declare(on_host=True, stream=False)
def multicast_array(array: Views, team: TeamHandle) -> MulticastView:
    """Return `array` (symmetric) as it is on all PEs of `team`: a store reaches all of them.

    It can be assigned to (`m[i] = value`) but not read. All PEs of `team` must be in TEAM_SHARED;
    for others it raises `SymmetryError` on the host, and in kernels on the cpu backend. It cannot
    be passed to a kernel: call this in the kernel. NVSHMEM 3: nvshmemx_mc_ptr.
    """


@declare(reads("src"), writes("dst", "src"), scopes=EVERY_SCOPE)
def multimem_reduce(dst: Stored, src: FromMembers, team: TeamHandle, op: SwitchReduction) -> None:
    """Combine `src` of all PEs of `team`, element by element, to the first elements of `dst`.

    Only the caller takes part: it loads what is in the others' memory. `src` is symmetric, `dst`
    any memory that this PE can store to; both are contiguous and have the same dtype. `dst` may be
    the caller's own `src`, or apart from it. On return `dst` is visible to the threads that called.

    `op`, written as a literal in the call, is "sum" (numbers), "min" or "max" (integers and
    floats), "and", "or" or "xor" (integers). Elements are combined in the order of the PEs in the
    team, float16 and bfloat16 as float32, and rounded once. With NVLink SHARP, on compute
    capability 9.0 and up, the switch combines, in an order of its own: for every `op` int32, int64,
    uint32 and uint64; float16 and bfloat16, of which "min" and "max" may lose a NaN; and sums of
    float32 and float64. Other elements, and memory without a multicast address, are loaded from one
    PE after the other.

    What the PEs wrote to `src`, the caller too, is included if it was made visible before: by
    `sync` or a barrier of the team, or by `quiet` and a signal that the caller has waited for. All
    PEs of `team` must be in TEAM_SHARED; the cpu backend raises `SymmetryError` for others. PTX
    ISA: multimem.ld_reduce; NVSHMEM 3: nvshmemx_mc_ptr.
    """


@declare(reads("src"), writes("dst", "src"), scopes=EVERY_SCOPE, completion=PUT)
def multimem_store(dst: ToMembers, src: Loaded, team: TeamHandle) -> None:
    """Store `src` to the first elements of `dst` (symmetric) on all PEs of `team`, the caller too.

    Only the caller takes part: nobody is told. Both are contiguous and have the same dtype; `src`
    is memory that this PE can load from: the caller's own `dst`, or apart from it. `fence`, `quiet`
    and barriers treat it as a put to each of the PEs, so a signal that is to follow the data needs
    a `fence` before it, and the caller reads its own `dst` after `quiet`. What the threads wrote to
    `src` before is included only if they synchronised after writing.

    With NVLink SHARP, on compute capability 9.0 and up, the switch copies: 16 bytes at a time,
    eight loads in flight for each thread, where `dst` and `src` are aligned alike, else elements of
    4 and 8 bytes. Without it, and at the ends of smaller elements, it is a copy to one PE after
    the other, the caller last. All PEs of `team` must be in TEAM_SHARED; the cpu backend raises
    `SymmetryError` for others. PTX ISA: multimem.st; NVSHMEM 3: nvshmemx_mc_ptr.
    """
