"""Problems that are known, and the report for editors."""

import json

import pytest

PROGRAM = """
import gpushmem as shmem
from numba import cuda

@shmem.jit
def kernel(a, b):
    a[0] = cuda.threadIdx.x  {first}
    b[cuda.threadIdx.x + 1] = b[cuda.threadIdx.x]  {second}

shmem.init()
kernel[1, 4](shmem.zeros(1, dtype="int32"), shmem.zeros(8, dtype="int32"))
shmem.finalize()
"""


@pytest.fixture
def check(run_cli, tmp_path):
    """`check(*options, first="", second="")`: check the program, with these comments."""

    def run(*options, code, first="", second=""):
        path = tmp_path / "two_races.py"
        path.write_text(PROGRAM.format(first=first, second=second))
        return run_cli("run", "--backend", "cpu", "--check", *options, path, code=code)

    return run


def test_comments_and_a_file_name_what_is_known(check, tmp_path):
    file = tmp_path / "known"
    file.write_text("# known\n\nrace two_races.py:8 in *\n")
    assert "2 problems found" in check(code=66).stderr
    first = check(code=66, first="# gpushmem: ignore").stderr
    assert "1 problem found" in first
    assert "two_races.py:8 in kernel" in first
    assert "gpushmem check: 1 problem ignored" in first
    both = check("--check-ignore", file, code=0, first="# gpushmem: ignore race").stderr
    assert both == "gpushmem check: 2 problems ignored\n"


def test_what_nothing_matches_is_named(check, tmp_path):
    file = tmp_path / "known"
    file.write_text("race two_races.py:* in smooth\n")
    said = check("--check-ignore", file, code=66, first="# gpushmem: ignore bounds").stderr
    assert "2 problems found" in said
    assert f"gpushmem check: nothing is ignored by line 1 of {file}\n" in said
    assert "gpushmem check: nothing is ignored by the comment at two_races.py:7\n" in said


def test_a_line_that_is_no_rule_is_refused(check, tmp_path):
    file = tmp_path / "known"
    file.write_text("races two_races.py:8\n")
    assert f"{file}:1: `races two_races.py:8` is not a kind" in check(
        "--check-ignore", file, code=2
    ).stderr  # fmt: skip


def test_sarif_has_rules_and_places(check, tmp_path):
    log = json.loads(check("--check-format", "sarif", code=66).stdout)
    (run,) = log["runs"]
    assert {rule["id"] for rule in run["tool"]["driver"]["rules"]} >= {"race", "bounds"}
    places = [
        result["locations"][0]["physicalLocation"]
        for result in run["results"]
        if result["ruleId"] == "race"
    ]
    assert sorted(place["region"]["startLine"] for place in places) == [7, 8]
    assert all(p["artifactLocation"]["uri"].endswith("two_races.py") for p in places)
    assert run["results"][0]["relatedLocations"][0]["id"] == 1
