"""Sizes, and the dtypes that NVSHMEM's functions are named by."""

from __future__ import annotations

from typing import Any

import numpy as np
from ml_dtypes import bfloat16, float8_e4m3fn, float8_e5m2

from gpushmem.compat.nvshmem.core.nvshmem_types import NvshmemInvalid

__all__ = ["dtype_nbytes", "dtype_of", "get_size", "named"]

# NVSHMEM's names of dtypes, C's types, -> NumPy's; they may end in `_t`.
DTYPES: dict[str, Any] = {
    "half": np.float16, "fp16": np.float16, "bfloat16": bfloat16, "float": np.float32,
    "double": np.float64, "char": np.int8, "schar": np.int8, "short": np.int16, "int": np.int32,
    "long": np.int64, "longlong": np.int64, "uchar": np.uint8, "ushort": np.uint16,
    "uint": np.uint32, "ulong": np.uint64, "ulonglong": np.uint64, "size": np.uint64,
    "ptrdiff": np.int64, "bool": np.uint8,
    "float8_e4m3fn": float8_e4m3fn, "float8_e5m2": float8_e5m2,
    **{f"{u}int{n}": np.dtype(f"{u}int{n}").type for u in ("", "u") for n in (8, 16, 32, 64)},
}  # fmt: skip


def named(dtype: Any) -> np.dtype[Any]:
    """The dtype by a name of NVSHMEM's: "float" has 4 bytes. Otherwise as `dtype_of`."""
    if dtype is None:
        raise NvshmemInvalid("give dtype=: a buffer has none")
    name = str(dtype).removeprefix("torch.").removesuffix("_t")
    return np.dtype(DTYPES[name]) if name in DTYPES else dtype_of(dtype)


def dtype_of(dtype: Any) -> np.dtype[Any]:
    """NumPy's dtype for one of NumPy's or PyTorch's, or its name: "float" has 8 bytes."""
    name = str(dtype)
    try:
        return np.dtype(name.removeprefix("torch.") if name.startswith("torch.") else dtype)
    except TypeError:
        raise NvshmemInvalid(f"there is no dtype {dtype!r}") from None


def dtype_nbytes(dtype: str) -> int:
    """The bytes of an element of a dtype of NVSHMEM's; raises `ValueError` for other names."""
    try:
        return named(dtype).itemsize
    except NvshmemInvalid as error:
        raise ValueError(str(error)) from None


def get_size(shape: Any, dtype: Any) -> int:
    """The bytes of an array, of a dtype of NumPy's or PyTorch's."""
    return int(np.prod(shape)) * dtype_of(dtype).itemsize
