"""Calls of NVSHMEM's device functions, as nvshmem4py's generated bindings declare them.

`nvshmem.bindings.device.numba` has a function and a C++ shim for each of NVSHMEM's device
functions. This module finds a function's signature by its name, and generates calls of it.
Functions that the bindings lack have a shim here (`EXTRA`).
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from llvmlite import ir
from numba.cuda import cgutils, types
from numba.cuda.core.errors import NumbaTypeError
from numba.cuda.core.targetconfig import ConfigStack
from numba.cuda.descriptor import cuda_target
from numba.cuda.extending import _Intrinsic as Intrinsic
from numba.cuda.flags import Flags
from nvshmem.bindings.device.numba import _numbast as bindings

# dtype -> its names in NVSHMEM's typed functions; the first that exists is used.
CTYPES = {
    "int8": ("int8", "schar"), "int16": ("int16", "short"), "int32": ("int32", "int"),
    "int64": ("int64", "long"), "uint8": ("uint8", "uchar"), "uint16": ("uint16", "ushort"),
    "uint32": ("uint32", "uint"), "uint64": ("uint64", "ulong"), "float16": ("half",),
    "__nv_bfloat16": ("bfloat16",), "float32": ("float",), "float64": ("double",),
}  # fmt: skip


class Extra(NamedTuple):
    """A device function that has no binding: C++ of its shim, Numba types of the call."""

    result: Any
    arguments: tuple[Any, ...]
    source: str


# Over IBGDA, NVSHMEM 3.8 takes a list of one queue pair for the default ones: its length is the
# number of those (ibgda_device.cuh, nvshmemi_ibgda_qp_quiet). Twice the same is another list.
QP_QUIET = """void gpushmem_qp_quiet{0}(int pe, unsigned long qps, unsigned long n) {{
    nvshmemx_qp_handle_t *given = (nvshmemx_qp_handle_t *)qps;
    if (n == 1) {{
        nvshmemx_qp_handle_t twice[2] = {{given[0], given[0]}};
        nvshmemx_qp_quiet{0}(pe, twice, 2);
    }} else {{
        nvshmemx_qp_quiet{0}(pe, given, (int)n);
    }}
}}"""
EXTRA = {
    "gpushmem_ptr": Extra(
        types.uint64, (types.uint64, types.int32),
        "unsigned long gpushmem_ptr(unsigned long address, int pe)"
        " { return (unsigned long)nvshmem_ptr((void*)address, pe); }",
    ),
    "gpushmem_mc_ptr": Extra(
        types.uint64, (types.int32, types.uint64),
        "unsigned long gpushmem_mc_ptr(int team, unsigned long address)"
        " { return (unsigned long)nvshmemx_mc_ptr(team, (void*)address); }",
    ),
    **{
        f"gpushmem_qp_quiet{form}": Extra(
            types.void, (types.int32, types.uint64, types.uint64), QP_QUIET.format(form)
        )
        for form in ("", "_warp", "_block")
    },
    # Symmetric memory in which `collect` exchanges sizes; the host sets its address.
    "gpushmem_words": Extra(
        types.uint64, (),
        "unsigned long gpushmem_words()"
        " { extern __device__ unsigned long gpushmem_workspace; return gpushmem_workspace; }",
    ),
    # See `ordering`; `shims` defines the macro.
    "gpushmem_before_tma": Extra(
        types.int32, (),
        """int gpushmem_before_tma() {
#if defined(SMEM_IS_GIVEN) && __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.global; fence.proxy.async.shared::cta;" ::: "memory");
#endif
    return 0;
}""",
    ),
    "gpushmem_after_tma": Extra(
        types.int32, (),
        """int gpushmem_after_tma() {
#if defined(SMEM_IS_GIVEN) && __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
#endif
    return 0;
}""",
    ),
    "gpushmem_release_smem": Extra(
        types.int32, (),
        """int gpushmem_release_smem() {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    __syncthreads();
    nvshmemx_release_smem();
    __syncthreads();
#endif
    return 0;
}""",
    ),
}  # fmt: skip


class Value(NamedTuple):
    """A value in the code that is being made."""

    type: Any
    code: Any


@cache
def signature_of(name: str) -> Any:
    """Numba's signature of a device function, NVSHMEM's or ours; None if there is none."""
    if name in EXTRA:
        return EXTRA[name].result(*EXTRA[name].arguments)
    template = getattr(bindings, f"_typing_{name}", None)
    return None if template is None else template.cases[0]


def function_for(what: str, dtype: Any, pattern: str) -> str:
    """The function that `pattern`, with {ctype}, names for a dtype; raises `NumbaTypeError`."""
    there = functions_of(pattern)
    if str(dtype) not in there:
        raise NumbaTypeError(
            f"{what}: NVSHMEM has it for arrays of {', '.join(there) or 'nothing'} on GPUs, "
            f"not of {dtype}"
        )
    return there[str(dtype)]


@cache
def functions_of(pattern: str) -> dict[str, str]:
    """The existing functions named by `pattern`, with {ctype}, by dtype."""
    found = {}
    for dtype, ctypes in CTYPES.items():
        names = (pattern.format(ctype=ctype) for ctype in ctypes)
        name = next((name for name in names if signature_of(name) is not None), None)
        if name is not None:
            found[dtype] = name
    return found


def intrinsic(definition: Any) -> Any:
    """Make an intrinsic for kernels on GPUs."""
    made = Intrinsic(definition.__name__, definition)
    made._register()
    return made


def compute_capability() -> Any:
    """Of the GPUs that are compiled for now; None if it is not known."""
    flags = ConfigStack.top_or_none()
    return getattr(flags, "compute_capability", None) if isinstance(flags, Flags) else None


def itemsize_of(array: Any) -> int:
    """Bytes of an array's element."""
    context = cuda_target.target_context
    return int(context.get_abi_sizeof(context.get_data_type(array.dtype)))


def unit_of(itemsize: int) -> int:
    """Bytes of the unit in which copies are counted.

    Not 2: NVSHMEM 3.7 declares put16_signal_block, but does not define it.
    """
    return next(unit for unit in (8, 4, 1) if itemsize % unit == 0)


def data_of(context: Any, builder: Any, array: Value) -> Any:
    """Pointer to an array's element 0."""
    return context.make_array(array.type)(context, builder, array.code).data


def call(context: Any, builder: Any, name: str, values: list[Value]) -> Any:
    """Call NVSHMEM's device function `name`; arrays are given as the address of their data."""
    extra = EXTRA.get(name)
    if extra is not None:
        given = [_as(context, builder, v, t) for v, t in zip(values, extra.arguments, strict=True)]
        result, *kinds = map(context.get_value_type, (extra.result, *extra.arguments))
        kind = ir.FunctionType(result, kinds)
        return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), given)
    signature = signature_of(name)
    given = [_as(context, builder, v, t) for v, t in zip(values, signature.args, strict=True)]
    return context.get_function(getattr(bindings, name), signature)(builder, given)


def _as(context: Any, builder: Any, value: Value, typ: Any) -> Any:
    """A value converted to the type that a function takes."""
    kind = context.get_value_type(typ)
    is_pointer = isinstance(typ, types.CPointer)
    if isinstance(value.type, types.NoneType):
        return ir.Constant(kind, None)
    if isinstance(value.type, types.Array):
        data = data_of(context, builder, value)
        return builder.bitcast(data, kind) if is_pointer else builder.ptrtoint(data, kind)
    if is_pointer:
        return builder.bitcast(value.code, kind)
    return context.cast(builder, value.code, value.type, typ)
