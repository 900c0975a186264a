"""Every example, as the README tells to run it."""

import ast
import re
from pathlib import Path

import numpy as np
import pytest

from gpushmem.trace import load
from tests import gpus, pes

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


FEW = {"llm": ("--steps", 4, "--write", 8)}  # of what else takes a minute
# More PEs than cores, and an odd number; programs that train are run by the tests below.
OFTEN = [(path, 3) for path in EXAMPLES if path.stem not in ("llm", "train_digits")]


@pytest.mark.parametrize(
    ("path", "n_pes"),
    [
        pytest.param(
            path, n, id=f"{path.stem}-{n}", marks=[pytest.mark.sweep] * ((path, n) not in OFTEN)
        )
        for path in EXAMPLES
        for n in (1, 2, 3, 4)
    ],
)
def test_example_runs(run_cli, path, n_pes):
    if "import torch\n" in path.read_text():
        pytest.importorskip("torch")
        if pes.ON_GPUS:
            pytest.skip("process groups are on CPUs")
    if pes.ON_GPUS:
        gpus.need_one_each(n_pes)
    given = FEW.get(path.stem, ())
    done = run_cli("run", "-n", n_pes, *pes.options(n_pes), path, *given, timeout=150, code=0)
    assert done.stderr == ""


FAMILIES = {  # kernels of the example that has all, by what the docs call them
    "Mixture of experts": ["fused"],
    "Attention over PEs": ["ring_attention", "ring_attention_backward"],
    "Flash-decode": ["flash_decode"],
    "KV-cache transfer": ["send_layer", "receive_layer"],
    "Pipelines": ["send_one", "receive_one"],
    "ZeRO step": ["in_one_pass"],
    "Rows of which only the sender knows how many": ["exchange_rows"],
    "Sample sort": ["sample", "split", "merge"],
    "Embedding bags": ["embed"],
    "Locks, queues, tasks": ["fill", "take"],
}


@pytest.mark.sweep
@pytest.mark.timeout(600)  # many kernels are compiled
def test_a_job_that_was_killed_goes_on_from_its_checkpoint(run_cli, tmp_path):
    """Its losses and its text are those of one process, which the example asserts."""
    pytest.importorskip("torch")
    path, given = ROOT / "examples/llm.py", ("--steps", 23, "--checkpoint", tmp_path)
    done = run_cli("run", "-n", 8, path, *given, "--die-at", 13, timeout=300)
    assert done.returncode != 0
    assert "PE 7 of 8 was killed" in done.stderr
    assert len(list(tmp_path.glob("10-*.pt"))) == 8
    done = run_cli("run", "-n", 8, path, *given, timeout=300, code=0)
    assert "step  20" in done.stdout
    assert "8 ranks" in done.stdout


@pytest.mark.timeout(400)
def test_a_trace_of_training_and_serving_shows_every_family(run_cli, tmp_path):
    pytest.importorskip("torch")
    if pes.ON_GPUS:
        pytest.skip("process groups are on CPUs")
    path, given = ROOT / "examples/llm.py", FEW["llm"]
    run_cli("run", "--trace", tmp_path, "-n", 4, path, *given, timeout=300, code=0)
    shown = load(tmp_path).labels[1]
    assert [name for name, kernels in FAMILIES.items() if not set(kernels) <= set(shown)] == []


def training(run_cli, n_pes):
    """Losses and accuracies, by epoch, of the example that trains."""
    if pes.ON_GPUS:
        gpus.need_one_each(n_pes)
    path = ROOT / "examples/train_digits.py"
    done = run_cli("run", "-n", n_pes, *pes.options(n_pes), path, timeout=150, code=0)
    assert done.stderr == ""
    found = re.findall(r"epoch +(\d+)  loss (\S+)  test accuracy (\S+)%", done.stdout)
    assert [int(epoch) for epoch, _, _ in found] == list(range(1, 16))
    losses, accuracies = ([float(row[k]) for row in found] for k in (1, 2))
    assert losses[-1] < losses[4] < losses[0] / 5
    assert accuracies[-1] >= 95
    return losses, accuracies


def test_training_learns(run_cli):
    training(run_cli, 3)


def test_training_does_not_depend_on_the_number_of_pes(run_cli):
    (loss1, accuracy1), (loss3, accuracy3) = (training(run_cli, n) for n in (1, 3))
    assert np.abs(np.subtract(loss1, loss3)).max() < 0.002
    assert np.abs(np.subtract(accuracy1, accuracy3)).max() < 0.301


def test_the_list_of_examples_is_their_first_lines():
    readme = (ROOT / "examples/README.md").read_text()
    listed = re.findall(r"- \[(\S+)\]\(\1\): (.*)", readme)
    assert sorted(name for name, _ in listed) == [p.name for p in EXAMPLES]
    for name, line in listed:
        doc = ast.get_docstring(ast.parse((ROOT / "examples" / name).read_text()))
        assert doc.splitlines()[0] == line


@pytest.mark.parametrize(
    ("page", "example"),
    [("README.md", "examples/ring.py"), ("docs/plans.md", "examples/own_plan.py")],
)
def test_pages_quote_examples(page, example):
    body = (ROOT / example).read_text().split('"""', 2)[2].strip()
    assert f"<!-- {example} -->\n```python\n{body}\n```" in (ROOT / page).read_text()


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("kernels.md", [f"PE {k} has 30" for k in range(3)]),
        ("plans.md", ["20 items of up to 64 numbers through 2 boxes"]),
    ],
)
def test_the_programs_of_pages_run(run_cli, tmp_path, name, says):
    page = (ROOT / "docs" / name).read_text()
    path = tmp_path / "program.py"
    path.write_text(re.search(r"<!-- program -->\n```python\n(.*?)```", page, re.DOTALL)[1])
    done = run_cli("run", "-n", 3, *pes.options(3), path, code=0)
    assert sorted(done.stdout.splitlines()) == says
