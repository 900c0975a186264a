"""Embedding bags as GPUs like them: lanes of a warp have a row, by 16 bytes, others the next ones.

    warp     numbers of a bag, one in each lane -> those of own rows to shared memory, one behind
             the other -> rows, eight in each group of lanes at once -> sums of the groups -> where
             the PE that asked wants them

A row of w words has the least power of two of lanes that is w, or all 32, so 32 / lanes rows are
loaded by one instruction. Warps have bags of all PEs, whose numbers have come, in any order.

**Order.** As in `embedding`: numbers, a fence, signals of blocks; sums, a fence, signals.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from gpushmem.kernels.decode_lanes import chain, each, pairs
from gpushmem.kernels.parts import begin, end, member, send, share_of, tell_others, wait_for_others
from gpushmem.kernels.plan import SLOTS
from numba import cuda

import gpushmem as shmem

__all__ = ["WEIGHTS", "WORD", "by_lanes"]

WARP, FULL, WARPS = 32, 0xFFFFFFFF, 32
WORD = 16  # bytes
TOGETHER = 8  # words that a lane has under way
WEIGHTS = {"float32": "float32", "float16": "float32", "bfloat16": "float32", "float64": "float64"}


@shmem.jit(device=True)
def is_there(k, given, at):
    """Whether something is the k-th that a group of lanes loads, of `found`."""
    first, step, found = given
    return first + k * step < found


@cache
def by_lanes(dtype: str) -> Any:  # noqa: PLR0915
    """The kernel for parts of tables whose rows are whole words of 16 bytes; arguments: `embed`."""
    count, real = WORD // np.dtype(dtype).itemsize, np.dtype(WEIGHTS[dtype]).type
    nothing, numbers_of = (real(0),) * count, tuple(range(TOGETHER))

    @shmem.jit(device=True)
    def plus(a, b, there):
        return a + real(b) if there else a

    @shmem.jit(device=True)
    def plus_partner(a, b, far):
        return a + cuda.shfl_xor_sync(FULL, b, far)

    @shmem.jit(device=True)
    def product(a, b, factor):
        return a * factor

    added, joined, scaled = pairs(count, plus), pairs(count, plus_partner), pairs(count, product)

    @shmem.jit(device=True)
    def row_of(k, given, at):
        table, rows, place, first, step, found = given
        row = np.int64(rows[min(first + k * step, found - 1)])
        return shmem.load_vector(table, row * table.shape[1] + place, count)

    @shmem.jit(device=True)
    def part_of_sum(k, given, at):
        came, place, far, first, step, found = given
        return shmem.load_vector(came, place + min(first + k * step, found - 1) * far, count)

    @shmem.jit(device=True)
    def added_if(word, there, total):
        return added(total, word, there)

    rows_of, parts_of = each(TOGETHER, row_of), each(TOGETHER, part_of_sum)
    whether, all_added = each(TOGETHER, is_there), chain(TOGETHER, added_if)

    @shmem.jit(device=True)
    def sum_up(to, table, given, first, mean, lanes, rows):
        """Set `to` (C,) to the sum of the rows of a bag, `given` (L,), that are this PE's.

        These are `table`, from number `first` on. `rows` (32,) is the warp's shared memory; so many
        `lanes` have a row.
        """
        lane = cuda.threadIdx.x % WARP
        part, which, step = lane % lanes, lane // lanes, WARP // lanes
        for start in range(0, to.size, lanes * count):
            total, many = nothing, 0
            place = min(start + part * count, to.size - count)
            for k in range(0, given.size, WARP):
                number = np.int64(given[k + lane]) if k + lane < given.size else np.int64(-1)
                row = number - first
                mine = cuda.ballot_sync(FULL, 0 <= row < table.shape[0])
                many += cuda.popc(cuda.ballot_sync(FULL, number >= 0))
                if mine >> lane & 1:
                    rows[cuda.popc(mine & (1 << lane) - 1)] = row
                cuda.syncwarp()
                found = cuda.popc(mine)
                for j in range(which, found, TOGETHER * step):
                    words = rows_of(numbers_of, (table, rows, place, j, step, found), 0)
                    total = all_added(words, whether(numbers_of, (j, step, found), 0), total)
                cuda.syncwarp()
            far = lanes
            while far < WARP:
                total = joined(total, total, far)
                far *= 2
            if which == 0 and start + part * count < to.size:
                weight = real(1) / real(max(many, 1)) if mean else real(1)
                shmem.store_vector(to, place, scaled(total, total, weight))

    @shmem.jit(device=True)
    def add_parts(out, came, first, last, parts):
        """Add what PEs gave of bags `first` to `last`, `came` (n, bags, C), in the PEs' order."""
        words, wide = out.shape[1] // count, came.shape[2]
        n, far = came.shape[0] // parts, came.shape[1] * wide
        for k in range(cuda.threadIdx.x, (last - first) * words, cuda.blockDim.x):
            bag, place, total = first + k // words, k % words * count, nothing
            at = place // wide * far + bag * wide + place % wide
            for j in range(0, n, TOGETHER):
                given = parts_of(numbers_of, (came, at, parts * far, j, 1, n), 0)
                total = all_added(given, whether(numbers_of, (j, 1, n), 0), total)
            shmem.store_vector(out, bag * out.shape[1] + place, total)

    @shmem.jit(collective=True)
    def embed_by_lanes(
        table, numbers, out, first_row, parts, mean, indices, all_weights, sums, asked, asking,
        answers, answering, near, team, epochs,
    ):  # fmt: skip
        me, n, epoch = shmem.team_my_pe(team), shmem.team_n_pes(team), begin(epochs)
        b, slot, t = cuda.blockIdx.x, epoch % SLOTS, cuda.threadIdx.x
        first, last = share_of(numbers.shape[0], cuda.gridDim.x, b)
        rows, lanes = cuda.shared.array((WARPS, WARP), np.int32), 1
        while lanes < min(WARP, table.shape[1] // count):
            lanes *= 2
        mine, signal, back = numbers[first:last], asking[slot, b, me:], answering[slot, b, me:]
        box, given = asked[slot, me, first:last], mine.reshape(mine.size)
        for k in range(n):
            pe = member(team, (me + k) % n)
            send(box.reshape(box.size), given, signal, epoch, pe, True)
        tell_others(signal, epoch, team, True)
        wait_for_others(asking[slot, b], epoch, team)
        for k in range(t // WARP, n * (last - first), cuda.blockDim.x // WARP):
            source, i = (me + n - k // (last - first)) % n, first + k % (last - first)
            to = shmem.peer_array(answers[slot, me, i], member(team, source))
            theirs = asked[slot, source, i]
            sum_up(to, table, theirs, first_row, mean, lanes, rows[t // WARP])
        tell_others(back, epoch, team, True)
        wait_for_others(answering[slot, b], epoch, team)
        add_parts(out, answers[slot], first, last, parts)
        end(epochs)

    return embed_by_lanes
