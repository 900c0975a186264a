"""Validation of requested shapes and dtypes: what a device array can have."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np

from gpushmem.arguments import integer, shown, taking
from gpushmem.errors import ArgumentError, ArgumentTypeError

__all__ = ["SMALL", "dtype_of", "nbytes_of", "plain", "shape_of"]

AXES = 32  # supported by all versions of NumPy
LARGEST = 2**63 - 1  # bytes
CODES = "?bBhHiIlLqQefdFDmM"  # of NumPy's own
SMALL = tuple(map(np.dtype, (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)))
SUPPORTED = (
    "bool, int8 to int64, uint8 to uint64, float16 to float64, complex64, complex128, datetime64, "
    f"timedelta64, {', '.join(dtype.name for dtype in SMALL)}, and records of these"
)


def shape_of(what: str, shape: Any) -> tuple[int, ...]:
    """Convert a NumPy shape, an integer or a sequence, to a tuple."""
    with taking(f"{what}: shape"):
        extents = tuple(shape) if np.ndim(shape) else (shape,)
    if len(extents) > AXES:
        raise ArgumentError(f"{what}: a shape has at most {AXES} axes, not {len(extents)}")
    try:
        return tuple(integer(what, n, 0) for n in extents)
    except ArgumentError:
        raise ArgumentError(
            f"{what}: a shape consists of integers of 0 or more, not {shown(shape)}"
        ) from None


def nbytes_of(what: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    """Return the size of an array in bytes; raises `ArgumentError` for 2**63 or more."""
    if math.prod(max(1, n) for n in shape) * dtype.itemsize > LARGEST:
        raise ArgumentError(f"{what}: an array of shape {shape} of {dtype} is 2**63 bytes or more")
    return math.prod(shape) * dtype.itemsize


def dtype_of(what: str, dtype: Any) -> np.dtype[Any]:
    """Convert to a NumPy dtype; also takes PyTorch's dtypes, and names of ml_dtypes'."""
    named = str(dtype).rpartition(".")[2] if type(dtype).__module__ == "torch" else dtype
    try:
        found = np.dtype(named)
    except Exception as error:
        raise ArgumentTypeError(
            f"{what}: {shown(dtype)} is not a supported dtype; supported are {SUPPORTED}"
        ) from error
    return plain(what, found)


def plain(what: str, dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return `dtype` if it is of native numbers; else raise `ArgumentTypeError`."""
    if not _is_plain(dtype):
        raise ArgumentTypeError(
            f"{what}: device arrays cannot have dtype {dtype!r}; supported are {SUPPORTED}"
        )
    return dtype


def _is_plain(dtype: np.dtype[Any]) -> bool:
    if dtype.subdtype is not None:
        return _is_plain(dtype.base) and dtype.itemsize > 0
    if dtype.fields:
        return all(_is_plain(field[0]) for field in dtype.fields.values())
    # Codes are unique among NumPy's own.
    known = dtype.char in CODES if dtype.type.__module__ == "numpy" else dtype in SMALL
    return known and dtype.isnative
