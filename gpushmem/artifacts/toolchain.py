"""Who makes machine code, and how: what the same source may give different code for."""

from __future__ import annotations

import hashlib
import importlib.util
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

__all__ = ["sources_digest", "toolchain"]


def toolchain() -> tuple[Any, ...]:
    """What machine code depends on beside its source and the processor: who compiles, and how."""
    environ = sorted((k, v) for k, v in os.environ.items() if k.startswith("NUMBA_"))
    options = (repr(getattr(config, name, None)) for name in OPTIONS)
    packages = (module.__version__ for module in (np, numba, numba_cuda, llvmlite))
    return sources_digest(), sys.version, *packages, *options, tuple(environ)


# Options of Numba's that a program may set in `numba.config`, and that code depends on.
OPTIONS = (
    "OPT", "LOOP_VECTORIZE", "SLP_VECTORIZE", "BOUNDSCHECK", "ENABLE_AVX", "DISABLE_INTEL_SVML",
    "CPU_NAME", "CPU_FEATURES", "DEBUGINFO_DEFAULT", "CUDA_DEBUGINFO_DEFAULT", "CUDA_ENABLE_NRT",
    "EXTEND_VARIABLE_LIFETIMES", "USING_SVML", "LLVM_REFPRUNE_PASS", "LLVM_REFPRUNE_FLAGS",
)  # fmt: skip


@cache
def sources_digest() -> str:
    """What changes with any file of this package, wherever its parts are installed."""
    parts = (importlib.util.find_spec(name) for name in ("gpushmem", "gpushmem.kernels"))
    folders = [folder for part in parts if part for folder in part.submodule_search_locations or ()]
    sources = sorted({file for folder in folders for file in Path(folder).rglob("*.py")})
    texts = (source.read_bytes() for source in sources)
    return hashlib.sha256(b"".join(hashlib.sha256(text).digest() for text in texts)).hexdigest()
