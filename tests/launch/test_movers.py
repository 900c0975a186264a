"""What moves though all threads of Python's wait: no deadlock. And what does not: still one."""

import ctypes
import os
import queue
import resource
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from numba import cfunc, types

import gpushmem as shmem
from gpushmem.backends.cpu.sync import host_barrier
from gpushmem.backends.cpu.sync.world import LINE_OF, TEAM
from gpushmem.diagnosis import wakeup_sources
from gpushmem.diagnosis.host_polling import Asking
from gpushmem.ops import OPS
from tests.conftest import PATHS, PLAIN
from tests.launch.test_deadlocks import has

C = ctypes.CDLL(None)
usleep = C.usleep
usleep.argtypes, usleep.restype = [ctypes.c_uint], ctypes.c_int
time_ = C.time  # in seconds
time_.argtypes, time_.restype = [ctypes.c_size_t], ctypes.c_long


def set_alarm():
    signal.setitimer(signal.ITIMER_REAL, 0.1)


def set_profiling_timer():
    signal.setitimer(signal.ITIMER_PROF, 0.03)  # of computing


def set_posix_timer():
    class Event(ctypes.Structure):
        _fields_ = (
            ("value", ctypes.c_void_p), ("signo", ctypes.c_int), ("notify", ctypes.c_int),
            ("rest", ctypes.c_char * 64),
        )  # fmt: skip

    timer, event = ctypes.c_void_p(), Event(None, signal.SIGUSR2, 0)
    assert C.timer_create(1, ctypes.byref(event), ctypes.byref(timer)) == 0
    in_a_second = (ctypes.c_long * 4)(0, 0, 1, 0)
    assert C.timer_settime(timer, 0, in_a_second, None) == 0


def test_a_handler_on_top_of_a_wait_may_end_it(run_pes):
    """It begins while nothing else moves, takes its time, and waits itself."""

    def body():
        shmem.init()
        flag, own = shmem.zeros(1, "uint64"), shmem.ones(1, "uint64")
        shmem.signal_wait_until(own, shmem.CMP_EQ, 1)
        shmem.barrier_all()
        if shmem.my_pe() == 0:

            def handler(number, frame):
                time.sleep(0.8)
                shmem.signal_wait_until(own, shmem.CMP_EQ, 1)
                flag.numpy()
                shmem.signal_op(flag, int(number), shmem.SIGNAL_SET, 0)

            for number, begin in (
                (signal.SIGALRM, set_alarm),
                (signal.SIGPROF, set_profiling_timer),
                (signal.SIGUSR2, set_posix_timer),
            ):
                signal.signal(number, handler)
                begin()
                shmem.signal_wait_until(flag, shmem.CMP_EQ, int(number))
        shmem.barrier_all()
        return True

    assert run_pes(body, 2, timeout=90) == [True] * 2


def sleep_and_store(flag):
    usleep(2_000_000)
    flag[0] = 1
    return 0


def compute_and_store(flag):
    end = time_(0) + 3
    while time_(0) < end:
        flag[1] += 1
    flag[0] = 2
    return 0


def start_native(function, argument=None):
    """Start a thread that Python does not know of."""
    thread = ctypes.c_ulong()
    assert C.pthread_create(ctypes.byref(thread), None, function, argument) == 0


def test_a_native_thread_may_end_a_wait(run_pes):
    compiled = [
        cfunc(types.int64(types.CPointer(types.uint64)))(function)
        for function in (sleep_and_store, compute_and_store)
    ]

    def body():
        shmem.init()
        flag = shmem.zeros(2, "uint64")
        if shmem.my_pe() == 0:
            address = ctypes.c_void_p(np.asarray(flag).ctypes.data)
            for value, function in enumerate(compiled, 1):
                start_native(ctypes.c_void_p(function.address), address)
                shmem.signal_wait_until(flag, shmem.CMP_EQ, value)
        shmem.barrier_all()
        return True

    assert run_pes(body, 2, timeout=90) == [True] * 2


def test_native_threads_that_wait_for_others_hide_no_deadlock(deadlock):
    def body():
        np.ones((300, 300)) @ np.ones((300, 300))  # the threads of BLAS
        start_native(C.pause)
        shmem.init()
        time.sleep(0.3)
        assert wakeup_sources.others(set())
        shmem.signal_wait_until(shmem.zeros(1, "uint64"), shmem.CMP_EQ, 1)

    has(deadlock(2, body), "PEs 0, 1: host, in signal_wait_until")


def test_threads_that_wait_for_a_lock_hide_no_deadlock(deadlock):
    def body():
        threading.Thread(target=queue.SimpleQueue().get, daemon=True).start()  # an idle worker
        shmem.init()
        if shmem.my_pe() == 1:
            shmem.barrier_all()
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()

    report = deadlock(2, body)
    has(report, r"PE 0: host, in a wait for another thread at test_movers.py:\d+, for \d")
    has(report, r"PE 1: host, in barrier_all at test_movers.py:\d+, waits for PE 0")


def test_a_lock_that_somebody_will_release_is_no_deadlock(run_pes):
    def body():
        shmem.init()
        if shmem.my_pe() == 0:
            for _ in range(3):
                lock = threading.Lock()
                lock.acquire()
                threading.Timer(0.7, lock.release).start()
                lock.acquire()
        shmem.barrier_all()
        return True

    assert run_pes(body, 2, timeout=60) == [True] * 2


def test_who_waits_for_a_thread_that_computes_makes_progress(run_pes, monkeypatch, capfd):
    monkeypatch.setenv("GPUSHMEM_NOTICE", "0.4")

    def compute():
        end = time.monotonic() + 2
        while time.monotonic() < end:
            pass

    def body():
        shmem.init()
        if shmem.my_pe() == 0:
            thread = threading.Thread(target=compute)
            thread.start()
            thread.join()
        shmem.barrier_all()
        return True

    assert run_pes(body, 2, timeout=60) == [True] * 2
    assert "no PE has made progress" not in capfd.readouterr().err


def test_timers_and_signals_on_their_way_are_seen(run_pes):
    def body():
        assert not wakeup_sources.alarmed()
        for timer in wakeup_sources.TIMERS:
            signal.setitimer(timer, 1000)
            assert wakeup_sources.alarmed()
            signal.setitimer(timer, 0)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
        os.kill(os.getpid(), signal.SIGUSR2)
        assert not wakeup_sources.alarmed()  # nobody will hear of it
        set_posix_timer()
        assert wakeup_sources.alarmed()
        return True

    assert run_pes(body, 1) == [True]


@pytest.mark.quiet
def test_hosts_that_poll_get_the_notice_and_the_timeout(run_pes, monkeypatch, capfd):
    monkeypatch.setenv("GPUSHMEM_TIMEOUT", "4")
    monkeypatch.setenv("GPUSHMEM_NOTICE", "0.4")

    def body():
        shmem.init()
        flag = shmem.zeros(1, "uint64")
        if shmem.my_pe() == 0:
            while shmem.atomic_fetch(flag, 0) == 0:
                pass
        elif shmem.my_pe() == 1:
            while shmem.g(flag, 0) == shmem.my_pe() - 1:
                time.sleep(0.001)
        shmem.barrier_all()

    with pytest.raises(shmem.WaitTimeout) as failure:
        run_pes(body, 3)
    text = str(failure.value)
    has(text, r"^PE \d has waited for 4 s in (a loop that calls (atomic_fetch|g)|barrier_all)")
    has(capfd.readouterr().err, r"no PE has made progress for \d s; the job goes on")
    has(text, r"PE 0: host, in a loop that calls atomic_fetch at test_movers.py:\d+, for \d")
    has(text, r"PE 1: host, in a loop that calls g at test_movers.py:\d+, for \d")


def test_who_asks_and_hears_something_new_does_not_wait():
    asking, g, put = Asking(), OPS["g"], OPS["put"]

    def ask(times, answer, pe=1, op=g):
        for _ in range(times):
            asking.note(op, pe, answer)
        asking.look()
        return [wait.what for wait in asking.waits().values()]

    assert ask(50, 0) == []
    assert ask(200, np.uint64(0)) == ["a loop that calls g"]
    assert ask(1, 1) == []
    assert ask(200, 1) == ["a loop that calls g"]
    assert ask(200, 5, pe=2) == ["a loop that calls g"]  # who looks at several in turn
    assert ask(1, None, op=put) == []
    asking.note(g, 1, 0)
    asking.forget()
    assert ask(0, 0) == []


def test_a_host_that_waits_beside_a_busy_program_sleeps():
    """Who yields there is back a thousand times when the other has had its time."""
    lines, record = np.zeros(4, LINE_OF), np.zeros(1, TEAM)
    record["n_pes"], record["lines"] = 2, lines.ctypes.data
    allowed = os.sched_getaffinity(0)
    core = {min(allowed)}
    program = "print(flush=True)\nwhile True: pass"
    busy = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    try:
        busy.stdout.readline()
        os.sched_setaffinity(busy.pid, core)
        os.sched_setaffinity(0, core)
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw
        assert not host_barrier.native()["passed"](record.ctypes.data, 1, 0), (
            "the other has not come"
        )
        yields = resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw - before
    finally:
        os.sched_setaffinity(0, allowed)
        busy.kill()
        busy.communicate()
    assert record["crowded"] > 0
    assert yields < host_barrier.YIELDS / 2


LET_GO_LATE = """
from gpushmem.simt.run import scheduler
from numba import cuda

import gpushmem as shmem

scheduler.LATE = 6000  # half a second


@shmem.jit
def tell(flag):
    if cuda.threadIdx.x == 0:
        shmem.put_block(flag, flag, 0)
    cuda.syncthreads()


shmem.init()
tell[1, 64](shmem.zeros(1))
shmem.synchronize()
"""


def test_threads_that_are_yet_to_be_let_go_may_move(tmp_path):
    """On a busy machine the rounds after which they are take longer than two looks."""
    path = tmp_path / "program.py"
    path.write_text(LET_GO_LATE)
    done = subprocess.run(
        [sys.executable, path], env={**PLAIN, "PYTHONPATH": PATHS}, text=True, capture_output=True,
        check=False, timeout=60,
    )  # fmt: skip
    assert "KernelError" in done.stderr
    assert "Every thread of the block must call put_block" in done.stderr
    assert "deadlock" not in done.stderr
