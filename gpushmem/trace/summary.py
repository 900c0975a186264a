"""A trace in numbers: what `gpushmem trace summary` prints, and `trace diff` compares."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpushmem.trace.analysis import (
    COMPILING,
    COMPUTING,
    IDLE,
    MOVING,
    WAITING,
    Analysis,
    Wait,
)
from gpushmem.trace.reading import Trace
from gpushmem.trace.ring import CALL, COMPILE, FIRST_OP, KERNEL, MEET, RANGE

__all__ = ["changes", "has_line", "summary"]

STATE_NAMES = {
    COMPUTING: "computing", MOVING: "moving", WAITING: "waiting", COMPILING: "compiling",
    IDLE: "idle",
}  # fmt: skip


def summary(trace: Trace, analysis: Analysis | None = None) -> dict[str, Any]:
    """All of it, as data; times in nanoseconds.

    `pes`: of each PE the time in each state, from `computing` to `idle` (`analysis` says what they
    are), the part of moving in which it computed, too, and bytes. `sent`: bytes from each PE (row)
    to each (column). `waits`: who waited for whom, by lines, longest total first. `lines`: time of
    operations, by line. `kernels`: time by name. `ranges`: time of those that the program names,
    and what their PE did in it. `critical_path`: its steps.
    """
    analysis = analysis or Analysis(trace)
    return {
        "n_pes": trace.n_pes,
        "ns": trace.end,
        "events": len(trace.events),
        "lost": {str(pe): n for pe, n in trace.lost.items()},
        "pes": _pes(analysis),
        "sent": analysis.sent.tolist(),
        "waits": _waits(analysis),
        "lines": _lines(analysis),
        "kernels": _kernels(analysis),
        "ranges": _ranges(analysis),
        "critical_path": _path(analysis),
    }


def _pes(analysis: Analysis) -> list[dict[str, Any]]:
    found, sent = [], analysis.sent
    for pe, spent in enumerate(analysis.time.tolist()):
        row: dict[str, Any] = {"pe": pe}
        row |= {name: spent[state] for state, name in STATE_NAMES.items()}
        row |= {"overlap": spent[-1], "sent": int(sent[pe].sum())}
        found.append(row | {"received": int(sent[:, pe].sum())})
    return found


def _waits(analysis: Analysis) -> list[dict[str, Any]]:
    groups: dict[Any, list[Wait]] = {}
    for wait in analysis.waits:
        if wait.ns > 0:
            groups.setdefault(_key(analysis, wait), []).append(wait)
    found = []
    for (pe, what, line, by_pe, by_what, by_line), waits in groups.items():
        longest = max(waits, key=lambda wait: wait.ns)
        found.append(
            {
                "pe": pe, "what": what, "line": line,
                "by_pe": by_pe, "by_what": by_what, "by_line": by_line,
                "times": len(waits), "ns": sum(wait.ns for wait in waits),
                "longest_ns": longest.ns, "longest_at": longest.began,
            }
        )  # fmt: skip
    return sorted(found, key=lambda row: -row["ns"])


def _key(analysis: Analysis, wait: Wait) -> Any:
    """Who waited in what, at which line, for whom."""
    return (*_place(analysis, wait.event), *_place(analysis, wait.by))


def _place(analysis: Analysis, index: int) -> tuple[int | None, str, str]:
    if index < 0:
        return None, "", ""
    (label, labels), (line, lines) = analysis.trace.labels, analysis.trace.lines
    return int(analysis.events["of"][index]), labels[label[index]], lines[line[index]]


def _lines(analysis: Analysis) -> list[dict[str, Any]]:
    """Operations and host calls by what they are and their line, of all PEs."""
    events, kind = analysis.events, analysis.events["kind"]
    moved = np.where(kind >= FIRST_OP, events["nbytes"], 0)
    (label, labels), (line, lines) = analysis.trace.labels, analysis.trace.lines
    found = [
        {"what": labels[what], "line": lines[where], "times": times, "ns": ns, "bytes": nbytes}
        for what, where, times, ns, nbytes in _sums(analysis, has_line(events), label, line, moved)
    ]
    return sorted(found, key=lambda row: -row["ns"])


def has_line(events: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Which events are operations or calls of the host, whose time is told by line."""
    kind = events["kind"]
    return (kind >= FIRST_OP) | np.isin(kind, (CALL, MEET, COMPILE))


def _sums(analysis: Analysis, chosen: Any, first: Any, second: Any, moved: Any) -> Any:
    """By two numbers that events have: both, how many events, their time and what they moved."""
    took = analysis.ended - analysis.events["began"]
    many = int(second.max(initial=0)) + 1
    keys, which = np.unique((first * many + second)[chosen], return_inverse=True)
    sums = []
    for values in (np.ones(len(took), np.int64), took, moved):
        total = np.zeros(len(keys), np.int64)
        np.add.at(total, which, values[chosen])
        sums.append(total)
    return zip(*(each.tolist() for each in (keys // many, keys % many, *sums)), strict=True)


def _kernels(analysis: Analysis) -> list[dict[str, Any]]:
    events, (label, labels) = analysis.events, analysis.trace.labels
    chosen = events["kind"] == KERNEL
    found = [
        {"name": labels[name], "pe": pe, "times": times, "ns": ns}
        for name, pe, times, ns, _ in _sums(analysis, chosen, label, events["of"], label)
    ]
    return sorted(found, key=lambda row: (-row["ns"], row["pe"]))


def _ranges(analysis: Analysis) -> list[dict[str, Any]]:
    (label, labels), of = analysis.trace.labels, analysis.events["of"]
    indices = np.flatnonzero(analysis.events["kind"] == RANGE)
    keys, which = np.unique(np.stack([label[indices], of[indices]], 1), axis=0, return_inverse=True)
    took = (analysis.ended - analysis.events["began"])[indices]
    columns = {"times": np.ones(len(indices), np.int64), "ns": took}
    columns |= {
        name: analysis.spent(indices)[:, state]
        for state, name in STATE_NAMES.items()
        if state != IDLE
    }
    found = [{"name": labels[name], "pe": pe} for name, pe in keys.tolist()]
    for column, values in columns.items():
        total = np.zeros(len(keys), np.int64)
        np.add.at(total, which.ravel(), values)
        for row, value in zip(found, total.tolist(), strict=True):
            row[column] = value
    return sorted(found, key=lambda row: (-row["ns"], row["pe"]))


def _path(analysis: Analysis) -> list[dict[str, Any]]:
    found = []
    for step in analysis.critical_path:
        row: dict[str, Any] = {"pe": step.pe, "began": step.began, "ended": step.ended}
        if step.wait is not None:
            pe, what, line = _place(analysis, step.wait.event)
            row["then"] = {"pe": pe, "what": what, "line": line, "waited_ns": step.wait.ns}
        found.append(row)
    return found


def changes(before: dict[str, Any], after: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """What changed from one summary to another, by title: the largest changes first.

    Each row has what it is `of`, `a_ns` and `b_ns`; of what happens several times, how often.
    """
    whole = [{"of": "the job", "a_ns": before["ns"], "b_ns": after["ns"]}]
    for name in (*STATE_NAMES.values(), "overlap"):
        a, b = (sum(pe[name] for pe in each["pes"]) for each in (before, after))
        whole.append({"of": f"{name}, all PEs", "a_ns": a, "b_ns": b})
    keys = {
        "Kernels": ("kernels", ("name",)),
        "Ranges": ("ranges", ("name",)),
        "Operations, by line": ("lines", ("what", "line")),
    }
    found = {"Time": whole}
    for title, (part, names) in keys.items():
        sums: dict[str, list[list[int]]] = {}
        for which, each in enumerate((before, after)):
            for row in each[part]:
                total = sums.setdefault(", ".join(row[k] for k in names), [[0, 0], [0, 0]])[which]
                total[0] += row["ns"]
                total[1] += row["times"]
        rows = [
            {"of": of, "a_ns": a[0], "b_ns": b[0], "a_times": a[1], "b_times": b[1]}
            for of, (a, b) in sums.items()
        ]
        found[title] = sorted(rows, key=lambda row: -abs(row["b_ns"] - row["a_ns"]))
    return found
