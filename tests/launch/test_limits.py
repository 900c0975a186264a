"""Jobs for which the system has no room: what is said, and that nothing is left."""

import io
import os
import re
import resource
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import gpushmem as shmem
from gpushmem.start.launch import local
from tests.bootstrap.processes import Process
from tests.conftest import PLAIN, ROOT
from tests.files import open_files


@contextmanager
def limited(which, limit):
    before = resource.getrlimit(which)
    resource.setrlimit(which, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(which, before)


def address_space():
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def open_files_asked_for():
    return resource.RLIMIT_NOFILE, 100, 60


def open_files_that_are_open():
    """What is asked for is there, but the program has files of its own."""
    taken = [os.dup(0) for _ in range(180)]  # they end with the process
    return resource.RLIMIT_NOFILE, len(taken) + 20, 30


def processes():
    sys.stdout = io.StringIO()  # so that what PEs print goes through pipes
    with suppress(PermissionError):  # root has no limit
        os.setresuid(54321, 54321, 54321)
    return resource.RLIMIT_NPROC, 4, 8


def no_processes():
    processes()
    return resource.RLIMIT_NPROC, 1, 2


def memory():
    return resource.RLIMIT_AS, address_space() + (16 << 20), 64


def file_size():
    return resource.RLIMIT_FSIZE, 1 << 20, 2


# What is short, and what is said.
SHORT = {
    open_files_asked_for: r"a job of 60 PEs needs 244 .*the limit is 100: raise it \(ulimit -n 244",
    open_files_that_are_open: r"Too many open files; the limit is 200 .*\(ulimit -n\)",
    processes: r"cannot start PE \d of 8: .* the limit is 4 processes .*\(ulimit -u",
    no_processes: r"cannot start PE 0 of 2: .* the limit is 1 processes .*\(ulimit -u",
    memory: r"cannot map the board of a job of 64 PEs: .*address space.*\(ulimit -v\)",
    file_size: r"cannot make the memory of a job of 2 PEs: .*\(ulimit -f\)",
}


def refused(short):
    """In a process of its own: spawn where something is short; what is said, and what is left."""

    def body():
        which, limit, n_pes = short()
        before = open_files()
        with limited(which, limit), pytest.raises(shmem.ShmemError) as error:
            shmem.spawn(os.getpid, n_pes)
        with pytest.raises(ChildProcessError):
            os.waitpid(-1, os.WNOHANG)
        said = str(error.value)
        del error  # its frames have the board, mapped
        assert not open_files() - before
        if short is not processes:  # that one is not root any more
            assert len(shmem.spawn(os.getpid, 2)) == 2, "it can be done when there is room"
        return said

    return body


def test_limits_are_named_and_nothing_is_left():
    local.preload("cpu")
    for short, said in SHORT.items():
        process = Process(refused(short))
        printed = process.wait()
        assert process.value is not None, printed
        assert re.search(said, process.value), process.value


def test_run_says_it_before_anything_is_started(tmp_path):
    script = tmp_path / "job.py"
    script.write_text("print('ran')\n")
    command = f"ulimit -n 64; exec {sys.executable} -m gpushmem run -n 50 {script}"
    done = subprocess.run(
        ["sh", "-c", command], env=PLAIN | {"PYTHONPATH": str(ROOT)}, check=False, text=True,
        capture_output=True,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr == (
        "Error: a job of 50 PEs needs 214 open files per process, the limit is 64: raise it "
        "(ulimit -n 214), or start fewer PEs\n"
    )
