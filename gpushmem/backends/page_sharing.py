"""The pages of a user's buffer, exchanged for pages of the heap, for backends without GPUs.

After `share` a buffer and a block of the heap are one memory at two addresses: Linux's `mremap`
with an old size of 0 maps the pages of a shared mapping a second time, here in place of the
buffer's. Each exchange is one system call, so no thread finds the addresses unmapped.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path
from typing import Any

import numpy as np

from gpushmem.errors import ArgumentError, ShmemError
from gpushmem.size import span

__all__ = ["PAGE", "check", "separate", "share"]

PAGE = mmap.PAGESIZE
MAYMOVE, FIXED = 1, 2  # of mremap
PROT_READ_WRITE, PRIVATE_ANONYMOUS = 3, 0x22
FAILED = ctypes.c_void_p(-1).value

Memory = np.ndarray[Any, Any]

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = libc.mremap.restype = ctypes.c_void_p
libc.mmap.argtypes = [
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long,
]  # fmt: skip
libc.mremap.argtypes = [
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p,
]  # fmt: skip


def check(what: str, backend: str, memory: Memory, on_gpu: bool) -> None:
    """Raise `ArgumentError` unless the memory is whole pages of this process alone."""
    if on_gpu:
        raise ArgumentError(
            f"{what}: this buffer is in a GPU's memory, which the {backend} backend does not "
            "reach: pass one in host memory"
        )
    start, end = span(memory)
    if start == end or start % PAGE or end % PAGE:
        need = max(1, -(-(end - start) // PAGE)) * PAGE
        raise ArgumentError(
            f"{what}: a buffer must consist of whole pages of {PAGE} bytes, and this one has "
            f"{end - start} bytes, the first of them {start % PAGE} bytes into its page: "
            f"numpy.frombuffer(mmap.mmap(-1, {need}), dtype) makes one that does"
        )
    mapped = _file_of(start, end)
    if mapped is not None:
        raise ArgumentError(
            f"{what}: this buffer is mapped from {mapped}, with which it would lose its "
            "connection: copy it to memory of this process"
        )


def _file_of(start: int, end: int) -> str | None:
    """The file that some of the memory is mapped from; None if there is none."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, _, _, _, _, *name = line.split(maxsplit=5)
        low, high = (int(address, 16) for address in addresses.split("-"))
        if low < end and start < high and name and name[0].startswith("/"):
            if name[0].startswith("/dev/zero"):  # shared memory without a file, as mmap.mmap's
                continue
            return name[0]
    return None


def share(memory: Memory, block: Memory) -> None:
    """Make the buffer `memory` the same memory as `block` of the heap, and keep its contents."""
    ctypes.memmove(span(block)[0], span(memory)[0], memory.nbytes)
    _remap(span(block)[0], 0, memory)


def separate(memory: Memory) -> None:
    """Give the buffer pages of its own again, with the contents that it has."""
    nbytes = memory.nbytes
    own = libc.mmap(None, nbytes, PROT_READ_WRITE, PRIVATE_ANONYMOUS, -1, 0)
    if own == FAILED:
        raise _error(nbytes)
    ctypes.memmove(own, span(memory)[0], nbytes)
    _remap(own, nbytes, memory)


def _remap(address: int, old_size: int, memory: Memory) -> None:
    where = span(memory)[0]
    if libc.mremap(address, old_size, memory.nbytes, MAYMOVE | FIXED, where) != where:
        raise _error(memory.nbytes)


def _error(nbytes: int) -> ShmemError:
    reason = os.strerror(ctypes.get_errno())
    return ShmemError(f"{nbytes} bytes of a buffer cannot be mapped: {reason}")
