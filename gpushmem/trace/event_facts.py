"""What numbers in a PE's events mean, written down when it becomes known: lines, names, arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import CodeType
from typing import Any

from gpushmem.source_lines import Place, assigned_name, line_at
from gpushmem.trace.counters import Counters
from gpushmem.trace.ring import Ring

__all__ = ["Facts"]


class Facts:
    """The facts of a ring; `now()` is the time, in its ticks."""

    def __init__(self, ring: Ring | Counters, now: Callable[[], int]) -> None:
        self._ring, self._now = ring, now
        # By the code's number and the instruction: to hash code takes a while. The code is kept.
        self._sites: dict[tuple[int, int], tuple[int, CodeType]] = {}
        self._known: set[tuple[str, int]] = set()  # of kernels
        self._names: dict[str, int] = {}
        self._arrays: dict[int, Any] = {}

    def site(self, place: Place) -> int:
        """The number of a line of the host's."""
        code, at = place
        known = self._sites.get((id(code), at))
        if known is None:
            known = self._sites[id(code), at] = -1 - len(self._sites), code
            text = f"{line_at(code, at)} in {code.co_name}"
            self._ring.describe(site=known[0], text=text, path=code.co_filename)
        return known[0]

    def of_kernel(self, what: str, number: int, text: Callable[[], str]) -> None:
        """A line ("site") or a "name" in kernels has this number; its text is asked for once."""
        if (what, number) not in self._known:
            self._known.add((what, number))
            self._ring.describe(**{what: number, "text": text()})

    def name(self, text: str) -> int:
        """The number of a name."""
        number = self._names.get(text)
        if number is None:
            number = self._names[text] = len(self._names) + 1
            self._ring.describe(name=number, text=text)
        return number

    def team(self, team: int, pes: Any) -> None:
        """The members of a team that is made now."""
        self._ring.describe(team=team, pes=pes, ticks=self._now())

    def arrays(self, allocated: Iterable[Any]) -> None:
        """Of all symmetric arrays, the new ones."""
        for a in allocated:
            if self._arrays.get(a.offset) is not a:
                self._arrays[a.offset] = a
                self._ring.describe(
                    array=int(a.offset), bytes=int(a.nbytes), dtype=str(a.dtype),
                    shape=list(a.shape), name=assigned_name(a.where) or "", where=str(a.where),
                    ticks=self._now(),
                )  # fmt: skip

    def released(self, offset: int) -> None:
        """An array has been freed."""
        self._arrays.pop(offset, None)
        self._ring.describe(freed=int(offset), ticks=self._now())
