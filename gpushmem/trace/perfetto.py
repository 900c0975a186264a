"""A trace as a file for https://ui.perfetto.dev, in Perfetto's own format: packets in protobuf.

Each PE is a process. Its tracks are the threads of its host, its streams, and the blocks of its
kernels. Slices of a track must nest, but the threads of a block overlap. So a track may have others
beside it, "block 5 (2)", and one slice is inside another only if they are of one thread, or the
outer one is the block's own.

Arrows go from the event that released a wait to a mark at the end of the wait. They cannot go to
the wait itself: Perfetto makes them begin at what began first, and that is the wait.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from gpushmem.errors import ArgumentError
from gpushmem.ops import OPS
from gpushmem.trace.analysis import CATEGORIES, Analysis
from gpushmem.trace.reading import LOADED, OPEN, Trace
from gpushmem.trace.ring import BLOCK, FIRST_OP, KERNEL, NO_PE, THREADS

__all__ = ["write"]

BATCH = 10_000  # packets that are in memory at a time
PARAMS = {kind: op.params for kind, op in enumerate(OPS.values(), FIRST_OP)}
NAMES = HOST, STREAM, IN_BLOCK = "host", "stream", "block"  # of tracks, as they are ordered
FIELDS = {str: "string_value", int: "int_value", bool: "bool_value"}


def write(trace: Trace, path: Path) -> None:
    """Write a trace to a file that Perfetto opens.

    Raises `ArgumentError` if the package `perfetto` is missing.
    """
    try:
        from perfetto.protos.perfetto.trace import (  # noqa: PLC0415  (optional)
            perfetto_trace_pb2 as protobuf,
        )
    except ImportError as error:
        raise ArgumentError(
            f"writing a Perfetto trace needs the package perfetto ({error}): "
            "pip install 'gpushmem[perfetto]'"
        ) from None
    batch = protobuf.Trace()
    with open(path, "wb") as file:
        for packet in _packets(trace):
            batch.packet.add(trusted_packet_sequence_id=1, **packet)
            if len(batch.packet) == BATCH:
                file.write(batch.SerializeToString())  # several, one after the other, are one trace
                batch.Clear()
        file.write(batch.SerializeToString())


def _packets(trace: Trace) -> Iterator[dict[str, Any]]:
    """The fields of each packet; of a track in the order of time, which is all that is needed."""
    analysis = Analysis(trace)
    rows = [dict(zip(LOADED.names or (), row, strict=True)) for row in trace.events.tolist()]
    # An event that was being written when it was read may have the end of an older one.
    ends = np.maximum(analysis.ended, trace.events["began"])
    order = np.lexsort((trace.events["kind"] != BLOCK, -ends, trace.events["began"]))
    tracks = _tracks(rows, order.tolist(), ends.tolist())
    kernels = {
        (row["of"], row["number"]): trace.label(row) for row in rows if row["kind"] == KERNEL
    }
    released = {wait.event: wait.by for wait in analysis.waits if wait.by >= 0}
    flows: dict[int, list[int]] = {}  # that begin at an event; their number is that of the wait
    for wait, by in released.items():
        flows.setdefault(by, []).append(wait + 1)
    root = {"uuid": 0, "process_ordering": "PROCESS_ORDERING_EXPLICIT"}
    yield {"track_descriptor": root, "sequence_flags": 1}  # SEQ_INCREMENTAL_STATE_CLEARED
    for pe in range(trace.n_pes):
        process = {"pid": 1000 + pe, "process_name": f"PE {pe}"}  # 0 would be the idle process
        shown = {"sibling_order_rank": pe, "child_ordering": "EXPLICIT", "process": process}
        yield {"track_descriptor": {"uuid": pe + 1, **shown}}
    uuid = trace.n_pes
    for pe, kind, number in sorted(tracks, key=lambda key: (key[0], NAMES.index(key[1]), key[2])):
        for k, lane in enumerate(tracks[pe, kind, number], 1):
            uuid += 1
            name = kind if (kind, number) == (HOST, 0) else f"{kind} {number}"
            name += f" ({k})" if k > 1 else ""
            shown = {"parent_uuid": pe + 1, "name": name, "sibling_order_rank": uuid}
            yield {"track_descriptor": {"uuid": uuid, **shown}}
            for time, event in lane.turns:
                if event >= 0:
                    shown = _slice(trace, rows[event], kernels)
                    shown["categories"] = [CATEGORIES[analysis.categories[event]]]
                    shown["flow_ids"] = flows.get(event, ())
                    yield _event(uuid, time, "TYPE_SLICE_BEGIN", **shown)
                    continue
                if ~event in released:
                    name = _mark(rows[~event], rows[released[~event]])
                    flow = [~event + 1]
                    yield _event(uuid, time, "TYPE_INSTANT", name=name, terminating_flow_ids=flow)
                yield _event(uuid, time, "TYPE_SLICE_END")


def _event(uuid: int, time: int, what: str, **shown: Any) -> dict[str, Any]:
    return {"timestamp": time, "track_event": {"track_uuid": uuid, "type": what, **shown}}


def _mark(wait: dict[str, Any], by: dict[str, Any]) -> str:
    """What the end of a wait is called; one that never ended has an arrow from the last write."""
    over = wait["ended"] != OPEN
    return f"{'released by' if over else 'not over: last from'} PE {by['of']}"


@dataclass
class _Lane:
    """A part of a track, in which slices nest."""

    open: list[int] = field(default_factory=list)  # events that have begun, the innermost last
    turns: list[tuple[int, int]] = field(
        default_factory=list
    )  # time, and event k that begins, or ~k

    def close(self, until: float, ends: list[int]) -> None:
        """End what ends by then."""
        while self.open and ends[self.open[-1]] <= until:
            event = self.open.pop()
            self.turns.append((ends[event], ~event))


def _tracks(
    rows: list[dict[str, Any]], order: list[int], ends: list[int]
) -> dict[Any, list[_Lane]]:
    """The lanes of each track: of a PE, a kind of track, and a number."""
    tracks: dict[Any, list[_Lane]] = {}
    last: dict[Any, _Lane] = {}  # that a thread was in, and stays in if it can
    for k in order:
        row = rows[k]
        kind, number = IN_BLOCK if row["launch"] else HOST, row["block"]
        if row["kind"] == KERNEL:
            kind, number = STREAM, row["value"]
        lanes = tracks.setdefault((row["of"], kind, number), [])
        thread = row["of"], kind, number, row["launch"], row["thread"] % THREADS
        for lane in (last[thread], *lanes) if thread in last else lanes:
            lane.close(row["began"], ends)
            outer = rows[lane.open[-1]] if lane.open else None
            if outer is None or (
                outer["launch"] == row["launch"]
                and (outer["kind"] == BLOCK or outer["thread"] % THREADS == row["thread"] % THREADS)
                and ends[k] <= ends[lane.open[-1]]
            ):
                break
        else:
            lane = _Lane()
            lanes.append(lane)
        last[thread] = lane
        lane.open.append(k)
        lane.turns.append((row["began"], k))
    for lanes in tracks.values():
        for lane in lanes:
            lane.close(np.inf, ends)
    return tracks


def _slice(trace: Trace, row: dict[str, Any], kernels: dict[Any, str]) -> dict[str, Any]:
    """What is shown of an event; `number` is the field of this name, which finds it in a trace."""
    kind = row["kind"]
    shown: dict[str, Any] = {"number": row["number"], "line": trace.site(row["of"], row["site"])}
    if row["ended"] == OPEN:
        shown["unfinished"] = True
    if row["launch"]:
        shown["kernel"] = kernels.get((row["of"], row["launch"]), "")
    if kind == KERNEL:
        shown |= {"blocks": row["at"], "threads": row["nbytes"]}
    if kind >= FIRST_OP:
        if row["launch"]:
            shown["thread"] = row["thread"] % THREADS
        if row["pe"] != NO_PE:
            shown["peer PE"] = row["pe"]
        if row["nbytes"]:
            shown["bytes"] = row["nbytes"]
        if row["at"] >= 0:
            shown["at"] = row["at"]
        if "team" in PARAMS[kind]:
            shown["team"] = row["value"]
        elif row["value"] or "signal" in PARAMS[kind]:  # an operand that is no integer has 0
            shown["value"] = row["value"]
    pairs = [{"name": k, FIELDS[type(v)]: v} for k, v in shown.items() if v != ""]
    return {"name": trace.label(row), "debug_annotations": pairs}
