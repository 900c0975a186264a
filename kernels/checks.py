"""What plans are made with, looked at by the annotations of their constructors."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from numbers import Real
from typing import Any

import gpushmem as shmem
from gpushmem.arguments import integer, public, shown
from gpushmem.memory.asked import dtype_of

__all__ = ["check_methods", "taken"]

Check = Callable[[str, Any], Any]


def _several(what: str, value: Any) -> tuple[int, ...]:
    if not isinstance(value, tuple | list):
        raise shmem.ArgumentError(f"{what} must be a tuple of integers, not {shown(value)}")
    return tuple(integer(f"each of {what}", n, 0) for n in value)


def _two(what: str, value: Any) -> tuple[int, ...]:
    if len(found := _several(what, value)) != 2:
        raise shmem.ArgumentError(f"{what} must be two integers, not {shown(value)}")
    return found


def _of(*kinds: type) -> Check:
    def check(what: str, value: Any) -> Any:
        if not isinstance(value, kinds):
            words = " or ".join(kind.__name__ for kind in kinds)
            raise shmem.ArgumentError(f"{what} must be a {words}, not {shown(value)}")
        return value

    return check


# Annotation -> what takes such an argument.
KINDS: dict[str, Check] = {
    "int": integer,
    "float": _of(Real),
    "str": _of(str),
    "bool": _of(bool),
    "tuple[int, ...]": _several,
    "tuple[int, int]": _two,
    "bool | tuple[bool, ...]": _of(bool, tuple),
}
NAMED: dict[str, Check] = {"dtype": dtype_of, "team": _of(shmem.Team)}


def taken(init: Any) -> Any:
    """Make a constructor take what its annotations say; the rest is an `ArgumentError`."""
    signature = inspect.signature(init)

    @wraps(init)
    def checked(self: Any, *args: Any, **kwargs: Any) -> None:
        name = type(self).__name__
        try:
            bound = signature.bind(self, *args, **kwargs)
        except TypeError as error:
            raise shmem.ArgumentError(f"{name}: {error}") from None
        for param, value in bound.arguments.items():
            kind, optional, _ = str(signature.parameters[param].annotation).partition(" | None")
            check = NAMED.get(param) or KINDS.get(kind)
            if check is not None and not (optional and value is None):
                bound.arguments[param] = check(f"{name}: {param}", value)
        init(*bound.args, **bound.kwargs)

    return checked


def check_methods(cls: type) -> None:
    """Look at what the constructor of a plan and its methods are called with."""
    for name, method in list(vars(cls).items()):
        if name == "__init__":
            setattr(cls, name, taken(method))
        elif inspect.isfunction(method) and (name == "__call__" or not name.startswith("_")):
            setattr(cls, name, public(method))
