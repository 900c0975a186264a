"""Contents that show, in memory that programs must not use: fresh, freed, and behind arrays."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from gpushmem.backends.base import GAP
from gpushmem.errors import SymmetryError
from gpushmem.source_lines import assigned_name

__all__ = ["check_ends", "mark_end", "poison"]

NAN, ODD, END = 0xFF, 0xFB, 0xED  # bytes: NaN in all floating-point types; of others; behind arrays


def poison(array: np.ndarray[Any, Any]) -> None:
    """Fill an array with what is seen to be no result."""
    array.reshape(-1).view(np.uint8)[:] = NAN if array.dtype.kind in "fcV" else ODD


def mark_end(memory: np.ndarray[Any, Any], end: int) -> None:
    """Fill the gap behind an array that ends at offset `end`."""
    memory[end : end + GAP] = END


def check_ends(memory: np.ndarray[Any, Any], pe: int, arrays: Iterable[Any]) -> None:
    """Raise if a gap behind one of the arrays has been written to."""
    for made in arrays:
        end = made.offset + made.nbytes
        written = np.flatnonzero(memory[end : end + GAP] != END)
        if len(written):
            name = assigned_name(made.where)
            called = f" `{name}`" if name else ""
            raise SymmetryError(
                f"PE {pe}: {len(written)} bytes were written behind the end of the symmetric array"
                f"{called} ({made.dtype}, shape {made.shape}) allocated at {made.where}, the "
                f"first {int(written[0])} bytes after it: `gpushmem run --check` finds the line"
            )
