"""Loops that poll with operations: what they see again and again is recorded once."""

from collections import Counter

import pytest

from gpushmem.check import log
from gpushmem.ops import OPS

PROGRAM = """
import time

import gpushmem as shmem


@shmem.jit
def poll(word, status, indices, begun):
    shmem.signal_op(begun, 1, shmem.SIGNAL_SET, 0)
    while {}:
        {}


@shmem.jit
def tell(word):
    shmem.atomic_set(word, {}, 1)


shmem.init()
word = shmem.full(1, 7, "uint64")
begun = shmem.zeros(2, "uint64")
status, indices = shmem.zeros(1, "int32"), shmem.zeros(1, "uint64")
if shmem.my_pe() == 1:
    poll[1, 1](word, status, indices, begun)
else:
    shmem.signal_wait_until(begun, shmem.CMP_EQ, 1)
    time.sleep(0.2)
    tell[1, 1](word)
shmem.finalize()
"""
LOOPS = {
    "signal_fetch": "shmem.signal_fetch(word) == 7",
    "atomic_fetch": "shmem.atomic_fetch(word, 1) == 7",
    "g": "shmem.g(word, 1) == 7",
    "test": "not shmem.test(word, shmem.CMP_EQ, 3)",
    "test_any": "shmem.test_any(word, status, shmem.CMP_EQ, 3) != 0",
    "test_some": "shmem.test_some(word, indices, status, shmem.CMP_EQ, 3) == 0",
    "atomic_compare_swap": "shmem.atomic_compare_swap(word, 3, 8, 1) != 3",
    "atomic_swap": "shmem.atomic_swap(word, 7, 1) == 7",
}
OTHER = "shmem.atomic_fetch(status, 0) == 0 and shmem.signal_fetch(begun[1:]) == 0 and "


@pytest.fixture
def calls(run_cli, tmp_path):
    """`calls(loop, operation)`: how often PE 1 calls it, as its log says, and the log's stamps."""

    def recorded(loop, operation, value=3, body="pass"):
        path = tmp_path / "program.py"
        path.write_text(PROGRAM.format(loop, body, value))
        run_cli(
            "run", "--backend", "cpu", "-n", 2, path, code=0, env={"GPUSHMEM_CHECK": str(tmp_path)}
        )
        trace = list(log.read(tmp_path))[1]
        records = trace.records
        kinds = records["words"][records["kind"] == log.OP, 0]
        calls = Counter(list(OPS)[k] for k in kinds.tolist())
        return calls[operation], int(records["stamp"].max())

    return recorded


@pytest.mark.parametrize("operation", LOOPS)
def test_what_a_loop_sees_is_recorded_once(calls, operation):
    seen, stamps = calls(LOOPS[operation], operation)
    assert seen in (2, 3)  # one more if the program's own thread appends to the log just then
    assert stamps > 1000


@pytest.mark.parametrize("operation", ["signal_fetch", "test_some", "atomic_swap"])
def test_what_a_loop_sees_of_several_words_is_recorded_twice(calls, operation):
    """All that are looked at once, and once more by what has been seen of the others."""
    seen, stamps = calls(OTHER + LOOPS[operation], "atomic_fetch")
    assert seen in (2, 3, 4)  # as above
    assert stamps > 1000


def test_swaps_that_change_the_word_are_all_recorded(calls):
    loop = "shmem.atomic_swap(word, shmem.signal_fetch(word) + 1, 1) < 50"
    seen, _ = calls(loop, "atomic_swap", value=99)
    assert seen > 40


def test_swaps_that_see_the_same_and_change_it_are_all_recorded(calls):
    loop = "shmem.atomic_swap(word, 9, 1) == 7 and status[0] < 50"
    seen, _ = calls(loop, "atomic_swap", body="word[0] = 7; status[0] += 1")
    assert seen > 40
