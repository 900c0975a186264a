"""LLVM's passes over a module, or over some of its functions, by their names."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

import llvmlite.binding as llvm

__all__ = ["SIMPLIFYING", "builder_for", "over_functions", "over_module"]

# They turn variables, all of which Numba keeps in memory, into values, and fold. None of them
# moves, doubles or joins calls, of which some are meetings of threads.
SIMPLIFYING = "sroa", "simplify_cfg", "instruction_combine", "simplify_cfg", "dead_code_elimination"


@cache
def _default_machine() -> Any:
    llvm.initialize_native_target()  # it may be the first that this process asks of LLVM
    return llvm.Target.from_default_triple().create_target_machine()


def builder_for(machine: Any = None, speed_level: int = 1) -> Any:
    """Make what passes need, for a `machine`, or for code that is of none yet."""
    options = llvm.create_pipeline_tuning_options(speed_level=speed_level)
    return llvm.create_pass_builder(machine or _default_machine(), options)


def over_module(module: Any, steps: Iterable[str], builder: Any = None) -> None:
    """Run passes over a module."""
    _added(llvm.create_new_module_pass_manager(), steps).run(module, builder or builder_for())


def over_functions(functions: Iterable[Any], steps: Iterable[str], builder: Any = None) -> None:
    """Run passes over each of a module's functions."""
    manager, builder = (
        _added(llvm.create_new_function_pass_manager(), steps),
        builder or builder_for(),
    )
    for function in functions:
        manager.run(function, builder)


def _added(manager: Any, steps: Iterable[str]) -> Any:
    for step in steps:
        getattr(manager, f"add_{step}_pass")()
    return manager
