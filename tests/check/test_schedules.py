"""Small programs whose bugs only some orders of their operations on words show.

All orders are run. A bug is an access without order, at the lines that are marked, or makes the job
fail, where a line ends in `# <- fails`: PEs wait for ever, or a host finds a wrong result.
"""

import json
import re
from pathlib import Path

import pytest

from tests.check.programs import programs

PROGRAMS = {
    one.name: one
    for path in (Path(__file__).parent / "schedules").glob("*.py")
    for one in programs(path)
}
SAMPLE = {  # tested always
    "the_second_is_there_so_the_first_is", "the_other_index", "told_to_higher_ranks_only",
    "nobody_wakes_it", "bits_of_blocks", "ticket_of_a_host",
}  # fmt: skip
# The programs by name, all but a few in the tier `sweep`.
CASES = [
    pytest.param(one, marks=[] if name in SAMPLE else [pytest.mark.sweep], id=name)
    for name, one in sorted(PROGRAMS.items())
]


def check(run_cli, one, *args):
    """Run a program in all orders; exit code, what was found, and what stderr says."""
    done = run_cli(
        "run", "--backend", "cpu", "--check", "--check-format", "json", "--check-runs", "all",
        "-n", one.pes, *one.words, *args,
    )  # fmt: skip
    return done.returncode, json.loads(done.stdout[done.stdout.index("[") :]), done.stderr


@pytest.mark.parametrize("one", CASES)
def test_the_bug_is_found_in_some_order(run_cli, one):
    code, found, told = check(run_cli, one)
    assert re.search(r"\d+ schedules?, all there are(; the job fails in \d+)?$", told, re.MULTILINE)
    if one.marked("<- fails"):
        assert code not in (0, 66)
        return
    assert code == 66
    pairs = [{a["line"].partition(" in ")[0] for a in problem["accesses"]} for problem in found]
    wanted = set(one.marked())
    assert wanted in pairs
    assert all(pair <= wanted | set(one.marked("<- 3")) for pair in pairs)


@pytest.mark.parametrize("one", CASES)
def test_the_program_without_the_bug_is_right_in_every_order(run_cli, one):
    code, found, told = check(run_cli, one, "fixed")
    assert (code, found) == (0, [])
    assert re.search(
        r"no problem in (any of its \d+ schedules|its only schedule)$", told, re.MULTILINE
    )
