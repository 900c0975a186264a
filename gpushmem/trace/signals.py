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
    and the PEs that wrote it (`writers`). An array that takes the place of a freed one has rows of
    its own. Waits that had not ended last until the trace does.
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
        written = writes[(writes["pe"] == pe) & (writes["at"] < at + nbytes)]
        written = written[written["at"] + np.maximum(written["nbytes"], 1) > at]
        arrays = [*trace.arrays_at(pe, at), None]  # one frees the place of the next, on all PEs
        freed = [array.ended for array in arrays if array and array.ended != OPEN]
        lives, lives_of_written = (
            np.searchsorted(freed, part["began"], "right") for part in (events[here], written)
        )
        for life in np.unique(lives).tolist():
            these, array = here[lives == life], arrays[life]
            longest = these[took[these].argmax()]
            found.append({
                "pe": pe, "name": array.element(at, nbytes) if array else f"offset {at:#x}",
                "waits": len(these), "ns": int(took[these].sum()),
                "longest_ns": int(took[longest]), "line": lines[numbers[longest]],
                "writers": np.unique(written["of"][lives_of_written == life]).tolist(),
            })  # fmt: skip
    return sorted(found, key=lambda row: (-row["ns"], row["pe"], row["name"]))
