"""Gradients of ring attention: those of keys and values travel with their block, then home.

Blocks of keys and values travel as in `ring_attention`, in the same steps. What a PE adds to the
gradients of a block it sums up by itself; then it adds what has come from the PE before, which sent
it a step ago, and sends the sum on. 3 PEs, block A:

    step    PE 0                PE 1                            PE 2
    0       own part -> PE 1
    1                           its part, + what came -> PE 2
    2                                                           its part, + what came -> PE 0, home

For a tile of scores, with q times scale, weights P = exp(q k.T - lse), dout the gradient of out:

    dv += P.T dout    dS = P (dout v.T - sum of dout out over D)    dq += scale dS k    dk += dS.T q

Sums, and what travels, are float32. Boxes for gradients are counted as those of blocks are, and
need no signals back: message c goes out after block c, for which the receiver must have taken block
c - 2; and before it takes a block, it adds up the gradients that have come with it. The box at
*home* is there once: who writes to it has got the block that its owner sent in the same call, so
the owner has finished the call before, and read what came then.

A block of the grid has heads of keys of its own, with all heads of queries that use them: so nobody
else adds to the same numbers. On GPUs that is at most kv_heads blocks that multiply. All of that is
`method="kernel"`; for "library" see `attention_library`.

What a PE sends: blocks as in `ring_attention`, and for each step of a block G messages with
8 T G D bytes in all, and those home; flops are 10 T (n T) H D.

After Liu et al. (see `ring_attention`), and Dao et al., "FlashAttention", NeurIPS 2022.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gpushmem.kernels.attention_library import LibraryBackward
from gpushmem.kernels.attention_parts import (
    ONE,
    chunk_start,
    clear,
    exponentials,
    keys_of,
    multiply,
    row_tile,
    row_tiles,
    widen,
)
from gpushmem.kernels.parts import begin, end, member, wait_for, wait_for_all
from gpushmem.kernels.plan import SLOTS
from gpushmem.kernels.ring_attention import Ring, pass_on, seen, take
from numba import cuda

import gpushmem as shmem

__all__ = ["RingAttentionBackward", "reference"]


@shmem.jit(device=True)
def clear_rows(rows):
    """Set all of `rows` (rows, D) to 0."""
    for t in range(cuda.threadIdx.x, rows.shape[0], cuda.blockDim.x):
        clear(rows[t])


@shmem.jit(device=True)
def narrow(to, rows, factor):
    """Set `to` to `rows` times a float32, both (rows, D), rounded."""
    for t in range(cuda.threadIdx.x, rows.shape[0], cuda.blockDim.x):
        row, other = to[t], rows[t]
        for j in range(row.size):
            row[j] = other[j] * factor


@shmem.jit(device=True)
def dot_rows(dots, a, b):
    """Set `dots` (rows,) to the sums over D of a * b, both (rows, D)."""
    for t in range(cuda.threadIdx.x, dots.size, cuda.blockDim.x):
        total, left, right = np.float32(0), a[t], b[t]
        for j in range(left.size):
            total += np.float32(left[j]) * np.float32(right[j])
        dots[t] = total


@shmem.jit(device=True)
def to_scores(weights, products, dots):
    """Replace weights P by the gradients of scores, P (products - dots)."""
    for t in range(cuda.threadIdx.x, weights.shape[0], cuda.blockDim.x):
        row, other, less = weights[t], products[t], dots[t]
        for j in range(row.size):
            row[j] *= other[j] - less


@shmem.jit(device=True)
def add_tile(
    q, dout, k, v, dq, dk, dv, lse, dots, tiles, wide, position, key, cu_seqlens, before, after
):  # fmt: skip
    """Add what a tile of one head of queries, and one of keys, gives: all arrays (rows, D).

    `q` and `dout` are float32, as `wide` has them; `tiles` (2, rows columns). Synchronises.
    """
    height, width = q.shape[0], k.shape[0]
    weights = tiles[0, : height * width].reshape((height, width))
    products = tiles[1, : height * width].reshape((height, width))
    keys, values = wide[2, :width], wide[3, :width]
    widen(keys, k, ONE)
    widen(values, v, ONE)
    cuda.syncthreads()
    multiply(weights, q, keys.T, False)
    multiply(products, dout, values.T, False)
    exponentials(weights, position, key, cu_seqlens, before, after, lse)
    cuda.syncthreads()
    multiply(dv, weights.T, dout, True)
    to_scores(weights, products, dots)
    cuda.syncthreads()
    multiply(dq, weights, keys, True)
    multiply(dk, weights.T, q, True)


@shmem.jit(device=True)
def add_block(
    q, dout, k, v, lse, dots, dq, grads, tiles, wide, cu_seqlens, before, after, scale, chunks,
    source, team,
):  # fmt: skip
    """Set this block's heads of `grads` (G, 2, T, D) to what `q` adds for PE `source`; add to `dq`.

    `dq` (H, T, D), `dots` (H, T), `tiles` (2, rows, columns), `wide` (4, rows or columns, D).
    """
    me, n = shmem.team_my_pe(team), shmem.team_n_pes(team)
    (rows, columns), (tokens, heads), shared = tiles.shape[1:], q.shape[:2], k.shape[1]
    each, group = tokens // chunks, heads // shared
    flat = tiles.reshape((2, rows * columns))
    for of in range(cuda.blockIdx.x, shared, cuda.gridDim.x):
        clear_rows(grads[of, 0])
        clear_rows(grads[of, 1])
        for i in range(group * row_tiles(tokens, chunks, rows)):
            head = of * group + i % group
            first, last, position = row_tile(i // group, tokens, chunks, rows, me, n)
            height = last - first
            low, _ = keys_of(position, cu_seqlens, before, after)
            _, high = keys_of(position + height - 1, cu_seqlens, before, after)
            widen(wide[0], q[first:last, head], scale)
            widen(wide[1], dout[first:last, head], ONE)
            for c in range(chunks):
                start = chunk_start(source, c, n, each)
                end_ = min(high, start + each)
                for key in range(max(low, start), end_, columns):
                    at, width = c * each + key - start, min(columns, end_ - key)
                    add_tile(
                        wide[0, :height], wide[1, :height], k[at : at + width, of],
                        v[at : at + width, of], dq[head, first:last],
                        grads[of, 0, at : at + width], grads[of, 1, at : at + width],
                        lse[head, first:last], dots[head, first:last], flat, wide, position, key,
                        cu_seqlens, before, after,
                    )  # fmt: skip


@shmem.jit(device=True)
def take_gradients(grads, boxes, arrived, c):
    """Add to `grads` (G, 2 T D) what has come with message `c` from the PE before."""
    slot = c % SLOTS
    for of in range(cuda.blockIdx.x, grads.shape[0], cuda.gridDim.x):
        wait_for(arrived[slot, of:], c)
        shmem.reduce_local_block(grads[of], boxes[slot, of], "sum")


@shmem.jit(device=True)
def send_gradients(grads, boxes, arrived, c, team):
    """Send this block's heads to the next PE, as message `c`: `pass_on` has waited for the box."""
    right, slot = member(team, (shmem.team_my_pe(team) + 1) % shmem.team_n_pes(team)), c % SLOTS
    for of in range(cuda.blockIdx.x, grads.shape[0], cuda.gridDim.x):
        box, mine, signal = boxes[slot, of], grads[of], arrived[slot, of:]
        shmem.put_signal_block(box, mine, signal, c, shmem.SIGNAL_SET, right)


@shmem.jit(device=True)
def send_home(grads, home, homed, epoch, pe):
    """Send this block's heads to the PE that they are of."""
    for of in range(cuda.blockIdx.x, grads.shape[0], cuda.gridDim.x):
        mine, signal = grads[of], homed[of:]
        shmem.put_signal_block(home[of], mine, signal, epoch, shmem.SIGNAL_SET, pe)


@shmem.jit(device=True)
def start_heads(dout, out, sums, dots, shared):
    """Of this block's heads: no gradients of q yet, and the sums over D of dout out."""
    heads = sums.shape[0]
    for head in range(heads):
        if head * shared // heads % cuda.gridDim.x == cuda.blockIdx.x:
            clear_rows(sums[head])
            dot_rows(dots[head], dout[:, head], out[:, head])


@shmem.jit(device=True)
def finish_heads(dq, dk, dv, sums, scale, home, homed, epoch):
    """Round what is here, and what has come home, of this block's heads."""
    heads, shared = sums.shape[0], home.shape[0]
    for head in range(heads):
        if head * shared // heads % cuda.gridDim.x == cuda.blockIdx.x:
            narrow(dq[:, head], sums[head], scale)
    for of in range(cuda.blockIdx.x, shared, cuda.gridDim.x):
        wait_for(homed[of:], epoch)
        narrow(dk[:, of], home[of, 0], ONE)
        narrow(dv[:, of], home[of, 1], ONE)


@shmem.jit(collective=True)
def ring_attention_backward(
    dout, q, k, v, out, lse, dq, dk, dv, sums, dots, tiles, wide, grads, flat, boxes, came, home,
    homed, cu_seqlens, before, after, scale, chunks, reach, coming, going, inbox, arrived,
    taken, team, epochs,
):  # fmt: skip
    """`grads`, `home` (G, 2, T, D), `flat` the same as `grads`; `boxes` (SLOTS, G, 2 T D).

    Signals: `came` (SLOTS, G), `homed` (G,).
    """
    me, n, b = shmem.team_my_pe(team), shmem.team_n_pes(team), cuda.blockIdx.x
    epoch, shape = begin(epochs), k.shape
    received, sent = (epoch - 1) * coming, (epoch - 1) * going
    here_k, here_v = k.reshape(k.size), v.reshape(v.size)
    start_heads(dout, out, sums, dots, shape[1])
    for step in range(n):
        source = (me + n - step) % n
        if reach[source] < step:
            continue
        if step > 0:
            received += 1
            wait_for_all(arrived[received % SLOTS], received)
            here_k, here_v = inbox[received % SLOTS, 0], inbox[received % SLOTS, 1]
        if reach[source] > step:
            sent += 1
            pass_on(here_k, here_v, inbox, arrived, taken, sent, team)
        add_block(
            q, dout, here_k.reshape(shape), here_v.reshape(shape), lse, dots, sums, grads, tiles[b],
            wide[b], cu_seqlens, before, after, scale, chunks, source, team,
        )  # fmt: skip
        cuda.syncthreads()
        if step > 0:
            take_gradients(flat, boxes, came, received)
        if reach[source] > step:
            send_gradients(flat, boxes, came, sent, team)
        else:
            send_home(grads, home, homed, epoch, member(team, source))
        if step > 0:
            take(taken, received, team)
    finish_heads(dq, dk, dv, sums, scale, home, homed, epoch)
    end(epochs)  # what it has sent of its own block has come: so have the gradients, home


class RingAttentionBackward(Ring):
    """The gradients of `RingAttention`: `plan(dout, q, k, v, out, lse, dq=dq, dk=dk, dv=dv)`.

    Arguments, shapes and dtypes as of `RingAttention`, whose `out` and `lse` are given; dq is of
    q's shape, dk and dv are of k's. Sums are float32, also where they travel; with the method
    "library" what one PE adds to a block's gradients travels in dtype. Workspace on the heap: of
    tokens kv_heads head_dim numbers 4 times as many, and 8 times as many of float32, or with
    "library" 8 times as many; and sums of all queries.
    """

    def __init__(
        self, *, tokens: int, heads: int, head_dim: int, dtype: Any, kv_heads: int | None = None,
        causal: bool = False, window: int | None = None, scale: float | None = None,
        zigzag: bool | None = None, team: Any = shmem.TEAM_WORLD,
        tile: tuple[int, int] | None = None, method: str | None = None,
        blocks: int | None = None, threads: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(
            tokens, heads, kv_heads, head_dim, dtype, team, causal, window, scale, zigzag, tile,
            method, blocks, threads,
        )  # fmt: skip
        if self.method == "library":
            self._library = LibraryBackward(self)
            return
        shape = self.kv_heads, 2, tokens, head_dim
        grads, size = self.memory(*shape, dtype="float32"), 2 * tokens * head_dim
        self._workspace = (
            shmem.device_array((heads, tokens, head_dim), "float32"),
            shmem.device_array((heads, tokens), "float32"), *self._tiles(2, 4),
            grads, grads.reshape(self.kv_heads, size),
            self.boxes(self.kv_heads, size, dtype="float32"),
            self.signals(self.kv_heads),
            self.memory(*shape, dtype="float32"), self.memory(self.kv_heads, dtype="uint64"),
        )  # fmt: skip

    def __call__(
        self, dout: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, *, dq: Any, dk: Any, dv: Any,
        cu_seqlens: Any = None, stream: Any = 0,
    ) -> None:  # fmt: skip
        """Set `dq`, `dk` and `dv`; asynchronous, in `stream`'s order.

        Raises `ArgumentError` if a shape or dtype is not the plan's.
        """
        self._expect(dout=dout, q=q, k=k, v=v, out=out, lse=lse, dq=dq, dk=dk, dv=dv)
        arrays = dout, q, k, v, out, lse, dq, dk, dv
        if self.method == "library":
            self._library(arrays, self._ends(cu_seqlens), stream)
            return
        self.launch(
            ring_attention_backward, stream, *arrays, *self._workspace, *self._masks(cu_seqlens)
        )

    def sends(self) -> tuple[int, int]:
        """Bytes and messages that this PE sends in a call, without signals back."""
        if self.method == "library":
            numbers, messages = self._library.sends
            return numbers * self.dtype.itemsize, messages
        size = 2 * self.tokens * self.kv_heads * self.head_dim
        homeward = sum(self.reach[(self.my_pe - s) % self.n_pes] == s for s in range(1, self.n_pes))
        nbytes = self.going * size * self.dtype.itemsize + (self.going + homeward) * size * 4
        return nbytes, self.going * 2 * self.blocks + (self.going + homeward) * self.kv_heads


def reference(
    dout: Any, q: Any, k: Any, v: Any, *, causal: bool = False, window: int | None = None,
    scale: float | None = None, cu_seqlens: Any = None,
) -> tuple[np.ndarray[Any, Any], ...]:  # fmt: skip
    """Of the whole batch, in the order of positions: dq, dk and dv, in float64."""
    dout, q, k, v = (np.asarray(x, "float64").transpose(1, 0, 2) for x in (dout, q, k, v))
    (heads, tokens, size), shared = q.shape, k.shape[0]
    scale = size**-0.5 if scale is None else scale
    wide_k, wide_v = (np.repeat(x, heads // shared, axis=0) for x in (k, v))
    scores = scale * (q @ wide_k.transpose(0, 2, 1))
    scores = np.where(seen(tokens, causal, window, cu_seqlens), scores, -np.inf)
    weights = np.exp(scores - np.maximum(scores.max(-1, keepdims=True, initial=-1e300), -1e300))
    total = weights.sum(-1, keepdims=True)
    weights /= np.where(total > 0, total, 1)
    products = dout @ wide_v.transpose(0, 2, 1)
    of_scores = scale * weights * (products - (products * weights).sum(-1, keepdims=True))
    shape = shared, heads // shared, tokens, size
    dk = (of_scores.transpose(0, 2, 1) @ q).reshape(shape).sum(1)
    dv = (weights.transpose(0, 2, 1) @ dout).reshape(shape).sum(1)
    return tuple(x.transpose(1, 0, 2) for x in (of_scores @ wide_k, dk, dv))
