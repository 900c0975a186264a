"""No false alarms: the jobs of the conformance suite, checked."""

import re
import subprocess
import sys

import pytest

from tests.conftest import PLAIN, ROOT

MODULES = [
    path
    for path in sorted((ROOT / "tests" / "conformance").glob("test_*.py"))
    if "run_pes" in path.read_text()
]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_programs_that_are_right_have_no_problem(path):
    """A test fails if its job ends well and has a problem; see `run_checked` of tests/pes.py."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "0", "--gpushmem-check", "--timeout", "400", path],
        cwd=ROOT, env=PLAIN, text=True, capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    jobs = int(re.search(r"(\d+) jobs were checked", done.stdout)[1])
    print(f"{path.name}: {jobs} jobs")
    assert jobs > 0
