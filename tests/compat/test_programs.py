"""Programs in the manner of NVIDIA's for nvshmem4py, unmodified, through the command line."""

import importlib.util
import re
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parent / "programs"


def at(text):
    """The line of ring.py that begins so, as reports name it."""
    lines = (PROGRAMS / "ring.py").read_text().splitlines()
    return f"ring.py:{1 + next(k for k, line in enumerate(lines) if line.strip().startswith(text))}"


PUT = f"{at('put_signal_block(')} in shift"


@pytest.fixture
def run(run_cli, tmp_path):
    def run(n, program, *args, options=()):
        words = ["run", "--as-nvshmem", "-n", str(n), *options]
        return run_cli(*words, PROGRAMS / program, tmp_path / "uid", *args, timeout=150)

    return run


def all_done(done, n):
    assert done.returncode == 0, done.stderr
    assert sorted(re.findall(r"(\d) done", done.stdout)) == [str(pe) for pe in range(n)]


@pytest.mark.parametrize("options", [(), ("--check",)], ids=["", "check"])
def test_a_ring(run, options):
    done = run(3, "ring.py", "ring", options=options)
    all_done(done, 3)
    assert "warning" not in done.stderr


def test_kernels_and_hosts(run):
    all_done(run(3, "everything.py"), 3)


def test_a_deadlock_is_reported_with_the_lines_of_the_program(run):
    done = run(2, "ring.py", "stuck")
    assert done.returncode
    assert re.search(r"signal_wait_until: signal\[0\] >= 2, sees 1", done.stderr)
    assert re.search(rf"uint64, .* allocated at {at('signal = ')}", done.stderr)
    assert f"last written at {PUT}" in done.stderr
    assert "Wait cycle: PE 0 -> PE 1 -> PE 0" in done.stderr


def test_the_checker_names_lines_of_the_program(run):
    done = run(2, "ring.py", "early", options=("--check",))
    assert done.returncode == 66, done.stderr
    assert f"put_signal_block writes it at {PUT}" in done.stderr
    assert f"`dst[0]` on PE 0 (float32, shape (1024,), allocated at {at('dst = ')})" in done.stderr


def test_sizes_that_differ_are_told_once_a_line(run):
    done = run(2, "ring.py", "short")
    all_done(done, 2)
    told = re.findall(
        rf"{PUT}: the target has 1000 elements, the source 1024: 1000 are", done.stderr
    )
    assert len(told) == 2  # one of each PE, of 128 threads


def test_strict_makes_them_errors(run):
    done = run(2, "ring.py", "short", options=("--strict",))
    assert done.returncode == 1
    assert f"{PUT}: the target has 1000 elements, the source 1024" in done.stderr


def test_strict_alone_is_a_usage_error(run_cli):
    done = run_cli("run", "--strict", PROGRAMS / "ring.py")
    assert done.returncode == 2
    assert "--strict: add --as-nvshmem" in done.stderr


@pytest.mark.parametrize("method", ["mpi", "emulated_mpi"])
def test_ranks_of_mpi(run_cli, method):
    hosts = "run", "--as-nvshmem", "--hosts", "localhost:2"
    all_done(run_cli(*hosts, PROGRAMS / "with_mpi.py", method), 2)


def test_ranks_that_are_no_pes_are_told_what_to_do(run_cli):
    done = run_cli("run", "--as-nvshmem", "-n", "2", PROGRAMS / "with_mpi.py", "mpi")
    assert done.returncode == 1
    assert "gpushmem run --as-nvshmem --hosts localhost:2" in done.stderr


@pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs PyTorch")
def test_tensors(run):
    all_done(run(2, "tensors.py"), 2)
