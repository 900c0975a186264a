"""Atomics that the host calls: one element, one lock for all of a job."""

import re

import numpy as np

from tests.nvshmem.emulation.collectives import dtype_of
from tests.nvshmem.emulation.errors import EmulationError
from tests.nvshmem.emulation.stream_ops import as_int
from tests.nvshmem.emulation.world import complete

# What each makes of the old value and the arguments, and how many of them it takes.
_NEW = {
    "fetch": (0, lambda old: old),
    "set": (1, lambda old, value: value),
    "swap": (1, lambda old, value: value),
    "inc": (0, lambda old: old + old.dtype.type(1)),
    "add": (1, lambda old, value: old + value),
    "and": (1, lambda old, value: old & value),
    "or": (1, lambda old, value: old | value),
    "xor": (1, lambda old, value: old ^ value),
    "compare_swap": (2, lambda old, condition, value: value if old == condition else old),
}
_RETURNS = ("fetch", "swap")
_NAME = re.compile(r"([a-z0-9]+)_atomic_([a-z_]+)")


def functions(names):
    """Return the stand-in of each of `names` that is an atomic."""
    return {name: _function(name, *m.groups()) for name in names if (m := _NAME.fullmatch(name))}


def _function(name, dtype, operation):
    dtype = dtype_of(dtype)
    returns = any(word in operation for word in _RETURNS)
    n_values, new = _NEW[operation.removeprefix("fetch_")]

    def call(address, *rest):
        if len(rest) != n_values + 1:
            raise TypeError(f"{name} takes {n_values + 2} arguments, not {len(rest) + 1}")
        *values, pe = rest
        world, address = complete(), as_int(address)
        if address % dtype.itemsize:
            raise EmulationError(f"{name}: {address:#x} is not aligned")
        cell = world.heap.bytes_of(as_int(pe), address, dtype.itemsize, name).view(dtype)
        with world.job, np.errstate(over="ignore"):
            old = cell[0]
            cell[0] = new(old, *(_element(dtype, value) for value in values))
        return old.item() if returns else None

    return call


def _element(dtype, value):
    """Raise OverflowError, as Cython does, for a number that the type does not hold."""
    value = float(value) if dtype.kind == "f" else as_int(value)
    return dtype.type(value)
