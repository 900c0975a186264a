"""The CUDA C++ functions that numba-cuda calls for small floats, by name, as CPU code.

numba-cuda reaches `cuda_fp16.h`, `cuda_bf16.h` and `cuda_fp8.h` through shims, C functions named
like the C++ function they wrap: `_ZL6__hadd6__halfS__nbst(result*, a*, b*)`. The name gives
the operation, the types of its arguments and the format; `half_floats` and `fp8` generate the code.

Source: Itanium C++ ABI, "Mangling".
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any

from llvmlite import ir

from gpushmem.simt.compiler.target import INTRINSICS, SHIM
from gpushmem.simt.intrinsics import fp8, half_floats

__all__ = ["foreign", "shim"]

# C++ class -> format
CLASSES = {
    **half_floats.CLASSES,
    **{f"__nv_fp8{n}_{fmt}": fmt for fmt in fp8.FORMATS for n in ("", "x2", "x4")},
}
# names of operators -> the function that does the same
OPERATORS = {
    "pl": "__hadd", "mi": "__hsub", "ml": "__hmul", "dv": "__hdiv", "pL": "__hadd", "mI": "__hsub",
    "mL": "__hmul", "dV": "__hdiv", "ps": "same", "ng": "__hneg", "eq": "__heq", "ne": "__hneu",
    "gt": "__hgt", "lt": "__hlt", "ge": "__hge", "le": "__hle",
}  # fmt: skip


@cache
def _parse(name: str) -> tuple[str, str, str]:
    """Function, mangled argument types, and format of a shim's name."""
    mangled = name[name.index("_Z") + 2 :].removesuffix("_nbst").removesuffix("_1")
    fmt = "bfloat" if "bfloat16" in mangled else "half"
    if match := re.match(r"NV?K?(\d+)(?P<rest>.*)", mangled):  # a member
        n, rest = int(match[1]), match["rest"]
        fmt, rest = CLASSES.get(rest[:n], fmt), rest[n:]
        if rest.startswith("C1E"):
            return "new", rest[3:], fmt
        return "convert", rest[2:].removesuffix("Ev"), fmt
    if match := re.match(r"L?(\d+)(?P<rest>.*)", mangled):
        n, rest = int(match[1]), match["rest"]
        return rest[:n], rest[n:], "fp8" if rest.startswith("__nv_cvt_") else fmt
    return OPERATORS.get(mangled[:2], mangled), mangled[2:], fmt


def _store(builder: Any, value: ir.Value, pointer: ir.Value) -> None:
    target = pointer.type.pointee
    if isinstance(target, ir.IntType) and isinstance(value.type, ir.IntType):
        if value.type.width < target.width:
            value = builder.zext(value, target)
        elif value.type.width > target.width:
            value = builder.trunc(value, target)
    builder.store(value, builder.bitcast(pointer, value.type.as_pointer()))


# Shims that an embedder generates, by name.
foreign: dict[str, Callable[..., ir.Value]] = {}


def shim(name: str, builder: Any, *args: ir.Value) -> ir.Value:
    """Generate the code of the shim `name`; returns its status, 0."""
    if name in foreign:
        return foreign[name](builder, *args)
    function, types, fmt = _parse(name)
    module: Any = half_floats if fmt in ("half", "bfloat") else fp8
    if function == "new" and module is half_floats:
        args = args[1:]  # an ignored result, before the object to construct
    result, *pointers = args
    values = [builder.load(p) for p in pointers]
    value = module.call(builder, function, types, fmt, values)
    if value is None:
        raise NotImplementedError(f"{function} of {name} on the CPU engine")
    if value is not half_floats.STORED:
        _store(builder, value, result)
    return ir.Constant(ir.IntType(32), 0)


INTRINSICS[SHIM] = shim
