"""Helpers for host calls of operations, on all backends: kernels for them, and copies.

A host call can run the operation as a kernel (`host_kernel`), so that host and kernels share one
implementation.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import cuda

from gpushmem.backends.codegen import with_signature
from gpushmem.backends.host.call_checks import check_contiguous, check_copy, check_strided
from gpushmem.backends.operation_errors import BAD_AMOUNT, error_of
from gpushmem.errors import ArgumentError, BackendUnavailable
from gpushmem.ops import OPS, SMEM_BYTES, Op
from gpushmem.ops.roles import Reduction
from gpushmem.ops.row import ON_THE_HOST, Effect
from gpushmem.ops.team import Team

Array = np.ndarray[Any, Any]
Copy = Callable[[Array, Array], object]


def no_modules(backend: str) -> BackendUnavailable:
    """The error of a backend that runs no code of other compilers."""
    return BackendUnavailable(
        f"init_module: the backend {backend} runs no machine code of GPUs: use the backend "
        "nvshmem, on a GPU"
    )


def row_of(op: Op) -> Op:
    """The row that a kernel for a host's call has: of the block, if threads have none."""
    return op if op.kernel else OPS[f"{op.base}_block"]


def host_kernel(op: Op, params: tuple[str, ...], reduction: str | None, returns: bool) -> Any:
    """A kernel that calls the operation: its parameters are an array for the result and `params`.

    `reduction` is the argument `op` of a reduction, which must be a literal in kernels.
    """
    operation = row_of(op).function

    @cuda.jit(device=True)
    def call(given: Any) -> None:
        operation(*given[1:])

    @cuda.jit(device=True)
    def store(given: Any) -> None:
        given[0][0] = operation(*given[1:])

    @cuda.jit(device=True)
    def reduce(given: Any) -> None:
        _, team, dst, src = given
        operation(team, dst, src, reduction)

    body = reduce if reduction else store if returns else call
    kernel = with_signature(op.name, ["out", *params], body)
    kernel.__name__, kernel.__module__ = f"{op.name}{ON_THE_HOST}", __name__
    return kernel


def kernel_arguments(op: Op, arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments as kernels take them: a team is its number, and a timeout of None is left out.

    A wait without a timeout is another kernel.
    """
    return {
        k: int(v) if isinstance(v, Team) else v
        for k, v in arguments.items()
        if k != "timeout_ns" or v is not None
    }


def split_reduction(op: Op, arguments: dict[str, Any]) -> tuple[str | None, dict[str, Any]]:
    """The argument that names a reduction, None if the operation has none; and the others."""
    others = dict(arguments)
    return next((others.pop(name) for name in op.named(Reduction)), None), others


def not_compiled(op: Op, arguments: dict[str, Any], error: Exception) -> ArgumentError:
    """The error for arguments for which no kernel can be compiled, with the operation's reason."""
    said = re.search(rf"{op.base}(?:_block)?(: [^\n]*)", str(error))
    shown = ", ".join(f"{name}={_shown(value)}" for name, value in arguments.items())
    return ArgumentError(f"{op.base}{said[1]}" if said else f"{op.name} cannot take {shown}")


def _shown(value: Any) -> str:
    if hasattr(value, "dtype") and hasattr(value, "strides") and not np.isscalar(value):
        return f"array of {value.dtype}, shape {value.shape}"
    return repr(value)


def result_dtype(op: Op, arguments: dict[str, Any]) -> Any:
    """The dtype of what a call returns, None if it returns nothing."""
    dtype = op.result(timed=arguments.get("timeout_ns") is not None)
    return arguments[next(iter(op.arrays))].dtype if dtype == "element" else dtype


def ask_smem(amount: int) -> int:
    """The host's `ask_smem`."""
    if not 0 <= amount < len(SMEM_BYTES):
        raise error_of(BAD_AMOUNT, "ask_smem", amount)
    return SMEM_BYTES[amount]


def multiply_batched(dst: Array, a: Array, b: Array, accumulate: bool) -> None:
    """The host's `gemm_batched`, in host memory."""
    wide = np.float32 if dst.dtype.itemsize < 4 else dst.dtype
    with np.errstate(all="ignore"):  # as libraries: they say nothing of NaN
        product = a.astype(wide, copy=False) @ b.astype(wide, copy=False)
        dst[...] = dst.astype(wide, copy=False) + product if accumulate else product


def multiply_scaled(
    dst: Array, a: Array, b: Array, scale_a: Array, scale_b: Array, accumulate: bool
) -> None:
    """The host's `gemm_scaled`, in host memory."""
    one = np.float32
    product = a.astype(one) @ b.astype(one)
    for scale in (scale_a, scale_b):
        product *= scale.reshape(1, 1) if scale.size == 1 else scale
    dst[...] = dst.astype(one) + product if accumulate else product


# --- copies in host memory; `target` and `source` are the remote elements


def copy_to(name: str, target: Array, src: Array, copy: Copy = np.copyto) -> None:
    """Copy all of `src` to the first elements of `target`, by `copy(dst, src)`."""
    check_copy(name, target, src, "target", target.size, src.size)
    check_contiguous(name, "src", src)
    copy(target[: src.size], src.reshape(-1))


def copy_from(name: str, dst: Array, source: Array, copy: Copy = np.copyto) -> None:
    """Copy the first elements of `source` to all of `dst`, by `copy(dst, src)`."""
    check_copy(name, dst, source, "source", source.size, dst.size)
    check_contiguous(name, "dst", dst)
    copy(dst.reshape(-1), source[: dst.size])


def copy_strided(
    name: str, dst: Any, src: Any, dst_stride: int, src_stride: int, nelems: int
) -> None:
    """Copy `nelems` elements with strides."""
    check_strided(name, dst, src, dst_stride, src_stride, nelems)
    target, source = (
        array.reshape(-1)[: (nelems - 1) * stride + 1 if nelems else 0 : stride]
        for array, stride in ((dst, dst_stride), (src, src_stride))
    )
    target[:] = source


def nbytes_of(effect: Effect, arguments: dict[str, Any]) -> int:
    """Bytes that an effect covers, from the start of its array."""
    if effect.extent == "0":
        count = 1
    elif effect.extent == "stride":
        n, stride = arguments["nelems"], arguments[f"{effect.array}_stride"]
        count = (n - 1) * stride + 1 if n else 0
    else:
        count = int(arguments[effect.extent].size)
    return count * int(arguments[effect.array].dtype.itemsize)
