"""Traces as files for Perfetto: read back with its own protobuf, and compared with the events."""

import dataclasses
import sys
from collections import Counter

import numpy as np
import pytest

from gpushmem.errors import ArgumentError
from gpushmem.trace import load, perfetto
from gpushmem.trace.analysis import Analysis
from gpushmem.trace.reading import LOADED, OPEN, Trace
from gpushmem.trace.ring import BLOCK, KERNEL

pytestmark = pytest.mark.cpu_backend

# All threads of a block wait at the same time, so not all fit on one track.
PROGRAM = """
import gpushmem as shmem
from numba import cuda

@shmem.jit
def shift(dst, src, signal, round):
    right = (shmem.my_pe() + 1) % shmem.n_pes()
    shmem.put_signal_block(dst, src, signal, round, shmem.SIGNAL_SET, right)
    shmem.signal_wait_until(signal, shmem.CMP_GE, round)

shmem.init(heap_size="16M")
src, dst = shmem.full(1000, shmem.my_pe(), dtype="float32"), shmem.empty(1000, dtype="float32")
signals = [shmem.zeros(1, dtype="uint64") for _ in range(2)]
streams = [shmem.stream() for _ in range(2)]
for k in range(1, 4):
    for stream, signal in zip(streams, signals):
        shift[1, 4, stream](dst, src, signal, k)
    shmem.barrier_all()
if shmem.my_pe() == 0:
    shmem.p(dst, 1.0, 2)
shmem.finalize()
"""
N = 3


@pytest.fixture(scope="module")
def protobuf():
    return pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")


@dataclasses.dataclass
class Slice:
    pe: int
    track: str
    began: int
    ended: int
    name: str
    category: str
    shown: dict
    inside: list  # numbers of the events of the slices that it is in
    flows: list


@dataclasses.dataclass
class Read:
    """What a file has: its slices, and of each flow the event that it ends at."""

    processes: dict
    slices: list
    ends: dict

    def by_event(self, trace):
        """The slice of each event, by the event's index."""
        numbers = zip(trace.events["of"].tolist(), trace.events["number"].tolist(), strict=True)
        index = {key: k for k, key in enumerate(numbers)}
        assert len(index) == len(trace.events)
        slices = {index[slice_.pe, slice_.shown["number"]]: slice_ for slice_ in self.slices}
        assert len(slices) == len(self.slices)
        return slices


def value_of(annotation):
    return getattr(annotation, annotation.WhichOneof("value"))


def read(protobuf, path):
    """Read a file; slices of a track must end in the opposite order to that they begin in."""
    packets = protobuf.Trace.FromString(path.read_bytes()).packet
    assert packets[0].sequence_flags == protobuf.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
    assert {packet.trusted_packet_sequence_id for packet in packets} == {1}
    processes, tracks, stacks, times = {}, {}, {}, {}
    found = Read({}, [], {})
    types = protobuf.TrackEvent
    for packet in packets:
        if packet.HasField("track_descriptor"):
            track = packet.track_descriptor
            if track.HasField("process"):
                processes[track.uuid] = track.process
                found.processes[track.process.process_name] = track.process.pid
            elif track.uuid:
                tracks[track.uuid] = processes[track.parent_uuid], track.name
            continue
        event, time = packet.track_event, packet.timestamp
        stack = stacks.setdefault(event.track_uuid, [])
        assert time >= times.get(event.track_uuid, 0)
        times[event.track_uuid] = time
        if event.type == types.TYPE_SLICE_BEGIN:
            process, track = tracks[event.track_uuid]
            shown = {each.name: value_of(each) for each in event.debug_annotations}
            inside = [slice_.shown["number"] for slice_ in stack]
            pe = int(process.process_name.removeprefix("PE "))
            (category,) = event.categories
            slice_ = Slice(
                pe, track, time, -1, event.name, category, shown, inside, list(event.flow_ids)
            )
            stack.append(slice_)
            found.slices.append(slice_)
        elif event.type == types.TYPE_INSTANT:
            (flow,) = event.terminating_flow_ids
            assert flow not in found.ends
            found.ends[flow] = time, stack[-1], event.name
        else:
            assert event.type == types.TYPE_SLICE_END
            stack.pop().ended = time
    assert not any(stacks.values())
    return found


def compare(trace, found):
    """Each event is a slice, with its name, times and PE; each wait is the end of an arrow."""
    events, analysis, slices = trace.events, Analysis(trace), found.by_event(trace)
    assert sorted(slices) == [*range(len(events))]
    for k, slice_ in slices.items():
        assert slice_.name == trace.label(events[k])
        assert (slice_.began, slice_.ended) == (events["began"][k], analysis.ended[k])
        assert slice_.shown.get("unfinished", False) == (events["ended"][k] == OPEN)
        assert slice_.shown.get("line", "") == trace.site(events["of"][k], events["site"][k])
    begins = {flow: k for k, slice_ in slices.items() for flow in slice_.flows}
    arrows = []
    for flow, (time, slice_, _) in found.ends.items():
        assert time == slice_.ended
        (wait,) = (k for k in slices if slices[k] is slice_)
        arrows.append((begins.pop(flow), wait))
    assert not begins
    expected = [(wait.by, wait.event) for wait in analysis.waits if wait.by >= 0]
    assert Counter(arrows) == Counter(expected)
    return slices, arrows


def test_a_job(protobuf, run_cli, tmp_path):
    program, folder = tmp_path / "program.py", tmp_path / "out"
    program.write_text(PROGRAM)
    run_cli("run", "--backend", "cpu", "--trace", folder, "-n", N, program, code=0)
    trace = load(folder)
    perfetto.write(trace, tmp_path / "file")
    found = read(protobuf, tmp_path / "file")
    assert list(found.processes) == [f"PE {pe}" for pe in range(N)]
    assert len({*found.processes.values(), 0}) == N + 1
    slices, arrows = compare(trace, found)
    events = trace.events
    released = [k for k in arrows if slices[k[1]].name == "signal_wait_until"]
    assert {slices[by].name for by, _ in released} == {"put_signal_block"}
    for by, wait in released:
        assert events["of"][by] == (events["of"][wait] - 1) % N
        assert (slices[by].category, slices[wait].category) == ("move", "wait")
        assert slices[by].shown["peer PE"] == events["of"][wait]
        assert slices[by].shown["value"] == slices[wait].shown["value"]
        assert found.ends[wait + 1][2] == f"released by PE {events['of'][by]}"
    assert released
    for k, slice_ in slices.items():
        kind, of, launch, block = (events[k][name] for name in ("kind", "of", "launch", "block"))
        thread = events["thread"][k] % 1024
        assert slice_.pe == of
        if kind == KERNEL:
            expected, category = f"stream {events['value'][k]}", "kernel"
        elif launch:
            expected, category = f"block {block}", "block" if kind == BLOCK else None
        else:
            expected, category = "host", None
        assert slice_.track.partition(" (")[0] == expected
        assert category in (slice_.category, None)
        if launch and kind != BLOCK:
            assert slice_.shown["kernel"] == "shift"
            assert slice_.shown["thread"] == thread
            assert slice_.shown["bytes"] == events["nbytes"][k]
        for number in slice_.inside:
            (outer,) = events[(events["of"] == of) & (events["number"] == number)]
            assert outer["launch"] == launch
            assert outer["kind"] == BLOCK or outer["thread"] % 1024 == thread
    tracks = {slice_.track for slice_ in slices.values()}
    assert tracks >= {"host", "block 0", "block 0 (2)"}
    assert len([track for track in tracks if track.startswith("stream ")]) == 2


def test_no_length_no_end_and_threads_that_overlap(protobuf, tmp_path):
    """Events that a job seldom has, all in blocks 0 of one PE."""
    core, main, beside, third = 1024, "block 0", "block 0 (2)", "block 0 (3)"
    rows = [  # kind, thread, began, ended, launch; and its track, and what it is in
        ("put", 0, 0, 100, 9, main, [2]),  # as long as the block, but inside
        (BLOCK, 0, 0, 100, 9, main, []),
        ("put", 2 * core, 10, 20, 9, main, [2, 1]),
        ("get", core, 10, 15, 9, main, [2, 1, 3]),  # the same thread, on another core
        ("put", 1, 12, 18, 9, beside, []),
        ("put", 0, 20, 20, 9, main, [2, 1, 8]),
        ("put", 0, 20, 20, 9, main, [2, 1, 8]),
        ("get", 0, 20, 30, 9, main, [2, 1]),
        ("put", 0, 25, 35, 9, beside, []),  # overlaps the last one
        ("put", 2, 26, 33, 9, third, []),
        ("put", 2, 35, 35, 9, third, []),
        ("signal_wait_until", 1, 40, OPEN, 9, beside, []),
        (BLOCK, 0, 50, 60, 8, third, []),  # of another kernel
        ("put", 3, 100, 100, 9, main, []),  # after the block
    ]
    trace = Trace(np.zeros(len(rows), LOADED), n_pes=1, lost={}, facts={}, end=120)
    kinds, events = {name: kind for kind, name in trace.kinds.items()}, trace.events
    for k, (kind, thread, began, ended, launch, *_) in enumerate(rows):
        events[k]["kind"], events[k]["thread"] = kinds.get(kind, kind), thread
        events[k]["began"], events[k]["ended"], events[k]["launch"] = began, ended, launch
    events["pe"], events["number"] = 0, np.arange(len(rows)) + 1
    perfetto.write(trace, tmp_path / "file")
    found = read(protobuf, tmp_path / "file")
    slices, arrows = compare(trace, found)
    tracks = [(slices[k].track, slices[k].inside) for k in range(len(rows))]
    assert tracks == [(track, inside) for *_, track, inside in rows]
    assert arrows == [(13, 11)]  # the last write there
    assert found.ends[12][2] == "not over: last from PE 0"


def test_without_the_package(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "perfetto.protos.perfetto.trace", None)
    trace = Trace(np.zeros(0, LOADED), n_pes=1, lost={}, facts={}, end=0)
    with pytest.raises(ArgumentError, match=r"pip install 'gpushmem\[perfetto\]'"):
        perfetto.write(trace, tmp_path / "file")
    assert not (tmp_path / "file").exists()
