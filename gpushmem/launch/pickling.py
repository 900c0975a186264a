"""Functions and results on their way between processes that are not copies of each other."""

from __future__ import annotations

import io
import pickle
from typing import Any

from gpushmem.ops import OPS, constants
from gpushmem.ops.team import Team

try:
    import cloudpickle as by  # takes closures, and what `__main__` defines
except ImportError:
    by = pickle

__all__ = ["PLAIN", "dumps"]

PLAIN = by is pickle
Base: Any = by.Pickler


class _Pickler(Base):
    """Operations and teams that have names go by them: a copy is not the thing itself."""

    def reducer_override(self, what: Any) -> Any:
        name = NAMES.get(id(what))
        if name is not None:
            return _named, (name,)
        return NotImplemented if PLAIN else super().reducer_override(what)


NAMED: dict[str, Any] = {
    **{name: op.function for name, op in OPS.items()},
    **{name: value for name, value in vars(constants).items() if isinstance(value, Team)},
}
NAMES = {id(value): name for name, value in NAMED.items()}


def _named(name: str) -> Any:
    return NAMED[name]


def dumps(value: object) -> bytes:
    """What `pickle.loads` makes of, in another process, what `value` is here."""
    file = io.BytesIO()
    _Pickler(file).dump(value)
    return file.getvalue()
