"""Recording what PEs do, and what a trace tells of it."""

import json
import os
import re
import shutil
from random import Random

import msgpack
import numpy as np
import pytest

from gpushmem.errors import ArgumentError
from gpushmem.trace import load, page, perfetto
from gpushmem.trace.analysis import COMPUTING, MOVING, WAITING, Analysis
from gpushmem.trace.reading import OPEN
from gpushmem.trace.ring import BLOCK, EVENT, FIRST_OP, HEADER, KERNEL, LAUNCH, Ring, paths
from gpushmem.trace.ring import RING as RING_HEADER
from gpushmem.trace.signals import signals
from gpushmem.trace.summary import summary

pytestmark = pytest.mark.cpu_backend

RING = """
import os, time
import numpy as np
import gpushmem as shmem
from numba import cuda

@shmem.jit
def shift(dst, src, signal, round):
    right = (shmem.my_pe() + 1) % shmem.n_pes()
    shmem.put_signal_block(dst, src, signal, round, shmem.SIGNAL_SET, right)
    if cuda.threadIdx.x == 0:
        shmem.signal_wait_until(signal, shmem.CMP_GE, round)
    cuda.syncthreads()

shmem.init(heap_size="16M")
src, dst = shmem.full(1000, shmem.my_pe(), dtype="float32"), shmem.empty(1000, dtype="float32")
signal = shmem.zeros(1, dtype="uint64")
me, n = shmem.my_pe(), shmem.n_pes()
shift[1, 32](dst, src, signal, 1)
shmem.barrier_all()
"""
END = "\nshmem.finalize()\n"
FEW = "import os\nos.environ['GPUSHMEM_TRACE_EVENTS'] = '1024'\n"


def test_a_damaged_trace_is_an_error_or_can_be_shown(traced, tmp_path):
    """Bytes at random places, and files cut off: what is read is not trusted."""
    traced(2, FEW + RING + END)
    whole, damaged, random = traced.folder, tmp_path / "{{columns}}", Random(7)
    ways = {}
    for _ in range(40):
        shutil.rmtree(damaged, ignore_errors=True)
        shutil.copytree(whole, damaged)
        path = damaged / f"pe0.{random.choice(['ring', 'facts'])}"
        size = min(path.stat().st_size, HEADER + 40 * EVENT.itemsize)
        with open(path, "r+b") as file:
            if random.random() < 0.1:
                file.truncate(random.randrange(size))
            else:
                header = path.suffix == ".ring" and random.random() < 0.3
                file.seek(random.randrange(RING_HEADER.itemsize if header else size))
                file.write(random.choice([b"\xff" * 8, bytes(4), random.randbytes(3)]))
        try:
            trace = load(damaged)
            summary(trace)
            signals(trace)
            text = page.page(trace, damaged.name)
            perfetto.write(trace, tmp_path / "out.json")
            said = "shown"
        except ArgumentError as error:
            said = "damaged" if "damaged" in str(error) else "error"
        else:
            assert text.count("{{columns}}") == 1, "in the title alone"
        ways[said] = ways.get(said, 0) + 1
    assert ways["shown"] > 5
    assert ways["damaged"] > 1


@pytest.mark.parametrize("make", ["mkfifo", "mkdir", "unlink"])
@pytest.mark.parametrize("file", ["pe0.ring", "pe0.facts"])
def test_what_is_no_file_is_not_waited_for(traced, make, file):
    traced(1, FEW + "import gpushmem as shmem\nshmem.init(heap_size='1M')\n")
    path = traced.folder / file
    path.unlink()
    if make != "unlink":
        getattr(os, make)(path)
    with pytest.raises(ArgumentError, match=r"is not a file|cannot be read|has no trace"):
        load(traced.folder)


def named(trace, label):
    """The events with this label, in order."""
    return [k for k, event in enumerate(trace.events) if trace.label(event) == label]


def line_of(program, text):
    """Number of the first line of a program that has this text."""
    return next(k for k, line in enumerate(program.splitlines(), 1) if text in line)


def test_a_trace_of_a_version_with_other_operations_is_read_as_it_was_meant(tmp_path):
    ring = Ring(tmp_path, 0, 1, 64)
    events = np.zeros(3, EVENT)
    events["kind"], events["began"], events["ended"] = [KERNEL, FIRST_OP, FIRST_OP + 1], 1, 2
    ring.extend(events)
    ring.header["ticks"] = ring.header["ns"] = (1, 2)
    ring._facts.close()
    for names, kinds in ((["quiet", "put"], ["quiet", "put"]), (["put", "swim"], None)):
        paths(tmp_path, 0)[1].write_bytes(msgpack.packb({"operations": names}))
        if kinds is None:
            with pytest.raises(ArgumentError, match=r"operations that this one has not: swim$"):
                load(tmp_path)
        else:
            trace = load(tmp_path)
            assert [trace.label(event) for event in trace.events] == ["kernel", *kinds]


def test_facts_that_make_no_sense_are_an_error(tmp_path):
    ring = Ring(tmp_path, 0, 1, 64)
    ring.header["ticks"] = ring.header["ns"] = (1, 2)
    ring._facts.close()
    damaged = (
        "put",
        {"array": 256, "ticks": 1},
        {"site": "4", "text": "x"},
        {"freed": 1, "ticks": ""},
    )
    for fact in damaged:
        paths(tmp_path, 0)[1].write_bytes(msgpack.packb(fact))
        with pytest.raises(ArgumentError, match=r"damaged: .* is no fact$"):
            load(tmp_path)
    paths(tmp_path, 0)[1].write_bytes(msgpack.packb({"of a later version": 1}))
    assert load(tmp_path).facts[0] == [{"of a later version": 1}]


@pytest.mark.parametrize("n", [1, 3, 8])
def test_each_wait_is_released_by_the_put_that_it_waited_for(traced, n):
    program = RING + (
        "for k in range(2, 21):\n"
        "    shift[1, 32](dst, src, signal, k)\n"
        "    shmem.barrier_all()\n"
        "shmem.get(dst[:10], src, (me + 1) % n)\n"
    ) + END  # fmt: skip
    trace = traced(n, program)
    assert trace.n_pes == n
    assert not trace.lost
    events, analysis = trace.events, Analysis(trace)
    waits = named(trace, "signal_wait_until")
    assert len(waits) == 20 * n
    for wait in waits:
        by = events[analysis.released[wait]]
        pe, round_ = events["of"][wait], events["value"][wait]
        assert trace.label(by) == "put_signal_block"
        assert (by["of"], by["pe"], by["value"]) == ((pe - 1) % n, pe, round_)
        assert by["nbytes"] == 8  # the signal, not the data
        assert by["began"] <= events["ended"][wait]
        assert trace.site(pe, events["site"][wait]).startswith(
            f"program.py:{line_of(program, 'signal_wait_until')} in shift"
        )
    expected = np.zeros((n, n), np.int64)
    for pe in range(n):
        expected[pe, (pe + 1) % n] += 20 * (4000 + 8)
        expected[(pe + 1) % n, pe] += 40
    np.testing.assert_array_equal(analysis.sent, expected)
    for pe in range(n):
        kernels = events[(events["kind"] == KERNEL) & (events["of"] == pe)]
        blocks = events[(events["kind"] == BLOCK) & (events["of"] == pe)]
        assert [trace.label(kernel) for kernel in kernels] == ["shift"] * 20
        assert blocks["launch"].tolist() == kernels["number"].tolist()
        assert (kernels["began"] <= blocks["began"]).all()
        assert (blocks["ended"] <= kernels["ended"]).all()
        launches = events[(events["kind"] == LAUNCH) & (events["of"] == pe)]
        assert (launches["began"] <= kernels["began"]).all()
    meetings = [members for members in analysis.meetings if len(members) == n]
    barriers = [m for m in meetings if trace.label(events[m[0]]) == "barrier_all"]
    assert len(barriers) == (20 if n > 1 else 0)
    for members in barriers:  # nobody goes on before all have come
        assert events["ended"][members].min() >= events["began"][members].max()


SLEEPS = (
    RING
    + """
began = time.monotonic()
for k in range(2, 6):
    if me == 1:
        time.sleep(0.2)
    shift[1, 32](dst, src, signal, k)
    shmem.synchronize()
if me == 1:
    print(time.monotonic() - began)
shmem.barrier_all()
"""
)


@pytest.mark.quiet
def test_time_is_what_the_program_has_been_built_of(traced):
    """PE 1 sleeps four times 0.2 s before it sends; the others wait, in the kernel."""
    trace = traced(3, SLEEPS + END)
    analysis, events = Analysis(trace), trace.events
    began = min(
        events["began"][k] for k in named(trace, "signal_wait_until") if events["value"][k] == 2
    )
    # It sleeps that long at least; the program's own clock says what all of it took.
    time, least, most = analysis.time, 0.98 * 0.8e9, 1.02e9 * float(traced.done.stdout)
    np.testing.assert_array_equal(time[:, :-1].sum(1), trace.end)
    # PE 2 waits for PE 1 each time; PE 0 for PE 2, which has waited.
    waits = [wait for wait in analysis.waits if events["began"][wait.event] >= began]
    for pe in (0, 2):
        waited = sum(wait.ns for wait in waits if events["of"][wait.event] == pe)
        assert least < waited < most
    late = [w for w in waits if w.by >= 0 and w.ns > 0.1e9 and events["of"][w.event] == 2]
    assert len(late) == 4
    assert {int(events["of"][wait.by]) for wait in late} == {1}
    path = sum(
        step.ended - max(step.began, began) for step in analysis.critical_path
        if step.pe == 1 and step.ended > began
    )  # fmt: skip
    assert least < path < most
    assert time[1, COMPUTING] > 0.8e9


@pytest.mark.quiet
def test_a_message_of_known_length_takes_its_time(traced):
    """What is moved, one actor at a time, is the time of the operations that move it."""
    program = (
        RING
        + """
big = shmem.zeros(1 << 20, dtype="float64")
@shmem.jit
def send(dst, src, n):
    for _ in range(n):
        shmem.put_block(dst, src, (shmem.my_pe() + 1) % shmem.n_pes())
send[1, 32](big, big, 1)
shmem.barrier_all()
send[1, 32](big, big, 20)
shmem.barrier_all()
"""
        + END
    )
    trace = traced(2, program)
    analysis, events = Analysis(trace), trace.events
    puts = named(trace, "put_block")
    assert len(puts) == 42
    assert (events["nbytes"][puts] == 8 << 20).all()
    for pe in range(2):
        mine = [
            k
            for k in range(len(events))
            if events["of"][k] == pe
            and events["nbytes"][k]
            and trace.label(events[k]) in ("put_block", "put_signal_block")
        ]
        moved = (events["ended"][mine] - events["began"][mine]).sum()
        assert analysis.time[pe, MOVING] == pytest.approx(moved, rel=0.02)


def test_a_pe_that_is_killed_leaves_what_it_did(traced):
    program = (
        RING
        + """
@shmem.jit
def die(signal):
    shmem.signal_op(signal, 5, shmem.SIGNAL_SET, 0)
    shmem.signal_wait_until(signal, shmem.CMP_EQ, 77)
if me == 1:
    die[1, 1](signal)
    time.sleep(0.5)
    os.kill(os.getpid(), 9)
shmem.barrier_all()
"""
        + END
    )
    trace = traced(2, program, code=137)
    (wait,) = [k for k in named(trace, "signal_wait_until") if trace.events["value"][k] == 77]
    event = trace.events[wait]
    assert (event["of"], event["ended"]) == (1, OPEN)
    assert "in die" in trace.site(1, event["site"])
    assert [trace.events["of"][k] for k in named(trace, "signal_op")] == [1]
    kernels = [k for k in named(trace, "die") if trace.events["kind"][k] == KERNEL]
    assert trace.events["ended"][kernels].tolist() == [OPEN]
    assert Analysis(trace).time[:, :-1].sum(1).tolist() == [trace.end] * 2


def test_a_deadlock_is_in_the_trace(traced):
    program = (
        RING
        + """
@shmem.jit
def hang(signal):
    shmem.signal_wait_until(signal, shmem.CMP_EQ, 99)
hang[1, 1](signal)
shmem.synchronize()
"""
        + END
    )
    trace = traced(2, program, code=1)
    open_ = [k for k in named(trace, "signal_wait_until") if trace.events["value"][k] == 99]
    assert sorted(trace.events["of"][open_]) == [0, 1]
    assert (Analysis(trace).time[:, WAITING] > 0.1e9).all()
    assert "gpushmem trace open" in traced.done.stderr


def test_of_too_many_events_the_newest_are_kept(traced, monkeypatch):
    """And it is said how many are lost; what is left is in order."""
    monkeypatch.setenv("GPUSHMEM_TRACE_EVENTS", "256")
    program = (
        'import os; os.environ["GPUSHMEM_TRACE_EVENTS"] = "256"\n'
        + RING
        + """
@shmem.jit
def many(x, n):
    for k in range(n):
        shmem.p(x, k, shmem.my_pe())
x = shmem.zeros(1, dtype="int64")
many[1, 1](x, 1000)
shmem.barrier_all()
"""
        + END
    )
    trace = traced(2, program)
    assert set(trace.lost) == {0, 1}
    written = [k for k in named(trace, "p") if trace.events["of"][k] == 0]
    assert trace.events["value"][written].tolist() == [*range(1000 - len(written), 1000)]
    assert sum(trace.events["of"] == 0) == 256
    assert trace.lost[0] > 700
    Analysis(trace).critical_path  # noqa: B018  (nothing that it looks for need be there)


def test_streams_threads_and_many_blocks(traced):
    program = (
        RING
        + """
import threading
x = shmem.zeros(64, dtype="int64")
@shmem.jit
def add(x):
    shmem.atomic_add(x[cuda.blockIdx.x:], 1, pe=0)
    cuda.syncthreads()
streams = [shmem.stream() for _ in range(2)]
for k in range(5):
    for stream in streams:
        add[8, 4, stream](x)
shmem.synchronize()
together = threading.Barrier(3)
def host():
    together.wait()
    for k in range(50):
        shmem.p(x[8:], k, 0)
threads = [threading.Thread(target=host) for _ in range(3)]
for thread in threads: thread.start()
for thread in threads: thread.join()
shmem.barrier_all()
"""
        + END
    )
    trace = traced(2, program)
    events = trace.events
    kernels = events[[k for k in named(trace, "add") if events["kind"][k] == KERNEL]]
    for pe in range(2):
        mine = kernels[kernels["of"] == pe]
        assert len(mine) == 10
        assert len(set(mine["value"].tolist())) == 2  # streams
        added = events[[k for k in named(trace, "atomic_add") if events["of"][k] == pe]]
        assert len(added) == 10 * 8 * 4
        for launch in mine["number"]:
            of_it = added[added["launch"] == launch]
            pairs = sorted(
                zip(of_it["block"].tolist(), (of_it["thread"] % 1024).tolist(), strict=True)
            )
            assert pairs == [(block, thread) for block in range(8) for thread in range(4)]
        written = events[[k for k in named(trace, "p") if events["of"][k] == pe]]
        assert len(written) == 150
        assert len(set(written["block"].tolist())) == 3  # threads of the host
        assert (written["launch"] == 0).all()


@pytest.mark.quiet
def test_a_team_meets_by_itself(traced):
    """The PEs of a team wait for each other, not for those that are in none."""
    program = (
        RING
        + """
team = shmem.team_split_strided(shmem.TEAM_WORLD, 1, 2, 2)
if me in (1, 3):
    shmem.barrier(team)  # the first one is compiled
    if me == 3:
        time.sleep(0.2)
    shmem.barrier(team)
shmem.barrier_all()
"""
        + END
    )
    trace = traced(4, program)
    analysis, events = Analysis(trace), trace.events
    met = [m for m in analysis.meetings if trace.label(events[m[0]]) == "barrier"]
    assert [sorted(events["of"][m].tolist()) for m in met] == [[1, 3]] * 2
    (wait,) = [w for w in analysis.waits if w.event in met[1]]
    assert (events["of"][wait.event], events["of"][wait.by]) == (1, 3)
    assert 0.19e9 < wait.ns < 0.5e9  # PEs 0 and 2 are on the cores, too


@pytest.mark.timeout(300)
def test_64_pes(traced):
    trace = traced(64, RING + END, timeout=250)
    analysis = Analysis(trace)
    waits = named(trace, "signal_wait_until")
    assert len(waits) == 64
    by = trace.events["of"][analysis.released[waits]]
    assert (by == (trace.events["of"][waits] - 1) % 64).all()
    assert len([m for m in analysis.meetings if len(m) == 64]) >= 5


def test_the_summary_as_text_and_data(traced, run_cli):
    traced(3, SLEEPS + END)
    data = json.loads(run_cli("trace", "summary", "--json", traced.folder, code=0).stdout)
    assert data["n_pes"] == 3
    assert [pe["sent"] for pe in data["pes"]] == [5 * 4008] * 3
    worst = next(row for row in data["waits"] if row["what"] == "signal_wait_until")
    assert worst["by_pe"] in (1, 2)
    assert worst["times"] >= 4
    text = run_cli("trace", "summary", traced.folder, code=0).stdout
    assert text.startswith("3 PEs, ")
    for title in ("Who waited for whom", "Critical path", "Kernels", "Operations, by line"):
        assert f"\n{title}" in text


@pytest.mark.quiet
def test_what_changed_from_one_trace_to_another(traced, run_cli):
    traced(2, SLEEPS + END)
    slow = traced.folder.rename(traced.folder.with_name("slow"))
    traced(2, SLEEPS.replace("0.2", "0.02") + END)
    data = json.loads(run_cli("trace", "diff", "--json", slow, traced.folder, code=0).stdout)
    (shift,) = data["Kernels"]
    assert (shift["of"], shift["a_times"], shift["b_times"]) == ("shift", 10, 10)
    waits = next(row for row in data["Operations, by line"] if "signal_wait" in row["of"])
    assert waits["a_ns"] - waits["b_ns"] == pytest.approx(4 * 0.18e9, rel=0.1)
    text = run_cli("trace", "diff", slow, traced.folder, code=0).stdout
    assert text.startswith("Time\n")
    waiting = next(line for line in text.splitlines() if "waiting, all PEs" in line)
    assert waiting.lstrip().startswith("-"), "less than before"


def test_a_trace_that_the_disk_has_no_room_for_is_refused(run_cli, tmp_path):
    (tmp_path / "program.py").write_text(
        "import os\n"
        'os.environ["GPUSHMEM_TRACE_EVENTS"] = str(1 << 40)\n'
        "import gpushmem as shmem\n"
        "shmem.init()\n"
    )
    done = run_cli(
        "run", "--backend", "cpu", "--trace", tmp_path / "out", tmp_path / "program.py", code=1
    )
    assert "may take 64 TiB" in done.stderr
    assert "GPUSHMEM_TRACE_EVENTS" in done.stderr


def test_what_is_no_trace_is_refused(run_cli, tmp_path):
    with pytest.raises(ArgumentError, match="has no trace"):
        load(tmp_path)
    assert "has no trace" in run_cli("trace", "summary", tmp_path, code=1).stderr
    (tmp_path / "pe0.ring").write_bytes(b"x" * 5000)
    with pytest.raises(ArgumentError, match="no trace of version"):
        load(tmp_path)
    program = tmp_path / "program.py"
    program.write_text("pass")
    for options, why in (
        (("--stats", "--trace", tmp_path), "choose one"),
        (("--check", "--check-runs", 2, "--trace", tmp_path), "leave --check-runs out"),
        (("--hosts", "a:1,b:1", "--trace", tmp_path), "leave --hosts out"),
        (("--backend", "null", "--trace", tmp_path), "records nothing"),
    ):
        assert why in run_cli("run", *options, program, code=2).stderr


@pytest.mark.parametrize("racy", [False, True])
def test_a_trace_and_a_check_of_one_run(run_cli, tmp_path, racy):
    """Both say what they say alone."""
    wait = "        shmem.signal_wait_until(signal, shmem.CMP_GE, round)\n"
    program, code, said = tmp_path / "ring.py", 66 * racy, {}
    program.write_text((RING.replace(wait, "        src[0] = dst[0]\n") if racy else RING) + END)
    for name, options in {
        "trace": ("--trace", tmp_path / "trace"),
        "check": ("--check",),
        "both": ("--check", "--trace", tmp_path / "both"),
    }.items():
        done = run_cli("run", "-n", 3, *options, program, code=code * (name != "trace"))
        said[name] = re.sub("gpushmem: see what the PEs did.*\n", "", done.stderr)
    assert said["both"] == said["check"]
    assert ("race" in said["both"]) == racy
    happened = []
    for name in ("trace", "both"):
        trace = load(tmp_path / name)
        operations = trace.events[trace.events["kind"] >= FIRST_OP]
        happened.append(sorted(operations[["of", "kind", "pe", "nbytes", "block"]].tolist()))
        assert (operations["launch"] > 0).any()
    assert happened[0] == happened[1]


def test_the_signals_that_are_waited_for(traced, run_cli):
    """Which, how long, and who wrote them; elements by name."""
    more = """
seen = shmem.zeros((2, 3), dtype="int32")

@shmem.jit
def last(seen):
    if shmem.my_pe() == 0:
        shmem.p(seen[1, 2:], 1, 1)
    elif shmem.my_pe() == 1:
        shmem.wait_until(seen[1, 2:], shmem.CMP_EQ, 1)

if me == 1:
    time.sleep(0.2)
shift[1, 32](dst, src, signal, 2)
last[1, 1](seen)
"""
    rows = signals(traced(3, RING + more + END))
    assert [row["ns"] for row in rows] == sorted((row["ns"] for row in rows), reverse=True)
    found = {(row["pe"], row["name"]): row for row in rows}
    written = {(pe, "signal[0]"): [(pe - 1) % 3] for pe in range(3)} | {(1, "seen[1, 2]"): [0]}
    assert {key: row["writers"] for key, row in found.items()} == written
    assert [found[pe, "signal[0]"]["waits"] for pe in range(3)] == [2, 2, 2]
    late = found[2, "signal[0]"]
    assert 1.5e8 < late["longest_ns"] < late["ns"], "PE 1 slept"
    said = run_cli("trace", "signals", traced.folder).stdout
    line = r"^ *\d.* +2 .* 2  signal\[0\] +PE 1 +program.py:\d+ in shift$"
    assert re.search(line, said, re.MULTILINE)
    assert json.loads(run_cli("trace", "signals", traced.folder, "--json").stdout) == rows


def test_a_signal_in_the_place_of_a_freed_one(traced):
    more = """
shift[1, 32](dst, src, signal, 1)
shmem.barrier_all()
at = signal.offset
shmem.free(signal)
other = shmem.zeros(1, dtype="uint64")
assert other.offset == at

@shmem.jit
def both(other):
    shmem.signal_op(other, 1, shmem.SIGNAL_SET, 0)
    shmem.signal_wait_until(other, shmem.CMP_GE, 1)

if me == 0:
    both[1, 1](other)
"""
    trace = traced(2, RING + more + END)
    rows = signals(trace)
    before, after = trace.arrays_at(0, trace.arrays[0][-1].offset)
    shown = [trace.array_at(0, before.offset, when) for when in (before.ended - 1, before.ended)]
    assert [array.name for array in shown] == [before.name, after.name] == ["signal", "other"]
    assert {(row["pe"], row["name"]): (row["waits"], row["writers"]) for row in rows} == {
        (0, "signal[0]"): (2, [1]), (1, "signal[0]"): (2, [0]), (0, "other[0]"): (1, [0]),
    }  # fmt: skip


def test_what_the_host_has_done_has_the_hosts_line(traced):
    program = """
import gpushmem as shmem
shmem.init(heap_size="16M")
a, b = shmem.zeros(4, dtype="int32"), shmem.zeros(4, dtype="int32")
shmem.broadcast(shmem.TEAM_WORLD, a, b, 0)
shmem.barrier_all()
"""
    trace = traced(2, program + END)
    numbers, lines = trace.lines
    shown = {lines[numbers[k]] for k in named(trace, "broadcast")}
    assert shown == {f"program.py:{line_of(program, 'broadcast')} in <module>"}


def test_no_signals(traced, run_cli):
    traced(1, "import gpushmem as shmem\nshmem.init(heap_size='16M')" + END)
    said = run_cli("trace", "signals", traced.folder).stdout
    assert said == "no kernel waited for a signal\n"
