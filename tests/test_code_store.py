"""The store of compiled code: each thing is built once, whoever needs it and whatever happens."""

import os
import pickle
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpushmem import cache_files, code_store
from tests.conftest import PLAIN, ROOT

NAME, OTHER = code_store.key("a"), code_store.key("b")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """An empty folder for compiled code, and a process that has built nothing."""
    path = tmp_path / "cache"
    monkeypatch.setenv("GPUSHMEM_CACHE_DIR", str(path))
    monkeypatch.setattr(cache_files, "_complained", False)
    monkeypatch.setattr(code_store, "_objects", {})
    return path


class Log:
    """What processes have noted, in a file: one character each."""

    def __init__(self, path):
        self.path = path
        path.touch()

    def note(self, what):
        with self.path.open("a") as file:
            file.write(what)

    def __str__(self):
        return self.path.read_text()


@pytest.fixture
def log(tmp_path):
    return Log(tmp_path / "log")


def get(build, name=NAME, dump=pickle.dumps, load=pickle.loads, **options):
    return code_store.get_or_build(name, build, dump, load, **options)


def forget():
    """Be a process that has built nothing."""
    code_store._objects.clear()


@contextmanager
def children(n, function, dies=False):
    """n processes that run `function(k)`; they must end well, unless they are to be killed."""
    pids = []
    for k in range(n):
        pids.append(os.fork())
        if pids[-1] == 0:
            code = 1
            try:
                signal.alarm(30)
                function(k)
                code = 0
            finally:
                os._exit(code)
    try:
        yield pids
    finally:
        if dies:
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    assert dies or codes == [0] * n


def wait_for(log, text):
    until = time.monotonic() + 20
    while str(log) != text:
        assert time.monotonic() < until, str(log)
        time.sleep(0.005)


# --- one process after the other


def test_what_is_built_is_kept_for_this_process_and_for_later_ones(folder, log):
    value = get(lambda: log.note("1") or [1, 2])
    assert get(lambda: log.note("2")) is value
    forget()
    assert get(lambda: log.note("3")) == value
    assert get(lambda: log.note("4") or "another", name=OTHER) == "another"
    assert str(log) == "14"
    assert {file.name for file in folder.iterdir()} == {NAME, OTHER, "pruned"}
    assert {file.stat().st_mode & 0o777 for file in folder.iterdir()} == {0o600}
    assert folder.stat().st_mode & 0o777 == 0o700


def test_what_only_this_process_can_use_is_not_kept(folder):
    for _ in range(2):
        assert get(lambda: "mine", dump=lambda _: None) == "mine"
        assert [*folder.iterdir()] == []
        forget()
    assert get(lambda: "mine", keep=False) == "mine"
    assert get(lambda: "another", keep=False) == "mine"
    assert [*folder.iterdir()] == []


def test_nothing_is_kept_if_the_user_wants_so(folder, monkeypatch):
    monkeypatch.setenv("GPUSHMEM_CACHE", "0")
    assert get(lambda: 1) == get(lambda: 2) == 1
    assert not folder.exists()


def test_a_build_that_fails_leaves_nothing(folder):
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            get(lambda: 1 // 0)
    assert [*folder.iterdir()] == []
    assert get(lambda: 1) == 1


def test_a_torn_record_is_built_again(folder, capsys):
    """Cut at any place, or with a wrong byte anywhere: it is never loaded."""
    get(lambda: list(range(100)))
    whole = (folder / NAME).read_bytes()
    rng, said = random.Random(3), 0
    for turn in range(60):
        torn = bytearray(whole[: rng.randrange(len(whole))] if turn % 2 else whole)
        if not turn % 2:
            torn[rng.randrange(len(torn))] ^= 1 << rng.randrange(8)
        (folder / NAME).write_bytes(torn)
        forget()
        assert get(lambda turn=turn: turn) == turn
        (folder / NAME).write_bytes(whole)
        forget()
        assert get(lambda: None) == list(range(100))
        said += capsys.readouterr().err.count("is damaged")
    assert said == 1


def test_a_record_that_cannot_be_loaded_is_built_again(folder, capsys):
    cache_files.save(NAME, b"no pickle")
    assert get(lambda: 5) == 5
    assert f"{NAME} cannot be loaded" in capsys.readouterr().err
    forget()
    assert get(lambda: None) == 5


def test_without_a_folder_every_process_builds(folder, log, monkeypatch, capsys):
    folder.write_text("a file")
    for path in (folder, folder / "below", "/proc/nowhere"):
        monkeypatch.setenv("GPUSHMEM_CACHE_DIR", str(path))
        forget()
        assert get(lambda: log.note("1") or 7) == get(lambda: log.note("2")) == 7
    assert str(log) == "111"
    assert capsys.readouterr().err.count("\n") == 1


def test_the_least_recently_used_go_when_it_is_too_much(folder, monkeypatch):
    record = len(pickle.dumps(bytes(10_000))) + cache_files.HEAD_BYTES
    monkeypatch.setenv("GPUSHMEM_CACHE_SIZE", str(3 * record + 100))
    monkeypatch.setattr(cache_files, "PRUNING", 0)
    names = [code_store.key(k) for k in range(6)]
    for k, name in enumerate(names):
        get(lambda: bytes(10_000), name)
        then = time.time() - 3600 * (10 - k)  # the first was used longest ago
        os.utime(folder / name, (then, then))
        assert code_store.contents() == (min(k + 1, 3), min(k + 1, 3) * record)
    forget()
    get(lambda: pytest.fail("it is kept"), names[3])  # now it is used
    get(lambda: bytes(10_000), OTHER)
    assert {f.name for f in folder.iterdir()} == {names[3], names[5], OTHER, "pruned"}
    get(lambda: bytes(4 * record), NAME)  # more than all may be
    assert not (folder / NAME).exists()
    assert code_store.contents() == (3, 3 * record)


# --- many processes


def test_of_many_processes_one_builds(folder, log):
    def body(k):
        assert get(lambda: log.note("1") or time.sleep(0.3) or "built") == "built"

    with children(12, body):
        pass
    assert str(log) == "1"
    assert {file.name for file in folder.iterdir()} == {NAME, "pruned"}


def test_another_name_waits_for_nobody(log):
    with children(1, lambda k: get(lambda: log.note("1") or time.sleep(20)), dies=True):
        wait_for(log, "1")
        began = time.monotonic()
        assert get(lambda: 2, OTHER) == 2
        assert time.monotonic() - began < 5


def test_who_is_killed_while_it_builds_is_replaced(log):
    def waits(k):
        assert get(lambda: log.note("2") or time.sleep(0.2) or "built") == "built"

    with children(1, lambda k: get(lambda: log.note("1") or time.sleep(30)), dies=True) as pids:
        wait_for(log, "1")
        with children(5, waits):
            time.sleep(0.2)
            assert str(log) == "1"
            os.kill(pids[0], signal.SIGKILL)
    assert str(log) == "12"  # one of the five, and the other four have waited for it


def n_waiting(folder):
    """How many processes wait for the claim on NAME, as the system knows."""
    place = f":{(folder / f'{NAME}.lock').stat().st_ino} "
    lines = Path("/proc/locks").read_text().splitlines()
    return sum(" -> " in line and place in line for line in lines)


@pytest.mark.parametrize("fails", [True, False])
def test_what_cannot_be_shared_all_build_at_the_same_time(folder, log, fails):
    """Not one after the other, each for nothing."""
    n = 5

    def build():
        first = str(log) == ""
        log.note("1")
        until = time.monotonic() + 20
        while (n_waiting(folder) < n - 1) if first else (len(str(log)) < n):
            assert time.monotonic() < until, "it is alone"
            time.sleep(0.005)
        assert not fails, "on purpose"
        return "built"

    def body(k):
        if fails:
            with pytest.raises(AssertionError, match="on purpose"):
                get(build)
        else:
            assert get(build, dump=lambda _: None) == "built"

    with children(n, body):
        pass
    assert str(log) == "1" * n


def test_two_who_wait_for_each_other_both_go_on(log):
    def nested(first, second, mine):
        def build():
            log.note("1")
            wait_for(log, "11")
            return get(lambda: mine, second)

        return get(build, first)

    with children(1, lambda k: nested(NAME, OTHER, "theirs")):
        assert nested(OTHER, NAME, "ours") in ("ours", "theirs")


def test_ctrl_c_ends_the_waiting(log):
    with children(1, lambda k: get(lambda: log.note("1") or time.sleep(20)), dies=True):
        wait_for(log, "1")
        threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            get(lambda: pytest.fail("another builds it"))
    assert get(lambda: 1) == 1


def test_threads_build_once(log):
    found = []

    def body():
        found.append(get(lambda: log.note("1") or time.sleep(0.1) or [1]))

    threads = [threading.Thread(target=body) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert str(log) == "1"
    assert len({id(value) for value in found}) == 1


def test_a_copy_of_a_process_that_builds_waits_and_is_not_stuck(log):
    """Its lock for threads is held by a thread that the copy does not have."""
    thread = threading.Thread(target=get, args=(lambda: log.note("1") or time.sleep(0.5) or 1,))
    thread.start()
    wait_for(log, "1")
    with children(1, lambda k: get(lambda: log.note("2"))):
        pass
    thread.join()
    assert str(log) == "1"


# --- a program, run twice

# Python imports this first: every library of machine code that LLVM makes is noted.
SITE = """
import os
from numba.core import codegen
finalize = codegen.CPUCodeLibrary.finalize

def noted(library):
    with open(os.environ["COMPILED"], "a") as file:
        file.write(library.name + "\\n")
    return finalize(library)

codegen.CPUCodeLibrary.finalize = noted
"""
# Kernels of all kinds, device functions, and the host's operations: waits, collectives, atomics.
PROGRAM = """
import numpy as np
from numba import cuda
import gpushmem as shmem

@shmem.jit(device=True)
def twice(x):
    return 2 * x

@shmem.jit
def loops(a):
    a[cuda.threadIdx.x] = twice(cuda.threadIdx.x)

@shmem.jit
def blocks(a):
    shared = cuda.shared.array(4, np.int64)
    shared[cuda.threadIdx.x] = a[cuda.threadIdx.x]
    cuda.syncthreads()
    a[cuda.threadIdx.x] = shared[3 - cuda.threadIdx.x]

@shmem.jit
def fibers(a, flag):
    shmem.put_signal_block(a, a, flag, 1, shmem.SIGNAL_SET, shmem.my_pe())
    shmem.signal_wait_until(flag, shmem.CMP_EQ, 1)
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        print("PE", shmem.my_pe(), "is done")

shmem.init(heap_size="1M")
a, flag, count = shmem.zeros(4, "i8"), shmem.zeros(1, "u8"), shmem.zeros(1, "i4")
loops[1, 4](a)
blocks[1, 4](a)
fibers[1, 4](a, flag)
shmem.barrier_all()
shmem.atomic_add(count, 1, 0)
shmem.signal_op(flag, 5, shmem.SIGNAL_SET, shmem.my_pe())
shmem.signal_wait_until(flag, shmem.CMP_GE, 5)
total = shmem.zeros(4, "i8")
shmem.reduce(shmem.TEAM_WORLD, total, a, "sum")
shmem.barrier_all()
if shmem.my_pe() == 0:
    print(total.numpy().tolist(), count.numpy()[0])
shmem.finalize()
"""


def test_a_second_run_compiles_nothing(tmp_path, folder):
    for name, text in (("program", PROGRAM), ("sitecustomize", SITE)):
        (tmp_path / f"{name}.py").write_text(text)

    def compiled_by_a_run(n):
        log = tmp_path / "compiled"
        log.write_text("")
        env = {**PLAIN, "PYTHONPATH": f"{tmp_path}:{ROOT}", "COMPILED": str(log)}
        env["GPUSHMEM_CACHE_DIR"] = str(folder)
        command = [sys.executable, "-m", "gpushmem", "run", "-n", str(n), tmp_path / "program.py"]
        done = subprocess.run(
            command, env=env, timeout=200, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")
        told = [f"PE {pe} is done" for pe in range(n)]
        assert sorted(done.stdout.splitlines()) == [*told, f"[{6 * n}, {4 * n}, {2 * n}, 0] {n}"]
        return log.read_text().splitlines()

    first = compiled_by_a_run(2)
    kernels = "5loops", "6blocks", "6fibers"  # as their names are in machine code
    assert [sum(kernel in name for name in first) for kernel in kernels] == [
        1, 1, 1,
    ]  # fmt: skip
    assert compiled_by_a_run(2) == []
    assert compiled_by_a_run(1) == []
