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
    found = json.loads(done.stdout[done.stdout.index("{") :])
    return done.returncode, found["problems"], found["schedules"], done.stderr


@pytest.mark.parametrize("one", CASES)
def test_the_bug_is_found_in_some_order(run_cli, one):
    code, found, schedules, told = check(run_cli, one)
    assert schedules["all"]
    assert schedules["run"] == schedules["at_least"] > 0
    assert re.search(
        r"\d+ schedules?, all there are \(.*\)(; the job fails in \d+)?$",
        told,
        re.MULTILINE,
    )
    if one.marked("<- fails"):
        assert code not in (0, 66)
        assert code in {run["code"] for run in schedules["failed"]}
        assert all(re.fullmatch(r"\w+", run["schedule"]) for run in schedules["failed"])
        assert any(run["output"] or not run["only_if"] for run in schedules["failed"])
        return
    assert code == 66
    pairs = [{a["line"].partition(" in ")[0] for a in problem["accesses"]} for problem in found]
    wanted = set(one.marked())
    assert wanted in pairs
    assert all(problem["only_if"] for problem in found if problem.get("schedule"))
    assert all(pair <= wanted | set(one.marked("<- 3")) for pair in pairs)


@pytest.mark.parametrize("one", CASES)
def test_the_program_without_the_bug_is_right_in_every_order(run_cli, one):
    code, found, schedules, told = check(run_cli, one, "fixed")
    assert (code, found, schedules["failed"]) == (0, [], [])
    assert re.search(
        r"no problem in (any of its \d+ schedules|its only schedule) \(.*\)$", told, re.MULTILINE
    )


def test_a_schedule_that_was_reported_can_be_run_again(run_cli):
    one = PROGRAMS["the_other_index"]
    words = ("--backend", "cpu", "--check", "-n", one.pes)
    told = run_cli("run", *words, "--check-runs", "all", *one.words, code=66).stderr
    shown = re.search(r"  only if .* comes before .*; repeat it with --check-schedule (\w+)$", told,
                      re.MULTILINE)  # fmt: skip
    if shown is None:  # the first run has shown it
        assert "3 schedules, all there are" in told
        return
    again = run_cli("run", *words, "--check-schedule", shown[1], *one.words, code=66).stderr
    assert "did not follow" not in again


def test_when_the_time_is_over_it_is_said_how_many_are_left(run_cli):
    one = PROGRAMS["reader_that_leaves_no_trace"]
    words = ("--backend", "cpu", "--check", "--check-runs", "all", "--check-budget", "0.01s")
    told = run_cli("run", *words, "-n", one.pes, *one.words, "fixed", code=None).stderr
    assert re.search(r"1 schedule, of at least \d+, in 0.01 s; --check-budget gives more", told)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--check-runs", "all"], "add --check"),
        (["--check", "--check-budget", "5s"], "add --check-runs all"),
        (["--check", "--check-runs", "all", "--check-budget", "soon"], "is no time"),
        (["--check", "--check-runs", "some"], "neither a number of runs nor `all`"),
        (["--check", "--check-schedule", "x", "--check-runs", "3"], "leave --check-runs out"),
        (["--check", "--check-schedule", "nosuch"], "is no schedule of gpushmem"),
        (["--check", "--check-runs", "all", "--trace", "out"], "leave --check-runs out"),
    ],
)
def test_options_that_do_not_go_together(run_cli, options, message):
    words = PROGRAMS["the_other_index"].words
    assert message in run_cli("run", "--backend", "cpu", *options, "-n", 1, *words, code=2).stderr


# A file of this name: there is a module of Python's with it.
QUEUE = """
import gpushmem as shmem

@shmem.jit
def producer(slot, item, tail, ready, credit):
    ticket = shmem.atomic_fetch_inc(tail, 0)
    while shmem.atomic_fetch(credit, 0) + 1 <= ticket:
        pass
    item[0] = ticket
    shmem.put(slot, item, 0){fence}
    shmem.signal_op(ready, ticket + 1, shmem.SIGNAL_SET, 0)

@shmem.jit
def consumer(slot, ready, credit, out):
    for k in range(2):
        shmem.signal_wait_until(ready, shmem.CMP_EQ, k + 1)
        out[k] = slot[0]
        shmem.atomic_inc(credit, 0)

shmem.init(heap_size="16M")
slot, item, tail, credit, out = (shmem.zeros(2, dtype="int64") for _ in range(5))
ready = shmem.zeros(1, dtype="uint64")
if shmem.my_pe():
    producer[1, 1](slot, item, tail, ready, credit)
else:
    consumer[1, 1](slot, ready, credit, out)
shmem.barrier_all()
shmem.finalize()
"""


def test_a_loop_that_polls_is_no_event_until_it_sees_something_new(run_cli, tmp_path):
    script = tmp_path / "queue.py"
    words = ("run", "--backend", "cpu", "--check", "--check-runs", "all", "-n", 3, script)
    script.write_text(QUEUE.format(fence="; shmem.fence()"))
    told = run_cli(*words).stderr
    # The first look at `credit` is an operation more, if it comes before the first one is given.
    orders = r"4,200 orders of 10|11,550 orders of 11"
    assert re.search(rf"no problem in any of its 4 schedules \(({orders}) operations\)", told)
    assert "could not be followed" not in told
    script.write_text(QUEUE.format(fence=""))
    told = run_cli(*words, code=66).stderr
    assert "shmem.put(slot, item, 0)" in told
    assert "missing: fence() before signal_op at queue.py:" in told
    assert "4 schedules, all there are" in told


def test_a_thread_that_changes_something_does_not_poll(run_cli, tmp_path):
    """It may see the same, and then something else between that and the next time."""
    script = tmp_path / "looks.py"
    script.write_text("""
import gpushmem as shmem

@shmem.jit
def kernel(word, count, out):
    if shmem.my_pe() == 1:
        shmem.atomic_set(word, 1, 0)
    for k in range(2 - 2 * shmem.my_pe()):
        out[k] = shmem.atomic_fetch(word, 0)
        shmem.atomic_inc(count, 0)

shmem.init(heap_size="16M")
kernel[1, 1](*(shmem.zeros(2, dtype="int64") for _ in range(3)))
shmem.finalize()
""")
    words = ("run", "--backend", "cpu", "--check", "--check-runs", "all", "-n", 2, script)
    assert "any of its 3 schedules (5 orders of 5 operations)" in run_cli(*words, code=0).stderr


@pytest.mark.sweep
def test_loops_that_poll_for_ever_are_ended(run_cli, tmp_path):
    """Two locks, taken in two orders by spinning."""
    script = tmp_path / "locks.py"
    script.write_text("""
import gpushmem as shmem

@shmem.jit
def kernel(locks):
    me = shmem.my_pe()
    first, second = locks[me:], locks[1 - me:]
    while shmem.atomic_compare_swap(first, 0, 1, 0) != 0:
        pass
    while shmem.atomic_compare_swap(second, 0, 1, 0) != 0:
        pass
    shmem.atomic_set(second, 0, 0)
    shmem.atomic_set(first, 0, 0)

shmem.init(heap_size="16M")
kernel[1, 1](shmem.zeros(2, dtype="int64"))
shmem.finalize()
""")
    options = ("--backend", "cpu", "--check", "--check-runs", "all", "-n", 2)
    told = run_cli("run", *options, script, code=143).stderr
    assert "the job does not end: threads poll for ever, if atomic_compare_swap" in told
    assert "3 schedules, all there are (70 orders of 8 operations); the job fails in 1" in told
