"""Buckets of gradients and parameters: summed by whom they belong to, updated, and sent to all.

In data-parallel training each PE has all parameters, and gradients of its own samples. With ZeRO a
part of them belongs to each PE, which has the state of the optimizer for that part alone. In a
backward pass the last layers' gradients are there first: so the arrays are cut into *buckets*, one
behind the other, of which each is divided over the PEs, and is worked on as soon as its gradients
are there. `table` has for bucket k

    table[k]    the largest part's size, where this PE's part begins in its state, bounds

and the part of PE p is from `bounds[p]` to `bounds[p + 1]`, of both arrays. A part is cut into the
blocks' shares, and those into pieces, as if all had the largest one's size; what a part lacks of
them is not sent. What a PE sends of gradients of G bytes and parameters of S bytes, of which it has
g and s, for n PEs and P pieces, those of the largest parts: G - g + (n - 1) s bytes in 2 (n - 1) P
messages. All buckets share boxes and signals: on the heap, for B blocks and pieces of at most x and
y bytes, 2 B n (x + y + 16) bytes.

The optimizer's own numbers need not wait for all gradients: `zero` does all for one piece after the
other. If they must, there are two passes, which are here: each bucket is summed (`summing`), and
when all are, parts are updated and sent (`gathering`).

Parameters need not be there before a forward pass gets to them. So the second half may be left to
launches of their own, one for each bucket (`gather_bucket`), the last bucket first: it has the
parameters of the first layers.

The rule of `plan` holds in all of them: in each epoch each PE sends some to, and receives some from
all others, be they none. So it does not matter which bucket, or which pass, an epoch is of, as long
as all PEs begin the same ones in the same order. Between the epochs of a block other blocks may be
anywhere.

ZeRO is that of Rajbhandari et al., "ZeRO: memory optimizations toward training trillion parameter
models", SC 2020, its stage 2; buckets are those of PyTorch's DDP, Li et al., VLDB 2020.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from gpushmem.kernels.collectives import send_to_others
from gpushmem.kernels.parts import (
    ALIGN,
    begin,
    end_at,
    member,
    part_of,
    send,
    sum_in_order,
    tell_others,
    wait_for,
    wait_for_others,
)
from gpushmem.kernels.pieces import InPieces, cuts, piece_size
from gpushmem.kernels.plan import SLOTS
from numba import cuda

import gpushmem as shmem
from gpushmem.checks import dtype_name

__all__ = ["InBuckets", "aligned", "gathering", "in_part", "send_parts", "summing", "take", "width"]

DTYPES = "float32", "float16", "bfloat16"
LARGEST, HELD, BOUNDS = 0, 1, 2  # columns of `table`


@shmem.jit(device=True)
def in_part(bounds, pe, first, last):
    """Where elements `first` to `last` of the part of a PE are, as far as it has them."""
    lower, upper = bounds[pe], bounds[pe + 1]
    return min(lower + first, upper), min(lower + last, upper)


@shmem.jit(device=True)
def send_parts(x, bounds, first, last, boxes, signals, near, team, epoch):
    """Send elements `first` to `last` of the others' parts to them."""
    me, n = shmem.team_my_pe(team), shmem.team_n_pes(team)
    for k in range(1, n):
        to = (me + k) % n
        lower, upper = in_part(bounds, to, first, last)
        part, box = x[lower:upper], boxes[me][: upper - lower]
        send(box, part, signals[me:], epoch, member(team, to), near)
    tell_others(signals[me:], epoch, team, near)


@shmem.jit(device=True)
def take(x, bounds, first, last, boxes, signals, team, epoch):
    """Copy elements `first` to `last` of the others' parts to where they belong."""
    me, n = shmem.team_my_pe(team), shmem.team_n_pes(team)
    for k in range(1, n):
        source = (me + n - k) % n
        wait_for(signals[source:], epoch)
        lower, upper = in_part(bounds, source, first, last)
        shmem.copy_block(x[lower:upper], boxes[source][: upper - lower])


def summing(then: Any) -> Any:
    """The kernel of the first pass; `then(piece)` is a float32 of the block's, which it adds up."""

    @shmem.jit(collective=True)
    def sum_buckets(gradients, table, some, end, piece, inbox, arrived, found, near, team, epochs):
        """Of buckets `some` to `end`; `found` (blocks,) grows.

        Boxes (SLOTS, blocks, n, piece), signals (SLOTS, blocks, n).
        """
        epoch, b = begin(epochs), cuda.blockIdx.x
        me, n, total = shmem.team_my_pe(team), shmem.team_n_pes(team), found[b]
        for k in range(some, end):
            bounds = table[k, BOUNDS:]
            lower, upper = part_of(table[k, LARGEST], cuda.gridDim.x, b)
            for first in range(lower, upper, piece):
                last, s = min(first + piece, upper), epoch % SLOTS
                boxes, signals = inbox[s, b], arrived[s, b]
                send_parts(gradients, bounds, first, last, boxes, signals, near, team, epoch)
                wait_for_others(signals, epoch, team)
                i, j = in_part(bounds, me, first, last)
                mine = gradients[i:j]
                sum_in_order(mine, boxes, me, n)
                total += then(mine)
                epoch += 1
        end_at(epochs, epoch - 1)
        if cuda.threadIdx.x == 0:
            found[b] = total

    return sum_buckets


def gathering(update: Any, whole: bool, now: bool) -> Any:
    """The second pass over a bucket, whose pieces `update` updates; `now`, or later, all get them.

    By values that are `whole` arrays, as parameters are; or the PE's own, as its state is.
    """

    @shmem.jit(device=True)
    def gather(
        values, parameters, table, k, piece, state, f, starts, inbox, arrived, near, team, epoch
    ):
        """Update my part of bucket k by `values`, send it, take the others'; the next epoch."""
        b, me = cuda.blockIdx.x, shmem.team_my_pe(team)
        bounds, held = table[k, BOUNDS:], table[k, HELD]
        lower, upper = part_of(table[k, LARGEST], cuda.gridDim.x, b)
        for first in range(lower, upper, piece):
            last, s = min(first + piece, upper), epoch % SLOTS
            boxes, signals = inbox[s, b], arrived[s, b]
            i, j = in_part(bounds, me, first, last)
            own, at = parameters[i:j], i if whole else held + first
            update(own, values[at : at + own.size], state, held + first, f, starts)
            if now:
                send_to_others(own, 0, 0, own.size, boxes[me], signals, near, team, epoch)
                take(parameters, bounds, first, last, boxes, signals, team, epoch)
                epoch += 1
        return epoch

    return gather


@shmem.jit(device=True)
def as_it_is(own, values, state, first, f, starts):
    """What is to be sent has been updated."""


only_gather = gathering(as_it_is, True, now=True)


@shmem.jit(collective=True)
def gather_bucket(parameters, table, k, piece, inbox, arrived, near, team, epochs):
    """Send my part of bucket k, and take the others'."""
    epoch = only_gather(
        parameters, parameters, table, k, piece, parameters, 0, False, inbox, arrived, near, team,
        begin(epochs),
    )  # fmt: skip
    end_at(epochs, epoch - 1)


def aligned(size: int) -> int:
    """A size rounded up, so that what follows begins at a cache line."""
    return -(-size // ALIGN) * ALIGN


def width(dtype: np.dtype[Any]) -> int:
    """Bytes of an element."""
    return int(dtype.itemsize)


class InBuckets(InPieces):
    """A plan for gradients and parameters in buckets, whose parts belong to PEs.

    `dtype` is that of parameters. `start` begins what can be done with the next bucket's gradients,
    a call does the rest of a step, but for what `gather` does. Subclasses set `_rules`, of which
    the first is `lr`, on the device, and `_summing` and `_found`, or `_begin`.
    """

    names: tuple[str, ...] = ()  # of the rows of its state
    _rules: Any
    _summing: Any
    _found: Any

    def __init__(
        self, size: int, dtype: Any, gradient_dtype: Any, overlap_param_gather: bool, team: Any,
        blocks: int | None, threads: int | None,
    ) -> None:  # fmt: skip
        super().__init__(size, dtype, team, blocks, threads)
        self.overlap_param_gather, self._left = overlap_param_gather, 0
        self.gradient_dtype = np.dtype(gradient_dtype or self.dtype)
        self._known("dtype", self.dtype)
        self._known("gradient_dtype", self.gradient_dtype)

    def _known(self, what: str, dtype: np.dtype[Any]) -> None:
        if dtype_name(dtype) not in DTYPES:
            raise shmem.ArgumentError(
                f"{type(self).__name__}: {what} is {dtype}; it can be {', '.join(DTYPES)}"
            )

    def _divide(self, bounds: Any, rows: int) -> None:
        """Make what the plan needs: bounds (buckets, n + 1), `rows` float32 of state an element."""
        sizes, me = np.diff(bounds), self.my_pe
        self.parts = [(int(row[me]), int(row[me + 1])) for row in bounds]  # mine, of each bucket
        self._most = sizes.max(axis=1)
        held = np.concatenate([[0], np.cumsum([aligned(size) for size in sizes[:, me]])])
        wide = max(self.dtype, self.gradient_dtype, key=width)
        self.piece = piece_size(self, int(self._most.max()), wide)
        table = np.column_stack([self._most, held[:-1], bounds]).astype("int64")
        self._table = shmem.to_device(table)
        self._state = shmem.to_device(np.zeros((rows, int(held[-1])), "float32"))
        self._held = [slice(at, at + size) for at, size in zip(held, sizes[:, me], strict=False)]
        self._counts = shmem.to_device(np.zeros((len(bounds), self.blocks), "int64"))  # of steps
        boxes = self.blocks, self.n_pes, self.piece
        self._gradients = (
            self.boxes(*boxes, dtype=self.gradient_dtype), self.signals(*boxes[:2])
        )  # fmt: skip
        self._parameters = self.boxes(*boxes, dtype=self.dtype), self.signals(*boxes[:2])
        self._started, self._numbers = 0, tuple(range(len(bounds) + 1))  # of buckets in this step
        self.bound += 2 * len(bounds)  # each with launches of its own

    def _given(self, gradients: Any, parameters: Any) -> tuple[Any, Any]:
        """The two arrays as arrays of one axis; raises `ArgumentError` if they are not right."""
        found = self.flat(gradients), self.flat(parameters)
        self.expect("gradients", found[0], (self.size,), self.gradient_dtype)
        self.expect("parameters", found[1], (self.size,), self.dtype)
        return found

    @property
    def buckets(self) -> int:
        """How many there are."""
        return len(self.parts)

    def start(self, gradients: Any, parameters: Any, *, stream: Any = 0) -> None:
        """Begin the next bucket of a step, the gradients of which are there; asynchronous.

        From then on its gradients and parameters are in use, until the step has been done. Raises
        `ArgumentError` if the step has no more buckets.
        """
        given, k = self._given(gradients, parameters), self._started
        self._expect_all()
        if k == self.buckets:
            raise shmem.ArgumentError(
                f"{type(self).__name__}: all {k} buckets of this step have been started; call the "
                "plan to end the step"
            )
        self._begin(*given, self._numbers[k], self._numbers[k + 1], stream)
        self._started += 1

    def __call__(self, gradients: Any, parameters: Any, *, stream: Any = 0) -> None:
        """Do a step, or what is left of one that was started, asynchronously, in `stream`'s order.

        Raises `ArgumentError` for other sizes. On several machines both arrays must be symmetric or
        registered: parts of both are sent.
        """
        given, k = self._given(gradients, parameters), self._started
        self._expect_all()
        if k < self.buckets:
            self._begin(*given, self._numbers[k], self._numbers[-1], stream)
        self._started, self._left = 0, self.buckets if self.overlap_param_gather else 0
        self._finish(*given, stream)

    def gather(self, parameters: Any, *, stream: Any = 0) -> None:
        """Get the others' parts of a bucket, the last that is missing; asynchronous.

        With `overlap_param_gather`, `buckets` times between two steps, in the same order on all PEs
        as their other calls. Raises `ArgumentError` if no bucket is missing.
        """
        flat = self.flat(parameters)
        self.expect("parameters", flat, (self.size,), self.dtype)
        if not self._left:
            raise shmem.ArgumentError(
                f"{type(self).__name__}: all {self.buckets} buckets of the last step are there; "
                "gather gets those of a plan with overlap_param_gather=True, each once after a step"
            )
        self._left -= 1
        given = flat, self._table, self._numbers[self._left], self.piece
        self.launch(gather_bucket, stream, *given, *self._parameters, self.reachable)

    def _expect_all(self) -> None:
        if self._left:
            raise shmem.ArgumentError(
                f"{type(self).__name__}: {self._left} of the {self.buckets} buckets of the last "
                "step have not been gathered: call gather for each before the next step"
            )

    def _begin(self, gradients: Any, parameters: Any, some: int, end: int, stream: Any) -> None:
        """Do what can be done with some buckets alone."""
        given = gradients, self._table, some, end, self.piece, *self._gradients
        self.launch(self._summing, stream, *given, self._found, self.reachable)

    def _finish(self, gradients: Any, parameters: Any, stream: Any) -> None:
        """Do the rest, when all buckets have begun."""

    @property
    def lr(self) -> float:
        """The learning rate; to set it waits for this PE's streams, and holds for what follows."""
        return float(self._rules[0])

    @lr.setter
    def lr(self, value: float) -> None:
        self._rules[:1].copy_from(value)

    def cuts(self) -> Iterator[tuple[int, int]]:
        """First and last (exclusive) element of each piece of a part, of all buckets."""
        for size in self._most:
            yield from cuts(int(size), self.blocks, self.piece)

    def state_dict(self) -> dict[str, Any]:
        """The step, and what there is of this PE's `parts`, one behind the other; waits."""
        rows = self._state.numpy()
        mine = np.concatenate([rows[:, held] for held in self._held], axis=1)
        return {"step": int(self._counts[0, 0]), **dict(zip(self.names, mine, strict=True))}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state that `state_dict` returned, of these parts; with its parameters."""
        for row, name in zip(self._state, self.names, strict=True):
            at = 0
            for held in self._held:
                size = held.stop - held.start
                row[held].copy_from(state[name][at : at + size])
                at += size
        self._counts.copy_from(state["step"])

    def sends(self) -> tuple[int, int]:
        """Bytes and messages that this PE sends in a step."""
        others, mine = self.n_pes - 1, sum(last - first for first, last in self.parts)
        nbytes = (self.size - mine) * width(self.gradient_dtype) + others * mine * width(self.dtype)
        return nbytes, 2 * others * self.pieces
