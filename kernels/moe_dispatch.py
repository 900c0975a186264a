"""Send tokens to the PEs of their experts and bring the results back: dispatch and combine.

A layer with a mixture of experts sends each token to `top_k` of E experts and adds up what they
make of it. Expert e lives on PE e // ceil(E / n); the last PEs may have fewer experts, or none.

    dispatch     token 0: experts 4, 1      PE 0, experts 0 1 2:  inbox  [ 1 of PE 0 | 1 of PE 1 ...
                 token 1: experts 4, 5      PE 1, experts 3 4 5:  inbox  [ 4 of PE 0 | 4 of PE 1 ...

    combine      out[0] = weights[0, 0] * (row back from expert 4) + weights[0, 1] * (... expert 1)

Each PE sorts its (token, choice) pairs by expert, in the order of its tokens, by counting: so the
place of every row follows from the sender's choices alone. Two forms of dispatch:

    low latency  a row is put to its place in the segment (expert, source) of the expert's PE as soon
                 as it is known, from the tokens themselves; then where the rows come back to and how
                 many they are, and one signal per segment. Nothing is exchanged before.
    throughput   counts go ahead; rows are packed per PE and sent as one message, or one per block of
                 the kernel, with a signal, and sorted by expert where they arrive.

In combine a segment goes back as it is, one put with a signal, to rows that its head has named: the
sorted order of the owner's pairs. The owner adds up its rows in the order of its choices, so the
result has the same bits whatever came first, and whichever the form.

What a PE sends, for t tokens of h bytes on the wire and H bytes in their dtype, if experts are
chosen evenly; L experts a PE, blocks of the kernel B:

                  bytes                    messages
    low latency   t top_k (n - 1) / n h    t top_k (n - 1) / n, and (n - 1) L heads and signals
    throughput    the same                 (n - 1) (B + 1)
    combine       t top_k (n - 1) / n H    (n - 1) L

The places of low latency take n L capacity rows, most of them empty; those of throughput at most
n t top_k. Boxes and signals are there once, not twice as `plan` has it: dispatch and combine take
turns, and a PE hears in each from all who used what it is going to write to in the other. Tokens
beyond an expert's capacity are dropped as in GShard (Lepikhin et al., 2020) and Switch Transformers
(Fedus, Zoph and Shazeer, JMLR 23, 2022), here per source, which needs no agreement. The two forms
are those of DeepEP (DeepSeek); the segments are the batches, and the rows in order the contiguous
input, of vLLM's experts. Others of the kind: pplx-kernels (Perplexity), Triton-distributed
(ByteDance), and examples/moe_shuffle.cu of NVSHMEM.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from gpushmem.kernels.parts import begin, copy, end, member, tell, wait_for
from gpushmem.kernels.plan import THREADS, Plan
from numba import cuda

import gpushmem as shmem
from gpushmem import runtime

__all__ = ["ExpertParallel", "Received", "reference", "route", "through_int8"]

# A segment's head is one number: the first of its rows on the PE that sent it, and how many.
COUNT = 0xFFFFFFFF


# --- which expert


@shmem.jit(cache=True)
def choose(logits, experts, weights):
    """`logits` (t, E), `experts` and `weights` (t, top_k); a thread has tokens of its own."""
    first = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    for t in range(first, logits.shape[0], cuda.gridDim.x * cuda.blockDim.x):
        row, total = logits[t], np.float32(0)
        for j in range(experts.shape[1]):
            best = -1
            for e in range(row.size):
                # After the last choice: smaller than it, or equal to it and further on.
                before = experts[t, j - 1] if j > 0 else -1
                follows = j == 0 or (
                    before >= 0
                    and (row[e] < row[before] or (row[e] == row[before] and e > before))
                )
                if follows and row[e] == row[e] and (best < 0 or row[e] > row[best]):
                    best = e
            experts[t, j] = best
            weights[t, j] = 0
            if best >= 0:
                weights[t, j] = math.exp(np.float32(row[best]) - np.float32(row[experts[t, 0]]))
            total += weights[t, j]
        for j in range(experts.shape[1]):
            if total > 0:
                weights[t, j] /= total


def route(logits: Any, experts: Any, weights: Any, stream: Any = 0) -> None:
    """Choose each token's experts: those of the largest logits, largest first; asynchronous.

    `logits` (t, E), of floats; `experts` (t, top_k) of int32 and `weights` (t, top_k) of float32 are
    written. The weights are the softmax of the chosen logits: the same as the softmax of all,
    divided by the sum of those chosen. Of equal logits the first counts, NaN never: where fewer
    than `top_k` are left, the expert is -1 and the weight 0. A kernel without communication.
    """
    t, top_k = experts.shape
    if logits.shape[0] != t or tuple(weights.shape) != (t, top_k) or top_k > logits.shape[1]:
        raise shmem.ArgumentError(
            f"route: logits {tuple(logits.shape)}, experts {(t, top_k)} and weights "
            f"{tuple(weights.shape)} do not fit: give (t, E), (t, top_k) and (t, top_k) with "
            "top_k <= E"
        )
    if experts.dtype != np.int32 or weights.dtype != np.float32:
        raise shmem.ArgumentError(
            f"route: experts are of {experts.dtype}, weights of {weights.dtype}; they must be of "
            "int32 and float32"
        )
    threads = THREADS[runtime.current("route").backend.name]
    choose[max(1, min(t // threads, 1024)), threads, stream](logits, experts, weights)


# --- on both sides


@shmem.jit(device=True)
def sort_by_expert(experts, n_experts, capacity, heads, order, position, dropped):
    """Sort pairs by expert, by counting; a thread counts for experts of its own.

    `experts` (pairs,). Written: `heads` (n_experts or more,); `order` (pairs,), the pair of each
    row sent; `position` (pairs,), the row of each pair, or -1; `dropped` (1,), by block 0.
    Synchronises the block at the end.
    """
    share = (n_experts + cuda.blockDim.x - 1) // cuda.blockDim.x
    low = min(cuda.threadIdx.x * share, n_experts)
    high = min(low + share, n_experts)
    for e in range(low, high):
        heads[e] = 0
    for i in range(experts.size):
        e = experts[i]
        if low <= e < high:
            heads[e] += 1
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        start = lost = 0
        for e in range(n_experts):
            kept = min(heads[e], capacity)
            lost += heads[e] - kept
            heads[e] = start << 32
            start += kept
        if cuda.blockIdx.x == 0:
            dropped[0] = lost
    cuda.syncthreads()
    for i in range(experts.size):
        e = experts[i]
        if low <= e < high:
            head = heads[e]
            row = (head >> 32) + (head & COUNT)
            if head & COUNT < capacity:
                order[row], position[i], heads[e] = i, row, head + 1
            else:
                position[i] = -1
        elif cuda.threadIdx.x == 0 and not 0 <= e < n_experts:
            position[i] = -1
    cuda.syncthreads()


@shmem.jit(device=True)
def experts_of(pe, n_experts, share):
    """How many experts live on a PE."""
    return max(0, min(share, n_experts - pe * share))


@shmem.jit(device=True)
def send_rows(x, top_k, n_experts, capacity, mine, order, inbox, heads, arrived, team, epoch):
    """Put the rows of each expert to their places; a block sends to experts of its own.

    `x` (t, row), `inbox` (experts a PE * n * capacity, row), `heads` and `arrived` (n, experts a PE).
    """
    me, n, share = shmem.team_my_pe(team), shmem.team_n_pes(team), arrived.shape[1]
    for k in range(cuda.blockIdx.x, n * share, cuda.gridDim.x):
        to, local = (me + 1 + k // share) % n, k % share
        if to * share + local >= n_experts:
            continue
        pe, head = member(team, to), mine[to * share + local]
        start, first = head >> 32, (local * n + me) * capacity
        for r in range(head & COUNT):
            shmem.put_nbi_block(inbox[first + r], x[order[start + r] // top_k], pe)
        cuda.syncthreads()
        if cuda.threadIdx.x == 0:
            shmem.p(heads[me, local:], head, pe)
        tell(arrived[me, local:], epoch, pe)


@shmem.jit(device=True)
def wait_for_all(signals, epoch):
    """Wait until all of `signals` are `epoch`; then all threads of the block see what came."""
    if cuda.threadIdx.x == 0:
        for k in range(signals.size):
            shmem.signal_wait_until(signals[k:], shmem.CMP_EQ, epoch)
    cuda.syncthreads()


@shmem.jit(device=True)
def add_up(out, weights, returned, position):
    """Set each token's row of `out` (t, H) to its weighted rows' sum, in the order of its choices.

    `weights` (t, top_k), `returned` (rows, H), `position` (t * top_k,): -1 counts as zeros.
    """
    top_k = weights.shape[1]
    for t in range(cuda.blockIdx.x, out.shape[0], cuda.gridDim.x):
        total, some = out[t], False
        for j in range(top_k):
            at, weight = position[t * top_k + j], weights[t, j]
            if at >= 0 and some:
                row = returned[at]
                for i in range(cuda.threadIdx.x, total.size, cuda.blockDim.x):
                    total[i] += weight * row[i]
            elif at >= 0:
                row, some = returned[at], True
                for i in range(cuda.threadIdx.x, total.size, cuda.blockDim.x):
                    total[i] = weight * row[i]
        if not some:
            for i in range(cuda.threadIdx.x, total.size, cuda.blockDim.x):
                total[i] = 0


@shmem.jit(device=True)
def complete():
    """Complete what the block has sent, before its sources may change."""
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        shmem.quiet()


# --- dispatch


@shmem.jit(collective=True, cache=True)
def dispatch_low_latency(
    x, experts, top_k, n_experts, capacity, mine, order, position, dropped, starts, counts, heads,
    inbox, arrived, team, epochs,
):  # fmt: skip
    """`mine`, `order`, `position` and `starts` are of each block; the others see `send_rows`."""
    me, n, epoch = shmem.team_my_pe(team), shmem.team_n_pes(team), begin(epochs)
    b, share = cuda.blockIdx.x, arrived.shape[1]
    sort_by_expert(experts, n_experts, capacity, mine[b], order[b], position[b], dropped)
    send_rows(
        x, top_k, n_experts, capacity, mine[b], order[b], inbox, heads, arrived, team, epoch
    )  # fmt: skip
    for k in range(b, n * experts_of(me, n_experts, share), cuda.gridDim.x):
        local, source = k // n, k % n
        wait_for(arrived[source, local:], epoch)
        if cuda.threadIdx.x == 0:
            counts[local, source] = heads[source, local] & COUNT
    complete()
    end(epochs)


@shmem.jit(device=True)
def size_of(heads):
    """How many rows segments have together: those of one PE's experts, one behind the other."""
    total = 0
    for local in range(heads.size):
        total += heads[local] & COUNT
    return total


@shmem.jit(collective=True, cache=True)
def dispatch_throughput(
    x, experts, top_k, n_experts, capacity, mine, order, position, dropped, starts, counts, heads,
    rows, outbox, inbox, counted, arrived, team, epochs,
):  # fmt: skip
    """`rows` (rows, row) is where tokens end; `outbox` (pairs, row), `inbox` (n, rows, row).

    `counted` (n,), `arrived` (blocks, n): a block sends and sorts its part of each message.
    """
    me, n, epoch = shmem.team_my_pe(team), shmem.team_n_pes(team), begin(epochs)
    b, blocks, share = cuda.blockIdx.x, cuda.gridDim.x, heads.shape[1]
    sort_by_expert(experts, n_experts, capacity, mine[b], order[b], position[b], dropped)
    for k in range(b, n, blocks):
        to = (me + 1 + k) % n
        if to * share < n_experts:
            ahead = mine[b][to * share : (to + 1) * share]
            signal = counted[me:]
            shmem.put_signal_nbi_block(
                heads[me], ahead, signal, epoch, shmem.SIGNAL_SET, member(team, to)
            )
    for k in range(n):
        to = (me + 1 + k) % n
        if to * share < n_experts:
            size = size_of(mine[b][to * share : (to + 1) * share])
            first, last = size * b // blocks, size * (b + 1) // blocks
            start = mine[b, to * share] >> 32
            for r in range(start + first, start + last):
                copy(outbox[r], x[order[b, r] // top_k])
            cuda.syncthreads()
            shmem.put_signal_nbi_block(
                inbox[me, first:last], outbox[start + first : start + last], arrived[b, me:], epoch,
                shmem.SIGNAL_SET, member(team, to),
            )  # fmt: skip
    if me * share < n_experts:
        wait_for_all(counted, epoch)
        if cuda.threadIdx.x == 0:
            total = 0
            for local in range(starts.shape[1]):
                for source in range(n):
                    starts[b, local, source] = total
                    total += heads[source, local] & COUNT
                    if b == 0:
                        counts[local, source] = heads[source, local] & COUNT
        cuda.syncthreads()
        for k in range(n):
            source = (me + n - k) % n
            wait_for(arrived[b, source:], epoch)
            size, before = size_of(heads[source]), 0
            first, last = size * b // blocks, size * (b + 1) // blocks
            for local in range(starts.shape[1]):
                count = heads[source, local] & COUNT
                for r in range(max(first, before), min(last, before + count)):
                    copy(rows[starts[b, local, source] + r - before], inbox[source, r])
                before += count
    complete()
    end(epochs)


# --- combine


@shmem.jit(collective=True, cache=True)
def combine(
    y, weights, out, n_experts, position, starts, heads, returned, back, team, epochs
):  # fmt: skip
    """`y` (rows, H) as received, `returned` (pairs, H), `back` (n * experts a PE,)."""
    me, n, epoch = shmem.team_my_pe(team), shmem.team_n_pes(team), begin(epochs)
    b, share = cuda.blockIdx.x, heads.shape[1]
    mine = experts_of(me, n_experts, share)
    for k in range(b, n * mine, cuda.gridDim.x):
        source, local = (me + 1 + k // mine) % n, k % mine
        to, count = heads[source, local] >> 32, heads[source, local] & COUNT
        rows = y[starts[b, local, source] :][:count]
        shmem.put_signal_nbi_block(
            returned[to : to + count], rows, back[me * share + local :], epoch, shmem.SIGNAL_SET,
            member(team, source),
        )  # fmt: skip
    wait_for_all(back[:n_experts], epoch)
    add_up(out, weights, returned, position[b])
    complete()
    end(epochs)


# --- tokens as int8


@shmem.jit(collective=True, cache=True, fastmath=True)
def quantise(x, stage, scales, largest, team, epochs):
    """`x` (t, H) to `stage` (t, row) of int8, with the scale in the last 4 bytes of each row.

    `scales` is `stage` as float32; `largest` (blocks, threads) is for the threads' maxima.
    """
    b = cuda.blockIdx.x
    for t in range(b, x.shape[0], cuda.gridDim.x):
        row, small = x[t], stage[t]
        found = np.float32(0)
        for i in range(cuda.threadIdx.x, row.size, cuda.blockDim.x):
            found = max(found, np.float32(abs(row[i])))
        largest[b, cuda.threadIdx.x] = found
        cuda.syncthreads()
        for k in range(cuda.blockDim.x):
            found = max(found, largest[b, k])
        inverse = np.float32(127) / found if found > 0 else np.float32(0)
        for i in range(cuda.threadIdx.x, row.size, cuda.blockDim.x):
            small[i] = np.int8(math.floor(np.float32(row[i]) * inverse + np.float32(0.5)))
        if cuda.threadIdx.x == 0:
            scales[t, scales.shape[1] - 1] = found / np.float32(127)
        cuda.syncthreads()


@shmem.jit(collective=True, cache=True)
def widen(rows, received, scales, starts, counts, team, epochs):
    """The rows of all segments of `received` (rows, row) of int8 to `rows` (rows, H)."""
    b = cuda.blockIdx.x
    for local in range(counts.shape[0]):
        for source in range(counts.shape[1]):
            first = starts[b, local, source]
            for r in range(first + b, first + counts[local, source], cuda.gridDim.x):
                row, small, scale = rows[r], received[r], scales[r, scales.shape[1] - 1]
                for i in range(cuda.threadIdx.x, row.size, cuda.blockDim.x):
                    row[i] = scale * np.float32(small[i])


FORMS = {"low_latency": dispatch_low_latency, "throughput": dispatch_throughput}
WIRES = (None, "int8")
FLOATS = ("float16", "float32", "float64")


class Received(NamedTuple):
    """What dispatch fills: tokens as rows, in segments (local expert, source)."""

    rows: Any  #: (rows, H) of the plan's dtype
    starts: Any  #: (local experts, n) of int32: the first row of each segment
    counts: Any  #: (local experts, n) of int32: how many


class Dispatch(Plan):
    """What dispatch and combine, and layers that fuse them, have in common; see `ExpertParallel`."""

    def __init__(
        self, tokens: int, hidden: int, experts: int, top_k: int, dtype: Any, team: Any,
        capacity: int | None, blocks: int | None, threads: int | None,
    ) -> None:  # fmt: skip
        super().__init__(team, blocks=blocks, threads=threads)
        self.tokens, self.hidden, self.experts, self.top_k = tokens, hidden, experts, top_k
        self.dtype = np.dtype(dtype)
        self.capacity = tokens if capacity is None else capacity
        self.experts_per_pe = -(-experts // self.n_pes)
        self.first_expert = min(self.my_pe * self.experts_per_pe, experts)
        self.local_experts = min(self.experts_per_pe, experts - self.first_expert)
        self._check()
        self.pairs = tokens * top_k
        blocks, n, share = self.blocks, self.n_pes, self.experts_per_pe
        self._returned = self.memory(self.pairs, hidden, dtype=dtype)
        self._back = self.memory(n * share, dtype="uint64")
        self._heads = self.memory(n, share, dtype="int64")
        # Each block sorts for itself: what it reads later it wrote, and nobody waits for another.
        self._mine = shmem.to_device(np.zeros((blocks, n * share), "int64"))
        self._order, self._position = (
            shmem.device_array((blocks, self.pairs), "int32") for _ in range(2)
        )
        self._dropped = shmem.to_device(np.zeros(1, "int64"))
        self._sorting = self._mine, self._order, self._position, self._dropped

    def _check(self) -> None:
        name = type(self).__name__
        if self.dtype.name not in FLOATS:
            raise shmem.ArgumentError(
                f"{name}: dtype is {self.dtype}; there is {', '.join(FLOATS)}"
            )
        if min(self.hidden, self.experts, self.top_k) < 1 or min(self.tokens, self.capacity) < 0:
            raise shmem.ArgumentError(
                f"{name}: hidden, experts and top_k must be 1 or more, tokens and capacity 0 or "
                f"more; got {self.hidden}, {self.experts}, {self.top_k}, {self.tokens}, "
                f"{self.capacity}"
            )
        if self.top_k > self.experts:
            raise shmem.ArgumentError(
                f"{name}: a token chooses {self.top_k} experts, there are {self.experts}"
            )

    def _expect_tokens(self, x: Any, experts: Any) -> int:
        tokens = int(x.shape[0])
        if tokens > self.tokens:
            raise shmem.ArgumentError(
                f"{type(self).__name__}: x has {tokens} tokens, the plan is for {self.tokens} at "
                f"most: make it with tokens={tokens} or more on all PEs"
            )
        self.expect("x", x, (tokens, self.hidden), self.dtype)
        self.expect("experts", experts, (tokens, self.top_k), "int32")
        return tokens

    def _expect_results(self, tokens: int, weights: Any, out: Any) -> None:
        self.expect("weights", weights, (tokens, self.top_k), "float32")
        self.expect("out", out, (tokens, self.hidden), self.dtype)

    def dropped(self) -> int:
        """How many of this PE's (token, expert) pairs the last dispatch dropped; waits for it."""
        return int(self._dropped.numpy()[0])


class ExpertParallel(Dispatch):
    """Dispatch and combine for up to `tokens` tokens a PE of `hidden` numbers, around your experts.

        received = plan.dispatch(x, experts)
        ...                                  # your kernels: y (rows, H) from received.rows
        plan.combine(y, weights, out)

    `experts` is how many there are in all; this PE has `plan.local_experts` of them, from
    `plan.first_expert` on. dtype float16, float32 or float64. At most `capacity` tokens per expert
    and source PE are taken, in the order of the tokens; the others count as zeros, and in
    `plan.dropped()`. Without it none are dropped, if a token's experts differ. `form` is
    "low_latency" or "throughput": see the module. With `wire="int8"` tokens travel as
    int8 with a float32 scale for each, max |x| / 127: what arrives is off by at most max |x| / 254,
    and the rounding of its dtype. Results travel in their dtype.

    dispatch and combine take turns, on all PEs of the team; so one plan has one batch under way.
    """

    def __init__(
        self, tokens: int, hidden: int, experts: int, top_k: int, dtype: Any,
        team: Any = shmem.TEAM_WORLD, *, capacity: int | None = None, form: str = "low_latency",
        wire: str | None = None, blocks: int | None = None, threads: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(tokens, hidden, experts, top_k, dtype, team, capacity, blocks, threads)
        if form not in FORMS or wire not in WIRES:
            raise shmem.ArgumentError(
                f"ExpertParallel: there is no form {form!r} with wire {wire!r}; there are "
                f"{', '.join(FORMS)}, and {WIRES}"
            )
        self.form, self.wire = form, wire
        n, share = self.n_pes, self.experts_per_pe
        travels, row = (self.dtype, hidden) if wire is None else (np.dtype("int8"), wire_row(hidden))
        self.row_bytes = row * travels.itemsize
        starts = np.zeros((self.blocks, self.local_experts, n), "int32")
        if form == "low_latency":
            inbox = self.memory(share * n * self.capacity, row, dtype=travels)
            self._boxes = inbox, self.memory(n, share, dtype="uint64")
            starts[:] = np.arange(self.local_experts * n).reshape(-1, n) * self.capacity
        else:
            most = min(share * self.capacity, self.pairs)
            inbox = shmem.device_array((n * most, row), travels)
            self._boxes = (
                inbox, shmem.device_array((self.pairs, row), travels),
                self.memory(n, most, row, dtype=travels), self.memory(n, dtype="uint64"),
                self.memory(self.blocks, n, dtype="uint64"),
            )  # fmt: skip
        self._inbox = rows = inbox
        if wire is not None:
            rows = shmem.device_array((inbox.shape[0], hidden), self.dtype)
            self._stage = shmem.to_device(np.zeros((tokens, row), "int8"))
            self._largest = shmem.device_array((self.blocks, self.threads), "float32")
        self._starts = shmem.to_device(starts)
        counts = shmem.to_device(np.zeros((self.local_experts, n), "int32"))
        self.received = Received(rows, self._starts[0], counts)
        self._under_way: Any = None

    def dispatch(self, x: Any, experts: Any, stream: Any = 0) -> Received:
        """Send the rows of `x` (t, H) to the experts chosen, (t, top_k) of int32; asynchronous.

        t <= tokens, and may differ from PE to PE and from call to call. A number that is no expert,
        such as -1, is none. Returns `plan.received`, the same arrays each time, which kernels
        launched on the stream from now on may read until `combine`: `rows` (rows, H), of which
        segment (l, p) is rows[starts[l, p] :][: counts[l, p]], the tokens for local expert l from
        PE p in their order. In the form "throughput" all segments follow each other, those of an
        expert first; in "low_latency" each has `capacity` places. Raises `ArgumentError`.
        """
        self._turn(False)
        tokens = self._expect_tokens(x, experts)
        self._under_way = tokens
        if self.wire is not None:
            scales = self._stage.view("float32")
            self.launch(quantise, stream, x, self._stage, scales, self._largest)
            x = self._stage
        self.launch(
            FORMS[self.form], stream, x, experts.reshape(-1), self.top_k, self.experts,
            self.capacity, *self._sorting, self._starts, self.received.counts, self._heads,
            *self._boxes,
        )  # fmt: skip
        if self.wire is not None:
            self.launch(
                widen, stream, self.received.rows, self._inbox, self._inbox.view("float32"),
                self._starts, self.received.counts,
            )  # fmt: skip
        return self.received

    def combine(self, y: Any, weights: Any, out: Any, stream: Any = 0) -> None:
        """Set row t of `out` (t, H) to the sum of weights[t, j] times what expert j made of it.

        `y` is laid out as `received.rows`, and may be that array, computed in place; `weights` (t,
        top_k) of float32. Sums are kept in `out`, in its dtype, j = 0 first. Asynchronous; on
        completion `y` may be reused. Raises `ArgumentError`.
        """
        self._turn(True)
        self._expect_results(self._under_way, weights, out)
        self.expect("y", y, tuple(self.received.rows.shape), self.dtype)
        self._under_way = None
        self.launch(
            combine, stream, y, weights, out, self.experts, self._position, self._starts,
            self._heads, self._returned, self._back,
        )  # fmt: skip

    def _turn(self, under_way: bool) -> None:
        if (self._under_way is not None) != under_way:
            raise shmem.ArgumentError(
                "ExpertParallel: combine follows dispatch, once, and the next dispatch combine; "
                "make a second plan for a second batch under way"
            )

    def sends(self) -> tuple[int, int]:
        """Bytes and messages that a PE sends in dispatch and combine, if experts are chosen evenly."""
        others, segments = self.n_pes - 1, (self.n_pes - 1) * self.experts_per_pe
        rows = self.pairs * others // self.n_pes
        ahead = rows + 2 * segments if self.form == "low_latency" else others * (self.blocks + 1)
        nbytes = rows * (self.row_bytes + self.hidden * self.dtype.itemsize)
        return nbytes + 8 * segments, ahead + segments


def wire_row(hidden: int) -> int:
    """Bytes of a token as int8 with its scale, which is aligned."""
    return -(-hidden // 4) * 4 + 4


def through_int8(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Tokens as they arrive with `wire="int8"`."""
    wide = x.astype("float32")
    scale = np.abs(wide).max(axis=1, keepdims=True) / np.float32(127)
    steps = np.floor(wide / np.where(scale > 0, scale, 1) + np.float32(0.5))
    return (steps * scale).astype(x.dtype)


def reference(
    xs: list[Any], choices: list[Any], weights: list[Any], expert: Callable[[int, Any], Any],
    capacity: int | None = None,
) -> tuple[list[Any], list[int]]:  # fmt: skip
    """What each PE ends with, and drops; from all PEs' tokens, and `expert(e, rows)`."""
    results, dropped = [], []
    for x, chosen, weight in zip(xs, choices, weights, strict=True):
        made = np.zeros((*chosen.shape, x.shape[1]), x.dtype)
        lost = 0
        for e in sorted({int(e) for e in chosen.reshape(-1)} - {-1}):
            t, j = np.nonzero(chosen == e)
            kept = slice(len(t) if capacity is None else capacity)
            lost += len(t) - len(t[kept])
            made[t[kept], j[kept]] = expert(e, x[t[kept]])
        out = np.zeros_like(x)
        for j in range(chosen.shape[1]):
            out += (weight[:, j, None] * made[:, j]).astype(x.dtype)
        results.append(out)
        dropped.append(lost)
    return results, dropped
