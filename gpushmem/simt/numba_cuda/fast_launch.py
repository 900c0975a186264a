"""Launches whose arguments are device arrays and plain numbers, without numba-cuda's host side.

Each argument is packed by a function in C: the bytes of a device array are kept with it, numbers
go through `struct`. What this cannot pack, numba-cuda prepares, as its rules are.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cached_property
from operator import attrgetter
from typing import Any

from numba.cuda import types
from numba.cuda.cudadrv import devicearray
from numba.cuda.cudadrv.devicearray import DeviceNDArrayBase
from numba.cuda.dispatcher import CUDADispatcher

__all__ = ["NOT_QUICK", "PLACES", "nbytes_of", "packers_of"]

WORDS = "_gpushmem_words"  # of a device array: its bytes among a kernel's arguments
NOT_QUICK = AttributeError, KeyError, OverflowError, TypeError, ValueError, struct.error

Pack = Callable[[Any], bytes]


def _words(array: Any) -> bytes:
    view = array._strided_memory_view_shim
    places = view.ptr or 0, *array.strides
    if any(place % view.dtype.alignment for place in places):
        raise ValueError  # the other way says what is wrong with it
    words = 0, 0, view.size, view.dtype.itemsize, places[0], *view.shape, *places[1:]
    return struct.pack(f"<{len(words)}q", *words)


def _number(code: str) -> Pack:
    return struct.Struct(f"<{code}{8 - struct.calcsize(code)}x").pack


PACK: dict[Any, Pack] = {
    types.boolean: {truth: struct.pack("<?7x", truth) for truth in (False, True)}.__getitem__,
    types.float32: _number("f"),
    types.float64: _number("d"),
    **{getattr(types, f"int{8 << k}"): _number(code) for k, code in enumerate("bhiq")},
    **{getattr(types, f"uint{8 << k}"): _number(code) for k, code in enumerate("BHIQ")},
}


def packers_of(argtypes: tuple[Any, ...]) -> list[Pack] | None:
    """What packs the arguments, a function each; None if there are types for which none does."""
    array = attrgetter(WORDS)
    packers: list[Any] = [array if isinstance(t, types.Array) else PACK.get(t) for t in argtypes]
    return None if None in packers else packers


def nbytes_of(typ: Any) -> int:
    """How many bytes an argument of a type has among a kernel's arguments."""
    if isinstance(typ, types.Array):
        return 8 * (5 + 2 * typ.ndim)
    if isinstance(typ, types.BaseTuple):
        return sum(map(nbytes_of, typ.types))
    if isinstance(typ, types.EnumMember):
        return nbytes_of(typ.dtype)
    return 16 if isinstance(typ, types.Complex) else 8


# --- the dispatcher

_call = CUDADispatcher.call


def _call_quickly(dispatcher: Any, args: tuple[Any, ...], config: Any) -> None:
    """`CUDADispatcher.call`; finding the only kernel of a declared signature costs it 3 us a type.

    It looks its types up, whose hashes are Python's, and are computed each time.
    """
    only = dispatcher.__dict__.get("_gpushmem_only")
    if only is not None and not config.pre_launch_callbacks:
        only.launch(args, config.griddim, config.blockdim, config.stream, config.sharedmem)
        return
    _call(dispatcher, args, config)
    if dispatcher.specialized and not dispatcher._launch_config_sensitive:
        dispatcher._gpushmem_only = next(iter(dispatcher.overloads.values()))


# --- copies

_array_core = devicearray.array_core


def _core(array: Any) -> Any:
    """`array_core`, which slices arrays that have no repeated dimensions, too."""
    return _array_core(array) if 0 in array.strides else array


def _cached(function: Callable[[Any], bytes], name: str) -> Any:
    made = cached_property(function)
    made.__set_name__(DeviceNDArrayBase, name)
    return made


# What `patch_numba_cuda` replaces for it.
PLACES: dict[tuple[Any, str], Any] = {
    (DeviceNDArrayBase, WORDS): _cached(_words, WORDS),
    (CUDADispatcher, "call"): _call_quickly,
    (devicearray, "array_core"): _core,
}
