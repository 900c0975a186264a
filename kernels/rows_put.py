"""Rows of which only their senders know how many, put to where they stay: no boxes, no last copy.

    all to all: how many rows I have for each     PE p: 2 for q     PE q: 5 for itself
    then all know where their rows go             ------------->    out of q: 2 rows of p, 5 of q
    and put them there, and tell

Who has heard the numbers of all PEs before it in the team knows where its rows begin in `out` of
each. Two ways instead of the one of boxes, but each row is moved once: for large exchanges, where
`out` is symmetric. Blocks have numbers, signals and parts of the rows of their own.

A PE's numbers are overwritten in the next call, when their writer has heard from all that the last
one is done; a PE says that after it has read them. And `out` is written by PEs that have heard its
numbers for this call, which it gives when its stream has come to the call.

What a PE sends, for n PEs and B blocks: to each other PE its rows for it, and B times n numbers of
8 bytes, in 2 B messages.
"""

from __future__ import annotations

import numpy as np
from gpushmem.kernels.collectives import send_to_others
from gpushmem.kernels.parts import begin, end, member, part_of, send, tell_others, wait_for_others
from numba import cuda

import gpushmem as shmem

__all__ = ["ALL", "lay_out_sent", "put_rows"]


ALL = -1  # a number of rows: all that there are


@shmem.jit(device=True)
def lay_out_sent(counts, apart, rows, begins, sent):
    """Set `begins` and `sent` (n,): from which row of `x` on, and how many, rows go to each PE.

    One thread calls. Returns how many rows there should be beyond those that there are.
    """
    begin, missing = np.int64(0), np.int64(0)
    for k in range(sent.size):
        count = counts[k * apart]
        count = rows if count == ALL else max(count, 0)
        begins[k], sent[k] = begin, min(count, max(rows - begin, 0))
        missing += count - sent[k]
        begin += count * apart
    return missing


@shmem.jit(device=True)
def lay_out(told, me, places, received, b):
    """Set `places` (n,) to where my rows begin in `out` of each PE; return how many come here.

    Block 0 sets `received`, too. Synchronises the block, which then has no more to ask of `told`.
    """
    for k in range(cuda.threadIdx.x, places.size, cuda.blockDim.x):
        place = np.int64(0)
        for source in range(me):
            place += told[source, k]
        places[k] = place
        if b == 0:
            received[k] = told[k, me]
    come = np.int64(0)
    for source in range(places.size):
        come += told[source, me]
    cuda.syncthreads()
    return come


@shmem.jit(collective=True)
def put_rows(
    x, counts, out, received, width, apart, table, lost, told, heard, done, near, team, epochs
):
    """`out` is symmetric; `table` (blocks, any, n) is of the block alone; `told` (blocks, n, n)."""
    epoch, b = begin(epochs), cuda.blockIdx.x
    me, n = shmem.team_my_pe(team), shmem.team_n_pes(team)
    begins, places, told, missing = table[b, 0], table[b, 1], told[b], np.int64(0)
    sent, room = told[me], out.size // width
    if cuda.threadIdx.x == 0:
        missing += lay_out_sent(counts, apart, x.size // width, begins, sent)
    cuda.syncthreads()
    send_to_others(sent, 0, 0, n, sent, heard[b], near, team, epoch)
    wait_for_others(heard[b], epoch, team)
    come = lay_out(told, me, places, received, b)
    for step in range(1, n + 1):
        to = (me + step) % n
        first, last = part_of(sent[to], cuda.gridDim.x, b)
        last = max(first, min(last, room - places[to]))
        rows = x[(begins[to] + first) * width : (begins[to] + last) * width]
        place = out[(places[to] + first) * width : (places[to] + last) * width]
        if to == me:
            shmem.copy_block(place, rows)
        else:
            send(place, rows, done[b, me:], epoch, member(team, to), near)
    tell_others(done[b, me:], epoch, team, near)
    if b == 0 and cuda.threadIdx.x == 0:
        lost[0] = missing + max(come - room, 0)
    wait_for_others(done[b], epoch, team)
    end(epochs)
