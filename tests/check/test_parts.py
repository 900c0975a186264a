"""A job is checked in parts: that makes no difference, but for what there is room for."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gpushmem.check import command, happens_before, log, parts
from gpushmem.ops import SIGNAL_SET
from gpushmem.simt.observe import ADD, STORE
from tests.check.programs import cases
from tests.check.test_corpus import SAMPLE
from tests.check.test_order import HEAP, STRIDE, add, call, trace, wait
from tests.conftest import PLAIN, ROOT
from tests.pes import BACKEND

STEPS = Path(__file__).with_name("steps_of_a_job.py")
# A log has so many records, and so many are a part.
SMALL = """
import sys
from gpushmem.check import log, parts
log.MOST = int(sys.argv.pop(1))
parts.PART, parts.EVERY = 100, 0.02
from gpushmem.cli import main
main()
"""


@pytest.fixture
def in_parts(monkeypatch, run_cli):
    """How many parts a program has, if each is as small as it can be, and what is found in them."""

    def found(pes, *words, may_fail=False):
        monkeypatch.setattr(parts, "PART", 0)
        with command.recorded() as folder:
            recorded = {"GPUSHMEM_CHECK": str(folder), "GPUSHMEM_THREADS": "1"}
            done = run_cli("run", "--backend", BACKEND, "-n", pes, *words, env=recorded)
            if may_fail and done.returncode:
                pytest.skip(f"without what mends it, it does not end well: {done.stderr}")
            assert done.returncode == 0, done.stderr
            _, problems = command.problems(list(log.read(folder)))
            findings, n = command.Findings(command.Known(None)), 0
            for traces in parts.Parts(folder):
                findings.add_part(traces)
                n += 1
        return n, {p.key() for p in problems}, findings.keys()

    return found


@pytest.mark.parametrize("one", cases(SAMPLE & {"lock_on_a_pe", "halo_nobody_fills"}))
@pytest.mark.parametrize("fixed", [[], ["fixed"]])
def test_parts_have_the_problems_of_the_whole(in_parts, one, fixed):
    n, whole, found = in_parts(one.pes, *one.words, *fixed, may_fail=not fixed)
    assert n > 1
    assert found == whole


def test_words_and_memory_are_what_they_were_in_the_part_before(in_parts):
    n, whole, found = in_parts("2", str(STEPS), "6")
    assert n > 18
    assert whole == found == set()


@pytest.mark.parametrize("bug", ["no wait", "unwritten", "no lock"])
def test_what_a_late_part_does_wrong_is_found(in_parts, bug):
    _, whole, found = in_parts("2", str(STEPS), "6", bug)
    assert whole == found != set()


def left(*parts):
    """What the last of these parts leaves, each the events of the hosts of PE 0 and PE 1."""
    earlier = None
    for events in parts:
        traces = [trace(pe, 2, *some) for pe, some in enumerate(events)]
        traces[0].facts.append({"members": 1, "pes": [0, 1]})
        earlier = happens_before.history(traces, earlier=earlier).earlier()
    return earlier


def take(stamp, op="atomic_compare_swap", old=0):
    """PE 0 tries to make the word at the start of PE 1's heap 1, and sees this."""
    return call(stamp, op, 1, (0, HEAP, 8, 8), value=1, result=old)


STORED = [(10, log.HOST, HEAP + STRIDE, 8, STORE, 0, 1)]  # of it the log has no number
RESET = [*STORED, (11, log.VALUE, HEAP + STRIDE, 8, 7)]
COUNTED = [(1, log.UPDATE, 1 << 40, ADD, 1)]  # in memory that is not symmetric
FREED = add(10, 0, 1, SIGNAL_SET, 0)
TWO_SET = add(1, 0, 1, SIGNAL_SET, 2), add(10, 1, 1, SIGNAL_SET)


@pytest.mark.parametrize(
    ("number", "parts"),
    [
        (1, [(add(1, 0, 1), []), ([], [])]),
        (2, [(add(1, 0, 1), []), (add(1, 0, 1), [])]),
        (None, [TWO_SET, ([], [])]),
        (None, [(TWO_SET[0], TWO_SET[1] + wait(20, 1, 1))]),  # of a word that is looked at
        (None, [(add(1, 0, 1), []), ([], STORED)]),
        (7, [(add(1, 0, 1), []), ([], RESET)]),
        (7, [(add(1, 0, 1), []), ([], RESET + RESET)]),
        (None, [(add(1, 0, 1), []), ([], RESET + STORED)]),
        (None, [(add(1, 0, 1), []), (add(20, 0, 1), RESET)]),  # the log does not say which is first
        (2, [([], COUNTED), ([], COUNTED)]),
    ],
)
def test_a_word_is_what_all_parts_have_made_of_it(number, parts):
    assert [*left(*parts).words.words.values()] == [number]


@pytest.mark.parametrize(
    ("held", "parts"),
    [
        (True, [(take(1) + FREED + take(20), [])]),
        (True, [(take(1), []), ([], [])]),
        (False, [(take(1), []), (FREED, [])]),
        (False, [(take(1), []), (FREED, wait(20, 1, 0))]),
        (True, [(take(1, "atomic_fetch_or"), [])]),
        (False, [(add(1, 0, 1) + take(10, "atomic_fetch_or", 1), [])]),  # it was 1 before
    ],
)
def test_a_lock_that_is_not_given_back_is_held_in_later_parts(held, parts):
    assert bool(left(*parts).words.locks) == held


def test_teams_and_memory_that_hosts_have_are_known_to_later_parts():
    told = [(1, log.TEAM, 3, 1), (2, log.EXPOSED, HEAP, 8, STORE, 0, 1)]
    earlier = left((told, []), ([], []))
    assert earlier.teams == {0: {3: (0, 1)}, 1: {}}
    assert [access.space for access in earlier.exposed] == [("heap", 0)]


def checked(room, *words):
    """Run a job with logs that have room for so few records."""
    return subprocess.run(
        [sys.executable, "-c", SMALL, str(room), "run", "--backend", BACKEND, "--check", *words],
        env={**PLAIN, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=150,
        check=False,
    )  # fmt: skip


def test_a_job_that_is_longer_than_its_logs_is_checked_to_its_end():
    done = checked(500, "-n", "2", STEPS, "25", "no wait")
    assert done.returncode == command.EXIT_CODE, done.stderr
    assert "1 problem found" in done.stderr
    assert "not all was checked" not in done.stderr
    records, nbytes = map(int, done.stdout.split())
    assert records > 1000
    assert nbytes < 750 * log.RECORD.itemsize


def test_a_job_that_never_meets_ends_its_log_and_goes_on():
    done = checked(1000, "-n", "2", STEPS, "1", "500 signals")
    assert done.returncode == 0, done.stderr
    assert "not all was checked: the log of PE 0 was full" in done.stderr
    assert "the disk" not in done.stderr


def written(folder, records, pe=0):
    """A log of one of two PEs that has these records."""
    path = folder / f"pe{pe}.log"
    path.write_bytes(b"\0" * log.HEADER + records.tobytes())
    path.with_suffix(".json").write_text('{"n_pes": 2}\n')
    one = parts._Log(path)
    one._header["n"] = one._header["most"] = len(records)
    one.look()
    return one


SUBMIT, END, MEET = (log.SUBMIT, 0), (log.END, 1), (log.CALL, 0)


@pytest.mark.parametrize(
    ("stream", "events", "known"),
    [
        (0, [], True),
        (0, [SUBMIT, END], False),
        (0, [SUBMIT, (log.SYNC, 0, 2), END], False),  # it had not ended then
        (0, [SUBMIT, END, (log.SYNC, 0, 2)], True),
        (0, [SUBMIT, END, (log.SYNC, 0, 1)], False),  # those before it
        (0, [SUBMIT, END, (log.SYNC, 0, 0, 1)], True),
        (-2, [SUBMIT, END, (log.SYNC, 0, 2)], False),  # a stream that is waited for by its number
        (-2, [SUBMIT, END, (log.SYNC, 0, 0, 0, -2)], True),
        (3, [SUBMIT, END, (log.SYNC, 0, 0, 0, 3)], True),
        (3, [SUBMIT, END, (log.SYNC, 0, 0, 0, 4)], False),
    ],
)  # fmt: skip
def test_a_part_ends_where_all_launches_are_known_to_be_over(
    monkeypatch, tmp_path, stream, events, known
):
    records = np.zeros(len(events) + 2, log.RECORD)
    for record, (kind, launch, *words) in zip(records, [*events, MEET, MEET], strict=True):
        record["kind"], record["launch"] = kind, launch
        record["words"][: len(words)] = words
        if kind == log.SUBMIT:
            record["words"][:3] = 1, 32, stream
    one = written(tmp_path, records)
    assert one.met == [(len(events) + 1, known, log.CALL)]
    one.close()
    written(tmp_path, records[-2:], pe=1).close()
    monkeypatch.setattr(parts, "PART", 0)
    assert len([*parts.Parts(tmp_path)]) == 1 + known


def test_a_hole_in_a_file_is_what_it_was_before():
    """Of the pages that a part has alone: a page is still there that the next part begins in."""
    with command.recorded() as folder:
        page, records = os.sysconf("SC_PAGESIZE"), np.ones(1000, log.RECORD)
        one = written(folder, records)
        one.remove(500)
        left = np.fromfile(folder / "pe0.log", log.RECORD, offset=log.HEADER)
        assert np.all(left[500:] == records[500:])
        assert np.all(left[page // log.RECORD.itemsize + 1 : 400]["kind"] == 0)
        assert one._header["most"][0] == 500 + log.MOST
        one.close()
