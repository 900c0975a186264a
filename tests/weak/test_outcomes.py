"""What weak memory shows of the checker's corpus: programs with a bug end in different ways.

Each program runs once for each of SEEDS seeds, with its bug and without. What is in the arrays at
the end (`outcomes.py`) does not depend on the seed without the bug; with it, it does, or the job
fails.
"""

import re
from collections import defaultdict

import pytest

from tests.check.test_corpus import CORPUS
from tests.conftest import ROOT

SEEDS = 20
SAMPLE = {"fence_before_flag", "lanes"}  # in CI: one of memory, one of threads
# Right in several ways: what is there at the end depends on which PE was first.
OPEN = {"x"}
# Wrong, and yet the same with each seed.
HIDDEN = {"x"}
PROGRAMS = [
    pytest.param(path, marks=[] if path.stem in SAMPLE else [pytest.mark.slow], id=path.stem)
    for path in sorted(CORPUS.glob("*.py"))
]


def outcomes(run_cli, path, *args):
    """The different ways in which a program ends: digests of all PEs; and how the job ended."""
    pes = int(re.search(r"^PES = (\d)", path.read_text(), re.MULTILINE)[1])
    done = run_cli(
        "run", "--backend", "cpu", "--memory", "weak", "--tag-output", "-n", pes,
        ROOT / "tests/weak/outcomes.py", path, SEEDS, *args, timeout=170,
    )  # fmt: skip
    found = defaultdict(dict)
    for pe, seed, digest in re.findall(r"^\[(\d+)\] seed (\d+): (\w+)", done.stdout, re.MULTILINE):
        found[seed][pe] = digest
    return {tuple(sorted(ends.items())) for ends in found.values() if len(ends) == pes}, done


@pytest.mark.parametrize("path", PROGRAMS)
def test_a_bug_shows_within_20_seeds(run_cli, path):
    right, done = outcomes(run_cli, path, "fixed")
    assert done.returncode == 0, done.stderr
    assert len(right) == 1 or path.stem in OPEN
    wrong, done = outcomes(run_cli, path)
    assert done.returncode != 0 or len(wrong) > 1 or path.stem in HIDDEN | OPEN
