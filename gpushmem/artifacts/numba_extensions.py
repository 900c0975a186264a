"""The modules that have extended Numba: their registrations can change a kernel's code.

In one job all processes have the same extensions. From one run to another a user may edit them, and
nothing in a kernel says which of them it uses.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from numba.core.imputils import builtin_registry as core_code
from numba.core.typing.templates import builtin_registry as core_types
from numba.cuda import cudadecl, cudaimpl
from numba.cuda.core.imputils import builtin_registry as cuda_code
from numba.cuda.typing.templates import builtin_registry as cuda_types

from gpushmem.artifacts.compiler_choice import PACKAGE

__all__ = ["extensions", "of_mlir"]

# Registries that Numba's documented extension functions write to.
REGISTRIES = core_types, core_code, cuda_types, cuda_code, cudadecl.registry, cudaimpl.registry
LISTS = [each for registry in REGISTRIES for each in vars(registry).values() if type(each) is list]
MLIR_MODULES = "extending", "numba_cuda.typing.templates", "descriptor"
# Those whose versions are in the keys of what they compile. Compiling registers some of theirs, by
# and by.
KNOWN = {
    "gpushmem", "numba", "numpy", "llvmlite", "numba_cuda", "numba_cuda_mlir", "nvshmem", "cuda",
    *sys.stdlib_module_names,
}  # fmt: skip
INSTALLED = {"site-packages", "dist-packages"}  # folders whose contents users do not edit


def extensions() -> tuple[str, ...] | None:
    """The modules that have extended Numba, with a digest of each, if all are installed packages.

    None if others have: they, and what they use, may be different in the next run.
    """
    for registered in _lists():
        seen, _ = _seen.get(id(registered), (0, registered))
        for entry in registered[seen:]:
            _names.update(_modules(entry))
        _seen[id(registered)] = len(registered), registered
    return _extensions(frozenset(_names))


# What registries have held, which only grow: how many of each list, by its address, and the list;
# the modules of the functions behind those.
_seen: dict[int, tuple[int, list[Any]]] = {}
_names: set[str] = set()


def of_mlir() -> tuple[Any, ...]:
    """The registries of numba-cuda-mlir that programs' extensions of types are in, if it is used.

    A program may have registries of its own, which it installs in the compiler's context.
    """
    modules = map(sys.modules.get, (f"{PACKAGE}.{name}" for name in MLIR_MODULES))
    extending, templates, descriptor = modules
    if extending is None or templates is None or descriptor is None:
        return ()
    installed = descriptor.mlir_target.typing_context._registries
    known = extending.typing_registry, templates.builtin_registry, *tuple(installed)
    return tuple(dict.fromkeys(known))


def _lists() -> list[list[Any]]:
    """What registries hold, numba-cuda-mlir's among them if it has been imported."""
    registries = of_mlir()
    if registries:
        registries += (sys.modules[f"{PACKAGE}.extending"].lowering_registry,)
    more = (each for registry in registries for each in vars(registry).values())
    return LISTS + [each for each in more if type(each) is list]


@lru_cache(maxsize=1)
def _extensions(names: frozenset[str]) -> tuple[str, ...] | None:
    found = (name for name in sorted(names) if name.split(".")[0] not in KNOWN)
    modules = [sys.modules.get(name) for name in found]
    files = [getattr(module, "__file__", None) or "" for module in modules]
    if not all(INSTALLED & {*Path(file).parts} for file in files):
        return None
    return tuple(hashlib.sha256(Path(file).read_bytes()).hexdigest() for file in files)


def _modules(entry: Any) -> Iterator[str]:
    """The modules of the functions behind a registration, through what Numba wraps them in."""
    made = entry[0] if isinstance(entry, tuple) else entry
    inner = [getattr(made, name, None) for name in ("_overload_func", "_definition_func")]
    cells = getattr(made, "__closure__", None) or ()
    for each in (made, *inner, *(cell.cell_contents for cell in cells)):
        if callable(each) and isinstance(getattr(each, "__module__", None), str):
            yield each.__module__
