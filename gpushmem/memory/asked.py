"""Validation of requested shapes and dtypes: what a device array can have."""

from __future__ import annotations

import importlib
import importlib.util
import math
from typing import Any

import numpy as np

from gpushmem.arguments import integer, shown, taking
from gpushmem.errors import ArgumentError, ArgumentTypeError

__all__ = ["dtype_of", "nbytes_of", "plain", "shape_of"]

AXES = 32  # supported by all versions of NumPy
LARGEST = 2**63 - 1  # bytes
CODES = "?bBhHiIlLqQefdFDmM"
SUPPORTED = (
    "bool, int8 to int64, uint8 to uint64, float16 to float64, complex64, complex128, datetime64, "
    "timedelta64, those of ml_dtypes (where it is installed) such as bfloat16, and records of these"
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
    """Convert to a NumPy dtype; also accepts PyTorch dtypes and names of ml_dtypes."""
    if type(dtype).__module__ == "torch":
        dtype = str(dtype).rpartition(".")[2]
    try:
        found = np.dtype(dtype)
    except Exception as error:
        kind = _of_ml_dtypes(dtype)
        if kind is None:
            raise ArgumentTypeError(
                f"{what}: {shown(dtype)} is not a supported dtype; supported are {SUPPORTED}"
            ) from error
        found = np.dtype(kind)
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
    known = dtype.char in CODES or dtype.type.__module__.startswith("ml_dtypes")
    return known and dtype.isnative


def _of_ml_dtypes(name: Any) -> Any:
    """Look up a dtype name that NumPy knows only after ml_dtypes has been imported."""
    if not isinstance(name, str) or importlib.util.find_spec("ml_dtypes") is None:
        return None
    kind = getattr(importlib.import_module("ml_dtypes"), name, None)
    return kind if isinstance(kind, type) and issubclass(kind, np.generic) else None
