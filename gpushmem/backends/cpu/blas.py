"""`gemm_block`: a product of matrices by SciPy's BLAS, called from kernels.

The last thread of the block to arrive calls it for all. BLAS counts columns first, so it computes
the transposed problem, `dst.T = b.T @ a.T`. 16-bit floats are multiplied as 32-bit ones.
"""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import get_cython_function_address
from threadpoolctl import ThreadpoolController

from gpushmem.backends.code import contiguous
from gpushmem.backends.cpu.access import BAD_SHAPES, NO_MEMORY, NOT_BY_ROWS, itemsize_of
from gpushmem.simt.base.externals import suppliers
from gpushmem.simt.base.native import intrinsic, libc_free, malloc
from gpushmem.simt.compiler.primitives import fail_if
from gpushmem.simt.compiler.target import call_device, device
from gpushmem.simt.run import cores

__all__ = ["gemm"]

i8, i32 = ir.IntType(8), ir.IntType(32)
FUNCTIONS = {
    types.float32: ("gpushmem_sgemm", ir.FloatType()),
    types.float64: ("gpushmem_dgemm", ir.DoubleType()),
}


def _address(name: str) -> int:
    """Find a function of BLAS; let it use the cores that are this PE's, as kernels do."""
    address = int(get_cython_function_address("scipy.linalg.cython_blas", name))
    if "OPENBLAS_NUM_THREADS" not in os.environ:
        for library in ThreadpoolController().lib_controllers:
            if "scipy" in library.filepath:
                library.set_num_threads(cores.threads())
    return address


suppliers.update(
    {name: partial(_address, name.removeprefix("gpushmem_")) for name, _ in FUNCTIONS.values()}
)


@intrinsic
def call_blas(
    typingctx: Any, dst: Any, a: Any, b: Any, accumulate: Any, leads: Any, a_by_rows: Any,
    b_by_rows: Any,
) -> Any:  # fmt: skip
    """Multiply; `leads` are the distances of two rows, or of two columns if not by rows."""
    name, number = FUNCTIONS[dst.dtype]

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        def place(value: Any) -> Any:
            slot = cgutils.alloca_once(builder, value.type)
            builder.store(value, slot)
            return slot

        def word(value: Any) -> Any:
            return place(builder.trunc(value, i32))

        def letter(by_rows: Any) -> Any:
            return place(builder.select(by_rows, i8(ord("N")), i8(ord("T"))))

        to, left, right = (
            context.make_array(typ)(context, builder, value)
            for typ, value in zip(sig.args[:3], args[:3], strict=True)
        )
        accumulate, leads, a_by_rows, b_by_rows = args[3:]
        dst_lead, a_lead, b_lead = cgutils.unpack_tuple(builder, leads)
        rows, inner = cgutils.unpack_tuple(builder, left.shape)
        columns = cgutils.unpack_tuple(builder, right.shape)[1]
        beta = place(builder.select(accumulate, number(1.0), number(0.0)))
        given = [
            letter(b_by_rows), letter(a_by_rows), word(columns), word(rows), word(inner),
            place(number(1.0)), right.data, word(b_lead), left.data, word(a_lead),
            beta, to.data, word(dst_lead),
        ]  # fmt: skip
        signature = ir.FunctionType(ir.VoidType(), [value.type for value in given])
        builder.call(cgutils.get_or_insert_function(builder.module, signature, name), given)
        return context.get_dummy_value()

    flag = types.boolean
    return types.void(dst, a, b, flag, types.UniTuple(types.intp, 3), flag, flag), codegen


@device
def by_rows(array):
    """Whether the elements of a row are neighbours; if not, those of a column must be."""
    rows = array.shape[1] < 2 or array.strides[1] == itemsize_of(array)
    columns = array.shape[0] < 2 or array.strides[0] == itemsize_of(array)
    fail_if(not rows and not columns, NOT_BY_ROWS, array.strides[0], array.strides[1], 0, 0)
    return rows


@device
def lead_of(array, rows):
    """Elements from one row to the next, or from one column to the next."""
    across = 0 if rows else 1
    if array.shape[across] < 2:  # any value that BLAS accepts
        return max(array.shape[1 - across], 1)
    return array.strides[across] // itemsize_of(array)


@device
def in_floats(dst, a, b, accumulate):
    fail_if(not by_rows(dst), NOT_BY_ROWS, dst.strides[0], dst.strides[1], 0, 0)
    a_rows, b_rows = by_rows(a), by_rows(b)
    leads = lead_of(dst, True), lead_of(a, a_rows), lead_of(b, b_rows)
    call_blas(dst, a, b, accumulate, leads, a_rows, b_rows)


@intrinsic
def floats_at(typingctx: Any, address: Any, rows: Any, columns: Any) -> Any:
    """The matrix of float32, row by row, at an address."""
    result = types.Array(types.float32, 2, "C")

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return contiguous(context, builder, result, args[0], args[1:])

    return result(types.intp, types.intp, types.intp), codegen


@device
def widen(wide, half):
    for i in range(half.shape[0]):
        for j in range(half.shape[1]):
            wide[i, j] = half[i, j]


@device
def in_halves(dst, a, b, accumulate):
    m, k = a.shape
    n = b.shape[1]
    memory = malloc(4 * (m * k + k * n + m * n))
    fail_if(memory == 0, NO_MEMORY, m, k, n, 0)
    wide_a, wide_b = floats_at(memory, m, k), floats_at(memory + 4 * m * k, k, n)
    product = floats_at(memory + 4 * (m * k + k * n), m, n)
    widen(wide_a, a)
    widen(wide_b, b)
    if accumulate:
        widen(product, dst)
    in_floats(product, wide_a, wide_b, accumulate)
    for i in range(m):
        for j in range(n):
            dst[i, j] = np.float16(product[i, j])
    libc_free(memory)


@intrinsic
def multiply(typingctx: Any, dst: Any, a: Any, b: Any, accumulate: Any) -> Any:
    """Multiply matrices that fit each other."""
    body = in_halves if dst.dtype == types.float16 else in_floats
    sig = types.void(dst, a, b, types.boolean)
    return sig, lambda context, builder, sig, args: call_device(builder, body, sig, args)


def gemm(dst, a, b, accumulate):
    m, n = dst.shape
    fail_if(
        a.shape[0] != m or b.shape[1] != n or a.shape[1] != b.shape[0],
        BAD_SHAPES, a.shape[0] << 32 | a.shape[1], b.shape[0] << 32 | b.shape[1], m, n,
    )  # fmt: skip
    if m > 0 and n > 0:
        multiply(dst, a, b, accumulate)
