"""Programs of stacks, started as their users start them: ranks of torchrun."""

import json
import subprocess
from pathlib import Path

from tests.conftest import PATHS, PLAIN
from tests.integrations.environments import environment

__all__ = ["printed"]

PROGRAMS = Path(__file__).parent / "programs"


def printed(stack, program, *args, ranks=2, limit=300, cwd=None, **settings):
    """The lines of JSON that the ranks of a program print, in a stack's environment."""
    command = [
        environment(stack), "-W", "ignore", "-m", "torch.distributed.run", "--standalone",
        "--nproc-per-node", str(ranks), PROGRAMS / program, *args,
    ]  # fmt: skip
    env = {**PLAIN, "PYTHONPATH": PATHS, "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command,
        env={**env, **settings},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=limit,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "deadlock" not in done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
