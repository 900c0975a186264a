"""Without any one of the statements that order something, kernels and examples are refused."""

import re

import pytest

from tests.check.deletions import ROOT, ROOTS, RUNS, Tree, deletions

# Those that the programs do without, and why.
NOT_NEEDED = {}


def every():
    counted = {}
    for folder in ("kernels", "examples"):
        for path in sorted((ROOT / folder).glob("*.py")):
            for deletion in deletions(path):
                counted[deletion.name] = k = counted.get(deletion.name, 0) + 1
                name = deletion.name + f" ({k})" * (k > 1)
                sampled = name.endswith("one_shot:wait_for(signals[(me + k) % n:], epoch)")
                marks = [] if sampled else [pytest.mark.slow]
                yield pytest.param(deletion, name, marks=marks, id=name)


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    return Tree(tmp_path_factory.mktemp("tree"))


@pytest.mark.parametrize(("deletion", "name"), list(every()))
def test_what_lacks_an_order_is_refused(tree, deletion, name):
    said = []
    for run in deletion.runs():
        code, text = tree.without(deletion, run)
        said.append((run, code, text[-500:]))
        if code:  # the checker's, or that of a deadlock, which says who waits for what
            assert name not in NOT_NEEDED
            assert re.search(r"missing: |deadlock|timed out|failed", text), text
            return
    assert name in NOT_NEEDED, said


@pytest.mark.slow
@pytest.mark.parametrize("run", ROOTS)
def test_kernels_as_on_a_gpu_have_no_problems(tree, run):
    assert tree.run(RUNS, run) == (0, "")
