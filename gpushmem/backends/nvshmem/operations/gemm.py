"""`gemm_block`: a product of matrices, tile by tile, in the block's shared memory.

All threads copy a tile of `a` and one of `b` there, padded with zeros, so any sizes and strides
work; the product of the two is added to the sums for a tile of `dst`, which are also there. That
step is cuBLASDx's if it is installed (`mathdx`) and the block has the length it was compiled for;
otherwise the loops below, for any block. All but cuBLASDx is Python that the cpu backend can
compile as well.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import cuda
from numba.cuda import types

from gpushmem.backends.codegen import contiguous
from gpushmem.backends.nvshmem.operations import mathdx
from gpushmem.backends.nvshmem.operations.device_calls import (
    Value,
    compute_capability,
    data_of,
    intrinsic,
)
from gpushmem.ops.row import Op

__all__ = ["BYTES", "TILES", "Tile", "choose", "compiled", "product", "shared_bytes"]


class Tile(NamedTuple):
    """Sizes of tiles: `dst` (m, n), `a` (m, k), `b` (k, n); and of what one thread sums at a time.

    They are powers of two. `leads` are the elements from one row to the next in shared memory, of
    `a`, `b` and `dst`: more than there are in a row, so that the rows begin in different banks.
    """

    m: int
    n: int
    k: int
    rows: int
    columns: int
    leads: tuple[int, int, int]
    number: Any  # the type of the sums


# Some 26 KB of shared memory for each. It is static, of which a kernel has 48 KB in all.
TILES = {
    types.float16: Tile(64, 64, 32, 4, 4, (40, 72, 68), np.float32),
    types.bfloat16: Tile(64, 64, 32, 4, 4, (40, 72, 68), np.float32),
    types.float32: Tile(64, 64, 16, 4, 4, (20, 68, 68), np.float32),
    types.float64: Tile(32, 32, 32, 4, 2, (34, 34, 34), np.float64),
}


def _sizes(tile: Tile, dtype: Any) -> list[tuple[tuple[int, int], Any, int]]:
    """Shape, dtype and bytes of what is in shared memory: tiles of `a` and `b`, sums."""
    dtypes = dtype, dtype, getattr(types, tile.number.__name__)
    shapes = zip((tile.m, tile.k, tile.m), tile.leads, strict=True)
    return [
        (shape, dtype, shape[0] * shape[1] * dtype.bitwidth // 8)
        for shape, dtype in zip(shapes, dtypes, strict=True)
    ]


BYTES = max(
    sum(size for _, _, size in _sizes(tile, dtype)) for dtype, tile in TILES.items()
)  # all products of a kernel have the same ones


MEMORY = types.Array(types.uint8, 1, "C")


@intrinsic
def shared_bytes(typingctx: Any) -> Any:
    """The memory: one variable in a kernel, whichever of its functions ask for it.

    With an array of numba-cuda's there would be one for each function, and two that have the same
    one could not be linked.
    """

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        name, kind = "gpushmem_tiles", ir.ArrayType(ir.IntType(8), BYTES)
        found = builder.module.globals.get(name)
        if found is None:
            found = ir.GlobalVariable(builder.module, kind, name, addrspace=3)
            found.linkage, found.align = "linkonce_odr", mathdx.ALIGNMENT
            found.initializer = ir.Constant(kind, ir.Undefined)
        start = builder.addrspacecast(found, kind.as_pointer())
        extents = [context.get_constant(types.intp, BYTES)]
        return contiguous(context, builder, MEMORY, start, extents)

    return MEMORY(), codegen


def _parts(tile: Tile, dtype: Any) -> list[Any]:
    """Intrinsics that give the tiles and the sums, which lie one after the other in memory."""
    made, first = [], 0
    for shape, of, size in _sizes(tile, dtype):
        made.append(_part(first, shape, of))
        first += size
    return made


def _part(first: int, shape: tuple[int, int], dtype: Any) -> Any:
    result = types.Array(dtype, 2, "C")

    def part(typingctx: Any, memory: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            data = data_of(context, builder, Value(memory, args[0]))
            start = builder.gep(data, [ir.IntType(64)(first)])
            extents = [context.get_constant(types.intp, number) for number in shape]
            return contiguous(context, builder, result, start, extents)

        return result(memory), codegen

    return intrinsic(part)


def _bring(rows: int, columns: int) -> Any:
    @cuda.jit(device=True)
    def bring(tile, source, top, left, rank, threads):
        """Copy the part of `source` that begins at row `top`, column `left`; zeros beyond it.

        Threads that follow each other read elements that do.
        """
        by_columns = source.strides[0] < source.strides[1]
        for i in range(rank, rows * columns, threads):
            row = i % rows if by_columns else i // columns
            column = i // rows if by_columns else i % columns
            if top + row < source.shape[0] and left + column < source.shape[1]:
                tile[row, column] = source[top + row, left + column]
            else:
                tile[row, column] = np.float32(0)

    return bring


def _by_threads(tile: Tile) -> Any:
    number, inner, rows, columns = tile.number, tile.k, tile.rows, tile.columns
    # A thread's elements lie as far apart as they can: those of the next thread are beside them.
    down, across = tile.m // rows, tile.n // columns

    @cuda.jit(device=True)
    def by_threads(sums, left, right, rank, threads):
        """Add the product of two tiles to `sums`."""
        mine = cuda.local.array((rows, columns), number)
        for part in range(rank, down * across, threads):
            row, column = part // across, part % across
            for i in range(rows):
                for j in range(columns):
                    mine[i, j] = sums[row + i * down, column + j * across]
            for k in range(inner):
                for i in range(rows):
                    for j in range(columns):
                        mine[i, j] += number(left[row + i * down, k]) * number(
                            right[k, column + j * across]
                        )
            for i in range(rows):
                for j in range(columns):
                    sums[row + i * down, column + j * across] = mine[i, j]

    return by_threads


def _add(tile: Tile, dtype: Any, library: bool) -> Any:
    """The function that adds the product of two tiles to the sums; by cuBLASDx if `library`."""
    by_threads = _by_threads(tile)
    if not library:
        return by_threads
    by_library, length = mathdx.multiply(dtype), mathdx.THREADS

    @cuda.jit(device=True)
    def add(sums, left, right, rank, threads):
        if cuda.blockDim.x == length and threads == length:
            by_library(left, right, sums)
        else:
            by_threads(sums, left, right, rank, threads)

    return add


@cache
def product(dtype: Any, library: bool = False) -> Callable[..., Any]:
    """The device function `(dst, a, b, accumulate, memory)` for matrices of `dtype`.

    `memory` are `BYTES` that the block shares.
    """
    tile = TILES[dtype]
    bring_left, bring_right = _bring(tile.m, tile.k), _bring(tile.k, tile.n)
    add = _add(tile, dtype, library)
    m, n, k, number = tile.m, tile.n, tile.k, tile.number
    left_of, right_of, sums_of = _parts(tile, dtype)

    @cuda.jit(device=True)
    def multiply(dst, a, b, accumulate, memory):
        left, right, sums = left_of(memory), right_of(memory), sums_of(memory)
        at, size = cuda.threadIdx, cuda.blockDim
        rank = at.x + size.x * (at.y + size.y * at.z)
        threads = size.x * size.y * size.z
        rows, columns = dst.shape
        for top in range(0, rows, m):
            for first in range(0, columns, n):
                cuda.syncthreads()  # another product may have used the shared memory until now
                for i in range(rank, m * n, threads):
                    row, column = i // n, i % n
                    if accumulate and top + row < rows and first + column < columns:
                        sums[row, column] = dst[top + row, first + column]
                    else:
                        sums[row, column] = number(0)
                for middle in range(0, a.shape[1], k):
                    bring_left(left, a, top, middle, rank, threads)
                    bring_right(right, b, middle, first, rank, threads)
                    cuda.syncthreads()
                    add(sums, left, right, rank, threads)
                    cuda.syncthreads()
                for i in range(rank, m * n, threads):  # this thread's, if there was no product
                    row, column = i // n, i % n
                    if top + row < rows and first + column < columns:
                        dst[top + row, first + column] = sums[row, column]
        cuda.syncthreads()

    return multiply


def choose(op: Op, core: Any, given: dict[str, Any]) -> Callable[..., Any]:
    """The function to compile for a call with these types."""
    multiply = product(given["dst"].dtype, mathdx.has(compute_capability()))

    def gemm(dst, a, b, accumulate):
        multiply(dst, a, b, accumulate, shared_bytes())

    return gemm


def compiled(dtype: str, arch: str) -> bytes:
    """LTO-IR of cuBLASDx's product of the tiles for a dtype."""
    tile = TILES[getattr(types, dtype)]
    sums = tile.number.__name__
    wanted = mathdx.Product(dtype, sums, tile.m, tile.n, tile.k, tile.leads)
    return mathdx.compiled(wanted, arch)
