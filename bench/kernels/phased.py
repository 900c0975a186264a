"""The phases of an all-reduce, and of the norm after it, as kernels of their own."""

import math

import numpy as np
from gpushmem.kernels import (
    SLOTS,
    Plan,
    begin,
    copy,
    end,
    member,
    part_of,
    sum_in_order,
    wait_for,
)
from gpushmem.kernels.pieces import part_size
from numba import cuda

import gpushmem as shmem


@shmem.jit(collective=True)
def send_all(x, inbox, arrived, team, epochs):
    me, n, epoch = shmem.team_my_pe(team), shmem.team_n_pes(team), begin(epochs)
    slot = epoch % SLOTS
    for k in range(1, n):
        to = (me + k) % n
        pe, signal = member(team, to), arrived[slot, me:]
        shmem.put_signal_block(inbox[slot, me], x, signal, epoch, shmem.SIGNAL_SET, pe)
    for k in range(1, n):
        wait_for(arrived[slot, (me + k) % n :], epoch)
    end(epochs)


@shmem.jit(collective=True)
def sum_all(x, inbox, team, epochs):
    me, n, epoch = shmem.team_my_pe(team), shmem.team_n_pes(team), begin(epochs)
    sum_in_order(x, inbox[epoch % SLOTS], me, n)
    end(epochs)


@shmem.jit(collective=True)
def send_parts(x, inbox, arrived, team, epochs):
    me, n, epoch = shmem.team_my_pe(team), shmem.team_n_pes(team), begin(epochs)
    slot = epoch % SLOTS
    for k in range(1, n):
        to = (me + k) % n
        first, last = part_of(x.size, n, to)
        pe, box, signal = member(team, to), inbox[slot, me], arrived[slot, me:]
        shmem.put_signal_block(box, x[first:last], signal, epoch, shmem.SIGNAL_SET, pe)
    for k in range(1, n):
        wait_for(arrived[slot, (me + k) % n :], epoch)
    end(epochs)


@shmem.jit(collective=True)
def sum_part(x, inbox, team, epochs):
    me, n, epoch = shmem.team_my_pe(team), shmem.team_n_pes(team), begin(epochs)
    first, last = part_of(x.size, n, me)
    sum_in_order(x[first:last], inbox[epoch % SLOTS], me, n)
    end(epochs)


@shmem.jit(collective=True)
def send_sums(x, sums, summed, team, epochs):
    me, n, epoch = shmem.team_my_pe(team), shmem.team_n_pes(team), begin(epochs)
    slot = epoch % SLOTS
    first, last = part_of(x.size, n, me)
    for k in range(1, n):
        pe, box, signal = member(team, (me + k) % n), sums[slot][first:last], summed[slot, me:]
        shmem.put_signal_block(box, x[first:last], signal, epoch, shmem.SIGNAL_SET, pe)
    for k in range(1, n):
        other = (me + k) % n
        wait_for(summed[slot, other:], epoch)
        first, last = part_of(x.size, n, other)
        copy(x[first:last], sums[slot][first:])
    end(epochs)


def all_reduce(size, algorithm):
    x, n = shmem.to_device(np.zeros(size, "f4")), shmem.n_pes()
    sending, summing = Plan(), Plan()
    if algorithm == "one_shot":
        inbox, arrived = sending.boxes(n, size, dtype="f4"), sending.signals(n)
        return [
            ("send", lambda: sending.launch(send_all, 0, x, inbox, arrived)),
            ("sum", lambda: summing.launch(sum_all, 0, x, inbox)),
        ]
    inbox, arrived = sending.boxes(n, part_size(size, n), dtype="f4"), sending.signals(n)
    back = Plan()
    sums, summed = back.boxes(size, dtype="f4"), back.signals(n)
    return [
        ("send parts", lambda: sending.launch(send_parts, 0, x, inbox, arrived)),
        ("sum", lambda: summing.launch(sum_part, 0, x, inbox)),
        ("send sums", lambda: back.launch(send_sums, 0, x, sums, summed)),
    ]


@shmem.jit
def add_and_norm(x, residual, weight, out, eps):
    """Residual and norm alone: what is launched after an all-reduce without the fused kernel."""
    for row in range(cuda.blockIdx.x, x.shape[0], cuda.gridDim.x):
        from_, to, more = residual[row], out[row], x[row]
        for i in range(cuda.threadIdx.x, to.size, cuda.blockDim.x):
            from_[i] += more[i]
        total = np.float32(0)
        for i in range(to.size):
            total += from_[i] * from_[i]
        factor = np.float32(1 / math.sqrt(total / to.size + eps))
        for i in range(cuda.threadIdx.x, to.size, cuda.blockDim.x):
            to[i] = from_[i] * factor * weight[i]
