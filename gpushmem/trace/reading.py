"""Reading a trace: the events of all PEs, in nanoseconds from the beginning of the job."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gpushmem import settings
from gpushmem.errors import ArgumentError, ShmemError
from gpushmem.ops import OPS
from gpushmem.trace.ring import (
    COMPILE,
    EVENT,
    FIRST_OP,
    HEADER,
    KERNEL,
    KIND_OF,
    KINDS,
    MAGIC,
    NO_PE,
    RING,
    VERSION,
    facts_of,
    gpu_path,
    opened,
    paths,
)

__all__ = ["LOADED", "OPEN", "Array", "Trace", "load"]

# What `Trace.events` has: as EVENT, with times in nanoseconds, and of which PE it is.
LOADED = np.dtype(
    [
        ("of", "i4"),  # PE that has recorded it
        ("began", "i8"),  # nanoseconds from the first event of the job
        ("ended", "i8"),  # ... ; OPEN: it had not ended when the trace did
        *((name, EVENT[name]) for name in (EVENT.names or ())[2:]),
        ("number", "u4"),  # of the event in its PE, from 1: the `launch` of a kernel's events
    ]
)
OPEN = -1


class Array(NamedTuple):
    """An array of the heap, and when it was there, in nanoseconds.

    `began` is when its PE noted it: others may have written to it by then.
    """

    offset: int
    nbytes: int
    name: str  # "": unknown
    shape: tuple[int, ...]
    began: int
    ended: int  # when it was freed, or OPEN

    def element(self, offset: int, nbytes: int) -> str:
        """What is at an offset of the heap: "arrived[2]", or "rows[1, 2]", or "arrived[0:3]"."""
        size = max(self.nbytes // max(prod(self.shape), 1), 1)
        name, first = self.name or "array", (offset - self.offset) // size
        if nbytes > size or first >= prod(self.shape):
            return f"{name}[{first}:{first + -(-nbytes // size)}]"
        index = ", ".join(map(str, np.unravel_index(first, self.shape)))
        return f"{name}[{index}]" if index else name


@dataclass
class Trace:
    """The events of a job, ordered by when they began, and what numbers in them mean."""

    events: np.ndarray[Any, Any]  # of LOADED
    n_pes: int
    lost: dict[int, int]  # PE -> how many of its events were overwritten
    facts: dict[int, list[dict[str, Any]]]  # by PE; `ns` is when
    end: int  # nanoseconds: when the last event ended, or began

    @cached_property
    def kinds(self) -> dict[int, str]:
        """The name of each kind of event: an operation's, or one of `ring.KINDS`."""
        return KINDS | {FIRST_OP + k: name for k, name in enumerate(OPS)}

    @cached_property
    def arrays(self) -> dict[int, list[Array]]:
        """The arrays of each PE's heap, those that were freed, too, in the order of allocation."""
        found: dict[int, list[Array]] = {}
        for pe, facts in self.facts.items():
            arrays, at = found.setdefault(pe, []), {}
            for fact in facts:
                if "array" in fact:
                    offset, nbytes, shape = (fact[key] for key in ("array", "bytes", "shape"))
                    at[offset] = len(arrays)
                    arrays.append(
                        Array(offset, nbytes, fact["name"], tuple(shape), fact["ns"], OPEN)
                    )
                elif fact.get("freed") in at:
                    k = at.pop(fact["freed"])
                    arrays[k] = arrays[k]._replace(ended=fact["ns"])
        return found

    def arrays_at(self, pe: int, offset: int) -> list[Array]:
        """The arrays that had this offset of a PE's heap, one after the other."""
        return [a for a in self.arrays.get(pe, ()) if 0 <= offset - a.offset < a.nbytes]

    def array_at(self, pe: int, offset: int, when: int) -> Array | None:
        """The array that had this offset of a PE's heap at a time."""
        there = (a for a in self.arrays_at(pe, offset) if a.ended == OPEN or when < a.ended)
        return next(there, None)

    def site(self, pe: int, number: int) -> str:
        """The source line that a number stands for, "file.py:12 in function"; "" for 0."""
        return self._text(pe, "site", number)

    def name(self, pe: int, number: int) -> str:
        """The name that a number stands for."""
        return self._text(pe, "name", number)

    def _text(self, pe: int, what: str, number: int) -> str:
        return self._texts.get((pe, what, int(number)), "")

    @cached_property
    def _texts(self) -> dict[tuple[int, str, int], str]:
        return {
            (pe, what, fact[what]): fact["text"]
            for pe, facts in self.facts.items()
            for fact in facts
            for what in ("site", "name")
            if what in fact and "text" in fact
        }

    @cached_property
    def labels(self) -> tuple[np.ndarray[Any, Any], list[str]]:
        """What all events are called: of each event a number, and the text of each number."""
        kind = self.events["kind"]
        number = np.where(kind == KERNEL, self.events["pe"], self.events["value"])
        named = kind < FIRST_OP
        keys = kind, np.where(named, self.events["of"], 0), np.where(named, number, 0)
        return self._numbered(keys, self.label)

    @cached_property
    def lines(self) -> tuple[np.ndarray[Any, Any], list[str]]:
        """The source lines of all events, in the same way; "" where there is none."""
        keys = self.events["of"], self.events["site"]
        return self._numbered(keys, lambda event: self.site(event["of"], event["site"]))

    def _numbered(self, keys: Any, text: Any) -> tuple[np.ndarray[Any, Any], list[str]]:
        which = np.zeros(len(self.events), np.int64)
        for key in keys:
            values, numbers = np.unique(key, return_inverse=True)
            which = which * len(values) + numbers
        _, first, which = np.unique(which, return_index=True, return_inverse=True)
        texts = [text(self.events[k]) for k in first]
        number_of = {text: k for k, text in enumerate(dict.fromkeys(texts))}
        return np.array([number_of[text] for text in texts], np.int64)[which], list(number_of)

    def label(self, event: Any) -> str:
        """What an event is called: its operation, its kernel, what the host called."""
        kind = int(event["kind"])
        if kind == KERNEL:
            return self.name(int(event["of"]), int(event["pe"])) or KINDS[kind]
        if kind < FIRST_OP:
            name = self.name(int(event["of"]), int(event["value"])) or KINDS[kind]
            return f"compile {name}" if kind == COMPILE else name
        return self.kinds[kind]

    def frame(self) -> Any:
        """The events as a pandas DataFrame, with names in the place of numbers."""
        import pandas as pd  # noqa: PLC0415  (for those who have it)

        table = pd.DataFrame({name: self.events[name] for name in LOADED.names or ()})
        for name, (numbers, texts) in (("what", self.labels), ("line", self.lines)):
            table[name] = np.array(texts, object)[numbers]
        return table


def load(path: str | Path) -> Trace:
    """Read the trace in a folder, also one that PEs are still writing, or that were killed.

    Raises `ArgumentError` if there is none, or one that is damaged, or of another version.
    """
    folder = Path(path)
    try:
        return _loaded_from(folder)
    except ShmemError:
        raise
    except OSError as error:
        raise ArgumentError(f"{error.filename} cannot be read: {error.strerror}") from None
    except Exception as error:  # numbers without a meaning, wherever they are used
        raise ArgumentError(f"{folder}: the trace is damaged ({error})") from error


def _loaded_from(folder: Path) -> Trace:
    rings = {pe: _read(paths(folder, pe)[0]) for pe in _pes(folder)}
    if not rings:
        raise ArgumentError(
            f"{folder} has no trace: `gpushmem run --trace {folder} SCRIPT` writes one"
        )
    scale = _Scale([ring.header for ring in rings.values()])  # one: they have one clock
    parts, lost = [], {}
    for pe, ring in rings.items():
        parts.append(_loaded(ring, pe, scale, 0))
        lost[pe] = ring.lost
        if gpu_path(folder, pe).exists():
            on_gpu = _read(gpu_path(folder, pe))
            parts.append(_loaded(on_gpu, pe, _Scale([on_gpu.header]), int(ring.header["n"])))
            lost[pe] += on_gpu.lost
    lost = {pe: n for pe, n in lost.items() if n}
    events = np.concatenate(parts)
    events = events[np.argsort(events["began"], kind="stable")]
    first = int(events["began"][0]) if len(events) else 0
    events["began"] -= first
    events["ended"][events["ended"] != OPEN] -= first
    end = int(max(events["began"].max(), events["ended"].max())) if len(events) else 0
    facts, operations = {pe: facts_of(paths(folder, pe)[1]) for pe in rings}, list(OPS)
    for fact in chain.from_iterable(facts.values()):
        if not _makes_sense(fact):
            raise ArgumentError(f"{folder}: the trace is damaged: {fact!r:.80} is no fact")
        if "ticks" in fact:
            fact["ns"] = int(scale.ns(np.int64(fact["ticks"]))) - first
        if "operations" in fact:
            operations = fact["operations"]
    n_pes = max(int(ring.header["n_pes"]) for ring in rings.values())
    kinds, kind, other = _kinds(folder, operations), events["kind"], events["pe"]
    known = kind < len(kinds)
    if not known.all() or ((kind >= FIRST_OP) & ((other < NO_PE) | (other >= n_pes))).any():
        raise ArgumentError(f"{folder}: the trace is damaged: events of no kind, or of no PE")
    events["kind"] = kinds[kind]
    for pe, of_pe in facts.items():
        _give_lines(events, pe, [f["site"] for f in of_pe if "site" in f and ":" not in f["text"]])
    return Trace(events, n_pes, lost, facts, end)


def _give_lines(events: np.ndarray[Any, Any], pe: int, without: list[int]) -> None:
    """What a kernel does for a call of the host, on no line of its own, has the line of that."""
    of_pe, called = events["of"] == pe, (events["launch"] == 0) & (events["site"] != 0)
    rows, hosts = np.flatnonzero(of_pe & np.isin(events["site"], without)), of_pe & called
    if len(rows) and hosts.any():
        last = np.searchsorted(events["began"][hosts], events["began"][rows], "right") - 1
        events["site"][rows] = events["site"][hosts][np.maximum(last, 0)]


# By what facts are about, the first of these keys: types of its value, and of what goes with it.
FACTS: dict[str, dict[str, type]] = {
    "array": {"array": int, "bytes": int, "shape": list, "name": str, "ticks": int},
    "freed": {"freed": int, "ticks": int},
    "team": {"team": int, "pes": list, "ticks": int}, "site": {"site": int, "text": str},
    "name": {"name": int, "text": str}, "operations": {"operations": list},
}  # fmt: skip


def _makes_sense(fact: Any) -> bool:
    """Whether a fact is of a kind that is written; others, of later versions, are left alone."""
    if not isinstance(fact, dict):
        return False
    about = next((what for what in FACTS if what in fact), None)
    if about is None:
        return True
    sizes = fact.get("shape", [])
    return all(isinstance(fact.get(k), kind) for k, kind in FACTS[about].items()) and all(
        isinstance(size, int) and size >= 0 for size in sizes
    )


def _kinds(folder: Path, operations: list[str]) -> np.ndarray[Any, Any]:
    """The kinds of this version by those of the one that has written a trace."""
    unknown = [name for name in operations if name not in KIND_OF]
    if unknown:
        raise ArgumentError(
            f"{folder} is of another version of gpushmem, which has operations that this one has "
            f"not: {', '.join(unknown)}"
        )
    return np.array([*range(FIRST_OP), *map(KIND_OF.__getitem__, operations)], np.uint16)


def _pes(folder: Path) -> list[int]:
    names = (re.fullmatch(r"pe(\d+)\.ring", path.name) for path in folder.glob("pe*.ring"))
    return sorted(int(name[1]) for name in names if name)


class _Read(NamedTuple):
    """The header of a ring, its events and their numbers, from 1, and how many are lost."""

    header: Any
    events: np.ndarray[Any, Any]
    numbers: np.ndarray[Any, Any]
    lost: int


def _read(path: Path) -> _Read:
    with opened(path) as file:
        start, size = file.read(HEADER), os.fstat(file.fileno()).st_size
        if len(start) < HEADER:
            raise ArgumentError(f"{path} is damaged: it has {size} bytes, and its header {HEADER}")
        header = np.frombuffer(start[: RING.itemsize], RING)[0]
        if header["magic"] != MAGIC or header["version"] != VERSION:
            raise ArgumentError(
                f"{path} is no trace of version {VERSION}, which this gpushmem reads"
            )
        n, most, n_pes = (int(header[name]) for name in ("n", "most", "n_pes"))
        count = min(n, most)
        if min(n, int(header["lost"])) < 0 or min(most, n_pes) < 1 or n_pes > settings.MOST:
            raise ArgumentError(f"{path} is damaged: {n} events of {n_pes} PEs, in {most} places")
        if size < HEADER + count * EVENT.itemsize:
            raise ArgumentError(f"{path} is cut off: it has {size} bytes, and {count} events")
        events = np.fromfile(file, EVENT, count)
    if n > most:
        events = np.roll(events, -(n % most))
    numbers = np.arange(n - count, n) + 1
    written = events["began"] != 0  # else the PE was killed before it had written it
    return _Read(header, events[written], numbers[written], n - count + int(header["lost"]))


def _loaded(ring: _Read, pe: int, scale: _Scale, before: int) -> np.ndarray[Any, Any]:
    """Events as `Trace` has them; `before`: how many numbers the PE's other ring has."""
    events, part = ring.events, np.zeros(len(ring.events), LOADED)
    part["of"] = pe
    part["began"] = scale.ns(events["began"])
    part["ended"] = np.where(events["ended"] == 0, OPEN, scale.ns(events["ended"]))
    for name in (EVENT.names or ())[2:]:
        part[name] = events[name]
    part["number"] = ring.numbers + before
    in_kernels = part["launch"] != 0
    part["launch"][in_kernels] += np.uint32(before)
    return part


class _Scale:
    """Nanoseconds of ticks, from what both clocks showed at two moments, far apart."""

    def __init__(self, headers: list[Any]) -> None:
        pairs = sorted(
            (int(ticks), int(ns))
            for header in headers
            for ticks, ns in zip(header["ticks"], header["ns"], strict=True)
            if ns
        ) or [(0, 0)]
        (self._ticks, self._ns), (last, until) = pairs[0], pairs[-1]
        self._rate = (until - self._ns) / (last - self._ticks) if last > self._ticks else 1.0

    def ns(self, ticks: Any) -> Any:
        return ((ticks - self._ticks) * self._rate).astype(np.int64) + self._ns
