"""`print` in kernels: lines are formatted by the C library and written by Python.

A thread appends its line to the launch's text in one piece. Python gets the text at the
scheduler's next turn, when it is full, and when the launch ends, always on an ordinary stack: the
interpreter does not run on fibers. `sys.stdout` may thus be anything, a notebook's for instance.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from numba import types

from gpushmem.native.c_function import c_function
from gpushmem.native.memory import call_address, malloc, store_release, vsnprintf
from gpushmem.native.structs import offset, view
from gpushmem.simt.base.layout import LAUNCH

__all__ = ["dropping", "finish", "install"]

_free = ctypes.CDLL(None).free
_free.argtypes = [ctypes.c_void_p]
TEXT_BYTES = 64 * 1024
GP_OFFSET_END, FP_OFFSET_END = 48, 176  # System V x86-64: all registers used, look in memory

as_launch = view(LAUNCH)
VA_LIST = offset(LAUNCH, "va_list")


def simt_print(launch_address: int, text: int, slots: int) -> None:
    """Format a line, as C's `printf` does, for `finish` to write."""
    launch = as_launch(launch_address)
    if launch.text == 0:
        launch.text = malloc(TEXT_BYTES)
    for _ in range(2):
        store_release(launch_address + VA_LIST, GP_OFFSET_END | FP_OFFSET_END << 32)
        store_release(launch_address + VA_LIST + 8, slots)
        store_release(launch_address + VA_LIST + 16, 0)
        room = TEXT_BYTES - launch.text_bytes
        n = vsnprintf(launch.text + launch.text_bytes, room, text, launch_address + VA_LIST)
        if n < room or launch.text_bytes == 0:
            launch.text_bytes += min(max(types.intp(n), 0), room - 1)
            return
        call_address(launch.flush, launch_address)


def _take(launch: Any) -> str:
    """The text printed but not yet written."""
    address, nbytes = int(launch["text"]), int(launch["text_bytes"])
    launch["text_bytes"] = 0
    return ctypes.string_at(address, nbytes).decode(errors="replace") if nbytes else ""


def finish(launch: Any) -> None:
    """Write the remaining text of a launch that has ended, and free its memory."""
    if launch["text"]:
        sys.stdout.write(_take(launch))
        _free(int(launch["text"]))


def _taker(write: Callable[[str], object]) -> int:
    """The address of a function that takes the text of a launch at an address, and `write`s it."""

    def take(launch_address: int) -> None:
        buffer = (ctypes.c_char * LAUNCH.itemsize).from_address(launch_address)
        write(_take(np.frombuffer(memoryview(buffer), LAUNCH)[0]))

    _keep.append(made := ctypes.CFUNCTYPE(None, ctypes.c_int64)(take))
    return int(ctypes.cast(made, ctypes.c_void_p).value or 0)


@cache
def dropping() -> int:
    """The address of a function that lets go of the text of a launch, in place of writing it."""
    return _taker(len)


@cache
def install() -> int:
    """Make `simt_print` known to LLVM; returns the address of the function that writes."""
    function = c_function(types.void(types.intp, types.intp, types.intp), simt_print)
    _keep.append(function)
    llvm.add_symbol("simt_print", function.address)
    return _taker(lambda text: sys.stdout.write(text))  # noqa: PLW0108  (what it is by then)


_keep: list[Any] = []  # keep the code alive
