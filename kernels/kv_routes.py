"""Which memory goes where when pages of a KV cache are sent: who has which heads, and routes.

A *route* is what one prefill PE sends to one decoding PE of each page: `halves` (keys, values) of
`lines` (tokens) of `length` adjacent numbers. Lines that are adjacent on both sides count as one,
and so do halves. See `kv_transfer`.
"""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import gpushmem as shmem

__all__ = [
    "DST", "FIELDS", "HALF", "HALVES", "LAYER", "LENGTH", "LINE", "LINES", "MOST", "PAGE", "PE",
    "RANK", "ROW", "SRC", "TO", "WARP", "Heads", "Route", "most_in_unit", "units_of",
]  # fmt: skip

ROW = 4096  # numbers in a row of 8-bit floats, at most
WARP = 32


class Route(NamedTuple):
    """What one PE sends to another of each page, and where; in elements. Kernels get it as is."""

    pe: int  # in the world
    to: int  # the number in the team of the one that is not here
    rank: int  # the sender's in its instance
    halves: int
    lines: int
    length: int
    most: int  # of a line that is sent at a time
    src: int  # the first element in a page
    src_page: int
    src_half: int
    src_line: int
    dst: int
    dst_page: int
    dst_half: int
    dst_line: int
    dst_layer: int

    def placed(self, team: Any, most: int) -> Route:
        """The same for a team, sent so much at a time."""
        return self._replace(pe=team.translate_pe(self.to, shmem.TEAM_WORLD), most=most)


FIELDS = len(Route._fields)
PE, TO, RANK, HALVES, LINES, LENGTH, MOST = range(7)
SRC, DST = Route._fields.index("src"), Route._fields.index("dst")
PAGE, HALF, LINE, LAYER = 1, 2, 3, 4  # behind these two


class Heads(NamedTuple):
    """Which PEs have which heads, and how their pages look."""

    prefill: tuple[int, ...]
    decode: tuple[int, ...]
    prefill_tp: int
    decode_tp: int
    kv_heads: int
    head_dim: int
    page_size: int
    pages: int
    apart: bool

    def check(self, n_pes: int) -> None:
        """Raise `ArgumentError` if the instances cannot be."""
        for what, pes, tp in (
            ("prefill", self.prefill, self.prefill_tp), ("decode", self.decode, self.decode_tp),
        ):  # fmt: skip
            if not pes or min(pes) < 0 or max(pes) >= n_pes or len(set(pes)) < len(pes):
                raise shmem.ArgumentError(
                    f"KVTransfer: {what} is {pes}; it must be different PEs of the team's {n_pes}"
                )
            if tp < 1 or len(pes) % tp:
                raise shmem.ArgumentError(
                    f"KVTransfer: {what} has {len(pes)} PEs, which are no instances of {tp}"
                )
        for pe in set(self.prefill) & set(self.decode):
            if self._by(self.prefill, self.prefill_tp, pe) != self._by(
                self.decode, self.decode_tp, pe
            ):
                raise shmem.ArgumentError(
                    f"KVTransfer: PE {pe} is in prefill and decode with different heads"
                )

    def _share(self, tp: int, rank: int) -> tuple[int, int]:
        first = rank * self.kv_heads // tp
        return first, max(first + 1, (rank + 1) * self.kv_heads // tp)

    def _by(self, pes: tuple[int, ...], tp: int, pe: int) -> tuple[int, int]:
        return self._share(tp, pes.index(pe) % tp) if pe in pes else (0, 0)

    def of(self, pe: int) -> tuple[int, int]:
        """The heads in a PE's cache, first and last (exclusive)."""
        found = self._by(self.prefill, self.prefill_tp, pe)
        return found if pe in self.prefill else self._by(self.decode, self.decode_tp, pe)

    def shape(self, heads: int, pages: int | None = None) -> tuple[int, ...]:
        """That of a layer with so many heads."""
        pages = self.pages if pages is None else pages
        ahead = (2, pages) if self.apart else (pages, 2)
        return *ahead, self.page_size, heads, self.head_dim

    def _strides(self, heads: int) -> tuple[int, int, int]:
        """Of pages, halves and lines."""
        line = heads * self.head_dim
        half = line * self.page_size
        return (half, half * self.pages, line) if self.apart else (2 * half, half, line)

    def _route(self, sender: int, receiver: int, other: int) -> Route | None:
        """From one PE to another, of which `other` is the one that is not here."""
        rank = self.prefill.index(sender) % self.prefill_tp
        first, last = self._share(self.prefill_tp, rank)
        mine, theirs = (first, last), self._by(self.decode, self.decode_tp, receiver)
        if rank:  # where several have a head, the first of them sends it
            first = max(first, self._share(self.prefill_tp, rank - 1)[1])
        first, last = max(first, theirs[0]), min(last, theirs[1])
        if first >= last:
            return None
        src, dst = (self._strides(b - a) for a, b in (mine, theirs))
        halves, lines, length = 2, self.page_size, (last - first) * self.head_dim
        if length == src[2] == dst[2]:
            lines, length = 1, length * lines
            if not self.apart:
                halves, length = 1, 2 * length
        layer = prod(self.shape(theirs[1] - theirs[0]))
        begins = ((first - heads[0]) * self.head_dim for heads in (mine, theirs))
        src_at, dst_at = begins
        return Route(0, other, rank, halves, lines, length, 0, src_at, *src, dst_at, *dst, layer)

    def routes(self, pe: int, instance: int) -> list[Route]:
        """What a PE sends to a decoding instance."""
        if pe not in self.prefill:
            return []
        to = self.decode[instance * self.decode_tp :][: self.decode_tp]
        found = (self._route(pe, other, other) for other in to)
        return [route for route in found if route]

    def sources(self, pe: int, instance: int) -> list[Route]:
        """What a PE gets from a prefill instance."""
        if pe not in self.decode:
            return []
        of = self.prefill[instance * self.prefill_tp :][: self.prefill_tp]
        found = (self._route(other, pe, other) for other in of)
        return [route for route in found if route]


def most_in_unit(plan: Any) -> int:
    """How many numbers are sent at a time: by a warp, or over a network, or as 8-bit floats."""
    dim = plan._sides.head_dim
    if plan.wire:
        return max(1, ROW // dim) * dim
    by_warps = plan.reachable and plan.tuning.multiprocessors
    warps = max(1, plan.threads // WARP) if by_warps else 1
    return max(1, plan.tuning.piece_bytes // warps // (dim * plan.dtype.itemsize)) * dim


def units_of(route: Route, pages: int) -> int:
    """How many pieces so many pages are sent in."""
    return pages * route.halves * route.lines * -(-route.length // route.most)
