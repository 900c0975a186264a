"""Compile a Python function to machine code for a GPU, without a GPU or a driver.

All code that depends on numba-cuda's internals is in this file, for the versions that `versions`
names. numba-cuda compiles the kernel to LTO-IR; NVSHMEM's device functions, also LTO-IR, are linked
with it (`shims`), and the linker optimises across both.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from cuda.core import Linker, LinkerOptions, ObjectCode
from numba.cuda import compiler, dispatcher, types, utils
from numba.cuda.core.errors import TypingError
from numba.cuda.core.options import FastMathOptions
from numba.cuda.core.targetconfig import ConfigStack
from numba.cuda.cudadrv import nvvm
from numba.cuda.cudadrv.linkable_code import LinkableCode
from numba.cuda.cudadrv.mappings import FILE_EXTENSION_MAP
from numba.cuda.flags import CUDAFlags
from numba.cuda.typing.typeof import typeof_impl
from nvshmem.bindings.device.numba import _numbast as bindings

from gpushmem.artifacts.origin import MLIR, translated
from gpushmem.artifacts.refusal import as_kernel_error
from gpushmem.backends.base import DeviceFunction
from gpushmem.backends.nvshmem import versions
from gpushmem.backends.nvshmem.compile import aot, shims
from gpushmem.backends.nvshmem.operations import gemm, lowering, mathdx
from gpushmem.backends.nvshmem.trace import recording
from gpushmem.errors import ArgumentError

__all__ = [
    "Arch", "Compiled", "Linked", "Part", "compile_function", "compile_kernel", "grid_sync", "link",
    "link_all", "linked_file", "typing_for",
]  # fmt: skip

# Options of `jit` -> the compiler's names. `max_registers` and `debug` are read elsewhere.
OPTIONS = {"debug", "fastmath", "forceinline", "launch_bounds", "lineinfo", "max_registers", "opt"}
# Of libcudadevrt, beside whose machine code the linker keeps all of NVSHMEM's, for minutes.
GRID_SYNC = "cudaCGGetIntrinsicHandle"
GRID_SYNC_SOURCE = """#include <cooperative_groups.h>
extern "C" __device__ unsigned long long cudaCGGetIntrinsicHandle(cudaCGScope) { return 1; }
extern "C" __device__ cudaError_t cudaCGSynchronize(unsigned long long, unsigned) {
    cooperative_groups::this_grid().sync();
    return cudaSuccess;
}
"""
# numba-cuda's kinds of files -> cuda.core's
KINDS = {
    FILE_EXTENSION_MAP[ending]: kind
    for ending, kind in {
        "o": "object", "ptx": "ptx", "a": "library", "cubin": "cubin", "fatbin": "fatbin",
        "ltoir": "ltoir",
    }.items()
}  # fmt: skip
DEBUG_FLAG = ('!{ i32 2, !"Debug Info Version"', '!{ i32 1, !"Debug Info Version"')
OLDEST = (7, 5)  # compute capability
IGNORED = {"cache", "inline", "lto"}  # always on, or without effect


@dataclass(frozen=True)
class Arch:
    """An architecture, such as sm_90 or sm_90a."""

    major: int
    minor: int
    suffix: str = ""

    @classmethod
    def of(cls, text: str) -> Arch:
        """Read "sm_90", "sm_100a", "90" or "9.0"; raises `ArgumentError`."""
        match = re.fullmatch(r"(?:sm_|compute_)?(\d+)\.?(\d)([af]?)", text.strip())
        if match is None:
            raise ArgumentError(f"{text!r} is not an architecture: write it as sm_90 or sm_100a")
        major, minor = int(match[1]), int(match[2])
        if (major, minor) < OLDEST:
            raise ArgumentError(
                f"{text!r}: NVSHMEM 3 has device functions for sm_{OLDEST[0]}{OLDEST[1]} and newer"
            )
        return cls(major, minor, match[3])

    @property
    def capability(self) -> tuple[int, int]:
        """The compute capability."""
        return self.major, self.minor

    def __str__(self) -> str:
        return f"sm_{self.major}{self.minor}{self.suffix}"


class Part(NamedTuple):
    """Something to be linked: "ltoir", "cubin", "library" or another of cuda.core's kinds."""

    kind: str
    code: bytes


@dataclass(frozen=True)
class Compiled:
    """A kernel's own code, and what to link it with."""

    entry: str
    parts: tuple[Part, ...]  # its own first; without NVSHMEM's shims
    shims: frozenset[str]
    products: frozenset[str]  # the dtypes of cuBLASDx's that it calls
    cooperative: bool
    arch: Arch
    max_registers: int | None
    trace: dict[str, Any] | None  # what numbers in its events mean, if it is traced


@dataclass(frozen=True)
class Linked:
    """A kernel as a cubin or PTX, and the linker's log."""

    code: bytes
    log: str


def compile_kernel(
    py_func: Callable[..., Any], argtypes: tuple[Any, ...], options: dict[str, Any], arch: Arch,
    traced: bool = False, which: str | None = None,
) -> Compiled:  # fmt: skip
    """Compile a kernel for arguments of Numba types, with code that records what it does if asked.

    `which` of the compilers does so; by default the one that `aot.compiler_of` names. Raises
    Numba's errors.
    """
    unknown = options.keys() - OPTIONS - IGNORED
    if unknown:
        known = ", ".join(sorted([*OPTIONS, *IGNORED, *aot.OF_LAUNCHES, "device"]))
        raise ArgumentError(f"jit has no option {', '.join(sorted(unknown))}; it has {known}")
    which = which or aot.compiler_of(py_func)
    if which == MLIR:
        versions.check_mlir()
    py_func = translated(py_func, which)
    if which == MLIR:
        from gpushmem.backends.nvshmem.compile import mlir  # noqa: PLC0415  (imports numba-cuda-mlir)

        return mlir.compile_kernel(py_func, argtypes, options, arch, traced)
    lowering.install()
    cc = (*arch.capability, arch.suffix)
    with _compiling_for(arch), recording.compiling(traced), warnings.catch_warnings():
        library = _library(py_func, argtypes, options, cc, traced)
        own = Part("ltoir", bytes(library.get_ltoir(cc)))
    entry, llvm = library._entry_name, library.llvm_strs
    return Compiled(
        entry, (own, *_other_parts(library, str(arch))),
        shims.needed_by(llvm), mathdx.needed_by(llvm), library.use_cooperative, arch,
        options.get("max_registers"),
        recording.about(llvm, entry, py_func.__name__) if traced else None,
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
        recording.instrument(kernel)
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
    with _compiling_for(arch), recording.compiling(False), warnings.catch_warnings():
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
    if recording.is_called(library.llvm_strs):
        yield Part("ltoir", shims.compiled(recording.SOURCE, arch))
    # Kernels that wait are cooperative, too, and do without: it would triple their code.
    if any(GRID_SYNC in text for text in library.llvm_strs):
        yield grid_sync(arch)


def grid_sync(arch: str) -> Part:
    """What a grid's barrier calls."""
    return Part("ltoir", shims.compiled(GRID_SYNC_SOURCE, arch))


def linked_file(file: Any, arch: str) -> Part:
    """A file that a kernel links: a path, or numba-cuda's object for its contents."""
    found = LinkableCode.from_path_or_obj(file)
    data = found.data.encode() if isinstance(found.data, str) else found.data
    if found.kind == "cu":
        return Part("ltoir", shims.compiled(data.decode(), arch))
    return Part(KINDS.get(found.kind, found.kind), data)


def link(compiled: Compiled, kind: str = "cubin") -> Linked:
    """Link with optimisation over all parts: to a "cubin", or to "ptx"."""
    if kind == "ltoir":
        return Linked(compiled.parts[0].code, "")
    return link_all([compiled], kind)


def link_all(kernels: Sequence[Compiled], kind: str = "cubin") -> Linked:
    """Link several kernels, for one architecture and with the same options, to one object."""
    first = kernels[0]
    parts = list(dict.fromkeys(part for kernel in kernels for part in kernel.parts))
    needed = frozenset[str]().union(*(kernel.shims for kernel in kernels))
    if needed:
        parts.append(Part("ltoir", shims.compiled_for(needed, str(first.arch))))
    products = frozenset[str]().union(*(kernel.products for kernel in kernels))
    parts += [Part("ltoir", gemm.compiled(name, str(first.arch))) for name in sorted(products)]
    if kind == "ptx":  # libraries are linked with the user's program
        parts = [part for part in parts if part.kind != "library"]
    options = LinkerOptions(
        arch=str(first.arch), link_time_optimization=True, ptx=kind == "ptx" or None,
        max_register_count=first.max_registers, ptxas_options=["-v"],
    )  # fmt: skip
    objects = [getattr(ObjectCode, f"from_{part.kind}")(part.code) for part in parts]
    linker = Linker(*objects, options=options)
    return Linked(bytes(linker.link(kind).code), linker.get_info_log())


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
