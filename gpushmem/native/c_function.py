"""C functions made of Python functions, and kept from run to run."""

from __future__ import annotations

import ctypes
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from numba.core import config
from numba.core.codegen import JITCPUCodegen, get_host_cpu_features
from numba.core.compiler_lock import global_compiler_lock

from gpushmem import code_store, settings
from gpushmem.artifacts.toolchain import engine
from gpushmem.gc_control import seldom_collected
from gpushmem.native.internal import module_of

__all__ = ["LEVELS", "CFunction", "c_function", "level"]


@dataclass(frozen=True)
class CFunction:
    """A compiled C function: its code, and where its entry is."""

    name: str
    library: Any

    @property
    def address(self) -> int:
        """Address of the entry."""
        return int(self.library.get_pointer_to_function(self.name))

    def dump(self) -> bytes:
        """The function as bytes."""
        return pickle.dumps((self.name, self.library.serialize_using_object_code()))

    @staticmethod
    def load(data: bytes) -> CFunction:
        """Read what `dump` wrote."""
        name, code = pickle.loads(data)  # noqa: S301  (`cache_files` checks the owner)
        return CFunction(name, _codegen().unserialize_library(code))

    def callable(self, result: Any, *arguments: Any) -> Callable[..., Any]:
        """The function for Python, by ctypes' types; it releases the GIL while it runs."""
        function = ctypes.CFUNCTYPE(result, *arguments)(self.address)
        function._keep = self  # type: ignore[attr-defined]
        return function


def c_function(signature: Any, function: Callable[..., Any], *more: Any) -> CFunction:
    """Compile a function of this package to a C function, or take it from the store.

    `more` tells functions of the same name apart. Functions from the store are loaded without
    Numba's CPU target, which takes half a second to start.
    """
    where = function.__module__, function.__qualname__, str(signature), *more
    name = (
        code_store.key("c_function", where, _codegen().magic_tuple(), engine()) + code_store.ENGINE
    )

    def build() -> CFunction:
        entry = f"{function.__qualname__}.{name}"
        module = module_of(function, signature, entry)
        for each in module.functions:
            if not each.is_declaration and each.name != entry:
                each.linkage = "internal"
        library = _codegen().create_library(entry)
        library.enable_object_caching()
        library.add_llvm_module(module)
        library.finalize()
        return CFunction(entry, library)

    # Compiling a kernel holds the lock, and may need this function.
    with global_compiler_lock, seldom_collected():
        return code_store.get_or_build(name, build, CFunction.dump, CFunction.load)


# Processors that C functions are compiled for, the best first, and what the best needs.
LEVELS = {
    "x86-64-v3": {"avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe"},
    "x86-64-v2": {"cx16", "popcnt", "sse3", "sse4.1", "sse4.2", "ssse3"},
}


@cache
def level() -> str | None:
    """The processor that C functions are compiled for; None: this machine's own."""
    if config.CPU_NAME is not None or config.CPU_FEATURES is not None:
        return None
    features = get_host_cpu_features()
    has = {each[1:] for each in features.split(",") if each.startswith("+")}
    asked = settings.get("GPUSHMEM_CPU")
    fit = [name for name, needed in LEVELS.items() if needed <= has]
    return asked if asked in fit else next(iter(fit), None)


class _Codegen(JITCPUCodegen):
    """Makes code for all machines of a level, so that it can be installed with the package."""

    def _get_host_cpu_name(self) -> str:
        return level() or super()._get_host_cpu_name()

    def _get_host_cpu_features(self) -> str:
        return "" if level() else super()._get_host_cpu_features()


@cache
def _codegen() -> Any:
    return _Codegen("simt.c")
