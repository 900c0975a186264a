"""All-reduce with 8-bit floats on the wire: one shot and two shot of `all_reduce`, see `wire`.

What is sent is rows of codes and scales, what is added is float32, and rounded to the array's dtype
once. All PEs end with the same bits: in one shot each adds up the same rows, its own too; in two
shot the owner of a part quantises its sum, sends that, and takes it itself.

What a PE sends, for n PEs and an array of k numbers; a row of k is w(k) = k + k / 32 bytes:

    one shot      (n - 1) w(k)            in as many messages as without `wire`
    two shot      2 (n - 1) w(k / n)

a half of the bytes of 16-bit floats, a quarter of those of float32.

How far a sum is from the exact one, in the numbers x_q of the PEs q, and the largest M_q of the 128
in each one's group; s is the sum that the owner has, and M the largest of its group:

    one shot      the sum over q of e(x_q, M_q),   e(x, M) = max(|x| / 16, M / 458752)
    two shot      that, and e(s, M)

and what float32, and the array's dtype, round. Sums beyond those that the dtype has are infinite,
and in two shot NaN.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gpushmem.kernels.parts import (
    member,
    part_of,
    send,
    tell_others,
    wait_for,
    wait_for_others,
)
from gpushmem.kernels.pieces import InPieces, part_size
from gpushmem.kernels.wire import WIRES, row_bytes
from numba import cuda

import gpushmem as shmem
from gpushmem.checks import dtype_name

__all__ = ["WIRED", "check_wire", "reference", "traffic", "workspace"]

WIRE = "float8_e4m3"
quantise, sum_rows, through = WIRES[WIRE]
DTYPES = "float16", "bfloat16", "float32"


@shmem.jit(device=True)
def one_shot(mine, boxes, signals, sums, summed, near, team, epoch):
    """Sum a piece in place; `boxes` (n, row) of uint8, mine for what I send; `signals` (n,)."""
    me, n = shmem.team_my_pe(team), shmem.team_n_pes(team)
    quantise(boxes[me], mine)
    cuda.syncthreads()
    row = boxes[me][: row_bytes(mine.size)]
    for k in range(1, n):
        send(boxes[me], row, signals[me:], epoch, member(team, (me + k) % n), near)
    tell_others(signals[me:], epoch, team, near)
    wait_for_others(signals, epoch, team)
    sum_rows(mine, boxes)


@shmem.jit(device=True)
def sum_my_part(mine, boxes, signals, near, team, epoch):
    """The first half of two shot: `boxes` (2 n, row), the second n for what I send to others."""
    me, n = shmem.team_my_pe(team), shmem.team_n_pes(team)
    for k in range(1, n + 1):
        to = (me + k) % n
        first, last = part_of(mine.size, n, to)
        quantise(boxes[me if to == me else n + to], mine[first:last])
    cuda.syncthreads()
    for k in range(1, n):
        to = (me + k) % n
        first, last = part_of(mine.size, n, to)
        row = boxes[n + to][: row_bytes(last - first)]
        send(boxes[me], row, signals[me:], epoch, member(team, to), near)
    tell_others(signals[me:], epoch, team, near)
    wait_for_others(signals, epoch, team)
    first, last = part_of(mine.size, n, me)
    sum_rows(mine[first:last], boxes[:n])


@shmem.jit(device=True)
def two_shot(mine, boxes, signals, sums, summed, near, team, epoch):
    """As `one_shot`; `boxes` (2 n, row), `sums` (n, row), `summed` (n,) the signals of these."""
    me, n = shmem.team_my_pe(team), shmem.team_n_pes(team)
    sum_my_part(mine, boxes, signals, near, team, epoch)
    cuda.syncthreads()
    first, last = part_of(mine.size, n, me)
    quantise(sums[me], mine[first:last])
    cuda.syncthreads()
    row = sums[me][: row_bytes(last - first)]
    for k in range(1, n):
        send(sums[me], row, summed[me:], epoch, member(team, (me + k) % n), near)
    tell_others(summed[me:], epoch, team, near)
    for k in range(n):
        owner = (me + k) % n
        if owner != me:
            wait_for(summed[owner:], epoch)
        first, last = part_of(mine.size, n, owner)
        sum_rows(mine[first:last], sums[owner : owner + 1])


WIRED = {"one_shot": one_shot, "two_shot": two_shot}


def check_wire(plan: InPieces, algorithm: str, wire: str) -> None:
    """Raise `ArgumentError` unless a plan can have this wire."""
    for what, given, possible in (
        ("wire", wire, (WIRE,)),
        ("algorithm", algorithm, tuple(WIRED)),
        ("dtype", dtype_name(plan.dtype), DTYPES),
    ):
        if given not in possible:
            raise shmem.ArgumentError(
                f"{type(plan).__name__}: {what} is {given!r}; with a wire it can be "
                f"{', '.join(possible)}"
            )


def workspace(plan: InPieces, algorithm: str) -> tuple[Any, ...]:
    """Boxes and signals for the plan's pieces: of parts, and of their sums; whether all are near.

    What is sent is made in boxes, too: they are memory that can be sent from.
    """
    n, blocks, two = plan.n_pes, plan.blocks, algorithm == "two_shot"
    row = row_bytes(part_size(plan.piece, n) if two else plan.piece)
    return (
        plan.boxes(blocks, 2 * n if two else n, row, dtype="uint8"), plan.signals(blocks, n),
        plan.boxes(blocks, n if two else 0, row, dtype="uint8"), plan.signals(blocks, n),
        plan.reachable,
    )  # fmt: skip


def traffic(plan: InPieces, algorithm: str) -> tuple[int, int]:
    """Bytes and messages that a PE sends in a call; the bytes at most: parts may be uneven."""
    n, rounds = plan.n_pes, 2 if algorithm == "two_shot" else 1
    parts = n if algorithm == "two_shot" else 1
    nbytes = sum(row_bytes(part_size(last - first, parts)) for first, last in plan.cuts())
    return rounds * (n - 1) * nbytes, rounds * (n - 1) * plan.pieces


def reference(arrays: list[np.ndarray[Any, Any]], plan: Any) -> np.ndarray[Any, Any]:
    """What every PE ends with, from all PEs' arrays, of one axis."""
    sums, two = np.empty_like(arrays[0]), plan.algorithm == "two_shot"
    for first, last in plan.cuts():
        for k in range(len(arrays) if two else 1):
            lower, upper = part_of(last - first, len(arrays) if two else 1, k)
            part = slice(first + lower, first + upper)
            total = np.zeros(upper - lower, np.float32)
            for array in arrays:
                total += through(array[part])
            sums[part] = total
            if two:
                sums[part] = through(sums[part])
    return sums
