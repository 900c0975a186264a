"""Fingerprints: keys of kernels' machine code. Two kernels with equal keys have the same code.

A kernel is its bytecode and where it stands in the source (reports say so), its argument types and
options, and the values that the compiler freezes: globals, closure variables, defaults, attributes
of the user's modules, and so on through the device functions it calls. Each becomes a description
made of tuples, texts and numbers, and the key is a digest of that.

Only values whose meaning to the compiler is known are described. A kernel that mentions anything
else has no fingerprint. Names of this package, of Numba and of NumPy are taken to stand for the
same everywhere; so are the extensions of Numba that a program has registered: `name_of` makes a
name of a key that holds where these are the same.
"""

from __future__ import annotations

import builtins
import dis
import enum
import hashlib
import sys
import types as python
from collections.abc import Callable, Iterator
from functools import cache, singledispatch
from pathlib import Path
from typing import Any

import numpy as np
from numba import cuda
from numba.core.types import Type
from numba.cuda.dispatcher import CUDADispatcher

from gpushmem import code_store
from gpushmem.artifacts.compiler_choice import is_dispatcher
from gpushmem.artifacts.global_arrays import named
from gpushmem.artifacts.mlir_aliases import ROOT, is_theirs, twin
from gpushmem.artifacts.numba_extensions import extensions
from gpushmem.artifacts.toolchain import toolchain
from gpushmem.source_lines import is_users

__all__ = ["adopted", "digest_of", "fingerprint", "fixed", "name_of"]

# Packages whose names mean the same in every process, as those of this one and Numba's do.
KNOWN = {
    "builtins", "cmath", "math", "ml_dtypes", "numpy", "numba_cuda_mlir", "operator", "_operator",
}  # fmt: skip
MOST_BYTES = 16 << 20  # of a constant array

Description = Any  # None, a bool, an int, a str, bytes, or a tuple of these that begins with a kind


class Unknown(Exception):
    """A value whose effect on the code is not known."""


class Reading:
    """The state of reading one kernel; with `paths` its code holds the names of folders, too."""

    def __init__(self, paths: bool = False) -> None:
        self.paths = paths
        self.functions: list[Any] = []  # in the order of reading
        self.attributes: tuple[str, ...] = ()  # mentioned by the present function
        self.modules: list[
            Any
        ] = []  # whose attributes have been described for the present function


# Objects that the compiler resolves, and that mean the same in every process.
fixed: set[Any] = set()
# Objects compiled as device functions: class -> how to get the Python function.
adopted: dict[type, Callable[[Any], Any]] = {}


def fingerprint(
    py_func: Callable[..., Any],
    argtypes: tuple[Any, ...],
    options: dict[str, Any],
    machine: Description,
) -> bytes | None:
    """A digest of all that the code of `py_func` depends on, None if something is not known.

    `machine` describes the target.
    """
    return _digest(
        lambda reading: (
            toolchain(), machine,
            describe_function(py_func, reading),
            describe(argtypes, reading),
            describe_options(options, reading),
        ),
        paths=any(options.get(name) for name in ("debug", "lineinfo")),
    )  # fmt: skip


def digest_of(types: tuple[Any, ...]) -> bytes | None:
    """A digest of Numba types; None if one is not known."""
    return _digest(lambda reading: describe(types, reading))


def _digest(described: Callable[[Reading], Description], paths: bool = False) -> bytes | None:
    try:
        return hashlib.sha256(repr(described(Reading(paths))).encode()).digest()
    except Exception:  # noqa: BLE001  (Unknown, or an error of users' objects)
        return None


def name_of(key: bytes) -> tuple[str, bool]:
    """The store's name for a kernel with this key, and whether later runs can use the code.

    They cannot if something that is not in the key may be different then.
    """
    known = extensions()
    return code_store.key("kernel", key, known), known is not None


@singledispatch
def describe(value: Any, reading: Reading) -> Description:
    """Describe a value by its type; raises `Unknown`. Other values are known by name, or not."""
    if type(value) in adopted:
        return "device", describe_function(adopted[type(value)](value), reading)
    if is_theirs(value):
        return _of_mlir(value, reading)
    if (type(value).__module__, type(value).__name__) == ("cffi.api", "FFI"):
        return ("ffi",)  # compilers take `from_buffer` of any, and nothing else
    return _by_name(value)


def _of_mlir(value: Any, reading: Reading) -> Description:
    """A device function, a type or a name of numba-cuda-mlir, which is not imported here."""
    if is_dispatcher(value) and not _is_known(value.py_func.__module__):
        given = value.targetoptions.items()
        options = {k: v for k, v in given if k not in TARGETS and not _is_default(v)}
        return "mlir", describe_function(value.py_func, reading), describe_options(options, reading)
    if hasattr(value, "key"):
        return "type", describe(type(value), reading), describe(value.key, reading)
    try:
        return _by_name(value)
    except Unknown:
        ours = twin(value)
        if ours is value:
            raise
        return "twin", describe(ours, reading), sys.modules[ROOT].__version__


def _is_default(value: Any) -> bool:
    """Whether an option is a function of the compiler's own: its version is in the key."""
    return callable(value) and _is_known(str(getattr(value, "__module__", "")))


TARGETS = ("chip", "lto", "abi_info")  # options that compiling changes


def _by_name(value: Any) -> Description:
    """Describe an object of a known package, or one in `fixed`, by its name."""
    module, name = value.__module__, getattr(value, "__qualname__", None) or value.__name__
    if not _is_known(module):
        raise Unknown(value)
    places = sys.modules[module], cuda  # numba-cuda's vector types are found in the latter only
    if value not in fixed and not any(_lookup(place, name) is value for place in places):
        raise Unknown(value)
    return "name", module, name, _version(module)


def _version(module: str) -> str:
    """The version of the package that a module belongs to, if `toolchain` does not tell it."""
    theirs = module.partition(".")[0] == ROOT
    return str(sys.modules[ROOT].__version__) if theirs else ""


def _lookup(place: Any, name: str) -> Any:
    for part in name.split("."):
        place = getattr(place, part, None)
    return place


def _is_known(module: str) -> bool:
    return module.partition(".")[0] in KNOWN or not is_users(module)


# --- plain values


@describe.register(python.NoneType)
@describe.register(python.EllipsisType)
def _(value: Any, reading: Reading) -> Description:
    return "constant", repr(value)


@describe.register
def _(value: int, reading: Reading) -> Description:
    if type(value) in (int, bool):
        return type(value).__name__, hex(value)
    return "int", describe(type(value), reading), hex(value)


@describe.register(str)
@describe.register(bytes)
@describe.register(float)
@describe.register(complex)
def _(value: Any, reading: Reading) -> Description:
    if type(value) not in (str, bytes, float, complex):
        raise Unknown(value)
    text = np.array(value).tobytes() if isinstance(value, float | complex) else value
    return type(value).__name__, text


@describe.register
def _(value: tuple, reading: Reading) -> Description:  # type: ignore[type-arg]
    kind = None if type(value) is tuple else describe(type(value), reading)
    return "tuple", kind, tuple(describe(v, reading) for v in value)


@describe.register
def _(value: frozenset, reading: Reading) -> Description:  # type: ignore[type-arg]
    return "frozenset", tuple(sorted(repr(describe(v, reading)) for v in value))


@describe.register
def _(value: slice, reading: Reading) -> Description:
    return "slice", describe((value.start, value.stop, value.step), reading)


@describe.register(enum.Enum)
@describe.register(enum.IntEnum)
def _(value: Any, reading: Reading) -> Description:
    return "member", describe(type(value), reading), value.name


@describe.register
def _(value: type, reading: Reading) -> Description:
    named: Description = "class", value.__module__, value.__qualname__
    if issubclass(value, enum.Enum):
        members = value.__members__.items()
        return *named, tuple((name, describe(m.value, reading)) for name, m in members)
    if issubclass(value, tuple) and hasattr(value, "_fields"):
        return *named, tuple(value._fields)
    if issubclass(value, BaseException | python.NoneType):  # one's status code is made of its name
        return named
    return _by_name(value)


# --- NumPy's and Numba's


@describe.register
def _(value: np.generic, reading: Reading) -> Description:
    return "scalar", describe(value.dtype, reading), value.tobytes()


@describe.register
def _(value: np.dtype, reading: Reading) -> Description:  # type: ignore[type-arg]
    if value.hasobject:
        raise Unknown(value)
    fields = tuple((n, describe(f[0], reading), f[1]) for n, f in (value.fields or {}).items())
    part = value.subdtype and (describe(value.subdtype[0], reading), value.subdtype[1])
    # Those of ml_dtypes have the same text, "<V1".
    return "dtype", value.str, value.name, value.itemsize, value.isalignedstruct, fields, part


@describe.register
def _(value: np.ndarray, reading: Reading) -> Description:  # type: ignore[type-arg]
    if type(value) is not np.ndarray or value.nbytes > MOST_BYTES or named(value) is not value:
        raise Unknown(value)
    about = value.shape, value.strides, value.flags.aligned, value.flags.writeable
    data = hashlib.sha256(value.tobytes()).digest()
    return "array", describe(value.dtype, reading), about, data


@describe.register
def _(value: np.ufunc, reading: Reading) -> Description:
    if getattr(np, value.__name__, None) is not value:
        raise Unknown(value)
    return "ufunc", value.__name__


@describe.register
def _(value: Type, reading: Reading) -> Description:
    """A Numba type by its class and key, as Numba compares types."""
    return "type", describe(type(value), reading), describe(value.key, reading)


# --- functions and modules


@describe.register
def _(value: python.ModuleType, reading: Reading) -> Description:
    """A module of the user's, with the attributes that the function may read of it."""
    if _is_known(value.__name__) or value in reading.modules:
        return "module", value.__name__, _version(value.__name__)
    reading.modules.append(value)
    mentioned = [name for name in reading.attributes if hasattr(value, name)]
    attributes = tuple((name, describe(getattr(value, name), reading)) for name in mentioned)
    return "module", value.__name__, attributes


@describe.register
def _(value: CUDADispatcher, reading: Reading) -> Description:
    function = describe_function(value.py_func, reading)
    return "dispatcher", function, describe_options(value.targetoptions, reading)


def describe_options(options: dict[str, Any], reading: Reading) -> Description:
    """Options of a kernel or device function; lists, sets and dicts may be among them."""
    values = {k: _hashable(v) for k, v in options.items()}
    return tuple((k, describe(v, reading)) for k, v in sorted(values.items()))


def _hashable(option: Any) -> Any:
    if isinstance(option, dict):  # of `fastmath`: flag -> whether it is set
        return "dict", *sorted(option.items())
    if isinstance(option, list):
        return tuple(option)
    return frozenset(option) if isinstance(option, set) else option


def describe_function(function: Any, reading: Reading) -> Description:
    """A compiled function: all that its bytecode refers to."""
    if function in reading.functions:
        return "function", reading.functions.index(function)
    reading.functions.append(function)
    before = reading.attributes, reading.modules
    code = function.__code__
    codes = list(_nested(code))
    reading.attributes, reading.modules = tuple(n for c in codes for n in c.co_names), []
    try:
        closure = [cell.cell_contents for cell in function.__closure__ or ()]
        used = dict.fromkeys(name for c in codes for name in _globals_of(c))
        values = {name: _global(function, name) for name in used}
        return (
            "function", function.__module__, function.__qualname__, function.__name__,
            describe(code, reading),
            describe((function.__defaults__, *(function.__kwdefaults__ or {}).items()), reading),
            tuple(describe(value, reading) for value in closure),
            tuple((name, describe(value, reading)) for name, value in values.items()),
        )  # fmt: skip
    finally:
        reading.attributes, reading.modules = before


@describe.register
def _(value: python.CodeType, reading: Reading) -> Description:
    """Bytecode with its tables: the file's name and lines appear in reports, names in messages."""
    if not reading.paths:
        value = value.replace(co_filename=Path(value.co_filename).name)
    names = [n for n in dir(value) if n.startswith("co_") and n != "co_lnotab"]  # deprecated
    tables = [(n, getattr(value, n)) for n in names]
    kept = [table for table in tables if isinstance(table[1], int | str | bytes | tuple)]
    return "code", tuple((name, describe(table, reading)) for name, table in kept)


def _nested(code: python.CodeType) -> Iterator[python.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, python.CodeType):
            yield from _nested(constant)


@cache
def _globals_of(code: python.CodeType) -> tuple[str, ...]:
    found = (i.argval for i in dis.get_instructions(code) if i.opname == "LOAD_GLOBAL")
    return tuple(dict.fromkeys(found))


def _global(function: Any, name: str) -> Any:
    known = function.__globals__
    return known[name] if name in known else getattr(builtins, name)
