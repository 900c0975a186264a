"""Symmetric memory for PyTorch's caching allocator: a pool for `torch.cuda.use_mem_pool`."""

from __future__ import annotations

import ctypes
import warnings
from typing import Any

import torch

from gpushmem import runtime
from gpushmem.arguments import public
from gpushmem.errors import ArgumentError, ShmemError
from gpushmem.memory.array import SymmetricArray

__all__ = ["get_mem_pool"]

# What PyTorch calls: memory of so many bytes for a device and a stream, and its end.
ALLOC = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)
FREE = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p
)  # fmt: skip


@public
def get_mem_pool() -> Any:
    """Return this PE's `torch.cuda.MemPool` of symmetric memory, the same one each time.

    Tensors that PyTorch makes in it are symmetric: operations and kernels take them, slices too.

        with torch.cuda.use_mem_pool(gpushmem.torch.get_mem_pool()):
            x = torch.zeros(1024, device="cuda")

    PyTorch asks for memory in segments, 2 MiB for small tensors, and keeps them when tensors end.
    Getting and giving back a segment is collective over all PEs, so all PEs must make and drop the
    same tensors of the pool in the same order, as with PyTorch's own symmetric memory. Not inside
    `torch.cuda.graph`. If the heap has no room, a warning says so, and PyTorch raises
    `OutOfMemoryError`. After `finalize` the pool's tensors must not be used. `ArgumentError` on
    backends without a GPU, as PyTorch has no pools of host memory: use `gpushmem.torch.empty`.
    """
    here = runtime.current("get_mem_pool")
    if not here.backend.on_gpu:
        raise ArgumentError(
            f"get_mem_pool: PyTorch has pools of GPU memory only, and the backend "
            f"{here.backend.name} has none: use gpushmem.torch.empty"
        )
    if not _pools or _pools[-1].of is not here:
        _pools.append(_Pool(here))
    return _pools[-1].pool


class _Pool:
    """A pool and its segments; PyTorch calls the two functions, with its allocator locked."""

    def __init__(self, of: runtime.Runtime) -> None:
        self.of = of
        self._segments: dict[int, SymmetricArray] = {}  # by address
        self._calls = ALLOC(self._alloc), FREE(self._free)  # kept alive: PyTorch has addresses
        addresses = [ctypes.cast(call, ctypes.c_void_p).value for call in self._calls]
        self.pool = torch.cuda.MemPool(torch._C._cuda_customAllocator(*addresses))

    def _alloc(self, nbytes: int, device: int, stream: int | None) -> int | None:
        try:
            made = runtime.empty(nbytes, "uint8")
        except ShmemError as error:  # an exception cannot pass through PyTorch
            warnings.warn(f"a pool's segment of {nbytes} bytes: {error}", stacklevel=1)
            return None
        address = int(made.__cuda_array_interface__["data"][0])
        self._segments[address] = made
        return address

    def _free(self, address: int, nbytes: int, device: int, stream: int | None) -> None:
        made = self._segments.pop(address)
        if runtime.is_initialized() and runtime.current() is self.of:
            self.of.free(made)


_pools: list[_Pool] = []  # the last one is in use; of earlier runtimes there may be tensors left
