"""numba-cuda-mlir's objects stand for numba-cuda's of the same name.

numba-cuda-mlir began as numba-cuda's source code: its modules, types, stubs and intrinsics have the
names of numba-cuda's. Kernels are compiled by numba-cuda's front end, so what a kernel mentions of
numba-cuda-mlir is replaced by its twin: an object of the same qualified name, a type of the same
class and contents, a device function of the same Python function. Objects that numba-cuda lacks
have a twin in `own`, or none. Only objects of numba-cuda-mlir's own modules are looked at; the
package is never imported here.
"""

from __future__ import annotations

import importlib
import sys
import types as python
from functools import cache
from typing import Any

from numba import cuda
from numba.core.types import Type

__all__ = [
    "ROOT", "class_twin", "home_of", "is_theirs", "own", "own_class", "place_of", "reverse",
    "theirs_of", "twin", "type_of_own", "type_twin", "without_meaning",
]  # fmt: skip

ROOT = "numba_cuda_mlir"
# Where the names of a module are found in numba-cuda; the longest prefix decides.
PLACES = {
    "numba_cuda_mlir.types": "types",
    "numba_cuda_mlir.extending": "extending",
    "numba_cuda_mlir.numba_cuda": "",
    "numba_cuda_mlir.cuda": "",
}
# Twins of objects that numba-cuda lacks, by the name of their module and their own.
own: dict[tuple[str, str], Any] = {}
# Of classes of numba-cuda's types whose contents are others there: how numba-cuda-mlir's are made.
reverse: dict[type, Any] = {}
# Types that numba-cuda lacks, though it has their class.
LACKING = {"complex32"}
# Options of device functions that mean the same to numba-cuda.
OPTIONS = "debug", "fastmath", "forceinline", "inline"


def is_theirs(value: Any) -> bool:
    """Whether an object is numba-cuda-mlir's: defined there, or of a class that is."""
    return ROOT in sys.modules and ROOT in (_root(type(value)), _root(value))


def _root(value: Any) -> str:
    name = value.__name__ if isinstance(value, python.ModuleType) else _module(value)
    return name.partition(".")[0]


def _module(value: Any) -> str:
    name = getattr(value, "__module__", None)
    return name if isinstance(name, str) else ""


def twin(value: Any) -> Any:
    """numba-cuda's twin of an object of numba-cuda-mlir; any other object, or one without, itself.

    Modules are their own twins: `place_of` says where to look up an attribute.
    """
    if ROOT not in sys.modules or isinstance(value, python.ModuleType):
        return value
    if _is_type(value):
        found = _type_twin(value)
        return getattr(found, "user_facing_object", found)  # of a vector's, what makes one
    if not is_theirs(value):
        return value
    if isinstance(value, _class("numba_cuda.dispatcher", "Dispatcher")):
        return _device_function(value)
    return _by_name(value)


def _by_name(value: Any) -> Any:
    name = getattr(value, "__qualname__", "") or getattr(value, "__name__", "")
    if not isinstance(name, str):  # an object that has every attribute
        return value
    found = own.get((_module(value), name))
    if found is None and name and "<locals>" not in name:
        found = _walk(_place(_module(value)), name)
    return value if found is None else found


def place_of(module: Any, name: str) -> Any:
    """The module, or numba-cuda's stub of one, in which `module`'s attribute `name` is found."""
    if ROOT in sys.modules and isinstance(module, python.ModuleType) and is_theirs(module):
        place = _place(module.__name__)
        if (module.__name__, name) not in own and hasattr(place, name):
            return place
    return module


def home_of(stub: Any) -> Any:
    """Where kernels find a stub of numba-cuda: in `numba.cuda`, or in another stub."""
    return _walk(cuda, stub.__qualname__.rpartition(".")[0])


@cache
def _place(module: str) -> Any:
    """numba-cuda's twin of a module by name; None if it has none."""
    prefix = max((p for p in PLACES if f"{module}.".startswith(f"{p}.")), key=len, default=None)
    if prefix is None:
        return None
    inner = module[len(prefix) :].strip(".")
    return _walk(cuda, ".".join(filter(None, (PLACES[prefix], inner))))


def _walk(place: Any, path: str) -> Any:
    for part in filter(None, path.split(".")):
        if isinstance(place, python.ModuleType) and not hasattr(place, part):
            try:
                importlib.import_module(f"{place.__name__}.{part}")
            except ImportError:
                return None
        place = getattr(place, part, None)
    return place


# What to do instead of names that have no meaning on a CPU; `without_meaning` adds the rest.
INSTEAD = {
    "inline_ptx": "write the step in Python: PTX is for GPUs",
    "_Intrinsic": "its code is MLIR, for GPUs; write it in Python, with extending.overload",
}


def without_meaning(value: Any) -> str:
    """The error for an object of numba-cuda-mlir without a twin."""
    name = getattr(value, "__name__", None) or getattr(value, "name", None) or str(value)
    known = (INSTEAD.get(each) for each in (name, type(value).__name__))
    hint = next(filter(None, known), "use a name that numba.cuda has, too")
    return f"{_module(value)}: {name} has no meaning on the CPU engine; {hint}"


# --- types


def type_twin(value: Any) -> Any:
    """The twin of a type, or of a structure of types: a signature, a tuple, a list, a dict."""
    if isinstance(value, tuple | list | dict) and type(value) in (tuple, list, dict):
        if isinstance(value, dict):
            return {k: type_twin(v) for k, v in value.items()}
        return type(value)(map(type_twin, value))
    if _is_type(value):
        return _type_twin(value)
    if not is_theirs(value) or isinstance(value, type):
        return twin(value)
    made = _by_name(type(value))
    if made is type(value):
        return twin(value)
    if isinstance(value, tuple):  # a named one
        return made(*map(type_twin, value))
    return _copied(value, made, type_twin)


def _is_type(value: Any) -> bool:
    """Whether it is a type of numba-cuda-mlir, or of a class that a program derived from those."""
    return ROOT in sys.modules and isinstance(value, _class("numba_cuda.types", "Type"))


@cache
def _type_twin(typ: Any) -> Any:
    found = own.get((_module(typ), typ.name))
    if found is not None:
        return found
    made = class_twin(type(typ))
    if made is type(typ) or typ.name in LACKING or not issubclass(made, Type):
        return typ
    copy = _copied(typ, made, type_twin)
    if issubclass(made, _Own):
        copy.theirs = typ
    ours = made._intern(copy)
    _reverse.setdefault(ours, typ)
    return ours


def class_twin(cls: Any) -> Any:
    """The twin of a class of types; of one that a program derived from others, made by `own_class`.

    A class without one is its own.
    """
    if not issubclass(cls, _class("numba_cuda.types", "Type")):
        return cls
    return _by_name(cls) if _root(cls) == ROOT else own_class(cls)


_reverse: dict[Any, Any] = {}  # numba-cuda's types -> numba-cuda-mlir's


def theirs_of(value: Any) -> Any:
    """numba-cuda-mlir's twin of a type of numba-cuda, or of a structure of types.

    A type of a class that it lacks is itself, as is anything else.
    """
    if type(value) in (tuple, list):
        return type(value)(map(theirs_of, value))
    if not isinstance(value, Type):
        return value
    known = _reverse.get(value)
    if known is None:
        known = _reverse[value] = _theirs(value)
    return known


def _theirs(typ: Any) -> Any:
    made_from = next((reverse[cls] for cls in type(typ).__mro__ if cls in reverse), None)
    if made_from is not None:
        return made_from(typ)
    made = getattr(importlib.import_module(f"{ROOT}.numba_cuda.types"), type(typ).__name__, None)
    return typ if made is None else made._intern(_copied(typ, made, theirs_of))


def _copied(value: Any, made: Any, of_content: Any) -> Any:
    """A `made` with the contents of `value`, which is of the class of the same name."""
    copy = object.__new__(made)
    for owner in type(value).__mro__:
        for slot in vars(owner).get("__slots__", ()):
            setattr(copy, slot, of_content(getattr(value, slot)))
    for name, content in getattr(value, "__dict__", {}).items():
        if name != "_code":  # the number of a type, which is given when it is interned
            vars(copy)[name] = of_content(content)
    return copy


# --- types that programs have derived from numba-cuda-mlir's


class _Own:
    """What all their twins are: types that are equal if theirs are."""

    theirs: Any

    @property
    def key(self) -> Any:
        return self.theirs.key


@cache
def own_class(cls: Any) -> Any:
    """The class of twins of a program's own types."""
    bases = map(class_twin, cls.__bases__)
    meta: Any = type(Type)
    return meta(cls.__name__, (_Own, *bases), {"__module__": cls.__module__})


def type_of_own(value: Any) -> Any:
    """The twin of the type that a program has given to objects like `value`, None if to none."""
    if ROOT not in sys.modules:
        return None
    typeof = importlib.import_module(f"{ROOT}.numba_cuda.typing.typeof")
    if _root(typeof.typeof_impl.dispatch(type(value))) == ROOT:  # not the program's
        return None
    return type_twin(typeof.typeof(value, typeof.Purpose.constant))


# --- device functions


_functions: dict[int, tuple[Any, Any]] = {}  # of a dispatcher: it, and its twin


def _device_function(dispatcher: Any) -> Any:
    known = _functions.get(id(dispatcher))
    if known is None:
        wanted = dispatcher.targetoptions
        kept = {k: wanted[k] for k in OPTIONS if isinstance(wanted.get(k), bool | str)}
        made = cuda.jit(device=True, **{k: v for k, v in kept.items() if v})(dispatcher.py_func)
        known = _functions[id(dispatcher)] = dispatcher, made
    return known[1]


@cache
def _class(module: str, name: str) -> Any:
    return getattr(importlib.import_module(f"{ROOT}.{module}"), name)
