"""Schedules of pipelines: orders that work, with the bubbles and activations that are published."""

import numpy as np
import pytest
from gpushmem.kernels import Schedule, schedule
from gpushmem.kernels.pipeline_schedules import BACKWARD, BACKWARDS, ENDS, FORWARD, INPUT, WEIGHTS

import gpushmem as shmem

PLAIN = "gpipe", "1f1b", "zero_bubble"
CASES = [
    *((kind, p, m, 1) for kind in PLAIN for p, m in ((1, 1), (2, 4), (3, 7), (4, 8), (8, 16))),
    *(("interleaved", p, m * p, v) for p, m, v in ((1, 3, 2), (2, 3, 1), (3, 2, 2), (4, 2, 3))),
]


def bubble(kind, p, m, v):
    """As published, of many microbatches."""
    return (p - 1) / ({"zero_bubble": 3 * m, "interleaved": v * m}.get(kind, m) + p - 1)


def alive(kind, s, p, m, v):
    most = {"gpipe": m, "1f1b": p - s, "zero_bubble": p}
    return most.get(kind, 2 * (p - s) - 1 + (v - 1) * p)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_bubbles_and_activations_are_as_published(case):
    made = schedule(*case)
    kind, p, m, v = case
    assert (made.stages, made.microbatches, made.chunks) == (p, m, v)
    assert made.bubble() == pytest.approx(bubble(*case))
    assert made.alive() == [min(alive(kind, s, p, m, v), m * v) for s in range(p)]
    assert made.window <= 2
    ends = made.times(window=made.window)[..., 1]
    assert ends.max() == made.times()[..., 1].max()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_whatever_an_action_needs_is_there(case):
    """Another walk through the tables, by times: who needs what, of which stage of the model."""
    made = schedule(*case)
    _, p, m, v = case
    last, when = p * v - 1, {}
    for s in range(p):
        for (action, k, c), (begin, end) in zip(
            made.table[s].tolist(), made.times()[s], strict=True
        ):
            assert (action, k, c * p + s) not in when
            when[action, k, c * p + s] = begin, end
    backward = BACKWARD if any(action == BACKWARD for action, *_ in when) else INPUT
    assert len(when) == m * p * v * (2 if backward == BACKWARD else 3)
    for (action, k, place), (begin, _) in when.items():
        if action == FORWARD and place > 0:
            assert when[FORWARD, k, place - 1][1] <= begin
        elif action == backward and place < last:
            assert when[backward, k, place + 1][1] <= begin
        elif action == backward:
            assert when[FORWARD, k, place][1] <= begin
        elif action == WEIGHTS:
            assert when[INPUT, k, place][1] <= begin


@pytest.mark.parametrize("case", CASES, ids=str)
def test_what_is_kept_has_a_place_of_its_own(case):
    made = schedule(*case)
    for since in ((FORWARD,), BACKWARDS):
        depth = made.depth(since)
        for row in made.table.tolist():
            used = {}
            for action, k, c in row:
                if action in since:
                    assert used.setdefault((c, k % depth), k) == k
                if action in ENDS:
                    del used[c, k % depth]
            assert not used


def test_a_drawing():
    """Letters, microbatches, and marks of chunks; a backward is twice as long."""
    assert schedule("1f1b", 2, 3).draw().splitlines() == [
        "stage 0  F0 F1 .  .  B0--- F2 B1--- .  B2---",
        "stage 1  .  F0 B0--- F1 B1--- F2 B2---",
    ]
    assert schedule("interleaved", 2, 2, 2).draw((1, 1, 1, 1)).splitlines() == [
        "stage 0  F0  F1  F0' F1' .   B0' .   B1' B0  B1",
        "stage 1  .   F0  F1  F0' B0' F1' B1' B0  B1",
    ]


def test_a_table_of_ones_own():
    rows = [
        [(FORWARD, 0, 0), (FORWARD, 1, 0), (FORWARD, 2, 0), *((BACKWARD, k, 0) for k in range(3))],
        [*((action, k, 0) for k in range(3) for action in (FORWARD, BACKWARD))],
    ]
    own = Schedule(rows)
    assert own.kind == "own"
    assert own.alive() == [3, 1]
    assert np.array_equal(own.items[0, :, 1], [1, 2, 3, 0, 0, 0])


def test_what_is_no_schedule():
    first, second = ([(FORWARD, 0, 0), (BACKWARD, 0, 0)] for _ in range(2))
    cross = [[(FORWARD, k, 0) for k in (0, 1)] + [(BACKWARD, k, 0) for k in (0, 1)]] * 2
    swapped = [cross[0], [*cross[0][1::-1], *cross[0][2:]]]
    # A PE wants the second chunk before the other one has had the first.
    early = [(FORWARD, 0, 1), (FORWARD, 0, 0), (BACKWARD, 0, 1), (BACKWARD, 0, 0)]
    for table, said in (
        ([1, 2], r"table has shape \(2,\)"),
        ([first[::-1], second], r"stage 0 does \[1, 0\] of microbatch 0"),
        ([first, [first[0]] * 2], r"stage 1 does \[0, 0\]"),
        ([[*first, (INPUT, 0, 0)], [*second, (WEIGHTS, 0, 0)]], r"it must be forward, then"),
        (swapped, "stage 1 takes what stage 0 sends in another order"),
        ([early, early], "wait for each other for ever"),
    ):
        with pytest.raises(shmem.ArgumentError, match=said):
            Schedule(table)
    for given, said in (
        (("2f2b", 2, 2), "kind is '2f2b'; it can be gpipe"),
        (("1f1b", 2, 4, 2), "2 chunks, 4 microbatches on 2 stages"),
        (("interleaved", 2, 3, 2), "with a multiple of the stages"),
        (("gpipe", 0, 3), "stages must be 1 to"),
    ):
        with pytest.raises(shmem.ArgumentError, match=said):
            schedule(*given)


def test_a_window_that_cannot_be():
    """Two chunks on one PE: what it sends to itself it takes after the next item."""
    table = [[
        *((FORWARD, k, 0) for k in range(2)), *((FORWARD, k, 1) for k in range(2)),
        *((BACKWARD, k, 1) for k in range(2)), *((BACKWARD, k, 0) for k in range(2)),
    ]]  # fmt: skip
    own = Schedule(table)
    assert own.window == 2
    with pytest.raises(shmem.ArgumentError, match=r"with a window of 1 stages .* 2 is enough"):
        own.times(window=1)
