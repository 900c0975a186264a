"""Processes that a PE forks are not that PE: they disturb nothing, and are told so."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import traceback

import numpy as np
import pytest

import gpushmem as shmem
from tests.launch.job_kernels import set_to
from tests.launch.test_failures import job, without_launcher

FORK = multiprocessing.get_context("fork")


def said_by_a_child(calls):
    """Make each call in a forked child; for each, the error or the result."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        said = {}
        for name, call in calls.items():
            try:
                said[name] = str(call())
            except Exception as error:
                said[name] = "".join(traceback.format_exception_only(error))
        os.write(writer, json.dumps(said).encode())
        os._exit(0)
    os.close(writer)
    with open(reader) as pipe:
        said = json.load(pipe)
    assert os.waitpid(child, 0)[1] == 0
    return said


def square(x):
    return x * x


def test_a_child_cannot_act_as_its_pe_and_works_by_itself(run_pes):
    def body():
        shmem.init()
        me = shmem.my_pe()
        a, plain = shmem.full(4, 1.0), shmem.full(2, me, like=np)
        stream = shmem.stream()
        launch = set_to[1, 1]
        launch(a, 2)
        with shmem.capture(stream) as graph:
            set_to[1, 1, stream](a, 3)
        shmem.barrier_all()
        if me == 1:
            refused = {
                "a kernel": lambda: launch(a, 5),
                "a graph": graph.launch,
                "numpy": a.numpy,
                "an assignment": lambda: a.__setitem__(0, 5),
                "put": lambda: shmem.put(a, a, 0),
                "zeros": lambda: shmem.zeros(4),
                "barrier_all": shmem.barrier_all,
                "synchronize": shmem.synchronize,
                "my_pe": shmem.my_pe,
                "init": lambda: shmem.init(backend="cpu"),
            }
            works = {
                "is_initialized": (shmem.is_initialized, "False"),
                "finalize": (shmem.finalize, "None"),
                "memory": (plain.tolist, "[1, 1]"),
            }
            said = said_by_a_child(refused | {name: call for name, (call, _) in works.items()})
            for name in refused:
                assert "NotInitializedError" in said[name], (name, said[name])
                assert "was forked from PE 1 of 2, and is not a PE itself" in said[name]
            assert said["zeros"].partition("Error: ")[2].startswith("zeros: process ")
            assert {name: said[name] for name in works} == {k: v for k, (_, v) in works.items()}
            with FORK.Pool(2) as pool:
                assert pool.map(square, range(4)) == [0, 1, 4, 9]
            assert subprocess.run([sys.executable, "-c", "print(3)"], check=True).returncode == 0
        shmem.reduce(shmem.TEAM_WORLD, a, a, "sum")
        return a.numpy().tolist()

    assert run_pes(body, 2) == [[4.0] * 4] * 2


CHILD = """
import multiprocessing
me = shmem.my_pe()
if me == 1:
    for ending in ({!r}, "sys.exit(3)"):
        child = os.fork()
        if child == 0:
            exec(ending)
        print("a child's status:", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    process = multiprocessing.get_context("fork").Process(target=shmem.barrier_all)
    process.start()
    process.join()
    print("a process's status:", process.exitcode, flush=True)
    time.sleep(0.3)
shmem.barrier_all()
print(f"PE {{me}} goes on", flush=True)
"""
ENDING = "raise ValueError('in the child')"


@pytest.mark.parametrize("launched", [True, False])
def test_how_a_child_ends_says_nothing_of_the_job(tmp_path, run_cli, launched):
    script = job(tmp_path, CHILD.format(ENDING))
    if launched:
        done = run_cli("run", "-n", 2, script)
        out, err = done.stdout, done.stderr
    else:
        outputs = without_launcher(script)
        out, err = ("".join(texts) for texts in zip(*outputs, strict=True))
    assert out.count("goes on") == 2
    assert out.count("a child's status: 1\n") == out.count("a child's status: 3\n") == 1
    assert out.count("a process's status: 1\n") == 1
    assert err.count("ValueError: in the child\n") == 1
    assert "PE 1 failed" not in err
    assert "NotInitializedError: barrier_all: process " in err


def test_the_child_of_a_job_of_one_may_begin_its_own(run_cli, tmp_path):
    script = tmp_path / "alone.py"
    script.write_text(
        """
import os
import gpushmem as shmem
shmem.init()
a = shmem.full(4, 1.0)
child = os.fork()
if child == 0:
    shmem.init()
    b = shmem.full(4, 2.0)
    print(b.numpy().sum(), flush=True)
    try:
        a.numpy()
    except shmem.NotInitializedError as error:
        print(error, flush=True)
    os._exit(0)
os.waitpid(child, 0)
print(a.numpy().sum(), flush=True)
"""
    )
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=60, check=True
    )
    assert "8.0\nprocess " in done.stdout
    assert done.stdout.endswith("\n4.0\n")
    assert "was forked from PE 0 of 1" in done.stdout
