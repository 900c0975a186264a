"""The kernels that send pages of a KV cache, and tell of them; `kv_transfer` has the protocol."""

from __future__ import annotations

from typing import Any

import numpy as np
from gpushmem.kernels.kv_routes import (
    DST,
    HALF,
    HALVES,
    LAYER,
    LENGTH,
    LINE,
    LINES,
    MOST,
    PAGE,
    PE,
    RANK,
    ROW,
    SRC,
    TO,
    WARP,
)
from gpushmem.kernels.parts import complete
from gpushmem.kernels.wire import WIRES, row_bytes
from numba import cuda

import gpushmem as shmem

__all__ = [
    "CANCELLED", "COUNT", "REFUSED", "SENDING", "cancel", "give_table", "give_up", "receive_layer",
    "start_request", "widen_layer",
]  # fmt: skip

COUNT, REFUSED, CANCELLED = 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFE  # of a signal's lower half
LATE = 1 << 40  # of the layer that is next: no pages were named in time
TICKET, DONE, FAILED, LEFT = range(4)  # words of an outcome
ROW_WORDS = row_bytes(ROW) // 16
quantise, sum_rows, _ = WIRES["float8_e4m3"]


@shmem.jit(device=True)
def place_of(unit, route, pages, first, side):
    """Where a unit begins, among the elements of a layer on one side; and how many it has."""
    cuts = (route[LENGTH] + route[MOST] - 1) // route[MOST]
    at, rest = unit % cuts * route[MOST], unit // cuts
    line, rest = rest % route[LINES], rest // route[LINES]
    half, page = rest % route[HALVES], pages[first + rest // route[HALVES]]
    begins = route[side] + page * route[side + PAGE] + half * route[side + HALF]
    return begins + line * route[side + LINE] + at, min(route[MOST], route[LENGTH] - at)


@shmem.jit(device=True)
def units_in(route, pages):
    """As `units_of`."""
    cuts = (route[LENGTH] + route[MOST] - 1) // route[MOST]
    return pages * route[HALVES] * route[LINES] * cuts


@shmem.jit(device=True)
def put_pages(src, route, mine, theirs, first, last, layer, cache, as_bytes, outbox):
    """Put pages `first` to `last` of `mine` to those of `theirs`: a warp has units of its own."""
    warp, warps = cuda.threadIdx.x // WARP, (cuda.blockDim.x + WARP - 1) // WARP
    begin_at = cuda.blockIdx.x * warps + warp
    for unit in range(begin_at, units_in(route, last - first), cuda.gridDim.x * warps):
        of, size = place_of(unit, route, mine, first, SRC)
        to, _ = place_of(unit, route, theirs, first, DST)
        to += layer * route[DST + LAYER]
        shmem.put_nbi_warp(cache[to : to + size], src[of : of + size], route[PE])


@shmem.jit(device=True)
def put_pages_as_8_bits(src, route, mine, theirs, first, last, layer, cache, as_bytes, outbox):
    """As `put_pages`, as rows of `wire`, each at the begin of what it stands for; a block's.

    They are made where they go; with an `outbox`, for PEs on several machines, there, and sent.
    """
    wide = as_bytes.size // cache.size
    for unit in range(cuda.blockIdx.x, units_in(route, last - first), cuda.gridDim.x):
        of, size = place_of(unit, route, mine, first, SRC)
        to, _ = place_of(unit, route, theirs, first, DST)
        to, numbers = (to + layer * route[DST + LAYER]) * wide, src[of : of + size]
        place = as_bytes[to : to + row_bytes(size)]
        if outbox.size == 0:
            quantise(shmem.peer_array(place, route[PE]), numbers)
        else:
            quantise(outbox[unit], numbers)
            cuda.syncthreads()
            shmem.put_nbi_block(place, outbox[unit, : place.size], route[PE])


@shmem.jit(device=True)
def hear(given, ticket, timeout):
    """Wait until the ticket, or a later one, has been given; return the signal. For the block."""
    said = cuda.shared.array(1, np.int64)
    if cuda.threadIdx.x == 0:
        if timeout < 0:
            shmem.signal_wait_until(given, shmem.CMP_GE, ticket << 32)
        else:
            shmem.signal_wait_until(given, shmem.CMP_GE, ticket << 32, timeout)
        said[0] = shmem.signal_fetch(given)
    cuda.syncthreads()
    return said[0]


def sender(put: Any) -> Any:
    """The kernel that sends pages of a layer by `put`."""

    @shmem.jit
    def send_layer(
        src, first, last, layer, to, slot, timeout, routes, begun, mine, following, given, tables,
        cache, as_bytes, outbox, arrived, outcome, team, epochs,
    ):  # fmt: skip
        """`src` is a layer here; `routes` (targets, FIELDS); the others are as the plan has them.

        `following` (blocks, n, slots) is the layer that is told of next, with LATE if it cannot be.
        """
        me, b = shmem.my_pe(), cuda.blockIdx.x
        ticket, count = begun[to, slot, 0], begun[to, slot, 1]
        for k in range(routes.shape[0]):
            route = routes[k]
            pe, theirs = route[PE], tables[route[TO], slot]
            due, failed, said = following[b, route[TO], slot], 1, np.int64(0)
            if due == layer:
                said = hear(given[route[TO], slot:], ticket, timeout)
                if said == ticket << 32 | count:
                    put(
                        src, route, mine[to, slot], theirs, first, last, layer, cache, as_bytes,
                        outbox,
                    )  # fmt: skip
                    failed = 0
            complete()
            if cuda.threadIdx.x == 0:
                if due == layer and said < ticket << 32:
                    following[b, route[TO], slot] = layer | LATE
                elif due == layer and last == count:
                    if said >> 32 == ticket and said & COUNT != REFUSED:
                        signal, amount = arrived[slot, layer, route[RANK] :], 1 << 32 | failed
                        shmem.signal_op(signal, amount, shmem.SIGNAL_ADD, pe)
                    following[b, route[TO], slot] = layer + 1
                if last == count:
                    shmem.signal_op(outcome[to, slot, FAILED:], failed, shmem.SIGNAL_ADD, me)
                    shmem.fence()
                    shmem.signal_op(outcome[to, slot, DONE:], 1, shmem.SIGNAL_ADD, me)
            cuda.syncthreads()

    return send_layer


SENDING = [sender(put_pages), sender(put_pages_as_8_bits)]


@shmem.jit
def give_up(
    to, slot, layers, routes, begun, following, given, arrived, outcome, team, epochs
):  # fmt: skip
    """Tell of the layers not told of that they are given up, who has named pages by now."""
    b, ticket = cuda.blockIdx.x, begun[to, slot, 0]
    if cuda.threadIdx.x == 0:
        for k in range(routes.shape[0]):
            route = routes[k]
            said = np.int64(shmem.signal_fetch(given[route[TO], slot:]))
            if said >> 32 == ticket and said & COUNT != REFUSED:
                for layer in range(following[b, route[TO], slot] & (LATE - 1), layers):
                    signal, amount = arrived[slot, layer, route[RANK] :], 1 << 32 | 1
                    shmem.signal_op(signal, amount, shmem.SIGNAL_ADD, route[PE])
                following[b, route[TO], slot] = layers
        shmem.signal_op(outcome[to, slot, LEFT:], 1, shmem.SIGNAL_ADD, shmem.my_pe())
        shmem.quiet()  # the next request that has the slot sets it to 0


@shmem.jit
def start_request(
    pages, count, ticket, to, slot, begun, mine, following, routes, outcome, team, epochs
):  # fmt: skip
    """Keep what a request is; one block."""
    shmem.copy_block(mine[to, slot], pages)
    for b in range(cuda.threadIdx.x, following.shape[0], cuda.blockDim.x):
        for k in range(routes.shape[0]):
            following[b, routes[k, TO], slot] = 0
    if cuda.threadIdx.x == 0:
        begun[to, slot, 0], begun[to, slot, 1] = ticket, count
        for word in range(1, outcome.shape[2]):
            shmem.signal_op(outcome[to, slot, word:], 0, shmem.SIGNAL_SET, shmem.my_pe())
        shmem.quiet()
        shmem.signal_op(outcome[to, slot, TICKET:], ticket, shmem.SIGNAL_SET, shmem.my_pe())


@shmem.jit
def give_table(
    pages, ticket, slot, me, routes, tables, given, kept, counts, arrived, team, epochs
):  # fmt: skip
    """Name pages to those who send; one block. `me` is this PE's number in the team."""
    layers, ranks = arrived.shape[1] - 1, arrived.shape[2]
    for k in range(cuda.threadIdx.x, layers * ranks, cuda.blockDim.x):
        signal = arrived[slot, k // ranks, k % ranks :]
        shmem.signal_op(signal, 0, shmem.SIGNAL_SET, shmem.my_pe())
    named = kept[slot, : pages.size]
    shmem.copy_block(named, pages)
    if cuda.threadIdx.x == 0:
        counts[slot] = pages.size
    complete()  # what is added to the counts is added to 0
    if cuda.threadIdx.x == 0:
        shmem.signal_op(arrived[slot, layers, 0:], ticket, shmem.SIGNAL_SET, shmem.my_pe())
    for k in range(routes.shape[0]):
        shmem.put_signal_block(
            tables[me, slot], named, given[me, slot:], ticket << 32 | pages.size, shmem.SIGNAL_SET,
            routes[k, PE],
        )  # fmt: skip


@shmem.jit
def cancel(value, slot, me, routes, given, team, epochs):
    """Say something else of a ticket than its pages; one block."""
    for k in range(cuda.threadIdx.x, routes.shape[0], cuda.blockDim.x):
        shmem.fence()
        shmem.signal_op(given[me, slot:], value, shmem.SIGNAL_SET, routes[k, PE])


@shmem.jit
def receive_layer(signals, value, routes, team, epochs):
    """Wait for a layer, from all who send it; one block."""
    for k in range(cuda.threadIdx.x, routes.shape[0], cuda.blockDim.x):
        shmem.signal_wait_until(signals[routes[k, RANK] :], shmem.CMP_GE, value)


@shmem.jit
def widen_layer(signals, slot, layer, value, routes, kept, counts, cache, as_bytes, team, epochs):
    """Wait for a layer, and make numbers of its 8-bit floats; `counts` (slots,) are of pages."""
    failures, wide = cuda.shared.array(1, np.int64), as_bytes.size // cache.size
    words = cuda.shared.array((1, ROW_WORDS), np.complex128)  # aligned to 16 bytes
    staged = words.view(np.uint8)
    if cuda.threadIdx.x == 0:
        failures[0] = 0
        for k in range(routes.shape[0]):
            said = shmem.signal_wait_until(signals[routes[k, RANK] :], shmem.CMP_GE, value)
            failures[0] += np.int64(said) & COUNT
    cuda.syncthreads()
    failed = failures[0]
    for k in range(0 if failed else routes.shape[0]):
        route = routes[k]
        for unit in range(cuda.blockIdx.x, units_in(route, counts[slot]), cuda.gridDim.x):
            at, size = place_of(unit, route, kept[slot], 0, DST)
            at += layer * route[DST + LAYER]
            row = as_bytes[at * wide : at * wide + row_bytes(size)]
            shmem.copy_block(staged[0], row)
            cuda.syncthreads()
            sum_rows(cache[at : at + size], staged)
            cuda.syncthreads()
