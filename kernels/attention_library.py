"""Ring attention by the vendor's library, PyTorch's flash attention, while copies travel beside it.

A kernel that multiplies without tensor cores is many times slower than the library. So with
`method="library"` the caller's stream has the library's attention to one block of keys after the
other; the blocks travel meanwhile on a second stream, and what has been found so far is merged with
what a block adds by their log-sum-exps, in a small kernel (`merge`). PE 0 of 3:

    stream      attend to A    wait, attend to C, merge    wait, attend to B, merge
    beside      A -> PE 1      A -> PE 2
    home        (gradients)                  those of C -> PE 2          those of B -> PE 1

Blocks are not passed on: in step s PE p sends its own to PE p + s, so nobody waits for a third one,
and sends nothing but what its caller gave it. Between GPUs that reach each other's memory copy
engines send, as in `gemm_beside`; the second stream has a kernel of one warp for each message,
which waits for a free box, and has priority over the library's. Causal attention is never computed
where nothing is seen: with the zig-zag split (see `attention_parts`) a PE attends to its own block
with a mask, to the first halves of the blocks of PEs before it, and to those behind it with its
second half. Only what is seen of a block is sent.

With a window, or several sequences, a block falls into pieces: rows and keys of one chunk each and
one sequence, cut to those that see something, or are seen. What is masked in a piece is then a
triangle at a corner, or two: the library's own window, of keys to the left and right of a diagonal
that ends in the last corner.

Gradients: of each block the library computes what this PE adds, from the result and log-sum-exps of
all blocks; those of keys and values go straight to their owner, as 16-bit numbers as the library
gives them, and are added there as float32.

**Boxes and credits.** A PE receives in those steps in which it sees the block, and has SLOTS boxes
for them in turn. Which these are is the same in every call, so a signal is 1 or 0, no epoch:

    receiver    waits until the message `arrived`, reads it, sets `arrived` to 0; then it sets
                `free` of who uses the box next to 1: the sender of its message SLOTS further on,
                or, if there is none, that of the same box in the next call
    sender      waits until step s is `free`, sets that to 0, and sends

`free[s]` is 1 again only when the box of step s has been read, so after it was 0; and `arrived`
is set again only after `free` was. Who waits in step s waits for what others do in earlier steps,
or in the call before: so not for ever. For that a PE takes gradients of step s home behind step
s + 1, whether it reads a block in these or not. Each 0 is complete before what follows.

On CPUs the same plan calls PyTorch's attention for CPUs in the order of its streams (`on_stream`);
so all but CUDA's library itself can be tested there. Graphs: on CPUs calls are captured as all
else is; on GPUs capture with `torch.cuda.graph`, for the library allocates memory.

After ring-flash-attention's zig-zag, and the all-to-all form of context parallelism in Megatron.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterator
from functools import cache, partial
from itertools import islice, pairwise, product
from typing import Any, NamedTuple

import numpy as np
from gpushmem.kernels import attention_parts
from gpushmem.kernels.gemm_beside import came
from gpushmem.kernels.parts import complete, fours_of
from gpushmem.kernels.plan import SLOTS
from numba import cuda

import gpushmem as shmem

__all__ = ["LibraryBackward", "LibraryForward", "pieces_of", "suits"]

WARP, KEPT = 32, 32  # threads; arrays whose tensors are known
MOST_SIZE, EVEN = 256, 8  # of heads, on GPUs
GPU_DTYPES = "float16", "bfloat16"
CAUSAL = -1, 0  # limits to the left and right
MERGING = 4  # times as many blocks as the plan has merge: they wait for nobody


@cache
def torch_on_gpus() -> bool:
    """Whether PyTorch is installed, and sees a GPU."""
    try:
        return bool(importlib.import_module("torch").cuda.is_available())
    except ImportError:
        return False


def suits(plan: Any) -> bool:
    """Whether the library is to be preferred: there is one on GPUs, for such heads and masks."""
    fits = plan.dtype.name in GPU_DTYPES and plan.head_dim % EVEN == 0
    fits = fits and plan.head_dim <= MOST_SIZE
    return bool(plan.tuning.multiprocessors) and fits and torch_on_gpus()


class Piece(NamedTuple):
    """Rows of queries that attend to keys of a block.

    Row i of r sees key j of k if i + k - r - left <= j <= i + k - r + right; -1 is no limit.
    """

    rows: slice
    keys: slice
    left: int = -1
    right: int = -1


def pieces_of(plan: Any, me: int, source: int, ends: Any = None) -> list[Piece]:
    """What a PE attends to of the block of another one, or its own; one sequence, or several."""
    tokens = plan.tokens
    every, first, second = slice(0, tokens), slice(0, tokens // 2), slice(tokens // 2, tokens)
    if not tokens:
        return []
    if plan.window is not None or ends is not None:
        return list(_pieces(plan, me, source, ends or (0, plan.n_pes * tokens)))
    if not plan.causal or source == me:
        return [Piece(every, every, right=0 if plan.causal else -1)]
    if source < me:
        return [Piece(every, first if plan.zigzag else every)]
    return [Piece(second, every)] if plan.zigzag else []


def _pieces(plan: Any, me: int, source: int, ends: Any) -> Iterator[Piece]:
    """Of each chunk, chunk of keys, and sequence; all numbers but those of a piece: positions."""
    each, before, after = plan.tokens // plan.chunks, plan.before, plan.after
    mine, its = (
        list(enumerate(attention_parts.starts(each, pe, plan.n_pes, plan.chunks)))
        for pe in (me, source)
    )
    for (a, row), (b, key), (low, high) in product(mine, its, pairwise(ends)):
        first, last = max(row, low), min(row + each, high)
        begin, end = max(key, low), min(key + each, high)
        first, last = max(first, begin - after), min(last, end + before)
        if begin < end and first < last:
            begin, end = max(begin, first - before), min(end, last + after)
            rows, keys = row - a * each, key - b * each
            yield Piece(
                slice(first - rows, last - rows), slice(begin - keys, end - keys),
                end - last + before if last - 1 - before > begin else -1,
                last - end + after if first + after < end - 1 else -1,
            )  # fmt: skip


def span(plan: Any, me: int, source: int) -> slice:
    """The keys of a block that a PE sees, where there is one sequence."""
    seen = [piece.keys for piece in pieces_of(plan, me, source)]
    return slice(min(keys.start for keys in seen), max(keys.stop for keys in seen))


# --- PyTorch


class Library:
    """PyTorch's flash attention, of this plan: for tensors (tokens, heads, size)."""

    def __init__(self, plan: Any) -> None:
        try:
            self.torch = importlib.import_module("torch")
        except ImportError:
            raise shmem.ArgumentError(
                f"{type(plan).__name__}: method 'library' is PyTorch's attention: pip install torch"
            ) from None
        self.plan, self.scale = plan, float(plan.scale)
        self.group = plan.heads // plan.kv_heads
        self._ops = self.torch.ops.aten
        self._tensors: dict[int, tuple[Any, Any]] = {}  # by id: an array, and its tensor
        self.on_gpus = bool(plan.tuning.multiprocessors)

    def __call__(self, stream: Any, call: Any, *args: Any) -> None:
        """Queue a call of the library's."""
        shmem.on_stream(stream, partial(self._call, call, args))

    def _call(self, call: Any, args: tuple[Any, ...], handle: int | None) -> None:
        torch = self.torch
        with torch.no_grad():
            if handle is None:
                call(*args)
                return
            device = torch.cuda.current_device()
            on = torch.cuda.ExternalStream(handle) if handle else torch.cuda.default_stream(device)
            with torch.cuda.stream(on):
                call(*args)

    def tensor(self, array: Any) -> Any:
        """An array's memory as a tensor; the same object for the same array."""
        if isinstance(array, self.torch.Tensor):
            return array
        known = self._tensors.get(id(array))
        if known is None or known[0] is not array:
            if len(self._tensors) >= KEPT:
                self._tensors.clear()
            made = self._tensor(self.plan.on_device("x", array))
            self._tensors[id(array)] = known = array, made
        return known[1]

    def _tensor(self, array: Any) -> Any:
        if self.on_gpus:
            return self.torch.from_dlpack(array)
        memory = array.native()
        if memory.dtype.isbuiltin == 1:
            return self.torch.from_numpy(memory)
        return self.torch.from_numpy(memory.view("int16")).view(self.torch.bfloat16)

    def attend(self, q: Any, k: Any, v: Any, left: int, right: int) -> tuple[Any, Any]:
        """The result (t, H, D) and its log-sum-exps (H, t)."""
        if self.on_gpus:
            sizes = None, None, q.shape[0], k.shape[0]
            given = q[None], k[None], v[None], *sizes, 0.0, (left, right) == CAUSAL, False
            out, lse, *_ = self._ops._flash_attention_forward(
                *given, scale=self.scale, window_size_left=left, window_size_right=right
            )
            return out[0], lse[0]
        causal, mask = self._mask_for_cpu(q, k, left, right)
        out, lse = self._ops._scaled_dot_product_flash_attention_for_cpu(
            *self._for_cpu(q, k, v), 0.0, causal, attn_mask=mask, scale=self.scale
        )
        return out[0].transpose(0, 1), lse[0]

    def gradients(
        self, dout: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, left: int, right: int
    ) -> tuple[Any, Any, Any]:
        """Those of q, k and v, from the result and log-sum-exps over all keys."""
        if self.on_gpus:
            none = self.torch.empty(2, dtype=self.torch.int64, device=q.device)  # no dropout
            sizes = None, None, q.shape[0], k.shape[0]
            dq, dk, dv = self._ops._flash_attention_backward(
                *(x[None] for x in (dout, q, k, v, out)), lse[None].contiguous(), *sizes, 0.0,
                (left, right) == CAUSAL, none, none, scale=self.scale, window_size_left=left,
                window_size_right=right,
            )  # fmt: skip
            return dq[0], dk[0], dv[0]
        dout, out = (x[None].transpose(1, 2) for x in (dout, out))
        causal, mask = self._mask_for_cpu(q, k, left, right)
        found = self._ops._scaled_dot_product_flash_attention_for_cpu_backward(
            dout, *self._for_cpu(q, k, v), out, lse[None], 0.0, causal, attn_mask=mask,
            scale=self.scale,
        )  # fmt: skip
        dq, dk, dv = (x[0].transpose(0, 1) for x in found)
        shape = -1, self.group
        return dq, dk.unflatten(1, shape).sum(2), dv.unflatten(1, shape).sum(2)

    def _for_cpu(self, q: Any, *others: Any) -> list[Any]:
        """As (1, heads, tokens, size), with as many heads of keys as of queries."""
        wide = (x.repeat_interleave(self.group, 1) for x in others)
        return [x[None].transpose(1, 2) for x in (q, *wide)]

    def _mask_for_cpu(self, q: Any, k: Any, left: int, right: int) -> tuple[bool, Any]:
        """Whether it is causal, whose diagonal ends there in the first corner; else a mask."""
        torch, rows, keys = self.torch, q.shape[0], k.shape[0]
        if rows == keys and (left, right) == CAUSAL:
            return True, None
        if left < 0 and right < 0:
            return False, None
        far = torch.arange(keys) - torch.arange(rows)[:, None] - (keys - rows)
        low, high = (limit if limit >= 0 else rows + keys for limit in (left, right))
        hidden = (far < -low) | (far > high)
        return False, torch.zeros(rows, keys, dtype=q.dtype).masked_fill_(hidden, -math.inf)


# --- messages


@shmem.jit
def claim(free, team, epochs):
    """Wait until the box of a step is free, and take it; one block."""
    if cuda.threadIdx.x == 0:
        shmem.signal_wait_until(free, shmem.CMP_EQ, 1)
        shmem.signal_op(free, 0, shmem.SIGNAL_SET, shmem.my_pe())
        shmem.quiet()


@shmem.jit
def took(arrived, free, pe, team, epochs):
    """The message has been read: who is to send to its box next may do so; one block."""
    for k in range(cuda.threadIdx.x, arrived.size, cuda.blockDim.x):
        shmem.signal_op(arrived[k:], 0, shmem.SIGNAL_SET, shmem.my_pe())
    complete()
    if cuda.threadIdx.x == 0:
        shmem.signal_op(free, 1, shmem.SIGNAL_SET, pe)


class Exchange:
    """Messages of two parts: in step s from PE p to PE p + s, or p - s, on a stream of their own.

    `incoming` are the steps in which each PE receives.
    """

    def __init__(self, plan: Any, sign: int, incoming: list[list[int]]) -> None:
        self.plan, n, me = plan, plan.n_pes, plan.my_pe
        self.receives = incoming[me]
        its = {s: incoming[(me + sign * s) % n] for s in range(1, n)}
        turns = {s: steps.index(s) for s, steps in its.items() if s in steps}
        self.sends = list(turns)
        self.stream = shmem.stream(-1, nonblocking=True)
        size = plan.tokens * plan.kv_heads * plan.head_dim
        inbox = plan.memory(SLOTS, 2, size, dtype=plan.dtype)
        arrived, free = plan.memory(n, 2, dtype="uint64"), plan.memory(n, dtype="uint64")
        free.copy_from(np.array([turns.get(s, SLOTS) < SLOTS for s in range(n)], "uint64"))
        boxes = [[inbox[slot, part] for part in range(2)] for slot in range(SLOTS)]
        self._to_boxes = {s: boxes[turn % SLOTS] for s, turn in turns.items()}
        self._boxes = {s: boxes[turn % SLOTS] for turn, s in enumerate(self.receives)}
        self._arrived, self._free = [arrived[s] for s in range(n)], [free[s:] for s in range(n)]
        self._parts = [[arrived[s, part:] for part in range(2)] for s in range(n)]

        def pe(step: int) -> int:
            if n == 1:  # this PE may be in no team
                return 0
            return int(plan.team.translate_pe((me + step) % n, shmem.TEAM_WORLD))

        self._to, self._next, steps = [pe(sign * s) for s in range(n)], {}, self.receives
        for turn, s in enumerate(steps):
            ahead = steps[turn + SLOTS if turn + SLOTS < len(steps) else turn % SLOTS]
            self._next[s] = self._free[ahead], pe(-sign * ahead)

    def send(self, step: int, parts: Any, first: int) -> None:
        """Send to who is `step` further on, to `first` in boxes; asynchronous, on the stream."""
        self._launch(self.stream, claim, self._free[step])
        for which, part in enumerate(parts):
            box = self._to_boxes[step][which][first : first + part.size]
            signal = self._parts[step][which]
            shmem.put_signal(
                box, part, signal, 1, shmem.SIGNAL_SET, self._to[step], stream=self.stream
            )  # fmt: skip

    def receive(self, step: int, stream: Any) -> list[Any]:
        """Wait for the message of a step; returns its boxes, to be read until `taken`."""
        self._launch(stream, came, self._arrived[step])
        return self._boxes[step]

    def taken(self, step: int, stream: Any) -> None:
        """Say that the message of a step has been read."""
        self._launch(stream, took, self._arrived[step], *self._next[step])

    def _launch(self, stream: Any, kernel: Any, *args: Any) -> None:
        shape = 1, min(WARP, self.plan.threads), stream
        self.plan.launch_as(shape, self.plan._epochs, kernel, *args)


# --- the plans


@shmem.jit
def merge(sums, lse, part, part_lse, first, team, epochs):
    """Merge `part` (t, H, D), `part_lse` (H, t), into rows from `first` on of `sums` and `lse`.

    A warp has rows of its own; for the block, the last thing that is done with a row is its lse.
    """
    lanes = WARP if cuda.blockDim.x % WARP == 0 else 1
    warps, lane = cuda.blockDim.x // lanes, cuda.threadIdx.x % lanes
    (tokens, heads, _), step = part.shape, cuda.gridDim.x * warps
    for start in range(cuda.blockIdx.x * warps, tokens * heads, step):
        row = start + cuda.threadIdx.x // lanes
        t, head, total = row // heads, row % heads, np.float32(0)
        if row < tokens * heads:
            before, new = lse[head, first + t], part_lse[head, t]
            top = max(before, new)
            total = top + np.float32(math.log(math.exp(before - top) + math.exp(new - top)))
            add_row(
                sums[first + t, head], part[t, head], np.float32(math.exp(before - total)),
                np.float32(math.exp(new - total)), lane, lanes,
            )  # fmt: skip
        cuda.syncthreads()
        if row < tokens * heads and lane == 0:
            lse[head, first + t] = total


@shmem.jit(device=True)
def add_row(row, other, a, b, lane, lanes):
    """Set a row to a times itself and b times another."""
    fours = min(fours_of(row), fours_of(other))
    for i in range(lane, fours, lanes):
        x, y = shmem.load_vector(row, 4 * i, 4), shmem.load_vector(other, 4 * i, 4)
        made = (
            a * x[0] + b * np.float32(y[0]), a * x[1] + b * np.float32(y[1]),
            a * x[2] + b * np.float32(y[2]), a * x[3] + b * np.float32(y[3]),
        )  # fmt: skip
        shmem.store_vector(row, 4 * i, made)
    for i in range(4 * fours + lane, row.size, lanes):
        row[i] = a * row[i] + b * np.float32(other[i])


class Blocks:
    """What both have in common: the library, and blocks of keys and values that come."""

    def __init__(self, plan: Any) -> None:
        self.plan, self.library = plan, Library(plan)
        self._shape = plan.tokens, plan.kv_heads, plan.head_dim
        self._row = plan.kv_heads * plan.head_dim
        n, others = plan.n_pes, range(1, plan.n_pes)
        self._comes = [[s for s in others if plan.sees[pe][(pe - s) % n]] for pe in range(n)]
        self._keys = Exchange(plan, 1, self._comes)
        self._pieces: dict[Any, list[list[Piece]]] = {}  # by `ends`: of each PE's block

    def _pieces_of(self, ends: Any) -> list[list[Piece]]:
        """Of each PE's block."""
        known = self._pieces.get(ends)
        if known is None:
            if len(self._pieces) >= KEPT:
                self._pieces.clear()
            plan = self.plan
            known = [pieces_of(plan, plan.my_pe, pe, ends) for pe in range(plan.n_pes)]
            self._pieces[ends] = known
        return known

    def _at_once(self, pieces: list[list[Piece]]) -> bool:
        """Whether all rows of this PE attend to its own block in one call."""
        own = pieces[self.plan.my_pe]
        return [piece.rows for piece in own] == [slice(0, self.plan.tokens)]

    def _begin(self, k: Any, v: Any, stream: Any) -> None:
        """Send this PE's block to all who attend to it."""
        self.plan.on(stream)
        if self.plan.n_pes > 1:
            shmem.wait_stream(self._keys.stream, stream)
        self._left = iter(self._keys.sends)
        for step in islice(self._left, SLOTS):
            self._send(step, k, v)

    def _send(self, step: int, k: Any, v: Any) -> None:
        plan = self.plan
        seen = span(plan, (plan.my_pe + step) % plan.n_pes, plan.my_pe)
        self._put(self._keys, step, (k, v), seen)

    def _put(self, exchange: Exchange, step: int, arrays: Any, rows: slice) -> None:
        first, last = rows.start * self._row, rows.stop * self._row
        exchange.send(step, [self.plan.flat(array, first, last) for array in arrays], first)

    def _blocks(
        self, k: Any, v: Any, pieces: list[list[Piece]], stream: Any
    ) -> Iterator[tuple[int, list[Piece], Any, Any]]:
        """Step, pieces and tensors of each block; when the next one is asked for, it is read."""
        plan, tensor = self.plan, self.library.tensor
        yield 0, pieces[plan.my_pe], tensor(k), tensor(v)
        for step in self._keys.receives:
            boxes = self._keys.receive(step, stream)
            keys, values = (tensor(box).view(self._shape) for box in boxes)
            yield step, pieces[(plan.my_pe - step) % plan.n_pes], keys, values
            self._keys.taken(step, stream)
            for further in islice(self._left, 1):  # it waits for others' `taken` of this step
                self._send(further, k, v)
        for step in self._left:
            self._send(step, k, v)
        if plan.n_pes > 1:
            shmem.wait_stream(stream, self._keys.stream)

    @property
    def sends(self) -> tuple[int, int]:
        """Numbers and messages that this PE sends."""
        me, n = self.plan.my_pe, self.plan.n_pes
        rows = (span(self.plan, (me + s) % n, me) for s in self._keys.sends)
        return sum(2 * self._row * (r.stop - r.start) for r in rows), 2 * len(self._keys.sends)


class LibraryForward(Blocks):
    """What `RingAttention` does with the library; workspace: (float32 and dtype) t H D."""

    def __init__(self, plan: Any) -> None:
        super().__init__(plan)
        shape = plan.tokens, plan.heads, plan.head_dim
        self._sums = shmem.device_array(shape, "float32")
        self._result = shmem.device_array(math.prod(shape), plan.dtype)
        self._logs = shmem.device_array(plan.heads * plan.tokens, "float32")
        self._parts: dict[int, tuple[Any, Any]] = {}  # by rows: room for a piece's, and their lse

    def _part(self, rows: int) -> tuple[Any, Any]:
        if rows not in self._parts:
            if len(self._parts) >= KEPT:
                self._parts.clear()
            shape, logs = (rows, self.plan.heads, self.plan.head_dim), (self.plan.heads, rows)
            self._parts[rows] = (
                self._result[: math.prod(shape)].reshape(shape),
                self._logs[: math.prod(logs)].reshape(logs),
            )
        return self._parts[rows]

    def __call__(
        self, q: Any, k: Any, v: Any, out: Any, lse: Any, ends: Any, stream: Any
    ) -> None:  # fmt: skip
        """Queue the call."""
        plan, library, pieces = self.plan, self.library, self._pieces_of(ends)
        mine, sums, logs = map(library.tensor, (q, self._sums, lse))
        at_once = self._at_once(pieces)
        alone = at_once and not self._keys.receives
        if not at_once:
            library(stream, self._clear, sums, logs)
        self._begin(k, v, stream)
        for step, these, keys, values in self._blocks(k, v, pieces, stream):
            for piece in these:
                rows, limits = piece.rows, (piece.left, piece.right)
                block = mine[rows], keys[piece.keys], values[piece.keys], *limits
                if step == 0 and at_once:
                    to = library.tensor(out) if alone else sums
                    library(stream, self._attend, *block, to, logs)
                    continue
                part, part_lse = self._part(rows.stop - rows.start)
                to = map(library.tensor, (part, part_lse))
                library(stream, self._attend, *block, *to)
                shape = MERGING * plan.blocks, plan.threads, stream
                args = self._sums, lse, part, part_lse, rows.start
                plan.launch_as(shape, plan._epochs, merge, *args)
        if not alone:
            library(stream, library.tensor(out).copy_, sums)

    def _clear(self, sums: Any, lse: Any) -> None:
        sums.zero_()
        lse.fill_(-math.inf)

    def _attend(
        self, q: Any, k: Any, v: Any, left: int, right: int, out: Any, lse: Any
    ) -> None:  # fmt: skip
        found, logs = self.library.attend(q, k, v, left, right)
        out.copy_(found)
        lse.copy_(logs)


class LibraryBackward(Blocks):
    """What `RingAttentionBackward` does with the library; see `sends` for what travels."""

    def __init__(self, plan: Any) -> None:
        super().__init__(plan)
        n = plan.n_pes
        home = [[s for s in range(1, n) if s in self._comes[(pe + s) % n]] for pe in range(n)]
        self._home = Exchange(plan, -1, home)
        self._sums = shmem.device_array((plan.tokens, plan.heads, plan.head_dim), "float32")
        self._own = [shmem.device_array(self._shape, "float32") for _ in range(2)]
        self._stage = [plan.sendable(shmem.device_array(self._shape, plan.dtype)) for _ in range(2)]

    def __call__(self, arrays: tuple[Any, ...], ends: Any, stream: Any) -> None:
        """Queue the call; `arrays` are dout, q, k, v, out, lse, dq, dk, dv."""
        plan, library, tensor = self.plan, self.library, self.library.tensor
        pieces, me, n, staged = self._pieces_of(ends), plan.my_pe, plan.n_pes, False
        dout, q, _, _, out, lse, *grads = map(tensor, arrays)
        at_once, sums = self._at_once(pieces), tensor(self._sums)
        if not at_once:
            library(stream, sums.zero_)
        self._begin(arrays[2], arrays[3], stream)
        given, came_home, read = (dout, q, out, lse), iter(self._home.receives), self._keys.receives
        following = dict(zip([0, *read], [*read, n + 1], strict=True))
        coming = next(came_home, n)
        for step, these, keys, values in self._blocks(arrays[2], arrays[3], pieces, stream):
            if staged:
                shmem.wait_stream(stream, self._home.stream)  # what is staged has been sent
            whole = span(plan, me, (me - step) % n) if step else slice(0, plan.tokens)
            to = [tensor(array) for array in (self._stage if step else self._own)]
            alone = [piece.keys for piece in these] == [whole]
            if not alone:
                for each in to:
                    library(stream, each.zero_)
            for piece in these:
                first = step == 0 and at_once, alone
                library(stream, self._add, piece, first, given, keys, values, *to)
            if step > 0:
                shmem.wait_stream(self._home.stream, stream)
                self._put(self._home, step, self._stage, whole)
            staged = step > 0
            while coming < following[step] - 1:
                self._take_home(coming, stream)
                coming = next(came_home, n)
        if n > 1:
            shmem.wait_stream(stream, self._home.stream)
        for grad, total in zip(grads, (self._sums, *self._own), strict=True):
            library(stream, grad.copy_, tensor(total))

    def _add(
        self, piece: Piece, first: tuple[bool, bool], given: tuple[Any, ...], keys: Any,
        values: Any, *to: Any,
    ) -> None:  # fmt: skip
        """Compute what a piece adds: to the gradients of q here, to `to` those of k and v.

        `first`: whether it is the first to do so.
        """
        rows, columns, left, right = piece
        dout, q, out, lse = given
        dq, *others = self.library.gradients(
            dout[rows], q[rows], keys[columns], values[columns], out[rows], lse[:, rows], left,
            right,
        )  # fmt: skip
        sums = self.library.tensor(self._sums)[rows]
        sums.copy_(dq) if first[0] else sums.add_(dq)
        for place, made in zip(to, others, strict=True):
            place[columns].copy_(made) if first[1] else place[columns].add_(made)

    def _take_home(self, step: int, stream: Any) -> None:
        """Add the gradients that a step brings."""
        plan, tensor = self.plan, self.library.tensor
        boxes = self._home.receive(step, stream)
        seen = span(plan, (plan.my_pe + step) % plan.n_pes, plan.my_pe)
        for own, box in zip(self._own, boxes, strict=True):
            come = tensor(box).view(self._shape)[seen]
            self.library(stream, tensor(own)[seen].add_, come)
        self._home.taken(step, stream)

    @property
    def sends(self) -> tuple[int, int]:
        """Numbers and messages that this PE sends."""
        (numbers, messages), steps = super().sends, self._home.sends
        me, n = self.plan.my_pe, self.plan.n_pes
        rows = (span(self.plan, me, (me - s) % n) for s in steps)
        home = sum(2 * self._row * (r.stop - r.start) for r in rows)
        return numbers + home, messages + 2 * len(steps)
