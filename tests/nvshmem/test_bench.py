"""bench/gpu without a GPU: its kernels compile and link, and the emulation runs its host side."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import psutil
import pytest

from bench.gpu import counters
from gpushmem import cache_files
from tests.nvshmem import emulation
from tests.nvshmem.emulation import ROOT

BENCH = ROOT / "bench/gpu"
ELF = b"\x7fELF"

pytestmark = [
    pytest.mark.skipif(emulation.missing() is not None, reason=str(emulation.missing())),
    pytest.mark.sweep,  # nvshmem4py compiles NVSHMEM's headers for each of its kernels
    pytest.mark.timeout(600),
]


def run(*command, status=0, **more):
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=ROOT, env=emulation.environment(EMULATION_DEVICES=1, **more),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compiled")
    run(BENCH / "prepare.py", folder, 2)
    return folder


def test_each_kernel_compiles_on_both_sides(compiled, monkeypatch):
    sys.path.insert(0, str(BENCH))
    try:
        from cubin import functions
        from pairs import PAIRS
        from prepare import code_of
    finally:
        sys.path.remove(str(BENCH))
    monkeypatch.setenv("GPUSHMEM_CACHE_DIR", str(compiled / "ours"))
    names = [
        file.name
        for file in cache_files.folder().iterdir()
        if cache_files.RECORD.fullmatch(file.name)
    ]
    files = [cache_files.load(name).partition(b"\n") for name in names]
    mine = {
        functions(code)[json.loads(about)["entry"]] for about, _, code in files if ELF in code[:4]
    }
    assert len(mine) == len(PAIRS)
    theirs = {name: code_of(compiled, name) for name in PAIRS}
    same = {
        name for name, (code, about) in theirs.items() if functions(code)[about["entry"]] in mine
    }
    # Where the two sides are the same machine code, there is nothing to measure.
    assert same >= {"atomic_add", "atomic_fetch_add", "nothing"}


@pytest.mark.parametrize("n", [1, 2])
def test_operations_are_measured(n, compiled, tmp_path):
    what = ["ops", "ping-pong", "copy", "launch"]
    run(BENCH, *what, "-n", n, "--rehearse", "--kernels", compiled, "--out", tmp_path)
    rows = json.loads((tmp_path / "gpu.json").read_text())["rows"]
    assert {row["n_pes"] for row in rows} == {n}
    measured = {row["what"] for row in rows}
    assert measured >= {"put", "get_block", "p", "atomic_fetch_add", "signal ping-pong, one way"}
    assert any("memcpy" in row for row in rows)
    assert any(row["what"].startswith("launch") for row in rows)


def test_first_kernels_are_measured(tmp_path):
    run(BENCH, "first", "--rehearse", "--turns", 1, "--out", tmp_path)
    rows = json.loads((tmp_path / "gpu.json").read_text())["rows"]
    assert len(rows) == 2
    assert all(row["ours"] > 0 and row["theirs"] > 0 for row in rows)


def test_the_host_is_measured_without_a_gpu(tmp_path):
    run(BENCH, "launch", "--host", "--out", tmp_path)
    rows = json.loads((tmp_path / "gpu-host.json").read_text())["rows"]
    for row in rows:
        most = 8 if "cuda.core.launch" in row["what"] else 1  # 3.3 and 0.2 on an idle machine
        assert 0 < row["ratio"] < most, row


def test_compiling_is_measured(tmp_path):
    run(BENCH, "compile", "--turns", 1, "--out", tmp_path)
    rows = json.loads((tmp_path / "gpu-compile.json").read_text())["rows"]
    warm = next(row for row in rows if row["what"].endswith("the kernel on disk"))
    assert warm["ours"] < warm["theirs"]


def test_what_fails_is_told(compiled, tmp_path):
    folder = tmp_path / "compiled"
    shutil.copytree(compiled, folder)
    (folder / "theirs/put").write_bytes(b'{"entry": "x"}\nno machine code')
    more = ["--rehearse", "--kernels", folder, "--out", tmp_path]
    run(BENCH, "ops", *more, status=1)
    rows = json.loads((tmp_path / "gpu.json").read_text())["rows"]
    measured = {row["what"] for row in rows}
    assert "put" not in measured
    assert measured >= {"p", "put_warp", "get_block"}


def on_machine(folder, *steps, **more):
    """Rehearse steps; what was said, and the summary."""
    env = os.environ | {
        "PYTHON": sys.executable, "OUT": str(folder / "out"), "WORK": str(folder / "work"),
        "NVSHMEM_DEBUG": "", **more,
    }  # fmt: skip
    done = subprocess.run(
        [BENCH / "on_machine.sh", "--rehearse", *steps],
        env=env, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.stdout + done.stderr, (folder / "out/summary.txt").read_text()


def test_the_script_for_a_machine_goes_on_when_a_step_fails(tmp_path):
    said, summary = on_machine(tmp_path, "tests", "info", TESTS="tests/nothing-here")
    assert "tests: failed" in summary, said
    assert "info: ok" in summary, said
    assert said.endswith(summary)
    assert {file.name for file in (tmp_path / "out").iterdir()} >= {"log.txt", "info.json"}


def of_ncu(number, kernel, **more):
    """What Nsight Compute prints of a launch: a line for each metric."""
    good = {
        "load": "15.98", "store": "16", "spilled": "0", "spills": "0", "read": "67,108,864",
        "written": "0", "share": "88.1", "warps": "91", "registers": "40", "ns": "41,000",
    }  # fmt: skip
    about = f'"{number}","1","cudapy::x::{kernel}[abi:v1](Array<float>)"'
    metrics = [(counters.METRICS[what][0], value) for what, value in (good | more).items()]
    return "".join(f'{about},"{name}","","{value}"\n' for name, value in metrics)


def test_counters_are_judged():
    """By the last launch of a kernel: of what is expected of it, and that nothing is spilled."""
    text = '==PROF== Connected\n"ID","Process ID","Kernel Name","Metric Name","Metric Unit",'
    text += '"Metric Value"\n' + of_ncu(0, "copy_parts", load="4") + of_ncu(1, "copy_parts")
    text += of_ncu(2, "sum_parts", store="4", share="n/a", spills="1,234")
    found = list(counters.judged(counters.counted(text), ["moved", "bfs"]))
    assert [(line["kernel"], line["missed"]) for line in found] == [
        ("copy_parts", []), ("sum_parts", ["store", "share", "spills"]),
        ("search", ["it was not launched"]),
    ]  # fmt: skip
    assert found[0]["load"] == pytest.approx(32 * 15.98)
    assert (found[0]["read"], found[1]["spills"], found[1]["share"]) == (64 << 20, 1234, None)


HANGS = """
import time

def test_something():
    pass

def test_that_hangs():
    time.sleep(1000)
"""


def test_the_first_hour_goes_on_after_a_hang(tmp_path):
    hangs = tmp_path / "test_hangs.py"
    hangs.write_text(HANGS)
    quick = tmp_path / "test_quick.py"
    quick.write_text("def test_something():\n    pass\n")
    more = {"ORDERING_LIMIT": "15", "MULTICAST": str(quick), "PLANS": str(quick)}
    said, summary = on_machine(tmp_path, "first-hour", ORDERING=str(hangs), **more)
    ends = [line.partition(",")[0] for line in summary.splitlines()[2:] if "junit" not in line]
    assert [end for end in ends if end] == [
        "ordering: ran out of its 15 s", "polls: ok", "busy: ok", "closures: ok", "loading: ok",
        "loading-host: ok", "far: ok", "multicast: ok", "ibgda: ok", "plans: ok",
    ], said  # fmt: skip
    log = (tmp_path / "out/log.txt").read_text()
    assert "test_something PASSED" in log  # what there was before the hang is kept


def test_the_first_hour_has_what_was_done_when_it_is_cut_off(tmp_path):
    out = tmp_path / "out"
    (out / "bench").mkdir(parents=True)
    (out / "bench/gpu.json").write_text("{}")  # as the step `bench` leaves it
    (tmp_path / "test_hangs.py").write_text(HANGS)
    env = os.environ | {
        "PYTHON": sys.executable, "OUT": str(out), "WORK": str(tmp_path / "work"),
        "ORDERING": str(tmp_path), "NVSHMEM_DEBUG": "",
    }  # fmt: skip
    script = subprocess.Popen(
        [BENCH / "on_machine.sh", "--rehearse", "polls", "ordering"],
        env=env, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    until = time.monotonic() + 150
    log = out / "log.txt"
    while not (log.exists() and "test_something PASSED" in log.read_text()):
        assert time.monotonic() < until, log.read_text()
        assert script.poll() is None
        time.sleep(0.2)
    for process in psutil.Process(script.pid).children(recursive=True):
        process.kill()
    os.killpg(script.pid, signal.SIGKILL)
    script.wait()
    assert "polls: ok" in (out / "summary.txt").read_text()
    assert "PE 0: done" in log.read_text()
    assert (out / "gpu.json").exists()
