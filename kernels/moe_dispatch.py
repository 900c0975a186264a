"""Send tokens to the PEs of their experts and bring the results back: dispatch and combine.

A layer with a mixture of experts sends each token to `top_k` of E experts and adds up what they
make of it. Expert e lives on PE e // ceil(E / n); the last PEs may have fewer experts, or none.

    dispatch     token 0: experts 4, 1      PE 0, experts 0 1 2:  inbox  [ 1 of PE 0 | 1 of PE 1 ...
                 token 1: experts 4, 5      PE 1, experts 3 4 5:  inbox  [ 4 of PE 0 | 4 of PE 1 ...

    combine      out[0] = weights[0, 0] * (row back from expert 4) + weights[0, 1] * (... expert 1)

Each PE sorts its (token, choice) pairs by expert, in the order of its tokens, by counting: so the
place of every row follows from the sender's choices alone. Two forms of dispatch:

    low latency  each row is put to its place in the segment (expert, source) on the expert's PE,
                 from the tokens themselves; behind them, after a fence for all segments of a
                 block, goes the segment's signal. It is the head: where the rows come back to, and
                 how many they are. Nothing is exchanged before.
    throughput   rows are sent as one message per PE, in parts of the kernel's blocks, each with a
                 signal, and sorted by expert where they arrive. A token is in a PE's message once,
                 whichever of its experts live there. With it go the heads, and for each pair which
                 row of the message is its token. Rows are stored to the others' memory, of which a
                 block tells after one fence; over a network they are packed, and put.

In combine a segment goes back as it is, with a signal, to rows that its head has named: the sorted
order of the owner's pairs. The owner adds up its rows in the order of its choices, so the
result has the same bits whatever came first, and whichever the form.

What a PE sends, for t tokens of h bytes on the wire and H bytes in their dtype, if experts are
chosen evenly; L experts a PE, blocks of the kernel B:

                  bytes                    messages
    low latency   t top_k (n - 1) / n h    t top_k (n - 1) / n, and (n - 1) L signals
    throughput    t D h                    (n - 1) (B + 2)
    combine       t top_k (n - 1) / n H    (n - 1) L

D is how many other PEs a token has experts on: (n - 1) (1 - C(E - L, top_k) / C(E, top_k)), with 8
PEs, 256 experts and top_k 8 it is 4.6, not 7. The places are 4 bytes for each pair.

The places of low latency take n L capacity rows, most of them empty; those of throughput at most n
t top_k. Boxes and signals are there once, not twice as `plan` has it: dispatch and combine take
turns, and a PE hears in each from all who used what it is going to write to in the other. So may a
head be a signal: whoever waits for one sees 0 or the head, takes it and sets it to 0 again, all of
it before combine returns the segment; only who has received that sends the next. The fence orders
rows and signal over a network, too: it covers all that the block's threads sent before they met.
Either may be two launches, of which the first sends and the second, the hook's, receives: the same
steps in the same order, of one epoch, so nothing of the above changes. The second completes what
the first has sent: the end of a kernel orders all its threads before the next one's.
Tokens beyond an expert's capacity are dropped as in GShard (Lepikhin et al., 2020) and Switch
Transformers (Fedus, Zoph and Shazeer, JMLR 23, 2022), here per source, which needs no agreement.
The two forms follow those of DeepEP (DeepSeek); segments are the batches, and the rows in order the
contiguous input, of vLLM's experts. Others of the kind: pplx-kernels (Perplexity), Triton-
distributed (ByteDance), and examples/moe_shuffle.cu of NVSHMEM.
"""

from __future__ import annotations

from collections.abc import Callable
from math import comb
from typing import Any, NamedTuple

import numpy as np
from gpushmem.kernels.moe_parts import (
    COUNT,
    MASKS,
    add_up,
    experts_of,
    receive_head,
    send_rows,
    size_of,
    sort_by_expert,
)
from gpushmem.kernels.parts import begin, complete, end, member, share_of, wait_for_all
from gpushmem.kernels.plan import Plan
from gpushmem.kernels.wire import WIRES, Wire, row_bytes
from numba import cuda

import gpushmem as shmem
from gpushmem.checks import dtype_name

__all__ = ["Dispatch", "ExpertParallel", "Received", "reference"]

SEND, RECEIVE = 1, 2  # what a launch does: all of a call, or one of its halves

# --- dispatch


@shmem.jit(collective=True)
def dispatch_low_latency(
    x, experts, top_k, n_experts, capacity, mine, order, position, dropped, starts, counts, heads,
    inbox, arrived, near, phases, team, epochs,
):  # fmt: skip
    """`mine`, `order`, `position` and `starts` are of each block; the others see `send_rows`."""
    me, n = shmem.team_my_pe(team), shmem.team_n_pes(team)
    b, share = cuda.blockIdx.x, arrived.shape[1]
    if phases & SEND:
        sort_by_expert(experts, top_k, n_experts, capacity, mine[b], order[b], position[b], dropped)
        send_rows(x, n_experts, capacity, mine[b], order[b], inbox, arrived, near, team, False)
    if phases & RECEIVE:
        first, step = b + cuda.threadIdx.x * cuda.gridDim.x, cuda.blockDim.x * cuda.gridDim.x
        for k in range(first, n * experts_of(me, n_experts, share), step):
            local, source = k // n, k % n
            counts[local, source] = receive_head(arrived, heads, source, local) & COUNT
        complete()
        end(epochs)


@shmem.jit(device=True)
def find_homes(homes, experts, share, position):
    """Set `homes` (pairs,) to the PEs of experts, -1 for pairs that are not sent."""
    for i in range(cuda.threadIdx.x, homes.size, cuda.blockDim.x):
        homes[i] = experts[i] // share if position[i] >= 0 else -1


@shmem.jit(device=True)
def find_places(index, homes, position, there, slots, top_k):
    """Set `index` for each pair, in the order of experts, to the row of its PE's message.

    A thread has tokens of its own: one that names an expert again has one place for both.
    """
    for first in range(cuda.threadIdx.x * top_k, homes.size, cuda.blockDim.x * top_k):
        for i in range(first, first + top_k):
            if position[i] >= 0:
                index[position[i]] = slots[i] - (there[homes[i]] >> 32)


@shmem.jit(device=True)
def send_packed(
    x, n_experts, mine, there, sent, index, heads, places, outbox, inbox, counted, arrived, near,
    team, epoch,
):  # fmt: skip
    """Send heads and places, and the rows for each PE as one message, in parts of blocks.

    Where all members are `near`, a block tells of all that it has stored at the end, after one
    fence, a thread for each PE.
    """
    me, n, share = shmem.team_my_pe(team), shmem.team_n_pes(team), heads.shape[1]
    b, blocks = cuda.blockIdx.x, cuda.gridDim.x
    for k in range(b, n, blocks):
        to = (me + 1 + k) % n
        if to * share < n_experts:
            ahead, pe = mine[to * share : (to + 1) * share], member(team, to)
            start, size = ahead[0] >> 32, size_of(ahead)
            rows = index[start : start + size]
            if near:
                shmem.copy_block(shmem.peer_array(heads[me], pe), ahead)
                shmem.copy_block(shmem.peer_array(places[me, :size], pe), rows)
            else:
                shmem.put_signal_nbi_block(
                    heads[me], ahead, counted[me:], epoch, shmem.SIGNAL_SET, pe
                )
                shmem.put_signal_nbi_block(
                    places[me, :size], rows, counted[n + me :], epoch, shmem.SIGNAL_SET, pe
                )
    for k in range(n):
        to = (me + 1 + k) % n
        if to * share < n_experts:
            pe, size, start = member(team, to), there[to] & COUNT, there[to] >> 32
            first, last = share_of(size, blocks, b)
            box, rows = inbox[me, first:last], sent[start + first : start + last]
            if near:
                shmem.copy_rows_block(shmem.peer_array(box, pe), x, rows)
            else:
                packed = outbox[start + first : start + last]
                shmem.copy_rows_block(packed, x, rows)
                shmem.put_signal_nbi_block(
                    box, packed, arrived[me, b:], epoch, shmem.SIGNAL_SET, pe
                )
    if near:
        tell_of_rows(n_experts, share, counted, arrived, team, epoch)


@shmem.jit(device=True)
def tell_of_rows(n_experts, share, counted, arrived, team, epoch):
    """Tell all PEs that have experts of what the block has stored there, and sees, by copies."""
    me, n, b = shmem.team_my_pe(team), shmem.team_n_pes(team), cuda.blockIdx.x
    if cuda.threadIdx.x < n:
        shmem.fence()
    for k in range(cuda.threadIdx.x, n, cuda.blockDim.x):
        to = (me + 1 + k) % n
        if to * share < n_experts:
            pe = member(team, to)
            if k % cuda.gridDim.x == b:
                shmem.signal_op(counted[me:], epoch, shmem.SIGNAL_SET, pe)
                shmem.signal_op(counted[n + me :], epoch, shmem.SIGNAL_SET, pe)
            shmem.signal_op(arrived[me, b:], epoch, shmem.SIGNAL_SET, pe)


@shmem.jit(device=True)
def lay_out(starts, counts, heads, align):
    """One segment behind the other: `starts` and `counts` (local experts, n) from the heads.

    Those of an expert begin at a multiple of `align`.

    The block's own `starts`; `counts` by block 0. For the other threads, synchronise the block.
    """
    if cuda.threadIdx.x == 0:
        total = 0
        for local in range(starts.shape[0]):
            total = (total + align - 1) // align * align
            for source in range(starts.shape[1]):
                starts[local, source] = total
                total += heads[source, local] & COUNT
                if cuda.blockIdx.x == 0:
                    counts[local, source] = heads[source, local] & COUNT


@shmem.jit(collective=True)
def dispatch_throughput(
    x, experts, top_k, n_experts, capacity, mine, order, position, dropped, starts, counts, heads,
    rows, outbox, inbox, there, lists, places, counted, arrived, align, near, phases, team, epochs,
):  # fmt: skip
    """`rows` (rows, row) is where tokens end; `inbox` (n, rows, row); `outbox` (rows, row).

    The last is used where not all members are `near`.

    Tokens are sorted by the PEs of their experts, too: `there` (blocks, n) has the heads of PEs'
    messages; of `lists` (4, blocks, pairs) the first has pairs' PEs, the second the tokens of
    messages' rows, the third pairs' rows, and the last these in the order of experts, counted from
    the message's first: `places` (n, rows) is where they go. `counted` (2 n,), `arrived` (n,
    blocks): a block sends its part of each message, and gathers its part of the pairs.
    """
    me, n, epoch = shmem.team_my_pe(team), shmem.team_n_pes(team), begin(epochs)
    b, blocks = cuda.blockIdx.x, cuda.gridDim.x
    if phases & SEND:
        sort_by_expert(experts, top_k, n_experts, capacity, mine[b], order[b], position[b], dropped)
        homes, sent, slots, index = lists[0, b], lists[1, b], lists[2, b], lists[3, b]
        homes = homes[: experts.size]
        find_homes(homes, experts, heads.shape[1], position[b])
        sort_by_expert(homes, top_k, n, experts.size // top_k, there[b], sent, slots, dropped[1:])
        find_places(index, homes, position[b], there[b], slots, top_k)
        cuda.syncthreads()
        send_packed(
            x, n_experts, mine[b], there[b], sent, index, heads, places, outbox, inbox, counted,
            arrived, near, team, epoch,
        )  # fmt: skip
    if phases & RECEIVE:
        if me * heads.shape[1] < n_experts:
            wait_for_all(counted, epoch)
            lay_out(starts[b], counts, heads, align)
            for k in range(n):
                source = (me + n - k) % n
                wait_for_all(arrived[source], epoch)
                size, before = size_of(heads[source]), 0
                first, last = share_of(size, blocks, b)
                for local in range(starts.shape[1]):
                    count = heads[source, local] & COUNT
                    low, high = max(first, before), min(last, before + count)
                    if low < high:
                        to = starts[b, local, source] - before
                        shmem.copy_rows_block(
                            rows[to + low : to + high], inbox[source], places[source, low:high]
                        )
                    before += count
        complete()
        end(epochs)


# --- combine


@shmem.jit(collective=True)
def combine(
    y, weights, out, n_experts, position, starts, heads, returned, back, near, phases, team, epochs
):  # fmt: skip
    """`y` (rows, H) as received, `returned` (pairs, H), `back` (n * experts a PE,).

    Where all members are `near`, a block tells of all that it has stored at the end, after one
    fence, a thread for each segment.
    """
    me, n, epoch = shmem.team_my_pe(team), shmem.team_n_pes(team), begin(epochs)
    b, share, blocks = cuda.blockIdx.x, heads.shape[1], cuda.gridDim.x
    mine = experts_of(me, n_experts, share)
    if phases & SEND:
        for k in range(b, n * mine, blocks):
            source, local = (me + 1 + k // mine) % n, k % mine
            to, count = heads[source, local] >> 32, heads[source, local] & COUNT
            place, rows = returned[to : to + count], y[starts[b, local, source] :][:count]
            pe, signal = member(team, source), back[me * share + local :]
            if near:
                shmem.copy_block(shmem.peer_array(place, pe), rows)
            else:
                cuda.syncthreads()  # who gets the signal may write the next head: all read this
                shmem.put_signal_nbi_block(place, rows, signal, epoch, shmem.SIGNAL_SET, pe)
        if near:
            cuda.syncthreads()  # all have stored, and read the heads
            first = b + cuda.threadIdx.x * blocks
            if first < n * mine:
                shmem.fence()
            for k in range(first, n * mine, cuda.blockDim.x * blocks):
                signal, pe = back[me * share + k % mine :], member(team, (me + 1 + k // mine) % n)
                shmem.signal_op(signal, epoch, shmem.SIGNAL_SET, pe)
    if phases & RECEIVE:
        wait_for_all(back[:n_experts], epoch)
        add_up(out, weights, returned, position[b])
        complete()
        end(epochs)


# --- tokens in 8 bits


def stages_of(wire: Wire) -> tuple[Any, Any]:
    """The kernels before and after dispatch, by the functions of a wire."""
    quantise, sum_rows, _ = wire

    @shmem.jit
    def narrow(small, x, team, epochs):
        """`x` (t, H) to `small` (t or more, row); a block has rows of its own."""
        for t in range(cuda.blockIdx.x, x.shape[0], cuda.gridDim.x):
            quantise(small[t], x[t])

    @shmem.jit
    def widen(rows, small, starts, counts, team, epochs):
        """The rows of all segments of `small` (rows, row) to `rows` (rows, H)."""
        for local in range(counts.shape[0]):
            for source in range(counts.shape[1]):
                first = starts[local, source]
                last = first + counts[local, source]
                for r in range(first + cuda.blockIdx.x, last, cuda.gridDim.x):
                    sum_rows(rows[r], small[r : r + 1])

    return narrow, widen


STAGES = {name: stages_of(wire) for name, wire in WIRES.items()}
FORMS = {"low_latency": dispatch_low_latency, "throughput": dispatch_throughput}
FLOATS = ("float16", "bfloat16", "float32", "float64")


class Received(NamedTuple):
    """What dispatch fills: tokens as rows, in segments (local expert, source)."""

    rows: Any  #: (rows, H) of the plan's dtype
    starts: Any  #: (local experts, n) of int32: the first row of each segment
    counts: Any  #: (local experts, n) of int32: how many


class Dispatch(Plan):
    """What `ExpertParallel` and layers that fuse it have in common."""

    def __init__(
        self, *, tokens: int, hidden: int, experts: int, top_k: int, dtype: Any, team: Any,
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
        self._mine = self.sendable(shmem.to_device(np.zeros((blocks, n * share), "int64")))
        self._order, self._position = (
            shmem.device_array((blocks, self.pairs), "int32") for _ in range(2)
        )
        self._dropped = shmem.to_device(np.zeros(2, "int64"))  # the second, by PEs, stays 0
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
        if self.experts > MASKS:
            raise shmem.ArgumentError(
                f"{name}: there are {self.experts} experts, and room to sort by {MASKS} at most"
            )
        if self.top_k > self.experts:
            raise shmem.ArgumentError(
                f"{name}: a token chooses {self.top_k} experts, there are {self.experts}"
            )

    def _expect_tokens(self, x: Any, experts: Any) -> int:
        shape = tuple(self.on_device("x", x).shape)
        tokens = int(shape[0]) if shape else 0
        if tokens > self.tokens:
            raise shmem.ArgumentError(
                f"{type(self).__name__}: x has {tokens} tokens, the plan is for {self.tokens} at "
                f"most: make it with tokens={tokens} or more on all PEs"
            )
        self.expect("x", x, (tokens, self.hidden), self.dtype)
        self.expect("experts", experts, (tokens, self.top_k), "int32")
        return tokens

    def _expect_results(self, tokens: int, weights: Any, out: Any) -> None:
        weights = self.on_device("weights", weights)
        wide = self.dtype.name == dtype_name(weights.dtype) == "float64"
        kind = "float64" if wide else "float32"
        self.fits("weights", weights, (tokens, self.top_k), kind)
        self.expect("out", out, (tokens, self.hidden), self.dtype)

    def dropped(self) -> int:
        """How many of this PE's (token, expert) pairs the last dispatch dropped; waits for it."""
        return int(self._dropped.numpy()[0])


class ExpertParallel(Dispatch):
    """Dispatch and combine for up to `tokens` tokens a PE of `hidden` numbers, around your experts.

        received = plan.dispatch(x, experts)
        ...                                  # your kernels: y (rows, H) from received.rows
        plan.combine(y, weights, out=out)

    `experts` is how many there are in all; this PE has `plan.local_experts` of them, from
    `plan.first_expert` on. dtype float16, bfloat16, float32 or float64. At most `capacity` tokens
    per expert and source PE are taken, in the order of the tokens; the others count as zeros, and
    in `plan.dropped()`. Without it none are dropped. A token that names an expert more than once is
    sent to it once, and counts once. `form` is "low_latency" or "throughput": see the module. With
    `wire="float8_e4m3"` tokens travel as 8-bit floats with a scale for each 128 numbers, max |x| /
    448: a number is off by at most 1/16 of itself, or max |x| / 458752 if that is more. With "int8"
    as integers, scale max |x| / 127: it is off by at most max |x| / 254. Both are rounded to
    nearest even; where one number that shares a scale is not finite, all arrive as NaN. Results
    travel in their dtype. In the form "throughput" the rows of an expert begin at a multiple of
    `align`.

    dispatch and combine take turns, on all PEs of the team; so one plan has one batch under way.
    """

    moves = True

    def __init__(
        self, *, tokens: int, hidden: int, experts: int, top_k: int, dtype: Any,
        team: Any = shmem.TEAM_WORLD, capacity: int | None = None, form: str = "low_latency",
        wire: str | None = None, align: int = 1, blocks: int | None = None,
        threads: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(
            tokens=tokens, hidden=hidden, experts=experts, top_k=top_k, dtype=dtype, team=team,
            capacity=capacity, blocks=blocks, threads=threads,
        )  # fmt: skip
        if form not in FORMS or wire not in (None, *WIRES):
            raise shmem.ArgumentError(
                f"ExpertParallel: there is no form {form!r} with wire {wire!r}; there are "
                f"{', '.join(FORMS)}, and {', '.join(WIRES)}"
            )
        if align < 1 or (align > 1 and form != "throughput"):
            raise shmem.ArgumentError(
                f'ExpertParallel: align is {align}; it is 1 or more, and 1 unless form="throughput"'
            )
        self.form, self.wire = form, wire
        n, share = self.n_pes, self.experts_per_pe
        travels, row = self.dtype, hidden
        if wire is not None:
            travels, row = np.dtype("uint8"), row_bytes(hidden)
        self.row_bytes = row * travels.itemsize
        self._boxes: tuple[Any, ...]
        starts = np.zeros((self.blocks, self.local_experts, n), "int32")
        if form == "low_latency":
            inbox = self.memory(share * n * self.capacity, row, dtype=travels)
            self._boxes = inbox, self.memory(n, share, dtype="uint64"), self.reachable
            starts[:] = np.arange(self.local_experts * n).reshape(-1, n) * self.capacity
        else:
            most, once = (min(share * self.capacity, k) for k in (self.pairs, tokens))
            between = self.local_experts * (align - 1)
            inbox = self.sendable(shmem.device_array((n * most + between, row), travels))
            packed = 0 if self.reachable else min(self.pairs, n * tokens)
            outbox = shmem.device_array((packed, row), travels)
            there = shmem.device_array((self.blocks, n), "int64")
            lists = shmem.device_array((4, self.blocks, self.pairs), "int32")
            self._boxes = (
                inbox, self.sendable(outbox), self.memory(n, once, row, dtype=travels), there,
                self.sendable(lists), self.memory(n, most, dtype="int32"),
                self.memory(2 * n, dtype="uint64"), self.memory(n, self.blocks, dtype="uint64"),
                align, self.reachable,
            )  # fmt: skip
        rows = inbox
        if wire is not None:
            rows = self.sendable(shmem.device_array((inbox.shape[0], hidden), self.dtype))
            self._stage = self.sendable(shmem.to_device(np.zeros((tokens, row), "uint8")))
            self._narrow, self._widen = STAGES[wire]
        self._came = inbox
        self._starts = shmem.to_device(starts)
        counts = shmem.to_device(np.zeros((self.local_experts, n), "int32"))
        self.received = Received(rows, self._starts[0], counts)
        self._under_way: Any = None
        self._hook: Any = None

    def dispatch(
        self, x: Any, experts: Any, *, stream: Any = 0, return_hook: bool = False
    ) -> Received | Any:
        """Send the rows of `x` (t, H) to the experts chosen, (t, top_k) of int32; asynchronous.

        t <= tokens, and may differ from PE to PE and from call to call. A number that is no expert,
        such as -1, is none. Returns `plan.received`, the same arrays each time, which kernels
        launched on the stream from now on may read until `combine`: `rows` (rows, H), of which
        segment (l, p) is rows[starts[l, p] :][: counts[l, p]], the tokens for local expert l from
        PE p in their order. In the form "throughput" the segments of an expert follow each other,
        and the experts, each from a multiple of `align` on; in "low_latency" a segment has
        `capacity` places.

        With `return_hook` it launches only what sends, and returns `plan.received` and a hook.
        `hook(stream=...)`, by default on the same stream, launches what receives; what is launched
        between runs while tokens travel. `x` and `experts` may be reused, and `plan.received` read,
        when that has completed. Raises `ArgumentError`.
        """
        self._turn(False)
        tokens = self._expect_tokens(x, experts)
        if self.wire is not None:
            self.launch(self._narrow, stream, self._stage, x)
            x = self._stage
        hook = self._exchange(
            return_hook, stream, FORMS[self.form], x, self.flat(experts), self.top_k, self.experts,
            self.capacity, *self._sorting, self._starts, self.received.counts, self._heads,
            *self._boxes,
        )  # fmt: skip
        self._under_way = tokens
        return (self.received, hook) if return_hook else self.received

    def combine(
        self, y: Any, weights: Any, *, out: Any, stream: Any = 0, return_hook: bool = False
    ) -> Any:
        """Set row t of `out` (t, H) to the sum of weights[t, j] times what expert j made of it.

        `y` is laid out as `received.rows`, and may be that array, computed in place; `weights` (t,
        top_k) of float32, or of float64 if `y` is. Sums are kept as float32, or as float64 if `y`
        is, j = 0 first, and rounded once. Asynchronous; on completion `y` may be reused. With
        `return_hook` a hook is returned, and `out` written by what it launches, as in `dispatch`.
        Raises `ArgumentError`.
        """
        self._turn(True)
        self._expect_results(self._under_way, weights, out)
        self.expect("y", y, tuple(self.received.rows.shape), self.dtype)
        hook = self._exchange(
            return_hook, stream, combine, y, weights, out, self.experts, self._position,
            self._starts, self._heads, self._returned, self._back, self.reachable,
        )  # fmt: skip
        self._under_way = None
        return hook

    def _exchange(self, hooked: bool, stream: Any, kernel: Any, *args: Any) -> Any:
        """Launch all of a call; or what sends, and return what launches the rest."""

        def launch(phases: int, stream: Any) -> None:
            self.launch(kernel, stream, *args, phases)
            if phases & RECEIVE and kernel is not combine and self.wire is not None:
                rows, *segments = self.received
                self.launch(self._widen, stream, rows, self._came, *segments)

        def hook(stream: Any = stream) -> None:
            if self._hook is not hook:
                raise shmem.ArgumentError("ExpertParallel: a hook is called once")
            self._hook = None
            launch(RECEIVE, stream)

        launch(SEND if hooked else SEND | RECEIVE, stream)
        self._hook = hook if hooked else None
        return self._hook

    def _turn(self, under_way: bool) -> None:
        if self._hook is not None:
            raise shmem.ArgumentError(
                "ExpertParallel: the call before has only sent: call the hook that it returned"
            )
        if (self._under_way is not None) != under_way:
            raise shmem.ArgumentError(
                "ExpertParallel: combine follows dispatch, once, and the next dispatch combine; "
                "make a second plan for a second batch under way"
            )

    def sends(self) -> tuple[int, int]:
        """Bytes and messages that a PE sends in both, if experts are chosen evenly."""
        others, segments = self.n_pes - 1, (self.n_pes - 1) * self.experts_per_pe
        rows = self.pairs * others // self.n_pes
        back = rows * self.hidden * self.dtype.itemsize
        if self.form == "low_latency":
            return rows * self.row_bytes + back, rows + 2 * segments
        there = int(self.once * others) * self.row_bytes + 4 * rows + 8 * segments
        return there + back, others * (self.blocks + 2) + segments

    @property
    def once(self) -> float:
        """How many tokens have an expert on a given PE, if experts are chosen evenly."""
        elsewhere = comb(self.experts - self.experts_per_pe, self.top_k)
        return self.tokens * (1 - elsewhere / comb(self.experts, self.top_k))


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
            naming = np.flatnonzero((chosen == e).any(axis=1))
            tokens = naming[:capacity]
            lost += len(naming) - len(tokens)
            rows, columns = np.nonzero(chosen[tokens] == e)
            made[tokens[rows], columns] = expert(e, x[tokens])[rows]
        out = np.zeros(x.shape, np.result_type(x, weight))
        for j in range(chosen.shape[1]):
            out += weight[:, j, None] * made[:, j]
        results.append(out.astype(x.dtype))
        dropped.append(lost)
    return results, dropped
