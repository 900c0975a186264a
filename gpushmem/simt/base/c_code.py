"""C functions of the engine, compiled as one piece each.

Numba turns every function into machine code of its own, with wrappers for Python and for C, and
optimises it together with all that it calls: a function ten calls deep is optimised ten times. Here
the parts of a C function are linked unoptimised, and the whole is optimised once, in half the time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, NoReturn

from numba.core import compiler, cpu
from numba.core.codegen import JITCodeLibrary, JITCPUCodegen
from numba.core.registry import CPUDispatcher, CPUTarget
from numba.core.target_extension import (
    CPU,
    dispatcher_registry,
    jit_registry,
    target_override,
    target_registry,
)

__all__ = ["internal", "module_of"]

OPTIONS = {"nopython": True, "_nrt": False, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}


class _Library(JITCodeLibrary):
    """A part, linked with what it calls, not optimised; no machine code is made of it."""

    def _optimize_functions(self, ll_module: Any) -> None:
        pass

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        return 0


class _Codegen(JITCPUCodegen):
    _library_class = _Library

    def set_env(self, env_name: str, env: Any) -> None:
        pass


class OfEngine(CPU):
    """Numba's name for what these functions are compiled for."""


class _Target(CPUTarget):
    """Contexts of our own: Numba's are for functions of its users."""

    @cached_property
    def _toplevel_target_context(self) -> Any:
        context = cpu.CPUContext(self.typing_context, TARGET)
        context._internal_codegen = _Codegen("simt.internal")
        return context


TARGET = "gpushmem engine"
target_registry[TARGET] = OfEngine
_target = _Target(TARGET)


class Internal(CPUDispatcher):
    """A function that C functions, and others like it, call."""

    targetdescr = _target

    def __call__(self, *_: Any) -> NoReturn:
        raise TypeError(f"{self.__name__} is for compiled code; its py_func is for Python")


def internal(py_func: Callable[..., Any]) -> Any:
    """Make a function of this package one that C functions can call."""
    return Internal(py_func, targetoptions=OPTIONS)


def _jit(*_: Any, **__: Any) -> Callable[[Callable[..., Any]], Any]:
    """Numba's way to compile what overloads return, such as that of `min`."""
    return internal


dispatcher_registry[OfEngine] = Internal
jit_registry[OfEngine] = _jit


def module_of(py_func: Any, signature: Any) -> tuple[str, Any]:
    """Compile a C function for a signature; returns its name and LLVM module, not optimised."""
    flags = compiler.Flags()
    _target.options.parse_as_flags(flags, OPTIONS)
    flags.no_cfunc_wrapper, flags.no_compile = False, True
    with target_override(TARGET):
        made = compiler.compile_extra(
            _target.typing_context, _target.target_context, py_func, signature.args,
            signature.return_type, flags, {},
        )  # fmt: skip
    made.library._ensure_finalized()
    return made.fndesc.llvm_cfunc_wrapper_name, made.library._final_module
