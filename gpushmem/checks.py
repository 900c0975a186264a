"""Checks of what callers give, for code that builds on this package, as plans do.

Each check takes first what an error calls the thing that is wrong ("AllReduce: size", say), and
raises `ArgumentError`. A `Plan` has its constructor and its methods checked by itself.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from inspect import formatannotation
from numbers import Real
from typing import Any

from gpushmem.arguments import integer, public, shown, taking
from gpushmem.errors import ArgumentError
from gpushmem.memory.array import on_host
from gpushmem.memory.tensors import dtype_name
from gpushmem.memory.validation import dtype_of, nbytes_of
from gpushmem.ops.team import Team

__all__ = [
    "check_methods", "checked", "dtype_name", "dtype_of", "integer", "nbytes_of", "on_host",
    "shown", "taking",
]  # fmt: skip

Check = Callable[[str, Any], Any]


def _several(what: str, value: Any) -> tuple[int, ...]:
    if not isinstance(value, tuple | list):
        raise ArgumentError(f"{what} must be a tuple of integers, not {shown(value)}")
    return tuple(integer(f"each of {what}", n, 0) for n in value)


def _two(what: str, value: Any) -> tuple[int, ...]:
    if len(found := _several(what, value)) != 2:
        raise ArgumentError(f"{what} must be two integers, not {shown(value)}")
    return found


def _of(*kinds: type) -> Check:
    def check(what: str, value: Any) -> Any:
        if not isinstance(value, kinds):
            words = " or ".join(kind.__name__ for kind in kinds)
            raise ArgumentError(f"{what} must be a {words}, not {shown(value)}")
        return value

    return check


# What checks an argument, by how the constructor annotates it.
KINDS: dict[str, Check] = {
    "int": integer,
    "float": _of(Real),
    "str": _of(str),
    "bool": _of(bool),
    "tuple[int, ...]": _several,
    "tuple[int, int]": _two,
    "bool | tuple[bool, ...]": _of(bool, tuple),
}
NAMED: dict[str, Check] = {"dtype": dtype_of, "team": _of(Team)}  # ... and by its name


def checked(init: Any) -> Any:
    """Make a constructor take what its annotations say; the rest is an `ArgumentError`.

    That holds for int, float, str, bool, tuples of integers, each also with None, and for
    parameters named `dtype` and `team`; other annotations are not looked at.
    """
    signature = inspect.signature(init)

    @wraps(init)
    def construct(self: Any, *args: Any, **kwargs: Any) -> None:
        name = type(self).__name__
        try:
            bound = signature.bind(self, *args, **kwargs)
        except TypeError as error:
            raise ArgumentError(f"{name}: {error}") from None
        for param, value in bound.arguments.items():
            annotation = signature.parameters[param].annotation
            text = annotation if isinstance(annotation, str) else formatannotation(annotation)
            kind, optional, _ = text.partition(" | None")
            check = NAMED.get(param) or KINDS.get(kind)
            if check is not None and not (optional and value is None):
                bound.arguments[param] = check(f"{name}: {param}", value)
        init(*bound.args, **bound.kwargs)

    return construct


def check_methods(cls: type) -> None:
    """Check calls of a class: its constructor by `checked`; its public methods' signatures."""
    for name, method in list(vars(cls).items()):
        if name == "__init__":
            setattr(cls, name, checked(method))
        elif inspect.isfunction(method) and (name == "__call__" or not name.startswith("_")):
            setattr(cls, name, public(method))
