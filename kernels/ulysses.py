"""Heads for tokens, and back: attention in which a PE computes some heads, of the tokens of all.

    to_heads     x (T, H, D)  ->  (n T, H / n, D)    my tokens, all heads -> all, my heads
    to_tokens    and back

`x` is what a product with packed weights gives: heads of queries, of keys, of values, one behind
the other; its parts arrive as arrays of their own. On the way there the rows of queries and keys
are rotated by their positions (*rotary embedding*), while they are in the cache; on the way back,
which is that of gradients, they are rotated the other way round. Each direction is the transpose of
the other, so each is the gradient of the other.

A message to a PE has the rows, of D numbers, of its heads: those of queries, token after token,
then those of keys, of values. Who sends in order of heads gathers rows, and who receives in order
of tokens does: one pass over memory at each end (`copy_rows_block`), by tables made with the plan.
Boxes, signals and epochs are those of `plan`. A block of the grid has rows of its own of each
message; what it takes in `to_tokens` is from all blocks' rows, for which it waits. What is sent may
be changed when the send returns, and that it has come its receiver is told: a call ends without a
`quiet`.

What a PE sends, for T tokens of H heads, all parts together, of D numbers of S bytes, B blocks:

    bytes       (n - 1) T H / n D S, in each direction
    messages    (n - 1) B there, (n - 1) B for each part on the way back

After Jacobs et al., "DeepSpeed Ulysses: System Optimizations for Enabling Training of Extreme Long
Sequence Transformer Models", arXiv:2309.14509, 2023; with ring attention across the columns of a
grid of PEs (`ContextParallel`) after Fang and Zhao, "USP: A Unified Sequence Parallelism Approach
for Long Context Generative AI", arXiv:2405.07719, 2024.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

import numpy as np
from gpushmem.kernels.parts import (
    begin,
    end,
    fours_of,
    member,
    part_of,
    send,
    tell,
    tell_others,
    wait_for,
    wait_for_all,
)
from gpushmem.kernels.plan import SLOTS, Plan
from gpushmem.kernels.ring_attention import DTYPES, RingAttention
from numba import cuda

import gpushmem as shmem

__all__ = ["ContextParallel", "Ulysses", "reference", "rotated"]


@shmem.jit(device=True)
def pair(x, y, c, s):
    x, y = np.float32(x), np.float32(y)
    return x * c - y * s, y * c + x * s


@shmem.jit(device=True)
def turn(row, cos, sin, sign):
    """Rotate the pairs (row[i], row[i + D / 2]) by the angles that `cos`, `sin` (D / 2,) are of."""
    half = cos.size
    low, high = row[:half], row[half:]
    for i in range(half):
        low[i], high[i] = pair(low[i], high[i], cos[i], sign * sin[i])


@shmem.jit(device=True)
def turn_four(row, cos, sin, sign, i):
    """As `turn`, of pairs from `i` on, which are aligned."""
    j = cos.size + i
    x, y = shmem.load_vector(row, i, 4), shmem.load_vector(row, j, 4)
    c, s = shmem.load_vector(cos, i, 4), shmem.load_vector(sin, i, 4)
    x0, y0 = pair(x[0], y[0], c[0], sign * s[0])
    x1, y1 = pair(x[1], y[1], c[1], sign * s[1])
    x2, y2 = pair(x[2], y[2], c[2], sign * s[2])
    x3, y3 = pair(x[3], y[3], c[3], sign * s[3])
    shmem.store_vector(row, i, (x0, x1, x2, x3))
    shmem.store_vector(row, j, (y0, y1, y2, y3))


@shmem.jit(device=True)
def turn_rows(rows, numbers, first, heads, turned, cos, sin, sign, by_four):
    """Rotate those of `rows` whose head is one of the first `turned`; a token has `heads`.

    Row r is that of number `numbers[r]`, or `first` + r, of all tokens' rows; `cos`, `sin` (tokens,
    D / 2). `by_four`: a thread has four pairs, if they are aligned, and not a row.
    """
    t, threads, count, half = cuda.threadIdx.x, cuda.blockDim.x, rows.shape[0], cos.shape[1]
    fits = min(fours_of(rows.reshape(rows.size)), fours_of(cos[0]), fours_of(sin[0])) > 0
    fours = half // 4 if by_four and fits and half % 4 == 0 else 0
    for u in range(t, count * fours, threads):
        r = u // fours
        number = numbers[r] if numbers.size > 0 else first + r
        token = number // heads
        if number - token * heads < turned:
            turn_four(rows[r], cos[token], sin[token], sign, 4 * (u - r * fours))
    for r in range(t, 0 if fours > 0 else count, threads):
        number = numbers[r] if numbers.size > 0 else first + r
        token = number // heads
        if number - token * heads < turned:
            turn(rows[r], cos[token], sin[token], sign)


@shmem.jit(device=True)
def overlap(first, last, start, size):
    """First and last (exclusive) row of a part, `size` from `start` on, in first to last."""
    lower = min(max(first - start, 0), size)
    return lower, max(lower, min(last - start, size))


@shmem.jit(collective=True)
def heads_of_all(
    x, a, b, c, heads, cos, sin, turned, by_four, index, packed, inbox, arrived, near, team, epochs
):
    """`x` (T H D,), `a`, `b`, `c` (n rows D,), `index` (n, rows): of x, for each PE's message.

    `packed` (n, rows, D), `inbox` (SLOTS, n, rows, D), `arrived` (SLOTS, n, blocks). The first
    `turned` of the heads of a token are rotated; `by_four`: see `turn_rows`.
    """
    me, n, epoch = shmem.team_my_pe(team), shmem.team_n_pes(team), begin(epochs)
    block, blocks = cuda.blockIdx.x, cuda.gridDim.x
    boxes, signals = inbox[epoch % SLOTS], arrived[epoch % SLOTS]
    (first, last), size = part_of(index.shape[1], blocks, block), packed.shape[2]
    by_rows = x.reshape((x.size // size, size))
    for k in range(1, n + 1):
        to = (me + k) % n
        mine, rows = packed[to, first:last], index[to, first:last]
        shmem.copy_rows_block(mine, by_rows, rows)
        if turned > 0:
            turn_rows(mine, rows, first, heads, turned, cos, sin, np.float32(1), by_four)
        cuda.syncthreads()
        if k < n:
            pe, signal = member(team, to), signals[me, block:]
            send(boxes[me, first:last], mine, signal, epoch, pe, near)
    tell_others(signals[me, block:], epoch, team, near)
    for k in range(n):
        source = (me + n - k) % n
        if k > 0:
            wait_for(signals[source, block:], epoch)
        box, start = packed[me] if k == 0 else boxes[source], 0
        for part in range(3):
            to = a if part == 0 else (b if part == 1 else c)
            share = to.size // n // size
            lower, upper = overlap(first, last, start, share)
            place = to[(source * share + lower) * size : (source * share + upper) * size]
            shmem.copy_block(place, box[start + lower : start + upper].reshape(place.size))
            start += share
    end(epochs)


@shmem.jit(collective=True)
def tokens_of_mine(
    x, a, b, c, heads, cos, sin, turned, by_four, where, inbox, arrived, team, epochs
):
    """As `heads_of_all`, back; `where` (T H,): the row of x in the messages of all PEs."""
    me, n, epoch = shmem.team_my_pe(team), shmem.team_n_pes(team), begin(epochs)
    block, blocks = cuda.blockIdx.x, cuda.gridDim.x
    boxes, signals = inbox[epoch % SLOTS], arrived[epoch % SLOTS]
    rows, size = boxes.shape[1], boxes.shape[2]
    first, last = part_of(rows, blocks, block)
    for k in range(1, n + 1):
        to, start = (me + k) % n, 0
        pe = member(team, to)
        for part in range(3):
            given = a if part == 0 else (b if part == 1 else c)
            share = given.size // n // size
            lower, upper = overlap(first, last, start, share)
            mine = given[(to * share + lower) * size : (to * share + upper) * size]
            if lower < upper:
                box = boxes[me, start + lower : start + upper].reshape(mine.size)
                shmem.put_block(box, mine, pe)
            start += share
        tell(signals[me, block:], epoch, pe)
    wait_for_all(signals.reshape(signals.size), epoch)
    first, last = part_of(where.size, blocks, block)
    mine = x.reshape((where.size, size))[first:last]
    shmem.copy_rows_block(mine, boxes.reshape((n * rows, size)), where[first:last])
    if turned > 0:
        turn_rows(mine, where[:0], first, heads, turned, cos, sin, np.float32(-1), by_four)
    end(epochs)


class Ulysses(Plan):
    """Exchange heads for tokens among the PEs of a team, and back.

        plan.to_heads(qkv, q, k, v, cos=cos, sin=sin)
        plan.to_tokens(dq, dk, dv, out=dqkv, cos=cos, sin=sin)

    `heads` are the numbers of heads of each part, one to three: (H, G, G) for packed queries, keys
    and values, (H,) for what attention returns; n divides each. `qkv` (tokens, sum of heads,
    head_dim) are this PE's tokens; `q`, `k`, `v` (n tokens, heads / n, head_dim) of all PEs, in the
    order of the team. All are device arrays of `dtype`: float16, bfloat16 or float32, contiguous.
    Workspace: 3 qkv.
    """

    moves = True

    def __init__(
        self, *, tokens: int, heads: tuple[int, ...], head_dim: int, dtype: Any,
        team: Any = shmem.TEAM_WORLD, blocks: int | None = None, threads: int | None = None,
    ) -> None:  # fmt: skip
        n, size = max(team.n_pes, 1), np.dtype(dtype).itemsize
        rows = tokens * sum(heads) // n
        parts = -(-rows * head_dim * size // shmem.tuning().block_bytes)
        super().__init__(team, blocks=blocks, threads=threads, parts=parts)
        self.tokens, self.heads, self.head_dim = tokens, tuple(heads), head_dim
        self.dtype = np.dtype(dtype)
        if self.dtype.name not in DTYPES:
            raise shmem.ArgumentError(
                f"Ulysses: dtype is {self.dtype}; it can be {', '.join(DTYPES)}"
            )
        if not 1 <= len(heads) <= 3 or min(heads) < 1 or any(h % n for h in heads) or tokens < 0:
            raise shmem.ArgumentError(
                f"Ulysses: {tokens} tokens, heads {tuple(heads)} on {n} PEs: there are one to "
                "three parts, and each must have a multiple of the team's PEs"
            )
        index, self.rows = self._index(), rows
        where = np.empty(tokens * sum(heads), "int32")
        where[index.ravel()] = np.arange(index.size)
        self._there, self._back = shmem.to_device(index), shmem.to_device(where)
        self._packed = self.memory(n, rows, head_dim, dtype=dtype)
        self._boxes = self.boxes(n, rows, head_dim, dtype=dtype)
        self._arrived = self.signals(n, self.blocks)
        self._no_angles = shmem.device_array((0, 0), "float32")
        self._nothing = shmem.device_array(0, dtype)
        self._by_four = bool(self.tuning.multiprocessors)

    def _index(self) -> np.ndarray[Any, Any]:
        """For each PE's message, the rows of this PE's tokens: (n, rows)."""
        tokens = np.arange(self.tokens)[:, None] * sum(self.heads)
        starts = np.cumsum((0, *self.heads))
        messages = []
        for pe in range(self.n_pes):
            shares = [h // self.n_pes for h in self.heads]
            mine = [s + pe * h + np.arange(h) for s, h in zip(starts, shares, strict=False)]
            messages.append(np.concatenate([(tokens + part).ravel() for part in mine]))
        return np.array(messages, "int32").reshape(self.n_pes, -1)

    def to_heads(
        self, x: Any, *parts: Any, cos: Any = None, sin: Any = None, stream: Any = 0
    ) -> None:
        """Set `parts` to this PE's heads of all tokens; asynchronous, in `stream`'s order.

        `cos` and `sin` (tokens, head_dim / 2) of float32 are those of the angles of this PE's
        tokens: by them all parts but the last are rotated, the first half of a row with the second.
        Raises `ArgumentError` if a shape or dtype is not the plan's.
        """
        given = self._given(x, parts, cos, sin)
        self.launch(
            heads_of_all, stream, *given, self._there, self._packed, self._boxes, self._arrived,
            self.reachable,
        )  # fmt: skip

    def to_tokens(
        self, *parts: Any, out: Any, cos: Any = None, sin: Any = None, stream: Any = 0
    ) -> None:
        """Set `out` to all heads of this PE's tokens, and rotate back: as `to_heads`.

        If PEs are on several machines, `parts` are sent from, so they must be registered.
        """
        given = self._given(out, parts, cos, sin)
        self.launch(tokens_of_mine, stream, *given, self._back, self._boxes, self._arrived)

    def _given(self, x: Any, parts: tuple[Any, ...], cos: Any, sin: Any) -> tuple[Any, ...]:
        if len(parts) != len(self.heads):
            raise shmem.ArgumentError(
                f"Ulysses: {len(parts)} arrays for parts, the plan has {len(self.heads)}"
            )
        n, size = self.n_pes, self.head_dim
        self.expect("x", x, (self.tokens, sum(self.heads), size), self.dtype)
        flats = [self.flat(x)]
        for number, (part, heads) in enumerate(zip(parts, self.heads, strict=True)):
            self.expect(f"part {number}", part, (n * self.tokens, heads // n, size), self.dtype)
            flats.append(self.flat(part))
        flats += [self._nothing] * (4 - len(flats))
        if cos is None or sin is None:
            return *flats, sum(self.heads), self._no_angles, self._no_angles, 0, self._by_four
        for what, array in (("cos", cos), ("sin", sin)):
            self.expect(what, array, (self.tokens, size // 2), "float32")
        return *flats, sum(self.heads), cos, sin, sum(self.heads[:-1]), self._by_four

    def sends(self) -> tuple[int, int]:
        """Bytes and messages that a PE sends to others in a call of `to_heads`."""
        others = self.n_pes - 1
        return others * self.rows * self.head_dim * self.dtype.itemsize, others * self.blocks


class ContextParallel:
    """Attention on a grid of PEs: heads are exchanged in its rows, blocks travel in its columns.

        plan(qkv, out=out, lse=lse, cos=cos, sin=sin)

    `rows` and `columns` are this PE's teams, as of `team_split_2d`. `qkv` (tokens, heads + 2
    kv_heads, head_dim) and `out` (tokens, heads, head_dim) are of this PE's tokens, those at
    `positions` of the whole batch; the PEs in a row, u of them, divide both kinds of heads. `lse`
    (heads / u, u tokens). All other options are those of `RingAttention`.
    """

    def __init__(
        self, *, tokens: int, heads: int, head_dim: int, dtype: Any, rows: Any, columns: Any,
        kv_heads: int | None = None, **options: Any,
    ) -> None:  # fmt: skip
        shared, wide = heads if kv_heads is None else kv_heads, max(rows.n_pes, 1)
        sizes = {"tokens": tokens, "head_dim": head_dim, "dtype": dtype, "team": rows}
        self.split = Ulysses(heads=(heads, shared, shared), **sizes)
        self.join = Ulysses(heads=(heads,), **sizes)
        self.ring = RingAttention(
            tokens=wide * tokens, heads=heads // wide, kv_heads=shared // wide, head_dim=head_dim,
            dtype=dtype, team=columns, **options,
        )  # fmt: skip
        shapes = [(wide * tokens, of // wide, head_dim) for of in (heads, shared, shared, heads)]
        self._arrays = [self.ring.sendable(shmem.device_array(shape, dtype)) for shape in shapes]
        first = max(rows.my_pe, 0) * tokens
        self.positions = self.ring.positions[first : first + tokens]

    def __call__(
        self, qkv: Any, *, out: Any, lse: Any, cos: Any = None, sin: Any = None,
        cu_seqlens: Any = None, stream: Any = 0,
    ) -> None:  # fmt: skip
        """Set `out` and `lse`; asynchronous, in `stream`'s order: three launches."""
        q, k, v, heads = self._arrays
        self.split.to_heads(qkv, q, k, v, cos=cos, sin=sin, stream=stream)
        self.ring(q, k, v, out=heads, lse=lse, cu_seqlens=cu_seqlens, stream=stream)
        self.join.to_tokens(heads, out=out, stream=stream)

    def sends(self) -> tuple[int, int]:
        """Bytes and messages that this PE sends in a call."""
        each = [plan.sends() for plan in (self.split, self.ring, self.join)]
        return sum(nbytes for nbytes, _ in each), sum(messages for _, messages in each)

    def free(self) -> None:
        """Give the memory back; collective as freeing any plan."""
        for plan in (self.split, self.join, self.ring):
            plan.free()

    def __enter__(self) -> ContextParallel:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:  # fmt: skip
        if kind is None:
            self.free()


def rotated(
    x: np.ndarray[Any, Any], cos: np.ndarray[Any, Any], sin: np.ndarray[Any, Any], sign: int = 1
) -> np.ndarray[Any, Any]:
    """Rows (tokens, heads, D) with the rotary embedding; `cos`, `sin` (tokens, D / 2)."""
    low, high = np.split(x.astype("float64"), 2, axis=-1)
    cos, sin = cos[:, None], sign * sin[:, None]
    return np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1)


def reference(
    every: list[np.ndarray[Any, Any]], heads: tuple[int, ...], pe: int, cos: Any = None,
    sin: Any = None,
) -> list[np.ndarray[Any, Any]]:  # fmt: skip
    """What `to_heads` gives PE `pe`, from all PEs' tokens; `cos`, `sin` are lists, of each PE's."""
    whole, parts = np.concatenate(every), []
    for number, (start, of) in enumerate(zip(np.cumsum((0, *heads)), heads, strict=False)):
        share = of // len(every)
        part = whole[:, start + pe * share : start + (pe + 1) * share]
        turned = cos is not None and number < len(heads) - 1
        parts.append(rotated(part, np.concatenate(cos), np.concatenate(sin)) if turned else part)
    return parts
