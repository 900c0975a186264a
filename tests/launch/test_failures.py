"""PEs that fail, and hosts that wait for too long: what the others and the reader are told."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpushmem.cli.commands import group
from tests.conftest import ROOT, start_cli
from tests.launch.test_local import alive, holders_of_our_memory, within
from tests.terminal import on_a_terminal

HEAD = """
import os, signal, sys, time
import gpushmem as shmem
from tests.launch.job_kernels import endless, meet, poll, wait_for

shmem.init()
flag = shmem.zeros(1, "uint64")
wait_for[1, 1](flag, 0)  # compiled, and over
meet[1, 1]()
shmem.barrier_all()
"""

# How PE 1 ends, the exit code of the job, and what the others are told.
ENDS = {
    "exception": ("raise ValueError('no good')", 1, "ValueError: no good ("),
    "exit": ("sys.exit(3)", 3, "ended with exit code 3"),
    "os._exit": ("os._exit(4)", 4, "ended with exit code 4"),
    "segfault": ("os.kill(os.getpid(), signal.SIGSEGV)", 139, "was killed by SIGSEGV"),
    "kill -9": ("os.kill(os.getpid(), signal.SIGKILL)", 137, "was killed by SIGKILL"),
    "out of memory": ("bytearray(1 << 60)", 1, "MemoryError"),
}
WAITS = {
    "kernel": "wait_for[1, 1](flag, 1)\n    shmem.synchronize()",
    "barrier in a kernel": "meet[1, 1]()\n    shmem.synchronize()",
    "host barrier": "shmem.barrier_all()",
    "host wait": "shmem.signal_wait_until(flag, shmem.CMP_EQ, 1)",
    "allocation": "shmem.zeros(1)",
}


def sample(rows, *names):
    """All names; those not given are of the sweep."""
    return [pytest.param(name, marks=[pytest.mark.sweep] * (name not in names)) for name in rows]


def job(tmp_path, text, head=HEAD):
    script = tmp_path / "job.py"
    script.write_text(head + text)
    return script


def ends_with(ending, wait):
    """A script in which PE 1 ends while the others wait, and say what they are told."""
    return f"""
if shmem.my_pe() == 1:
    time.sleep(0.5)
    print("ends at", time.monotonic(), flush=True)
    {ending}
try:
    {wait}
except shmem.PeerFailed as error:
    print(f"PE {{shmem.my_pe()}} hears: PE {{error.pe}}: {{error.reason}}", flush=True)
    raise
finally:
    print("cleaned up", flush=True)
"""


@pytest.mark.quiet
@pytest.mark.parametrize("how", sample(ENDS, "exception", "exit", "kill -9"))
def test_waits_hear_of_a_pe_that_ends(tmp_path, run_cli, how):
    ending, code, reason = ENDS[how]
    done = run_cli("run", "-n", 3, job(tmp_path, ends_with(ending, WAITS["kernel"])), code=code)
    over = time.monotonic()
    for pe in (0, 2):
        assert f"PE {pe} hears: PE 1: {reason}" in done.stdout
    assert done.stdout.count("cleaned up") >= 2
    assert over - float(re.search(r"ends at (\S+)", done.stdout)[1]) < 1.0
    assert re.search(r"gpushmem: PE 1 of 3 .*; the other 2 PEs were ended\n$", done.stderr)
    tracebacks = 1 if how in ("exception", "out of memory") else 0
    assert done.stderr.count("Traceback") == tracebacks, "only of the PE that failed"
    if tracebacks:
        assert done.stderr.startswith("gpushmem: PE 1 failed:\nTraceback")


@pytest.mark.parametrize("wait", sample(WAITS, "barrier in a kernel", "host barrier"))
def test_every_kind_of_wait_hears(tmp_path, run_cli, wait):
    text = ends_with(ENDS["kill -9"][0], WAITS[wait])
    done = run_cli("run", "-n", 3, job(tmp_path, text), code=137)
    for pe in (0, 2):
        assert f"PE {pe} hears: PE 1: was killed by SIGKILL" in done.stdout


@pytest.mark.quiet
def test_a_pe_that_does_not_wait_is_ended_too(tmp_path, run_cli):
    text = """
if shmem.my_pe() == 1:
    time.sleep(0.3)
    print("ends at", time.monotonic(), flush=True)
    os._exit(2)
if shmem.my_pe() == 2:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
while True:
    sum(range(100000))
"""
    done = run_cli("run", "-n", 3, job(tmp_path, text), code=2)
    assert time.monotonic() - float(re.search(r"ends at (\S+)", done.stdout)[1]) < 1.2


@pytest.mark.quiet
def test_the_first_traceback_comes_first_and_whole(tmp_path, run_cli):
    text = """
def deep(n):
    if n == 0:
        raise RuntimeError("at the bottom")
    deep(n - 1)

if shmem.my_pe() == 2:
    deep(3)
try:
    shmem.barrier_all()
finally:
    1 / 0  # an error of its own
"""
    done = run_cli("run", "-n", 4, job(tmp_path, text), code=1)
    assert done.stderr.startswith("gpushmem: PE 2 failed:\nTraceback"), done.stderr
    assert "RuntimeError: at the bottom" in done.stderr.split("also failed")[0]
    assert "also failed: ZeroDivisionError" in done.stderr


def test_a_wild_store_names_the_kernel_and_what_finds_the_line(tmp_path, run_cli):
    script = tmp_path / "wild.py"
    script.write_text(
        """
import gpushmem as shmem

@shmem.jit
def wild(x, i):
    x[i] = 1

shmem.init()
if shmem.my_pe() == 1:
    wild[1, 1](shmem.device_array(1), 1 << 50)
    shmem.synchronize()
shmem.barrier_all()
"""
    )
    done = run_cli("run", "-n", 2, script, code=128 + signal.SIGSEGV)
    assert re.search(
        r"PE 1 of 2 was killed by SIGSEGV in kernel wild: decorate it with "
        r"@gpushmem.jit\(debug=True\), which checks indices, to find the line; the other PE",
        done.stderr,
    )


def test_nothing_is_left_behind(tmp_path):
    text = (
        f"Path = __import__('pathlib').Path\n"
        f"Path({str(tmp_path)!r}, f'pe{{shmem.my_pe()}}').write_text(str(os.getpid()))\n"
        "shmem.barrier_all()\nwait_for[1, 1](flag, 1)\nshmem.synchronize()\n"
    )
    launcher = start_cli("run", "-n", 3, job(tmp_path, text))
    _, err = launcher.communicate(timeout=60)
    pids = [int((tmp_path / f"pe{k}").read_text()) for k in range(3)]
    assert "gpushmem: deadlock: no PE can go on" in err
    assert launcher.returncode == 1
    assert not any(map(alive, pids))
    assert holders_of_our_memory().isdisjoint(pids)


def test_the_pe_that_fails_does_what_it_has_to_do_at_its_end(tmp_path, run_cli):
    text = """
import atexit
atexit.register(lambda: (time.sleep(0.5), print("wound up", flush=True)))
if shmem.my_pe() == 0:
    raise ValueError("no good")
shmem.barrier_all()
"""
    done = run_cli("run", "-n", 2, job(tmp_path, text), code=1)
    assert "wound up" in done.stdout


@pytest.mark.parametrize("stdout", ["sys.stdout.close()", "sys.stdout = None"])
def test_the_traceback_is_shown_whatever_became_of_stdout(tmp_path, run_cli, stdout):
    done = run_cli("run", "-n", 2, job(tmp_path, f"{stdout}\nraise ValueError('no good')"), code=1)
    assert done.stderr.count("ValueError: no good") == 2  # the second has a line
    assert "Traceback" in done.stderr


def test_what_a_pe_started_does_not_keep_the_launcher(tmp_path, run_cli):
    text = """
import subprocess
if shmem.my_pe() == 0:
    subprocess.Popen(["sleep", "20"], start_new_session=True)
print("said")
"""
    began = time.monotonic()
    done = run_cli("run", "-n", 2, "--tag-output", job(tmp_path, text), code=0)
    assert sorted(done.stdout.splitlines()) == ["[0] said", "[1] said"]
    assert time.monotonic() - began < 15


def test_nohup(tmp_path):
    script = job(tmp_path, f"open({str(tmp_path / 'there')!r}, 'w').close()\ntime.sleep(1.5)\n")
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        launcher = start_cli("run", "-n", 2, script)
    finally:
        signal.signal(signal.SIGHUP, before)
    within(30, (tmp_path / "there").exists)
    launcher.send_signal(signal.SIGHUP)
    launcher.communicate(timeout=30)
    assert launcher.returncode == 0


def test_a_new_init_is_refused_when_the_job_is_over(tmp_path, run_cli):
    text = """
try:
    shmem.signal_wait_until(flag, shmem.CMP_EQ, 1)
except shmem.Deadlock:
    pass
try:
    shmem.finalize()
except shmem.ShmemError:
    pass
try:
    shmem.init()
except shmem.Deadlock as error:
    os.write(1, f"refused: {error}\\n".encode())
"""
    done = run_cli("run", "-n", 2, job(tmp_path, text), code=1)
    assert done.stdout.count("refused: deadlock: no PE can go on\n") == 2


def test_finalize_in_another_thread(run_pes):
    import threading

    import gpushmem as shmem

    def body():
        for _ in range(2):
            shmem.init()
            shmem.zeros(1)
            thread = threading.Thread(target=shmem.finalize)
            thread.start()
            thread.join()
        return sorted(t.name for t in threading.enumerate())

    assert run_pes(body, 2) == [["MainThread"]] * 2


# --- timeouts


def test_timeout_reports_and_ends(tmp_path, run_cli):
    text = """
if shmem.my_pe() == 1:
    def slow():
        time.sleep(30)  # the culprit
    slow()
meet[1, 1]()
shmem.synchronize()
"""
    began = time.monotonic()
    done = run_cli("run", "-n", 3, "--timeout", "1.5", job(tmp_path, text), code=124)
    assert time.monotonic() - began < 20
    assert re.search(r"gpushmem: PE [02] has waited for 1.5 s in synchronize", done.stderr)
    assert re.search(r"PEs 0, 2: kernel meet, .*\n +barrier_all waits for PE 1", done.stderr)
    assert "PE 1: is not waiting in gpushmem" in done.stderr
    stack = done.stderr.split("Python stack of PE 1, MainThread:")[1]
    assert "time.sleep(30)  # the culprit" in stack
    assert "launch/local.py" not in done.stderr
    assert "Waits: PEs 0, 2 for PE 1." in done.stderr
    assert done.stderr.endswith("; all PEs were ended\n")


def test_set_timeout_names_a_kernel_that_spins(tmp_path, run_cli):
    text = """
shmem.set_timeout(1)
if shmem.my_pe() == 0:
    endless[1, 1](shmem.device_array(1000))
shmem.barrier_all()
"""
    done = run_cli("run", "-n", 2, job(tmp_path, text), code=124)
    assert "PE 0: kernel endless is running, and none of its threads waits" in done.stderr
    assert re.search(r"PE \d has waited for 1 s in (barrier_all|synchronize)", done.stderr)


def test_a_program_hears_of_the_timeout(run_pes, capfd):
    import gpushmem as shmem

    def body():
        shmem.init()
        if shmem.my_pe() == 0:
            shmem.set_timeout(0.5)
            with pytest.raises(shmem.WaitTimeout, match=r"has waited for 0\.5 s in barrier_all"):
                shmem.barrier_all()
            os.write(2, b"heard\n")
        else:
            time.sleep(5)

    with pytest.raises(shmem.WaitTimeout, match=r"PE 0 has waited for 0\.5 s in barrier_all"):
        run_pes(body, 2)
    assert "heard\n" in capfd.readouterr().err


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf")])
def test_a_timeout_must_be_some_seconds(alone, seconds):
    import gpushmem as shmem

    with pytest.raises(shmem.ArgumentError, match="set_timeout: give a number of seconds above 0"):
        shmem.set_timeout(seconds)


def test_what_is_quiet_for_long_is_reported_once_and_goes_on(tmp_path, run_cli):
    text = """
import threading
shmem.signal_op(flag, 1, shmem.SIGNAL_SET, 0)
poll[1, 1](flag)  # compiled
shmem.synchronize()
time.sleep(1.5)  # a host that is busy is not quiet
shmem.signal_op(flag, 0, shmem.SIGNAL_SET, 0)
threading.Timer(4, lambda: shmem.signal_op(flag, 1, shmem.SIGNAL_SET, 0)).start()
poll[1, 1](flag)
shmem.synchronize()
print("went on")
"""
    env = {"GPUSHMEM_NOTICE": "0.7"}
    done = run_cli("run", job(tmp_path, text), code=0, env=env)
    assert done.stdout == "went on\n"
    assert done.stderr.count("gpushmem: no PE has made progress for 1 s; the job goes on") == 1
    assert re.search(
        r"PE 0: kernel poll, .*\n +polls flag\[0\] with signal_fetch, sees 0", done.stderr
    )


# --- asked from outside


def running_job(tmp_path, n=2):
    """A job in which all but PE 1 wait; PE 1 sleeps in Python."""
    text = """
open(sys.argv[1] + f"/there{shmem.my_pe()}", "w").close()
if shmem.my_pe() == 1:
    time.sleep(60)
shmem.barrier_all()
"""
    launcher = start_cli("run", "-n", n, job(tmp_path, text), tmp_path)
    within(30, lambda: all((tmp_path / f"there{k}").exists() for k in range(n)))
    time.sleep(0.3)
    return launcher


def test_sigusr1_asks_a_live_job(tmp_path):
    launcher = running_job(tmp_path)
    launcher.send_signal(signal.SIGUSR1)
    seen = ""
    while "Python stack of PE 1" not in seen:
        seen += launcher.stderr.readline()
    assert re.search(r"PE 0: host, in barrier_all at job.py:\d+, waits for PE 1, for", seen)
    assert launcher.poll() is None, "the job goes on"
    launcher.send_signal(signal.SIGINT)
    launcher.communicate(timeout=60)


def inspected(*args, code=0):
    """What `gpushmem inspect` says, in this process: Python takes as long to start as it does."""
    done = CliRunner().invoke(group, ["inspect", *map(str, args)])
    assert done.exit_code == code, done.output
    return done.output


def test_ps_and_inspect(tmp_path, run_cli):
    launcher = running_job(tmp_path, 3)
    listed = run_cli("ps", code=0).stdout.splitlines()
    assert listed[0].split() == ["JOB", "PES", "RUNNING", "SECONDS", "COMMAND"]
    row = next(line for line in listed if line.split()[0] == str(launcher.pid))
    assert row.split()[1:3] == ["3", "3"]
    assert "job.py" in row
    pes = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
    waiting = re.compile(r"PEs 0, 2: host, in barrier_all at job.py:\d+, waits for PE 1")
    for number in (launcher.pid, pes[1]):
        within(30, lambda number=number: waiting.search(inspected(number)))
        assert "time.sleep" not in inspected(number)
    assert "time.sleep(60)" in run_cli("inspect", "--stacks", launcher.pid, code=0).stdout

    os.kill(int(pes[1]), signal.SIGSTOP)
    text = inspected(launcher.pid)
    assert "PE 1: does not answer" in text
    assert launcher.poll() is None, "the job goes on"
    launcher.kill()
    launcher.communicate()
    assert f"you have no job {launcher.pid} on this machine" in inspected(launcher.pid, code=1)


def test_a_job_is_followed_until_it_ends(tmp_path, run_cli):
    launcher = running_job(tmp_path)
    piped = run_cli("inspect", "--live", launcher.pid, code=2)
    assert "--live needs a terminal" in piped.stderr
    with on_a_terminal("-m", "gpushmem", "inspect", "--live", launcher.pid) as (process, printed):
        waits = r"0 +waiting +\d\.\d s +100% +PE 1 +barrier_all +job.py:\d+"
        within(30, lambda: len(re.findall(waits, printed())) >= 3)  # it is drawn again
        assert re.search(r"1 +computing +0% +the host", printed())
        assert f"job {launcher.pid}: 2 PEs, 1 waiting" in printed()
        launcher.send_signal(signal.SIGINT)
        launcher.communicate(timeout=60)
        assert process.wait(timeout=10) == 0
        assert printed().rstrip().endswith(f"job {launcher.pid} has ended")


def test_following_a_job_ends_with_ctrl_c_and_the_job_goes_on(tmp_path):
    launcher = running_job(tmp_path)
    with on_a_terminal("-m", "gpushmem", "inspect", "--live", launcher.pid) as (process, printed):
        within(30, lambda: "waiting" in printed())
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=10) == 0
        assert "Traceback" not in printed()
    assert launcher.poll() is None
    launcher.send_signal(signal.SIGINT)
    launcher.communicate(timeout=60)


# --- without a launcher of ours


# How PE 1 ends, and what the others are told.
ALONE = {
    "kill -9": ("os.kill(os.getpid(), signal.SIGKILL)", "PeerFailed: PE 1 failed: process "),
    "exception": ("raise ValueError('no good')", "PeerFailed: PE 1 failed: ValueError: no good ("),
    "end": ("sys.exit()", "Deadlock: deadlock: no PE can go on"),
}
HEARS = {"kernel": "wait_for[1, 1](flag, 1)", "host": "while not shmem.signal_fetch(flag): pass"}


def without_launcher(script):
    """Run a script as two PEs that nobody looks after; their outputs and errors."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    env = {
        **os.environ, "GPUSHMEM_BOOTSTRAP": f"tcp://127.0.0.1:{port}", "GPUSHMEM_N_PES": "2",
        "GPUSHMEM_JOB_KEY": "a secret of this test alone", "PYTHONPATH": str(ROOT),
    }  # fmt: skip
    pes = [
        subprocess.Popen(
            [sys.executable, script], env={**env, "GPUSHMEM_PE": str(pe)}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for pe in range(2)
    ]  # fmt: skip
    return [pe.communicate(timeout=60) for pe in pes]


@pytest.mark.parametrize(
    ("how", "hears"), [("kill -9", "kernel"), ("exception", "host"), ("end", "kernel")]
)
def test_pes_watch_each_other(tmp_path, how, hears):
    ending, said = ALONE[how]
    script = job(
        tmp_path,
        f"""
if shmem.my_pe() == 1:
    time.sleep(0.3)
    {ending}
try:
    {HEARS[hears]}
    shmem.synchronize()
except shmem.ShmemError as error:
    print(f"{{type(error).__name__}}: {{error}}", flush=True)
""",
    )
    outputs = without_launcher(script)
    assert outputs[0][0].startswith(said), outputs
    reports = sum("gpushmem: deadlock: no PE can go on" in err for _, err in outputs)
    assert reports == (1 if how == "end" else 0)
