"""Which orders are tried: compared with all there are, of small programs of a few words."""

from operator import ne
from random import Random
from types import SimpleNamespace

import numpy as np
import pytest

from gpushmem.check.conditions import holds
from gpushmem.check.exploration import (
    Event,
    Exploration,
    Loops,
    Word,
    neighbours,
    run_of,
    waits_for,
)
from gpushmem.check.history import Atomic, Turn
from gpushmem.check.log import EFFECT, END, OP, RECORD
from gpushmem.check.pe_memory import refused
from gpushmem.check.turns import named
from gpushmem.check.vector_clock import UPDATED, Bit, Bits, Clock
from gpushmem.ops import CMP_EQ, CMP_GE, CMP_LT, OPS

# --- a machine: threads with a list of operations each. An operation is its name, a word, numbers.


def operation(random, words):
    name = random.choice(["add", "add", "or", "set", "fetch_add", "swap", "cas", "read", "wait"])
    word = random.randrange(words)
    least = -1 if name in ("add", "fetch_add") else 1
    numbers = (random.choice([least, 1, 2, 2]), random.randrange(3))
    if name == "wait":
        numbers = (random.choice([CMP_EQ, CMP_GE, CMP_GE, CMP_LT]), random.randrange(3))
    return name, word, numbers


def program(random):
    threads, words = random.choice([(2, 1), (2, 2), (3, 1), (3, 2), (4, 2)]), None
    threads, words = threads
    most = {2: 4, 3: 3, 4: 2}[threads]
    return [
        [operation(random, words) for _ in range(random.randrange(1, most + 1))]
        for _ in range(threads)
    ]


def step(memory, name, word, numbers):
    """What memory is then, and what the operation returns; None if it waits."""
    old, (one, two) = memory[word], numbers
    if name == "wait":
        return (memory, 0) if holds(one, old, two) else None
    new = {
        "add": old + one, "or": old | one, "set": two, "fetch_add": old + one, "swap": two,
        "cas": one if old == two else old, "read": old,
    }[name]  # fmt: skip
    returns = name in ("fetch_add", "swap", "cas", "read")
    return (*memory[:word], new, *memory[word + 1 :]), old if returns else 0


def every_outcome(threads):
    """What all threads may have seen, with the memory at the end, whatever the order."""
    found, seen, left = set(), set(), [((0,) * 2, tuple(() for _ in threads))]
    while left:
        memory, results = state = left.pop()
        if state in seen:
            continue
        seen.add(state)
        moved = False
        for k, thread in enumerate(threads):
            done = len(results[k])
            if done == len(thread) or (after := step(memory, *thread[done])) is None:
                continue
            moved = True
            left.append((after[0], (*results[:k], (*results[k], after[1]), *results[k + 1 :])))
        if not moved:
            found.add(state)
    return found


def run(threads, order, random):
    """Run a program: `order` first, then at random. Returns its events, and its outcome."""
    memory, results, events, order = (0, 0), [()] * len(threads), [], list(order)
    while True:
        able = [
            k for k, thread in enumerate(threads)
            if len(results[k]) < len(thread) and step(memory, *thread[len(results[k])]) is not None
        ]  # fmt: skip
        if not able:
            assert not order, "an order that nothing can follow"
            waiting = [
                event(k, len(results[k]), *thread[len(results[k])], 0)
                for k, thread in enumerate(threads)
                if len(results[k]) < len(thread)
            ]
            return events, waiting, (memory, tuple(results))
        k = order.pop(0) if order else random.choice(able)
        assert k in able, "an order that nothing can follow"
        name, word, numbers = threads[k][len(results[k])]
        before = memory
        memory, result = step(memory, name, word, numbers)
        events.append(event(k, len(results[k]), name, word, numbers, before[word]))
        results[k] = (*results[k], result)


def event(thread, number, name, word, numbers, old):
    one, two = numbers
    change = {"add": "add", "or": "or", "fetch_add": "add", "read": "", "wait": ""}.get(name, "set")
    value = {"set": two, "swap": two, "cas": one}.get(name, one)
    if name == "cas" and old != two:
        change = ""
    where = Word(("heap", 0), 8 * word, 8, change, value)
    reads = name in ("fetch_add", "swap", "cas", "read")
    wait = waits_for(one, (two,)) if name == "wait" else None
    over = Bit(UPDATED, thread, 0, number)
    return Event(named(thread, 0, 0), f"{name} at {number}", (where,), reads, wait, over, {})


def explored(threads, order, random):
    """The outcomes of all runs that are tried, the first of which begins so; and the runs."""
    exploration, found, runs = Exploration(), set(), 0
    while order is not None:
        events, waiting, outcome = run(threads, order, random)
        exploration.add(neighbours(events, waiting))
        found.add(outcome)
        runs += 1
        following = exploration.next()
        order = following and [who >> 48 for who in following[0]]
    return exploration, found, runs


@pytest.mark.parametrize("seed", range(40))
def test_every_outcome_is_found_and_hardly_an_order_is_tried_twice(seed):
    for k in range(5):
        random = Random(f"{seed} {k}")
        threads = program(random)
        exploration, found, runs = explored(threads, [], random)
        assert found == every_outcome(threads), threads
        # What a compare-and-swap depends on is known when it has been made.
        assert runs <= 1.1 * exploration.schedules + 2, threads


@pytest.mark.parametrize(
    ("threads", "first"),
    [
        ([[("add", 0, (1, 0))], [("add", 0, (1, 0))], [("wait", 0, (CMP_LT, 1))]], [0, 1]),
        ([[("add", 0, (1, 0))] * 2, [("or", 0, (4, 0))], [("wait", 0, (CMP_EQ, 0))]], [1, 0, 0]),
        ([[("add", 0, (-1, 0))], [("wait", 0, (CMP_GE, 0))]], [1, 0]),  # one that takes away
        (
            [
                [("add", 0, (1, 0))],
                [("wait", 0, (CMP_GE, 0))],
                [("add", 0, (-1, 0)), ("set", 0, (0, 2))],
            ],
            [0, 2, 2, 1],
        ),  # one that makes up for it
    ],
)
def test_a_wait_that_no_single_change_keeps_from_ending_ends_before_all(threads, first):
    _, found, _ = explored(threads, first, Random(1))
    assert found == every_outcome(threads)


def test_what_a_failed_try_has_told_is_no_reason_to_come_later():
    """PE 0 tries to take a lock that PE 1 has, and gets it then: it could have been first."""
    free, taken = Clock(), Clock(masks={(UPDATED, 1, 0): Bits(1)})
    turns = [
        Turn(k + 1, Atomic("set", value, ("heap", 0), used, fails, 0), site, (pe, 1, 0),
             Bit(UPDATED, pe, 0, k), clock, failed)
        for k, (pe, site, value, used, fails, clock, failed) in enumerate([
            (1, "a:1", 1, True, ne, free, False), (0, "b:1", 1, True, ne, free, True),
            (1, "a:2", 0, False, None, free, False), (0, "b:1", 1, True, ne, taken, False),
        ])
    ]  # fmt: skip
    run = run_of(SimpleNamespace(turns=turns, waiting=[]), Loops())
    assert 0 in [each.rest for each in run.alternatives]


def test_a_wait_that_had_not_ended_with_its_launch_is_no_call_that_failed():
    """Of other calls nothing more is recorded if they raise an error."""
    wait, put = (list(OPS).index(name) for name in ("wait_until", "put"))
    records = np.zeros(5, RECORD)
    records["kind"] = OP, EFFECT, OP, EFFECT, END
    records["launch"], records["thread"] = 1, (0, 0, 1, 1, 0)
    records["words"][:, 0] = wait, 0, put, 0, 0
    assert refused(records).tolist() == [True] * 4 + [False]
    assert refused(records, [wait]).tolist() == [False, False, True, True, False]
