"""The folders of the logs, and what room they have."""

import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from gpushmem.check import happens_before
from gpushmem.check.command import Findings, Known, recorded
from gpushmem.check.log import PIECE
from tests.conftest import PLAIN, ROOT

KILLED = """
import os, signal
from gpushmem.check.command import recorded
with recorded() as folder:
    print(folder, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_next_job_removes_what_a_killed_one_left(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for name in ("GPUSHMEM_CHECK", "GPUSHMEM_THREADS", "TMPDIR"):  # to be restored
        monkeypatch.setenv(name, str(tmp_path))
    command = [sys.executable, "-c", KILLED]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    assert done.returncode == -signal.SIGKILL
    left = Path(done.stdout.strip())
    assert left.parent == tmp_path
    with recorded() as running:
        assert left.exists()  # it is new: another job may be about to lock it
        for folder in (left, running):
            os.utime(folder, (0, 0))
        with recorded() as mine:
            assert not left.exists()
            assert running.exists()
            assert mine.exists()
    assert not any(tmp_path.iterdir())


def test_what_others_put_beside_the_logs_is_left_alone(tmp_path, monkeypatch):
    """A folder that others may write to, or own; one behind a link; a lock that is no file."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for name in ("GPUSHMEM_CHECK", "GPUSHMEM_THREADS"):  # to be restored
        monkeypatch.setenv(name, str(tmp_path))
    precious = tmp_path / "precious"
    precious.mkdir(mode=0o700)
    (precious / "lock").touch()
    opened = tmp_path / "lock"
    opened.touch()
    names = ("writable", "linked", "lock", "fifo", *(["foreign"] if os.geteuid() == 0 else []))
    folders = {name: tmp_path / f"gpushmem-check-{name}" for name in names}
    for name, folder in folders.items():
        if name == "linked":
            folder.symlink_to(precious)
            continue
        folder.mkdir(mode=0o700)
        if name == "lock":
            (folder / "lock").symlink_to(opened)
        elif name == "fifo":
            os.mkfifo(folder / "lock")
        else:
            (folder / "lock").touch()
    folders["writable"].chmod(0o777)
    if "foreign" in folders:
        os.chown(folders["foreign"], 65534, 65534)
    for folder in (*folders.values(), precious):
        os.utime(folder, (0, 0), follow_symlinks=False)
    with recorded():
        pass
    assert all(folder.exists() for folder in folders.values())
    assert (precious / "lock").exists()


@pytest.mark.parametrize(
    ("variable", "said"),
    [("GPUSHMEM_CHECK", "cannot write there"), ("GPUSHMEM_TRACE", "no trace can be written to")],
)
def test_a_folder_that_cannot_be_written_is_named(run_cli, tmp_path, variable, said):
    (tmp_path / "file").touch()
    script = tmp_path / "script.py"
    script.write_text("import gpushmem\ngpushmem.init(heap_size='1M')")
    env = {variable: tmp_path / "file" / "logs"}
    err = run_cli("run", script, env=env, code=1).stderr
    assert re.search(rf"ArgumentError: .*{said}", err)
    assert str(tmp_path / "file" / "logs") in err


def test_too_few_passes_over_the_logs_are_told(monkeypatch):
    """The program needs three: in the third one waits order nothing new."""
    program = Path(__file__).parent / "corpus" / "flag_between_blocks.py"
    with recorded() as folder:
        run = [sys.executable, "-m", "gpushmem", "run", "--backend", "cpu", "-n", "1"]
        subprocess.run([*run, program, "fixed"], check=True)
        for passes, few in ((2, True), (3, False)):
            monkeypatch.setattr(happens_before, "PASSES", passes)
            found = Findings(Known(None))
            found.add(folder)
            said = "not all was checked: 2 passes over the logs were too few to learn what waits"
            assert [line[: len(said)] for line in found.unchecked] == [said] * few


MANY = """
import gpushmem as shmem

@shmem.jit
def write(x):
    for i in range(17_000):  # two records each, at least
        shmem.p(x[i % x.size :], i, shmem.my_pe())

with shmem.session():
    x = shmem.zeros(1000, "int64")
    write[1, 1](x)
    shmem.synchronize()
    print(x[-1])
"""


def test_a_disk_that_is_full_ends_the_log_and_not_the_job(tmp_path):
    """In a name space of its own, with a disk that has room for one piece of the log."""
    disk, program = tmp_path / "disk", tmp_path / "many.py"
    disk.mkdir()
    program.write_text(MANY)
    mount = f"mount -t tmpfs -o size=5m tmpfs {disk}"
    tried = subprocess.run(["sh", "-c", f"unshare -rm {mount}"], check=False, capture_output=True)
    if tried.returncode:
        pytest.skip(f"this system gives users no disks of their own: {tried.stderr.decode()}")
    command = f"{mount} && exec {sys.executable} -m gpushmem"
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", f"{command} run -n 1 --backend cpu --check {program}"],
        env={**PLAIN, "PYTHONPATH": str(ROOT), "TMPDIR": str(disk)}, capture_output=True, text=True,
        timeout=150, check=True,
    )  # fmt: skip
    assert done.stdout == "16999\n"
    full = r"the log of PE 0 was full (\d+) records after the PEs had met; the disk had no room"
    assert PIECE - 64 < int(re.search(full, done.stderr)[1]) <= PIECE  # what was before is no part
