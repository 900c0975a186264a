"""A Python function as machine code for a GPU; no GPU and no driver is needed for that.

All that depends on the inside of numba-cuda is in this file, which is for the versions that
`versions` names. numba-cuda makes LTO-IR of the kernel; NVSHMEM's device functions, also as LTO-IR,
are put to it (`shims`), and the linker optimises across both.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from cuda.core import Linker, LinkerOptions, ObjectCode
from numba.cuda import compiler, dispatcher, types
from numba.cuda.cudadrv import nvrtc
from numba.cuda.cudadrv.linkable_code import LinkableCode
from numba.cuda.typing.typeof import typeof_impl

from gpushmem.backends.base import DeviceFunction
from gpushmem.backends.nvshmem import lowering, shims
from gpushmem.backends.nvshmem.native import bindings
from gpushmem.errors import ArgumentError

__all__ = ["Arch", "Compiled", "Linked", "compile_kernel", "link", "link_all"]

# Options of `jit` -> what the compiler calls them. `max_registers` and `debug` are looked at, too.
OPTIONS = {"debug", "fastmath", "forceinline", "launch_bounds", "lineinfo", "max_registers", "opt"}
OLDEST = (7, 5)  # compute capability
IGNORED = {"cache", "inline", "lto"}  # always done, or of no consequence


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


@dataclass(frozen=True)
class Compiled:
    """A kernel's LTO-IR, and what it is to be linked with."""

    entry: str
    ltoir: bytes
    objects: tuple[bytes, ...]  # without NVSHMEM's shims
    shims: frozenset[str]
    cooperative: bool
    arch: Arch
    max_registers: int | None


@dataclass(frozen=True)
class Linked:
    """A kernel as the GPU gets it, or as PTX, and what the linker said of it."""

    code: bytes
    log: str


def compile_kernel(
    py_func: Callable[..., Any], argtypes: tuple[Any, ...], options: dict[str, Any], arch: Arch
) -> Compiled:
    """Compile a kernel for arguments of Numba types; raises Numba's errors."""
    unknown = options.keys() - OPTIONS - IGNORED
    if unknown:
        known = ", ".join(sorted([*OPTIONS, *IGNORED, "collective", "device"]))
        raise ArgumentError(f"jit has no option {', '.join(sorted(unknown))}; it has {known}")
    lowering.install()
    given = {k: v for k, v in options.items() if k in OPTIONS - {"max_registers"}}
    if given.get("debug"):
        given["opt"] = given.get("opt") or False
    cc = (*arch.capability, arch.suffix)
    with _compiling_for(arch), warnings.catch_warnings():
        library, _ = compiler._compile_pyfunc_with_fixup(
            py_func, types.void(*argtypes), device=False, abi="numba", cc=cc, lto=True, **given
        )
        ltoir = library.get_ltoir(cc)
    needed = shims.needed_by(library.llvm_strs)
    objects = (bytes(code) for code in _linked_files(library, cc))
    return Compiled(
        library._entry_name, bytes(ltoir), tuple(objects), needed, library.use_cooperative, arch,
        options.get("max_registers"),
    )  # fmt: skip


def link(compiled: Compiled, kind: str = "cubin") -> Linked:
    """Link with optimisation over all parts: to a "cubin", or to "ptx"."""
    return Linked(compiled.ltoir, "") if kind == "ltoir" else link_all([compiled], kind)


def link_all(kernels: Sequence[Compiled], kind: str = "cubin") -> Linked:
    """Link several kernels, for one architecture and with the same options, to one object."""
    first = kernels[0]
    parts = [part for kernel in kernels for part in (kernel.ltoir, *kernel.objects)]
    needed = frozenset[str]().union(*(kernel.shims for kernel in kernels))
    if needed:
        parts.append(shims.compiled_for(needed, str(first.arch)))
    options = LinkerOptions(
        arch=str(first.arch), link_time_optimization=True, ptx=kind == "ptx" or None,
        max_register_count=first.max_registers, ptxas_options=["-v"],
    )  # fmt: skip
    linker = Linker(*map(ObjectCode.from_ltoir, parts), options=options)
    return Linked(bytes(linker.link(kind).code), linker.get_info_log())


def _linked_files(library: Any, cc: Any) -> Iterator[bytes]:
    """What a kernel's library asks to be linked besides NVSHMEM's shims, as LTO-IR."""
    for found in library._linking_files:
        code = LinkableCode.from_path_or_obj(found)
        if code is bindings.shim_obj:
            continue
        if code.kind != "cu":
            yield code.data
        else:
            yield nvrtc.compile(code.data, code.name, cc, ltoir=True)[0].code


class _Device:
    """What numba-cuda asks the current device for when it compiles a function called by another."""

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
    """Our device functions are numba-cuda's to its compiler."""
    made = function.__dict__.get("cuda")
    if made is None:
        made = function.__dict__["cuda"] = dispatcher.CUDADispatcher(
            function.py_func, targetoptions={"device": True, "opt": True}
        )
    return types.Dispatcher(made)
