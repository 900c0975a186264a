"""NVIDIA's profilers round each PE: the command line, and what the launcher sees of the PE.

A shell script stands where the profiler would be: it notes its arguments, and runs the program as a
child, as profilers do. So this is of our side only; what they make of it needs a GPU.
"""

import json
import os
import signal
import sys

import pytest

from gpushmem.errors import ArgumentError, BackendUnavailable
from gpushmem.start.launch import profiler
from tests.conftest import start_cli
from tests.launch.test_local import alive, within

# The program begins with the path of Python.
STAND_IN = """#!/bin/sh
while [ "$1" != {python} ]; do echo "$1" >>{folder}/words.$$; shift; done
"$@"
exit $?
"""
HEAD = """
import json, os, sys, time
from gpushmem.start import bootstrap
peers = bootstrap.find_peers()
heard = peers.broadcast(b"from 0" if peers.my_pe == 0 else None).decode()
print(json.dumps([peers.my_pe, peers.n_pes, heard, sys.argv[1:], os.getpid()]), flush=True)
"""


@pytest.fixture
def job(tmp_path):
    """Start a job of two PEs under a stand-in; returns the launcher."""
    for name in profiler.PROFILERS:
        tool = tmp_path / "bin" / name
        tool.parent.mkdir(exist_ok=True)
        tool.write_text(STAND_IN.format(python=sys.executable, folder=tmp_path))
        tool.chmod(0o755)
    path = {"PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"}

    def start(ending, *options):
        script = tmp_path / "job.py"
        script.write_text(HEAD + ending)
        run = ("run", "--backend", "nvshmem", "-n", 2, *options, script, "a b")
        return start_cli(*run, env=path)

    return start


# Options, and the words before the program of PE {pe}; {port} is any number.
COMMANDS = {
    "nsys": (
        (),
        "profile --force-overwrite=true --output={out}/pe{pe} --trace=cuda,nvtx,osrt",
    ),
    "ncu": (
        ("--profiler-options", "--kernel-name 'regex:a|b'"),
        "--target-processes all --force-overwrite --communicator tcp --communicator-tcp-num-peers "
        "2 --communicator-tcp-port {port} --lockstep-kernel-launch --kernel-name regex:a|b "
        "--export {out}/pe{pe}-of",
    ),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_each_pe_is_started_by_the_profiler(job, tmp_path, name):
    options, text = COMMANDS[name]
    out = tmp_path / "out" / "deep"
    launcher = job("", f"--{name}", out, *options)
    said, err = launcher.communicate(timeout=60)
    assert launcher.returncode == 0, err
    rows = sorted(json.loads(line)[:4] for line in said.splitlines())
    assert rows == [[pe, 2, "from 0", ["a b"]] for pe in range(2)]
    words = sorted(path.read_text().split("\n")[:-1] for path in tmp_path.glob("words.*"))
    expected = text.split()
    ports = {w[expected.index("{port}")] for w in words if "{port}" in expected}
    assert len(ports) == text.count("{port}"), "all meet at one port"
    port = ports.pop() if ports else "0"
    assert 0 <= int(port) < 65536
    assert words == [
        [word.format(out=out, pe=pe, port=port) for word in expected] for pe in range(2)
    ]
    assert out.is_dir()


def test_one_pe_has_nobody_to_meet(tmp_path):
    alone = profiler.Profiler("ncu", "/bin/ncu", tmp_path, ("-k", "x"), 5)
    assert alone.words(0, 1) == [
        "/bin/ncu", "--target-processes", "all", "--force-overwrite", "-k", "x", "--export",
        f"{tmp_path}/pe0",
    ]  # fmt: skip


def test_what_is_found(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "ncu").write_text("#!/bin/sh")
    (tmp_path / "ncu").chmod(0o755)
    found = profiler.find("ncu", tmp_path / "out")
    # One run of a kernel collects these. No set: that would take several.
    assert found.collects == (
        "--section", "LaunchStats", "--section", "Occupancy", "--metrics",
        "gpu__time_duration.sum",
    )  # fmt: skip
    with pytest.raises(ArgumentError, match="--ncu: No closing quotation"):
        profiler.find("ncu", tmp_path / "out", "'")
    with pytest.raises(BackendUnavailable, match="no nsys on PATH: install NVIDIA Nsight Systems"):
        profiler.find("nsys", tmp_path / "none")
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("ending", "code", "said"),
    [
        ("if peers.my_pe == 1: sys.exit(5)\ntime.sleep(60)", 5, "PE 1 of 2 ended with exit code 5"),
        ("if peers.my_pe == 1: raise KeyError('lost')\ntime.sleep(60)", 1, "KeyError: 'lost'"),
    ],
)
def test_how_a_pe_ends_is_seen_through_the_profiler(job, tmp_path, ending, code, said):
    launcher = job(ending, "--nsys", tmp_path / "out")
    out, err = launcher.communicate(timeout=60)
    assert launcher.returncode == code
    assert said in err
    pids = [json.loads(line)[4] for line in out.splitlines()]
    assert len(pids) == 2
    within(5, lambda: not any(map(alive, pids)))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_pes_end_with_the_launcher(job, tmp_path, number):
    launcher = job("time.sleep(60)", "--nsys", tmp_path / "out")
    pids = [json.loads(launcher.stdout.readline())[4] for _ in range(2)]
    os.kill(launcher.pid, number)
    within(30, lambda: not any(map(alive, pids)))
    launcher.communicate(timeout=30)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--nsys", "a", "--ncu", "b"), "--nsys and --ncu: choose one of them"),
        (("--check", "--nsys", "a"), "--check and --nsys: choose one of them"),
        (("--hosts", "a:1,b:1", "--ncu", "a"), "leave --hosts out"),
        (("--backend", "cpu", "--nsys", "a"), "runs no kernel on a GPU, which is what NVIDIA's"),
        (("--backend", "nvshmem-cpu", "--ncu", "a"), "add --backend nvshmem, or take --trace"),
        (("--backend", "null", "--ncu", "a"), "the null backend runs no kernel on a GPU"),
        (("--profiler-options", "-k x"), "add --nsys DIR or --ncu DIR"),
    ],
)
def test_profilers_are_refused_with_a_reason(run_cli, options, said):
    done = run_cli("run", "-n", "2", *options, "examples/ring.py", code=2)
    assert said in " ".join(done.stderr.split())


def test_a_profiler_that_is_not_there_is_named(run_cli, tmp_path):
    tool = ("run", "--backend", "nvshmem", "--nsys", tmp_path / "out", "examples/ring.py")
    done = run_cli(*tool, code=2, env={"PATH": str(tmp_path)})
    assert "there is no nsys on PATH: install NVIDIA Nsight" in " ".join(done.stderr.split())


def test_a_folder_that_cannot_be_made_is_an_error(job, tmp_path):
    (tmp_path / "file").touch()
    launcher = job("", "--nsys", tmp_path / "file" / "out")
    _, err = launcher.communicate(timeout=30)
    assert launcher.returncode == 2
    assert "Not a directory" in err
