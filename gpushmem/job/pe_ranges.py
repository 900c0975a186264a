"""Numbers of PEs as text."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["compact"]


def compact(pes: Iterable[int]) -> str:
    """Format PE numbers: "PE 3", "PEs 0, 4-7"."""
    numbers = sorted(pes)
    parts: list[list[int]] = []
    for pe in numbers:
        if parts and parts[-1][-1] == pe - 1:
            parts[-1].append(pe)
        else:
            parts.append([pe])
    texts = [
        f"{part[0]}-{part[-1]}" if len(part) > 2 else ", ".join(map(str, part)) for part in parts
    ]
    return ("PE " if len(numbers) == 1 else "PEs ") + ", ".join(texts)
