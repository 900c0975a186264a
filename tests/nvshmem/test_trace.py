"""The trace on GPUs, all but run: kernels that record, and the way of their events to the file.

What kernels do is done by their own C++, compiled for this machine (`on_the_host`).
"""

import ctypes
import json
import re
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("nvshmem")

from numba import cuda
from numba.cuda import types

import gpushmem as shmem
from gpushmem.backends.nvshmem.compile import aot, compiler, numba_cuda
from gpushmem.backends.nvshmem.operations import lowering
from gpushmem.backends.nvshmem.trace import instrumentation
from gpushmem.backends.nvshmem.trace.drain import AT, Drain, Meaning, new_header
from gpushmem.ops import OPS
from gpushmem.trace import load
from gpushmem.trace.analysis import Analysis
from gpushmem.trace.reading import OPEN
from gpushmem.trace.ring import BLOCK, EVENT, KERNEL, KIND_OF, LAUNCH, NO_PE, RANGE, Ring
from gpushmem.trace.summary import summary
from tests.nvshmem import emulation, host, kernels
from tests.nvshmem import on_the_host as gpu
from tests.nvshmem.emulation import driver
from tests.nvshmem.test_launching import run

emulated = pytest.mark.skipif(emulation.missing() is not None, reason=str(emulation.missing()))

F32, U64 = types.float32[::1], types.uint64[::1]
SM_90 = compiler.Arch.of("sm_90")
LINES = {}  # of this file: a mark in a comment -> number
for number, text in enumerate(Path(__file__).read_text().splitlines(), 1):
    if "# line " in text:
        LINES[text.rpartition("# line ")[2].strip()] = number


# --- code


@shmem.jit(device=True)
def patiently(signal):
    shmem.signal_wait_until(signal, shmem.CMP_GE, 2, 1000)  # line timed


def shift(dst, src, signal, pe):
    if pe == 9:
        return
    shmem.put_signal_block(dst, src, signal, 1, shmem.SIGNAL_SET, pe)  # line put
    shmem.signal_wait_until(signal, shmem.CMP_GE, 1)  # line wait
    patiently(signal)
    shmem.barrier_all_warp()  # line barrier
    src[0] = shmem.my_pe()


def send(dst, src, signal, pe):
    shmem.put(dst, src, pe)


SHIFT = (F32, F32, U64, types.int64)


def _linked(kind, traced):
    made = compiler.compile_kernel(shift, SHIFT, {}, SM_90, traced)
    return made.trace, made.cooperative, compiler.link(made, kind).code


def test_the_events_of_a_kernel_are_in_its_machine_code(elsewhere):
    about, cooperative, code = elsewhere.submit(_linked, "ptx", True).result()
    ptx = code.decode(errors="replace")
    assert cooperative
    assert (about["name"], about["waits"]) == ("shift", True)
    wanted = {"timed": "patiently", "put": "shift", "wait": "shift", "barrier": "shift"}
    texts = {f"test_trace.py:{LINES[mark]} in {name}" for mark, name in wanted.items()}
    assert {text for what, _, text in about["texts"] if what == "site"} == texts
    for number in (*(number for _, number, _ in about["texts"]), about["kernel"]):
        assert re.search(rf"\b{number}\b", ptx)
    # The block; the data and the signal of the put; two waits, and a barrier.
    assert len(re.findall(r"atom[.\w]*\.add\.u64 .*, 1;", ptx)) == 6
    assert ptx.count("st.relaxed.gpu.global.v2.b64") == 4 * 6
    # The block ends in two places, which the compiler may make one; three calls end.
    assert 4 <= ptx.count("st.relaxed.gpu.global.b64") <= 5
    assert ".global .align 8 .u64 gpushmem_trace;" in ptx


def ranges(dst, src, signal, pe):
    whole = shmem.trace_range_start_block("all of it")  # line range
    first = shmem.trace_range_start("the \u00fcbung, first")
    shmem.put_block(dst, src, pe)
    shmem.trace_range_end(first)
    shmem.trace_range_end(whole)


def _with_ranges(traced):
    made = compiler.compile_kernel(ranges, SHIFT, {}, SM_90, traced)
    return made.trace, compiler.link(made, "ptx").code.decode(errors="replace")


def test_ranges_that_kernels_name_are_in_the_machine_code(elsewhere):
    code = [elsewhere.submit(_with_ranges, traced) for traced in (False, True)]
    (nothing, plain), (about, ptx) = (each.result() for each in code)
    assert nothing is None
    assert "gpushmem_trace" not in plain
    names = {text: number for what, number, text in about["texts"] if what == "name"}
    assert names.keys() == {"all of it", "the \u00fcbung, first"}
    assert f"test_trace.py:{LINES['range']} in ranges" in {text for *_, text in about["texts"]}
    for number in names.values():
        assert re.search(rf"\b{number}\b", ptx)
    # The block, two ranges, the put; three of them end.
    assert len(re.findall(r"atom[.\w]*\.add\.u64 .*, 1;", ptx)) == 4
    assert ptx.count("st.relaxed.gpu.global.b64") == 3
    assert not about["waits"]  # a range is no wait


def whole(x, n):
    shared = cuda.shared.array(0, np.float32)
    shared[cuda.threadIdx.x] = n
    cuda.cg.this_grid().sync()
    if n == 1:
        return
    x[cuda.grid(1)] = shared[cuda.threadIdx.x]


def _of_a_whole_grid(traced):
    options = {"launch_bounds": (128, 2), "fastmath": True}
    made = compiler.compile_kernel(whole, (F32, types.int64), options, SM_90, traced)
    ptx = compiler.link(made, "ptx").code.decode(errors="replace")
    return ptx, made.cooperative, made.shims, made.trace


def test_what_a_kernel_is_launched_with_stays(elsewhere):
    """Also of one that calls no operation: it is in the trace."""
    code = [elsewhere.submit(_of_a_whole_grid, traced) for traced in (False, True)]
    (plain, *of_plain), (ptx, *of_traced) = (each.result() for each in code)
    for text in (plain, ptx):
        assert re.search(r"\.maxntid 128\b", text)
        assert re.search(r"\.minnctapersm 2\b", text)
        assert "extern .shared" in text
    assert of_plain == [True, frozenset(), None]
    assert of_traced[:2] == of_plain[:2]
    assert "gpushmem_trace" not in plain
    assert ptx.count("st.relaxed.gpu.global.v2.b64") == 4
    about = of_traced[2]
    assert (about["name"], about["waits"], about["texts"]) == ("whole", False, [])


def _llvm(traced):
    """A kernel's code before it is linked; numba-cuda counts functions in their names."""
    scope = {"shmem": shmem, "np": np}
    lines = ["def kernel(dst, src, signal, pe):", "    shmem.put_block(dst, src, pe)",
             "    if shmem.wait_until_any(signal, None, 0, 1) == 3:", "        return",
             "    shmem.atomic_add(dst, 1, pe)"]  # fmt: skip
    exec("\n".join(lines), scope)
    lowering.install()
    with numba_cuda._compiling_for(SM_90), instrumentation.compiling(traced):
        made = numba_cuda._library(scope["kernel"], SHIFT, {}, (9, 0, ""), traced)
    text = "\n".join(made.llvm_strs)
    kinds = [part.kind for part in numba_cuda._other_parts(made, "sm_90")]
    return re.sub(r"B\d+v\d+|\$\d+", "", text), kinds


def _before_and_after():
    return _llvm(False), _llvm(True), _llvm(False)


def test_without_a_trace_the_code_is_what_it_was(elsewhere):
    (before, none), (traced, parts), (after, _) = elsewhere.submit(_before_and_after).result()
    assert before == after
    assert "gpushmem_trace" not in before
    assert none == []
    assert parts == ["ltoir"]
    assert traced.count("gpushmem_trace_note") > traced.count("gpushmem_trace_begin") > 0


def test_the_store_tells_them_apart(monkeypatch):
    names = []
    keep = SimpleNamespace(get_or_build=lambda name, *_, **__: names.append(name))
    monkeypatch.setattr(aot, "code_store", keep)
    for traced in (False, True, False):
        aot.artifact(send, SHIFT, {}, "sm_90", traced=traced)
    assert names[0] == names[2] != names[1]


def _events_of(names):
    """How many events a kernel with a call of each row records, by what records it."""
    found = {}
    for name in names:
        op = OPS[name]
        which, dtype, timeout = kernels.forms(op)[-1]
        function, argtypes = kernels.kernel_of(op, dtype, which, timeout)
        lowering.install()
        with numba_cuda._compiling_for(SM_90), instrumentation.compiling(True):
            made = numba_cuda._library(function, argtypes, {}, (9, 0, ""), True)
        calls = [
            call for text in made.llvm_strs for call, _ in instrumentation.CALLED.findall(text)
        ]
        found[name] = {what: calls.count(what) for what in ("note", "open")}
    return found


ROWS = [op for op in kernels.rows() if op.is_event]


def test_an_event_for_each_effect(elsewhere):
    sample = [op for op in ROWS if op.scope == "thread" and not op.nbi][::3]
    sample += [op for op in ROWS if op.scope != "thread"][::12]
    found = elsewhere.submit(_events_of, [op.name for op in sample]).result()
    for op in sample:
        shared = [e for e in op.facts.effects if op.arrays[e.array].symmetric]
        events = {"note": 0, "open": 1} if op.waits else {"note": len(shared) or 1, "open": 0}
        assert found[op.name] == events, op.name
    assert {"note": 2, "open": 0} in found.values() or "put_signal" not in found


# --- events, from a ring as the GPU has it to the file


class Traced:
    """A ring in memory of this machine, and a folder that its events go to."""

    def __init__(self, folder, most=64):
        self.memory = np.zeros(AT + most * EVENT.itemsize, np.uint8)
        address = self.memory.ctypes.data
        self.memory[:AT] = new_header(address, most).view(np.uint8)
        self.folder, self.host = folder, Ring(folder, 0, 1, most)
        self.ring = Ring(folder, 0, 1, most, gpu=True)
        self.host.header["ticks"], self.host.header["ns"] = 1, 1
        self.copied = 0
        self.drain = Drain(self.read, address, self.ring)
        self.drain.heap = 0x10000
        gpu.place(address)

    def read(self, address, nbytes):
        self.copied += nbytes
        return np.frombuffer(ctypes.string_at(address, nbytes), np.uint8)

    def look(self, idle=False):
        """What the file then has."""
        self.drain.look(idle)
        n, most = int(self.ring.header["n"][0]), len(self.ring.events)
        assert n <= most
        return self.ring.events[:n].copy()


@pytest.fixture
def new(tmp_path):
    """`new(most)`: a ring of so many events."""
    made = []

    def make(most=64):
        made.append(Traced(tmp_path, most))
        return made[-1]

    yield make
    for traced in made:
        traced.host._facts.close()


@pytest.fixture
def traced(new):
    return new()


PUT, WAIT = KIND_OF["put_signal_block"], KIND_OF["signal_wait_until"]
THREAD, WARP, GROUP = range(3)


def block(now, number, grid=1, blocks=2, kernel=77):
    """A block of 64 threads begins; returns the number of its event."""
    gpu.at(now, grid=grid, gridDim=(blocks,), blockDim=(32, 2), blockIdx=(number,), threadIdx=(0,))
    return gpu.call("begin", kernel)


def ends(now, number):
    gpu.at(now)
    gpu.call("close", number)


def test_an_event_is_what_the_cpu_backend_writes(traced):
    gpu.at(500, grid=(1 << 32) + 7, gridDim=(3, 2), blockDim=(32, 2, 2), blockIdx=(2, 1),
           threadIdx=(5, 1, 1))  # fmt: skip
    gpu.call("note", THREAD, PUT, 3, 0x10020, -5, 400, 450, 12345)
    traced.drain.end()
    kernel, put = traced.look()
    assert put.tolist() == (450, 500, 12345, 0x20, -5, 400, PUT, 5 + 32 * 3, 3, 1, 5)
    assert (kernel["kind"], kernel["began"], kernel["ended"]) == (KERNEL, 450, 500)


def test_of_a_warp_or_block_one_thread_records(traced, new):
    gpu.at(1, gridDim=(1,), blockDim=(16, 8), blockIdx=(0,))
    for x, y in np.ndindex(16, 8):
        gpu.at(1, threadIdx=(x, y))
        for scope in (THREAD, WARP, GROUP):
            gpu.call("note", scope, PUT, scope, 0, 0, 8, 1, 1)
            gpu.call("close", gpu.call("open", scope, WAIT, 0, 0, 8, 1))
    events = traced.memory[AT:].view(EVENT)
    n = int(traced.memory[:AT].view("i8")[16])
    assert n == 2 * (128 + 4 + 1)
    assert len(events) < n  # it went round, more than once
    larger = new(512)
    for thread in range(128):
        gpu.at(1, threadIdx=(thread % 16, thread // 16))
        gpu.call("note", WARP, PUT, 1, 0, 0, 8, 1, 1)
    assert larger.look(idle=True)["thread"].tolist() == [0, 0, 32, 64, 96]


def test_a_range_is_open_until_it_ends(traced):
    gpu.at(100, gridDim=(1,), blockDim=(32,), blockIdx=(0,), threadIdx=(3,))
    number = gpu.call("open", THREAD, RANGE, -1, 42, 0, 7)
    traced.look()
    _, range_ = traced.look()
    assert range_.tolist() == (100, 0, 7, -1, 42, 0, RANGE, 3, NO_PE, 1, 0)
    ends(150, number)
    _, range_ = traced.look(idle=True)
    assert range_["ended"] == 150
    assert gpu.call("open", WARP, RANGE, -1, 42, 0, 7) == -1  # not the first of the warp
    ends(160, -1)  # which its number says


def test_blocks_make_a_kernel(traced):
    traced.drain.meanings = {77: Meaning(5, True), 78: Meaning(6, False)}
    first, second = block(100, 0), block(103, 1)
    gpu.at(110)
    gpu.call("note", GROUP, PUT, 0, 0x10008, 1, 8, 104, 1)
    ends(120, first)
    assert len(traced.look()) == 0  # what is new may not have been written yet
    kernel, *blocks, put = traced.look()
    assert kernel.tolist() == (100, 0, 0, 2, 1, 64, KERNEL, 0, 5, 0, 0)
    assert [b["kind"] for b in blocks] == [BLOCK] * 2
    assert [b["ended"] for b in blocks] == [120, 0]
    assert [b["block"] for b in blocks] == [0, 1]
    assert {int(e["launch"]) for e in (*blocks, put)} == {1}
    ends(130, second)
    kernel, *blocks, put = traced.look()
    assert [b["ended"] for b in blocks] == [120, 130]
    assert [b["at"] for b in blocks] == [-1, -1]
    assert kernel["ended"] == 130
    # Of a kernel that does not wait, blocks are no events.
    ends(150, block(140, 0, grid=2, blocks=1, kernel=78))
    assert len(traced.look()) == 4
    assert traced.look()[-1].tolist() == (140, 150, 0, 1, 1, 64, KERNEL, 0, 6, 0, 0)


def test_two_grids_at_once_have_lanes_of_their_own(traced):
    traced.drain.meanings[77] = Meaning(5, True)
    one, other = block(100, 0, 1, 1), block(110, 0, 2, 1)
    gpu.at(115, grid=1)
    gpu.call("note", GROUP, PUT, 0, 0x10008, 1, 8, 104, 1)
    ends(120, other)
    traced.look(), traced.look()
    ends(140, block(130, 0, 3, 1))
    ends(150, one)
    traced.look()
    events = traced.look()
    found = events[events["kind"] == KERNEL]
    assert found["began"].tolist() == [100, 110, 130]
    assert found["ended"].tolist() == [150, 120, 140]
    assert found["value"].tolist() == [1, 2, 2]
    put = events[events["kind"] == PUT]
    assert put["launch"].tolist() == [1 + np.flatnonzero(events["began"] == 100)[0]]


def test_a_number_of_a_grid_that_comes_again_is_another_launch(traced):
    """A graph's kernels may have theirs."""
    for began in (100, 200):
        ends(began + 10, block(began, 0, blocks=1))
    traced.look()
    kernels = traced.look()
    assert kernels["began"].tolist() == [100, 200]
    assert kernels["ended"].tolist() == [110, 210]
    ends(310, block(300, 0, blocks=1))
    traced.look()
    assert traced.look()["ended"].tolist() == [110, 210, 310]


def test_a_wait_that_goes_on_is_open_until_it_ends(traced):
    gpu.at(100, grid=1, gridDim=(1,), blockIdx=(0,), threadIdx=(0,))
    wait = gpu.call("open", THREAD, WAIT, 0x10010, 3, 8, 1)
    traced.look()
    assert traced.look()[-1].tolist() == (100, 0, 1, 0x10, 3, 8, WAIT, 0, NO_PE, 1, 0)
    gpu.call("note", THREAD, PUT, 0, -1, 0, 8, 100, 1)
    traced.look()
    ends(175, wait)
    assert traced.look()[1]["ended"] == 175
    assert traced.look()[-1]["at"] == -1  # no offset: it is of no memory


def test_what_has_not_been_written_is_taken_when_it_has(traced):
    gpu.at(100, grid=1, gridDim=(1,), blockIdx=(0,), threadIdx=(0,))
    gpu.call("note", THREAD, PUT, 1, -1, 0, 8, 90, 1)
    here = traced.memory[AT : AT + 64]
    event, here[:] = here.copy(), 0  # its number is given out, no more
    traced.look()
    assert len(traced.look()) == 0
    here[:] = event
    assert [int(e["kind"]) for e in traced.look()] == [KERNEL, PUT]


@pytest.mark.parametrize("most", [64, 128])
def test_the_newest_are_kept_and_others_counted(tmp_path, new, most):
    traced = new(most)
    gpu.at(100, grid=1, gridDim=(1,), blockIdx=(0,), threadIdx=(0,))
    wait = gpu.call("open", THREAD, WAIT, 0x10010, 3, 8, 1)
    traced.look(), traced.look()
    values = []
    for several in (1, most // 4, 3 * most + 5, most - 2, 2):
        for _ in range(several):
            values.append(len(values))
            gpu.call("note", THREAD, PUT, 0, -1, values[-1], 8, 100, 1)
        if several == most - 2:
            ends(200, wait)  # which has no place any more
        traced.drain.look(idle=True)
    loaded = load(tmp_path)
    puts = loaded.events[loaded.events["kind"] == PUT]
    assert puts["value"].tolist() == values[-len(puts) :]
    assert most - 2 <= len(puts) <= most
    assert WAIT not in loaded.events["kind"]
    written = int(traced.ring.header["n"][0])
    assert loaded.lost == {0: int(traced.ring.header["lost"][0]) + written - most}
    # The kernel's event and the wait's are written, too; the wait counts as lost where it was.
    assert int(traced.ring.header["lost"][0]) == len(values) + 2 - written + 1


def test_of_many_blocks_some_record(traced):
    blocks = 5 * instrumentation.MOST_BLOCKS - 3
    numbers = [k for k in range(40) if block(100 + k, k, blocks=blocks) >= 0]
    assert numbers == list(range(0, 40, 5))
    kernel = traced.look(idle=True)[0]
    assert (kernel["at"], kernel["ended"]) == (blocks, 0)
    (grid,) = traced.drain._grids.values()
    assert grid.blocks == len(range(0, blocks, 5))


def test_looks_that_find_nothing_copy_next_to_nothing(traced):
    ends(110, block(100, 0, blocks=1))
    traced.look(), traced.look()
    before = traced.copied
    for _ in range(10):
        traced.look()
    assert traced.copied - before == 10 * 8


def test_both_files_of_a_pe_are_one_trace(tmp_path, traced):
    traced.drain.meanings[77] = Meaning(1, True)
    traced.host.describe(name=1, text="shift")
    traced.host.describe(site=9, text="ring.py:8 in shift", path="")
    traced.host.header["ticks"] = traced.host.header["ns"] = 1_000_000
    launch = np.zeros(2, EVENT)
    launch["began"] = launch["ended"] = [1_000_100, 1_900_000]
    launch["kind"], launch["value"] = LAUNCH, 1
    traced.host.extend(launch)
    # The GPU's clock began at another time, and goes twice as fast.
    traced.ring.header["ticks"], traced.ring.header["ns"] = [50_000, 52_000], [1_000_000, 1_001_000]
    number = block(50_400, 0, blocks=1)
    gpu.at(50_500)
    gpu.call("note", GROUP, PUT, 0, 0x10000, 1, 8, 50_420, 9)
    wait = gpu.call("open", THREAD, WAIT, 0x10000, 1, 8, 9)
    traced.look()
    traced.look()
    loaded = load(tmp_path)
    assert [loaded.label(e) for e in loaded.events] == [
        "shift", "shift", "block", "put_signal_block", "signal_wait_until", "shift",
    ]  # fmt: skip
    assert (loaded.events["ended"] == OPEN).tolist() == [False, True, True, False, True, False]
    ends(50_700, wait)
    ends(50_800, number)
    traced.look(idle=True)
    loaded = load(tmp_path)
    events = loaded.events
    assert events["began"].tolist() == [0, 100, 100, 110, 150, 899_900]
    assert events["ended"].tolist() == [0, 300, 300, 150, 250, 899_900]
    assert sorted(events["number"].tolist()) == [1, 2, 3, 4, 5, 6]
    (kernel,) = events[events["kind"] == KERNEL]
    assert set(events["launch"][events["launch"] > 0].tolist()) == {int(kernel["number"])}
    assert loaded.site(0, events["site"][3]) == "ring.py:8 in shift"
    told = summary(loaded)
    assert told["kernels"] == [{"name": "shift", "pe": 0, "times": 1, "ns": 200}]
    (line,) = [row for row in told["lines"] if row["what"] == "put_signal_block"]
    assert (line["line"], line["ns"], line["bytes"]) == ("ring.py:8 in shift", 40, 8)
    analysis = Analysis(loaded)
    assert analysis.released[4] == 3
    assert analysis.time[0].tolist()[2] == 100  # waiting


# --- the host, with the driver's and NVSHMEM's stand-ins


def kernel_of_a_ring(launch):
    """What `shift` records, in part; and what the kernel that reads the clock does."""
    now = time.monotonic_ns() + CLOCK
    if "show_clock" in launch.name:
        driver.view(launch.integer(4), 1, np.int64)[0] = now
        return
    address = address_of_trace(launch.library)
    header = driver.view(address, AT, np.uint8)
    gpu.place(address, header.ctypes.data - address)
    about = shmem.runtime.current().backend._tracer._drain.meanings
    (number,) = [number for number, meaning in about.items() if meaning.waits]
    begun = block(now, 0, grid=kernel_of_a_ring.launches, blocks=1, kernel=number)
    signal = launch.integer(2 * 7 + 4)
    gpu.call("note", GROUP, PUT, 0, signal, 1, 8, now, 0)
    gpu.at(now + 1000)
    ends(now + 3000, gpu.call("open", THREAD, WAIT, signal, 1, 8, 0))
    ends(now + 4000, begun)
    kernel_of_a_ring.launches += 1


kernel_of_a_ring.launches = 100
CLOCK = 10**15  # how far the GPU's clock is from the host's


def address_of_trace(library):
    """What the host has told loaded code."""
    from cuda.bindings import driver as cuda

    status, at, nbytes = cuda.cuLibraryGetGlobal(cuda.CUlibrary(library), b"gpushmem_trace")
    assert (int(status), nbytes) == (0, 8)
    return int(driver.view(int(at), 1, np.int64)[0])


def ring_of_one(folder):
    driver.on_launch(kernel_of_a_ring)
    me, n = host.init()
    x, y = shmem.zeros(4, "float32"), shmem.zeros(4, "float32")
    signal = shmem.zeros(1, "uint64")
    shmem.put(x, y, (me + 1) % n)
    kernel = shmem.jit(shift)
    for _ in range(3):
        kernel[1, 64](x, y, signal, me)
    deadline = time.monotonic() + 20
    while KERNEL not in load(folder).events["kind"]:  # while the job runs
        assert time.monotonic() < deadline
        time.sleep(0.02)
    team = shmem.team_split_strided(shmem.TEAM_WORLD, 0, 1, n)
    shmem.synchronize()
    shmem.barrier(team)
    shmem.free(y)
    shmem.finalize()
    assert driver.failures == []
    return shmem.__file__


@emulated
@pytest.mark.timeout(200)
def test_what_a_job_on_a_gpu_leaves(tmp_path):
    folder = tmp_path / "out"
    host.run(1, ring_of_one, folder, GPUSHMEM_TRACE=str(folder), limit=150)
    trace = load(folder)
    events, labels = trace.events, [trace.label(e) for e in trace.events]
    kernel = events[events["kind"] == KERNEL]
    assert [trace.label(k) for k in kernel] == ["shift"] * 3
    assert (kernel["ended"] - kernel["began"]).tolist() == [4000] * 3
    launches = events[(events["kind"] == LAUNCH)]
    assert [trace.name(0, e["value"]) for e in launches] == ["shift"] * 3
    # The clocks were compared: kernels are where they were launched.
    assert (abs(kernel["began"] - launches["began"]) < 50_000_000).all()
    (signal,) = {fact["array"] for fact in trace.facts[0] if fact.get("dtype") == "uint64"}
    waits = events[events["kind"] == WAIT]
    assert waits["at"].tolist() == [signal] * 3
    assert waits["launch"].tolist() == kernel["number"].tolist()
    analysis = Analysis(trace)
    index = np.flatnonzero(events["kind"] == WAIT)
    assert [labels[by] for by in analysis.released[index]] == ["put_signal_block"] * 3
    assert labels.count("put") == 1
    (put,) = events[events["kind"] == KIND_OF["put"]]
    assert (put["nbytes"], put["pe"], put["launch"]) == (16, 0, 0)
    assert trace.site(0, put["site"]).endswith(" in ring_of_one")
    for label in ("init", "compile shift", "synchronize", "barrier", "finalize"):
        assert label in labels, label
    assert any("team" in fact for fact in trace.facts[0])
    assert any("freed" in fact for fact in trace.facts[0])
    sites = {fact["text"] for fact in trace.facts[0] if fact.get("site", -1) > 0}
    assert f"test_trace.py:{LINES['put']} in shift" in sites


SCRIPT = """
import gpushmem as shmem
shmem.init()
me, n = shmem.my_pe(), shmem.n_pes()
x = shmem.zeros(4, "int64")
shmem.put(x, shmem.full(4, me), (me + 1) % n)
shmem.barrier_all()
shmem.finalize()
"""


@emulated
def test_the_command_line(tmp_path):
    script, folder = tmp_path / "script.py", tmp_path / "out"
    script.write_text(SCRIPT)
    _, err = run(
        sys.executable, "-m", "gpushmem", "run", "-n", 2, "--trace", folder, script,
        GPUSHMEM_TRACE_EVENTS="4096",
    )  # fmt: skip
    assert "gpushmem trace open" in err
    told = summary(load(folder))
    assert told["sent"] == [[0, 32], [32, 0]]
    assert json.dumps(told)
    for label in ("put", "barrier_all"):
        assert {row["times"] for row in told["lines"] if row["what"] == label} == {2}
    _, err = run(sys.executable, "-m", "gpushmem", "run", "--check", script, code=2)
    assert "--check: the nvshmem backend records nothing; add --backend cpu or nvshmem-cpu" in err
