"""What kernels may name beside their arguments: for the engine, and for CPython.

`FUNCTIONS` is read by both. The types are casts in CPython: a kernel casts what it computes, so
that NumPy's rules for mixed types do not matter, and keeps integers far from overflow.
"""

from types import SimpleNamespace

import numpy as np

ENGINE = """
import numpy as np
from numba import (
    complex64, cuda, float32, float64, from_dtype, int8, int16, int32, int64, uint8, uint16,
    uint32, uint64,
)
from numba.cuda._internal.cuda_fp8 import fp8_e4m3, fp8_e5m2
from numba.cuda.types import bfloat16, float16

PAIR = from_dtype(np.dtype([("a", "i8"), ("b", "f4"), ("c", "i2")]))
FULL = 0xFFFFFFFF
"""

FUNCTIONS = """
@cuda.jit(device=True)
def mix(v, e):
    return (v * 31 + e) % 1000003

@cuda.jit(device=True)
def same(a):
    return a

@cuda.jit(device=True)
def with_number(a, i):
    return i * 2, a

@cuda.jit(device=True)
def bumped(a, i, e):
    a[i] = e
    return a

@cuda.jit(device=True)
def total(a):
    s = 0
    for y in a:
        s = (s * 3 + y) % 10007
    return s
"""


def _whole(dtype):
    """A cast to a type of integers, which wraps around."""
    bits, signed = 8 * np.dtype(dtype).itemsize, np.dtype(dtype).kind == "i"

    def cast(x):
        value = int(x) % 2**bits
        return value - 2**bits if signed and value >= 2 ** (bits - 1) else value

    cast.dtype = np.dtype(dtype)
    return cast


def _real(dtype):
    def cast(x):
        return np.dtype(dtype).type(x)

    cast.dtype = np.dtype(dtype)
    return cast


def vector(**fields):
    return SimpleNamespace(**fields)


INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
PYTHON = {
    "np": np,
    **{name: _whole(name) for name in INTEGERS},
    **{name: _real(name) for name in ("float16", "float32", "float64", "complex64")},
    # The values are such that these represent them exactly.
    **dict.fromkeys(("bfloat16", "fp8_e4m3", "fp8_e5m2"), _real("float64")),
    "PAIR": SimpleNamespace(dtype=np.dtype([("a", "i8"), ("b", "f4"), ("c", "i2")])),
    "FULL": 0xFFFFFFFF,
}
