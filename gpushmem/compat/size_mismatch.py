"""What programs lose because sizes differ, in kernels: noted there, told by the host, once a line.

Kernels note it in a table of this process, at `WORLD.losses`: a line of the program, and the
numbers of elements that `dst` has, `src` has, and that were wanted. The table has room for `ROOM`
lines. With --strict it is an error there.
"""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import numpy as np

from gpushmem.artifacts.argument_packing import address_of
from gpushmem.backends.cpu.operations.access import as_world
from gpushmem.backends.operation_errors import CUT
from gpushmem.native.memory import compare_swap_word, load_acquire, store_release
from gpushmem.simt.functions import outlined
from gpushmem.simt.thread import fail_if, site_word, user_word

__all__ = ["Losses", "differ"]

ROOM = 64  # lines; what more there are is not told
ENTRY = np.dtype([("site", "i8"), ("dst", "i8"), ("src", "i8"), ("want", "i8")])
STRICT = -1


@outlined
def differ(dst, src, want):
    """Note that one of two arrays has less than is wanted; fail if that is an error."""
    table = as_world(user_word()).losses
    fail_if(table == STRICT, CUT, dst, src, 0, 0)
    if table == 0:
        return
    site = site_word()
    for k in range(ROOM):
        at = table + 32 * ((site // 8 + k) % ROOM)
        there = load_acquire(at)
        if there == 0:
            there = compare_swap_word(at, 0, site)
            if there == 0:
                store_release(at + 8, dst)
                store_release(at + 16, src)
                store_release(at + 24, want)  # last: the host reads rows that have it
                return
        if there == site:
            return


class Losses:
    """The table of a PE, and a thread that tells of what is in it."""

    pending = False

    def __init__(self, native: Any, tell: Any) -> None:
        self._table = np.zeros(ROOM, ENTRY)
        self._told = np.zeros(ROOM, bool)
        self._tell, self._lock = tell, threading.Lock()
        native["losses"] = address_of(self._table)

    def late(self) -> None:
        """Tell of what is new."""
        with self._lock:
            for k in np.flatnonzero((self._table["want"] != 0) & ~self._told):
                self._told[k] = True
                site, dst, src, _ = self._table[k].tolist()
                self._tell(ctypes.string_at(site).decode(), dst, src)
