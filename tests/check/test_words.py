"""What a wait must have seen: compared with all orders of the writes there are."""

from itertools import permutations

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gpushmem.check.clock import CALLED, DONE, Clock
from gpushmem.check.order import Bit
from gpushmem.check.words import HOLDS, Word, Write

WAIT = Bit(CALLED, 9, 0, 0)
MADE = {
    "set": lambda a, b: b, "add": lambda a, b: a + b, "or": lambda a, b: a | b,
    "and": lambda a, b: a & b, "xor": lambda a, b: a ^ b,
}  # fmt: skip


@st.composite
def situations(draw, adding):
    """Writes with what is known of their order, and what a waiter knows: predecessors, before."""
    n = draw(st.integers(1, 5))
    before: list[set[int]] = []
    for k in range(n):
        direct = draw(st.sets(st.integers(0, k - 1), max_size=2)) if k else set()
        before.append(direct.union(*(before[j] for j in direct)) if direct else set())
    value = st.integers(1, 2) if adding == ["add"] else st.integers(0, 2)
    writes = [(draw(st.sampled_from(adding)), draw(value)) for _ in range(n)]
    heard = draw(st.sets(st.integers(0, n - 1), max_size=2))
    heard = heard.union(*(before[k] for k in heard)) if heard else set()
    later = draw(st.sets(st.integers(0, n - 1), max_size=1)) - heard
    later = {k for k in range(n) if k in later or before[k] & later} - heard
    assume(all(not before[k] & later for k in heard))
    return (
        writes,
        before,
        heard,
        later,
        draw(st.sampled_from(sorted(HOLDS))),
        draw(st.integers(0, 4)),
    )


def bit(k):
    return Bit(DONE, 0, 0, k)


def found(writes, before, heard, later, compare, value):
    """What `Word.hear` says."""
    word = Word()
    for k, (how, number) in enumerate(writes):
        clock = Clock(masks={(DONE, 0, 0): sum(1 << j for j in before[k])})
        if k in later:
            clock.put(CALLED, 9, 0, 1)
        word.put(Write(bit(k), how, number, clock, None))
    clock = Clock(masks={(DONE, 0, 0): sum(1 << k for k in heard)})
    return {over.bit for over in word.hear(WAIT, clock, compare, value)}


def enumerated(writes, before, heard, later, compare, value):
    """What came before the wait in every order in which its condition holds; None: in none."""
    always = None
    for order in permutations(range(len(writes))):
        if any(order.index(j) > order.index(k) for k in order for j in before[k]):
            continue
        number = 0
        for place in range(len(order) + 1):
            seen = set(order[:place])
            if HOLDS[compare](number, value) and heard <= seen and not later & seen:
                always = seen if always is None else always & seen
            if place < len(order):
                how, by = writes[order[place]]
                number = MADE[how](number, by)
    return None if always is None else always - heard


@settings(max_examples=300, deadline=None)
@given(situations(["set"]))
def test_words_that_are_set(situation):
    truth = enumerated(*situation)
    assume(truth is not None)
    assert found(*situation) == truth


@settings(max_examples=300, deadline=None)
@given(situations(["add"]))
def test_words_that_are_added_to(situation):
    truth = enumerated(*situation)
    assume(truth is not None)
    assert found(*situation) <= truth


@settings(max_examples=300, deadline=None)
@given(situations(["or"]))
def test_words_whose_bits_are_set(situation):
    truth = enumerated(*situation)
    assume(truth is not None)
    assert found(*situation) <= truth


@settings(max_examples=300, deadline=None)
@given(situations(["set", "add", "or", "and", "xor"]))
def test_nothing_is_ordered_that_need_not_be(situation):
    truth = enumerated(*situation)
    assume(truth is not None)
    assert found(*situation) <= truth
