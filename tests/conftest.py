"""Fixtures: real PEs, and the command as a user types it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpushmem.backends import choice

if choice.choose()[0] != "cpu":  # where there is a GPU, who wants tests of it asks for them
    os.environ.setdefault("GPUSHMEM_BACKEND", "cpu")

# Half a minute for each dtype and architecture: who tests it asks for it.
os.environ.setdefault("GPUSHMEM_CUBLASDX", "0")

from tests import gpus, pes

if pes.BACKEND != "cpu":
    gpus.prepare()
ROOT = Path(__file__).parent.parent
# Unbuffered output would mix the PEs' lines in their middle.
PLAIN = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}


def pytest_collection_modifyitems(items):
    """GPUSHMEM_BACKEND=nvshmem pytest -m gpu: the tests of what every backend does, on GPUs."""
    if pes.BACKEND != "cpu":
        gpus.mark(items, ROOT / "tests")


@pytest.fixture
def run_pes():
    """`run_pes(n, function, *args)`: run it in n real PEs, return the list of what they returned.

    `function` may be a closure; what it returns is pickled. Options: `timeout` in seconds,
    `heap_size` in bytes. A PE that fails or a job that hangs fails the test with every PE's output.
    """
    return pes.run_pes


@pytest.fixture
def alone():
    """One PE: this process."""
    import gpushmem as shmem

    if pes.BACKEND != "cpu":
        gpus.need()
    shmem.init(heap_size="16M")
    yield
    shmem.finalize()


@pytest.fixture
def run_cli():
    """`run_cli(*args)`: run `python -m gpushmem args...` as a process; see `cli`."""
    return cli


def cli(*args, timeout=60, code=None, cwd=None, env=None, stdin=None):
    """Run the command, return its CompletedProcess; `code` is the exit code it must have."""
    process = start_cli(*args, cwd=cwd, env=env, stdin=subprocess.PIPE if stdin else None)
    try:
        out, err = process.communicate(stdin, timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        pytest.fail(f"gpushmem {args} still ran after {timeout} s\nstdout:\n{out}\nstderr:\n{err}")
    result = subprocess.CompletedProcess(args, process.returncode, out, err)
    if code is not None and result.returncode != code:
        pytest.fail(f"exit code {result.returncode}, not {code}\nstdout:\n{out}\nstderr:\n{err}")
    return result


def start_cli(*args, cwd=None, env=None, stdin=None):
    """Start the command in a process group of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "gpushmem", *map(str, args)], cwd=cwd or ROOT, text=True,
        errors="surrogateescape", env={**PLAIN, "PYTHONPATH": str(ROOT), **(env or {})},
        start_new_session=True, stdin=stdin or subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )  # fmt: skip
