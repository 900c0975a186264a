"""The private directory through which PEs meet that have environment variables only."""

import os
import time
from pathlib import Path

import pytest

from gpushmem.start.bootstrap import shared_directory
from tests.bootstrap.processes import Process, joined, run_all, short, step


def test_nothing_is_left_on_disk(tmp_path):
    env = step(3, XDG_RUNTIME_DIR=str(tmp_path))
    run_all(3, joined(), env)
    assert list(tmp_path.iterdir()) == []
    process = Process(joined(), **short(env)(0))
    assert "PEs 1, 2 of 3 have not arrived" in process.wait()
    assert list(tmp_path.iterdir()) == []


def test_an_old_file_does_not_confuse(tmp_path):
    env = step(2, XDG_RUNTIME_DIR=str(tmp_path))
    killed = Process(joined(), **env(0))
    while not (old := list(tmp_path.glob("gpushmem-*/job-*"))):
        time.sleep(0.01)
    os.kill(killed.pid, 9)
    killed.wait()
    for content in (None, b"", b"\xff\x00garbage", b"[]", b'{"name": "x"}', b'{"name": 5}'):
        if content is not None:
            old[0].parent.mkdir(mode=0o700, exist_ok=True)
            old[0].touch(mode=0o600)
            old[0].write_bytes(content)
        early = Process(joined(), **env(1))
        time.sleep(0.1)
        late = Process(joined(), **env(0))
        for process in (early, late):
            text = process.wait()
            assert process.value is not None, text
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("fault", ["open to others", "a link", "a file"])
def test_a_directory_that_is_not_ours_alone_is_refused(fault, tmp_path):
    folder = tmp_path / f"gpushmem-{os.getuid()}"
    if fault == "open to others":
        folder.mkdir()
        folder.chmod(0o770)
    elif fault == "a link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        folder.symlink_to(tmp_path / "elsewhere")
    else:
        folder.touch(mode=0o600)
    for pe in (0, 1):
        text = Process(joined(), **step(2, XDG_RUNTIME_DIR=str(tmp_path))(pe)).wait()
        assert "is not a directory that only this user can use" in text
        assert "XDG_RUNTIME_DIR or TMPDIR" in text


def test_a_file_that_others_can_read_is_not_believed(tmp_path):
    folder = tmp_path / f"gpushmem-{os.getuid()}"
    folder.mkdir(mode=0o700)
    env = step(2, XDG_RUNTIME_DIR=str(tmp_path))
    process = Process(joined(), **env(0))
    while not (found := list(folder.glob("job-*"))):
        time.sleep(0.01)
    found[0].chmod(0o644)
    assert "other users can access it" in Process(joined(), **short(env)(1)).wait()
    found[0].chmod(0o600)
    Process(joined(), **env(1)).wait()
    process.wait()
    assert process.value is not None


def test_the_launcher_is_found_among_the_ancestors(monkeypatch):
    def body():
        def grandchild():
            return shared_directory.ancestor()

        process = Process(grandchild)
        process.wait()
        return process.value, shared_directory.ancestor()

    (own, parents) = run_all(1, body, lambda pe: {})[0]
    assert own != parents, "without a launcher it is the parent"
    monkeypatch.setattr(shared_directory, "STARTERS", {Path("/proc/self/comm").read_text().strip()})
    assert (
        f"process {os.getpid()} started" in run_all(1, shared_directory.ancestor, lambda pe: {})[0]
    )
