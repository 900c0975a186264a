"""Options of `jit`, and which compiler a kernel is for: what can be said before one is imported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpushmem import settings
from gpushmem.artifacts.compiler_choice import written_for
from gpushmem.errors import ArgumentError

__all__ = ["check_options", "code_options", "compiler_of"]

# Options of `jit` -> the compiler's names. `max_registers` and `debug` are read elsewhere.
OPTIONS = {"debug", "fastmath", "forceinline", "launch_bounds", "lineinfo", "max_registers", "opt"}
IGNORED = {"cache", "inline", "lto"}  # always on, or without effect
OF_LAUNCHES = "collective", "shared_memory_carveout"


def compiler_of(py_func: Callable[..., Any]) -> str:
    """The compiler of a kernel: what GPUSHMEM_COMPILER says, else what it was written for."""
    return str(settings.get("GPUSHMEM_COMPILER") or written_for(py_func))


def code_options(options: dict[str, Any]) -> dict[str, Any]:
    """Those of the options of `jit` that the machine code depends on."""
    return {name: value for name, value in options.items() if name not in OF_LAUNCHES}


def check_options(options: dict[str, Any]) -> None:
    """Raise for options that no compiler has."""
    unknown = options.keys() - OPTIONS - IGNORED
    if unknown:
        known = ", ".join(sorted([*OPTIONS, *IGNORED, *OF_LAUNCHES, "device"]))
        raise ArgumentError(f"jit has no option {', '.join(sorted(unknown))}; it has {known}")
