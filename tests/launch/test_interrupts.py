"""Ctrl-C at any moment ends a job with 130, quietly."""

import atexit
import os
import signal
import time

import pytest

import gpushmem as shmem
from gpushmem.start.launch import local
from gpushmem.start.launch.spawn import collect
from tests.conftest import PLAIN, ROOT, start_cli
from tests.launch.job_kernels import poll

# A package in place of one that the command imports: Ctrl-C comes while that goes on.
SLOW = "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(20)\n"


def test_ctrl_c_while_the_command_starts(tmp_path):
    script = tmp_path / "job.py"
    script.write_text("print('ran')\n")
    started = []
    for package in ("click", "numba"):
        folder = tmp_path / f"with slow {package}"
        (folder / package).mkdir(parents=True)
        (folder / package / "__init__.py").write_text(SLOW)
        path = os.pathsep.join([str(folder), str(ROOT)])
        started.append(start_cli("run", "-n", "2", script, env=PLAIN | {"PYTHONPATH": path}))
    for launcher in started:
        assert launcher.communicate(timeout=60) == ("", "")
        assert launcher.returncode == 130


def interrupt_the_job():
    os.kill(os.getppid(), signal.SIGINT)
    time.sleep(20)


def in_an_exit_handler():
    atexit.register(print, "wound up", flush=True)
    atexit.register(interrupt_the_job)


def where_nothing_can_be_raised():
    class Last:
        def __del__(self):
            interrupt_the_job()

    Last()  # Python would print what __del__ raises, and go on
    time.sleep(20)


@pytest.mark.parametrize("where", [in_an_exit_handler, where_nothing_can_be_raised])
def test_ctrl_c_is_heard_wherever_a_pe_is(where, capfd):
    def body():
        from gpushmem.job.job import current

        if current().my_pe == 0:
            return where()
        return time.sleep(20)

    local.preload("cpu")
    began = time.monotonic()
    outcome, _ = collect(2, body)
    assert outcome.code == 130
    assert outcome.codes == {0: 130, 1: 130}
    assert time.monotonic() - began < 10
    out, err = capfd.readouterr()
    assert err == ""
    assert out == ("wound up\n" if where is in_an_exit_handler else "")


@pytest.mark.parametrize("waits", [True, False])
def test_ctrl_c_while_kernels_run(waits, capfd):
    """They are cancelled, which is no news to who has pressed Ctrl-C."""

    def body():
        shmem.init()
        flag = shmem.zeros(1, "uint64")
        shmem.barrier_all()
        poll[1, 2](flag)
        if shmem.my_pe() == 0:
            time.sleep(0.2)
            os.kill(os.getppid(), signal.SIGINT)
        if waits:
            shmem.synchronize()
        time.sleep(20)

    local.preload("cpu")
    outcome, _ = collect(3, body)
    assert outcome.codes == dict.fromkeys(range(3), 130)
    assert capfd.readouterr().err.count("Traceback") == 0
