"""Arrays that are sent in pieces: of parts of the blocks, each piece small enough for the cache."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from gpushmem.kernels.parts import part_of
from gpushmem.kernels.plan import Plan

import gpushmem as shmem

__all__ = ["InPieces", "cuts", "most_in_piece", "part_size", "piece_size"]


def part_size(size: int, parts: int) -> int:
    """How many elements the largest part has; see `part_of`."""
    return part_of(size, parts, 0)[1]


def most_in_piece(plan: Plan, dtype: Any) -> int:
    """How many elements a piece has at most."""
    return plan.tuning.piece_bytes // int(np.dtype(dtype).itemsize)


def piece_size(plan: Plan, size: int, dtype: Any, parts: int = 1) -> int:
    """How many elements a piece has, of arrays of so many that are dealt out to the blocks.

    `parts`: into how many it is cut, each of which is sent on its own.
    """
    return max(1, min(parts * most_in_piece(plan, dtype), part_size(size, plan.blocks)))


def cuts(size: int, blocks: int, piece: int) -> Iterator[tuple[int, int]]:
    """First and last (exclusive) element of each piece, of all blocks."""
    for b in range(blocks):
        lower, upper = part_of(size, blocks, b)
        for first in range(lower, upper, piece):
            yield first, min(first + piece, upper)


class InPieces(Plan):
    """What arrays of `size` elements of `dtype` are sent in: pieces, of parts of the blocks."""

    moves = True

    def __init__(
        self, size: int, dtype: Any, team: Any, blocks: int | None, threads: int | None
    ) -> None:
        least = shmem.tuning().block_bytes
        parts = -(-size * int(np.dtype(dtype).itemsize) // least)
        super().__init__(team, blocks=blocks, threads=threads, parts=parts)
        if size < 0:
            raise shmem.ArgumentError(
                f"{type(self).__name__}: size is {size}; it must be 0 or more"
            )
        self.size, self.dtype = size, np.dtype(dtype)
        self.piece = piece_size(self, size, dtype)

    @property
    def pieces(self) -> int:
        """How many there are, of all blocks."""
        return len(list(self.cuts()))

    def cuts(self) -> Iterator[tuple[int, int]]:
        """First and last (exclusive) element of each."""
        return cuts(self.size, self.blocks, self.piece)
