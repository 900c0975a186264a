"""The folders of the logs."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from gpushmem.check import order
from gpushmem.check.command import Findings, Known, recorded

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


def test_too_few_passes_over_the_logs_are_told(monkeypatch):
    """The program needs three: in the third one waits order nothing new."""
    program = Path(__file__).parent / "corpus" / "flag_between_blocks.py"
    with recorded() as folder:
        run = [sys.executable, "-m", "gpushmem", "run", "--backend", "cpu", "-n", "1"]
        subprocess.run([*run, program, "fixed"], check=True)
        for passes, few in ((2, True), (3, False)):
            monkeypatch.setattr(order, "PASSES", passes)
            found = Findings(Known(None))
            found.add(folder)
            said = "not all was checked: 2 passes over the logs were too few to learn what waits"
            assert [line[: len(said)] for line in found.unchecked] == [said] * few
