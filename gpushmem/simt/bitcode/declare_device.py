"""Functions declared with `cuda.declare_device`, taken from bitcode.

On a GPU numba-cuda links the files that the declaration names: CUDA C++, PTX, LTO-IR, objects. A
CPU cannot run these, but the LLVM bitcode that clang makes of the same source (`clang++ -x cuda
--cuda-device-only --cuda-gpu-arch=sm_80 -emit-llvm -c filter.cu -o filter.bc`): a function that is
declared with "filter.cu" is looked for in "filter.bc", beside it.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable
from functools import cache, partial
from pathlib import Path
from typing import Any

from llvmlite import ir

from gpushmem.errors import BackendUnavailable
from gpushmem.simt.compiler.target import DECLARED, INTRINSICS, SITE_ARG

__all__ = ["find"]

i32 = ir.IntType(32)
SAME = 1.0  # seconds between two files that were made together


@cache
def _library(path: Path, modified: int) -> Any:
    from gpushmem.simt.bitcode.library import Bitcode  # noqa: PLC0415  (few programs need it)

    return Bitcode(path)


def find(name: str, files: Iterable[Any]) -> str:
    """The symbol by which kernels call a declared function: its name if no files are linked.

    A symbol that stands for nothing says which file is missing, in the engine's error.
    """
    linked = [Path(f) for f in files if isinstance(f, str | os.PathLike)]
    paths = [path.with_suffix(".bc") for path in linked]
    for path, of in zip(paths, linked, strict=True):
        if path.exists():
            if of.exists() and of.stat().st_mtime > path.stat().st_mtime + SAME:
                warnings.warn(
                    f"{path} is older than {of}, whose functions it has for a CPU: make it again",
                    stacklevel=2,
                )
            symbol = f"{name} of {path}"
            library = _library(path.resolve(), path.stat().st_mtime_ns)
            INTRINSICS[symbol] = partial(_call, library, name)
            return symbol
    return f"{name} (for a CPU from {paths[0]}, which is not there)" if paths else name


def _call(library: Any, name: str, builder: Any, result: Any, *given: Any) -> ir.Value:
    """A call by Numba's convention, in which the result is stored and a status returned, or C's."""
    arguments = given[SITE_ARG:]
    takes = len(library.function(name).signature.arguments)
    if takes == len(arguments) + 1:
        return library.call(builder, name, [result, *arguments])
    if takes != len(arguments):
        raise BackendUnavailable(
            f"{name} takes {takes} arguments in {library.path}, not the {len(arguments)} of its "
            "declaration"
        )
    value = library.call(builder, name, [*arguments])
    builder.store(value, builder.bitcast(result, value.type.as_pointer()))
    return i32(0)


INTRINSICS[DECLARED] = find
