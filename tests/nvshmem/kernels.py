"""Kernels that call a row of the operation table, made from the table."""

from importlib.util import find_spec

import pytest
from numba import types

from gpushmem.ops import OPS
from gpushmem.ops.roles import Elements, OwnUnits, Reduction, RemoteUnits, Vector

KERNEL = """
def {name}({params}):
    {out}operation({given})
"""
INTS = [
    "pe",
    "qp",
    "amount",
    "cmp",
    "team",
    "root",
    "src_team",
    "src_pe",
    "dst_team",
    "dst_stride",
    "src_stride",
    "nelems",
    "timeout_ns",
    "number",
    "flag",
    "i",
    "j",
    "k",
    "count",
    "nbytes",
    "parity",
]
UNITS = RemoteUnits, OwnUnits
WRITTEN = {"name": '"a"', "n": "1", "access": '"relaxed.sys"'}  # literals
LOCAL = ("reduce_rows", "reduce_local", "reduce_ll", "reduce_ll128")
OWN = (  # call none of NVSHMEM's
    *LOCAL, "gemm", "ask_smem", "trace_range_start", "trace_range_end", "copy", "copy_rows",
    "sum_rows", "load_vector", "store_vector", "copy_async", "copy_async_commit", "copy_async_wait",
    "mbarrier_init", "mbarrier_arrive", "mbarrier_arrive_and_expect_tx", "mbarrier_wait",
    "copy_bulk",
)  # fmt: skip
NEEDS_TMA = "mbarrier_arrive_and_expect_tx", "copy_bulk"  # compute capability 9.0
COPIED = ("int8", "uint16", "int32", "int64", "float16", "float32", "float64", "complex64",
          "complex128", "boolean", "bfloat16", "fp8_e4m3", "fp8_e5m2")  # fmt: skip


COMPILERS = (
    "numba-cuda",
    pytest.param(
        "numba-cuda-mlir",
        marks=pytest.mark.skipif(
            find_spec("numba_cuda_mlir") is None, reason="numba-cuda-mlir is not installed"
        ),
    ),
)
# A value that is no array; tuples; a literal.
NOT_BY_MLIR = ("multicast_array", "load_vector", "store_vector", "copy_async", "copy_async_wait")


def array_of(dtype):
    return types.Array(dtype, 1, "C")


def dtype_of(name):
    from numba.cuda.types import bfloat16

    from gpushmem.artifacts.floats import FLOAT8

    small = {"bfloat16": bfloat16, **{str(typ): typ for typ in FLOAT8}}
    return small[name] if name in small else getattr(types, name)


def dtypes_of(op, which=None):
    """The dtypes, by name, that NVSHMEM has a row for."""
    stated = next((role.dtypes for role in op.arrays.values() if role not in UNITS), ())
    if stated:
        return stated
    if op.named(Reduction):
        integers = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
        floats = ("float16", "bfloat16", "float32", "float64")
        more = {"sum": (*floats, "complex64", "complex128"), "and": (), "or": (), "xor": ()}
        return integers + more.get(which, floats)
    return COPIED if op.arrays else ("",)


def kernel_of(op, dtype="", which=None, timeout=False):
    """A kernel that calls the row, and the types of its arguments."""
    element = dtype_of(dtype) if dtype else None
    taken, written = {}, dict(WRITTEN)
    if op.base == "copy_async":  # 4 bytes or more
        written["n"] = str(max(1, 32 // getattr(element, "bitwidth", 8)))
    for name in op.params:
        if name in written or (name == "op" and which is not None):
            continue
        if name == "timeout_ns" and not timeout:
            continue
        taken[name] = _type(op, name, element)
    given = [
        repr(which) if n == "op" and which else written.get(n, n)
        for n in op.params
        if n in taken or n in ("op", *written)
    ]
    out = ""
    if op.result() is not None:
        taken["out"] = array_of(element if op.result() == "element" else types.int64)
        out = "out[0] = "
    elif issubclass(op.returns, Elements):
        taken["out"], out = array_of(element), "(out[0],) = "
    text = KERNEL.format(
        name=op.name, params=", ".join(taken), given=", ".join(given), out=out,
    )  # fmt: skip
    scope = {"operation": op.function}
    exec(text, scope)
    return scope[op.name], tuple(taken.values())


def _type(op, name, element):
    if name in INTS:
        return types.int64
    if name in ("signal", "bars"):
        return array_of(types.uint64)
    if name == "weights":
        return array_of(types.float32)
    if name in ("status", "qps", "index"):
        return array_of(types.int32)
    if name == "indices":
        return array_of(types.int64)
    if name == "op":
        return types.int64
    if name == "value" and "signal" in op.base:
        return types.uint64
    if issubclass(op.roles[name], Vector):
        return types.UniTuple(element, 1)
    if name in ("value", "cond"):
        return array_of(element) if op.base.endswith("_vector") else element
    if name == "accumulate":
        return types.boolean
    if op.arrays.get(name) in UNITS:
        element = types.uint64
    ndim = op.arrays[name].ndim if name in op.arrays else None
    return (
        array_of(element)
        if ndim is None
        else types.Array(element, ndim, op.arrays[name].layout or "A")
    )


def rows():
    return [op for op in OPS.values() if op.kernel]


def forms(op):
    """All that a row comes in: reduction, dtype, whether with a timeout."""
    names = [name for role in op.roles.values() for name in getattr(role, "names", ())]
    whiches = [which for which in names if which != "maxloc"] or [None]
    return [
        (which, dtype, timeout)
        for which in whiches
        for dtype in dtypes_of(op, which)
        for timeout in ((False, True) if "timeout_ns" in op.params else (False,))
    ]


def compiled(function, argtypes, arch, which="numba-cuda"):
    """The kernel's LTO-IR, and the names of the shims that it calls."""
    from gpushmem.backends.nvshmem.compile import compiler

    return compiler.compile_kernel(function, argtypes, {}, arch, which=which)


def shims_of(function, argtypes, arch, which="numba-cuda"):
    return compiled(function, argtypes, arch, which).shims
