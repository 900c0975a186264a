"""NVSHMEM's device functions as objects to link with: C++ shims, compiled by NVRTC to LTO-IR.

The bindings have a shim for each function, as text. NVRTC needs seconds for NVSHMEM's headers and
hardly any time for shims, so those of all operations but reductions are compiled together, once for
an architecture, and the linker takes the ones that a kernel uses. Reductions are large: a kernel
with reductions gets an object of exactly the shims it uses. (Two objects cannot be linked: both
would define NVSHMEM's state.)
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from cuda.core import Program, ProgramOptions
from cuda.pathfinder import find_nvidia_header_directory
from nvshmem.bindings.device.numba import _numbast as bindings

from gpushmem import code_store
from gpushmem.backends.nvshmem import versions
from gpushmem.backends.nvshmem.operations.device_calls import EXTRA, functions_of
from gpushmem.backends.nvshmem.operations.elements import FUNCTIONS
from gpushmem.ops import OPS
from gpushmem.ops.row import Op

__all__ = ["compiled", "compiled_for", "needed_by"]

# The C++ of each shim in the bindings' source, and the Python name it is for.
SHIM = re.compile(r'shim_raw_str = """(.*?)"""\s+@lower\((\w+),', re.DOTALL)
SYMBOL = re.compile(r"extern \"C\" __device__ int\s+(\w+)\(")
DECLARED = re.compile(r'declare [^@\n]*@"?(\w+_nbst|gpushmem_\w+)"?\(')
HEADER = "#define __NVSHMEM_NUMBA_SUPPORT__\n#include <entry_point.h>\n"
GIVES = "#define SMEM_IS_GIVEN\n"  # the kernel gives NVSHMEM shared memory
STATE = "__device__ unsigned long gpushmem_workspace;\n"


def needed_by(llvm: Iterable[str]) -> frozenset[str]:
    """NVSHMEM's shims called by modules, given as LLVM's text; numba-cuda links its own."""
    return frozenset(name for text in llvm for name in DECLARED.findall(text)) & _texts().keys()


def compiled_for(needed: frozenset[str], arch: str) -> bytes:
    """LTO-IR that contains the shims `needed`, for an architecture: sm_90."""
    symbols = _core() if needed.issubset(_core()) else needed
    texts = _texts()
    gives = any(texts[symbol][0] == "give_smem" for symbol in needed)
    shims = "".join(texts[symbol][1] for symbol in sorted(symbols))
    return compiled(HEADER + GIVES * gives + STATE + shims, arch)


def compiled(source: str, arch: str) -> bytes:
    """C++ as LTO-IR: from the store, or compiled and kept there."""
    name = code_store.key("shims", source, arch, versions.compilers())
    return code_store.get_or_build(name, lambda: _compile(source, arch), bytes, bytes)


@cache
def _texts() -> dict[str, tuple[str, str]]:
    """Symbol of each shim -> the Python name it is for, and its text."""
    found = {}
    for text, name in SHIM.findall(Path(bindings.__file__).read_text()):
        symbol = SYMBOL.search(text)
        if symbol is not None:
            found[symbol[1]] = (name, text)
    for name, extra in EXTRA.items():
        found[name] = (name, f'extern "C" __device__ {extra.source}\n')
    return found


@cache
def _core() -> frozenset[str]:
    """The shims of all operations but reductions."""
    from gpushmem.backends.nvshmem.operations.lowering import CALLS  # noqa: PLC0415  (which uses `device_calls`)

    names = set(EXTRA)
    for op in OPS.values():
        if op.base in CALLS and "{op}" not in CALLS[op.base].name:
            names |= set(_expanded(CALLS[op.base].name, op))
    names |= {name.format(bits) for name in FUNCTIONS for bits in (8, 16, 32, 64)}
    return frozenset(symbol for symbol, (name, _) in _texts().items() if name in names)


def _expanded(pattern: str, op: Op) -> Iterable[str]:
    """All functions that an entry of `CALLS` can call."""
    if "{ctype}" in pattern:
        return functions_of(pattern).values()
    widths = ("8", "16", "32", "64", "128") if "{width}" in pattern else ("8", "32", "64")
    return {pattern.format(form=op.form, unit=width, width=width) for width in widths}


def _compile(source: str, arch: str) -> bytes:
    options = ProgramOptions(
        std="c++17", arch=arch, link_time_optimization=True, relocatable_device_code=True,
        include_path=_include_path(), name="gpushmem_shims",
    )  # fmt: skip
    return bytes(Program(source, "c++", options).compile("ltoir").code)


def _include_path() -> list[str]:
    folders = [find_nvidia_header_directory(name) for name in ("nvshmem", "cccl", "cudart")]
    return [*filter(None, folders), str(Path(bindings.__file__).parent)]
