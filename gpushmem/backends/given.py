"""What the host gives operations, looked at by their rows: backends get what they can work with.

How a declaration annotates a parameter says what it takes (`KINDS`): integers come out as Python's,
scalars as elements of the array they are for. Then the types must fit each other, which is looked
at as in kernels, and in their words (`accepts`): so nothing is compiled that cannot be.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from numba.core.errors import NumbaError
from numba.cuda import types
from numba.cuda.typing.typeof import Purpose, typeof

from gpushmem.arguments import integer, shown, taking
from gpushmem.backends import accepts
from gpushmem.errors import ArgumentError, ArgumentTypeError, TeamError
from gpushmem.ops import Op
from gpushmem.ops.team import Team

__all__ = ["checked"]

Given = dict[str, Any]
SMALL = 2**62
ANY = -(2**1024), 2**1024  # of values, whose limits are the array's


def checked(op: Op, arguments: Given, copied: tuple[str, ...] = ()) -> Given:
    """The arguments as backends take them; raises `ArgumentError` for what the row does not.

    Of those that are `copied` to the device, if they are NumPy's, the layout is of no consequence.
    """
    given = dict(arguments)
    for name, kind in op.kinds.items():
        given[name] = KINDS[kind](op.name, name, given)
    if op.base in MOVES or op.base.startswith(WAITS):
        why = _misfit(op, given, copied)
        if why is not None:
            raise ArgumentTypeError(why)
    return given


# --- one argument


def _is_array(what: str, value: Any) -> bool:
    if isinstance(value, np.generic):
        return False
    with taking(what):
        return isinstance(getattr(value, "dtype", None), np.dtype) and hasattr(value, "strides")


def _array(op: str, name: str, given: Given) -> Any:
    value = given[name]
    if not (isinstance(value, np.ndarray) or _is_array(f"{op}: {name}", value)):
        of = OF.get(name, "")
        raise ArgumentTypeError(f"{op}: {name} must be an array{of}, not {shown(value)}")
    if value.dtype.hasobject:
        raise ArgumentTypeError(f"{op}: {name} holds Python objects, not numbers")
    return value


# What arrays of these names hold.
OF = dict.fromkeys(("ivar", "ivars", "indices", "status", "value"), " of integers")
OF["signal"] = " of uint64"


def _array_or_none(op: str, name: str, given: Given) -> Any:
    return None if given[name] is None else _array(op, name, given)


def _scalar(op: str, name: str, given: Given) -> Any:
    """An element of `dst`, converted as NumPy's assignments do."""
    value, dtype = given[name], given["dst"].dtype
    element = np.empty((), dtype)
    with taking(f"{op}: {name}"):
        several = dtype.fields is None and np.ndim(value) > 0
        if value is not None and not several and not isinstance(value, str | bytes):
            element[()] = value
            return element[()]
    raise ArgumentTypeError(
        f"{op}: {name} must be one element of {dtype}, not {shown(value)}"
        + ("; put writes several" if several else "")
    )


def _integer(op: str, name: str, given: Given) -> int:
    value = given[name]
    if type(value) is int and -SMALL < value < SMALL:  # nearly always
        return value
    if name in NUMBERED and not hasattr(value, "__index__"):
        raise ArgumentTypeError(
            f"{op}: there is no {NUMBERED[name]} {shown(value)}: {name} must be an integer"
        )
    return integer(f"{op}: {name}", value, *(ANY if name == "value" else ()))


# What is known by a number.
NUMBERED = {
    "pe": "PE", "src_pe": "PE", "root": "PE", "op": "signal operation", "cmp": "comparison",
}  # fmt: skip


def _timeout(op: str, name: str, given: Given) -> Any:
    value = given[name]
    if value is None:
        return None
    if isinstance(value, bool | np.bool_) or not hasattr(value, "__index__"):
        raise ArgumentTypeError(
            f"{op}: timeout_ns must be an integer of nanoseconds or None, not {shown(value)}"
        )
    number = integer(f"{op}: timeout_ns", value, high=2**1024)
    if number < 0:
        raise ArgumentError(f"{op}: timeout_ns must be 0 or more nanoseconds, not {number}")
    return min(number, 2**63 - 1)


def _word(op: str, name: str, given: Given) -> str:
    if not isinstance(given[name], str) or given[name] not in accepts.REDUCTIONS:
        known = ", ".join(map(repr, accepts.REDUCTIONS))
        raise ArgumentError(f"{op}: {name} must be one of {known}, not {shown(given[name])}")
    return str(given[name])


def _team(op: str, name: str, given: Given) -> Team:
    value = given[name]
    try:
        number = integer(name, value if not isinstance(value, bool) else None)
    except ArgumentTypeError:
        raise ArgumentTypeError(f"{op}: {name} must be a team, not {shown(value)}") from None
    except ArgumentError:
        raise TeamError(f"{op}: there is no team {shown(value)}; TEAM_INVALID is -1") from None
    if not -(2**31) <= number < 2**31:
        raise TeamError(f"{op}: there is no team {number}; TEAM_INVALID is -1")
    return value if isinstance(value, Team) else Team(number)


# What takes the parameters that a declaration annotates so.
KINDS: dict[str, Callable[[str, str, Given], Any]] = {
    "Symmetric": _array,
    "Array": _array,
    "Array | None": _array_or_none,
    "Scalar": _scalar,
    "int": _integer,
    "int | None": _timeout,
    "str": _word,
    "Team": _team,
}


# --- how they fit: dtypes, layouts

WAITS = ("wait_until", "test", "signal_wait_until")
MOVES = (
    "broadcast", "fcollect", "collect", "alltoall", "alltoalls", "reduce", "reducescatter"
)  # fmt: skip
_types: dict[Any, Any] = {}  # of arrays, by what they follow from


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
        for name in (name for name in TYPED if name in given):
            typed[name] = _type_of(given[name])
            if name in copied and isinstance(given[name], np.ndarray):
                typed[name] = typed[name].copy(layout="C")
    except (NumbaError, ValueError) as error:
        return f"{op.name}: {error}"
    return _why(op, tuple(typed.items()))


TYPED = ("signal", "ivar", "ivars", "dst", "src", "indices", "status", "value", "op")


@lru_cache(maxsize=1024)
def _why(op: Op, types_of: tuple[tuple[str, Any], ...]) -> str | None:
    try:
        accepts.fit(op, dict(types_of))
    except NumbaError as error:
        return str(error)
    return None
