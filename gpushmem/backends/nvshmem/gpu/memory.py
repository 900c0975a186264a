"""Ordinary device memory: from CUDA, or from blocks that are registered with NVSHMEM."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol

from cuda.bindings import driver

from gpushmem.backends.nvshmem.gpu.driver_errors import check
from gpushmem.errors import HeapExhausted

__all__ = ["Allocator", "Memory", "OutOfMemory", "Registered", "Unregistered"]

FIRST = 32 << 20  # bytes of the first registered block
ALIGNMENT = 512  # bytes; as that of cuMemAlloc


class OutOfMemory(HeapExhausted):
    """The GPU has not so much memory left."""


class Allocator(Protocol):
    """Where ordinary device memory comes from."""

    def alloc(self, nbytes: int) -> int:
        """Return the address of so many bytes; raises `OutOfMemory`."""

    def free(self, address: int) -> None:
        """Take back what `alloc` returned; the GPU is idle."""

    def holds(self, start: int, end: int) -> bool:
        """Whether these are bytes from which NVSHMEM can send to PEs on other machines."""


class Unregistered(Allocator):
    """Memory of CUDA's, one call for each array."""

    def alloc(self, nbytes: int) -> int:
        """Allocate by cuMemAlloc."""
        status, address = driver.cuMemAlloc(nbytes)
        if status == driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
            raise OutOfMemory(f"{nbytes} bytes of device memory: the GPU has not so much left")
        return int(check((status, address), f"allocating {nbytes} bytes"))

    def free(self, address: int) -> None:
        """Free by cuMemFree, which waits for nothing if the GPU is idle."""
        check(driver.cuMemFree(address), "freeing device memory")

    def holds(self, start: int, end: int) -> bool:
        """Whether NVSHMEM knows these bytes: it was told of none."""
        return False


class Registered(Allocator):
    """Memory that network adapters know: a few large blocks, each registered as a whole.

    `register(address, nbytes)` tells NVSHMEM. Each block is at least twice the one before; they
    stay to the end of the process.
    """

    def __init__(self, register: Callable[[int, int], None]) -> None:
        self._register, self._source = register, Unregistered()
        self._blocks: list[Block] = []
        self._lock = threading.Lock()

    def alloc(self, nbytes: int) -> int:
        """Take from the first block with room, or from a new one."""
        with self._lock:
            for block in self._blocks:
                address = block.take(nbytes)
                if address is not None:
                    return address
            last = self._blocks[-1].size if self._blocks else FIRST // 2
            need = -(-nbytes // ALIGNMENT) * ALIGNMENT
            size = max(2 * last, need)
            try:
                start = self._source.alloc(size)
            except OutOfMemory:
                start = self._source.alloc(size := need)
            self._register(start, size)
            self._blocks.append(Block(start, size))
            self._blocks[-1].take(nbytes)
            return start

    def free(self, address: int) -> None:
        """Give back to the block that it is of."""
        with self._lock:
            next(block for block in self._blocks if address in block.taken).give(address)

    def holds(self, start: int, end: int) -> bool:
        """Whether NVSHMEM knows these bytes."""
        return any(b.start <= start and end <= b.start + b.size for b in self._blocks)


class Block:
    """The books of a block of memory: what is taken, and the holes, by address."""

    def __init__(self, start: int, size: int) -> None:
        self.start, self.size = start, size
        self.taken: dict[int, int] = {}  # address -> bytes
        self._holes = [(start, size)]

    def take(self, nbytes: int) -> int | None:
        """The address of so many bytes in the first hole that has them; None if none has."""
        need = -(-nbytes // ALIGNMENT) * ALIGNMENT
        for k, (address, size) in enumerate(self._holes):
            if size >= need:
                self._holes[k : k + 1] = [(address + need, size - need)] if size > need else []
                self.taken[address] = need
                return address
        return None

    def give(self, address: int) -> None:
        """Take back what starts at an address, and join it with the holes beside it."""
        holes: list[tuple[int, int]] = []
        for start, size in sorted([*self._holes, (address, self.taken.pop(address))]):
            if holes and sum(holes[-1]) == start:
                holes[-1] = holes[-1][0], holes[-1][1] + size
            else:
                holes.append((start, size))
        self._holes = holes


class Memory:
    """A block of ordinary device memory.

    cuMemFree would wait for all kernels, and break a capture; the last reference may go in any
    thread, at any time. So it is only noted, and freed after the next wait for the whole GPU.
    """

    def __init__(self, address: int, nbytes: int, freed: deque[tuple[int, int]]) -> None:
        self._block, self._freed = (address, nbytes), freed

    def __del__(self) -> None:
        self._freed.append(self._block)
