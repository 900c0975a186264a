"""What the proxy's requests become, and when it is done.

A request becomes one ENTRY or more: a copy, or an update of a word. Without a seed it is performed
at once. With one it goes into a table; a copy of some words becomes two entries, and a signal after
its data is one of its own. Each has a hash, of the seed and of the request's number, that says when
it is *due*; of those that are, the smallest hash is first, unless another entry must come before it
(`may`). Whoever waits for entries makes them due soon, one after the other (`hasten`).
"""

from __future__ import annotations

import numpy as np

from gpushmem.backends.cpu.operations.dynamic_updates import (
    ADD,
    AND,
    COMPARE,
    FETCH,
    FLOAT_ADD,
    NOTHING,
    OR,
    SET,
    XOR,
    copy_piece,
    update_word,
)  # fmt: skip
from gpushmem.backends.cpu.sync.address_ranges import held
from gpushmem.backends.cpu.weak.pending import ALL_QPS, is_on, mixed
from gpushmem.backends.operation_errors import BAD_PE, NOT_SYMMETRIC, UNALIGNED, UNREGISTERED
from gpushmem.native.internal import internal
from gpushmem.native.memory import copy_bytes, full_fence, monotonic_ns, store_release
from gpushmem.native.structs import offset, view

__all__ = [
    "ALL_PES", "COPY", "ENTRY", "EXIT", "MOST", "NO_SUCH_ATOMIC", "PROXY", "SLOT", "UNKNOWN",
    "as_entry", "as_proxy", "as_word", "atomic", "copy", "enter", "fence",
    "finish_one", "hasten", "new_entry", "refuse", "remote",
]  # fmt: skip

# What the device code reads and writes; the first words, up to the gap, it writes itself.
PROXY = np.dtype(
    [
        ("issue", "i8"),  # bytes of the ring given to writers
        ("complete_local", "i8"),
        ("quiet_issue", "i8"),
        ("cst_issue", "i8"),
        ("g_buf_head", "i8"),
        ("exit_state", "i4"),
        ("exit_code", "i4"),
        ("gap", "i8", 8),
        ("complete", "i8"),  # bytes of the ring that may be written again
        ("quiet_ack", "i8"),
        ("cst_ack", "i8"),
        # The loop's own.
        ("host_issue", "i8"),  # as `quiet_issue` and `quiet_ack`, for the host
        ("host_ack", "i8"),
        ("processed", "i8"),  # bytes of the ring that have been read
        ("live", "i8"),  # ENTRYs that have not been performed
        ("requests", "i8"),  # read
        ("qp", "i8"),  # the queue pair of the one that is being read
        ("performed", "i8"),  # ENTRYs
        ("stop", "i8"),
        ("failed", "i8"),  # why the loop has ended: a failure code
        ("values", "i8", 4),  # ... and its numbers
        ("op", "i8"),  # ... of a request of this kind; `amo` tells which atomic operation
        ("amo", "i8"),
        ("ring", "i8"),
        ("mask", "i8"),
        ("log", "i8"),
        ("g_buf", "i8"),
        ("g_mask", "i8"),
        ("g_log", "i8"),
        ("bases", "i8"),  # addresses of the segments of all PEs
        ("n_pes", "i8"),
        ("my_pe", "i8"),
        ("heap_bytes", "i8"),
        ("registered", "i8"),  # address of `ranges.Ranges`
        ("late", "i8"),  # whether there is a seed
        ("seed", "i8"),
        ("entries", "i8"),  # MOST ENTRYs, and one that is being made
    ],
    align=True,
)
ENTRY = np.dtype(
    [
        ("live", "i8"),
        ("pe", "i8"),
        ("what", "i8"),  # COPY, or an update of a word
        ("target", "i8"),
        ("source", "i8"),  # 0: `value`
        ("nbytes", "i8"),
        ("value", "i8"),
        ("compare", "i8"),
        ("result", "i8"),  # address for what the word held, and then `flag`; 0: nowhere
        ("flag", "i8"),
        ("request", "i8"),  # its number
        ("position", "i8"),  # ... and place in the ring
        ("qp", "i8"),
        ("before", "i8"),  # the set of queue pairs before whose next requests it comes ...
        ("fenced", "i8"),  # ... from the request of this number on
        ("hash", "i8"),
        ("due", "i8"),  # nanoseconds
    ],
    align=True,
)
MOST = 64  # entries that are late at once
EXIT, UNKNOWN, NO_SUCH_ATOMIC = 1000, 1001, 1002  # values of `failed`, beside those of kernels

ALL_PES = 1 << 15  # in place of a PE
OFFSET_BITS = 40  # of an offset in a request
COPY = -1  # `what`, beside updates
# The vendor's atomic operations, by their number (nvshmem_common_transport.h of NVSHMEM 3.8).
UPDATES = (
    NOTHING, NOTHING, ADD, SET, ADD, AND, OR, XOR, SET, SET,
    ADD, NOTHING, FETCH, ADD, ADD, AND, OR, XOR, SET, COMPARE,
)  # fmt: skip
INC, FETCH_INC = 2, 13
FLOAT = 0x80  # added to the number

SOON, LATER = 200_000, 3_000_000  # nanoseconds by which entries are late
SLOT = 50_000  # ... between two that are waited for

as_proxy, as_entry = view(PROXY), view(ENTRY)
as_word = view(np.dtype([("v", "i8")]))
ENTRY_BYTES = ENTRY.itemsize
LIVE, PERFORMED = offset(PROXY, "live"), offset(PROXY, "performed")
VALUE = offset(ENTRY, "value")


# --- what may be asked for


@internal
def refuse(proxy: int, code: int, a: int, b: int, c: int, d: int) -> bool:
    """Note what is wrong."""
    it = as_proxy(proxy)
    it.failed = code
    it.values[0], it.values[1], it.values[2], it.values[3] = a, b, c, d
    return False


@internal
def remote(proxy: int, pe: int, start: int, nbytes: int) -> int:
    """Address of a range of a PE's heap; 0 if there is none."""
    it = as_proxy(proxy)
    if not 0 <= pe < it.n_pes:
        refuse(proxy, BAD_PE, pe, it.n_pes - 1, 0, 0)
        return 0
    if start >= 1 << OFFSET_BITS - 1:
        start -= 1 << OFFSET_BITS
    if start < 0 or start + nbytes > it.heap_bytes:
        refuse(proxy, NOT_SYMMETRIC, as_word(it.bases + 8 * it.my_pe).v + start, nbytes, 0, 0)
        return 0
    return as_word(it.bases + 8 * pe).v + start


is_registered = internal(held)


@internal
def can_reach(proxy: int, start: int, end: int) -> bool:
    """Whether the adapter knows this local memory."""
    it = as_proxy(proxy)
    heap = as_word(it.bases + 8 * it.my_pe).v
    if heap <= start and end <= heap + it.heap_bytes:
        return True
    return is_registered(it.registered, start, end)


# --- entries


@internal
def new_entry(proxy: int, pe: int, what: int, target: int, nbytes: int) -> int:
    """The entry that is being made."""
    it = as_proxy(proxy)
    entry = it.entries + MOST * ENTRY_BYTES
    e = as_entry(entry)
    e.pe, e.what, e.target, e.nbytes = pe, what, target, nbytes
    e.source = e.value = e.compare = e.result = 0
    e.request, e.position, e.qp, e.before = it.requests, it.processed, it.qp, 0
    return entry


@internal
def perform(proxy: int, entry: int) -> None:
    """Do what an entry says."""
    e = as_entry(entry)
    if e.what == COPY:
        source = e.source if e.source != 0 else entry + VALUE
        copy_piece(e.target, source, e.nbytes)
        full_fence()
    else:
        held = update_word(e.target, e.what, e.nbytes, e.value, e.compare)
        if e.result != 0:
            store_release(e.result, held)
            store_release(e.result + 8, e.flag)
    store_release(proxy + PERFORMED, as_proxy(proxy).performed + 1)


@internal
def enter(proxy: int, entry: int, salt: int) -> None:
    """Perform an entry, or, with a seed, put it into the table."""
    it = as_proxy(proxy)
    if it.late == 0:
        perform(proxy, entry)
        return
    if it.live == MOST:
        finish_one(proxy, 0)
    e = as_entry(entry)
    e.hash = mixed(mixed(it.seed + e.request) + salt)
    lateness = 0 if e.hash & 2 == 0 else SOON if e.hash & 1 == 0 or e.result != 0 else LATER
    e.due, e.live = monotonic_ns() + lateness, 1
    place = it.entries
    while as_entry(place).live != 0:
        place += ENTRY_BYTES
    copy_bytes(place, entry, ENTRY_BYTES)
    store_release(proxy + LIVE, it.live + 1)


@internal
def may(proxy: int, entry: int) -> bool:
    """Whether nothing that is late must come before an entry."""
    it, e = as_proxy(proxy), as_entry(entry)
    for k in range(MOST):
        other = as_entry(it.entries + k * ENTRY_BYTES)
        if other.live == 0 or other.pe != e.pe:
            continue
        if is_on(other.before, e.qp) and other.fenced <= e.request:
            return False
        if e.what != COPY and other.what == COPY and other.request == e.request:
            return False
        updates = COPY not in (e.what, other.what)
        in_turn = updates and other.target == e.target and other.qp == e.qp
        if in_turn and other.request < e.request:
            return False
    return True


@internal
def finish_one(proxy: int, now: int) -> bool:
    """Perform the next entry that is due, or, if `now` is 0, the next one; False: there is none."""
    it, chosen = as_proxy(proxy), 0
    for k in range(MOST):
        entry = it.entries + k * ENTRY_BYTES
        e = as_entry(entry)
        if e.live == 0 or (now != 0 and e.due > now):
            continue
        if (chosen == 0 or e.hash < as_entry(chosen).hash) and may(proxy, entry):
            chosen = entry
    if chosen == 0:
        return False
    perform(proxy, chosen)
    as_entry(chosen).live = 0
    store_release(proxy + LIVE, it.live - 1)
    return True


@internal
def hasten(proxy: int, pe: int, qps: int, position: int) -> bool:
    """Make what precedes a position, for a PE or all, due soon; whether there is anything."""
    it, found = as_proxy(proxy), False
    if it.live == 0:
        return False
    now = monotonic_ns()
    for k in range(MOST):
        e = as_entry(it.entries + k * ENTRY_BYTES)
        asked = pe in (e.pe, ALL_PES) and (qps == ALL_QPS or is_on(qps, e.qp))
        if e.live != 0 and e.position < position and asked:
            found = True
            e.due = min(e.due, now + ((e.hash >> 8) & 7) * SLOT)
    return found


@internal
def fence(proxy: int, pe: int, qps: int) -> None:
    """What is entered from now on for a PE, or all, on these queue pairs is after what has been."""
    it = as_proxy(proxy)
    for k in range(MOST):
        e = as_entry(it.entries + k * ENTRY_BYTES)
        if e.live != 0 and pe in (e.pe, ALL_PES) and is_on(qps, e.qp):
            if e.before == 0:
                e.fenced = it.requests
            e.before |= qps


# --- requests


@internal
def copy(proxy: int, pe: int, far: int, near: int, nbytes: int, is_target: bool) -> bool:
    """Enter a copy between a PE's heap, from an offset on, and local memory."""
    start = remote(proxy, pe, far, nbytes)
    if start == 0:
        return False
    if not can_reach(proxy, near, near + nbytes):
        return refuse(proxy, UNREGISTERED, pe, near, nbytes, int(is_target))
    it = as_proxy(proxy)
    first = nbytes
    if it.late != 0 and nbytes > 8:
        words = (nbytes - 1) // 8
        first = 8 * (1 + mixed(it.seed ^ it.requests) % words) - (start & 7)
    done = 0
    for size in (first, nbytes - first):
        if size > 0:
            target, source = (near, start) if is_target else (start, near)
            entry = new_entry(proxy, pe, COPY, target + done, size)
            as_entry(entry).source = source + done
            enter(proxy, entry, done)
            done += size
    return True


@internal
def atomic(proxy: int, pe: int, far: int, nbytes: int, amo: int, value: int) -> int:
    """Make the entry of an update of a word; 0: it is refused."""
    start = remote(proxy, pe, far, nbytes)
    if start == 0:
        return 0
    kind = amo & ~FLOAT
    what = UPDATES[kind] if kind < len(UPDATES) else NOTHING
    if amo & FLOAT != 0 and what == ADD:
        what = NOTHING if nbytes == 2 else FLOAT_ADD
    if what == NOTHING or nbytes not in (2, 4, 8):
        refuse(proxy, NO_SUCH_ATOMIC, nbytes, 0, 0, 0)
        return 0
    if start % nbytes != 0:
        it = as_proxy(proxy)
        refuse(proxy, UNALIGNED, as_word(it.bases + 8 * it.my_pe).v + far, nbytes, 0, 0)
        return 0
    entry = new_entry(proxy, pe, what, start, nbytes)
    as_entry(entry).value = 1 if kind in (INC, FETCH_INC) else value
    return entry
