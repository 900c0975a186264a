"""cuBLASDx, where NVIDIA's libmathdx is installed: the product of two tiles in shared memory.

libmathdx (pip: nvidia-libmathdx-cu13) makes LTO-IR of such a product, to be linked with the kernel
that calls it. It is called through ctypes: nvmath-python, which has bindings of it, cannot be
imported where there is no CUDA driver, and kernels are compiled there, too.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterable
from ctypes import byref, c_char_p, c_int, c_longlong, c_size_t, create_string_buffer
from functools import cache
from typing import Any, NamedTuple

from cuda.pathfinder import load_nvidia_dynamic_lib
from llvmlite import ir
from numba.cuda import cgutils, types

from gpushmem import code_store
from gpushmem.backends.codegen import dtype_name
from gpushmem.backends.nvshmem import versions
from gpushmem.backends.nvshmem.operations.device_calls import Value, data_of, intrinsic
from gpushmem.errors import ShmemError

__all__ = ["ALIGNMENT", "THREADS", "Product", "compiled", "has", "multiply", "needed_by"]

THREADS = 128  # of a block: in x, and in all
ALIGNMENT = 16  # bytes: where tiles, and rows of them, have to begin
# Compute capabilities for which libmathdx 0.3 has products.
CAPABILITIES = {
    (7, 5), (8, 0), (8, 6), (8, 7), (8, 9), (9, 0), (10, 0), (10, 3), (11, 0), (12, 0), (12, 1),
}  # fmt: skip
PREFIX = "cublasdx_add_product_"
CALLED = re.compile(rf'declare [^@\n]*@"?{PREFIX}(\w+)"?\(')


class Product(NamedTuple):
    """A product of tiles by rows, (m, k) and (k, n), which is added to sums (m, n)."""

    dtype: str
    sums: str
    m: int
    n: int
    k: int
    leads: tuple[int, int, int]  # elements from one row to the next


def has(capability: Any) -> bool:
    """Whether cuBLASDx is installed and supports a compute capability (None: unknown)."""
    if capability is None or _without or not versions.cublasdx():
        return False
    return tuple(capability[:2]) in CAPABILITIES


_without: list[bool] = []


def do_without() -> None:
    """Let kernels be compiled without it: it is code for GPUs, in no form that others can read."""
    _without[:] = [True]


@cache
def multiply(dtype: Any) -> Any:
    """The intrinsic `(left, right, sums)`: all threads of a block call, after synchronising."""

    def add_product(typingctx: Any, left: Any, right: Any, sums: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            tiles = [data_of(context, builder, v) for v in map(Value, sig.args, args)]
            one = cgutils.alloca_once_value(builder, context.get_constant(sums.dtype, 1))
            given = [one, *tiles[:2], one, tiles[2]]
            kind = ir.FunctionType(ir.VoidType(), [pointer.type for pointer in given])
            name = f"{PREFIX}{dtype_name(dtype)}"
            builder.call(cgutils.get_or_insert_function(builder.module, kind, name), given)
            return context.get_dummy_value()

        return types.void(left, right, sums), codegen

    return intrinsic(add_product)


def needed_by(llvm: Iterable[str]) -> frozenset[str]:
    """The dtypes of the products that modules, given as LLVM's text, call."""
    return frozenset(name for text in llvm for name in CALLED.findall(text))


def compiled(product: Product, arch: str) -> bytes:
    """LTO-IR of a product for an architecture such as sm_90: from the store, or made in 30 seconds.

    The rest of the package is not part of the key, so that changes of it cost nothing.
    """
    packages = (*versions.MATHDX, "nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12")
    makers = tuple((name, versions.installed(name)) for name in packages)
    name = code_store.key("cublasdx", tuple(product), arch, makers, THREADS, ALIGNMENT)
    return code_store.get_or_build(name, lambda: _make(product, arch), bytes, bytes)


# --- libmathdx: numbers of libcublasdx.h and libcommondx.h

SET = {
    "function": 0, "size": 1, "type": 2, "precision": 3, "sm": 4, "execution": 5, "block": 6,
    "leads": 7, "api": 9, "arrangement": 10, "alignment": 11,
}  # fmt: skip
PRECISIONS = {"float16": 3, "bfloat16": 2, "float32": 5, "float64": 6}
PRODUCT, REAL, WHOLE_BLOCK, IN_SHARED_MEMORY, BY_ROWS = 0, 0, 1, 0, 1
SYMBOL_NAME, TARGET_SM, NVRTC_ARGS = 0, 1, 4  # options


@cache
def _library() -> Any:
    for name in ("nvrtc", "mathdx"):  # which is linked with the former, and does not find it
        loaded = load_nvidia_dynamic_lib(name)
    return ctypes.CDLL(loaded.abs_path)


def _call(name: str, *arguments: Any) -> None:
    """Call a function of libmathdx; raises `ShmemError`."""
    library = _library()
    if getattr(library, name)(*arguments) == 0:
        return
    size, status = c_size_t(), c_int()
    library.commondxGetLastErrorStrSize(byref(size))
    text = create_string_buffer(size.value + 1)
    library.commondxGetLastErrorStr(byref(status), size, text)
    raise ShmemError(f"libmathdx: {name}: {text.value.decode(errors='replace')}")


def _handle(create: str) -> c_longlong:
    made = c_longlong()
    _call(create, byref(made))
    return made


def _make(product: Product, arch: str) -> bytes:
    sm = 10 * int(re.sub(r"\D", "", arch))  # code for sm_90 will do for sm_90a
    asked, code = _handle("cublasdxCreateDescriptor"), _handle("commondxCreateCode")
    try:
        _describe(asked, product, sm)
        _call("commondxSetCodeOptionInt64", code, TARGET_SM, c_longlong(sm))
        _call("commondxSetCodeOptionStr", code, NVRTC_ARGS, c_char_p(b"-gen-opt-lto"))
        _call("cublasdxFinalizeCode", code, asked)
        size = c_size_t()
        _call("commondxGetCodeLTOIRSize", code, byref(size))
        found = create_string_buffer(size.value)
        _call("commondxGetCodeLTOIR", code, size, found)
        return found.raw
    finally:
        _call("commondxDestroyCode", code)
        _call("cublasdxDestroyDescriptor", asked)


def _describe(asked: c_longlong, product: Product, sm: int) -> None:
    of_dtype, of_sums = PRECISIONS[product.dtype], PRECISIONS[product.sums]
    operators = {
        "function": [PRODUCT], "execution": [WHOLE_BLOCK], "api": [IN_SHARED_MEMORY],
        "type": [REAL], "precision": [of_dtype, of_dtype, of_sums],
        "size": [product.m, product.n, product.k], "leads": product.leads,
        "arrangement": [BY_ROWS] * 3, "alignment": [ALIGNMENT] * 3,
        "block": [THREADS, 1, 1], "sm": [sm],
    }  # fmt: skip
    for name, values in operators.items():
        n = len(values)
        if n == 1:
            _call("cublasdxSetOperatorInt64", asked, SET[name], c_longlong(values[0]))
        else:
            given = (c_longlong * n)(*values)
            _call("cublasdxSetOperatorInt64s", asked, SET[name], c_size_t(n), given)
    symbol = f"{PREFIX}{product.dtype}".encode()
    _call("cublasdxSetOptionStr", asked, SYMBOL_NAME, c_char_p(symbol))
