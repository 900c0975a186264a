"""Which of the two compilers a kernel was written for, and the same kernel for the other one.

numba-cuda and its successor numba-cuda-mlir have the same names in two packages: `cuda`, the types,
`@cuda.jit(device=True)`. A kernel names one of them in its globals or closure.
"""

from __future__ import annotations

import dis
import importlib
import sys
import types as python
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

__all__ = [
    "COMPILERS", "MLIR", "NUMBA_CUDA", "is_dispatcher", "translated", "written_for",
]  # fmt: skip

NUMBA_CUDA, MLIR = COMPILERS = "numba-cuda", "numba-cuda-mlir"
PACKAGE = "numba_cuda_mlir"
OTHERS = ("numba", "numba_cuda")
OURS = "gpushmem"  # whose device functions numba-cuda knows as they are
# Modules of the same names, as users import them.
MODULES = (
    ("numba.cuda", "numba_cuda_mlir.cuda"),
    ("numba.types", "numba_cuda_mlir.types"),
    ("numba.cuda.types", "numba_cuda_mlir.types"),
    ("numba.core.types", "numba_cuda_mlir.types"),
    ("numba", "numba_cuda_mlir"),
)


def written_for(py_func: Callable[..., Any]) -> str:
    """The compiler whose objects a kernel, or a device function that it calls, refers to."""
    if PACKAGE not in sys.modules:  # then nothing is of it
        return NUMBA_CUDA
    seen: list[Any] = []
    return MLIR if _refers(py_func, seen) else NUMBA_CUDA


def _refers(function: Any, seen: list[Any]) -> bool:
    if function in seen:
        return False
    seen.append(function)
    for value in mentioned(function).values():
        module = value.__name__ if isinstance(value, python.ModuleType) else _module_of(value)
        if module.partition(".")[0] == PACKAGE:
            return True
        inner = _function_in(value)
        if inner is not None and _refers(inner, seen):
            return True
    return False


def _module_of(value: Any) -> str:
    module = getattr(value, "__module__", None)
    named = isinstance(module, str) and not is_dispatcher(value)
    return module if isinstance(module, str) and named else type(value).__module__


def is_dispatcher(value: Any) -> bool:
    """Whether an object is a function that one of the compilers' `jit` has made."""
    return isinstance(getattr(value, "py_func", None), python.FunctionType)


def _function_in(value: Any) -> Any:
    """The Python function behind a device function or a plain one of the user's."""
    if isinstance(value, python.FunctionType):
        return value if _module_of(value).partition(".")[0] not in {*OTHERS, OURS} else None
    return value.py_func if is_dispatcher(value) else None


def mentioned(function: Any) -> dict[str, Any]:
    """The globals and closure variables that a function's code reads."""
    names = {name for code in _codes(function.__code__) for name in _globals_of(code)}
    found = {name: function.__globals__[name] for name in names & function.__globals__.keys()}
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return found | {name: cell.cell_contents for name, cell in cells if _is_full(cell)}


def _is_full(cell: Any) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False


def _codes(code: python.CodeType) -> Iterator[python.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, python.CodeType):
            yield from _codes(constant)


@cache
def _globals_of(code: python.CodeType) -> tuple[str, ...]:
    return tuple({i.argval for i in dis.get_instructions(code) if i.opname == "LOAD_GLOBAL"})


# --- for the other compiler


def translated(
    py_func: Callable[..., Any], compiler: str, made: dict[Any, Any] | None = None
) -> Callable[..., Any]:
    """The function with the names of `compiler`'s package in the place of the other one's.

    It is the function itself if it mentions none of the other one's.
    """
    made = {} if made is None else made
    if py_func in made:
        return made[py_func]
    made[py_func] = py_func  # for functions that call themselves
    given = mentioned(py_func)
    changed = {name: _translate(value, compiler, made) for name, value in given.items()}
    if all(changed[name] is value for name, value in given.items()):
        return py_func
    free = py_func.__code__.co_freevars
    cells = [
        python.CellType(changed[name]) if name in changed else cell
        for name, cell in zip(free, py_func.__closure__ or (), strict=True)
    ]
    scope = {**py_func.__globals__, **{n: v for n, v in changed.items() if n not in free}}
    function = python.FunctionType(
        py_func.__code__, scope, py_func.__name__, py_func.__defaults__, tuple(cells)
    )
    function.__kwdefaults__, function.__qualname__ = py_func.__kwdefaults__, py_func.__qualname__
    function.__module__ = py_func.__module__
    made[py_func] = function
    return function


def _translate(value: Any, compiler: str, made: dict[Any, Any]) -> Any:
    to_mlir = compiler == MLIR
    if isinstance(value, python.ModuleType):
        for pair in MODULES:
            before, after = pair if to_mlir else pair[::-1]
            if value is sys.modules.get(before):
                return importlib.import_module(after)
        return value
    foreign = OTHERS if to_mlir else (PACKAGE,)
    if is_dispatcher(value):
        function = translated(value.py_func, compiler, made)
        package = type(value).__module__.partition(".")[0]
        of_jit = package == OURS and (to_mlir or function is not value.py_func)
        if package not in foreign and not of_jit:
            return value
        cuda = importlib.import_module(MODULES[0][to_mlir])
        return made.setdefault(value, cuda.jit(device=True)(function))
    if isinstance(value, python.FunctionType) and _function_in(value) is not None:
        return translated(value, compiler, made)
    if _module_of(value).partition(".")[0] in foreign:
        return _named_alike(value, to_mlir)
    return value


def _named_alike(value: Any, to_mlir: bool) -> Any:
    """The object of the other package that has the same name: a function or a type."""
    name = getattr(value, "__name__", None) or str(value)
    places = [importlib.import_module(pair[to_mlir]) for pair in MODULES[:2]]
    return next((getattr(p, name) for p in places if hasattr(p, name)), value)
