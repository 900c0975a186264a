"""Pickling of functions and results between processes that are not forks of each other."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from types import CodeType
from typing import Any

from gpushmem.ops import OPS, constants
from gpushmem.ops.team import Team

try:
    import cloudpickle as by  # supports closures, and functions defined in `__main__`
except ImportError:
    by = pickle

__all__ = ["PLAIN", "dumps"]

PLAIN = by is pickle
Base: Any = by.Pickler


class _Pickler(Base):
    """Pickles operations and predefined teams by name: a copy would not be the same object.

    Code keeps the name of its file, which cloudpickle drops since 3.1.3: errors name lines by it.
    """

    def reducer_override(self, what: Any) -> Any:
        name = NAMES.get(id(what))
        if name is not None:
            return _named, (name,)
        if PLAIN:
            return NotImplemented
        if isinstance(what, CodeType):
            make, parts = self.dispatch_table[CodeType](what)
            return _code, (what.co_filename, make, parts)
        return super().reducer_override(what)


NAMED: dict[str, Any] = {
    **{name: op.function for name, op in OPS.items()},
    **{name: value for name, value in vars(constants).items() if isinstance(value, Team)},
}
NAMES = {id(value): name for name, value in NAMED.items()}


def _named(name: str) -> Any:
    return NAMED[name]


def _code(file: str, make: Callable[..., CodeType], parts: tuple[Any, ...]) -> CodeType:
    return make(*parts).replace(co_filename=file)


def dumps(value: object) -> bytes:
    """Return `value` pickled, for `pickle.loads` in another process."""
    file = io.BytesIO()
    _Pickler(file).dump(value)
    return file.getvalue()
