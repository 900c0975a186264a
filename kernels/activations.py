"""Activations of experts' networks, by all threads of a block."""

from __future__ import annotations

import math

import numpy as np
from numba import cuda
from numba.cuda import libdevice

import gpushmem as shmem

__all__ = ["ACTIVATIONS", "activate", "exp32"]

ACTIVATIONS = {"relu": 0, "silu": 1}

# exp(x) = 2^k exp(r), |r| <= log(2) / 2; log(2) in two parts, of which k times the first is exact.
PER_LOG2 = np.float32(1 / math.log(2))
LOG2_HIGH = np.float32(355 / 512)
LOG2_LOW = np.float32(math.log(2) - 355 / 512)
C2, C3, C4, C5, C6, C7 = (np.float32(1 / math.factorial(k)) for k in range(2, 8))


@shmem.jit(device=True)
def exp32(x):
    """Exp of a float32, to about 1 in its last place, as arithmetic that loops can vectorise."""
    x = min(max(x, np.float32(-87)), np.float32(88))
    k = libdevice.floorf(x * PER_LOG2 + np.float32(0.5))
    r = (x - k * LOG2_HIGH) - k * LOG2_LOW
    tail = C2 + r * (C3 + r * (C4 + r * (C5 + r * (C6 + r * C7))))
    power = libdevice.int_as_float((np.int32(k) + np.int32(127)) << np.int32(23))
    return (np.float32(1) + (r + r * r * tail)) * power


@shmem.jit(device=True)
def activate(hidden, silu):
    """Apply the activation to all of `hidden` (rows, F), in place."""
    for r in range(hidden.shape[0]):
        row = hidden[r]
        if silu and row.itemsize > 4:
            for i in range(cuda.threadIdx.x, row.size, cuda.blockDim.x):
                row[i] = row[i] / (np.float32(1) + math.exp(-row[i]))
        elif silu:
            for i in range(cuda.threadIdx.x, row.size, cuda.blockDim.x):
                v = np.float32(row[i])
                row[i] = v / (np.float32(1) + exp32(-v))
        else:
            for i in range(cuda.threadIdx.x, row.size, cuda.blockDim.x):
                if row[i] < np.float32(0):  # noqa: PLR1730  (bfloat16 has no `max`)
                    row[i] = np.float32(0)
