"""A kernel's function with names that mean something in Python.

The code is the user's own, so tracebacks, debuggers and coverage show their lines; globals and
closure are copies, in which what belongs to numba.cuda is replaced, found by identity. So host code
in the same module is untouched.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np
from numba import cuda
from numba.core.dispatcher import Dispatcher
from numba.cuda import stubs
from numba.cuda.compiler import ExternFunction
from numba.cuda.dispatcher import CUDADispatcher
from numba.cuda.extending import _Intrinsic
from numba.cuda.np import numpy_support

from gpushmem.artifacts.argument_packing import as_numpy
from gpushmem.errors import BackendUnavailable
from gpushmem.simt.compiler import target
from gpushmem.simt.interpret.arrays import in_kernel
from gpushmem.simt.interpret.compiled import Compiled
from gpushmem.simt.interpret.cuda_builtins import BUILTINS, MEANINGS
from gpushmem.simt.interpret.debugger import stop
from gpushmem.simt.interpret.numbers import Cast, fitted, number

__all__ = ["Names"]

SPACES = (stubs.atomic, stubs.shared, stubs.local, stubs.const)  # classes that are as modules
# Packages whose functions are left as they are.
FOREIGN = set(sys.stdlib_module_names) | {"numpy", "numba", "numba_cuda", "gpushmem", "scipy"}


class Namespace:
    """A module, or a class of numba.cuda's that is one, with the meanings of its names."""

    def __init__(self, original: Any, names: Names) -> None:
        self._original, self._names = original, names

    def __getattr__(self, name: str) -> Any:
        meaning = self._names.meaning(getattr(self._original, name))
        setattr(self, name, meaning)  # found at once the next time
        return meaning

    def __repr__(self) -> str:
        return repr(self._original)


class Names:
    """The meanings of names in one kernel, which are those of the moment when it is compiled."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, Any]] = {}  # keeps the objects, whose ids are the keys

    def meaning(self, value: Any) -> Any:
        """What an object that a kernel refers to means in it."""
        if value.__class__ is float:
            return np.float64(value)
        known = MEANINGS.get(id(value)) or self._known.get(id(value))
        if known is None:
            known = self._known[id(value)] = value, self._make(value)
        return known[1]

    def _make(self, value: Any) -> Any:
        if _is_bound(value) or isinstance(value, ExternFunction):
            return Missing(str(getattr(value, "__name__", getattr(value, "name", value))))
        if isinstance(value, CUDADispatcher):
            return self.device_function(value)
        if isinstance(value, Dispatcher):
            return self.function(value.py_func)
        if isinstance(value, ModuleType) or any(value is space for space in SPACES):
            return Namespace(value, self)
        if isinstance(value, cuda.types.Number | cuda.types.Boolean):
            return Cast(value)
        if isinstance(value, np.generic):
            return number(value)
        if isinstance(value, np.ndarray):
            return in_kernel(value.copy())  # a constant, as in compiled code
        if hasattr(value, "__cuda_array_interface__"):
            return in_kernel(as_numpy(value))
        if value.__class__ is tuple:
            return tuple(map(self.meaning, value))
        if isinstance(value, _Intrinsic) or _is_of_numba_cuda(value):
            return Compiled(value, getattr(value, "__name__", "?"))
        if isinstance(value, FunctionType) and _package(value) not in FOREIGN:
            return self.function(value)
        return value

    def function(self, function: Any) -> Any:
        """A Python function with the meanings of the names in it."""
        known = self._known.get(id(function))
        if known is not None:
            return known[1]
        scope: dict[str, Any] = {}
        closure = tuple(CellType() for _ in function.__closure__ or ())
        code = _with_float64(function.__code__)
        made = FunctionType(code, scope, function.__name__, function.__defaults__, closure or None)
        made.__kwdefaults__, made.__qualname__ = function.__kwdefaults__, function.__qualname__
        self._known[id(function)] = function, made  # before the names, of which it may be one
        for theirs, ours in zip(function.__closure__ or (), closure, strict=True):
            ours.cell_contents = self.meaning(theirs.cell_contents)
        scope |= BUILTINS | breakpoints() | function.__globals__
        used = set(_names_in(function.__code__)) & set(function.__globals__)
        for name, value in function.__globals__.items():
            if name in used or value is cuda or id(value) in MEANINGS:
                scope[name] = self.meaning(value)
        return made

    def device_function(self, dispatcher: Any) -> Any:
        """A device function; with one signature, it converts arguments and result."""
        function = self.function(dispatcher.py_func)
        if dispatcher._can_compile or len(dispatcher.overloads) != 1:
            return function
        signature = next(iter(dispatcher.overloads.values())).signature
        if signature.return_type is None:
            return function

        def converting(*args: Any) -> Any:
            args = tuple(map(_converted, args, signature.args))
            return _converted(function(*args), signature.return_type)

        return converting


class Missing:
    """A name that the interpreter has no meaning for."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, *args: Any, **options: Any) -> Any:
        raise BackendUnavailable(
            f"{self.name} is not known to the interpreter: run this kernel compiled, without "
            "GPUSHMEM_SIM_INTERPRET=1"
        )


def breakpoints() -> dict[str, Any]:
    """`breakpoint` in kernels, unless the user has chosen a debugger."""
    chosen = sys.breakpointhook is not sys.__breakpointhook__ or "PYTHONBREAKPOINT" in os.environ
    return {} if chosen else {"breakpoint": stop}


def _package(value: Any) -> str:
    return str(getattr(value, "__module__", None) or "").partition(".")[0]


def _is_of_numba_cuda(value: Any) -> bool:
    module = str(getattr(value, "__module__", ""))
    of = module.startswith("numba.cuda.") and not module.startswith("numba.cuda.tests.")
    stub = isinstance(value, type) and issubclass(value, stubs.Stub)
    return of and (stub or isinstance(value, FunctionType))


def _is_bound(value: Any) -> bool:
    try:
        return value in target.names
    except TypeError:  # it has no hash
        return False


def _converted(value: Any, typ: Any) -> Any:
    if isinstance(typ, cuda.types.Number | cuda.types.Boolean):
        return number(fitted(value, numpy_support.as_dtype(typ)))
    return value


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from _names_in(const)


_codes: dict[int, tuple[CodeType, CodeType]] = {}  # by id: code of two files may be equal


def _with_float64(code: CodeType) -> CodeType:
    """The same code, in which floats are NumPy's: beside a `float32` they make a `float64`."""
    if id(code) not in _codes:
        consts = tuple(map(_const, code.co_consts))
        _codes[id(code)] = code, code.replace(co_consts=consts)
    return _codes[id(code)][1]


def _const(const: Any) -> Any:
    if const.__class__ is float:
        return np.float64(const)
    if const.__class__ is tuple:
        return tuple(map(_const, const))
    return _with_float64(const) if isinstance(const, CodeType) else const
