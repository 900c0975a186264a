"""Which accesses are compared: runs whose elements lie between each other's are not."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushmem.check import happens_before, log
from gpushmem.check.races import Operations, _interleaved, _overlaps, races
from gpushmem.ops import SIGNAL_SET
from gpushmem.simt.observe import LOAD, STORE
from tests.check.test_order import HEAP, STRIDE, add, call, trace, wait

SIZE = st.integers(1, 8)


@st.composite
def runs(draw):
    """Start, stride and size of a run, and how many elements it has."""
    times = draw(st.integers(1, 5))
    stride = draw(st.integers(-20, 20)) if times > 1 else 0
    return draw(st.integers(0, 60)), stride, draw(SIZE), times


def touched(start, stride, size, times):
    return {start + k * stride + byte for k in range(times) for byte in range(size)}


@given(runs(), runs())
def test_runs_between_each_other_share_no_byte(one, other):
    apart = _interleaved(*(np.array([number]) for number in one[:3]), *other[:3])
    assert not (apart and touched(*one) & touched(*other))


@given(runs(), runs())
def test_elements_overlap_that_share_a_byte_and_no_others(one, other):
    first, second = (
        SimpleNamespace(start=b, stride=d, size=n, times=k, step=1, end=b + d * (k - 1) + n)
        for b, d, n, k in (one, other)
    )
    elements = [[touched(b + i * d, 0, n, 1) for i in range(k)] for b, d, n, k in (one, other)]
    assert {*_overlaps(first, second)} == {
        (i, j) for i, a in enumerate(elements[0]) for j, b in enumerate(elements[1]) if a & b
    }


def test_columns_of_a_matrix_are_between_each_other():
    """Four columns of numbers of 8 bytes: the others, and not the column itself."""
    starts, strides, sizes = np.arange(0, 32, 8), np.full(4, 32), np.full(4, 8)
    found = _interleaved(starts, strides, sizes, 8, 32, 8)
    assert found.tolist() == [True, False, True, True]


def iput(stamp, n):
    """By PE 0, `n` words to every other one of PE 1."""
    return call(stamp, "iput", 1, (1, HEAP, 16 * n - 8, 16), (0, HEAP + 64, 8 * n, 8))


def stored(at):
    """By the host of PE 1, later, and with no order."""
    return [(30, log.HOST, HEAP + STRIDE + at, 8, STORE, 0, 1)]


def found(*traces):
    """The races; those of the same lines and kinds of access as one."""
    operations = Operations()
    return races(happens_before.history(traces, operations=operations), operations)


@pytest.mark.parametrize(
    ("first", "second", "last"),
    [
        (add(1, 0, 1), add(10, 0, 1, at=8), stored(0)),  # of another word
        (add(1, 0, 1, SIGNAL_SET), add(10, 0, 1), add(30, 1, 1)),  # it may be lost
        (iput(1, 4), iput(10, 2), stored(48)),  # of fewer words
    ],
)
def test_an_access_is_kept_of_which_a_later_one_does_not_say_all(first, second, last):
    (race,) = found(trace(0, 2, *first, *call(5, "quiet"), *second), trace(1, 2, *last))
    assert (race.first.stamp, race.second.stamp) == (1, 30)


def kernel(pe, before, threads, *accesses, after=()):
    """The log of a PE that launches one, when this has been: start, stride, times, step, how."""
    one = 1 << log.ROWS | 8 << 2  # row of words
    rows = [
        (9, log.ACCESS, HEAP + pe * STRIDE + start, stride, times, one | step, how)
        for start, stride, times, step, how in accesses
    ]
    begin = (7, log.SUBMIT, 1, threads), (8, log.BEGIN)
    made = trace(pe, 1 + pe, *before, *begin, *rows, (9, log.END), *after)
    made.records["launch"][len(before) + 1 :][: len(rows) + 2] = 1
    return made


def test_an_operation_that_is_made_again_races_with_a_plain_store():
    """PE 0 sets a word before both PEs have met, and again."""
    met = [(5, log.CALL, 0), (6, log.CALL, 1)]
    setting = trace(0, 2, *add(1, 0, 1, SIGNAL_SET), *met, *add(10, 0, 1, SIGNAL_SET))
    assert len(found(setting, kernel(1, met, 1, (0, 0, 1, 0, STORE)))) == 1


@pytest.mark.parametrize(("launch", "ordered"), [(1, True), (2, False)])
def test_a_host_that_waits_for_a_launch_waits_for_no_other_one(launch, ordered):
    after = (11, log.SYNC, 0, launch), (12, log.HOST, HEAP, 8, STORE, 0, 1)
    assert bool(found(kernel(0, [], 1, (0, 0, 1, 0, STORE), after=after))) != ordered


def test_of_threads_of_several_blocks_only_the_first_ones_are_the_same():
    """Four threads store, and the first two load what the others have stored; or what they have."""
    storing = (0, 8, 4, 1, STORE)
    assert found(kernel(0, [], 2, storing, (16, 8, 2, 1, LOAD)))
    assert not found(kernel(0, [], 2, storing, (0, 8, 2, 1, LOAD)))


@pytest.mark.parametrize("answers", [True, False])
def test_what_has_arrived_has_been_read(answers):
    """PE 0 sends a word, then a signal, and writes the word again: when PE 1 has answered."""
    put = call(1, "put_nbi", 1, *((k, HEAP + 64, 8, 8) for k in range(2)))
    heard = wait(30, 0, 1) if answers else []
    again = (40, log.HOST, HEAP + 64, 8, STORE, 0, 1)
    sending = trace(0, 2, *put, *call(4, "fence"), *add(7, 0, 1), *heard, again)
    answering = trace(1, 2, *wait(10, 1, 1), *add(20, 1, 0))
    assert len(found(sending, answering)) == 1 - answers
