"""The words that PEs wait for: how often and how long threads waited, and who wrote them."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpushmem.trace.analysis import WAITS, WRITES
from gpushmem.trace.reading import OPEN, Trace

__all__ = ["signals"]


def signals(trace: Trace) -> list[dict[str, Any]]:
    """The signals of a trace, and other words that threads waited for: the longest waits first.

    Of each one the `pe` that has it and its `name`, such as "arrived[2]"; how many `waits` there
    were, the time of all (`ns`) and of the longest (`longest_ns`), with the `line` of that one;
    and the PEs that wrote it (`writers`). Waits that had not ended last until the trace does.
    """
    events = trace.events
    waits = np.flatnonzero(np.isin(events["kind"], WAITS) & (events["at"] >= 0))
    writes = events[np.isin(events["kind"], WRITES)]
    ended = np.where(events["ended"] == OPEN, trace.end, events["ended"])
    took, (numbers, lines) = ended - events["began"], trace.lines
    keys = np.stack([events[name][waits] for name in ("of", "at", "nbytes")], 1)
    unique, which = np.unique(keys, axis=0, return_inverse=True)
    found = []
    for k, (pe, at, nbytes) in enumerate(unique.tolist()):
        here = waits[which.ravel() == k]
        longest = here[took[here].argmax()]
        written = (writes["pe"] == pe) & (writes["at"] < at + nbytes)
        written &= writes["at"] + np.maximum(writes["nbytes"], 1) > at
        found.append({
            "pe": pe, "name": _name(trace, pe, at, nbytes, int(events["began"][longest])),
            "waits": len(here), "ns": int(took[here].sum()), "longest_ns": int(took[longest]),
            "line": lines[numbers[longest]],
            "writers": np.unique(writes["of"][written]).tolist(),
        })  # fmt: skip
    return sorted(found, key=lambda row: (-row["ns"], row["pe"], row["name"]))


def _name(trace: Trace, pe: int, at: int, nbytes: int, when: int) -> str:
    """What is at an offset of the heap, at a time."""
    arrays = [
        fact for fact in trace.facts.get(pe, ())
        if "array" in fact and fact["array"] <= at < fact["array"] + fact["bytes"]
    ]  # fmt: skip
    known = [fact for fact in arrays if fact["ns"] <= when] or arrays
    if not known:
        return f"offset {at:#x}"
    fact = known[-1]
    size = max(fact["bytes"] // max(int(np.prod(fact["shape"])), 1), 1)
    name, first = fact["name"] or "array", (at - fact["array"]) // size
    if nbytes > size:
        return f"{name}[{first}:{first + nbytes // size}]"
    return f"{name}[{', '.join(map(str, np.unravel_index(first, fact['shape'])))}]"
