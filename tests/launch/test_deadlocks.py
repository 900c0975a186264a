"""Real deadlocks: the job ends soon, and the report names the culprit's line."""

import ctypes
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from numba import cuda

import gpushmem as shmem
from gpushmem.diagnosis.deadlock_detection import PERIOD
from gpushmem.job import job
from tests.conftest import ROOT, cli
from tests.files import open_files
from tests.launch.test_local import within
from tests.pes import compile_first

PR_SET_CHILD_SUBREAPER = 36
FOR = r", for \d+\.\d s\n +"  # the end of a line of the report, and what follows below it


@shmem.jit
def wait_for(signal, value):
    shmem.signal_wait_until(signal, shmem.CMP_EQ, value)


@shmem.jit
def pass_on(signal, first, rounds):
    me, n = shmem.my_pe(), shmem.n_pes()
    for k in range(1, rounds + 1):
        if me == first and k < rounds:
            shmem.signal_op(signal, k, shmem.SIGNAL_SET, (me + 1) % n)  # starts the round
        shmem.signal_wait_until(signal, shmem.CMP_EQ, k)
        if me != first:
            shmem.signal_op(signal, k, shmem.SIGNAL_SET, (me + 1) % n)  # passes it on


@shmem.jit
def tell(signal, value, pe):
    shmem.signal_op(signal, value, shmem.SIGNAL_SET, pe)


@shmem.jit
def both_barriers(first, second):
    shmem.barrier(first)
    shmem.barrier(second)


def children():
    """Those of this process; multiprocessing leaves one that tracks its resources."""
    return {*Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()}


@pytest.fixture(autouse=True)
def nothing_is_left():
    """After each test: no process of its jobs, and so none of their memory, and no descriptor."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)  # who loses its parent becomes ours
    shmem.init(heap_size="1M")  # opens what is opened once
    shmem.finalize()
    before, others = open_files(), children()
    yield
    left = children() - others
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 0)
    assert not left
    assert not open_files() - before


def line_with(text):
    """The number of the line of this file that has `text`."""
    with open(__file__) as file:
        return next(k for k, line in enumerate(file, 1) if text in line and "line_with" not in line)


def has(text, pattern):
    assert re.search(pattern, text), f"{pattern!r} is not in\n{text}"


def test_signals_in_a_circle(deadlock):
    def body():
        shmem.init()
        token = shmem.zeros(1, "uint64")
        pass_on[1, 1](token, 0, 3)
        shmem.synchronize()

    text = deadlock(3, body)
    wait = line_with("shmem.CMP_EQ, k)")
    sent = line_with("# passes it on")
    has(
        text,
        rf"PEs 0-2: kernel pass_on, block \(0, 0, 0\), thread \(0, 0, 0\), "
        rf"test_deadlocks.py:{wait} in pass_on{FOR}signal_wait_until: token\[0\] == 3, sees 2\n",
    )
    has(text, r"token\[0\] is uint64, at offset 0x[0-9a-f]+ of the heap, allocated at test_dead")
    has(
        text,
        rf"last written at .*:{sent} in pass_on: PE 0's by PE 2, PE 2's by PE 1\n",
    )
    has(text, "Waits: PE 0 for PE 2; PE 1 for PE 0; PE 2 for PE 1.")
    has(text, "Wait cycle: PE 0 -> PE 2 -> PE 1 -> PE 0.")


def test_a_missing_put(deadlock):
    def body():
        shmem.init()
        arrived = shmem.zeros(4, "uint64")
        if shmem.my_pe() == 0:
            wait_for[1, 1](arrived[2:], 1)
        shmem.barrier_all()

    text = deadlock(3, body)
    has(text, rf"PE 0: kernel wait_for.*{FOR}signal_wait_until: arrived\[2\] == 1, sees 0")
    has(text, "no operation of PEs 0-2 has written it")
    has(text, r"PEs 1, 2: host, in barrier_all at test_deadlocks.py:\d+, waits for PE 0, for")
    has(text, "Waits: PEs 1, 2 for PE 0.")


def test_of_a_flag_that_nobody_has_written_no_circle_is_claimed(deadlock):
    def body():
        shmem.init()
        wait_for[1, 1](shmem.zeros(1, "uint64"), 1)
        shmem.synchronize()

    text = deadlock(2, body)
    has(text, "no operation of PEs 0, 1 has written it")
    assert "cycle" not in text
    assert "Waits: " not in text


def test_a_signal_that_went_to_the_wrong_pe(deadlock):
    def body():
        shmem.init()
        arrived = shmem.zeros(1, "uint64")
        if shmem.my_pe() == 0:
            tell[1, 1](arrived, 1, 2)  # 1 was meant
        elif shmem.my_pe() == 1:
            wait_for[1, 1](arrived, 1)
        shmem.barrier_all()

    text = deadlock(3, body)
    has(text, "no operation of PEs 0-2 has written it")
    has(
        text,
        r"arrived\[0\] of other PEs was written: PE 2's by PE 0, test_deadlocks.py:\d+ in t",
    )


@pytest.mark.parametrize("queued", [False, True], ids=["at once", "on a stream"])
def test_the_wrong_value(deadlock, queued):
    def body():
        shmem.init()
        stream = shmem.stream() if queued else None
        ready = shmem.full(1, 40, "uint64")
        if shmem.my_pe() == 1:
            shmem.signal_op(ready, 41, shmem.SIGNAL_SET, 0, stream=stream)  # 42 was meant
        else:
            shmem.signal_wait_until(ready, shmem.CMP_EQ, 42)
        shmem.barrier_all()

    text = deadlock(2, body)
    has(text, r"PE 0: host, in signal_wait_until: ready\[0\] == 42, sees 41")
    has(
        text,
        rf"last written at .*:{line_with('# 42 was meant')} on the host: by PE 1",
    )


def test_a_barrier_that_one_pe_does_not_reach(deadlock):
    def body():
        shmem.init()
        if shmem.my_pe() == 2:
            wait_for[1, 2](shmem.zeros(1, "uint64"), 1)
        else:
            shmem.zeros(1, "uint64")
        if shmem.my_pe() != 1:
            shmem.barrier_all()  # not PE 1
            return
        both_barriers[1, 1](shmem.TEAM_WORLD, shmem.TEAM_WORLD)
        shmem.synchronize()

    text = deadlock(3, body)
    has(text, r"PE 0: host, in barrier_all at test_deadlocks.py:\d+, waits for PE 2")
    has(text, rf"PE 1: kernel both_barriers.*{FOR}barrier waits for PE 2")
    has(
        text,
        rf"PE 2: kernel wait_for.*thread \(0, 0, 0\) and 1 more, .*{FOR}.*array\[0\] == 1, sees 0",
    )


def test_two_teams_crossed(deadlock):
    def body():
        shmem.init()
        row = shmem.team_split_strided(shmem.TEAM_WORLD, 0, 1, 2)
        all_ = shmem.team_split_strided(shmem.TEAM_WORLD, 0, 1, 2)
        teams = (row, all_) if shmem.my_pe() == 0 else (all_, row)
        if shmem.my_pe() < 2:
            both_barriers[1, 1](*teams)
        shmem.synchronize()

    text = deadlock(3, body)
    line = line_with("shmem.barrier(first)")
    has(
        text, rf"PE 0: .*:{line} in both_barriers{FOR}barrier of team 3 \(PEs 0, 1\) waits for PE 1"
    )
    has(
        text, rf"PE 1: .*:{line} in both_barriers{FOR}barrier of team 4 \(PEs 0, 1\) waits for PE 0"
    )
    has(text, "Wait cycle: PE 0 -> PE 1 -> PE 0.")
    has(text, "PE 2: has ended with exit code 0")


def test_teams_that_are_not_made(deadlock):
    """Each calls the next one, which calls another; one is elsewhere."""

    def body():
        shmem.init()
        if shmem.my_pe() == 1:
            shmem.barrier_all()
        shmem.team_init([0, 2] if shmem.my_pe() == 0 else [2, 1])

    text = deadlock(3, body)
    has(text, r"PE 0: host, in team_init\(\[0, 2\]\) at test_deadlocks.py:\d+, waits for PE 2")
    has(text, r"PE 1: host, in barrier_all at test_deadlocks.py:\d+, waits for PEs 0, 2")
    has(text, r"PE 2: host, in team_init\(\[2, 1\]\) at test_deadlocks.py:\d+, waits for PE 1")


def test_waiting_for_what_an_ended_pe_would_have_sent(deadlock):
    def body():
        shmem.init()
        flag = shmem.zeros(1, "int32")
        if shmem.my_pe() == 0:
            shmem.wait_until(flag, shmem.CMP_NE, 0)

    text = deadlock(2, body)
    has(text, r"PE 0: host, in wait_until: flag\[0\] != 0, sees 0")
    has(text, "PE 1: has ended with exit code 0")


def test_one_thread_of_a_block_is_missing(deadlock):
    @shmem.jit
    def half(signal):
        if cuda.threadIdx.x < 31:
            shmem.barrier_all_block()
        else:
            shmem.signal_wait_until(signal, shmem.CMP_EQ, 1)

    def body():
        shmem.init()
        half[1, 32](shmem.zeros(1, "uint64"))
        shmem.barrier_all()

    text = deadlock(2, body)
    has(text, rf"PEs 0, 1: kernel half.* and 30 more, .*{FOR}barrier_all_block: 31 of 32 threads")
    has(text, rf"thread \(31, 0, 0\), .* in half{FOR}signal_wait_until")


@pytest.mark.parametrize("n", [11, pytest.param(64, marks=pytest.mark.sweep)])
def test_more_pes_than_cores(deadlock, n):
    began = time.monotonic()

    def body():
        shmem.init()
        signal = shmem.zeros(1, "uint64")
        if shmem.my_pe() == 7:
            shmem.signal_wait_until(signal, shmem.CMP_GT, 0)
        shmem.barrier_all()

    text = deadlock(n, body, timeout=90)
    has(text, r"PE 7: host, in signal_wait_until: signal\[0\] > 0, sees 0")
    has(text, rf"PEs 0-6, 8-{n - 1}: host, in barrier_all at test_deadlocks.py:\d+, waits for PE 7")
    assert time.monotonic() - began < 80


def test_the_errors_that_programs_get(run_pes):
    def body():
        shmem.init()
        errors = []
        for _ in range(2):  # it stays so
            with pytest.raises(shmem.Deadlock, match="deadlock: no PE can go on") as error:
                shmem.signal_wait_until(shmem_signal(), shmem.CMP_EQ, 1)
            errors.append(type(error.value).__name__)
        return errors

    def shmem_signal():
        global _signal  # noqa: PLW0603
        if "_signal" not in globals():
            _signal = shmem.zeros(1, "uint64")
        return _signal

    with pytest.raises(shmem.ShmemError, match="deadlock: no PE can go on"):
        run_pes(lambda: body() and 1 / 0, 2)


ONE = """
import time
import gpushmem as shmem

@shmem.jit
def work(x):
    for i in range(200_000_000):
        x[i & 7] += i

for again in range(2):
    shmem.init(heap_size="1M")
    flag = shmem.zeros(1, "uint64")
    try:
        shmem.signal_wait_until(flag, shmem.CMP_EQ, 1)
    except shmem.Deadlock as error:
        print(error)
    time.sleep(0.3)
    shmem.barrier_all()  # it goes on, also without a new init
    began = time.monotonic()
    while time.monotonic() < began + 6 * again:  # nor is the process ended for waiting
        work[1, 1](shmem.device_array(8))
        shmem.synchronize()
    shmem.finalize()
print("done")
"""


def test_one_pe_by_itself_goes_on_after_a_deadlock(tmp_path):
    (tmp_path / "one.py").write_text(ONE)
    done = subprocess.run(
        [sys.executable, tmp_path / "one.py"], capture_output=True, text=True, check=False
    )
    assert done.stdout == "deadlock: no PE can go on\n" * 2 + "done\n", done.stderr
    assert done.stderr.count("PE 0: host, in signal_wait_until: flag[0] == 1, sees 0") == 2


def test_it_can_be_turned_off(run_pes, monkeypatch):
    monkeypatch.setenv("GPUSHMEM_DEADLOCK", "0")

    def body():
        shmem.init()
        shmem.signal_wait_until(shmem.zeros(1, "uint64"), shmem.CMP_EQ, 1)

    with pytest.raises(shmem.ShmemError, match="exceeded its limit of 3 s"):
        run_pes(body, 2, timeout=3)


def test_numbers_of_numpy(deadlock):
    """What the host notes and tells has to be plain data."""

    def body():
        shmem.init()
        flag = shmem.zeros(2, np.int32)
        shmem.p(flag[1:], 1, np.int64(1 - shmem.my_pe()))
        shmem.wait_until(flag, shmem.CMP_EQ, 1)

    has(deadlock(2, body), r"PEs 0, 1: host, in wait_until: flag\[0\] == 1, sees 0")


def test_many_threads(deadlock):
    @shmem.jit
    def crowd(flag):
        shmem.wait_until(flag[cuda.blockIdx.x :], shmem.CMP_NE, 0)

    def body():
        shmem.init()
        crowd[64, 256](shmem.zeros(64, "int32"))
        shmem.synchronize()

    text = deadlock(2, body)
    has(text, r"PEs 0, 1: kernel crowd, block \(49, 0, 0\), thread \(0, 0, 0\) and 255 more")
    has(text, r"PEs 0, 1: ... and 14 more waits")


# --- what is none


def test_an_alarm_may_end_a_wait(run_pes):
    class Enough(Exception):
        pass

    def ring(number, frame):
        raise Enough

    def body():
        shmem.init()
        flag = shmem.zeros(1, "uint64")
        signal.signal(signal.SIGALRM, ring)
        signal.setitimer(signal.ITIMER_REAL, 1.0)
        with pytest.raises(Enough):
            shmem.signal_wait_until(flag, shmem.CMP_EQ, 1)
        shmem.barrier_all()
        return True

    assert run_pes(body, 2) == [True] * 2


def let_go_on(board, pe):
    """Fork a process that waits for a deadlock to be suspected, and then lets PE `pe` go on.

    It leaves the others the time of several looks. Its exit code is 0 if a probe has been made.
    """
    helper = os.fork()
    if helper == 0:
        deadline = time.monotonic() + 10
        while not (board["probe"] or board["verdict"]) and time.monotonic() < deadline:
            time.sleep(0.01)
        suspected = bool(board["probe"])
        time.sleep(4 * PERIOD)
        os.kill(int(board.pes["pid"][pe]), signal.SIGCONT)
        os._exit(not suspected)
    return helper


def is_stopped(pid):
    """Whether no thread of the process runs, as it has received SIGSTOP."""
    states = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    return all(state.rsplit(")", 1)[1].split()[0] == "T" for state in states)


def test_stacks_are_told_also_while_another_pe_asks_for_them(run_pes):
    def body():
        shmem.init()
        board = job.current().board
        number = board["asked"] + 1
        board["stacks"] = number + 1  # as in the middle of another PE's `ask`
        board["asked"] = number
        told = board.accounts(number, 5)[0]["stacks"]
        shmem.finalize()
        return told

    ((stack,),) = run_pes(body, 1)
    assert "in body" in stack


def test_a_pe_that_is_not_asked_again_is_no_deadlock(run_pes):
    """All PEs have said that they are still. One of them can go on since, but cannot say so yet."""

    def body():
        here = job.current()
        helper = let_go_on(here.board, 1) if here.my_pe == 0 else None
        shmem.init()
        flag = shmem.zeros(1, "uint64")
        if helper is None:
            shmem.signal_wait_until(flag, shmem.CMP_EQ, 1)
            shmem.signal_op(flag, 2, shmem.SIGNAL_SET, 0)
        else:
            other = here.board.pes[1:2]
            within(30, lambda: other["still"][0])
            os.kill(int(other["pid"][0]), signal.SIGSTOP)
            within(30, lambda: is_stopped(other["pid"][0]))
            shmem.signal_op(flag, 1, shmem.SIGNAL_SET, 1)
            try:
                shmem.signal_wait_until(flag, shmem.CMP_EQ, 2)
            finally:
                code = os.waitstatus_to_exitcode(os.waitpid(helper, 0)[1])
            assert code == 0, "no deadlock has been suspected"
        shmem.finalize()
        return True

    word = np.zeros(1, np.uint64)
    compile_first(shmem.signal_wait_until, word, shmem.CMP_EQ, word[0])
    assert run_pes(body, 2) == [True, True]


def test_sleeping_is_no_deadlock(run_pes):
    def body():
        shmem.init()
        signal = shmem.zeros(1, "uint64")
        if shmem.my_pe() == 0:
            time.sleep(1.0)
            for pe in range(3):
                tell[1, 1](signal, 1, pe)
        wait_for[1, 1](signal, 1)
        shmem.barrier_all()
        return True

    assert run_pes(body, 3) == [True] * 3


def test_a_thread_of_the_user_may_act_at_any_time(run_pes):
    def body():
        shmem.init()
        signal = shmem.zeros(1, "uint64")
        others = [1 - shmem.my_pe()]
        timer = threading.Timer(1.0, tell_from_host, (signal, others))
        if shmem.my_pe() == 1:
            timer.start()
            shmem.signal_wait_until(shmem.ones(1, "uint64"), shmem.CMP_EQ, 1)
        else:
            shmem.ones(1, "uint64")
            wait_for[1, 1](signal, 1)
        shmem.barrier_all()
        return True

    def tell_from_host(signal, pes):
        for pe in pes:
            shmem.signal_op(signal, 1, shmem.SIGNAL_SET, pe)

    assert run_pes(body, 2) == [True] * 2


def test_a_kernel_that_polls_may_stop_at_any_time(run_pes):
    @shmem.jit
    def patient(signal, peer, turns):
        for _ in range(turns):
            if shmem.test(signal, shmem.CMP_EQ, 9):
                break
        shmem.signal_op(signal, 1, shmem.SIGNAL_SET, peer)

    def body():
        shmem.init()
        signal = shmem.zeros(1, "uint64")
        if shmem.my_pe() == 0:
            began = time.monotonic()
            turns = 1000
            while time.monotonic() - began < 2:
                patient[1, 1](signal, 0, turns)
                shmem.synchronize()
                turns *= 2
            patient[1, 1](signal, 1, 1)
        else:
            wait_for[1, 1](signal, 1)
        shmem.barrier_all()
        return True

    assert run_pes(body, 2) == [True] * 2


def test_a_kernel_that_computes_is_none(run_pes):
    @shmem.jit
    def slowly(signal, x, n):
        for i in range(n):
            x[i % 1000] += i
        shmem.signal_op(signal, 1, shmem.SIGNAL_SET, 1)
        shmem.barrier_all()

    @shmem.jit
    def at_once(signal):
        shmem.signal_wait_until(signal, shmem.CMP_EQ, 1)
        shmem.barrier_all()

    def body():
        shmem.init()
        signal, x = shmem.zeros(1, "uint64"), shmem.zeros(1000)
        began = time.monotonic()
        if shmem.my_pe() == 0:
            slowly[1, 1](signal, x, 1_500_000_000)
        else:
            at_once[1, 1](signal)
        shmem.synchronize()
        return time.monotonic() - began

    assert min(run_pes(body, 2)) > 0.5


def test_the_report_in_the_readme():
    shown = re.search(
        r"<!-- report of docs/stuck.py -->\n```\n(.*?)```",
        (ROOT / "README.md").read_text(),
        re.DOTALL,
    )[1]
    text = cli("run", "-n", 3, "docs/stuck.py", code=1).stderr
    assert re.sub(r"for \d+\.\d s", "for 0.4 s", text) == shown
