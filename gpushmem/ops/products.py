"""Products of matrices."""

from __future__ import annotations

from gpushmem.ops.roles import Flag, Matrix
from gpushmem.ops.row import BLOCK, declare, reads, writes


@declare(reads("a"), reads("b"), writes("dst"), scopes=(BLOCK,))
def gemm(dst: Matrix, a: Matrix, b: Matrix, accumulate: Flag) -> None:
    """Multiply matrices: `dst = a @ b`, with `accumulate` `dst += a @ b`.

    `dst` (m, n), `a` (m, k) and `b` (k, n) are memory this PE can load from, of float16, float32 or
    float64, all of one; any sizes, 0 too. In `dst`, and in `a` and `b` or their transposes, the
    elements of a row are neighbours. Sums of float16 are kept as float32. On return `dst` is there
    for all threads of the block; what they wrote to `a` and `b` before is included only if they
    synchronised before. On CPUs it is SciPy's BLAS.
    """
