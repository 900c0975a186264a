"""The step of an optimizer in one kernel: gradients are summed, parameters updated and sent back.

In data-parallel training each PE has all parameters, and gradients of its own samples. With ZeRO
each PE updates only its part of the parameters, and keeps the state of the optimizer for that part
alone: what Adam needs, 12 bytes for each parameter, is divided by the number of PEs.

    1. reduce-scatter    PE p gets the sums of all PEs' gradients of part p
    2. Adam              PE p updates part p: averages of gradients and of their squares, masters
    3. all-gather        PE p sends part p of the parameters to all others

Here all three are done piece by piece. A piece's parameters travel while the next piece's gradients
are sent and summed, and what was summed is updated while it is in the cache:

    PE p    gradients 0 ->  sum, Adam  parameters 0 ->
                                       gradients 1 ->   take parameters 0   sum, Adam ...

Parts are consecutive, as those of `ReduceScatter`: of equal sizes, but for the last ones, and the
parts of all PEs, one behind the other, are the array. What a PE sends of gradients of G bytes and
parameters of S bytes, for n PEs and P pieces of a part: (n - 1) / n (G + S) bytes in 2 (n - 1) P
messages.

With `clip` gradients are scaled down if the norm of all of them is too large. Who knows that has
seen all sums, so there are two passes: all pieces are summed, each block tells every block of all
PEs the sum of its squares, 4 bytes with a signal; then come Adam, and the parameters. (n - 1) B
messages more, with B blocks.

The rule of `plan` holds for gradients: in each epoch each PE sends some to, and receives some from
all others, be they none. Parameters of epoch e are sent by PE p to q after p has received q's
gradients of epoch e, and taken by q in its epoch e + 1, after it has sent its gradients: so p sends
those of epoch e when q has taken those of e - 2, which were in the same slot. In the second pass of
two nothing is received between them: there they are taken in the epoch in which they are sent, as
the rule says. Sums of squares have slots and numbers of their own, one for each call: who sends
those of call c has received those of call c - 1 from all blocks, which were done with call c - 2.

A PE adds the gradients of an element in the order of the PEs, as float32, and it alone computes a
parameter: all end with the same bits. Adam's own numbers are float32, and so is the master of each
parameter, of which `parameters` has the rounded value.

ZeRO is that of Rajbhandari et al., "ZeRO: memory optimizations toward training trillion parameter
models", SC 2020, its stage 2; Adam that of Kingma and Ba, ICLR 2015, with the weight decay of
Loshchilov and Hutter, ICLR 2019.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from gpushmem.kernels.all_reduce_norm import plain_row_of, squares_by_four
from gpushmem.kernels.collectives import send_to_others
from gpushmem.kernels.parts import (
    ALIGN,
    begin,
    block_sum32,
    end_at,
    fours_of,
    member,
    part_of,
    sum_in_order,
    wait_for,
    wait_for_others,
)
from gpushmem.kernels.pieces import InPieces, cuts, part_size, piece_size
from gpushmem.kernels.plan import SLOTS
from numba import cuda

import gpushmem as shmem
from gpushmem.checks import dtype_name

__all__ = ["ZeroAdam", "reference"]

RULES = "lr", "beta1", "beta2", "eps", "weight_decay", "scale", "clip"
STATE = "master", "exp_avg", "exp_avg_sq"  # by PyTorch's names
DTYPES = "float32", "float16", "bfloat16"


@shmem.jit(device=True)
def power(x, k):
    """`x` to the power of an integer, 0 or more."""
    found = 1.0
    while k > 0:
        if k & 1:
            found *= x
        x, k = x * x, k >> 1
    return found


@shmem.jit(device=True)
def factors(rules, step):
    """What a step multiplies by, as float32; `rules` are those of `RULES`, of float64."""
    rate, beta1, beta2, scale = rules[0], rules[1], rules[2], rules[5]
    return (
        np.float32(scale), np.float32(1 - beta1), np.float32(beta2), np.float32(1 - beta2),
        np.float32(1 - rate * rules[4]), np.float32(rate / (1 - power(beta1, step))),
        np.float32(1 / math.sqrt(1 - power(beta2, step))), np.float32(rules[3]),
    )  # fmt: skip


@shmem.jit(device=True)
def updated(gradient, w, m, v, f):
    """A parameter, and the averages of its gradients and of their squares, after a step."""
    g = np.float32(gradient) * f[0]
    m += (g - m) * f[1]
    v = v * f[2] + g * g * f[3]
    return w * f[4] - f[5] * m / (math.sqrt(v) * f[6] + f[7]), m, v


@shmem.jit(device=True)
def by_four(parameters, gradients, master, average, squares, f):
    """Update elements four at a time where they are aligned; returns how many."""
    t, threads = cuda.threadIdx.x, cuda.blockDim.x
    fours = min(fours_of(parameters), fours_of(gradients), fours_of(master))
    for i in range(t, fours, threads):
        g, w = shmem.load_vector(gradients, 4 * i, 4), shmem.load_vector(master, 4 * i, 4)
        m, v = shmem.load_vector(average, 4 * i, 4), shmem.load_vector(squares, 4 * i, 4)
        w0, m0, v0 = updated(g[0], w[0], m[0], v[0], f)
        w1, m1, v1 = updated(g[1], w[1], m[1], v[1], f)
        w2, m2, v2 = updated(g[2], w[2], m[2], v[2], f)
        w3, m3, v3 = updated(g[3], w[3], m[3], v[3], f)
        shmem.store_vector(master, 4 * i, (w0, w1, w2, w3))
        shmem.store_vector(average, 4 * i, (m0, m1, m2, m3))
        shmem.store_vector(squares, 4 * i, (v0, v1, v2, v3))
        shmem.store_vector(parameters, 4 * i, (w0, w1, w2, w3))
    return 4 * fours


@shmem.jit(device=True)
def one_by_one(parameters, gradients, master, average, squares, f):
    return 0


def updating(some: Any) -> Any:
    """The function `update`; `some` updates the first elements, and says how many."""

    @shmem.jit(device=True)
    def update(parameters, gradients, state, first, f, starts):
        """Update a piece, from `first` on in `state` (3, any); synchronises the block.

        `starts`: parameters are the first masters.
        """
        t, threads, size = cuda.threadIdx.x, cuda.blockDim.x, parameters.size
        master, average, squares = state[0][first:], state[1][first:], state[2][first:]
        if starts:
            for i in range(t, size, threads):
                master[i] = parameters[i]
            cuda.syncthreads()
        done = some(parameters, gradients, master, average, squares, f)
        for i in range(done + t, size, threads):
            w, m, v = updated(gradients[i], master[i], average[i], squares[i], f)
            master[i], average[i], squares[i], parameters[i] = w, m, v, w
        cuda.syncthreads()

    return update


@shmem.jit(device=True)
def take(parameters, share, first, last, boxes, signals, team, epoch):
    """Copy elements `first` to `last` of the others' parts to where they belong."""
    me, n = shmem.team_my_pe(team), shmem.team_n_pes(team)
    for k in range(1, n):
        source = (me + n - k) % n
        wait_for(signals[source:], epoch)
        place = parameters[source * share + first : source * share + last]
        shmem.copy_block(place, boxes[source][: place.size])


@shmem.jit(device=True)
def sum_over_all(value, values, signals, call, team):
    """The sum of a float32 of all blocks of all PEs, to all threads; synchronises the block.

    `values` and `signals` (n, blocks) are of the slot. All end with the same bits.
    """
    t, threads, b = cuda.threadIdx.x, cuda.blockDim.x, cuda.blockIdx.x
    me, n, blocks = shmem.team_my_pe(team), shmem.team_n_pes(team), cuda.gridDim.x
    for k in range(t, n, threads):
        pe = member(team, (me + k) % n)
        shmem.p(values[me, b:], value, pe)
        shmem.fence()
        shmem.signal_op(signals[me, b:], call, shmem.SIGNAL_SET, pe)
    for k in range(t, n * blocks, threads):
        shmem.signal_wait_until(signals[k // blocks, k % blocks :], shmem.CMP_EQ, call)
    cuda.syncthreads()
    total = np.float32(0)
    for k in range(n * blocks):
        total += values[k // blocks, k % blocks]
    return total


def without_clip(update: Any) -> Any:
    """The kernel that goes through all pieces once."""

    @shmem.jit(collective=True)
    def in_one_pass(
        gradients, parameters, share, piece, state, counts, rules, inbox, arrived, sums, told, near,
        team, epochs,
    ):  # fmt: skip
        """Boxes (SLOTS, blocks, n, piece), signals (SLOTS, blocks, n); `counts` (2, blocks)."""
        epoch, b = begin(epochs), cuda.blockIdx.x
        me, n, step = shmem.team_my_pe(team), shmem.team_n_pes(team), counts[0, b] + 1
        mine, own = (
            gradients[me * share : (me + 1) * share],
            parameters[me * share : (me + 1) * share],
        )
        f, (lower, upper) = factors(rules, step), part_of(share, cuda.gridDim.x, b)
        for first in range(lower, upper, piece):
            last, s = min(first + piece, upper), epoch % SLOTS
            boxes, signals = inbox[s, b], arrived[s, b]
            send_to_others(gradients, share, first, last, boxes, signals, near, team, epoch)
            if first > lower:
                before, there = sums[1 - s, b], told[1 - s, b]
                take(parameters, share, first - piece, first, before, there, team, epoch - 1)
            wait_for_others(signals, epoch, team)
            sum_in_order(mine[first:last], boxes, me, n)
            update(own[first:last], mine[first:last], state, first, f, step == 1)
            send_to_others(own, 0, first, last, sums[s, b], told[s, b], near, team, epoch)
            if last == upper:
                take(parameters, share, first, last, sums[s, b], told[s, b], team, epoch)
            epoch += 1
        end_at(epochs, epoch - 1)
        if cuda.threadIdx.x == 0:
            counts[0, b] = step

    return in_one_pass


def with_clip(update: Any, sum_of_squares: Any) -> Any:
    """The kernel that goes through all pieces twice."""

    @shmem.jit(collective=True)
    def in_two_passes(
        gradients, parameters, share, piece, state, counts, rules, inbox, arrived, sums, told, norm,
        squares, squared, near, team, epochs,
    ):  # fmt: skip
        """As `in_one_pass`; `squares`, `squared` (SLOTS, n, blocks); `norm` (1,) is set."""
        epoch, b = begin(epochs), cuda.blockIdx.x
        me, n = shmem.team_my_pe(team), shmem.team_n_pes(team)
        step, call, square = counts[0, b] + 1, counts[1, b] + 1, np.float32(0)
        mine, own = (
            gradients[me * share : (me + 1) * share],
            parameters[me * share : (me + 1) * share],
        )
        f, (lower, upper) = factors(rules, step), part_of(share, cuda.gridDim.x, b)
        for first in range(lower, upper, piece):
            last, s = min(first + piece, upper), epoch % SLOTS
            boxes, signals = inbox[s, b], arrived[s, b]
            send_to_others(gradients, share, first, last, boxes, signals, near, team, epoch)
            wait_for_others(signals, epoch, team)
            sum_in_order(mine[first:last], boxes, me, n)
            square += sum_of_squares(mine[first:last])
            epoch += 1
        s = call % SLOTS
        length = f[0] * math.sqrt(sum_over_all(square, squares[s], squared[s], call, team))
        scale = f[0] * min(np.float32(1), np.float32(rules[6]) / (length + np.float32(1e-6)))
        f = scale, f[1], f[2], f[3], f[4], f[5], f[6], f[7]
        for first in range(lower, upper, piece):
            last, s = min(first + piece, upper), epoch % SLOTS
            update(own[first:last], mine[first:last], state, first, f, step == 1)
            send_to_others(own, 0, first, last, sums[s, b], told[s, b], near, team, epoch)
            take(parameters, share, first, last, sums[s, b], told[s, b], team, epoch)
            epoch += 1
        end_at(epochs, epoch - 1)
        if cuda.threadIdx.x == 0:
            counts[0, b], counts[1, b] = step, call
            if b == 0:
                norm[0] = length

    return in_two_passes


def kernels_for(some: Any, sum_of_squares: Any) -> tuple[Any, Any]:
    """The kernels without and with `clip`."""
    update = updating(some)
    return without_clip(update), with_clip(update, sum_of_squares)


# By whether there is a GPU. For CPUs plain loops are vectorised, and those by four are not: they
# took 1.0 to 3.4 times as long (2 PEs, 16 Ki and 1 Mi numbers).
KERNELS = {
    True: kernels_for(by_four, squares_by_four),
    False: kernels_for(one_by_one, plain_row_of(np.float32, block_sum32)[0]),
}


class ZeroAdam(InPieces):
    """Update `size` parameters by all PEs' gradients, with Adam: `plan(gradients, parameters)`.

    Both are device arrays of that size, of any shape: `parameters` of `dtype` (float32, float16 or
    bfloat16), the same on all PEs, and so they are after the call, bit for bit; `gradients` of
    `gradient_dtype`, by default the same. They are used up: this PE's part of them becomes their
    sum, rounded once.

    The PE keeps for its part, from `first` to `last`, in float32 on the device: masters of the
    parameters, which are these at the first step, and Adam's averages. Gradients are averaged over
    the PEs, or with `average=False` summed. `weight_decay` is that of AdamW. With `clip` gradients
    are scaled so that the norm of all of them is at most `clip`; `norm` (1,) is the norm before, on
    the device. The step is counted on the device, and `lr` is there: a captured call is right each
    time it runs. To update parameters as soon as their gradients are there (buckets), make a plan
    for each part of the arrays.
    """

    def __init__(
        self, *, size: int, dtype: Any, gradient_dtype: Any = None, lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 0.0,
        clip: float | None = None, average: bool = True, team: Any = shmem.TEAM_WORLD,
        blocks: int | None = None, threads: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(size, dtype, team, blocks, threads)
        self.gradient_dtype = np.dtype(gradient_dtype or self.dtype)
        for what, given in (("dtype", self.dtype), ("gradient_dtype", self.gradient_dtype)):
            if dtype_name(given) not in DTYPES:
                raise shmem.ArgumentError(
                    f"ZeroAdam: {what} is {given}; it can be {', '.join(DTYPES)}"
                )
        n, blocks, self.clip = self.n_pes, self.blocks, clip
        self.share = part_size(size, n)
        self.first, self.last = part_of(size, n, self.my_pe)
        self.piece = piece_size(self, self.share, max(self.dtype, self.gradient_dtype, key=width))
        scale = 1 / n if average else 1
        rules = lr, *betas, eps, weight_decay, scale, clip or 0
        self._rules = shmem.to_device(np.array(rules, "float64"))
        self._counts = shmem.to_device(np.zeros((2, blocks), "int64"))  # of steps, and of calls
        self._state = shmem.to_device(np.zeros((3, -(-self.share // ALIGN) * ALIGN), "float32"))
        self.norm = shmem.to_device(np.zeros(1, "float32"))
        boxes = n, self.piece
        self._workspace: tuple[Any, ...] = (
            self.boxes(blocks, *boxes, dtype=self.gradient_dtype), self.signals(blocks, n),
            self.boxes(blocks, *boxes, dtype=self.dtype), self.signals(blocks, n),
        )  # fmt: skip
        if clip is not None:
            of_all = self.boxes(n, blocks, dtype="float32"), self.signals(n, blocks)
            self._workspace += self.norm, *of_all

    def __call__(self, gradients: Any, parameters: Any, *, stream: Any = 0) -> None:
        """Do a step, asynchronously, in `stream`'s order; raises `ArgumentError` for other sizes.

        On several machines both must be symmetric or registered: parts of both are sent.
        """
        given = self.flat(gradients), self.flat(parameters)
        self.expect("gradients", given[0], (self.size,), self.gradient_dtype)
        self.expect("parameters", given[1], (self.size,), self.dtype)
        kernel = KERNELS[bool(self.tuning.multiprocessors)][self.clip is not None]
        own = self.share, self.piece, self._state, self._counts, self._rules
        self.launch(kernel, stream, *given, *own, *self._workspace, self.reachable)

    @property
    def lr(self) -> float:
        """The learning rate; to set it waits for this PE's streams, and holds for what follows."""
        return float(self._rules[0])

    @lr.setter
    def lr(self, value: float) -> None:
        self._rules[:1].copy_from(value)

    def cuts(self) -> Iterator[tuple[int, int]]:
        """First and last (exclusive) element of each piece of a part."""
        return cuts(self.share, self.blocks, self.piece)

    def state_dict(self) -> dict[str, Any]:
        """The step, and this PE's part of masters and averages, for a checkpoint; waits.

        The parts of all PEs, one behind the other, are those of the array.
        """
        rows = self._state.numpy()[:, : self.last - self.first]
        return {"step": int(self._counts[0, 0]), **dict(zip(STATE, rows, strict=True))}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state that `state_dict` returned, of this part; with its parameters."""
        for k, name in enumerate(STATE):
            self._state[k, : self.last - self.first].copy_from(state[name])
        self._counts[0].copy_from(state["step"])

    def sends(self) -> tuple[int, int]:
        """Bytes and messages that this PE sends in a call."""
        others, mine = self.n_pes - 1, self.last - self.first
        nbytes = (self.size - mine) * width(self.gradient_dtype) + others * mine * width(self.dtype)
        squares = others * self.blocks if self.clip is not None else 0
        return nbytes + 4 * squares, 2 * others * self.pieces + squares


def width(dtype: np.dtype[Any]) -> int:
    """Bytes of an element."""
    return int(dtype.itemsize)


def reference(
    parameters: Any, gradients: list[Any], state: dict[str, Any], *, lr: float = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 0.0,
    clip: float | None = None, average: bool = True,
) -> Any:  # fmt: skip
    """The parameters after a step, from all PEs' gradients; `state`, of the array, is replaced.

    It is as `ZeroAdam.state_dict` returns it, or empty before the first step.
    """
    g = np.sum([x.astype("float32") for x in gradients], axis=0).astype(gradients[0].dtype)
    g = g.astype("float64") / (len(gradients) if average else 1)
    if clip is not None:
        g *= min(1, clip / (np.linalg.norm(g) + 1e-6))
    step = state.get("step", 0) + 1
    w, m, v = (
        state.get(name, start) for name, start in zip(STATE, (parameters, 0, 0), strict=True)
    )
    m = betas[0] * m + (1 - betas[0]) * g
    v = betas[1] * v + (1 - betas[1]) * g**2
    large = np.sqrt(v / (1 - betas[1] ** step)) + eps
    w = w.astype("float64") * (1 - lr * weight_decay) - lr / (1 - betas[0] ** step) * m / large
    state.update(step=step, **dict(zip(STATE, (w, m, v), strict=True)))
    return w.astype(parameters.dtype)
