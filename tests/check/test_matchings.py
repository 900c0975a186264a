"""Programs that are wrong only if another PE is first: `--check-runs` lets it be, in some run."""

import re
from pathlib import Path

from tests.check.programs import program
from tests.check.test_corpus import check

PROGRAM = program(Path(__file__).parent / "matchings" / "first_of_two.py")
LAST = """
import os
import gpushmem as shmem
shmem.init()
print("seed", os.environ.get("GPUSHMEM_SEED"))
if os.environ.get("GPUSHMEM_SEED") == "6":
    raise SystemExit(3)
shmem.finalize()
"""


def test_what_only_some_orders_show_is_found_in_several_runs(run_cli):
    code, found = check(run_cli, PROGRAM, options=["--check-runs", 8])
    assert code == 66
    assert len(found) == 1  # what several runs find, once
    pair = {a["line"].partition(" in ")[0] for a in found[0]["accesses"]}
    assert pair == set(PROGRAM.marked())


def test_the_program_that_is_right_in_every_order_is_accepted(run_cli):
    assert check(run_cli, PROGRAM, "fixed", options=["--check-runs", 4]) == (0, [])


def test_runs_have_different_seeds_and_end_with_one_that_fails(run_cli, tmp_path):
    script = tmp_path / "last.py"
    script.write_text(LAST)
    options = ["--backend", "cpu", "--check", "--check-runs", 5, "--seed", 4]
    done = run_cli("run", *options, script, code=3)
    assert re.findall(r"seed (\d+)", done.stdout) == ["4", "5", "6"]


TASKS = """
import gpushmem as shmem

@shmem.jit
def work(head, mine):
    while shmem.atomic_fetch_inc(head, 0) < 40:
        mine[0] += 1

shmem.init(heap_size="16M")
head, mine = (shmem.zeros(1, "int64") for _ in range(2))
work[1, 1](head, mine)
print("tasks", mine.numpy()[0])
shmem.finalize()
"""


def test_with_a_seed_operations_give_way_to_those_of_others(run_cli, tmp_path):
    """Else the first PE takes all tasks."""
    script = tmp_path / "tasks.py"
    script.write_text(TASKS)
    done = run_cli(
        "run", "--backend", "cpu", "--check", "--check-runs", 3, "--seed", 1, "-n", 3, script
    )
    counts = [int(n) for n in re.findall(r"tasks (\d+)", done.stdout)]
    assert len(counts) == 9
    assert sum(counts) == 3 * 40
    assert sum(n > 0 for n in counts) > 3
