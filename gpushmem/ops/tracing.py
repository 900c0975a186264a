"""Ranges that a kernel names, for `gpushmem run --trace`."""

from __future__ import annotations

from gpushmem.ops.roles import Index, Integer, Name
from gpushmem.ops.row import EVERY_SCOPE, declare


@declare(scopes=EVERY_SCOPE)
def trace_range_start(name: Name) -> Index:
    """Begin a range of the trace, and return its number, for `trace_range_end`.

    `name` is a text written in the call. The range is one of the calling thread, in `_warp` and
    `_block` forms of the first thread of the warp or block; nobody waits for anybody. Ranges may
    nest, and overlap. What has no end in the trace lasts to the end of it. Where the job is not
    traced, 0 is returned and the call costs nothing. On the host use `with trace_range(name):`.
    NVTX: nvtxRangeStartA.
    """


@declare()
def trace_range_end(number: Integer) -> None:
    """End the range that `trace_range_start` has returned the number of; of 0: none.

    Another thread of the block, or a later kernel, may end it. NVTX: nvtxRangeEnd.
    """
