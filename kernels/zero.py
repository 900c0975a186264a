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

How parts lie in the arrays, buckets that begin before all gradients are there, and what is sent:
see `buckets`.

With `clip` gradients are scaled down if the norm of all of them is too large. Who knows that has
seen all sums, so there are two passes, each a launch: buckets are summed, as soon as they are
there; then each block tells every block of all PEs the sum of its squares, 4 bytes with a signal,
and Adam follows, and the parameters. (n - 1) B messages more, with B blocks.

In one pass parameters of epoch e are sent by PE p to q after p has received q's gradients of epoch
e, and taken by q in its epoch e + 1, after it has sent its gradients: so p sends those of epoch e
when q has taken those of e - 2, which were in the same slot. A bucket's last ones, and those of the
second pass of two, are taken in the epoch in which they are sent, as the rule of `plan` says. Sums
of squares have slots and numbers of their own, one for each call: who sends those of call c has
received those of call c - 1 from all blocks, which were done with call c - 2.

A PE adds the gradients of an element in the order of the PEs, as float32, and it alone computes a
parameter: all end with the same bits. Adam's own numbers are float32, and so is the master of each
parameter, of which `parameters` has the rounded value.

With `overlap_param_gather` parameters are not sent there, but by launches of their own, a bucket
each, while the next forward pass is on its way: `buckets` says why that is the same to a block.

Adam is that of Kingma and Ba, ICLR 2015, with the weight decay of Loshchilov and Hutter, ICLR 2019.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from gpushmem.kernels.all_reduce_norm import plain_row_of, squares_by_four
from gpushmem.kernels.buckets import (
    BOUNDS,
    HELD,
    LARGEST,
    InBuckets,
    gathering,
    in_part,
    send_parts,
    summing,
    take,
)
from gpushmem.kernels.collectives import send_to_others
from gpushmem.kernels.parts import (
    begin,
    block_sum32,
    end_at,
    fours_of,
    member,
    part_of,
    sum_in_order,
    wait_for_others,
)
from gpushmem.kernels.plan import SLOTS
from numba import cuda

import gpushmem as shmem

__all__ = ["ZeroAdam", "reference"]

RULES = "lr", "beta1", "beta2", "eps", "weight_decay", "scale", "clip"


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


def in_one_pass_by(update: Any, now: bool) -> Any:
    """The kernel without `clip`; `now`, or later, parameters are sent."""

    @shmem.jit(collective=True)
    def in_one_pass(
        gradients, parameters, table, some, end, piece, state, counts, rules, inbox, arrived, sums,
        told, near, team, epochs,
    ):  # fmt: skip
        """Of buckets `some` to `end`; boxes and signals as for `summing`."""
        epoch, b = begin(epochs), cuda.blockIdx.x
        me, n = shmem.team_my_pe(team), shmem.team_n_pes(team)
        for k in range(some, end):
            bounds, held, step = table[k, BOUNDS:], table[k, HELD], counts[k, b] + 1
            f = factors(rules, step)
            lower, upper = part_of(table[k, LARGEST], cuda.gridDim.x, b)
            for first in range(lower, upper, piece):
                last, s = min(first + piece, upper), epoch % SLOTS
                boxes, signals = inbox[s, b], arrived[s, b]
                send_parts(gradients, bounds, first, last, boxes, signals, near, team, epoch)
                if now and first > lower:
                    before, there = sums[1 - s, b], told[1 - s, b]
                    take(parameters, bounds, first - piece, first, before, there, team, epoch - 1)
                wait_for_others(signals, epoch, team)
                i, j = in_part(bounds, me, first, last)
                mine, own = gradients[i:j], parameters[i:j]
                sum_in_order(mine, boxes, me, n)
                update(own, mine, state, held + first, f, step == 1)
                if now:
                    send_to_others(
                        own, 0, 0, own.size, sums[s, b, me], told[s, b], near, team, epoch
                    )  # fmt: skip
                if now and last == upper:
                    take(parameters, bounds, first, last, sums[s, b], told[s, b], team, epoch)
                epoch += 1
        end_at(epochs, epoch - 1)
        if cuda.threadIdx.x == 0:
            for k in range(some, end):
                counts[k, b] += 1

    return in_one_pass


def second_pass_by(update: Any, now: bool) -> Any:
    """The kernel that follows `summing` with `clip`."""
    gather = gathering(update, True, now)

    @shmem.jit(collective=True)
    def second_pass(
        gradients, parameters, table, piece, state, counts, rules, sums, told, found, calls, norm,
        squares, squared, near, team, epochs,
    ):  # fmt: skip
        """Of all buckets; `squares`, `squared` (SLOTS, n, blocks).

        `norm` (1,) is set, `found` (blocks,), sums of squares, to 0; `calls` (blocks,) are counted.
        """
        epoch, b = begin(epochs), cuda.blockIdx.x
        call = calls[b] + 1
        s, scale = call % SLOTS, np.float32(rules[5])
        length = scale * math.sqrt(sum_over_all(found[b], squares[s], squared[s], call, team))
        scale *= min(np.float32(1), np.float32(rules[6]) / (length + np.float32(1e-6)))
        for k in range(table.shape[0]):
            step = counts[k, b] + 1
            f = factors(rules, step)
            f = scale, f[1], f[2], f[3], f[4], f[5], f[6], f[7]
            epoch = gather(
                gradients, parameters, table, k, piece, state, f, step == 1, sums, told, near, team,
                epoch,
            )  # fmt: skip
        end_at(epochs, epoch - 1)
        if cuda.threadIdx.x == 0:
            for k in range(table.shape[0]):
                counts[k, b] += 1
            calls[b], found[b] = call, 0
            if b == 0:
                norm[0] = length

    return second_pass


def kernels_for(some: Any, sum_of_squares: Any) -> dict[bool, tuple[Any, Any, Any]]:
    """The kernel without `clip`, and the two with it; by whether parameters are sent at once."""
    update, sums = updating(some), summing(sum_of_squares)
    return {
        now: (in_one_pass_by(update, now), sums, second_pass_by(update, now))
        for now in (True, False)
    }


# By whether there is a GPU. For CPUs plain loops are vectorised, and those by four are not: they
# took 1.0 to 3.4 times as long (2 PEs, 16 Ki and 1 Mi numbers).
KERNELS = {
    True: kernels_for(by_four, squares_by_four),
    False: kernels_for(one_by_one, plain_row_of(np.float32, block_sum32)[0]),
}


class ZeroAdam(InBuckets):
    """Update `size` parameters by all PEs' gradients, with Adam: `plan(gradients, parameters)`.

    Both are device arrays of that size, of any shape: `parameters` of `dtype` (float32, float16 or
    bfloat16), the same on all PEs, and so they are after the call, bit for bit; `gradients` of
    `gradient_dtype`, by default the same. They are used up: this PE's parts of them become their
    sums, rounded once.

    `buckets`: sizes of parts of both arrays, one behind the other, by default one of `size`; of
    each a part belongs to each PE. In a step `plan.start(gradients, parameters)` begins the next
    bucket as soon as its gradients are there: the first, the second, and so on, the same ones
    before the same other calls on all PEs; the call does the rest. Without `clip` a bucket's
    parameters are updated when it was started, with it all are in the call. The result is that of
    one bucket, bit for bit; with `clip`, of which squares are added in another order, to rounding.

    With `overlap_param_gather` a step updates only this PE's parts of `parameters`, and the others'
    come by `plan.gather(parameters)`, a bucket each time, the last one first, as a forward pass
    needs them: each while the layers before it are computed.

    The PE keeps for its `parts`, (first, last) of each bucket, in float32 on the device: masters of
    the parameters, which are these at the first step, and Adam's averages. Gradients are averaged
    over the PEs, or with `average=False` summed. `weight_decay` is that of AdamW. With `clip`
    gradients are scaled so that the norm of all of them is at most `clip`; `norm` (1,) is the norm
    before, on the device. The step is counted on the device, and `lr` is there: a captured call is
    right each time it runs.
    """

    names = "master", "exp_avg", "exp_avg_sq"  # of the state, by PyTorch's names

    def __init__(
        self, *, size: int, dtype: Any, gradient_dtype: Any = None,
        buckets: tuple[int, ...] | None = None, lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 0.0,
        clip: float | None = None, average: bool = True, overlap_param_gather: bool = False,
        team: Any = shmem.TEAM_WORLD, blocks: int | None = None, threads: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(size, dtype, gradient_dtype, overlap_param_gather, team, blocks, threads)
        sizes, n, self.clip = (size,) if buckets is None else buckets, self.n_pes, clip
        if sum(sizes) != size or not sizes:
            raise shmem.ArgumentError(
                f"{type(self).__name__}: buckets are {sizes}, together {sum(sizes)}; size is {size}"
            )
        ends = [[*(part_of(each, n, pe)[0] for pe in range(n)), each] for each in sizes]
        self._divide(np.cumsum([0, *sizes[:-1]])[:, None] + np.array(ends), len(self.names))
        rules = lr, *betas, eps, weight_decay, 1 / n if average else 1, clip or 0
        self._rules = shmem.to_device(np.array(rules, "float64"))
        self.norm = shmem.to_device(np.zeros(1, "float32"))
        self._in_one_pass, self._summing, self._second_pass = KERNELS[
            bool(self.tuning.multiprocessors)
        ][not overlap_param_gather]
        if clip is not None:
            self._found = shmem.to_device(np.zeros(self.blocks, "float32"))
            self._told = (
                self._found, shmem.to_device(np.zeros(self.blocks, "int64")), self.norm,
                self.boxes(n, self.blocks, dtype="float32"), self.signals(n, self.blocks),
            )  # fmt: skip

    def _begin(self, gradients: Any, parameters: Any, some: int, end: int, stream: Any) -> None:
        if self.clip is not None:
            super()._begin(gradients, parameters, some, end, stream)
            return
        given = gradients, parameters, self._table, some, end, *self._own()
        boxes = *self._gradients, *self._parameters, self.reachable
        self.launch(self._in_one_pass, stream, *given, *boxes)

    def _finish(self, gradients: Any, parameters: Any, stream: Any) -> None:
        if self.clip is not None:
            given = gradients, parameters, self._table, *self._own(), *self._parameters
            self.launch(self._second_pass, stream, *given, *self._told, self.reachable)

    def _own(self) -> tuple[Any, ...]:
        return self.piece, self._state, self._counts, self._rules

    def sends(self) -> tuple[int, int]:
        """Bytes and messages that this PE sends in a step."""
        nbytes, messages = super().sends()
        squares = (self.n_pes - 1) * self.blocks if self.clip is not None else 0
        return nbytes + 4 * squares, messages + squares


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
        state.get(name, start)
        for name, start in zip(ZeroAdam.names, (parameters, 0, 0), strict=True)
    )
    m = betas[0] * m + (1 - betas[0]) * g
    v = betas[1] * v + (1 - betas[1]) * g**2
    large = np.sqrt(v / (1 - betas[1] ** step)) + eps
    w = w.astype("float64") * (1 - lr * weight_decay) - lr / (1 - betas[0] ** step) * m / large
    state.update(step=step, **dict(zip(ZeroAdam.names, (w, m, v), strict=True)))
    return w.astype(parameters.dtype)
