"""What the threads of a warp or block do together in memory that they can load from."""

from __future__ import annotations

from gpushmem.ops.roles import (
    CodeMatrix,
    Flag,
    Loaded,
    Matrices,
    Matrix,
    RowNumbers,
    Rows,
    ScaledProduct,
    Scales,
    Stored,
    StoredRows,
    Sums,
    SwitchReduction,
    Weights,
)
from gpushmem.ops.row import BLOCK, HOST, WARP, declare, reads, writes

GEMM_ON_HOST = """On GPUs cuBLASLt computes it, if it is installed (pip: nvidia-cublas), with the
sums of float32 in float32; otherwise one block does. With `stream=` the arrays are used in the
stream's order; without, the product is there on return."""


@declare(reads("src"), writes("dst", "src"), scopes=(BLOCK, WARP))
def copy(dst: Stored, src: Loaded) -> None:
    """Copy `src` to the first elements of `dst`: memory that this PE can load from and store to.

    Both are contiguous, of the same dtype, and apart from each other, or the same memory. They may
    be views of other PEs' memory (`peer_array`). On return `dst` is visible to the threads that
    called. What they wrote to `src` before is included only if they synchronised after writing. On
    GPUs 16 bytes at a time, eight loads in flight for each thread, where both are aligned alike.
    """


@declare(reads("src"), reads("index"), writes("dst"), scopes=(BLOCK, WARP))
def copy_rows(dst: StoredRows, src: Rows, index: RowNumbers) -> None:
    """Copy rows of `src` to those of `dst`: `dst[k] = src[index[k]]`.

    `dst` (k, m) is contiguous, and apart from `src` (n, m), of which the elements of a row are
    adjacent; `index` (k,) of int32 has numbers of rows, -1 for a row of `dst` that stays. Memory
    and visibility are as in `copy`. On GPUs each warp of a block has rows of its own, so several
    are under way at a time. `--check` takes all rows of `src` to be read, all of `dst` to be
    written.
    """


@declare(reads("src"), reads("dst", "src"), writes("dst", "src"), scopes=(BLOCK, WARP))
def reduce_local(dst: Stored, src: Loaded, op: SwitchReduction) -> None:
    """Combine `src` with the first elements of `dst`: `dst[i] = dst[i] + src[i]`, for "sum".

    Both are contiguous, of the same dtype, and apart from each other, or the same memory. What is
    said of `op` and threads, and how it is done, is as in `reduce_rows`. MPI: MPI_Reduce_local.
    """


@declare(reads("src"), writes("dst"), scopes=(BLOCK, WARP))
def reduce_rows(dst: Stored, src: Rows, op: SwitchReduction) -> None:
    """Combine the rows of `src`, element by element: `dst[i] = src[0, i] + src[1, i] + ...`.

    `dst` is contiguous and has at least as many elements as a row; it may be one of the rows, or
    apart. `src` (n, m), n from 1 on, is memory that this PE can load from; the elements of a row
    are adjacent, rows need not be. `op`, written as a literal in the call, is as in
    `multimem_reduce`: rows are combined from the first to the last, float16 and bfloat16 as
    float32, and rounded once. On return `dst` is visible to the threads that called. What they
    wrote to `src` before is included only if they synchronised after writing. On GPUs 16 bytes at a
    time, four loads or more in flight for each thread, where `dst` and all rows are aligned alike.
    """


@declare(
    reads("src"), reads("index"), reads("weights"), writes("dst"), scopes=(BLOCK, WARP)
)  # fmt: skip
def sum_rows(dst: Sums, src: Rows, index: RowNumbers, weights: Weights) -> None:
    """Add up rows of `src`, each times its weight: `dst[i] = sum of weights[k] * src[index[k], i]`.

    `index` (k,) of int32 has the numbers of the rows, -1 for none; `weights` (k,) of float32, or of
    float64. `dst` is contiguous, has at least as many elements as a row, and is apart from `src`
    (n, m): memory that this PE can load from, with the elements of a row adjacent. Sums are kept in
    registers, of float64 as such and of other floats as float32, k = 0 first, and rounded once;
    without rows they are 0. On return `dst` is visible to the threads that called. What they wrote
    to the other three before is included only if they synchronised after writing. On GPUs 16 bytes
    at a time, four loads or more in flight for each thread, where `dst` and all rows are aligned
    alike. `--check` takes all rows of `src` to be read.
    """


@declare(reads("a"), reads("b"), writes("dst"), scopes=(HOST, BLOCK), host_note=GEMM_ON_HOST)
def gemm(dst: Matrix, a: Matrix, b: Matrix, accumulate: Flag) -> None:
    """Multiply matrices: `dst = a @ b`, with `accumulate` `dst += a @ b`.

    `dst` (m, n), `a` (m, k) and `b` (k, n) are memory this PE can load from, all float16, all
    bfloat16, all float32 or all float64; any size, including 0. In `dst`, and in `a` and `b` or
    their transposes, the elements of each row must be adjacent, and rows must not overlap. Sums of
    16-bit floats are kept as float32. When threads of a block call, `dst` is visible to all of them
    on return, and what they wrote to `a` and `b` before is included only if they synchronised after
    writing. On CPUs OpenBLAS computes it, that of NumPy or SciPy.
    """


@declare(reads("a"), reads("b"), writes("dst"), scopes=(HOST,))
def gemm_batched(dst: Matrices, a: Matrices, b: Matrices, accumulate: Flag) -> None:
    """Multiply many matrices of the same sizes: `dst[i] = a[i] @ b[i]`, as `gemm`.

    `dst` (B, m, n), `a` (B, m, k) and `b` (B, k, n), k from 1 on; each of their matrices is as in
    `gemm`, at the same distance from the one before, and those of `dst` do not overlap. On GPUs
    cuBLASLt computes all by one call (pip: nvidia-cublas), on CPUs NumPy does. With `stream=` the
    arrays are used in the stream's order; without, the products are there on return.
    """


@declare(
    reads("a"), reads("b"), reads("scale_a"), reads("scale_b"), writes("dst"), scopes=(HOST,)
)  # fmt: skip
def gemm_scaled(
    dst: ScaledProduct, a: CodeMatrix, b: CodeMatrix, scale_a: Scales, scale_b: Scales,
    accumulate: Flag,
) -> None:  # fmt: skip
    """Multiply 8-bit floats: `dst = scale_a * scale_b * (a @ b)`; `accumulate` adds to dst.

    `a` (m, k) and `b` (k, n) are of float8_e4m3fn, `dst` (m, n) of float16, bfloat16 or float32:
    memory this PE can load from. Both scales are of float32, and either one number each, or of
    shape (m, 1) and (1, n), a number for each row of `a` and column of `b`, contiguous. Sums are
    kept as float32, then scaled, and rounded once. k and n are multiples of 16, k from 16 on. The
    elements of each row of `a` and `dst`, and of each column of `b`, are adjacent: `b` is `w.T` of
    a `w` (n, k). These begin at multiples of 16 bytes. `ArgumentError` tells what is not so. On
    GPUs cuBLASLt computes it (pip: nvidia-cublas), on those of compute capability 8.9 and up;
    scales of rows and columns it has for 9.0 alone. On CPUs NumPy does. With `stream=` the arrays
    are used in the stream's order; without, the product is there on return.
    """
