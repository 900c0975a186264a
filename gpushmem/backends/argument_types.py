"""Checks of the Numba types of operations' arguments: the same, with the same errors, everywhere.

`check_call` checks a whole call by its row: a parameter's role says which types it takes, and which
arrays must have the same dtype. It runs when a kernel is compiled, and raises `NumbaTypeError`,
which is reported with the line of the call (`operation_calls`). Arguments of hosts are checked by
the same functions (`host.call_arguments`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

from numba.cuda import types
from numba.cuda.core.errors import NumbaTypeError

from gpushmem.artifacts.floats import FLOAT8, SMALL
from gpushmem.backends.codegen import dtype_name
from gpushmem.ops import Op, roles
from gpushmem.ops.roles import of_role
from gpushmem.ops.row import COPY

__all__ = ["check_call", "check_types", "literal_access", "literal_reduction"]

Array = types.Array
Given = dict[str, Any]  # parameter -> type of what is given


def check_call(
    op: Op, args: tuple[Any, ...], kws: Given, converts: Callable[[Any, Any], bool]
) -> Given:
    """Return the types of a call's arguments by parameter; raises if the row does not allow it.

    `converts` says whether a value of one type can be converted to another.
    """
    given = _bound(op, args, kws)
    check_types(op, given)
    for name in op.named(roles.Value):
        dtype = given[next(iter(op.arrays))].dtype
        if not converts(given[name], dtype):
            hint = "; to write several elements use put" if op.base == "p" else ""
            raise NumbaTypeError(
                f"{op.name}: {name} must be one value for an array of {dtype}, not "
                f"{described(given[name])}{hint}"
            )
    for name in op.named(roles.Vector):
        dtype = given[next(iter(op.arrays))].dtype
        wrong = next((typ for typ in given[name] if not converts(typ, dtype)), None)
        if wrong is not None:
            raise NumbaTypeError(
                f"{op.name}: {name} must be {requirement(roles.Vector)}, of {dtype_name(dtype)}; "
                f"there is {described(wrong)}"
            )
    return given


def check_types(op: Op, given: Given) -> None:
    """Raise if a parameter of the row does not take its type, or if types do not fit together."""
    for name, typ in given.items():
        role = op.roles[name]
        if not _takes(role, typ):
            element = issubclass(role, roles.Array) and isinstance(typ, types.Number)
            hint = "; of an element, a[i], give the array from there on, a[i:]" if element else ""
            raise NumbaTypeError(
                f"{op.name}: {name} must be {requirement(role)}, not {described(typ)}{hint}"
            )
    arrays = [(name, typ) for name, typ in given.items() if name in op.arrays]
    for name, typ in arrays:
        if isinstance(typ, Array):
            _check_layout(op, name, typ)
    _check_alike(op, [(name, typ) for name, typ in arrays if op.arrays[name].moved])
    for name in op.named(roles.LoadAccess):
        literal_access(op, given.get(name, "weak"))
    if op.named(roles.VectorSize) or op.named(roles.Vector):
        _check_vector(op, given)
    for name in op.named(roles.Reduction):
        which, dtype = literal_reduction(op, given[name]), given["dst"].dtype
        takes, called = REDUCTIONS[which]
        if not takes(dtype):
            hint = f"; {FEW_BITS}" if dtype in FLOAT8 else ""
            raise NumbaTypeError(f'{op.name}: "{which}" is of {called}, not of {dtype}{hint}')


def described(typ: Any) -> str:
    """A type as shown in a message; a literal as it is written in the call."""
    if isinstance(typ, types.Literal):
        return repr(typ.literal_value)
    if isinstance(typ, Array):
        return f"an array of {dtype_name(typ.dtype)}"
    return "None" if isinstance(typ, types.NoneType) else str(typ)


def _bound(op: Op, args: tuple[Any, ...], kws: Given) -> Given:
    signature = _signature(op)
    shown = ", ".join(str(p.replace(annotation=p.empty)) for p in signature.parameters.values())
    for name in [name for name in kws if name not in signature.parameters]:
        raise NumbaTypeError(f"{op.name}({shown}) has no argument {name!r} in kernels")
    try:
        return dict(signature.bind(*args, **kws).arguments)
    except TypeError as error:
        raise NumbaTypeError(f"{op.name}({shown}): {error}") from None


@cache
def _signature(op: Op) -> inspect.Signature:
    """The signature in kernels: without `stream`."""
    signature = inspect.signature(op.function)
    parameters = [p for p in signature.parameters.values() if p.name in op.params]
    return signature.replace(parameters=parameters)


# --- one argument


def requirement(role: type[roles.Argument]) -> str:
    """What an argument of the role must be, as errors say it."""
    dtypes = getattr(role, "dtypes", ())
    return f"{role.words} of {', '.join(dtypes)}" if dtypes else role.words


def _is_array(typ: Any) -> bool:
    return isinstance(typ, Array)


def _is_integer(typ: Any) -> bool:
    if isinstance(typ, types.Optional):
        typ = typ.type
    return isinstance(typ, types.Integer | types.Boolean | types.IntEnumMember)


def _are_integers(typ: Any) -> bool:
    return isinstance(typ, Array) and isinstance(typ.dtype, types.Integer)


def _or_none(takes: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda typ: isinstance(typ, types.NoneType | types.Omitted) or takes(typ)


# Role -> whether it takes a type.
TAKES: dict[type, Callable[[Any], bool]] = {
    roles.Array: _is_array,
    roles.Counted: _are_integers,
    roles.Status: _or_none(_are_integers),
    roles.Integer: _is_integer,
    roles.TeamHandle: _is_integer,
    roles.Flag: _is_integer,
    roles.Timeout: _or_none(lambda typ: isinstance(typ, types.Integer)),
    roles.Value: lambda _: True,  # `check_call` asks whether it can be converted
    roles.Vector: lambda typ: isinstance(typ, types.BaseTuple),
    roles.VectorSize: lambda typ: isinstance(typ, types.IntegerLiteral),
    roles.Groups: lambda typ: (
        isinstance(typ, types.IntegerLiteral) and 0 <= typ.literal_value <= roles.Groups.most
    ),
    roles.Reduction: lambda _: True,  # see `literal_reduction`
    roles.LoadAccess: lambda _: True,  # see `literal_access`
    roles.Name: lambda typ: isinstance(typ, types.StringLiteral),
}


def _takes(role: type[roles.Argument], typ: Any) -> bool:
    takes, dtypes = of_role(TAKES, role), getattr(role, "dtypes", ())
    assert takes is not None, role
    return takes(typ) and (not dtypes or dtype_name(typ.dtype) in dtypes)


# --- arrays


def _check_layout(op: Op, name: str, typ: Any) -> None:
    role = op.arrays[name]
    if role.ndim not in (None, typ.ndim):
        raise NumbaTypeError(f"{op.name}: {name} must be an array of {role.ndim} axes, not {typ}")
    if (role.layout == "C" and typ.layout != "C") or (role.layout == "dense" and typ.layout == "A"):
        cure = next(text for kind, text in CURES.items() if issubclass(role, kind))
        raise NumbaTypeError(f"{op.name}: {name} is not contiguous ({typ}){cure}")


# What to do about an array that is not contiguous.
CURES: dict[type, str] = {
    roles.Moved: ": give the array it is part of to iput or iget, or copy it to an array that is",
    roles.Views: ": give the array it is part of, and slice the result",
    roles.Array: "",
}


def _check_alike(op: Op, arrays: list[tuple[str, Any]]) -> None:
    for name, typ in arrays[1:]:
        first, other = arrays[0]
        if typ.dtype != other.dtype:
            raise NumbaTypeError(
                f"{op.name}: {first} is an array of {other.dtype}, {name} of {typ.dtype}; "
                "they must have the same dtype"
            )


# --- reductions


def _is_number(*kinds: type) -> Any:
    return lambda typ: isinstance(typ, kinds) and not isinstance(typ, types.Boolean)


real = (types.Integer, types.Float, type(types.bfloat16))
FEW_BITS = "8-bit floats are moved, not reduced: convert them to float32 or bfloat16"


def _is_pair(typ: Any) -> bool:
    fields = list(typ.fields.values()) if isinstance(typ, types.Record) else []
    return len(fields) == 2 and all(isinstance(field.type, real) for field in fields)


# Reduction -> which dtypes it takes, and their name in messages.
REDUCTIONS = {
    "sum": (_is_number(*real, types.Complex), "numbers"),
    "prod": (_is_number(*real, types.Complex), "numbers"),
    "min": (_is_number(*real), "integers or floats"),
    "max": (_is_number(*real), "integers or floats"),
    "and": (_is_number(types.Integer), "integers"),
    "or": (_is_number(types.Integer), "integers"),
    "xor": (_is_number(types.Integer), "integers"),
    "maxloc": (_is_pair, "records of two numbers"),
}


def literal_reduction(row: Op, op: Any) -> str:
    """The reduction named by the argument `op` of a row, which must be a literal."""
    return _literal(row, roles.Reduction, op)


def _literal(row: Op, role: type[roles.Argument], given: Any) -> str:
    """One of the names of a role of the row, written in the call or the parameter's default."""
    (name,) = row.named(role)
    names = getattr(row.roles[name], "names", ())
    value = given if isinstance(given, str) else getattr(given, "literal_value", None)
    if value not in names:
        raise NumbaTypeError(
            f"{row.name}: {name} must be one of {', '.join(map(repr, names))}, written in the "
            f"call, not {described(given)}"
        )
    return str(value)


# --- several elements at once

VECTORS, PIECES = (1, 2, 4, 8, 16, 32, 64, 128), (4, 8, 16)  # bytes: of vectors, and of a copy
FEW: Any = SMALL[0] | SMALL[1] | SMALL[2]


def literal_access(row: Op, access: Any) -> str:
    """How a row accesses memory, as its argument says, which must be a literal."""
    return _literal(row, roles.LoadAccess, access)


def _check_vector(op: Op, given: Given) -> None:
    """Raise if no instruction moves so many elements."""
    array = next(iter(op.arrays))
    dtype, sizes = given[array].dtype, PIECES if op.facts.completion == COPY else VECTORS
    if not isinstance(dtype, types.Number | types.Boolean | FEW):
        raise NumbaTypeError(
            f"{op.name}: {array} must be an array of numbers, not of {dtype_name(dtype)}"
        )
    n = len(given["value"]) if "value" in given else given["n"].literal_value
    nbytes = n * getattr(dtype, "bitwidth", 8) // 8
    if nbytes not in sizes:
        *most, last = map(str, sizes)
        raise NumbaTypeError(
            f"{op.name}: {n} elements of {dtype_name(dtype)} are {nbytes} bytes; a vector has "
            f"{', '.join(most)} or {last}"
        )


assert tuple(REDUCTIONS) == roles.REDUCTIONS
