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
    "ASKED_COUNT", "ASKED_PAGES", "ASKED_TICKET", "CANCELLED", "COUNT", "LEFT", "REFUSED",
    "SENDING", "cancel", "give_table", "give_up", "receive_layer", "start_request", "widen_layer",
]  # fmt: skip

COUNT, REFUSED, CANCELLED = 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFE  # of a signal's lower half
LATE = 1 << 31  # of the layer that is next: no pages were named in time
DONE, LEFT = range(2)  # words of an outcome
ASKED_TICKET, ASKED_COUNT, ASKED_PAGES = range(3)  # of what a host asks for
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
def next_layer(following, ticket):
    """The layer that is told of next, with LATE if it cannot be; `following` may be of another."""
    return following & COUNT if following >> 32 == ticket else 0


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
    """The kernel that sends pages of layers by `put`."""

    @shmem.jit
    def send_layer(
        src, first, last, layers, begin, to, slot, timeout, routes, begun, mine, following, given,
        tables, cache, as_bytes, outbox, arrived, outcome, team, epochs,
    ):  # fmt: skip
        """`src` has so many `layers`, from `begin` on; `routes` (targets, FIELDS).

        With a `last` of -1 all pages of the request are sent. `following` (blocks, n, slots) is a
        ticket and the layer of it that is told of next; the others are as the plan has them.
        """
        me, b, targets = shmem.my_pe(), cuda.blockIdx.x, routes.shape[0]
        ticket, count = begun[to, slot, 0], begun[to, slot, 1]
        last = count if last < 0 else last
        for each in range(layers * targets):
            route, layer = routes[each % targets], begin + each // targets
            pe, theirs = route[PE], tables[route[TO], slot]
            due, failed = next_layer(following[b, route[TO], slot], ticket), 1
            said = np.int64(0)
            if due == layer:
                said = hear(given[route[TO], slot:], ticket, timeout)
                if said == ticket << 32 | count:
                    size = src.size // layers
                    here = src[(layer - begin) * size : (layer - begin + 1) * size]
                    put(
                        here, route, mine[to, slot], theirs, first, last, layer, cache, as_bytes,
                        outbox,
                    )  # fmt: skip
                    failed = 0
            complete()
            if cuda.threadIdx.x == 0:
                if due == layer and said < ticket << 32:
                    following[b, route[TO], slot] = ticket << 32 | LATE | layer
                elif due == layer and last == count:
                    if said >> 32 == ticket and said & COUNT != REFUSED:
                        signal, amount = arrived[slot, layer, route[RANK] :], 1 << 32 | failed
                        shmem.signal_op(signal, amount, shmem.SIGNAL_ADD, pe)
                    following[b, route[TO], slot] = ticket << 32 | layer + 1
                if last == count:
                    over = outcome[to, slot, DONE:]
                    shmem.signal_op(over, failed << 32 | 1, shmem.SIGNAL_ADD, me)
            cuda.syncthreads()

    return send_layer


SENDING = {
    "pages": sender(put_pages), "float8_e4m3": sender(put_pages_as_8_bits),
}  # fmt: skip


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
                due = next_layer(following[b, route[TO], slot], ticket)
                for layer in range(due & (LATE - 1), layers):
                    shmem.quiet()  # the last one says all
                    signal, amount = arrived[slot, layer, route[RANK] :], 1 << 32 | 1
                    shmem.signal_op(signal, amount, shmem.SIGNAL_ADD, route[PE])
                following[b, route[TO], slot] = ticket << 32 | layers
        shmem.signal_op(outcome[to, slot, LEFT:], 1, shmem.SIGNAL_ADD, shmem.my_pe())


@shmem.jit
def start_request(pages, asked, to, slot, begun, mine, team, epochs):
    """Keep what a request is, in the memory of the device; one block."""
    count = np.int64(asked[ASKED_COUNT])
    shmem.copy_block(mine[to, slot], pages[:count])
    if cuda.threadIdx.x == 0:
        begun[to, slot, 0], begun[to, slot, 1] = asked[ASKED_TICKET], count


@shmem.jit
def give_table(
    pages, asked, slot, me, routes, tables, given, kept, counts, arrived, team, epochs
):  # fmt: skip
    """Name pages to those who send; one block. `me` is this PE's number in the team."""
    layers, ranks = arrived.shape[1] - 1, arrived.shape[2]
    ticket, count = np.int64(asked[ASKED_TICKET]), np.int64(asked[ASKED_COUNT])
    for k in range(cuda.threadIdx.x, layers * ranks, cuda.blockDim.x):
        signal = arrived[slot, k // ranks, k % ranks :]
        shmem.signal_op(signal, 0, shmem.SIGNAL_SET, shmem.my_pe())
    named = kept[slot, :count]
    shmem.copy_block(named, pages[:count])
    if cuda.threadIdx.x == 0:
        counts[slot] = count
    complete()  # what is added to the counts is added to 0
    if cuda.threadIdx.x == 0:
        shmem.signal_op(arrived[slot, layers, 0:], ticket, shmem.SIGNAL_SET, shmem.my_pe())
    for k in range(routes.shape[0]):
        shmem.put_signal_block(
            tables[me, slot], named, given[me, slot:], ticket << 32 | count, shmem.SIGNAL_SET,
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
            shmem.copy_block(staged[0], row)  # the whole block sees it then
            sum_rows(cache[at : at + size], staged)
            cuda.syncthreads()
