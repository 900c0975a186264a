"""`gemm_block`: a product of matrices by BLAS, called from kernels.

The last thread of the block to arrive calls it for all. BLAS counts columns first, so it computes
the transposed problem, `dst.T = b.T @ a.T`. 16-bit floats are multiplied as 32-bit ones.

SciPy has an interface for C to its BLAS. NumPy's is taken where both are the OpenBLAS of their
wheels, and NumPy's is not older: for few rows of a matrix that is not in the cache 0.3.31 is 1.3 to
1.6 times as fast as 0.3.30, and a kernel's products are then as fast as `numpy.matmul`, which calls
the same functions: gemv for one row or column, too.
"""

from __future__ import annotations

import ctypes
import os
import re
from functools import partial
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import get_cython_function_address
from threadpoolctl import ThreadpoolController

from gpushmem.backends.codegen import contiguous
from gpushmem.backends.cpu.operations.access import itemsize_of
from gpushmem.backends.operation_errors import BAD_SHAPES, NO_MEMORY, NOT_BY_ROWS
from gpushmem.native.memory import intrinsic, libc_free, malloc
from gpushmem.simt.embed import suppliers
from gpushmem.simt.functions import call_device, device
from gpushmem.simt.launch import usable_cores
from gpushmem.simt.thread import fail_if

__all__ = ["gemm"]

i8, i64 = ir.IntType(8), ir.IntType(64)
KINDS = {types.float32: ("s", ir.FloatType()), types.float64: ("d", ir.DoubleType())}


def _address(name: str) -> int:
    """Find a function of BLAS; let it use the cores that are this PE's, as kernels do."""
    address = int(get_cython_function_address("scipy.linalg.cython_blas", name))
    found = [c for c in ThreadpoolController().lib_controllers if c.internal_api == "openblas"]
    libraries = {who: c for who in ("numpy", "scipy") for c in found if f"{who}.libs" in c.filepath}
    library = libraries.get("scipy")
    if len(libraries) == 2 and _version(libraries["numpy"]) >= _version(libraries["scipy"]):
        for function in (f"scipy_{name}_64_", f"scipy_{name}_"):
            if hasattr(libraries["numpy"].dynlib, function):
                library = libraries["numpy"]
                address = ctypes.cast(library.dynlib[function], ctypes.c_void_p).value or address
                break
    if library is not None and "OPENBLAS_NUM_THREADS" not in os.environ:
        library.set_num_threads(usable_cores())
    return address


def _version(library: Any) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", library.version or "")]


suppliers.update(
    {
        f"gpushmem_{name}": partial(_address, name)
        for kind, _ in KINDS.values() for name in (f"{kind}gemm", f"{kind}gemv")
    }
)  # fmt: skip


class Call:
    """A call of BLAS with three arrays and `accumulate`: all arguments are passed by address."""

    def __init__(self, context: Any, builder: Any, sig: Any, args: Any) -> None:
        self.builder = builder
        self.kind, number = KINDS[sig.args[0].dtype]
        self.arrays = [
            context.make_array(typ)(context, builder, value)
            for typ, value in zip(sig.args[:3], args[:3], strict=True)
        ]
        self.alpha = self.place(number(1.0))
        self.beta = self.place(builder.select(args[3], number(1.0), number(0.0)))

    def place(self, value: Any) -> Any:
        """Integers have 64 bits: a library whose integers have 32 reads the low half."""
        slot = cgutils.alloca_once(self.builder, value.type)
        self.builder.store(value, slot)
        return slot

    def letter(self, plain: Any) -> Any:
        return self.place(self.builder.select(plain, i8(ord("N")), i8(ord("T"))))

    def to(self, name: str, *given: Any) -> None:
        signature = ir.FunctionType(ir.VoidType(), [value.type for value in given])
        function = cgutils.get_or_insert_function(
            self.builder.module, signature, f"gpushmem_{self.kind}{name}"
        )
        self.builder.call(function, given)


@intrinsic
def call_gemm(
    typingctx: Any, dst: Any, a: Any, b: Any, accumulate: Any, leads: Any, a_by_rows: Any,
    b_by_rows: Any,
) -> Any:  # fmt: skip
    """Multiply; `leads` are the distances of two rows, or of two columns if not by rows."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        call = Call(context, builder, sig, args)
        to, left, right = call.arrays
        leads, a_by_rows, b_by_rows = args[4:]
        dst_lead, a_lead, b_lead = map(call.place, cgutils.unpack_tuple(builder, leads))
        rows, inner = map(call.place, cgutils.unpack_tuple(builder, left.shape))
        columns = call.place(cgutils.unpack_tuple(builder, right.shape)[1])
        call.to(
            "gemm", call.letter(b_by_rows), call.letter(a_by_rows), columns, rows, inner,
            call.alpha, right.data, b_lead, left.data, a_lead, call.beta, to.data, dst_lead,
        )  # fmt: skip
        return context.get_dummy_value()

    flag = types.boolean
    return types.void(dst, a, b, flag, types.UniTuple(types.intp, 3), flag, flag), codegen


@intrinsic
def call_gemv(
    typingctx: Any, dst: Any, matrix: Any, vector: Any, accumulate: Any, sizes: Any, leads: Any,
    plain: Any,
) -> Any:  # fmt: skip
    """Multiply a matrix by a vector: `sizes` and `leads` as BLAS counts, of matrix, vector, dst."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        call = Call(context, builder, sig, args)
        to, matrix, vector = call.arrays
        sizes, leads, plain = args[4:]
        height, width = map(call.place, cgutils.unpack_tuple(builder, sizes))
        lead, step, dst_step = map(call.place, cgutils.unpack_tuple(builder, leads))
        call.to(
            "gemv", call.letter(plain), height, width, call.alpha, matrix.data, lead,
            vector.data, step, call.beta, to.data, dst_step,
        )  # fmt: skip
        return context.get_dummy_value()

    pair, triple = types.UniTuple(types.intp, 2), types.UniTuple(types.intp, 3)
    return types.void(dst, matrix, vector, types.boolean, pair, triple, types.boolean), codegen


@device
def in_rows(array, length, step, count, distance):
    """Whether it consists of `count` rows that do not overlap, of `length` adjacent elements."""
    size = itemsize_of(array)
    apart = count < 2 or (distance >= length * size and distance % size == 0)
    return apart and (length < 2 or step == size)


@device
def by_rows(array):
    """Whether the elements of a row are neighbours; if not, those of a column must be."""
    (m, n), (down, across) = array.shape, array.strides
    rows = in_rows(array, n, across, m, down)
    columns = in_rows(array, m, down, n, across)
    fail_if(not rows and not columns, NOT_BY_ROWS, down, across, 0, 0)
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
    dst_lead, a_lead, b_lead = lead_of(dst, True), lead_of(a, a_rows), lead_of(b, b_rows)
    m, k = a.shape
    n = b.shape[1]
    if m == 1 and k > 0:  # of no terms BLAS leaves the result of an empty sum as it is
        sizes = (n, k) if b_rows else (k, n)
        call_gemv(dst, b, a, accumulate, sizes, (b_lead, 1 if a_rows else a_lead, 1), b_rows)
    elif n == 1 and k > 0:
        sizes = (k, m) if a_rows else (m, k)
        step = b_lead if b_rows else 1
        call_gemv(dst, a, b, accumulate, sizes, (a_lead, step, dst_lead), not a_rows)
    else:
        call_gemm(dst, a, b, accumulate, (dst_lead, a_lead, b_lead), a_rows, b_rows)


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
            dst[i, j] = product[i, j]
    libc_free(memory)


@intrinsic
def multiply(typingctx: Any, dst: Any, a: Any, b: Any, accumulate: Any) -> Any:
    """Multiply matrices that fit each other."""
    body = in_floats if dst.dtype in KINDS else in_halves
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
