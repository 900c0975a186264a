"""Barriers, and collectives over the PEs of a team."""

from __future__ import annotations

from gpushmem.ops.roles import Count, FromMembers, Reduction, Root, Stride, TeamHandle, ToMembers
from gpushmem.ops.row import EVERY_SCOPE, declare, reads, writes

TOGETHER = """One call per PE: by one thread, one warp or one block of one kernel, or by the host,
which first waits for its PE's kernels."""


@declare(scopes=EVERY_SCOPE, on_host=True, note=TOGETHER, meets=True, orders="barrier")
def barrier(team: TeamHandle) -> None:
    """Wait until every PE of `team` calls; all data they put before is then visible to all.

    NVSHMEM 3: nvshmem_barrier.
    """


@declare(scopes=EVERY_SCOPE, on_host=True, note=TOGETHER, meets=True, orders="barrier")
def barrier_all() -> None:
    """Wait until every PE calls; all data they put before is then visible to all.

    OpenSHMEM 1.5: shmem_barrier_all.
    """


@declare(scopes=EVERY_SCOPE, on_host=True, note=TOGETHER, meets=True)
def sync(team: TeamHandle) -> None:
    """Wait until every PE of `team` calls. Completes no operations: `quiet` and `barrier` do.

    Stores of the PEs to their own memory before the call are visible to the others. OpenSHMEM 1.5:
    shmem_team_sync.
    """


@declare(scopes=EVERY_SCOPE, on_host=True, note=TOGETHER, meets=True)
def sync_all() -> None:
    """Wait until every PE calls. Completes no operations: `quiet` and `barrier_all` do.

    Stores of the PEs to their own memory before the call are visible to the others. OpenSHMEM 1.5:
    shmem_sync_all.
    """


COLLECTIVE = f"""\
All PEs of `team` call, in the same order as the team's other collectives. `dst`
and `src` must be symmetric and contiguous and have the same dtype. They must not overlap{{but}}.
`dst` may be written from when the first PE of the team calls. On return it has the result and `src`
may be changed; other PEs may still be in the call.
{TOGETHER}"""
APART, IN_PLACE, PART_IN_PLACE = (
    COLLECTIVE.format(but=but)
    for but in ("", ", but may be the same array", ", but `dst` may be the caller's part of `src`")
)
REDUCING = """\
`op`, written as a literal in the call, is "sum" or "prod" (integers, which wrap around, floats and
complex numbers), "min" or "max" (integers and floats; NaN if there is one), "and", "or" or "xor"
(integers), or "maxloc" (records of two numbers, a value and its location: the result is the largest
value; ties go to the smallest location). On the cpu backend elements are combined in the order of
the PEs' numbers, so every PE gets the same bits, and rounded to the dtype at each step. On GPUs the
order is NVSHMEM's, which has no products of complex numbers, and "maxloc" only in `reduce_block`,
of two float64; NVLink SHARP adds float16 and bfloat16 in float32. 8-bit floats are not reduced."""


@declare(
    reads("src"), writes("dst", "src"), scopes=EVERY_SCOPE, on_host=True, note=APART, meets=True
)
def broadcast(team: TeamHandle, dst: ToMembers, src: FromMembers, root: Root = 0) -> None:
    """Copy `src` of the team's PE `root` to the first elements of `dst` on every PE of `team`.

    OpenSHMEM 1.5: shmem_broadcast.
    """


@declare(
    reads("src"), writes("dst", "parts"), scopes=EVERY_SCOPE, on_host=True, note=APART, meets=True
)
def fcollect(team: TeamHandle, dst: ToMembers, src: FromMembers) -> None:
    """Collect `src` of every PE of `team`, one after the other, to `dst`, on every PE.

    `src` has n elements on every PE, `dst` at least `team_n_pes(team) * n` elements. OpenSHMEM 1.5:
    shmem_fcollect.
    """


@declare(
    reads("src"), writes("dst", "parts"), scopes=EVERY_SCOPE, on_host=True, note=APART, meets=True
)
def collect(team: TeamHandle, dst: ToMembers, src: FromMembers) -> None:
    """Collect `src` of every PE of `team`, one after the other, to `dst`, on every PE.

    `src` may differ in size between PEs; `dst` must have room for all of it.
    OpenSHMEM 1.5: shmem_collect.
    """


@declare(
    reads("src"), writes("dst", "src"), scopes=EVERY_SCOPE, on_host=True, note=APART, meets=True
)
def alltoall(team: TeamHandle, dst: ToMembers, src: FromMembers) -> None:
    """Send part k of `src` to the team's PE k: there, part j of `dst` is what PE j sent.

    `src` has `team_n_pes(team)` equal parts, and `dst` as many of the same size. OpenSHMEM 1.5:
    shmem_alltoall.
    """


@declare(
    reads("src", "parts"),
    writes("dst", "parts"),
    scopes=EVERY_SCOPE,
    on_host=True,
    note=APART,
    meets=True,
)
def alltoalls(
    team: TeamHandle,
    dst: ToMembers,
    src: FromMembers,
    dst_stride: Stride,
    src_stride: Stride,
    nelems: Count,
) -> None:
    """Send `nelems` elements to each PE of `team`: as `alltoall`, with strides.

    Element `(k * nelems + i) * src_stride` of `src` goes to PE k, as element
    `(j * nelems + i) * dst_stride` of `dst`, where j is the sender. Strides are 1 or more.
    OpenSHMEM 1.5: shmem_alltoalls.
    """


@declare(
    reads("src"),
    writes("dst", "src"),
    scopes=EVERY_SCOPE,
    on_host=True,
    note=f"{REDUCING} {IN_PLACE}",
    meets=True,
)
def reduce(team: TeamHandle, dst: ToMembers, src: FromMembers, op: Reduction) -> None:
    """Combine `src` of all PEs of `team`, element by element, to the first of `dst`, on every PE.

    OpenSHMEM 1.5: shmem_sum_reduce and others; NVSHMEM 3: nvshmemx_sum_reduce_block and others.
    """


@declare(
    reads("src"),
    writes("dst", "parts"),
    scopes=EVERY_SCOPE,
    on_host=True,
    note=f"{REDUCING} {PART_IN_PLACE}",
    meets=True,
)
def reducescatter(team: TeamHandle, dst: ToMembers, src: FromMembers, op: Reduction) -> None:
    """Combine part k of `src` of all PEs of `team`, element by element, to `dst` on its PE k.

    `src` has `team_n_pes(team)` equal parts, `dst` at least as many elements as a part. NVSHMEM 3:
    nvshmem_sum_reducescatter and others.
    """
