"""Functions that C functions call, compiled as one piece each.

Numba turns every function into machine code of its own, with wrappers for Python and for C, and
optimises it together with all that it calls: a function ten calls deep is optimised ten times. Here
the parts of a C function are linked unoptimised, and the whole is optimised once, in half the time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, update_wrapper
from typing import Any, NoReturn

from llvmlite import ir
from numba.core import cgutils, compiler, cpu, types
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


class _Dispatcher(CPUDispatcher):
    targetdescr = _target


class Internal:
    """A function that C functions, and others like it, call.

    Numba makes something of it when the first of them is compiled, so it costs an import nothing.
    """

    def __init__(self, py_func: Callable[..., Any]) -> None:
        update_wrapper(self, py_func)
        self.py_func = py_func

    @cached_property
    def _made(self) -> _Dispatcher:
        return _dispatcher(self.py_func)

    @property
    def _numba_type_(self) -> Any:
        return types.Dispatcher(self._made)

    def __call__(self, *_: Any) -> NoReturn:
        raise TypeError(f"{self.py_func.__name__} is for compiled code; its py_func is for Python")


def internal(py_func: Callable[..., Any]) -> Any:
    """Make a function of this package one that C functions can call."""
    return Internal(py_func)


def _dispatcher(py_func: Callable[..., Any]) -> _Dispatcher:
    return _Dispatcher(py_func, targetoptions=OPTIONS)


def _jit(*_: Any, **__: Any) -> Callable[[Callable[..., Any]], _Dispatcher]:
    """Numba's way to compile what overloads return, such as that of `min`."""
    return _dispatcher


dispatcher_registry[OfEngine] = _Dispatcher
jit_registry[OfEngine] = _jit


def module_of(py_func: Any, signature: Any, name: str) -> Any:
    """Compile a C function of this name for a signature; returns its LLVM module, not optimised."""
    flags = compiler.Flags()
    _target.options.parse_as_flags(flags, OPTIONS)
    flags.no_compile = True
    with target_override(TARGET):
        made = compiler.compile_extra(
            _target.typing_context, _target.target_context, py_func, signature.args,
            signature.return_type, flags, {},
        )  # fmt: skip
    made.library.add_ir_module(_entry(made.fndesc, name))
    made.library._ensure_finalized()
    return made.library._final_module


def _entry(body: Any, name: str) -> ir.Module:
    """A C function that calls a compiled one, which raises nothing."""
    context = _target.target_context
    module, kinds = context.create_module(name), (body.restype, body.argtypes)
    callee = ir.Function(module, context.call_conv.get_function_type(*kinds), body.llvm_func_name)
    arguments = [context.get_value_type(kind) for kind in body.argtypes]
    kind = ir.FunctionType(context.get_value_type(body.restype), arguments)
    function = ir.Function(module, kind, name)
    builder = ir.IRBuilder(function.append_basic_block())
    status, result = context.call_conv.call_function(builder, callee, *kinds, function.args)
    with builder.if_then(status.is_error, likely=False):
        trap = ir.FunctionType(ir.VoidType(), [])
        builder.call(cgutils.get_or_insert_function(module, trap, "llvm.trap"), [])
    builder.ret(result)
    return module
