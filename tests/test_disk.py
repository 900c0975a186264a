"""What is kept on disk: whatever becomes of the files, the data is right or not there."""

import hashlib
import os
import random
import resource
import signal
import subprocess
import sys
import time

import pytest

from gpushmem import cache_files, code_store
from tests.conftest import PLAIN, ROOT

NAME, OTHER = code_store.key("a"), code_store.key("b")
DATA = bytes(range(256)) * 20


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder for compiled code; nobody has complained yet."""
    path = tmp_path / "cache"
    monkeypatch.setenv("GPUSHMEM_CACHE_DIR", str(path))
    monkeypatch.setattr(cache_files, "_complained", False)
    return path


def in_a_process(function):
    """Run `function` in a child; return its exit code, -n for signal n."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            signal.alarm(20)
            function()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_what_is_kept_is_found(folder, capsys):
    assert cache_files.load(NAME) is None
    cache_files.save(NAME, DATA)
    cache_files.save(OTHER, b"")
    assert cache_files.load(NAME) == DATA
    assert cache_files.load(OTHER) == b""
    assert cache_files.load(code_store.key("c")) is None
    assert folder.stat().st_mode & 0o777 == 0o700
    assert capsys.readouterr().err == ""


def test_nothing_is_kept_if_the_user_wants_so(folder, monkeypatch):
    cache_files.save(NAME, DATA)
    monkeypatch.setenv("GPUSHMEM_CACHE", "0")
    cache_files.save(OTHER, DATA)
    assert cache_files.load(NAME) is None
    assert [file.name for file in folder.iterdir() if file.name != "pruned"] == [NAME]


def flip(path, rng):
    data = bytearray(path.read_bytes())
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


def truncate(path, rng):
    os.truncate(path, rng.randrange(path.stat().st_size))


def append(path, rng):
    path.write_bytes(path.read_bytes() + rng.randbytes(rng.randrange(1, 100)))


def replace(path, rng):
    path.write_bytes(path.with_name(OTHER).read_bytes())


def noise(path, rng):
    path.write_bytes(rng.randbytes(rng.randrange(6000)))


def have_a_folder(path, rng):
    path.unlink()
    path.mkdir()


def have_a_pipe(path, rng):
    path.unlink()
    os.mkfifo(path)


def link_elsewhere(path, rng):
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def let_others_write(path, rng):
    path.chmod(0o666)


DAMAGES = [
    flip, truncate, append, replace, noise, have_a_folder, have_a_pipe, link_elsewhere,
    let_others_write,
]  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_damaged_is_not_there_and_said_once(folder, capsys, damage):
    rng = random.Random(damage.__name__)
    for _ in range(100 if damage in (flip, truncate, append, noise) else 3):
        cache_files.save(NAME, DATA)
        cache_files.save(OTHER, b"another" * 100)
        damage(folder / NAME, rng)
        assert cache_files.load(NAME) is None
    cache_files.save(NAME, DATA)
    assert cache_files.load(NAME) == DATA
    said = capsys.readouterr().err
    assert said.startswith("gpushmem: ")
    assert said.count("\n") == 1
    assert NAME in said
    assert "GPUSHMEM_CACHE_DIR" in said


def test_a_folder_that_cannot_be_had_only_costs_a_line(folder, capsys, monkeypatch):
    folder.write_text("a file")
    for path in (folder, folder / "below", "/proc/nowhere"):
        monkeypatch.setenv("GPUSHMEM_CACHE_DIR", str(path))
        monkeypatch.setattr(cache_files, "_complained", False)
        cache_files.save(NAME, DATA)
        cache_files.save(NAME, DATA)
        assert cache_files.load(NAME) is None
        assert capsys.readouterr().err.count("\n") == 1
    assert folder.read_text() == "a file"


def test_code_is_not_taken_from_where_others_may_put_it(folder, capsys):
    cache_files.save(NAME, DATA)
    for mode in (0o770, 0o707):
        folder.chmod(mode)
        cache_files._complained = False
        assert cache_files.load(NAME) is None
        cache_files.save(OTHER, DATA)
        assert "other users may write to" in capsys.readouterr().err
    folder.chmod(0o755)
    assert cache_files.load(NAME) == DATA
    assert cache_files.load(OTHER) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_code_is_not_taken_from_another_user(folder, capsys):
    cache_files.save(NAME, DATA)
    os.chown(folder, 54321, -1)
    assert cache_files.load(NAME) is None
    assert "belongs to another user (54321)" in capsys.readouterr().err
    os.chown(folder, 0, -1)
    os.chown(folder / NAME, 54321, -1)
    assert cache_files.load(NAME) is None


def test_a_folder_may_be_a_link_to_ones_own(folder, tmp_path, capsys):
    (tmp_path / "large disk").mkdir(mode=0o700)
    folder.symlink_to("large disk")
    cache_files.save(NAME, DATA)
    assert cache_files.load(NAME) == DATA
    assert capsys.readouterr().err == ""


def test_a_full_disk_only_costs_a_line(folder, capfd):
    cache_files.save(OTHER, b"before")

    def full():
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        for _ in range(3):
            cache_files.save(NAME, DATA)
        assert cache_files.load(NAME) is None
        assert cache_files.load(OTHER) == b"before"

    assert in_a_process(full) == 0
    assert capfd.readouterr().err.count("cannot be used for compiled code") == 1
    assert {file.name for file in folder.iterdir()} == {OTHER, "pruned"}


def test_readers_and_writers_that_are_killed_leave_all_or_nothing(folder):
    def work():
        for k in range(10**6):
            cache_files.save(NAME, DATA * (k % 7))
            found = cache_files.load(NAME)
            assert found is None or found == DATA * (len(found) // len(DATA)), "half"

    rng = random.Random(1)
    for _ in range(8):
        pids = []
        for _ in range(3):
            pids.append(os.fork())
            if pids[-1] == 0:
                try:
                    work()
                finally:
                    os._exit(1)  # `work` has found something wrong
        time.sleep(0.02 + 0.03 * rng.random())
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
        found = cache_files.load(NAME)
        assert found is None or hashlib.sha256(found).digest() in WHOLE


WHOLE = {hashlib.sha256(DATA * k).digest() for k in range(7)}


def age(path, days):
    then = time.time() - days * cache_files.DAY
    os.utime(path, (then, then))


def test_a_fifo_in_the_folder_holds_nobody_up(folder):
    cache_files.save(OTHER, DATA)
    (folder / cache_files.PRUNED).unlink()
    for name in (NAME, cache_files.PRUNED, f"{NAME}.lock"):
        os.mkfifo(folder / name, 0o600)
        os.utime(folder / name, (0, 0))  # the folder is to be pruned

    def build():
        built = code_store.get_or_build(NAME, lambda: DATA, bytes, bytes)
        assert built == DATA
        assert cache_files.save(OTHER, DATA)

    assert in_a_process(build) == 0


def test_what_nobody_has_used_for_long_is_deleted_and_nothing_else(folder):
    names = [code_store.key(k) for k in range(3)]
    for name in names:
        cache_files.save(name, DATA)
    for other in ("mine.txt", "writing-0123456789abcdef"):
        (folder / other).write_text("")
    for file in folder.iterdir():
        age(file, 40)
    age(folder / names[1], -40)  # a clock that was wrong
    assert cache_files.load(names[0]) == DATA  # so it is used
    cache_files.save(OTHER, DATA)
    assert {file.name for file in folder.iterdir()} == {
        "pruned", "mine.txt", OTHER, names[0], names[1],
    }  # fmt: skip


def test_the_oldest_go_when_it_is_too_much(folder, monkeypatch):
    monkeypatch.setenv("GPUSHMEM_CACHE_SIZE", str(3 * (len(DATA) + 100)))
    names = [code_store.key(k) for k in range(5)]
    for days, name in enumerate(names):
        cache_files.save(name, DATA)
        age(folder / name, 10 - days)
    age(folder / "pruned", 2)
    cache_files.save(OTHER, DATA)
    assert [cache_files.load(name) is not None for name in names] == [False] * 3 + [True] * 2
    assert cache_files.load(OTHER) == DATA


PROGRAM = """
from numba import cuda
import gpushmem as shmem

@shmem.jit
def fill(x):
    x[cuda.threadIdx.x] = 10 * shmem.my_pe() + cuda.threadIdx.x
    shmem.barrier_all_block()

shmem.init(heap_size="1M")
x = shmem.zeros(4, "i8")
fill[1, 4](x)
print("got", x.numpy().tolist())
shmem.finalize()
"""
GOT = ["got [0, 1, 2, 3]", "got [10, 11, 12, 13]"]


def test_a_job_goes_well_whatever_has_become_of_what_was_kept(tmp_path):
    """All of a job's files at once, each damaged in its way; one line for the whole job."""
    (tmp_path / "program.py").write_text(PROGRAM)
    cache = tmp_path / "cache"

    def run():
        env = {**PLAIN, "GPUSHMEM_CACHE_DIR": str(cache)}
        command = [sys.executable, "-m", "gpushmem", "run", "-n", "2", str(tmp_path / "program.py")]
        done = subprocess.run(
            command, cwd=ROOT, env=env, timeout=120, capture_output=True, text=True, check=False
        )
        assert (done.returncode, sorted(done.stdout.splitlines())) == (0, GOT), done.stderr
        return done.stderr

    assert run() == ""
    kept = sorted(file for file in cache.iterdir() if cache_files.RECORD.fullmatch(file.name))
    assert len(kept) >= 6  # the scheduler's functions, and the kernel
    rng = random.Random(2)
    for k, file in enumerate(kept):
        if DAMAGES[k % len(DAMAGES)] is replace:
            file.write_bytes(kept[k - 1].read_bytes())
        else:
            DAMAGES[k % len(DAMAGES)](file, rng)
    said = run()
    assert said.startswith("gpushmem: ")
    assert said.count("\n") == 1
    assert run() == ""
