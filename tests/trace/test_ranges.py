"""Ranges that a program names, on the host and in kernels."""

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import gpushmem as shmem
from gpushmem.errors import ArgumentTypeError, ShmemError
from gpushmem.trace import load
from gpushmem.trace.analysis import CATEGORIES, Analysis
from gpushmem.trace.page import place
from gpushmem.trace.ring import RANGE
from gpushmem.trace.summary import summary
from tests.trace.test_trace import RING, line_of

DOING = "computing", "moving", "waiting", "compiling"

pytestmark = pytest.mark.cpu_backend

PROGRAM = (
    RING
    + """
@shmem.jit
def named(signal, n):
    outer = shmem.trace_range_start("outer | kernel")
    block = shmem.trace_range_start_block("of the block")
    warp = shmem.trace_range_start_warp("of the warp")
    if cuda.threadIdx.x == 0:
        inner = shmem.trace_range_start("wait")
        shmem.signal_op(signal, 1, shmem.SIGNAL_ADD, (shmem.my_pe() + 1) % shmem.n_pes())
        shmem.signal_wait_until(signal, shmem.CMP_GE, n)
        shmem.trace_range_end(inner)
    cuda.syncthreads()
    shmem.trace_range_end(warp)
    shmem.trace_range_end(block)
    shmem.trace_range_end(outer)
    shmem.trace_range_end(0)
    shmem.trace_range_start("without an end")

@shmem.trace_range("step")
def step(k):
    if me == 1:
        time.sleep(0.1)
    named[1, 64](signal, k)
    with shmem.trace_range("until it is done"):
        shmem.synchronize()

signal.copy_from(0)
shmem.barrier_all()
with shmem.trace_range("all"):
    for k in range(1, 4):
        step(k)
shmem.finalize()
with shmem.trace_range("after the end"):
    pass
"""
)
COUNTS = {  # of each PE; a block has 64 threads, of which the first waits
    "all": 1, "step": 3, "until it is done": 3, "wait": 3, "of the block": 3, "of the warp": 6,
    "outer | kernel": 3 * 64, "without an end": 3 * 64,
}  # fmt: skip


@pytest.fixture(scope="module", params=["cpu", "nvshmem-cpu"])
def ranges(request, run_cli, tmp_path_factory):
    """The trace of a program that names ranges, on both backends that have kernels here."""
    folder = tmp_path_factory.mktemp("ranges")
    (folder / "program.py").write_text(PROGRAM)
    run_cli(
        "run", "--backend", request.param, "--trace", folder / "out", "-n", 2,
        folder / "program.py", timeout=200,
    )  # fmt: skip
    return load(folder / "out")


def of(trace, label):
    events, (number, texts) = trace.events, trace.labels
    return events[(events["kind"] == RANGE) & (number == texts.index(label))]


def test_each_range_is_there_as_often_as_it_was_named(ranges):
    events = ranges.events[ranges.events["kind"] == RANGE]
    for label, times in COUNTS.items():
        found = of(ranges, label)
        assert np.bincount(found["of"]).tolist() == [times, times], label
    assert len(events) == 2 * sum(COUNTS.values())  # nothing else: not "after the end"
    line = f"program.py:{line_of(PROGRAM, 'trace_range_start_block')} in named"
    assert {ranges.site(e["of"], e["site"]) for e in of(ranges, "of the block")} == {line}
    line = f"program.py:{line_of(PROGRAM, '    step(k)')} in <module>"
    assert {ranges.site(e["of"], e["site"]) for e in of(ranges, "step")} == {line}


def test_groups_have_one_range_by_their_first_thread(ranges):
    assert {int(e["thread"]) % 1024 for e in of(ranges, "of the block")} == {0}
    assert {int(e["thread"]) % 1024 for e in of(ranges, "of the warp")} == {0, 32}
    assert len({int(e["thread"]) % 1024 for e in of(ranges, "outer | kernel")}) == 64


def test_ranges_nest_as_they_were_written(ranges):
    for pe in (0, 1):
        (whole,), steps, done, waits, outer = (
            of(ranges, name)[of(ranges, name)["of"] == pe]
            for name in ("all", "step", "until it is done", "wait", "outer | kernel")
        )
        assert whole["began"] <= steps["began"].min()
        assert steps["ended"].max() <= whole["ended"]
        assert (steps["ended"][:-1] <= steps["began"][1:]).all()
        assert (steps["began"] <= done["began"]).all()
        assert (done["ended"] <= steps["ended"]).all()
        for wait in waits:
            alike = [outer[name] == wait[name] for name in ("launch", "thread")]
            (around,) = outer[np.all(alike, 0)]
            assert around["began"] <= wait["began"] <= wait["ended"] <= around["ended"]
    assert (of(ranges, "without an end")["ended"] == -1).all()
    lane, tracks = place(ranges)
    for k in range(lane.max() + 1):  # on the page, what overlaps is in several lanes
        there = ranges.events[lane == k]
        ended = np.where(there["ended"] == -1, ranges.end, there["ended"])
        assert (ended[:-1] <= there["began"][1:]).all()
    assert sum(track["lanes"] for track in tracks) == lane.max() + 1


@pytest.mark.quiet
def test_the_summary_says_what_the_pe_did_in_a_range(ranges):
    rows = {(row["name"], row["pe"]): row for row in summary(ranges)["ranges"]}
    waiting = rows["wait", 0]  # for PE 1, which sleeps before each step
    assert waiting["times"] == 3
    assert waiting["ns"] > 0.15e9  # the first time PE 0 compiles meanwhile
    assert waiting["waiting"] > 0.95 * waiting["ns"]
    assert rows["step", 1]["computing"] > 0.25e9  # as a host that sleeps does
    for row in rows.values():
        if row["name"] != "without an end":  # which lasts until the PE's last event, and after it
            assert abs(sum(row[name] for name in DOING) - row["ns"]) <= row["times"]


def test_ranges_change_nothing_else_in_the_analysis(ranges):
    analysis, kinds = Analysis(ranges), ranges.events["kind"]
    assert set(analysis.categories[kinds == RANGE]) == {CATEGORIES.index("range")}
    everything = analysis.time
    without = load_without_ranges(ranges)
    np.testing.assert_array_equal(Analysis(without).time, everything)


def load_without_ranges(trace):
    events = trace.events[trace.events["kind"] != RANGE]
    return type(trace)(events, trace.n_pes, trace.lost, trace.facts, trace.end)


def test_without_a_trace_a_range_is_nothing(alone):
    @shmem.jit(cache=False)
    def kernel(x):
        x[0] = shmem.trace_range_start("a")
        shmem.trace_range_end(7)

    x = shmem.ones(1, "int64")
    kernel[1, 1](x)
    assert x.numpy().tolist() == [0]
    with shmem.trace_range("b"):
        pass


@shmem.trace_range("recursive")
def down(n):
    return 0 if n == 0 else 1 + down(n - 1)


def test_a_decorated_function_may_call_itself(alone):
    assert down(3) == 3
    assert down.__name__ == "down"


def test_a_range_lets_errors_through(alone):
    with pytest.raises(ZeroDivisionError), shmem.trace_range("a"):
        raise ZeroDivisionError


def test_wrong_calls(alone):
    with pytest.raises(ArgumentTypeError, match=r"^trace_range: name must be a text, not 3$"):
        shmem.trace_range(3)
    with pytest.raises(ShmemError, match=r"^trace_range_start can be called inside kernels only$"):
        shmem.trace_range_start("a")

    @shmem.jit(cache=False)
    def host_only():
        shmem.trace_range("a")

    @shmem.jit(cache=False)
    def variable(n):
        shmem.trace_range_start(n)

    with pytest.raises(
        Exception, match=r"trace_range is for the host; in kernels use trace_range_"
    ):
        host_only[1, 1]()
    with pytest.raises(Exception, match=r"name must be a text written in the call, not int64"):
        variable[1, 1](3)


# --- NVTX, as a profiler sees it: NVTX loads the library that this variable names

TOOL = Path(__file__).with_name("nvtx_tool.c")
NAMED = """
from gpushmem.backends.nvshmem.trace.nvtx import named
with named("outer"):
    with named("inner"):
        print("inside", flush=True)
"""


def test_nvtx_ranges_reach_a_profiler(tmp_path):
    pytest.importorskip("nvtx")
    library = tmp_path / "tool.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, TOOL], check=True)
    assert ctypes.CDLL(str(library)).InitializeInjectionNvtx2
    done = subprocess.run(
        [sys.executable, "-c", NAMED], text=True, capture_output=True, timeout=100, check=True,
        env=os.environ | {"NVTX_INJECTION64_PATH": str(library)},
    )  # fmt: skip
    assert done.stdout.splitlines() == ["push outer", "push inner", "inside", "pop", "pop"]
