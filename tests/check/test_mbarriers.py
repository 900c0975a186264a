"""mbarriers: what a wait orders, and what each statement of a pipeline is needed for."""

import re

import pytest

from gpushmem.check.mbarriers import Mbarrier
from gpushmem.check.vector_clock import PHASES, Clock
from tests.check.programs import PROGRAMS

PIPELINE = PROGRAMS["tile_is_copied_to_again_while_it_is_read"]
STATEMENT = re.compile(r" *(shmem\.mbarrier_|cuda\.syncthreads)")
# The read that another thread's copy may overwrite; and what else is wrong shows as a hang.
SAMPLE = "shmem.mbarrier_wait(bars, k % 2, parity)", "cuda.syncthreads()"


def test_a_wait_orders_what_it_must_have_seen_and_not_what_it_happened_to_see():
    one, waits = Mbarrier((PHASES, 0, 0), 2), Clock()
    for thread in "ab", "cd", "ef":
        one.arrive(Clock({thread[0]: 1}), 0)
        one.arrive(Clock({thread[1]: 1}), 0)
    known = []
    for parity in 1, 0, 0, 1, 1, 0, 1:  # the first, third, fifth and last may end at once
        one.wait(waits, parity)
        known.append("".join(sorted(waits.times)))
    assert known == ["", "ab", "ab", "abcd", "abcd", "abcdef", "abcdef"]


def statements():
    """Those of the program as it is right, each with the number of its line."""
    text = PIPELINE.words[0].read_text().splitlines()
    for number in PIPELINE.lines:
        line = text[number - 1]
        if STATEMENT.match(line) and "if not FIXED" not in text[number - 2]:
            said = line.strip()
            marks = [] if said in SAMPLE else [pytest.mark.sweep]
            yield pytest.param(number, id=said, marks=marks)


@pytest.mark.parametrize("number", [*statements()])
def test_a_pipeline_without_one_of_its_statements_is_refused(run_cli, tmp_path, number):
    lines = PIPELINE.words[0].read_text().splitlines()
    lines[number - 1] = re.sub(r"\S.*", "pass", lines[number - 1])
    path = tmp_path / "without.py"
    path.write_text("\n".join(lines))
    done = run_cli("run", "--backend", "cpu", "--check", "-n", 1, path, PIPELINE.name, "fixed")
    assert done.returncode
    assert re.search(r"missing: |deadlock|arrivals", done.stderr), done.stderr


OF_THE_BLOCK_BEFORE = """
from numba import cuda
import gpushmem as shmem

@shmem.jit
def kernel():
    bars, b = cuda.shared.array(1, "uint64"), cuda.blockIdx.x
    if b == 0:
        shmem.mbarrier_init(bars, 0, 1)
    shmem.mbarrier_arrive(bars, 0)
    shmem.mbarrier_wait(bars, 0, b)

shmem.init()
kernel[2, 1]()
shmem.finalize()
"""


def test_an_mbarrier_that_another_block_has_made_is_unwritten(run_cli, tmp_path):
    """It runs well where the memory is that of the block before."""
    path = tmp_path / "before.py"
    path.write_text(OF_THE_BLOCK_BEFORE)
    done = run_cli("run", "--backend", "cpu", "--check", "-n", 1, path, code=66)
    for name, line in ("mbarrier_arrive", 10), ("mbarrier_wait", 11):
        assert f"{name} reads it at before.py:{line} in kernel" in done.stderr
