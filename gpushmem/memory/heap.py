"""The symmetric heap's bookkeeping: which offsets of a segment are in use.

Every PE keeps its own books for its own segment. They agree because allocation is collective, in
the same order with the same sizes on every PE, and because the policy depends on the calls alone:
equal sequences give equal offsets. Nothing here touches the memory itself.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from itertools import islice

from gpushmem.errors import ArgumentError, HeapExhausted, SymmetryError
from gpushmem.size import format_size

__all__ = ["Heap"]


class Heap:
    """Allocate and free blocks of `total` bytes: best fit, lowest offset first among equals.

    Best fit preserves large blocks for later large arrays; communication workspaces come in few
    sizes, which are then reused exactly. Adjacent free blocks are merged at once. Sizes are rounded
    up to `alignment`; an allocation of 0 bytes takes one unit of it, so that offsets are unique. At
    least `gap` bytes behind each are left unused.
    """

    def __init__(self, total: int, *, alignment: int = 256, gap: int = 0) -> None:
        self.alignment, self.gap = alignment, gap
        self.total = total // alignment * alignment
        self.used = 0  # bytes allocated, rounding included
        self.peak = 0  # maximum of `used`
        self._allocated: dict[int, int] = {}  # offset -> bytes
        self._holes: list[tuple[int, int]] = [(0, self.total)] if self.total else []  # by offset
        self._by_size: list[tuple[int, int]] = sorted((n, o) for o, n in self._holes)

    @property
    def largest_free(self) -> int:
        """Bytes of the largest free block: what can be allocated in one piece."""
        return max(0, self._by_size[-1][0] - self.gap) if self._by_size else 0

    def blocks(self) -> list[tuple[int, int]]:
        """Allocated blocks as (offset, bytes), by offset."""
        return sorted(self._allocated.items())

    def alloc(self, nbytes: int, alignment: int = 1) -> int:
        """Allocate at least `nbytes` and return the offset; raises `HeapExhausted`.

        The offset is a multiple of `alignment`, a power of two, and of that of the heap.
        """
        if nbytes < 0:
            raise ArgumentError(f"cannot allocate {nbytes} bytes: give 0 or more")
        alignment = max(alignment, self.alignment)
        need = max(1, -(-(nbytes + self.gap) // self.alignment)) * self.alignment
        large_enough = bisect_left(self._by_size, (need, -1))
        for size, hole in islice(self._by_size, large_enough, None):
            offset = -(-hole // alignment) * alignment
            if offset + need <= hole + size:
                break
        else:
            raise HeapExhausted(self._explain(nbytes, need))
        self._remove_hole(hole, size)
        if offset > hole:
            self._add_hole(hole, offset - hole)
        if hole + size > offset + need:
            self._add_hole(offset + need, hole + size - offset - need)
        self._allocated[offset] = need
        self.used += need
        self.peak = max(self.peak, self.used)
        return offset

    def holds(self, offset: int) -> bool:
        """Whether a block starts at `offset`."""
        return offset in self._allocated

    def free(self, offset: int) -> int:
        """Release a block and return its size; raises `SymmetryError` if `offset` has none."""
        if offset not in self._allocated:
            raise SymmetryError(f"free: nothing is allocated at offset {offset:#x} (freed twice?)")
        start, size = offset, self._allocated.pop(offset)
        self.used -= size
        freed, at = size, bisect_left(self._holes, (offset, 0))
        after = self._holes[at : at + 1]
        before = self._holes[at - 1 : at] if at else []
        for hole_offset, hole_size in [*before, *after]:
            if hole_offset + hole_size == offset or hole_offset == offset + freed:
                self._remove_hole(hole_offset, hole_size)
                start, size = min(start, hole_offset), size + hole_size
        self._add_hole(start, size)
        return freed

    def _add_hole(self, offset: int, size: int) -> None:
        insort(self._holes, (offset, size))
        insort(self._by_size, (size, offset))

    def _remove_hole(self, offset: int, size: int) -> None:
        del self._holes[bisect_left(self._holes, (offset, size))]
        del self._by_size[bisect_left(self._by_size, (size, offset))]

    def _explain(self, nbytes: int, need: int) -> str:
        free = self.total - self.used
        fragmented = (
            " The heap is fragmented: enough is free, but not in one piece." if free >= need else ""
        )
        return (
            f"symmetric heap exhausted: {nbytes} bytes ({format_size(nbytes)}) requested, "
            f"largest free block has {self.largest_free} ({format_size(self.largest_free)}); "
            f"{self.used} of {self.total} bytes ({format_size(self.total)}) are used.{fragmented} "
            "Free arrays, or raise the heap size: gpushmem run --heap-size, GPUSHMEM_HEAP_SIZE, "
            "or init(heap_size=...)"
        )
