"""The order of events, from logs that are written here."""

import numpy as np
import pytest

from gpushmem.check import happens_before, log
from gpushmem.check.instrumentation import KIND_OF
from gpushmem.check.lost_wakeups import missed
from gpushmem.ops import CMP_EQ, CMP_GE, SIGNAL_ADD, SIGNAL_SET
from gpushmem.simt.observe import STORE

TURNS = happens_before.PASSES + 6
STRIDE, HEAP = 1 << 20, 1 << 32


def trace(pe, n_pes, *events):
    """The log of a PE: (stamp, kind, words) of its host."""
    records = np.zeros(len(events), log.RECORD)
    for k, (stamp, kind, *words) in enumerate(events):
        records[k] = (stamp, kind, 0, 0, 0, 0, (*words, *[0] * (6 - len(words))))
    facts = [{"heap": HEAP + pe * STRIDE, "stride": STRIDE, "n_pes": n_pes}]
    return log.Trace(pe, records, facts, 0)


def call(stamp, name, pe=-1, *effects, team=-1, compare=0, value=0, result=0):
    """A call of an operation; of each of its effects the number, address, bytes and stride."""
    kind = KIND_OF[name]
    return [
        (stamp, log.OP, kind, len(effects) << 8, pe, team, compare, value),
        *((stamp + 1, log.EFFECT, *effect, 8) for effect in effects),
        (stamp + 2, log.DONE, kind, result),
    ]


def add(stamp, pe, to, how=SIGNAL_ADD, value=1, qp=None, at=0):
    """Add 1 to the signal at the start of a heap, or set it; perhaps on a queue pair."""
    name, team = ("signal_op", -1) if qp is None else ("qp_signal_op", qp)
    word = 0, HEAP + pe * STRIDE + at, 8, 8
    return call(stamp, name, to, word, team=team, compare=how, value=value)


def fence(stamp, to, *qps):
    """Order what is written to a PE on these queue pairs."""
    return call(stamp, "qp_fence", to, value=sum(1 << qp for qp in qps))


def wait(stamp, pe, value, compare=CMP_GE):
    """Wait for the PE's own signal to be this, or more."""
    word = 0, HEAP + pe * STRIDE, 8, 8
    return call(stamp, "signal_wait_until", -1, word, compare=compare, value=value, result=value)


def put_units(stamp, pe, to, name, nbytes, flag=1):
    """Put units, or lines, to the start of a heap."""
    parts = (0, HEAP + pe * STRIDE + 512, 8, 8), (1, HEAP + pe * STRIDE, nbytes, 8)
    return call(stamp, name, to, *parts, value=flag)


def heard(*traces):
    """By how many writes each wait is sure to have been preceded."""
    return [len(one.writes) for one in happens_before.history(traces).waits.heard.values()]


def test_a_write_that_came_later_could_have_come_first():
    """PE 1 has added before the wait returned, PE 2 after it; it could have been the reverse."""
    waiting = trace(0, 3, *wait(10, 0, 1))
    first, late = trace(1, 3, *add(1, 1, 0)), trace(2, 3, *add(20, 2, 0))
    assert heard(waiting, first, late) == [0]
    assert heard(trace(0, 3, *wait(30, 0, 2)), first, late) == [2]


AGAIN = {
    "signal": lambda value: add(30, 1, 0, SIGNAL_SET, value),
    "units": lambda value: put_units(30, 1, 0, "put_ll_block", 8, value),
    "lines": lambda value: put_units(30, 1, 0, "put_ll128_block", 256, value),
}


@pytest.mark.parametrize("value", [1, 2])
@pytest.mark.parametrize("what", AGAIN)
def test_memory_that_held_a_signal_is_used_again_when_all_have_met(what, value):
    """The wait was for the signal, whatever is written there later."""
    met = [(20, log.CALL, 0), (21, log.CALL, 1)]
    waiting = trace(0, 2, *wait(10, 0, 1, CMP_EQ), *met)
    writing = trace(1, 2, *add(1, 1, 0, SIGNAL_SET), *met, *AGAIN[what](value))
    made = happens_before.history([waiting, writing])
    assert [len(one.writes) for one in made.waits.heard.values()] == [1]
    assert not missed(made)


def test_a_write_that_depends_on_the_wait_could_not():
    """PE 2 adds when PE 0 has told it that the wait is over."""
    waiting = trace(0, 3, *wait(10, 0, 1), *add(15, 0, 2))
    first = trace(1, 3, *add(1, 1, 0))
    late = trace(2, 3, *wait(20, 2, 1), *add(25, 2, 0))
    assert heard(waiting, first, late) == [1, 1]


def test_a_fence_is_of_what_was_written_on_its_queue_pairs():
    """Both add 1: that the second has is a proof of the first where the fence is of both."""
    for fenced, known in ((2, 3), 1), ((3,), 0), ((2,), 0):
        writing = trace(0, 2, *add(1, 0, 1, qp=2), *fence(5, 1, *fenced), *add(10, 0, 1, qp=3))
        assert heard(writing, trace(1, 2, *wait(20, 1, 1))) == [known]


def test_many_turns_of_unfenced_signals_are_in_order():
    """Each PE adds when the other has: more often than the logs are gone through."""
    events = [], []
    for k in range(2 * TURNS):
        one, other = k % 2, 1 - k % 2
        events[one].extend(add(10 * k, one, other))
        events[other].extend(wait(10 * k + 5, other, k // 2 + 1))
    assert heard(*(trace(pe, 2, *every) for pe, every in enumerate(events))) == [1] * 2 * TURNS


def test_waits_do_not_prove_each_other():
    """Two PEs each hear of two; which of these came first is not known to either."""
    senders = [
        trace(pe, 4, *add(stamp, pe, 0), *add(stamp + 50, pe, 1)) for pe, stamp in ((2, 1), (3, 80))
    ]
    waiting = [trace(0, 4, *wait(10, 0, 1)), trace(1, 4, *wait(60, 1, 1))]
    assert heard(*waiting, *senders) == [0, 0]


def test_each_write_of_a_host_is_another_one():
    """PE 1 fetches the second, before which was the first."""
    setting = trace(0, 2, *(
        event for k in (1, 2)
        for event in ((k, log.HOST, HEAP, 8, STORE, 0, 1), (k, log.VALUE, HEAP, 8, k))
    ))  # fmt: skip
    fetching = call(10, "atomic_fetch", 0, (0, HEAP + STRIDE, 8, 8), result=2)
    assert heard(setting, trace(1, 2, *fetching)) == [2]


def test_a_write_that_came_after_a_wait_could_keep_it_from_ending():
    waiting = trace(0, 2, *wait(10, 0, 1, CMP_EQ))
    both = trace(1, 2, *add(1, 1, 0, SIGNAL_SET), *add(20, 1, 0, SIGNAL_SET, 2))
    (found,) = missed(happens_before.history([waiting, both]))
    assert (found.write.pe, found.write.stamp, found.wait.pe) == (1, 20, 0)


def test_what_a_host_has_set_is_the_beginning_of_what_is_added():
    """The host sets the word to 2, meets the other PE, which adds 1: it is never less than 2."""
    met = [(5, log.CALL, 0), (6, log.CALL, 1)]
    setting = [(1, log.HOST, HEAP, 8, STORE, 0, 1), (2, log.VALUE, HEAP, 8, 2)]
    traces = trace(0, 2, *setting, *met, *wait(20, 0, 2)), trace(1, 2, *met, *add(10, 1, 0))
    assert not [*missed(happens_before.history(traces))]
