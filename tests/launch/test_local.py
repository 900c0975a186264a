"""The launcher with real processes: how jobs end, and what is left of them (nothing)."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from numba import cuda

import gpushmem as shmem
from tests.conftest import start_cli
from tests.files import open_files
from tests.pes import compile_first

STUBBORN = """
import os, pathlib, signal, sys, time
{begin}
folder = pathlib.Path(sys.argv[1])
(folder / f"pe{{my_pe}}.tmp").write_text(str(os.getpid()))
(folder / f"pe{{my_pe}}.tmp").rename(folder / f"pe{{my_pe}}")
{end}
"""
# How PEs are started, and what they do to begin with: on a GPU it would be init.
COPIES = """
import gpushmem as shmem
shmem.init()
my_pe = shmem.my_pe()
a = shmem.ones(1000)
shmem.barrier_all()
"""
NEW = """
from gpushmem.start import bootstrap
peers = bootstrap.find_peers()
my_pe = peers.my_pe
peers.broadcast(b"abc" if my_pe == 0 else None)
"""
WAYS = {"copies": ((), COPIES), "new": (("--backend", "nvshmem"), NEW)}
both = pytest.mark.parametrize("way", WAYS)
seldom_new = pytest.mark.parametrize(
    "way", ["copies", pytest.param("new", marks=pytest.mark.sweep)]
)
WAIT = "time.sleep(60)"


def within(seconds, condition):
    """Wait for a condition; fail if it does not come true in time."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)
    return value


def alive(pid):
    """Whether a process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def holders_of_our_memory():
    """Processes that have one of our memfds open or mapped, this one excepted."""
    found = set()
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and int(process.name) != os.getpid():
            try:
                links = [str(fd.readlink()) for fd in (process / "fd").iterdir()]
                maps = (process / "maps").read_text()
            except OSError:
                continue
            if any("memfd:gpushmem" in link for link in links) or "memfd:gpushmem" in maps:
                found.add(int(process.name))
    return found


def start(tmp_path, n, ending=WAIT, *options, way="copies", env=None):
    """Start a job whose PEs meet and then do `ending`; return the launcher and the PEs' pids."""
    script = tmp_path / "job.py"
    more, begin = WAYS[way]
    script.write_text(STUBBORN.format(begin=begin, end=ending))
    options = (*options, *more)
    launcher = start_cli("run", "-n", n, *options, script, tmp_path, env=env)
    files = [tmp_path / f"pe{k}" for k in range(n)]
    within(30, lambda: all(f.exists() for f in files) or launcher.poll() is not None)
    return launcher, [int(f.read_text()) for f in files]


@pytest.mark.quiet
@both
def test_kill_9_of_a_pe_ends_the_job_quickly(tmp_path, way):
    launcher, pids = start(tmp_path, 3, way=way)
    os.kill(pids[1], signal.SIGKILL)
    began = time.monotonic()
    _, err = launcher.communicate(timeout=60)
    assert time.monotonic() - began < 1.0
    assert launcher.returncode == 128 + signal.SIGKILL
    assert "gpushmem: PE 1 of 3 was killed by SIGKILL; the other 2 PEs were ended" in err
    assert not any(map(alive, pids))
    assert holders_of_our_memory().isdisjoint(pids)


@both
def test_kill_9_of_the_launcher_leaves_nothing(tmp_path, way):
    launcher, pids = start(tmp_path, 3, way=way)
    assert holders_of_our_memory() >= set(pids), "the check below can see our memory"
    launcher.kill()
    launcher.communicate()
    within(5, lambda: not any(map(alive, pids)))
    assert holders_of_our_memory().isdisjoint(pids)


@both
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signals_to_the_launcher_end_the_job(tmp_path, number, way):
    if signal.getsignal(number) is signal.SIG_IGN:
        pytest.skip("under nohup jobs go on")
    launcher, pids = start(tmp_path, 2, way=way)
    launcher.send_signal(number)
    launcher.communicate(timeout=60)
    assert launcher.returncode == 128 + number
    assert not any(map(alive, pids))


@both
def test_ctrl_c_reaches_every_pe_once(tmp_path, way):
    ending = """
count = 0
try:
    time.sleep(60)
except KeyboardInterrupt:
    count += 1
try:
    time.sleep(0.3)
except KeyboardInterrupt:
    count += 1
print("interrupts:", count, flush=True)
raise KeyboardInterrupt
"""
    launcher, _ = start(tmp_path, 3, ending, way=way)
    launcher.send_signal(signal.SIGINT)
    out, err = launcher.communicate(timeout=60)
    assert out.count("interrupts: 1\n") == 3
    assert "Traceback" not in err
    assert launcher.returncode == 130


@seldom_new
def test_every_pe_has_time_to_clean_up_after_ctrl_c(tmp_path, way):
    ending = """
try:
    time.sleep(60)
except KeyboardInterrupt:
    time.sleep(1.5 * my_pe)
    print("clean", flush=True)
    raise
"""
    launcher, _ = start(tmp_path, 3, ending, way=way)
    launcher.send_signal(signal.SIGINT)
    out, _ = launcher.communicate(timeout=60)
    assert out == "clean\n" * 3
    assert launcher.returncode == 130


@seldom_new
def test_a_pe_that_ignores_ctrl_c_is_killed_by_the_second(tmp_path, way):
    ending = """
signal.signal(signal.SIGINT, lambda *_: print("no", flush=True))
(folder / f"deaf{my_pe}").touch()
while True: time.sleep(1)
"""
    launcher, pids = start(tmp_path, 2, ending, way=way)
    within(10, lambda: all((tmp_path / f"deaf{k}").exists() for k in range(2)))
    launcher.send_signal(signal.SIGINT)
    assert launcher.stdout.readline() == "no\n"
    launcher.send_signal(signal.SIGINT)
    launcher.communicate(timeout=60)
    assert not any(map(alive, pids))


@both
def test_what_a_pe_started_ends_with_the_job(tmp_path, way):
    ending = """
import subprocess
child = subprocess.Popen(["sleep", "60"])
(folder / "child").write_text(str(child.pid))
while not (folder / "pe1").exists(): time.sleep(0.01)
sys.exit(5 if my_pe == 0 else 0)
"""
    launcher, _ = start(tmp_path, 2, ending, way=way)
    launcher.communicate(timeout=60)
    assert launcher.returncode == 5
    child = int((tmp_path / "child").read_text())
    within(2, lambda: not alive(child))


@pytest.mark.parametrize("command", ["run", "sim"])
def test_what_python_cannot_read_is_shown_as_python_shows_it(tmp_path, run_cli, command):
    script = tmp_path / "wrong.py"
    script.write_text("import os\nx = = 2\n")
    shown = f'  File "{script}", line 2\n    x = = 2\n        ^\nSyntaxError: invalid syntax\n'
    assert run_cli(command, script, code=1).stderr.startswith(shown)
    script.write_bytes(b"import os\n\0\n")
    (line,) = run_cli(command, script, code=1).stderr.splitlines()
    assert re.fullmatch(r"SyntaxError: source code .*null bytes \(.*wrong.py\)", line)


@seldom_new
def test_the_first_failure_is_shown_the_others_in_a_line(tmp_path, run_cli, way):
    script = tmp_path / "fail.py"
    script.write_text("def broken():\n    raise ValueError('no good')\nbroken()\n")
    done = run_cli("run", "-n", "4", *WAYS[way][0], script, code=1)
    assert done.stderr.count("Traceback (most recent call last)") == 1
    assert "ValueError: no good" in done.stderr
    assert re.search(
        r"gpushmem: PE \d failed:\nTraceback .*\n  File \".*fail.py\", line 3", done.stderr
    )
    assert "launch/local.py" not in done.stderr
    assert re.search(
        r"gpushmem: PE \d of 4 ended with exit code 1; the other 3 PEs were ended", done.stderr
    )


def test_a_failing_pe_does_not_leave_others_in_a_barrier(tmp_path, run_cli):
    script = tmp_path / "half.py"
    script.write_text(
        "import gpushmem as shmem\nshmem.init()\n"
        "if shmem.my_pe() == 1:\n    raise RuntimeError('gone')\nshmem.barrier_all()\n"
    )
    began = time.monotonic()
    done = run_cli("run", "-n", "3", script, code=1)
    assert "RuntimeError: gone" in done.stderr
    assert time.monotonic() - began < 20


@pytest.mark.parametrize("call", ["init()", "barrier_all()", "zeros(3)", "finalize()"])
def test_waiting_for_a_pe_that_has_ended_is_an_error(tmp_path, run_cli, call):
    before = "" if call == "init()" else "shmem.init()\n"
    script = tmp_path / "alone.py"
    script.write_text(
        "import sys\nimport gpushmem as shmem\nfrom gpushmem.job import job\n"
        f"{before}if job.current().my_pe != 1:\n    shmem.{call}\n"
    )
    done = run_cli("run", "-n", "3", script, code=1)
    name = call.split("(")[0]
    assert re.search(
        rf"CollectiveMismatch: {name} waits for PE 1, which ended without making this call",
        done.stderr,
    )


def test_errors_of_launches_nobody_waited_for_are_not_lost(tmp_path, run_cli):
    script = tmp_path / "late.py"
    script.write_text(
        "import gpushmem as shmem\n@shmem.jit\ndef bad(x):\n    raise ValueError('unseen')\n"
        "shmem.init()\nbad[1, 1](shmem.zeros(1))\n"
    )
    assert "unseen" in run_cli("run", "-n", "1", script, code=1).stderr


@pytest.mark.parametrize(
    ("statement", "code", "text"),
    [
        ("sys.exit()", 0, ""), pytest.param("sys.exit(0)", 0, "", marks=pytest.mark.sweep),
        ("sys.exit(3)", 3, ""),
        ("sys.exit('sorry')", 1, "sorry\n"), ("os._exit(9)", 9, "PE 0 of 2 ended with exit code 9"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", 139, "PE 0 of 2 was killed by SIGSEGV"),
    ],
)  # fmt: skip
def test_exit_codes(tmp_path, run_cli, statement, code, text):
    script = tmp_path / "exits.py"
    script.write_text(
        "import os, signal, sys, time\nimport gpushmem as shmem\nshmem.init()\n"
        f"if shmem.my_pe() == 0:\n    {statement}\n"
    )
    assert text in run_cli("run", "-n", "2", script, code=code).stderr


def endless(x):
    i = 0
    while i >= 0:
        i = (i + 1) % 1000
        x[i] += 1


def spinning(x):
    while x[0] == 0:
        pass


def polling(flag):
    while shmem.signal_fetch(flag) != 7:
        pass


def test_kernels_that_do_not_end_are_named(run_pes):
    kernels = [shmem.jit(kernel) for kernel in (endless, spinning, polling)]
    for kernel in kernels:
        compile_first(kernel, np.zeros(1, np.uint64))

    def body():
        shmem.init()
        x = shmem.zeros(1000, "uint64")
        shmem.set_timeout(2)
        kernels[shmem.my_pe()][1, 1](x)
        shmem.synchronize()

    with pytest.raises(shmem.ShmemError) as failure:
        run_pes(body, 3)
    report = str(failure.value)
    assert "PE 0: kernel endless is running, and none of its threads waits" in report
    for said in (
        r"PE 1: kernel spinning, .*test_local.py:\d+ in spinning, for \d.\d s\n"
        r" +is in a loop that reads memory\n",
        r"PE 2: kernel polling, .*test_local.py:\d+ in polling, for \d.\d s\n"
        r" +polls x\[0\] with signal_fetch, sees 0\n",
    ):
        assert re.search(said, report), report


def test_ctrl_c_in_a_hanging_kernel_says_who_waits(tmp_path):
    ending = """
@shmem.jit
def lonely(signal):
    shmem.signal_wait_until(signal, shmem.CMP_EQ, 7)
s = shmem.zeros(1, "uint64")
lonely[1, 1](s)
print("launched", flush=True)
shmem.barrier_all()
"""
    launcher, _ = start(tmp_path, 1, ending, env={"GPUSHMEM_DEADLOCK": "0"})
    assert launcher.stdout.readline() == "launched\n"
    time.sleep(1)  # for the kernel to wait
    launcher.send_signal(signal.SIGINT)
    _, err = launcher.communicate(timeout=60)
    assert "PE 0: kernel lonely" in err
    assert "signal_wait_until" in err
    assert launcher.returncode == 130


def test_no_descriptor_is_left_in_the_launcher(run_pes):
    run_pes(lambda: None, 2)
    before = open_files()
    for _ in range(2):
        run_pes(lambda: None, 3)
    assert not open_files() - before


def test_large_results_come_back(run_pes):
    assert [len(r) for r in run_pes(lambda: bytes(30_000_000), 2)] == [30_000_000] * 2


def test_many_pes_start_quickly(run_pes):
    began = time.monotonic()
    assert len(run_pes(os.getpid, 24)) == 24
    assert time.monotonic() - began < 20


def test_blocks_that_have_no_place_are_reported(run_pes):
    @shmem.jit
    def crowded(signal):
        if cuda.blockIdx.x < 200:  # nobody sets it before the last block has started
            shmem.signal_wait_until(signal, shmem.CMP_EQ, 1)
        else:
            shmem.signal_op(signal, 1, shmem.SIGNAL_SET, 0)

    compile_first(crowded, np.zeros(1, np.uint64))

    def body():
        shmem.init()
        flag = shmem.zeros(1, "uint64")
        shmem.set_timeout(4)
        crowded[201, 1024](flag)
        shmem.synchronize()

    with pytest.raises(shmem.ShmemError) as failure:
        run_pes(body, 1)
    assert "kernel crowded: 185 blocks start only when one of 16 resident ones ends" in str(
        failure.value
    )


def test_errors_of_launches_are_not_lost_without_the_launcher(tmp_path):
    script = tmp_path / "late.py"
    script.write_text(
        "import gpushmem as shmem\n@shmem.jit\ndef bad(x):\n    raise ValueError('unseen')\n"
        "shmem.init()\nbad[1, 1](shmem.zeros(1))\n"
    )
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, check=False, timeout=60
    )
    assert "late.py:4 in bad: ValueError('unseen')" in done.stderr
