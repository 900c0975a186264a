"""Remote memory access: elements and arrays."""

from __future__ import annotations

from gpushmem.ops.roles import (
    Count,
    Element,
    ElementResult,
    Pe,
    Remote,
    Source,
    Stride,
    Target,
    Value,
)
from gpushmem.ops.row import EVERY_SCOPE, GET, LOCAL_ON_HOST, PUT, declare, reads, writes


@declare(writes("dst", "0"), on_host=True, qp=True)
def p(dst: Element, value: Value, pe: Pe) -> None:
    """Write `value` to element 0 of `dst` (symmetric, on `pe`).

    The value has arrived after `quiet`. `value` is converted to the dtype of `dst`. To write
    element i pass `dst[i:]`. OpenSHMEM 1.5: shmem_p.
    """


@declare(reads("src", "0"), on_host=True, qp=True)
def g(src: Element, pe: Pe) -> ElementResult:
    """Return element 0 of `src` (symmetric, on `pe`): the value it has at some time in the call.

    To read element i pass `src[i:]`. OpenSHMEM 1.5: shmem_g.
    """


@declare(
    reads("src"),
    writes("dst", "src"),
    scopes=EVERY_SCOPE,
    nbi=True,
    qp=True,
    on_host=True,
    host_note=LOCAL_ON_HOST,
    completion=PUT,
)
def put(dst: Remote, src: Source, pe: Pe) -> None:
    """Copy all `src.size` elements of `src` (local) to the first of `dst` (symmetric, on `pe`).

    Both arrays must be contiguous and have the same dtype; a smaller `dst` is an error.
    `put_signal` tells `pe` that the data has arrived. Two puts may arrive in either order: where
    the order matters, call `fence` between them. OpenSHMEM 1.5: shmem_put, shmem_put_nbi;
    NVSHMEM 3: nvshmemx_put_warp, nvshmemx_put_block.
    """


@declare(
    reads("src", "dst"),
    writes("dst"),
    scopes=EVERY_SCOPE,
    nbi=True,
    qp=True,
    on_host=True,
    host_note=LOCAL_ON_HOST,
    completion=GET,
)
def get(dst: Target, src: Remote, pe: Pe) -> None:
    """Copy the first `dst.size` elements of `src` (symmetric, on `pe`) to all of `dst` (local).

    Both arrays must be contiguous and have the same dtype; a smaller `src` is an error.
    OpenSHMEM 1.5: shmem_get, shmem_get_nbi; NVSHMEM 3: nvshmemx_get_warp, nvshmemx_get_block.
    """


STRIDED = """Strides are in elements, 1 or more. Both arrays must be contiguous and have the same
dtype. OpenSHMEM 1.5: shmem_iput, shmem_iget; NVSHMEM 3: nvshmemx_iput_block, nvshmemx_iget_block,
and for warps."""


@declare(
    reads("src", "stride"),
    writes("dst", "stride"),
    scopes=EVERY_SCOPE,
    on_host=True,
    note=STRIDED,
    host_note=LOCAL_ON_HOST,
    completion=PUT,
)
def iput(
    dst: Remote, src: Source, dst_stride: Stride, src_stride: Stride, nelems: Count, pe: Pe
) -> None:
    """Copy `nelems` strided elements of `src` (local) to `dst` (symmetric, on `pe`).

    Element `i * src_stride` of `src` goes to element `i * dst_stride` of `dst`.
    """


@declare(
    reads("src", "stride"),
    writes("dst", "stride"),
    scopes=EVERY_SCOPE,
    on_host=True,
    note=STRIDED,
    host_note=LOCAL_ON_HOST,
    completion=GET,
)
def iget(
    dst: Target, src: Remote, dst_stride: Stride, src_stride: Stride, nelems: Count, pe: Pe
) -> None:
    """Copy `nelems` strided elements of `src` (symmetric, on `pe`) to `dst` (local).

    Element `i * src_stride` of `src` goes to element `i * dst_stride` of `dst`.
    """
