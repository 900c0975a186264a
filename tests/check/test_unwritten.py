"""Reads of memory that nobody has written, and all the ways to write it."""

import re
from pathlib import Path

import numpy as np
import pytest

from gpushmem.check import happens_before, log, uninitialized
from gpushmem.check.instrumentation import KIND_OF
from gpushmem.ops import CMP_GE
from gpushmem.simt.compiler.observer import LOAD, STORE
from tests.check.programs import program
from tests.check.test_corpus import check

HERE = Path(__file__).parent
HEAP, STRIDE = 1 << 32, 1 << 20


def trace(*events, since=(1,), lost=0):
    """The log of the only PE's host, with an array of 8 bytes made at each of these stamps."""
    records = np.zeros(len(events), log.RECORD)
    for k, (stamp, kind, *words) in enumerate(events):
        records[k] = (stamp, kind, 0, 0, 0, 0, (*words, *[0] * (6 - len(words))))
    array = {"array": 0, "bytes": 8, "item": 8, "shape": [1], "dtype": "uint64", "name": "a"}
    facts = [{"heap": HEAP, "stride": STRIDE, "n_pes": 1}]
    return log.Trace(0, records, facts + [array | {"since": stamp} for stamp in since], lost)


def write(stamp, kind=log.HOST, nbytes=8):
    return [(stamp, kind, HEAP, nbytes, STORE, 0, 1)]


def wait(stamp):
    return [
        (stamp, log.OP, KIND_OF["signal_wait_until"], 1 << 8, -1, -1, CMP_GE, 1),
        (stamp + 1, log.EFFECT, 0, HEAP, 8, 8, 8),
        (stamp + 2, log.DONE, KIND_OF["signal_wait_until"], 1),
    ]


def wait_for_two(stamp, ignored=None):
    """For all words of an array of two, but what its status says to ignore."""
    kind = KIND_OF["wait_until_all"]
    status = [] if ignored is None else [(stamp + 2, log.CONTENTS, 1, ignored, 1)]
    return [
        (stamp, log.OP, kind, 1 << 8, -1, -1, CMP_GE, 1),
        (stamp + 1, log.EFFECT, 0, HEAP, 16, 8, 8),
        *status,
        (stamp + 3, log.DONE, kind, 1),
    ]


def multiply(stamp):
    """What no plain code and no wait looks at."""
    return [
        (stamp, log.OP, KIND_OF["gemm_block"], 1 << 8, -1, -1),
        (stamp + 1, log.EFFECT, 0, HEAP, 8, 8, 8),
        (stamp + 2, log.DONE, KIND_OF["gemm_block"], 0),
    ]


def found(*args, **kwargs):
    return [
        one.seen
        for one in uninitialized.unwritten(happens_before.history([trace(*args, **kwargs)]))
    ]


def test_what_is_read_before_it_is_written_is_found_and_counted_by_line():
    assert found(*wait(10)) == [1]
    assert found(*wait(10), *write(20)) == [1]
    assert found(*write(5), *wait(10)) == []


@pytest.mark.parametrize("read", [wait, multiply])
def test_an_array_at_the_place_of_another_one_is_unwritten_again(read):
    assert found(*write(5), *read(10), *read(30), since=(1, 20)) == [1]
    assert found(*write(5), *read(10), *write(25), *read(30), since=(1, 20)) == []


def test_a_write_with_gaps_leaves_some_unwritten():
    """The first and the last of three words; a kernel reads the other one."""
    written, load = (5, log.HOST, HEAP, 8, STORE, 16, 2), 1 << log.ROWS | 8 << 2
    reading = [(8, log.BEGIN), (9, log.ACCESS, HEAP + 8, 0, 1, load, LOAD), (10, log.END)]
    made = trace(written, (7, log.SUBMIT, 1, 1), *reading)
    made.records["launch"][2:], made.facts[-1]["bytes"] = 1, 24
    (one,) = uninitialized.unwritten(happens_before.history([made]))
    assert one.place == 8


def test_a_wait_looks_at_each_of_its_words():
    def places(*events):
        made = trace(*events)
        made.facts[-1]["bytes"] = 16
        return [one.place for one in uninitialized.unwritten(happens_before.history([made]))]

    assert places(*wait_for_two(10)) == [0]
    assert places(*write(5), *wait_for_two(10)) == [8]
    assert places(*write(5, nbytes=16), *wait_for_two(10)) == []
    assert places(*write(5), *wait_for_two(10, ignored=1)) == []
    assert places(*wait_for_two(10, ignored=0)) == [8]


def test_what_the_host_has_got_may_have_been_written():
    assert found(*write(5, log.EXPOSED), *wait(10)) == []
    assert found(*wait(10), *write(20, log.EXPOSED)) == [1]


def test_a_log_that_is_not_complete_says_nothing():
    assert found(*wait(10), lost=1) == []
    assert found((5, 0), *wait(10)) == []


@pytest.mark.sweep
def test_reads_of_nothing_are_found_and_nothing_else(run_cli, tmp_path):
    path = HERE / "reads_of_nothing.py"
    copy = tmp_path / path.name
    copy.write_text("PES = 2\n" + path.read_text())
    lines = copy.read_text().splitlines()
    code, problems = check(run_cli, program(copy))
    assert code == 66
    assert {problem["kind"] for problem in problems} == {"unwritten"}
    at = {int(re.search(r":(\d+)", p["accesses"][0]["line"])[1]) for p in problems}
    assert at == {number for number, line in enumerate(lines, 1) if line.endswith("# <-")}


@pytest.mark.sweep
@pytest.mark.parametrize("part", ["host", "operations", "kernels", "shared"])
def test_what_has_been_written_in_any_way_is_written(run_cli, part):
    path = HERE / "ways_to_write.py"
    done = run_cli("run", "--backend", "cpu", "--check", "-n", 2, path, part, timeout=170)
    assert (done.returncode, done.stderr) == (0, "")
