"""KServe: the manifest of the documentation, by its own Python package, without a cluster."""

import subprocess
from pathlib import Path

import pytest

from tests.conftest import PLAIN, ROOT
from tests.integrations.environments import environment

PROGRAM = Path(__file__).parent / "programs" / "kserve_manifest.py"


@pytest.mark.sweep
@pytest.mark.timeout(600)
def test_the_manifest_is_a_serving_runtime():
    command = [environment("KServe"), PROGRAM, ROOT / "docs" / "kserve.yaml"]
    made = subprocess.run(
        command, env=PLAIN, capture_output=True, text=True, timeout=200, check=False
    )
    assert made.returncode == 0, made.stderr
    assert made.stdout == "ok\n"
