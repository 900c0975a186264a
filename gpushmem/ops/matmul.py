"""Products of matrices."""

from __future__ import annotations

from gpushmem.ops.roles import Flag, Matrix
from gpushmem.ops.row import BLOCK, declare, reads, writes


@declare(reads("a"), reads("b"), writes("dst"), scopes=(BLOCK,))
def gemm(dst: Matrix, a: Matrix, b: Matrix, accumulate: Flag) -> None:
    """Multiply matrices: `dst = a @ b`, with `accumulate` `dst += a @ b`.

    `dst` (m, n), `a` (m, k) and `b` (k, n) are memory this PE can load from, all float16, all
    float32 or all float64; any size, including 0. In `dst`, and in `a` and `b` or their transposes,
    the elements of each row must be adjacent, and rows must not overlap. Sums of float16 are kept
    as float32. On return `dst` is visible to all threads of the block. What the threads wrote to
    `a` and `b` before is included only if they synchronised after writing. On CPUs OpenBLAS
    computes it, that of NumPy or SciPy.
    """
