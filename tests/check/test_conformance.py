"""No false alarms: the jobs of the conformance suite and of the ready kernels, checked."""

import re
import subprocess
import sys

import pytest

from tests.conftest import PLAIN, ROOT

KERNELS = "gemm", "jacobi", "all_reduce", "collectives", "moe"
PATTERNS = "conformance/test_*.py", *(f"kernels/test_{name}.py" for name in KERNELS)
MODULES = [
    path
    for pattern in PATTERNS
    for path in sorted((ROOT / "tests").glob(pattern))
    if "run_pes" in path.read_text()
]


def checked(path, *options):
    """How many jobs of a module were checked; a problem in one fails its test, and this one."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--gpushmem-check", "--timeout", "400", *options, path],
        cwd=ROOT, env=PLAIN, text=True, capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return int(re.search(r"gpushmem: (\d+) jobs? checked", done.stdout)[1])


@pytest.mark.sweep
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_programs_that_are_right_have_no_problem(path):
    """A test fails if its job ends well and has a problem."""
    jobs = checked(path, "-n", "0")
    print(f"{path.name}: {jobs} jobs")
    assert jobs > 0


@pytest.mark.sweep
def test_jobs_of_workers_are_counted():
    path = ROOT / "tests" / "conformance" / "test_pes.py"
    assert checked(path, "-n", "2", "-k", "accessible") == 3
