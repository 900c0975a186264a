"""Functions and results on their way between processes that are not copies of each other."""

from __future__ import annotations

import io
import pickle
from typing import Any

from gpushmem.ops import OPS

try:
    import cloudpickle as by  # takes closures, and what `__main__` defines
except ImportError:
    by = pickle

__all__ = ["PLAIN", "dumps"]

PLAIN = by is pickle
Base: Any = by.Pickler


class _Pickler(Base):
    """Operations go by their names: a copy would mean nothing to the compiler."""

    def reducer_override(self, what: Any) -> Any:
        name = getattr(what, "__name__", None)
        op = OPS.get(name) if isinstance(name, str) else None
        if op is not None and op.function is what:
            return _operation, (name,)
        return NotImplemented if PLAIN else super().reducer_override(what)


def _operation(name: str) -> Any:
    return OPS[name].function


def dumps(value: object) -> bytes:
    """What `pickle.loads` makes of, in another process, what `value` is here."""
    file = io.BytesIO()
    _Pickler(file).dump(value)
    return file.getvalue()
