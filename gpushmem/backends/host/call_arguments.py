"""Checks and conversion of the arguments of host calls, by the operations' rows.

A parameter's role says what it takes (`TAKES`): integers become Python's, values become elements of
the array they are for. Then the types are checked as in kernels (`argument_types`), before anything
is compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

import numpy as np
from numba.core.errors import NumbaError
from numba.cuda import types
from numba.cuda.typing.typeof import Purpose, typeof

from gpushmem.arguments import integer, shown, taking
from gpushmem.backends import argument_types
from gpushmem.backends.argument_types import requirement
from gpushmem.backends.host.call_checks import check_product, checked_integer
from gpushmem.errors import ArgumentError, ArgumentTypeError, TeamError
from gpushmem.ops import Op, roles
from gpushmem.ops.roles import of_role
from gpushmem.ops.team import Team

__all__ = ["checked"]

Given = dict[str, Any]
SMALL = 2**62
ANY = -(2**1024), 2**1024  # of values, whose limits are the array's


def checked(op: Op, arguments: Given, copied: tuple[str, ...] = ()) -> Given:
    """Return the arguments as backends take them; raises `ArgumentError` if the row does not.

    NumPy arrays among the parameters `copied`, which go to the device as copies, can have any
    layout.
    """
    given = dict(arguments)
    for name, role, take in _takers(op):
        given[name] = take(op, name, role, given)
    if op.named(roles.Matrix):
        check_product(op.name, op.arrays["dst"].ndim, *map(given.__getitem__, op.arrays))
    if op.typed:
        why = _misfit(op, given, copied)
        if why is not None:
            raise ArgumentTypeError(why)
    return given


@cache
def _takers(op: Op) -> list[tuple[str, Any, Taker]]:
    takers = [(name, role, of_role(TAKES, role)) for name, role in op.roles.items()]
    return [(name, role, take) for name, role, take in takers if take is not None]


# --- one argument


def _is_array(what: str, value: Any) -> bool:
    if isinstance(value, np.generic):
        return False
    with taking(what):
        return isinstance(getattr(value, "dtype", None), np.dtype) and hasattr(value, "strides")


def _array(op: Op, name: str, role: type[roles.Array], given: Given) -> Any:
    value = given[name]
    if not (isinstance(value, np.ndarray) or _is_array(f"{op.name}: {name}", value)):
        raise ArgumentTypeError(
            f"{op.name}: {name} must be {requirement(role)}, not {shown(value)}"
        )
    if value.dtype.hasobject:
        raise ArgumentTypeError(f"{op.name}: {name} holds Python objects, not numbers")
    if not _holds(role.dtypes, value.dtype):
        raise ArgumentTypeError(
            f"{op.name}: {name} must be {requirement(role)}, not an array of {value.dtype}"
        )
    return value


@lru_cache(maxsize=1024)
def _holds(dtypes: tuple[str, ...], dtype: np.dtype[Any]) -> bool:
    return not dtypes or dtype.name in dtypes


def _array_or_none(op: Op, name: str, role: type[roles.Array], given: Given) -> Any:
    return None if given[name] is None else _array(op, name, role, given)


def _scalar(op: Op, name: str, role: type, given: Given) -> Any:
    """An element of the first array, converted as NumPy's assignments do."""
    value, dtype = given[name], given[next(iter(op.arrays))].dtype
    element = np.empty((), dtype)
    with taking(f"{op.name}: {name}"):
        several = dtype.fields is None and np.ndim(value) > 0
        if value is not None and not several and not isinstance(value, str | bytes):
            element[()] = value
            return element[()]
    raise ArgumentTypeError(
        f"{op.name}: {name} must be one element of {dtype}, not {shown(value)}"
        + ("; put writes several" if several else "")
    )


def _integer(op: Op, name: str, role: type[roles.Integer], given: Given) -> int:
    value = given[name]
    if type(value) is int and -SMALL < value < SMALL:  # nearly always
        return value
    if role.what and not hasattr(value, "__index__"):
        raise ArgumentTypeError(
            f"{op.name}: there is no {role.what} {shown(value)}: {name} must be an integer"
        )
    return integer(f"{op.name}: {name}", value)


def _wanted(op: Op, name: str, role: type[roles.Wanted], given: Given) -> int:
    """An integer in the range of the array whose elements it is for."""
    number = integer(f"{op.name}: {name}", given[name], *ANY)
    array = (op.named(roles.Own) + op.named(roles.RemoteSignal))[0]
    return checked_integer(op.name, number, given[array].dtype)


def _timeout(op: Op, name: str, role: type, given: Given) -> Any:
    value = given[name]
    if value is None:
        return None
    if isinstance(value, bool | np.bool_) or not hasattr(value, "__index__"):
        raise ArgumentTypeError(
            f"{op.name}: timeout_ns must be an integer of nanoseconds or None, not {shown(value)}"
        )
    number = integer(f"{op.name}: timeout_ns", value, high=2**1024)
    if number < 0:
        raise ArgumentError(f"{op.name}: timeout_ns must be 0 or more nanoseconds, not {number}")
    return min(number, 2**63 - 1)


def _flag(op: Op, name: str, role: type[roles.Flag], given: Given) -> bool:
    value = given[name]
    if not isinstance(value, bool | np.bool_):
        raise ArgumentTypeError(f"{op.name}: {name} must be {role.words}, not {shown(value)}")
    return bool(value)


def _reduction(op: Op, name: str, role: type, given: Given) -> str:
    if not isinstance(given[name], str) or given[name] not in roles.REDUCTIONS:
        known = ", ".join(map(repr, roles.REDUCTIONS))
        raise ArgumentError(f"{op.name}: {name} must be one of {known}, not {shown(given[name])}")
    return str(given[name])


def _team(op: Op, name: str, role: type, given: Given) -> Team:
    value = given[name]
    try:
        number = integer(name, value if not isinstance(value, bool) else None)
    except ArgumentTypeError:
        raise ArgumentTypeError(f"{op.name}: {name} must be a team, not {shown(value)}") from None
    except ArgumentError:
        raise TeamError(f"{op.name}: there is no team {shown(value)}; TEAM_INVALID is -1") from None
    if not -(2**31) <= number < 2**31:
        raise TeamError(f"{op.name}: there is no team {number}; TEAM_INVALID is -1")
    return value if isinstance(value, Team) else Team(number)


def _members(op: Op, name: str, role: type, given: Given) -> list[int]:
    value = given[name]
    if isinstance(value, str | bytes) or not hasattr(value, "__iter__"):
        raise ArgumentTypeError(
            f"{op.name}: {name} must be {requirement(role)}, not {shown(value)}"
        )
    with taking(f"{op.name}: {name}"):
        pes = list(value)
    return [integer(f"{op.name}: {name}[{k}]", pe) for k, pe in enumerate(pes)]


# Role -> the function that checks and converts its parameters.
Taker = Callable[[Op, str, Any, Given], Any]
TAKES: dict[type, Taker] = {
    roles.Array: _array,
    roles.Status: _array_or_none,
    roles.Value: _scalar,
    roles.Integer: _integer,
    roles.Wanted: _wanted,
    roles.Timeout: _timeout,
    roles.Flag: _flag,
    roles.Reduction: _reduction,
    roles.TeamHandle: _team,
    roles.Members: _members,
}


# --- how they fit: dtypes, layouts

_types: dict[Any, Any] = {}  # of arrays, by dtype, number of axes and flags


def _type_of(value: Any) -> Any:
    if isinstance(value, str):
        return types.literal(value)
    if isinstance(value, int):
        return types.int64
    if not isinstance(value, np.ndarray):
        return typeof(value, Purpose.argument)
    key = value.dtype, value.ndim, value.flags.num
    if key not in _types:
        _types[key] = typeof(value, Purpose.argument)
    return _types[key]


def _misfit(op: Op, given: Given, copied: tuple[str, ...]) -> str | None:
    """Why the arguments do not fit each other; None if they do."""
    typed = {}
    try:
        for name in (name for name, role in op.roles.items() if issubclass(role, TYPED)):
            typed[name] = _type_of(given[name])
            if name in copied and isinstance(given[name], np.ndarray):
                typed[name] = typed[name].copy(layout="C")
    except (NumbaError, ValueError) as error:
        return f"{op.name}: {error}"
    return _why(op, tuple(typed.items()))


TYPED = (roles.Array, roles.Wanted, roles.Reduction)


@lru_cache(maxsize=1024)
def _why(op: Op, types_of: tuple[tuple[str, Any], ...]) -> str | None:
    try:
        argument_types.check_types(op, dict(types_of))
    except NumbaError as error:
        return str(error)
    return None
