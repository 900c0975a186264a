"""C functions of the engine, compiled as one piece each.

Numba turns every function into machine code of its own, with wrappers for Python and for C, and
optimises it together with all that it calls: a function ten calls deep is optimised ten times. Here
parts of a C function are linked as they are, and the whole is optimised once, in half the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NoReturn

from numba.core import compiler, cpu
from numba.core.codegen import JITCodeLibrary, JITCPUCodegen
from numba.core.registry import CPUDispatcher, CPUTarget, cpu_target

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


_target = CPUTarget("cpu")


@cache
def _contexts() -> dict[str, Any]:
    """Contexts of our own, as `CPUTarget` keeps them: Numba's are for functions of its users."""
    typing = _target.typing_context
    context = cpu.CPUContext(typing, "cpu")
    context._internal_codegen = _Codegen("simt.internal")
    _target._toplevel_target_context = context
    return {"_toplevel_typing_context": typing, "_toplevel_target_context": context}


@contextmanager
def _compiling() -> Iterator[None]:
    """Let overloads be compiled for our contexts, too: Numba asks its own target for them."""
    known, absent = vars(cpu_target), object()
    before = {name: known.get(name, absent) for name in _contexts()}
    known.update(_contexts())
    try:
        yield
    finally:
        for name, value in before.items():
            if value is absent:
                del known[name]
            else:
                known[name] = value


class Internal(CPUDispatcher):
    """A function that C functions, and others like it, call."""

    targetdescr = _target

    def __call__(self, *_: Any) -> NoReturn:
        raise TypeError(f"{self.__name__} is for compiled code; its py_func is for Python")


def internal(py_func: Callable[..., Any]) -> Any:
    """Make a function of this package one that C functions can call."""
    return Internal(py_func, targetoptions=OPTIONS)


def module_of(py_func: Any, signature: Any) -> tuple[str, Any]:
    """Compile a C function for a signature; returns its name and LLVM module, not optimised."""
    flags = compiler.Flags()
    _target.options.parse_as_flags(flags, OPTIONS)
    flags.no_cfunc_wrapper, flags.no_compile = False, True
    with _compiling():
        made = compiler.compile_extra(
            *_contexts().values(), py_func, signature.args, signature.return_type, flags, {}
        )
    made.library._ensure_finalized()
    return made.fndesc.llvm_cfunc_wrapper_name, made.library._final_module
