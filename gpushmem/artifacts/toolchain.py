"""The compilers and their options, on which machine code depends."""

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
    """All that machine code depends on besides its source and the processor."""
    environ = sorted((k, v) for k, v in os.environ.items() if k.startswith("NUMBA_"))
    options = (repr(getattr(config, name, None)) for name in OPTIONS)
    packages = (module.__version__ for module in (np, numba, numba_cuda, llvmlite))
    return sources_digest(), sys.version, *packages, *options, tuple(environ)


# Options in `numba.config` that change code.
OPTIONS = (
    "OPT", "LOOP_VECTORIZE", "SLP_VECTORIZE", "BOUNDSCHECK", "ENABLE_AVX", "DISABLE_INTEL_SVML",
    "CPU_NAME", "CPU_FEATURES", "DEBUGINFO_DEFAULT", "CUDA_DEBUGINFO_DEFAULT", "CUDA_ENABLE_NRT",
    "EXTEND_VARIABLE_LIFETIMES", "USING_SVML", "LLVM_REFPRUNE_PASS", "LLVM_REFPRUNE_FLAGS",
)  # fmt: skip


@cache
def sources_digest() -> str:
    """A digest of all files of this package, wherever its parts are installed."""
    parts = (importlib.util.find_spec(name) for name in ("gpushmem", "gpushmem.kernels"))
    folders = [folder for part in parts if part for folder in part.submodule_search_locations or ()]
    sources = sorted({file for folder in folders for file in Path(folder).rglob("*.py")})
    texts = (source.read_bytes() for source in sources)
    return hashlib.sha256(b"".join(hashlib.sha256(text).digest() for text in texts)).hexdigest()
