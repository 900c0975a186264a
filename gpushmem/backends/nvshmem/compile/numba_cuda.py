"""Kernels compiled by numba-cuda, without a GPU or a driver.

All code that depends on numba-cuda's internals is in this file, for the versions that `versions`
names. It compiles the kernel to LTO-IR, in which operations are calls of NVSHMEM's device functions
(`operations.lowering`).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from numba.cuda import compiler, dispatcher, types, utils
from numba.cuda.core.errors import TypingError
from numba.cuda.core.options import FastMathOptions
from numba.cuda.core.targetconfig import ConfigStack
from numba.cuda.cudadrv import nvvm
from numba.cuda.flags import CUDAFlags
from numba.cuda.typing.typeof import typeof_impl
from nvshmem.bindings.device.numba import _numbast as bindings

from gpushmem.artifacts.compile_errors import as_kernel_error
from gpushmem.backends.base import DeviceFunction
from gpushmem.backends.nvshmem.compile import shims
from gpushmem.backends.nvshmem.compile.linking import (
    GRID_SYNC,
    Arch,
    Compiled,
    Part,
    grid_sync,
    linked_file,
)
from gpushmem.backends.nvshmem.operations import lowering, mathdx
from gpushmem.backends.nvshmem.trace import instrumentation

__all__ = ["compile_function", "compile_kernel", "typing_for"]

DEBUG_FLAG = ('!{ i32 2, !"Debug Info Version"', '!{ i32 1, !"Debug Info Version"')


def compile_kernel(
    py_func: Callable[..., Any], argtypes: tuple[Any, ...], options: dict[str, Any], arch: Arch,
    traced: bool,
) -> Compiled:  # fmt: skip
    """Compile a kernel for arguments of Numba types, with code that records what it does if asked.

    Raises Numba's errors.
    """
    lowering.install()
    cc = (*arch.capability, arch.suffix)
    with _compiling_for(arch), instrumentation.compiling(traced), warnings.catch_warnings():
        library = _library(py_func, argtypes, options, cc, traced)
        own = Part("ltoir", bytes(library.get_ltoir(cc)))
    entry, llvm = library._entry_name, library.llvm_strs
    return Compiled(
        entry, (own, *_other_parts(library, str(arch))),
        shims.needed_by(llvm), mathdx.needed_by(llvm), library.use_cooperative, arch,
        options.get("max_registers"),
        instrumentation.about(llvm, entry, py_func.__name__) if traced else None,
    )  # fmt: skip


def _library(
    py_func: Callable[..., Any], argtypes: tuple[Any, ...], options: dict[str, Any], cc: Any,
    traced: bool,
) -> Any:  # fmt: skip
    """Compile the kernel with numba-cuda, in the same steps as its own kernels.

    But `debug` adds checks and lines only, no debug information, which NVVM's linker rejects; and
    of flags in `fastmath` only "fast" is one of NVVM's: a GPU contracts products and sums anyway.
    """
    debug = bool(options.get("debug"))
    fastmath = "fast" in FastMathOptions(options.get("fastmath", False)).flags
    opt = 3 if options.get("opt", True) else 0
    try:
        made = compiler.compile_cuda(
            py_func, types.void, argtypes, debug=debug,
            lineinfo=debug or bool(options.get("lineinfo")), fastmath=fastmath,
            nvvm_options={"fastmath": fastmath, "opt": opt, "gen-lto": None}, cc=cc, lto=True,
        )  # fmt: skip
    except TypingError as error:
        raise as_kernel_error(error, py_func) from None
    library = made.library
    library._entry_name = made.fndesc.llvm_func_name
    kernel = library.get_function(library._entry_name)
    compiler.kernel_fixup(kernel, debug)
    if traced:
        instrumentation.instrument(kernel)
    nvvm.set_launch_bounds(kernel, options.get("launch_bounds"))
    # The same metadata as in the code that NVRTC makes, or the linker refuses both together.
    library._llvm_strs = [text.replace(*DEBUG_FLAG) for text in library.llvm_strs]
    return library


@contextmanager
def typing_for(arch: Arch) -> Iterator[None]:
    """In this block numba-cuda can be asked for the types of calls in kernels."""
    flags = CUDAFlags()
    flags.compute_capability = (*arch.capability, arch.suffix)
    with _compiling_for(arch), utils.numba_target_override(), ConfigStack().enter(flags):
        yield


def compile_function(
    py_func: Callable[..., Any], n_words: int, name: str, arch: Arch
) -> Compiled:  # fmt: skip
    """Compile a function of 64-bit integers that returns one, with C's calling convention."""
    cc = (*arch.capability, arch.suffix)
    with _compiling_for(arch), instrumentation.compiling(False), warnings.catch_warnings():
        library = compiler.compile_cuda(
            py_func, types.int64, (types.int64,) * n_words,
            nvvm_options={"fastmath": False, "opt": 3, "gen-lto": None}, cc=cc, lto=True,
            abi="c", abi_info={"abi_name": name},
        ).library  # fmt: skip
        library._llvm_strs = [text.replace(*DEBUG_FLAG) for text in library.llvm_strs]
        own = Part("ltoir", bytes(library.get_ltoir(cc)))
    llvm = library.llvm_strs
    return Compiled(
        name, (own, *_other_parts(library, str(arch))), shims.needed_by(llvm),
        mathdx.needed_by(llvm), library.use_cooperative, arch, None, None,
    )  # fmt: skip


def _other_parts(library: Any, arch: str) -> Iterator[Part]:
    """The files a kernel's library links besides NVSHMEM's shims."""
    files = [f for f in library._linking_files if f is not bindings.shim_obj]
    if any(name in text for text in library.llvm_strs for name in dispatcher.reshape_funcs):
        files.append(str(Path(dispatcher.__file__).parent / "reshape_funcs.cu"))
    yield from (linked_file(file, arch) for file in files)
    if instrumentation.is_called(library.llvm_strs):
        yield Part("ltoir", shims.compiled(instrumentation.SOURCE, arch))
    # Kernels that wait are cooperative, too, and do without: it would triple their code.
    if any(GRID_SYNC in text for text in library.llvm_strs):
        yield grid_sync(arch)


class _Device:
    """Stands for the current device, whose capability numba-cuda asks for on nested functions."""

    def __init__(self, capability: Any) -> None:
        self.compute_capability = capability


@contextmanager
def _compiling_for(arch: Arch) -> Iterator[None]:
    asked = dispatcher.get_current_device
    dispatcher.get_current_device = lambda: _Device((*arch.capability, arch.suffix))
    try:
        yield
    finally:
        dispatcher.get_current_device = asked


@typeof_impl.register(DeviceFunction)
def _(function: DeviceFunction, context: Any) -> Any:
    """Device functions of `jit` are compiled as numba-cuda's."""
    made = function.__dict__.get("cuda")
    if made is None:
        made = function.__dict__["cuda"] = dispatcher.CUDADispatcher(
            function.py_func, targetoptions={"device": True, "opt": True}
        )
    return types.Dispatcher(made)
