"""NIXL and gpushmem in one program: each writes into memory that the other knows."""

import subprocess
from pathlib import Path

import pytest

from tests.conftest import PATHS, PLAIN, ROOT
from tests.integrations.environments import environment

PROGRAM = Path(__file__).parent / "programs" / "nixl_heap.py"
ENVIRON = {**PLAIN, "PYTHONPATH": PATHS, "NIXL_LOG_LEVEL": "WARN"}


@pytest.mark.sweep
@pytest.mark.timeout(600)
@pytest.mark.parametrize("end", ["", "given-back"])
def test_kernels_wait_for_writes_of_nixl(end):
    command = [environment("NIXL"), "-m", "gpushmem", "run", "-n", "2", PROGRAM, end]
    made = subprocess.run(
        command, env=ENVIRON, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False
    )
    assert made.returncode == 0, made.stdout + made.stderr
    assert made.stdout.count("ok") == 2
    assert "ERROR" not in made.stderr
