"""The compilers and their options, on which machine code depends."""

from __future__ import annotations

import hashlib
import os
import sys
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite
import numba
import numba_cuda
import numpy as np
from numba.core import config

__all__ = ["compilers", "engine", "sources_digest", "toolchain"]


def toolchain() -> tuple[Any, ...]:
    """All that machine code of users' kernels depends on besides its source and the processor."""
    environ = sorted((k, v) for k, v in os.environ.items() if k.startswith("NUMBA_"))
    return *engine(), sys.version, np.__version__, tuple(environ)


def engine() -> tuple[Any, ...]:
    """The same for functions of this package, which are compiled before they are installed."""
    options = (repr(getattr(config, name, None)) for name in OPTIONS)
    return sources_digest(), *compilers().values(), *options


def compilers() -> dict[str, str]:
    """The versions of what compiles, by name."""
    packages = {module.__name__: module.__version__ for module in (numba, numba_cuda, llvmlite)}
    return packages | {sys.implementation.name: "{}.{}".format(*sys.version_info)}


# Options in `numba.config` that change code.
OPTIONS = (
    "OPT", "LOOP_VECTORIZE", "SLP_VECTORIZE", "BOUNDSCHECK", "ENABLE_AVX", "DISABLE_INTEL_SVML",
    "CPU_NAME", "CPU_FEATURES", "DEBUGINFO_DEFAULT", "CUDA_DEBUGINFO_DEFAULT", "CUDA_ENABLE_NRT",
    "EXTEND_VARIABLE_LIFETIMES", "USING_SVML", "LLVM_REFPRUNE_PASS", "LLVM_REFPRUNE_FLAGS",
)  # fmt: skip


# Parts of the package that compiled code does not depend on: nothing that makes code imports them.
# Ready kernels are users' code, described by what they are made of.
ABOVE = {
    "cli", "doctor", "precompile.py", "explain", "help", "kernels", "notebook.py",
    "pytest_plugin.py", "start", "torch",
}  # fmt: skip


@cache
def sources_digest() -> str:
    """A digest of this package's files on which compiled code depends, wherever it is installed."""
    folder = Path(__file__).parent.parent
    files = {str(file.relative_to(folder)): file for file in folder.rglob("*.py")}
    texts = (
        (name, hashlib.sha256(file.read_bytes()).hexdigest())
        for name, file in sorted(files.items())
        if Path(name).parts[0] not in ABOVE
    )
    return hashlib.sha256(repr(list(texts)).encode()).hexdigest()
