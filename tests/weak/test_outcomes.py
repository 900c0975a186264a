"""What weak memory shows of the checker's corpus: programs with a bug end otherwise than without.

Each program runs once for each of SEEDS seeds, with its bug and without. What is in the arrays at
the end (`outcomes.py`) is, without the bug, something that it can be with every seed; with it, for
some seed it is something else, or the job fails.
"""

import re
from collections import defaultdict

import pytest

from tests.check.test_corpus import CORPUS
from tests.conftest import ROOT

SEEDS = 20
# In CI: one of each kind of lateness.
SAMPLE = {"fence_before_flag", "source_changed_too_early", "box_written_again"}
PROGRAMS = [
    pytest.param(path, marks=[] if path.stem in SAMPLE else [pytest.mark.slow], id=path.stem)
    for path in sorted(CORPUS.glob("*.py"))
]


def outcomes(run_cli, path, *args):
    """How a program ends with each seed: digests of all PEs; and the exit code."""
    pes = int(re.search(r"^PES = (\d)", path.read_text(), re.MULTILINE)[1])
    done = run_cli(
        "run", "--backend", "cpu", "--memory", "weak", "--tag-output", "-n", pes,
        ROOT / "tests/weak/outcomes.py", path, SEEDS, *args, timeout=170,
    )  # fmt: skip
    found = defaultdict(dict)
    for pe, seed, digest in re.findall(r"^\[(\d+)\] seed (\d+): (\w+)", done.stdout, re.MULTILINE):
        found[seed][pe] = digest
    ends = {tuple(sorted(one.items())) for one in found.values() if len(one) == pes}
    return ends, done


@pytest.mark.parametrize("path", PROGRAMS)
def test_a_bug_shows_within_20_seeds(run_cli, path):
    right, done = outcomes(run_cli, path, "fixed")
    assert done.returncode == 0, done.stderr
    wrong, done = outcomes(run_cli, path)
    assert done.returncode != 0 or wrong - right
