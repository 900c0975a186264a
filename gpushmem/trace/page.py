"""A trace as one HTML page that needs nothing else: `page.html`, with the trace put into it.

The page is built of the sources in `page/`. What it shows is computed here; it gets the events as
columns of numbers, gzipped, in which those of a lane lie together, ordered by time. A lane is a
line of the timeline: events of a host's thread, of a stream or of a block that do not overlap.
"""

from __future__ import annotations

import base64
import gzip
import html
import json
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from gpushmem.trace.analysis import CATEGORIES, GETS, MOVES, Analysis
from gpushmem.trace.reading import OPEN, Trace, load
from gpushmem.trace.ring import FIRST_OP, KERNEL, THREADS
from gpushmem.trace.summary import has_line, summary

__all__ = ["Shown", "page", "place", "show", "write"]

MOMENTS = 20_000  # at most, at which it is told how much has been moved
HOSTS, STREAMS, BLOCKS = range(3)  # sorts of tracks, in their order
NAMES = {HOSTS: "host", STREAMS: "stream", BLOCKS: "block"}
TYPES = {"f8": "<f8", "i4": "<i4", "u4": "<u4", "u2": "<u2", "u1": "u1"}


def write(trace: Trace, path: Path, title: str = "") -> None:
    """Write the page to a file; its title is the name of the file's folder, unless one is given."""
    path.write_text(page(trace, title or path.resolve().parent.name), "utf-8")


def show(path: str | Path | Trace, height: int = 720) -> Shown:
    """The page of the trace in a folder, for a notebook to show where it is the result of a cell.

    A trace that has been loaded has no title. `height` is in pixels. Raises `ArgumentError` as
    `load` does.
    """
    if isinstance(path, Trace):
        return Shown(page(path, ""), height)
    return Shown(page(load(path), Path(path).resolve().name), height)


class Shown:
    """A page, as notebooks show it: in a frame of its own."""

    def __init__(self, text: str, height: int) -> None:
        self._text, self._height = text, height

    def _repr_html_(self) -> str:
        text = html.escape(self._text, quote=True)
        style = f"width: 100%; height: {self._height}px; border: 0"
        return f'<iframe srcdoc="{text}" style="{style}" title="gpushmem trace"></iframe>'


def page(trace: Trace, title: str) -> str:
    """The page as text."""
    template = files("gpushmem.trace").joinpath("page.html").read_text("utf-8")
    meta, columns = _data(trace)
    texts = {
        "{{meta}}": json.dumps(meta | {"title": title}).replace("<", "\\u003c"),
        "{{columns}}": base64.b64encode(gzip.compress(columns, 6, mtime=0)).decode(),
    }
    return re.sub("|".join(texts), lambda mark: texts[mark[0]], template)


def place(trace: Trace) -> tuple[np.ndarray[Any, Any], list[dict[str, Any]]]:
    """The lane of each event, and the tracks that the lanes belong to, in order.

    A track has its `pe`, its `name`, its `first` lane and how many `lanes`.
    """
    events = trace.events
    kernel = events["kind"] == KERNEL
    sort = np.where(kernel, STREAMS, np.where(events["launch"] == 0, HOSTS, BLOCKS))
    number = np.where(kernel, events["value"], events["block"])
    ended = np.where(events["ended"] == OPEN, trace.end, events["ended"])
    order = np.lexsort((-ended, events["began"], number, sort, events["of"]))
    keys = np.stack([events["of"], sort, number], 1)[order]
    edges = np.flatnonzero(np.any(keys[1:] != keys[:-1], 1)) + 1
    lane, first = np.zeros(len(events), np.int64), 0
    tracks: list[dict[str, Any]] = []
    for part in np.split(order, edges) if len(keys) else ():
        lanes = _apart(events["began"][part], ended[part])
        lane[part] = first + lanes
        of, which, k = (int(x) for x in (events["of"][part[0]], sort[part[0]], number[part[0]]))
        name = "operations of the host" if (which, k) == (STREAMS, 0) else f"{NAMES[which]} {k}"
        n = int(lanes.max()) + 1
        tracks.append({"pe": of, "name": name, "first": first, "lanes": n})
        first += n
    return lane, tracks


def _apart(began: np.ndarray[Any, Any], ended: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Lanes for spans, ordered by their beginning: each the first one that is free by then."""
    if np.all(began[1:] >= ended[:-1]):
        return np.zeros(len(began), np.int64)
    free: list[int] = []
    found = np.empty(len(began), np.int64)
    for k, (start, end) in enumerate(zip(began.tolist(), ended.tolist(), strict=True)):
        lane = next((lane for lane, until in enumerate(free) if until <= start), len(free))
        if lane == len(free):
            free.append(end)
        else:
            free[lane] = end
        found[k] = lane
    return found


def _data(trace: Trace) -> tuple[dict[str, Any], bytes]:
    """What the page is told, and the columns that it says where to find."""
    analysis, events = Analysis(trace), trace.events
    lane, tracks = place(trace)
    order = np.lexsort((events["began"], lane))
    at = np.empty(len(order) + 1, np.int64)  # an event's place in the page, by its index
    at[order], at[-1] = np.arange(len(order)), -1
    (label, labels), (site, sites) = trace.labels, trace.lines
    by = analysis.released.copy()
    n_lanes = sum(track["lanes"] for track in tracks)
    in_kernel = (events["launch"] != 0) & (events["kind"] >= FIRST_OP)
    # Arrows, those of the longest waits first; also to a wait that found what it waits for.
    waited, over = np.zeros(len(events), np.int64), analysis.ended.copy()
    for wait in analysis.waits:
        waited[wait.event], over[wait.event], by[wait.event] = wait.ns, wait.ended, wait.by
    arrows = np.flatnonzero((by >= 0) | (waited > 0))
    arrows = arrows[np.argsort(-waited[arrows], kind="stable")]
    columns = {
        "began": ("f8", events["began"][order]),
        "ns": ("f8", (analysis.ended - events["began"])[order]),
        "bytes": ("f8", np.where(events["kind"] >= FIRST_OP, events["nbytes"], 0)[order]),
        "by": ("i4", at[by[order]]),
        "peer": ("i4", np.where(events["kind"] >= FIRST_OP, events["pe"], -1)[order]),
        "thread": ("i4", np.where(in_kernel, events["thread"].astype(int) % THREADS, -1)[order]),
        "label": ("u4", label[order]),
        "site": ("u4", site[order]),
        "lane": ("u4", lane[order]),
        "category": ("u1", analysis.categories[order]),
        "has_line": ("u1", has_line(events)[order]),
        "sends": ("u1", _sends(trace)[order]),
        "open": ("u1", (events["ended"] == OPEN)[order]),
        "lane_starts": ("u4", np.searchsorted(lane[order], np.arange(n_lanes + 1))),
        "track": ("u4", np.repeat(np.arange(len(tracks)), [t["lanes"] for t in tracks])),
        "wait_event": ("i4", at[arrows]),
        "wait_by": ("i4", np.where(by[arrows] < 0, -1, at[by[arrows]])),
        "wait_over": ("f8", over[arrows]),
        "wait_ns": ("f8", waited[arrows]),
    }
    columns |= _states(analysis) | _moved(analysis) | _heap(trace)
    parts, where, offset = [], {}, 0
    for name, (kind, values) in columns.items():
        column = np.ascontiguousarray(values, TYPES[kind]).tobytes()
        where[name] = [kind, offset, len(values)]
        parts.append(column + bytes(-len(column) % 8))
        offset += len(parts[-1])
    meta = {
        "n_pes": trace.n_pes, "ns_all": trace.end, "lost": trace.lost, "labels": labels,
        "sites": sites, "tracks": tracks, "categories": CATEGORIES,
        "summary": summary(trace, analysis), "columns": where,
    }  # fmt: skip
    return meta, b"".join(parts)


def _sends(trace: Trace) -> np.ndarray[Any, Any]:
    """Of each event: 1 if its PE sends bytes to another or itself, 2 if it gets some, else 0."""
    kind, pe = trace.events["kind"], trace.events["pe"]
    moves = np.isin(kind, MOVES) & (pe >= 0) & (pe < trace.n_pes)
    return np.where(moves, np.where(np.isin(kind, GETS), 2, 1), 0)


def _states(analysis: Analysis) -> dict[str, tuple[str, Any]]:
    """What each PE does from when to when; neighbours that are alike are one."""
    began, ns, states, starts = [], [], [], [0]
    for edges, every, _ in analysis.states:
        longer = np.diff(edges) > 0
        since, state = edges[:-1][longer], every[longer]
        new = np.append(np.ones(min(len(state), 1), bool), state[1:] != state[:-1])
        began.append(since[new])
        ns.append(np.diff(np.append(since[new], edges[-1])))
        states.append(state[new])
        starts.append(starts[-1] + int(new.sum()))
    return {
        "state_began": ("f8", np.concatenate(began)),
        "state_ns": ("f8", np.concatenate(ns)),
        "state": ("u1", np.concatenate(states)),
        "state_starts": ("u4", starts),
    }


def _moved(analysis: Analysis) -> dict[str, tuple[str, Any]]:
    """Bytes that all PEs have moved up to some moments; those of an operation spread evenly."""
    events = analysis.events
    chosen = np.isin(events["kind"], MOVES) & (events["nbytes"] > 0)
    began = events["began"][chosen].astype(float)
    ended = np.maximum(analysis.ended[chosen], began + 1)
    rate = events["nbytes"][chosen] / (ended - began)
    times, changes = np.concatenate([began, ended]), np.concatenate([rate, -rate])
    order = np.argsort(times, kind="stable")
    times, rates = times[order], np.cumsum(changes[order])
    total = np.cumsum(np.append(0.0, rates[:-1] * np.diff(times))) if len(times) else times
    if len(times) > MOMENTS:
        even = np.linspace(0, analysis.trace.end, MOMENTS)
        times, total = even, np.interp(even, times, total)
    return {"moved_at": ("f8", times), "moved": ("f8", total)}


def _heap(trace: Trace) -> dict[str, tuple[str, Any]]:
    """Bytes of symmetric arrays of the PE that has most, from some moments on."""
    curves = []
    for facts in trace.facts.values():
        sizes: dict[int, int] = {}
        changes = [(0, 0)]
        for fact in facts:
            if "array" in fact:
                sizes[fact["array"]] = fact["bytes"]
                changes.append((max(fact["ns"], 0), fact["bytes"]))
            elif "freed" in fact:
                changes.append((max(fact["ns"], 0), -sizes.pop(fact["freed"], 0)))
        times, more = np.array(changes).T
        curves.append((times, np.cumsum(more)))
    moments = np.unique(np.concatenate([times for times, _ in curves]))
    held = [held[np.searchsorted(times, moments, "right") - 1] for times, held in curves]
    return {"heap_at": ("f8", moments), "heap": ("f8", np.max(held, 0))}
