"""Compile a kernel to machine code for a GPU, without a GPU or a driver, by either compiler.

numba-cuda (`numba_cuda`) and numba-cuda-mlir (`mlir`) have one function each, `compile_kernel`,
which makes a `Compiled`; from there on there is one way (`linking`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpushmem.artifacts.compiler_choice import MLIR, translated
from gpushmem.backends.nvshmem import versions
from gpushmem.backends.nvshmem.compile import numba_cuda
from gpushmem.backends.nvshmem.compile.linking import Arch, Compiled, link, link_all
from gpushmem.backends.nvshmem.compile.options import check_options, compiler_of

__all__ = ["Arch", "Compiled", "compile_kernel", "link", "link_all"]


def compile_kernel(
    py_func: Callable[..., Any], argtypes: tuple[Any, ...], options: dict[str, Any], arch: Arch,
    traced: bool = False, which: str | None = None,
) -> Compiled:  # fmt: skip
    """Compile a kernel for arguments of Numba types, with code that records what it does if asked.

    `which` of the compilers does so; by default the one that `compiler_of` names. Raises Numba's
    errors.
    """
    check_options(options)
    which = which or compiler_of(py_func)
    if which != MLIR:
        own = translated(py_func, which)
        return numba_cuda.compile_kernel(own, argtypes, options, arch, traced)
    versions.check_mlir()
    own = translated(py_func, which)
    from gpushmem.backends.nvshmem.compile import mlir  # noqa: PLC0415  (imports numba-cuda-mlir)

    return mlir.compile_kernel(own, argtypes, options, arch, traced)
