"""Small programs, each with a bug that `fixed` mends: found, at its lines; or silent."""

import json
import re

import pytest

from tests.check.programs import CORPUS, PROGRAMS, cases, program
from tests.conftest import ROOT
from tests.pes import BACKEND

# In CI: one of each way in which accesses are ordered; all: pytest -m sweep tests/check
SAMPLE = {
    "fence_before_flag", "source_changed_too_early", "shared_memory",
    "quiet_for_a_third_pe", "cleared_and_filled",
    "two_streams", "streams_of_a_graph", "box_written_again", "flag_between_blocks", "lock_on_a_pe",
    "one_element_too_many", "halo_nobody_fills",
    "fence_for_a_third_pe", "flag_of_one_gpu", "additions_lost_by_a_reset",
    "waits_for_another_block", "event_of_numba_cuda",
    "neighbours_in_a_grid", "fence_of_one_queue_pair", "quiet_of_another_queue_pair",
    "threadfence_of_the_gpu", "flag_again", "last_tile_is_not_waited_for",
    "tile_is_copied_to_again_while_it_is_read",
}  # fmt: skip
# On nvshmem-cpu kernels that wait are cooperative launches, as on GPUs: all blocks are there.
ACCEPTED = {"nvshmem-cpu": {"waits_for_another_block"}}.get(BACKEND, set())


def check(run_cli, one, *args, options=()):
    """Run a program under the checker; exit code, and what was found."""
    done = run_cli(
        "run", "--backend", BACKEND, "--check", "--check-format", "json", *options, "-n", one.pes,
        *one.words, *args,
    )  # fmt: skip
    assert done.returncode in (0, 66), done.stderr
    return done.returncode, json.loads(done.stdout[done.stdout.index("[") :])


@pytest.mark.parametrize("one", cases(SAMPLE))
def test_the_bug_is_found_at_its_lines_and_nothing_else(run_cli, one):
    if one.name in ACCEPTED:
        assert check(run_cli, one) == (0, [])
        return
    code, found = check(run_cli, one)
    assert code == 66
    pairs = [{a["line"].partition(" in ")[0] for a in problem["accesses"]} for problem in found]
    wanted = set(one.marked())
    assert wanted in pairs
    assert all(pair <= wanted | set(one.marked("<- 3")) for pair in pairs)
    assert all(problem["cure"].startswith("missing: ") for problem in found)


@pytest.mark.parametrize("one", cases(SAMPLE))
def test_the_program_without_the_bug_is_accepted(run_cli, one):
    assert check(run_cli, one, "fixed") == (0, [])


@pytest.mark.parametrize("one", cases(()))
@pytest.mark.timeout(600)
def test_each_of_twenty_seeds_gives_the_same_verdict(run_cli, one):
    verdicts = set()
    for seed in range(1, 21):
        _, found = check(run_cli, one, options=("--seed", seed))
        lines = [tuple(sorted(a["line"] for a in problem["accesses"])) for problem in found]
        verdicts.add(tuple(sorted(lines)))
    assert len(verdicts) == 1


def test_the_report_names_memory_lines_and_the_missing_operation(run_cli):
    path = CORPUS / "fence_before_flag.py"
    text = run_cli("run", "--backend", "cpu", "--check", "-n", 2, path, code=66).stderr
    first, second = PROGRAMS["fence_before_flag"].marked()
    flag = next(n for n, line in enumerate(path.read_text().splitlines(), 1) if "signal_op" in line)
    assert "gpushmem check: 1 problem found" in text
    assert "ordering: what put_block writes may arrive after it is read" in text
    assert re.search(r"`dst\[\d+\]` on PE [01] \(float32, shape \(64,\), allocated at", text)
    assert f"put_block writes it at {first} in kernel" in text
    assert f"reads it at {second} in kernel" in text
    assert "src[i] = dst[i]  # <- 2" in text
    assert f"missing: fence() before signal_op at {path.name}:{flag}" in text

    shown = re.search(
        r"<!-- report of tests/check/corpus/fence_before_flag.py -->\n```\n(.*?)```",
        (ROOT / "docs/check.md").read_text(),
        re.DOTALL,
    )[1]
    assert without_numbers(shown).strip() == without_numbers(text).strip()


def test_who_has_not_waited_is_told_which_thread_has(run_cli):
    _, found = check(run_cli, PROGRAMS["one_thread_waits_for_all"])
    assert found[0]["cure"] == (
        "missing: cuda.syncthreads() after signal_wait_until at one_thread_waits_for_all.py:19: "
        "thread 0 of the block has waited there, this one has not"
    )


def without_numbers(text):
    """A report without what differs from run to run."""
    text = re.sub(r"  \(seen \d+ times at these lines\)\n", "", text)
    return re.sub(r"(PE |thread |\[)\d+", r"\1N", text)


EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, marks=[] if path.stem == "ring" else [pytest.mark.sweep], id=path.stem)
        for path in EXAMPLES
        # The log of the first is full long before it ends; others take minutes to analyse.
        if path.stem not in {"train_digits", "llm", "bfs", "pagerank"}
    ],
)
def test_there_are_no_false_alarms_in_examples(run_cli, path):
    done = run_cli("run", "--backend", "cpu", "--check", "-n", 4, path, code=0, timeout=170)
    assert "gpushmem check" not in done.stderr


def test_other_backends_and_machines_are_refused(run_cli):
    path = CORPUS / "hosts.py"
    done = run_cli("run", "--backend", "null", "--check", path, code=2)
    assert "--check: the null backend records nothing; add --backend cpu" in done.stderr
    done = run_cli("run", "--hosts", "a:1,b:1", "--check", path, code=2)
    assert "leave --hosts out" in done.stderr


def test_what_follows_another_init_is_checked_too(run_cli, tmp_path):
    text = (CORPUS / "hosts.py").read_text()
    begin, end = text.index("shmem.init()"), text.index("shmem.finalize()")
    again = text[begin:end].replace("if FIXED:", "if True:").replace("# <- ", "# ")
    path = tmp_path / "hosts.py"
    path.write_text(text[:begin] + again + "shmem.finalize()\n" + text[begin:])
    code, found = check(run_cli, program(path))
    assert code == 66
    assert {a["line"] for a in found[0]["accesses"]} == set(program(path).marked())


def test_a_pe_that_is_killed_leaves_what_it_did(run_cli, tmp_path):
    path = tmp_path / "killed.py"
    path.write_text(
        (CORPUS / "hosts.py").read_text().replace("shmem.finalize()", "import os; os.abort()")
    )
    code, found = check(run_cli, program(path))
    assert code == 66
    assert {a["line"] for a in found[0]["accesses"]} == set(program(path).marked())


REFUSED = """
import gpushmem as shmem

@shmem.jit
def move(dst, src, n):
    shmem.iput(dst, src, 3, 1, n, 0)

def in_kernel(*args):
    move[1, 1](*args)
    shmem.synchronize()

shmem.init()
x, y = shmem.zeros(10), shmem.zeros(10)
for call in (in_kernel, lambda dst, src, n: shmem.iput(dst, src, 3, 1, n, 0)):
    for n in (5, 5, 2**62):
        try:
            call(x, y, n)
        except shmem.ArgumentError as error:
            assert "outside of an array of 10" in str(error)
            continue
        raise SystemExit("not refused")
shmem.finalize()
"""


def test_a_call_that_is_refused_has_done_nothing(run_cli, tmp_path):
    """Neither outside of its array, nor before the same call again; of any number of bytes."""
    path = tmp_path / "refused.py"
    path.write_text(REFUSED)
    done = run_cli("run", "--backend", "cpu", "--check", "-n", 1, path, code=0)
    assert done.stderr == ""


HOST_THREADS = """
import threading, time
import gpushmem as shmem

shmem.init()
word = shmem.zeros(1, "uint64")
if shmem.my_pe() == 0:
    thread = threading.Thread(target=shmem.barrier_all)
    thread.start()
    time.sleep(0.3)  # it waits for the other PE, which waits for this
    shmem.signal_op(word, 1, shmem.SIGNAL_SET, 1)
    thread.join()
else:
    shmem.signal_wait_until(word, shmem.CMP_EQ, 1)
    shmem.barrier_all()
shmem.finalize()
"""


def test_several_threads_of_a_host_call_operations(run_cli, tmp_path):
    path = tmp_path / "threads.py"
    path.write_text(HOST_THREADS)
    run_cli("run", "--backend", "cpu", "--check", "-n", 2, path, code=0)
