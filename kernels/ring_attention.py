"""Attention to the tokens of all PEs: blocks of keys and values travel a ring while PEs compute.

    out[t] = sum over the keys s that t sees of softmax(scale q[t] k[s]) v[s]

    3 PEs, blocks A B C of keys and values, in the order of time:

          PE 0    A -> PE 1    attend to A    C -> PE 1    attend to C    attend to B
          PE 1    B -> PE 2    attend to B    A -> PE 2    attend to A    attend to C
          PE 2    C -> PE 0    attend to C    B -> PE 0    attend to B    attend to A

A block is passed on as soon as it is there, and computed with while it and the next one travel.
Scores are computed tile by tile, and never stored as a whole: of a token's values a weighted sum is
kept, relative to the largest score that it has met (*online softmax*). So a PE needs memory for two
blocks, whatever the length of the sequence.

What a PE sees, and how causal attention is equal work for all, is in `attention_parts`; a block
travels as far as somebody sees it.

**Boxes and credits.** Messages on a link, from a PE to the next one, are counted, over all calls:
c = 1, 2, 3, ... Message c goes to box c % 2, with signals set to c, and is waited for until they
equal c. It is sent when the receiver has said that it *took* message c - 2: it has read that box,
and what it passed on from there is complete. Both ends know how many messages a call has. So
nothing is asked of other PEs, and calls follow each other without a barrier, as in `plan`, though a
PE need not hear from all whom it reaches. No PE waits for ever: who is to send in step s waits for
the next one to finish step s - 1, and for the one before to have begun it: always an earlier step.

What a PE sends, for n PEs, T tokens each, G heads of keys of D numbers of S bytes, B blocks:

    bytes       2 T G D S for each block that it passes on; n - 1 if nothing is masked by a window
    messages    2 B for each: keys, values; and as many signals come back, B for each
    flops       4 T (n T) H D, half of it if causal

That is `method="kernel"`. On GPUs its products are those of `gemm_block` in float32, without tensor
cores: an H100 has 67 TFLOP/s of that, and 990 of float16 in its tensor cores. With "library" the
attention to each block is PyTorch's: see `attention_library`.

After Liu et al., "Ring Attention with Blockwise Transformers for Near-Infinite Context",
arXiv:2310.01889, 2023, with the online softmax of Milakov and Gimelshein, arXiv:1805.02867, and the
tiles of Dao et al., "FlashAttention", NeurIPS 2022.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from gpushmem.kernels import attention_library, attention_parts
from gpushmem.kernels.attention_parts import (
    LEAST,
    ONE,
    chunk_start,
    clear,
    keys_of,
    multiply,
    row_tile,
    row_tiles,
    soften,
    widen,
)
from gpushmem.kernels.parts import (
    begin,
    complete,
    end,
    member,
    part_of,
    tell,
    wait_for_all,
)
from gpushmem.kernels.plan import SLOTS, Plan
from numba import cuda

import gpushmem as shmem

__all__ = ["RingAttention", "reference"]


# --- blocks that travel


@shmem.jit(device=True)
def pass_on(k, v, inbox, arrived, taken, c, team):
    """Send a block as message `c` to the next PE, when its box is free; each block sends a part.

    `k`, `v` (size,), `inbox` (SLOTS, 2, size), `arrived` (SLOTS, 2 blocks), `taken` (SLOTS,
    blocks). `complete` says when it has been sent.
    """
    me, n, b, blocks = (
        shmem.team_my_pe(team),
        shmem.team_n_pes(team),
        cuda.blockIdx.x,
        cuda.gridDim.x,
    )
    slot, right = c % SLOTS, member(team, (me + 1) % n)
    wait_for_all(taken[slot], max(0, c - SLOTS))
    first, last = part_of(k.size, blocks, b)
    for which in range(2):
        mine = v[first:last] if which else k[first:last]
        signal = arrived[slot, which * blocks + b :]
        box = inbox[slot, which, first:last]
        shmem.put_signal_nbi_block(box, mine, signal, c, shmem.SIGNAL_SET, right)


@shmem.jit(device=True)
def take(taken, c, team):
    """Tell the PE before that message `c` has been read; what was passed on of it is complete."""
    me, n = shmem.team_my_pe(team), shmem.team_n_pes(team)
    complete()
    tell(taken[c % SLOTS, cuda.blockIdx.x :], c, member(team, (me + n - 1) % n))


# --- a block of keys and values that is here


@shmem.jit(device=True)
def attend(
    q, k, v, sums, peak, total, scores, wide, cu_seqlens, before, after, scale, chunks, source, team
):  # fmt: skip
    """Add the block `k`, `v` (T, G, D) of PE `source` to what there is of `q` (T, H, D).

    `sums` (H, T, D), `peak`, `total` (H, T) are as in `soften`; `scores` (rows, columns) is one
    tile, `wide` (3, rows or columns, D) are those of q, k, v. A block has rows of its own.
    """
    me, n = shmem.team_my_pe(team), shmem.team_n_pes(team)
    (rows, columns), (tokens, heads) = scores.shape, q.shape[:2]
    flat = scores.reshape(scores.size)  # tiles without gaps: loops over them can be vectorised
    each, tiles = tokens // chunks, row_tiles(tokens, chunks, rows)
    for i in range(cuda.blockIdx.x, heads * tiles, cuda.gridDim.x):
        head, of = i // tiles, i // tiles * k.shape[1] // heads
        first, last, position = row_tile(i % tiles, tokens, chunks, rows, me, n)
        height, mine = last - first, sums[head, first:last]
        low, _ = keys_of(position, cu_seqlens, before, after)
        _, high = keys_of(position + height - 1, cu_seqlens, before, after)
        widen(wide[0], q[first:last, head], scale)
        for c in range(chunks):
            start = chunk_start(source, c, n, each)
            end_ = min(high, start + each)
            for key in range(max(low, start), end_, columns):
                at, width = c * each + key - start, min(columns, end_ - key)
                widen(wide[1], k[at : at + width, of], ONE)
                widen(wide[2], v[at : at + width, of], ONE)
                tile = flat[: height * width].reshape((height, width))
                cuda.syncthreads()
                multiply(tile, wide[0, :height], wide[1, :width].T, False)
                soften(
                    tile, position, key, cu_seqlens, before, after, peak[head, first:last],
                    total[head, first:last], mine,
                )  # fmt: skip
                cuda.syncthreads()
                multiply(mine, tile, wide[2, :width], True)


@shmem.jit(device=True)
def start_rows(sums, peak, total, chunks, rows):
    """Set what this block sums to nothing."""
    (heads, tokens), tiles = peak.shape, row_tiles(peak.shape[1], chunks, rows)
    for i in range(cuda.blockIdx.x, heads * tiles, cuda.gridDim.x):
        head, (first, last, _) = i // tiles, row_tile(i % tiles, tokens, chunks, rows, 0, 1)
        for t in range(first + cuda.threadIdx.x, last, cuda.blockDim.x):
            peak[head, t], total[head, t] = LEAST, np.float32(0)
            clear(sums[head, t])


@shmem.jit(device=True)
def finish_rows(out, sums, lse, total, chunks, rows):
    """Divide this block's sums by their totals; `lse` has been the peaks.

    A thread has the rows that it has in `start_rows` and `soften`.
    """
    (heads, tokens), tiles = lse.shape, row_tiles(lse.shape[1], chunks, rows)
    for i in range(cuda.blockIdx.x, heads * tiles, cuda.gridDim.x):
        head, (first, last, _) = i // tiles, row_tile(i % tiles, tokens, chunks, rows, 0, 1)
        for t in range(first + cuda.threadIdx.x, last, cuda.blockDim.x):
            row, to, factor = sums[head, t], out[t, head], np.float32(0)
            if total[head, t] > np.float32(0):
                factor = np.float32(1) / total[head, t]
                lse[head, t] += np.float32(math.log(total[head, t]))
            else:
                lse[head, t] = -np.inf
            for j in range(row.size):
                to[j] = row[j] * factor


@shmem.jit(collective=True)
def ring_attention(
    q, k, v, out, lse, sums, total, scores, wide, cu_seqlens, before, after, scale, chunks, reach,
    coming, going, inbox, arrived, taken, team, epochs,
):  # fmt: skip
    """`reach` (n,): how far a block travels; `coming`, `going`: messages of a call."""
    me, n, b = shmem.team_my_pe(team), shmem.team_n_pes(team), cuda.blockIdx.x
    calls, shape, rows = begin(epochs) - 1, k.shape, scores.shape[1]
    received, sent = calls * coming, calls * going
    here_k, here_v = k.reshape(k.size), v.reshape(v.size)
    start_rows(sums, lse, total, chunks, rows)
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
        attend(
            q, here_k.reshape(shape), here_v.reshape(shape), sums, lse, total, scores[b], wide[b],
            cu_seqlens, before, after, scale, chunks, source, team,
        )  # fmt: skip
        if step > 0:
            take(taken, received, team)
    finish_rows(out, sums, lse, total, chunks, rows)
    complete()
    end(epochs)


DTYPES = "float16", "bfloat16", "float32"
TILE = 256, 512  # queries and keys, for BLAS
METHODS = "kernel", "library"


class Ring(Plan):
    """What forward and backward have in common: who has which tokens, blocks that travel."""

    fills = True

    def __init__(
        self, tokens: int, heads: int, kv_heads: int | None, head_dim: int, dtype: Any, team: Any,
        causal: bool, window: int | None, scale: float | None, zigzag: bool | None,
        tile: tuple[int, int] | None, method: str | None, blocks: int | None,
        threads: int | None,
    ) -> None:  # fmt: skip
        super().__init__(team, blocks=blocks, threads=threads)
        name, n = type(self).__name__, self.n_pes
        self.tokens, self.heads, self.head_dim = tokens, heads, head_dim
        self.kv_heads, self.dtype = heads if kv_heads is None else kv_heads, np.dtype(dtype)
        if self.dtype.name not in DTYPES:
            raise shmem.ArgumentError(
                f"{name}: dtype is {self.dtype}; it can be {', '.join(DTYPES)}"
            )
        if tokens < 0 or min(heads, self.kv_heads, head_dim) < 1 or heads % self.kv_heads:
            raise shmem.ArgumentError(
                f"{name}: {tokens} tokens, {heads} heads, {self.kv_heads} of keys and values, of "
                f"{head_dim} numbers: kv_heads must divide heads, and all but tokens be 1 or more"
            )
        self.causal, self.window = causal, window
        by_default = causal and window is None and tokens % 2 == 0
        self.zigzag = by_default if zigzag is None else zigzag
        self.chunks = 2 if self.zigzag else 1
        if tokens % self.chunks:
            raise shmem.ArgumentError(
                f"{name}: {tokens} tokens, which zigzag=True halves: take an even number"
            )
        self.tile = tile or (self.tuning.tile if self.tuning.multiprocessors else TILE)
        if min(self.tile) < 1 or (window is not None and window < 0):
            raise shmem.ArgumentError(
                f"{name}: tile is {tile}, window {window}: they are queries and keys, 1 or more, "
                "and how far a token sees, 0 or more"
            )
        self.scale = np.float32(head_dim**-0.5 if scale is None else scale)
        far = n * tokens
        self.before = far if window is None else window
        self.after = 0 if causal else self.before
        self.sees = attention_parts.sees(tokens, n, self.chunks, self.before, self.after)
        self.reach = attention_parts.reach_of(self.sees)
        self.coming, self.going = (
            sum(self.reach[(pe - step) % n] > step for step in range(n))
            for pe in ((self.my_pe - 1) % n, self.my_pe)
        )
        self.method = METHODS[attention_library.suits(self)] if method is None else method
        if self.method not in METHODS:
            raise shmem.ArgumentError(
                f"{name}: method is {self.method!r}; it can be {' or '.join(METHODS)}"
            )
        if self.method == "library":
            return
        size = tokens * self.kv_heads * head_dim
        self._links = (
            self.boxes(2, size, dtype=dtype), self.signals(2 * self.blocks),
            self.signals(self.blocks),
        )  # fmt: skip
        self._reach = shmem.to_device(np.array(self.reach, "int64"))
        self._whole = shmem.to_device(np.array([0, far], "int32"))

    @property
    def positions(self) -> np.ndarray[Any, Any]:
        """Which tokens of the whole batch are this PE's, in their order: (tokens,)."""
        return attention_parts.positions(self.tokens, self.my_pe, self.n_pes, self.chunks)

    def _masks(self, cu_seqlens: Any) -> tuple[Any, ...]:
        """What kernels get: who sees what, and how blocks travel."""
        ends = self._whole if cu_seqlens is None else self.flat(cu_seqlens)
        if cu_seqlens is not None:
            self.expect("cu_seqlens", ends, (max(ends.size, 2),), "int32")
        return (
            ends, self.before, self.after, self.scale, self.chunks, self._reach, self.coming,
            self.going, *self._links,
        )  # fmt: skip

    def _ends(self, cu_seqlens: Any) -> tuple[int, ...] | None:
        """Where sequences end, for the host, which waits for that; None: there is one."""
        if cu_seqlens is None:
            return None
        host = isinstance(cu_seqlens, np.ndarray)
        ends = cu_seqlens if host else self.on_device("cu_seqlens", cu_seqlens).numpy()
        self.fits("cu_seqlens", ends, (max(ends.size, 2),), "int32")
        return tuple(ends.tolist())

    def _tiles(self, scores: int, wide: int) -> tuple[Any, Any]:
        """For each block, so many tiles of scores, the first axis only if several, and of rows."""
        rows, columns = self.tile
        several = (scores,) if scores > 1 else ()
        return (
            shmem.device_array((self.blocks, *several, rows, columns), "float32"),
            shmem.device_array((self.blocks, wide, max(self.tile), self.head_dim), "float32"),
        )

    def _expect(self, **arrays: Any) -> None:
        """Raise `ArgumentError` for those that have not the shapes they should have."""
        for what, array in arrays.items():
            heads = self.kv_heads if what in {"k", "v", "dk", "dv"} else self.heads
            if what == "lse":
                self.expect(what, array, (heads, self.tokens), "float32")
            else:
                self.expect(what, array, (self.tokens, heads, self.head_dim), self.dtype)


class RingAttention(Ring):
    """Attend to the tokens of all PEs of a team: `plan(q, k, v, out=out, lse=lse)`.

    `q`, `out` (tokens, heads, head_dim) and `k`, `v` (tokens, kv_heads, head_dim) are this PE's
    tokens, those at `positions` of the whole batch; `lse` (heads, tokens) of float32. kv_heads,
    by default as many as heads, divides it: query head h has keys h // (heads / kv_heads). dtypes:
    float16, bfloat16, float32; all sums are float32.

    A token sees tokens of its sequence; with `causal` none behind itself, with `window` none
    farther away than that. `scale` is 1 / sqrt(head_dim) by default. With `zigzag`, the default
    where attention is causal without a window and tokens is even, each PE has two chunks of tokens
    (see `positions`), for equal work; else one. Sizes and options are the same on all PEs.

    `method` is "kernel", or "library", by which PyTorch computes the attention to a block: on GPUs
    for float16, bfloat16 and sizes of heads that are multiples of 8, up to 256. It is the default
    on GPUs where it can be, if PyTorch is installed for CUDA. Of "kernel", `tile` is how many
    queries and keys are multiplied at a time. Workspace: 4 tokens kv_heads head_dim numbers on the
    heap; float32 sums of all queries, and for each block a tile, or with "library" one more result.
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
            self._library = attention_library.LibraryForward(self)
            return
        self._workspace = (
            shmem.device_array((heads, tokens, head_dim), "float32"),
            shmem.device_array((heads, tokens), "float32"), *self._tiles(1, 3),
        )  # fmt: skip

    def __call__(
        self, q: Any, k: Any, v: Any, *, out: Any, lse: Any, cu_seqlens: Any = None, stream: Any = 0
    ) -> None:
        """Set `out`, and `lse` to the logarithms of the sums of exp(scores); asynchronous.

        In `stream`'s order. `cu_seqlens` (sequences + 1,) of int32, the same on all PEs, are the
        positions at which sequences of the whole batch begin, and where the last one ends; tokens
        behind that, and all others that see no keys, get zeros, and an lse of -inf. By default
        there is one sequence. With the method "library" the host reads them, and waits for them if
        they are not NumPy's; there is a call of the library's for each sequence of a PE.
        Raises `ArgumentError` if a shape or dtype is not the plan's.
        """
        self._expect(q=q, k=k, v=v, out=out, lse=lse)
        arrays = q, k, v, out, lse
        if self.method == "library":
            self._library(*arrays, self._ends(cu_seqlens), stream)
            return
        self.launch(ring_attention, stream, *arrays, *self._workspace, *self._masks(cu_seqlens))

    def sends(self) -> tuple[int, int]:
        """Bytes and messages that this PE sends in a call, without signals back."""
        if self.method == "library":
            numbers, messages = self._library.sends
            return numbers * self.dtype.itemsize, messages
        nbytes = 2 * self.tokens * self.kv_heads * self.head_dim * self.dtype.itemsize
        return self.going * nbytes, self.going * 2 * self.blocks


def seen(
    tokens: int, causal: bool, window: int | None, cu_seqlens: Any
) -> np.ndarray[Any, Any]:  # fmt: skip
    """Which keys each token of the whole batch sees: (tokens, tokens) of bool."""
    before = tokens if window is None else window
    ends, at = [0, tokens] if cu_seqlens is None else cu_seqlens, np.arange(tokens)
    low, high = attention_parts.first_keys(at, ends, before, 0 if causal else before)
    return (low[:, None] <= at) & (at < high[:, None])


def reference(
    q: Any, k: Any, v: Any, *, causal: bool = False, window: int | None = None,
    scale: float | None = None, cu_seqlens: Any = None,
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:  # fmt: skip
    """Of the whole batch, in the order of positions: out and lse, in float64."""
    q, k, v = (np.asarray(x, "float64").transpose(1, 0, 2) for x in (q, k, v))
    (_, tokens, size), group = q.shape, q.shape[0] // k.shape[0]
    k, v = (np.repeat(x, group, axis=0) for x in (k, v))
    scores = q @ k.transpose(0, 2, 1) * (size**-0.5 if scale is None else scale)
    scores = np.where(seen(tokens, causal, window, cu_seqlens), scores, -np.inf)
    with np.errstate(divide="ignore"):
        peak = np.maximum(scores.max(-1, keepdims=True, initial=-1e300), -1e300)
        weights = np.exp(scores - peak)
        total = weights.sum(-1, keepdims=True)
        lse = np.where(total > 0, peak + np.log(total), -np.inf)[..., 0]
    return (weights / np.where(total > 0, total, 1) @ v).transpose(1, 0, 2), lse
