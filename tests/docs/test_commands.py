"""The commands of the documentation, as they are typed: in a clone, in a new environment.

What the tutorial, the pages of errors and `explain` show after a `$` is compared with what is
printed by other tests; here are the blocks of commands.
"""

import os
import re
import shutil
import subprocess
import sys
import textwrap

import pytest

from tests.conftest import ROOT
from tests.docs.test_site import FRAGMENTS, PAGES, blocks, named

pytestmark = [pytest.mark.sweep, pytest.mark.timeout(900)]

NOT_HERE = {  # part of a block: why it is not run
    "nvshmem]": "NVSHMEM is installed and used where there are GPUs",
    "--backend nvshmem": "needs GPUs",
    "mpirun -n 16": "needs GPUs",
    "srun": "needs Slurm",
    "--hosts": "needs an MPI that may use this machine: tests/launch/test_handover.py runs it",
    "/logs": "needs a job of PyTorch that has failed: tests/torch runs it",
    "pytest -n": "this suite, which would run itself",
    "-s tests/": "the suite of another project: tests/simulator runs some",
    "--as-nvshmem": "needs a script of nvshmem4py: tests/compat/test_programs.py runs some",
}
CODES = {"fence_before_flag.py\n": 66}  # part of a block: the exit code of its last command
FOUND = [
    pytest.param(block, id=f"{named(page)}-{k}")
    for page in PAGES
    if page.name != FRAGMENTS  # for developers: .ci/run and the sweep run what it says
    for k, block in enumerate(blocks(page, "sh", "bash"))
]


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """A clone of what is committed, with an environment into which it is installed."""
    folder = tmp_path_factory.mktemp("new") / "gpushmem"
    for command in (
        ["git", "clone", "-q", ROOT, folder],
        [sys.executable, "-m", "venv", folder / ".venv"],
        [folder / ".venv/bin/pip", "install", "-q", "-e", f"{folder}[examples]"],
    ):
        subprocess.run(command, check=True, timeout=600)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize("block", FOUND)
def test_a_block_of_commands_runs(clone, block):
    for part, why in NOT_HERE.items():
        if part in block:
            pytest.skip(why)
    for name in ("script.py", "program.py", "x.py"):
        shutil.copy(ROOT / "examples/ring.py", clone / name)
    env = {k: v for k, v in os.environ.items() if not re.match("GPUSHMEM|PYTHON|PYTEST", k)}
    env |= {"PATH": f"{clone}/.venv/bin:{env['PATH']}", "BROWSER": "true"}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", textwrap.dedent(block)], cwd=clone, env=env,
        capture_output=True, text=True, timeout=800, check=False,
    )  # fmt: skip
    code = next((code for part, code in CODES.items() if part in block), 0)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
