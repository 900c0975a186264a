"""What a wait must have seen: compared with all orders of the writes there are."""

from functools import reduce
from itertools import combinations, permutations
from typing import NamedTuple

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gpushmem.check import reads_from
from gpushmem.check.conditions import BITWISE, HOLDS, Write, some_without
from gpushmem.check.reads_from import Word
from gpushmem.check.vector_clock import CALLED, DONE, NONE, Bit, Bits, Clock
from gpushmem.ops import CMP_EQ, CMP_GE

WAIT = Bit(CALLED, 9, 0, 0)
BEGUN = CALLED, 0, 0  # of the writes
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


class Written(NamedTuple):
    """The call of a write."""

    k: int

    def place(self):
        return (self.k,)


def bit(k):
    return Bit(DONE, 0, 0, k)


def mask(some):
    return Bits(0, sum(1 << k for k in some))


def found(*situation):
    """What `Word.hear` says."""
    word, clock, compare, value = made(*situation)
    return {over.bit for over in word.hear(WAIT, clock, compare, value).writes}


def replaced(*situation):
    """Whether a write may keep the wait from ending, as `Word.replaced` says."""
    word, clock, compare, value = made(*situation)
    return word.replaced(WAIT, clock, compare, value) is not None


def made(writes, before, heard, later, compare, value):
    """The word, the clock of who waits, and its condition."""
    word = Word()
    for k, (how, number) in enumerate(writes):
        clock = Clock(masks={(DONE, 0, 0): mask(before[k]), BEGUN: mask(before[k] | {k})})
        if k in later:
            clock.put((CALLED, 9, 0), 0)
        word.put(Write(bit(k), how, number, clock, Written(k)))
    return word, Clock(masks={(DONE, 0, 0): mask(heard)}), compare, value


def ends(writes, before, heard, later, compare, value):
    """Whether the condition holds, in each order, after all that need not come after the wait."""
    some = [k for k in range(len(writes)) if k not in later]
    made = set()
    for order in permutations(some):
        if any(order.index(j) > order.index(k) for k in order for j in before[k]):
            continue
        number = 0
        for how, by in (writes[k] for k in order):
            number = MADE[how](number, by)
        made.add(HOLDS[compare](number, value))
    return made


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


@settings(max_examples=500, deadline=None)
@given(st.sampled_from([["set"], ["add"], ["set", "add", "or", "and", "xor"]]), st.data())
def test_what_is_known_by_all_that_may_have_ended_a_wait_has_happened(hows, data):
    situation = data.draw(situations(hows))
    truth = enumerated(*situation)
    assume(truth is not None)
    word, *wait = made(*situation)
    known = word.hear(WAIT, *wait).masks.get(BEGUN, NONE)
    assert mask(truth | situation[2]).covers(known)


@pytest.mark.parametrize("how", ["set", "add"])
def test_of_writes_that_may_overtake_each_other_the_calls_are_in_order(how):
    """A wait for what the third makes of it: no write is sure to have come, but three calls are."""
    writes = [(how, k if how == "set" else 1) for k in range(1, 7)]
    word, clock, *_ = made(writes, [set()] * 6, set(), set(), CMP_GE, 3)
    for k, write in enumerate(list(word.writes.values())):
        clock_of = Clock(masks={BEGUN: mask(range(k + 1))})
        word.put(write._replace(clock=clock_of, stamp=k))
    heard = word.hear(WAIT, clock, CMP_GE, 3)
    assert heard == (set(), {BEGUN: mask(range(3))}, {})


@settings(max_examples=300, deadline=None)
@given(situations(["set"]))
def test_a_wait_whose_value_is_replaced_may_never_end(situation):
    assume(enumerated(*situation) is not None)
    may_not_end = False in ends(*situation)
    if HOLDS[situation[4]](0, situation[5]):  # it may have held before anything was written
        assert replaced(*situation) <= may_not_end
    else:
        assert replaced(*situation) == may_not_end


@settings(max_examples=300, deadline=None)
@given(st.sampled_from([["add"], ["set", "add"], ["or"], ["set", "add", "or", "xor"]]), st.data())
def test_a_wait_that_ends_in_every_order_is_not_said_to_miss_anything(hows, data):
    situation = data.draw(situations(hows))
    assume(enumerated(*situation) is not None)
    if replaced(*situation):
        assert False in ends(*situation)


@pytest.mark.parametrize("how", ["or", "xor"])
def test_of_many_bits_each_is_needed(how):
    """Of as many PEs, each with its own bit, all must have come before the wait for all bits."""
    n = 40
    writes, nothing = [(how, 1 << k) for k in range(n)], [set()] * n
    assert found(writes, nothing, set(), set(), CMP_EQ, 2**n - 1) == set(range(n))


@given(
    st.sampled_from(["or", "and", "xor"]), st.integers(0, 15), st.integers(0, 15),
    st.lists(st.integers(0, 15), max_size=5),
)  # fmt: skip
def test_what_bits_can_become(how, start, value, numbers):
    subsets = (some for n in range(len(numbers) + 1) for some in combinations(numbers, n))
    truth = any(reduce(MADE[how], some, start) == value for some in subsets)
    assert BITWISE[how](start, numbers, value) == truth


# --- long histories: each wait compared with one that looks at all writes


class SlowWord:
    """A word of which nothing is summed up."""

    def __init__(self):
        self.writes = {}

    def put(self, write):
        self.writes[write.over] = write

    def hear(self, who, clock, compare, value):
        known = [w for w in self.writes.values() if w.over.known(clock)]
        certain = [
            w for w in known
            if not any(s.how == "set" and s is not w and s.after(w) for s in known)
        ]  # fmt: skip
        possible = [w for w in self.writes.values() if w not in known and not who.known(w.clock)]
        seen = {
            w.over for w in possible if some_without(w, certain, possible, compare, value) is None
        }
        for over in seen:
            clock.join(self.writes[over].clock)
            over.tell(clock)
        return seen


class Summed(Word):
    """A word of which the writes alone are heard."""

    def hear(self, who, clock, compare, value):
        seen = super().hear(who, clock.copy(), compare, value).writes
        for over in seen:
            clock.join(self.writes[over].clock)
            over.tell(clock)
        return seen


class Stored(NamedTuple):
    """What a clock has that knows a store: its thread has gone on."""

    actor: int
    when: int

    def known(self, clock):
        return clock.times.get(self.actor, -1) > self.when

    def tell(self, clock):
        pass


ACTORS = st.integers(0, 2)
STEPS = [*["write"] * 4, *["wait"] * 3, *["done"] * 2, *["tell"] * 3, "know"]


@st.composite
def programs(draw, hows, stores):
    """What three actors do with a word, in the order of a log; every wait holds."""
    number, events = 0, []
    for _ in range(draw(st.integers(5, 30))):
        what, actor, value = draw(st.sampled_from(STEPS)), draw(ACTORS), draw(st.integers(0, 2))
        if what == "write":
            how, kind = draw(st.sampled_from(hows)), draw(st.integers(1, 19))
            number = MADE[how](number, value)
            stored = stores and how == "set" and kind < 10
            events.append(("store" if stored else what, actor, how, None if kind == 1 else value))
        elif what == "wait":
            compare = draw(st.sampled_from(sorted(HOLDS)))
            value = number if draw(st.booleans()) else value
            if HOLDS[compare](number, value):
                events.append((what, actor, compare, value))
        else:
            events.append((what, actor, draw(ACTORS), value))
    return events


def replayed(word, events, passes):
    """What the waits see, in passes in which they hear or do not."""
    seen = []
    for hears in passes:
        clocks, bits = [Clock() for _ in range(3)], [0, 0, 0]
        for k, (what, actor, how, value) in enumerate(events):
            clock = clocks[actor]
            clock.times[actor] = k
            if what in ("write", "store"):
                over = Stored(actor, k) if what == "store" else Bit(DONE, actor, 0, bits[actor])
                bits[actor] += what != "store"
                word.put(Write(over, how, value, clock.copy(), None, k))
            elif what == "wait":
                who = Bit(CALLED, actor, 1, k)
                who.tell(clock)
                if hears:
                    seen.append(sorted(word.hear(who, clock, how, value)))
            elif what == "done":
                clock.know((DONE, actor, 0), Bits(bits[actor]))
            elif what == "tell":
                clocks[how].join(clock)
            elif bits[how]:  # knows one, and not what came before it
                clock.put((DONE, how, 0), max(0, bits[how] - 1 - value))
    return seen


HISTORIES = st.one_of(
    *(
        programs(hows, stores)
        for hows in (["set"], ["add"], ["set", "add", "add"], ["set", "add", "or", "xor"])
        for stores in (False, True)
    )
)
PASSES = st.lists(st.booleans(), min_size=2, max_size=5)


@settings(max_examples=1000, deadline=None)
@given(HISTORIES, PASSES)
def test_what_is_summed_up_is_what_all_writes_say(events, passes):
    assert replayed(Summed(), events, passes) == replayed(SlowWord(), events, passes)


@pytest.mark.parametrize("numbers", [0, 100])
def test_large_clocks_are_work(monkeypatch, numbers):
    """What all later writes know is asked again after each write that is new."""
    monkeypatch.setattr(reads_from, "MOST_WORK", 10_000)
    word = Word()
    for k in range(30):
        clock = Clock(dict.fromkeys(range(numbers), k), {(DONE, 0, 0): mask(range(k))})
        word.put(Write(bit(k), "set", k, clock, Written(k), k))
        word.hear(WAIT, Clock(), CMP_GE, 1)
    word.begin()
    assert word.is_long == (numbers > 0)


@given(*[st.sets(st.integers(0, 40))] * 2, st.integers(0, 50))
def test_sets_of_numbers(one, other, number):
    def made(numbers):
        return Bits(0, sum(1 << k for k in numbers))

    a, b = made(one), made(other)
    assert a | b == made(one | other)
    assert a & b == made(one & other)
    assert list(a.without(b)) == sorted(one - other)
    assert a.covers(b) == (one >= other)
    assert a.has(number) == (number in one)
    assert a.plus(number) == made(one | {number})
    assert Bits(0, a.above(number)) == made({k - number for k in one if k >= number})
