"""Pipelines: stages of a model on PEs that follow each other, and what travels between them.

PE s of the team has stage s. Activations go to the PE behind, gradients to the one before, and
nobody meets anybody: each of the two directions is a *channel* with a window of credits.

    PE s    item k -> box k % window    filled[k % window] = k   -> PE s + 1 waits for k, takes it
            waits until this is k, <- taken[k % window] = k         and gives the box back
            before it fills the box with item k + window

A channel has `window` boxes on the PE that receives, and for each of them two words, one on each
side, for each block of the kernel: a block sends to the same block there, and has a part of each
item. So a sender is at most `window` items ahead, which is what hides the way of an item, and the
time between two actions that need each other.

Items are numbered from 1, through all calls. Why nothing else needs to be ordered:

1. `filled[slot]` has one writer, who sets it to k after the data of item k have arrived, as
   `put_signal` promises. It did so after it had seen k - window in its `taken[slot]`, so the word
   was k - window then, and this had been seen: there is never a second update on its way, and the
   receiver, who waits until the word equals k, sees no other item in the box.
2. `taken[slot]` has one writer, too: a block that has waited for item k, and whose threads have
   all read it; then it fences, and sets the word to k. So what they read they read before the
   sender knows, which fills the box afterwards. It is set again after item k + window has come,
   and so after the sender has seen it: here, too, one update is on its way.
3. So calls need no epochs of their own and no barrier between them, unlike those of `plan`: that a
   PE hears from whom it writes to is asked for by each item.

Blocks do not wait in vain if the schedule, in which each stage does one thing after the other,
comes to its end with this window: `Schedule.times` finds out.

`PipelineExchange` is the two channels: for hosts, whose calls have the names of Megatron-Core's
functions, and for kernels, by the parts `send_item`, `wait_for_item` and `give_back`.

`PipelinedLayers` is a model whose stages are layers relu(x @ w), trained by one kernel on each PE:
it follows a table, for all microbatches, forward, backward and weights, with no host in between. A
block has rows of its own, through all layers, so it waits for its own block of other PEs alone;
but for the gradients of weights, which are sums over all rows. These are cut into tiles: before W
of a microbatch a block waits until all blocks of its PE have done I, and before it writes over
what W has read, until all have done that W. For both each block counts, in a word of `progress`,
the actions that it has done, after a fence.

What a PE sends in a call, for microbatches of R rows of H numbers of S bytes, of which it sends f
on and b back, and gets as many, g, from its neighbours, with B blocks:

    bytes       (f + b) R H S                    1f1b, not at an end: f = b = m, g = 2 m
    messages    (f + b + g) B, credits among them
    memory      2 window R H numbers on the heap, and of `depth` microbatches all layers' inputs

Schedules, and where they are from, are in `pipeline_schedules`.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from gpushmem.kernels.attention_parts import multiply
from gpushmem.kernels.gemm import chunk_of
from gpushmem.kernels.parts import (
    begin,
    end,
    member,
    part_of,
    send,
    tell,
    wait_for,
)
from gpushmem.kernels.pipeline_schedules import (
    BACKWARD,
    BACKWARDS,
    FORWARD,
    INPUT,
    WEIGHTS,
    Schedule,
    schedule,
)
from gpushmem.kernels.plan import Plan
from numba import cuda

import gpushmem as shmem
from gpushmem.checks import integer

__all__ = [
    "PipelineExchange", "PipelinedLayers", "give_back", "reference", "send_item", "wait_for_item",
]  # fmt: skip

DTYPES = "float32", "float16", "bfloat16"
ROWS = 32  # of a block, about: fewer are no faster to multiply
WINDOW = 2


@shmem.jit(device=True)
def send_item(box, src, filled, taken, item, pe, near):
    """Send `src` as item 1, 2, ... to `box` on `pe`, once that can be filled; for the block.

    `filled` and `taken` (window,) are those of this block; `box` is number `item` % window, or this
    block's part of it. Then `src` may be changed. `near`: its memory can be stored to.
    """
    slot = item % taken.size
    if item > taken.size:
        wait_for(taken[slot:], item - taken.size)
    send(box, src, filled[slot:], item, pe, near)
    if near:
        tell(filled[slot:], item, pe)


@shmem.jit(device=True)
def wait_for_item(filled, item):
    """Wait for an item; then all threads of the block see it in box `item` % window."""
    wait_for(filled[item % filled.size :], item)


@shmem.jit(device=True)
def give_back(taken, item, pe):
    """Let `pe`, who has sent `item`, fill its box again, after what the block has read of it."""
    tell(taken[item % taken.size :], item, pe)


@shmem.jit(device=True)
def take_item(out, box, filled, taken, item, pe):
    """Set `out` to an item that `pe` has sent to `box`, which it may then fill again."""
    wait_for_item(filled, item)
    shmem.copy_block(out, box)
    give_back(taken, item, pe)


@shmem.jit(collective=True)
def send_one(x, boxes, filled, taken, pe, near, team, epochs):
    """`x` (size,), `boxes` (window, size), `filled`, `taken` (blocks, window)."""
    item, b = begin(epochs), cuda.blockIdx.x
    first, last = part_of(x.size, cuda.gridDim.x, b)
    box = boxes[item % boxes.shape[0], first:last]
    send_item(box, x[first:last], filled[b], taken[b], item, pe, near)
    end(epochs)


@shmem.jit(collective=True)
def receive_one(out, boxes, filled, taken, pe, near, team, epochs):
    """As `send_one`, on the other side."""
    item, b = begin(epochs), cuda.blockIdx.x
    first, last = part_of(out.size, cuda.gridDim.x, b)
    box = boxes[item % boxes.shape[0], first:last]
    take_item(out[first:last], box, filled[b], taken[b], item, pe)
    end(epochs)


class Channels(Plan):
    """Two channels for items of one shape and dtype.

    `forward`, and `backward`: boxes (window, *shape) for what this PE receives, `filled` and
    `taken` (blocks, window).
    """

    def __init__(
        self, shape: tuple[int, ...], dtype: Any, window: int, team: Any, *, blocks: int | None,
        threads: int | None, parts: int,
    ) -> None:  # fmt: skip
        integer(f"{type(self).__name__}: window", window, 1, 2**31 - 1)
        super().__init__(team, blocks=blocks, threads=threads, parts=parts)
        self.dtype, self.window = np.dtype(dtype), window
        self.forward, self.backward = (self._channel(shape) for _ in range(2))

    def _channel(self, shape: tuple[int, ...]) -> tuple[Any, Any, Any]:
        boxes = self.memory(self.window, *shape, dtype=self.dtype)
        self.inboxes.append(boxes)
        filled, taken = (
            self.memory(self.blocks, self.window, dtype="uint64") for _ in ("there", "here")
        )
        return boxes, filled, taken

    def neighbour(self, step: int) -> int:
        """The number in the world of the PE so many behind this one, on the team's ring."""
        to = (self.my_pe + step) % self.n_pes
        return int(self.team.translate_pe(to, shmem.TEAM_WORLD)) if self.team else 0


class PipelineExchange(Channels):
    """Send activations to the stage behind, gradients to the one before; with a window of credits.

        plan.recv_forward(out=x)        x, gradient: device arrays of `shape` and `dtype`
        plan.send_forward(y)            what is sent may be changed, and what came be used, when
        plan.recv_backward(out=dy)      the call's turn on the stream is over
        plan.send_backward(dx)

    PE s of the team is stage s; with `ring` the last one also sends forward to the first, and the
    first back to the last, which PEs with several chunks need. A send waits, on the stream, if the
    receiver has taken none of the last `window` items. Both sides make their calls in the order of
    the items.

    In kernels of yours: `plan.launch(kernel, stream, ..., *plan.forward, *plan.backward)` gives
    boxes (window, size), `filled` and `taken` (blocks, window) of each direction, symmetric: for
    what comes from one neighbour, and for what goes to the other. Items are numbered from 1 through
    all calls: those of a call with n items from (epoch - 1) n + 1 on. A plan is for hosts or for
    kernels, not for both.
    """

    moves = True

    def __init__(
        self, *, shape: tuple[int, ...], dtype: Any, window: int = WINDOW, ring: bool = False,
        team: Any = shmem.TEAM_WORLD, blocks: int | None = None, threads: int | None = None,
    ) -> None:  # fmt: skip
        size, nbytes = prod(shape), prod(shape) * np.dtype(dtype).itemsize
        parts = -(-nbytes // shmem.tuning().block_bytes)
        super().__init__((size,), dtype, window, team, blocks=blocks, threads=threads, parts=parts)
        self.shape, self.ring = tuple(shape), ring
        names = "send_forward", "recv_forward", "send_backward", "recv_backward"
        self._counts = {name: self.epochs() for name in names}

    def send_forward(self, x: Any, *, stream: Any = 0) -> None:
        """Send `x` to the stage behind; asynchronous, in `stream`'s order.

        Raises `ArgumentError` if there is none, or for another shape or dtype; as they all do. On
        several machines what is sent must be symmetric or registered.
        """
        self._move("send_forward", send_one, 1, self.forward, x, stream)

    def recv_forward(self, *, out: Any, stream: Any = 0) -> None:
        """Set `out` to what the stage before sends next; as `send_forward`."""
        self._move("recv_forward", receive_one, -1, self.forward, out, stream)

    def send_backward(self, x: Any, *, stream: Any = 0) -> None:
        """Send `x`, a gradient, to the stage before; as `send_forward`."""
        self._move("send_backward", send_one, -1, self.backward, x, stream)

    def recv_backward(self, *, out: Any, stream: Any = 0) -> None:
        """Set `out` to the gradient that the stage behind sends next; as `send_forward`."""
        self._move("recv_backward", receive_one, 1, self.backward, out, stream)

    def _move(
        self, name: str, kernel: Any, step: int, channel: tuple[Any, ...], array: Any, stream: Any
    ) -> None:
        self.on(stream)
        if not self.ring and not 0 <= self.my_pe + step < self.n_pes:
            raise shmem.ArgumentError(
                f"PipelineExchange: {name}: stage {self.my_pe} of {self.n_pes} has no neighbour "
                "there; with ring=True it has"
            )
        self.expect("x" if kernel is send_one else "out", array, self.shape, self.dtype)
        given = self.flat(array), *channel, self.neighbour(step), self.reachable
        shape = self.blocks, self.threads, stream
        self.launch_as(shape, self._counts[name], kernel, *given)

    def sends(self) -> tuple[int, int]:
        """Bytes and messages of an item, of which as many messages come back as credits."""
        return prod(self.shape) * self.dtype.itemsize, self.blocks


# --- layers


# Columns of a table: what is done with which microbatch and chunk, where its activations and
# gradients are; which action all blocks must have done before, or -1; the numbers, in this call, of
# the items that are taken and sent, or 0; whether the gradients of weights are the first.
ACTION, MICROBATCH, CHUNK, SLOT, PLACE, AFTER, TAKE, GIVE, FRESH = range(9)


@shmem.jit(device=True)
def wait_for_blocks(progress, count):
    """Wait until all blocks of this PE have done so many actions; synchronises."""
    for k in range(cuda.threadIdx.x, progress.size, cuda.blockDim.x):
        shmem.signal_wait_until(progress[k:], shmem.CMP_GE, count)
    cuda.syncthreads()


@shmem.jit(device=True)
def squared_error(grad, loss, y, target):
    """Set `grad` to y - target, and `loss` (rows,) to half of its squares' sums; synchronises."""
    for r in range(grad.shape[0]):
        to, of, wanted = grad[r], y[r], target[r]
        for i in range(cuda.threadIdx.x, to.size, cuda.blockDim.x):
            to[i] = np.float32(of[i]) - np.float32(wanted[i])
    cuda.syncthreads()
    for r in range(cuda.threadIdx.x, grad.shape[0], cuda.blockDim.x):
        total, row = np.float32(0), grad[r]
        for i in range(row.size):
            total += np.float32(row[i]) * np.float32(row[i])
        loss[r] = total / 2
    cuda.syncthreads()


@shmem.jit(device=True)
def through_relu(x, y):
    """Keep of `x` what is where `y` is above 0: `y` itself, or gradients of it."""
    for r in range(x.shape[0]):
        to, of = x[r], y[r]
        for i in range(cuda.threadIdx.x, to.size, cuda.blockDim.x):
            kept = np.float32(to[i])  # loaded in any case: then CPUs need no branch
            to[i] = kept if of[i] > np.float32(0) else np.float32(0)


@shmem.jit(device=True)
def layers_forward(values, weights, first, last):
    """`values` (layers + 1, rows, H): from the first to the last, rows of this block."""
    for k in range(weights.shape[0]):
        y = values[k + 1, first:last]
        multiply(y, values[k, first:last], weights[k], False)
        through_relu(y, y)
        cuda.syncthreads()


@shmem.jit(device=True)
def layers_backward(grads, values, weights, first, last):
    """`grads` (layers, rows, H): of what is multiplied, from the last layer to the first."""
    for k in range(weights.shape[0] - 1, -1, -1):
        grad = grads[k, first:last]
        through_relu(grad, values[k + 1, first:last])
        cuda.syncthreads()
        if k > 0:
            multiply(grads[k - 1, first:last], grad, weights[k].T, False)


@shmem.jit(device=True)
def gradients_of_weights(gradients, grads, values, rows, columns, fresh):
    """Add x.T @ grad to all layers' `gradients` (layers, H, H), or set them; a block has tiles."""
    layers, hidden = gradients.shape[0], gradients.shape[1]
    down, across = (hidden + rows - 1) // rows, (hidden + columns - 1) // columns
    for i in range(cuda.blockIdx.x, layers * down * across, cuda.gridDim.x):
        k, top, left = i // (down * across), i // across % down * rows, i % across * columns
        bottom, right = min(top + rows, hidden), min(left + columns, hidden)
        multiply(
            gradients[k, top:bottom, left:right], values[k, :, top:bottom].T,
            grads[k, :, left:right], not fresh,
        )  # fmt: skip


@shmem.jit(collective=True)
def run_table(
    weights, gradients, x, target, loss, table, counts, share, rows, columns, kept, kept_grads, out,
    boxes, filled, taken, back, back_filled, back_taken, progress, near, team, epochs,
):  # fmt: skip
    """`kept` (chunks, depth, layers + 1, R, H), `kept_grads` (chunks, depth, layers, R, H).

    `weights`, `gradients` (chunks, layers, H, H), `out` (R, H), `table` (steps, 9); `counts` (2, 2)
    are the items that a call takes and sends forward, and backward.
    """
    me, n, epoch, b = shmem.team_my_pe(team), shmem.team_n_pes(team), begin(epochs), cuda.blockIdx.x
    behind, before = member(team, (me + 1) % n), member(team, (me - 1) % n)
    calls, window, layers = epoch - 1, boxes.shape[0], weights.shape[1]
    first, last = chunk_of(out.shape[0], share, b)
    for step in range(table.shape[0]):
        does, done = table[step], calls * table.shape[0] + 1  # when the first action is
        m, c, take, give = does[MICROBATCH], does[CHUNK], does[TAKE], does[GIVE]
        values, grads = kept[c, does[SLOT]], kept_grads[c, does[PLACE]]
        if does[AFTER] >= 0 and cuda.gridDim.x > 1:
            wait_for_blocks(progress, done + does[AFTER])
        if does[ACTION] == FORWARD:
            seen, mine = shmem.trace_range_start_block("forward"), values[0, first:last]
            if take > 0:
                item = calls * counts[0, 0] + take
                box = boxes[item % window, first:last]
                take_item(mine, box, filled[b], taken[b], item, before)
            else:
                shmem.copy_block(mine, x[m, first:last])
            layers_forward(values, weights[c], first, last)
            if give > 0:
                item = calls * counts[0, 1] + give
                box, mine = boxes[item % window, first:last], values[layers, first:last]
                send_item(box, mine, filled[b], taken[b], item, behind, near)
        elif does[ACTION] == INPUT:
            seen, mine = shmem.trace_range_start_block("input"), grads[layers - 1, first:last]
            if take > 0:
                item = calls * counts[1, 0] + take
                box = back[item % window, first:last]
                take_item(mine, box, back_filled[b], back_taken[b], item, behind)
            else:
                y = values[layers, first:last]
                squared_error(mine, loss[m, first:last], y, target[m, first:last])
            layers_backward(grads, values, weights[c], first, last)
            if give > 0:
                item, mine = calls * counts[1, 1] + give, out[first:last]
                multiply(mine, grads[0, first:last], weights[c, 0].T, False)
                box = back[item % window, first:last]
                send_item(box, mine, back_filled[b], back_taken[b], item, before, near)
        else:
            seen, fresh = shmem.trace_range_start_block("weights"), does[FRESH] > 0
            gradients_of_weights(gradients[c], grads, values, rows, columns, fresh)
        shmem.trace_range_end(seen)
        if does[ACTION] != FORWARD and cuda.gridDim.x > 1:
            tell(progress[b:], done + step, shmem.my_pe())
    end(epochs)


class PipelinedLayers(Channels):
    """Train layers relu(x @ w) that are cut into stages, in one kernel on each PE.

        plan(weights, gradients=gradients, x=x, target=target, loss=loss)

    The model has `layers` for each of the `chunks` of each PE; chunk c of PE s of p is the stage
    c p + s. A batch is `microbatches` of `rows` rows of `hidden` numbers. `kind` is that of
    `schedule`, or a `Schedule` of your own for the team; `window` the boxes of each direction, by
    default as many as let no stage wait for one, and 2 at least. float32, float16 or bfloat16;
    gradients are rounded to it after each microbatch. `tile` are the rows and columns of gradients
    of weights that a block computes at once.

    It is for layers so small that launches would take longer than products: on GPUs `gemm_block`
    multiplies, predicted to reach about 1 % of the limit with `hidden` 512. For large layers
    `gpushmem.torch.pipeline.Pipeline`, and `PipelineExchange` between products of your own, leave
    multiplying to the library.
    """

    fills = True

    def __init__(
        self, *, rows: int, hidden: int, layers: int, microbatches: int, dtype: Any,
        kind: Any = "1f1b", chunks: int = 1, window: int | None = None,
        tile: tuple[int, int] | None = None, team: Any = shmem.TEAM_WORLD,
        blocks: int | None = None, threads: int | None = None,
    ) -> None:  # fmt: skip
        for what, size in (("rows", rows), ("hidden", hidden), ("layers", layers)):
            integer(f"PipelinedLayers: {what}", size, 1, 2**31 - 1)
        if np.dtype(dtype).name not in DTYPES:
            raise shmem.ArgumentError(
                f"PipelinedLayers: dtype is {np.dtype(dtype)}; it can be {', '.join(DTYPES)}"
            )
        self.schedule = self._schedule(kind, max(team.n_pes, 1), microbatches, chunks)
        window = max(WINDOW, self.schedule.window) if window is None else window
        self.schedule.times(window=max(1, window))
        super().__init__(
            (rows, hidden), dtype, window, team, blocks=blocks, threads=threads,
            parts=-(-rows // ROWS),
        )  # fmt: skip
        self.rows, self.hidden, self.layers = rows, hidden, layers
        self.microbatches, self.chunks, self.tile = microbatches, chunks, tile or self.tuning.tile
        self._first, self._last = self.my_pe == 0, self.my_pe == self.n_pes - 1
        self._workspace = self._make_workspace()

    @staticmethod
    def _schedule(kind: Any, stages: int, microbatches: int, chunks: int) -> Schedule:
        if not isinstance(kind, Schedule):
            return schedule(kind, stages, microbatches, chunks)
        sizes = kind.stages, kind.microbatches, kind.chunks
        if sizes != (stages, microbatches, chunks):
            raise shmem.ArgumentError(
                f"PipelinedLayers: a schedule of {sizes} stages, microbatches and chunks, the plan "
                f"is for {(stages, microbatches, chunks)}"
            )
        return kind

    def _make_workspace(self) -> tuple[Any, ...]:
        depths = self.schedule.depth(), self.schedule.depth(BACKWARDS)
        rows, hidden = self.rows, self.hidden
        kept, grads = (
            shmem.device_array((self.chunks, depth, count, rows, hidden), self.dtype)
            for depth, count in zip(depths, (self.layers + 1, self.layers), strict=True)
        )
        out = shmem.device_array((rows, hidden), self.dtype)
        self._nothing = shmem.device_array((0, rows, hidden), self.dtype)
        self._no_loss = shmem.device_array((0, rows), "float32")
        return (
            shmem.to_device(self._table(*depths)), shmem.to_device(self._per_call()),
            -(-rows // self.blocks), *self.tile, self.sendable(kept), grads, self.sendable(out),
            *self.forward, *self.backward, self.memory(self.blocks, dtype="uint64"),
            self.reachable,
        )  # fmt: skip

    def _per_call(self) -> np.ndarray[Any, Any]:
        """How many items a call takes and sends, forward and backward: (2, 2)."""
        does, items = self.schedule.table[self.my_pe, :, 0], self.schedule.items[self.my_pe] > 0
        kinds = does == FORWARD, np.isin(does, BACKWARDS)
        return np.array([items[kind].sum(axis=0) for kind in kinds], "int64")

    def _table(self, depth: int, depth_of_grads: int) -> np.ndarray[Any, Any]:
        """What this PE does, in the columns of the kernel."""
        table, items = (x[self.my_pe].tolist() for x in (self.schedule.table, self.schedule.items))
        lines: list[list[int]] = []
        done: dict[Any, int] = {}  # when all that is needed of a place has been done
        begun: set[int] = set()
        for (action, m, c), item in zip(table, items, strict=True):
            slot, place = m % depth, m % depth_of_grads
            for part in (INPUT, WEIGHTS) if action == BACKWARD else (action,):
                needs = {FORWARD: ("values", c, slot), INPUT: ("grads", c, place)}
                after = done.get(needs.get(part, ("input", c, m)), -1)
                take, give = (0, 0) if part == WEIGHTS else item
                fresh = part == WEIGHTS and c not in begun
                if part == WEIGHTS:
                    begun.add(c)
                    done["values", c, slot] = done["grads", c, place] = len(lines)
                elif part == INPUT:
                    done["input", c, m] = len(lines)
                lines.append([part, m, c, slot, place, after, take, give, int(fresh)])
        return np.array(lines, "int64")

    def __call__(
        self, weights: Any, *, gradients: Any, x: Any = None, target: Any = None, loss: Any = None,
        stream: Any = 0,
    ) -> None:  # fmt: skip
        """Set `gradients` to those of half the squared error's sum; asynchronous, on `stream`.

        `weights` and `gradients` (chunks, layers, hidden, hidden) are this PE's. PE 0 gives `x`,
        the last one `target` (microbatches, rows, hidden), and `loss` (microbatches, rows) of
        float32, which is set for each row. Raises `ArgumentError` for other shapes or dtypes.
        """
        shape = self.chunks, self.layers, self.hidden, self.hidden
        batch = self.microbatches, self.rows, self.hidden
        for what, array in (("weights", weights), ("gradients", gradients)):
            self.expect(what, array, shape, self.dtype)
        if self._first:
            self.expect("x", x, batch, self.dtype)
        if self._last:
            self.expect("target", target, batch, self.dtype)
            self.expect("loss", loss, batch[:2], "float32")
        given = (
            x if self._first else self._nothing, target if self._last else self._nothing,
            loss if self._last else self._no_loss,
        )  # fmt: skip
        self.launch(run_table, stream, weights, gradients, *given, *self._workspace)

    def sends(self) -> tuple[int, int]:
        """Bytes and messages that this PE sends in a call, credits among them."""
        taken, sent = (int(k) for k in self._per_call().sum(axis=0))
        nbytes = sent * self.rows * self.hidden * self.dtype.itemsize
        return nbytes, (taken + sent) * self.blocks


def reference(
    x: np.ndarray[Any, Any], target: np.ndarray[Any, Any], weights: np.ndarray[Any, Any],
    dtype: Any = "float64",
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:  # fmt: skip
    """Loss (microbatches, rows) and gradients in one process, in float64.

    `weights` (..., H, H) are all layers in the model's order. What layers give is rounded to
    `dtype`, as are sums of gradients after each microbatch.
    """

    def rounded(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return values.astype(dtype).astype("float64")

    w = weights.reshape(-1, *weights.shape[-2:]).astype("float64")
    gradients, loss = np.zeros(w.shape), np.zeros(x.shape[:2])
    for m, given in enumerate(x.astype("float64")):
        values = [given]
        for each in w:
            values.append(np.maximum(rounded(values[-1] @ each), 0))
        grad = rounded(values[-1] - target[m])
        loss[m] = (grad**2).sum(axis=1) / 2
        for k in range(len(w) - 1, -1, -1):
            grad = grad * (values[k + 1] > 0)
            gradients[k] = rounded(gradients[k] + values[k].T @ grad)
            grad = rounded(grad @ w[k].T)
    return loss, gradients.reshape(weights.shape)
