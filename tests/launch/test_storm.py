"""Jobs that are killed at random moments end at once and leave nothing; see `storm`.

STORM_SEED=... repeats a sweep. A small process starts the jobs: one of pytest's size takes long to
fork, and its children take long to end.
"""

import json
import os
import secrets
import subprocess
import sys

import pytest

from tests.conftest import PLAIN, ROOT


def storm(seed, count, folder):
    command = [sys.executable, "-m", "tests.launch.storm", str(seed), str(count), str(folder)]
    done = subprocess.run(command, cwd=ROOT, env=PLAIN, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert not found["wrong"], "\n".join([f"STORM_SEED={seed}", *found["wrong"]])
    return found["slowest"]


@pytest.mark.quiet
def test_jobs_that_are_killed_end_at_once_and_leave_nothing(tmp_path):
    storm(543, 20, tmp_path)  # a number with jobs of every kind


@pytest.mark.sweep
def test_a_storm_of_kills(tmp_path):
    seed = os.environ.get("STORM_SEED") or secrets.token_hex(4)
    print(f"\nthe slowest of 200 jobs took {storm(seed, 200, tmp_path):.2f} s to end")
