"""The proxy's channel: the loop that reads what device code asks for, and has it done.

Requests follow each other in a ring of words. A word is written when its lowest bit is that of its
round: 1 in the first, 0 in the second, and so on. A request is one to six words, and more for many
queues; the first says what is asked for. `complete` tells the writers how far the ring has been
read. A quiet is no request, but two words beside the ring: up to where it is asked for, and done.
The layout is that of nvshmem_proxy_channel.h and proxy_device.cuh of NVSHMEM 3.8.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

from numba import types

from gpushmem.backends.cpu.weak.pending import ALL_QPS, DEFAULT_QPS
from gpushmem.backends.nvshmem_cpu.network_adapter import (
    ALL_PES,
    COPY,
    EXIT,
    FLOAT,
    PROXY,
    SLOT,
    UNKNOWN,
    as_entry,
    as_proxy,
    atomic,
    copy,
    enter,
    fence,
    finish_one,
    hasten,
    new_entry,
    refuse,
    remote,
)
from gpushmem.backends.operation_errors import BAD_PE
from gpushmem.native.c_function import c_function
from gpushmem.native.internal import internal
from gpushmem.native.memory import (
    int_,
    load_acquire,
    monotonic_ns,
    sched_yield,
    store_release,
    usleep,
    word,
)
from gpushmem.native.structs import offset
from gpushmem.ops import QP_ANY, QP_DEFAULT

__all__ = ["AMO", "CUT", "run"]

# The vendor's numbers: nvshmem_common_transport.h and nvshmem_constants.h of NVSHMEM 3.8.
PUT, P, PUT_SIGNAL, GET, G, FENCE, AMO, QUIET = range(1, 9)
QP = 100  # added for a request with a queue of its own
LAST_WITHOUT_RESULT = 11  # of the atomic operations
EXIT_REQUESTED = 2
CUT = 2000  # value of `failed`: the end came before a request was written to its end

BATCH = 64  # requests before the loop looks at the rest
PUBLISH = 1024  # bytes read before `complete` is told
SPINS, YIELDS = 64, 256  # idle turns before the core is offered to others; before sleeping
LONGEST = 2000  # microseconds of sleep
TIMER_SLACK = 29  # prctl

STOP, QUIET_ISSUE, CST_ISSUE = (offset(PROXY, f) for f in ("stop", "quiet_issue", "cst_issue"))
COMPLETE, QUIET_ACK, CST_ACK = (offset(PROXY, f) for f in ("complete", "quiet_ack", "cst_ack"))
HOST_ISSUE, HOST_ACK = offset(PROXY, "host_issue"), offset(PROXY, "host_ack")
PROCESSED = offset(PROXY, "processed")
prctl = types.ExternalFunction("prctl", int_(int_, word, word, word, word))


# --- the ring


@internal
def read(proxy: int, position: int) -> int:
    """The word of the ring at a position."""
    it = as_proxy(proxy)
    return load_acquire(it.ring + (position & it.mask))


@internal
def is_written(proxy: int, position: int, value: int) -> bool:
    """Whether a word is of this round of the ring."""
    return (value & 1) != ((position >> as_proxy(proxy).log) & 1)


@internal
def next_word(proxy: int, position: int) -> int:
    """A word of a request that is being written; a failure if that does not come before `stop`."""
    value = read(proxy, position)
    while not is_written(proxy, position, value):
        if load_acquire(proxy + STOP) != 0:
            refuse(proxy, CUT, 0, 0, 0, 0)
            break
        sched_yield()
        value = read(proxy, position)
    return value


@internal
def pass_over(proxy: int, nbytes: int) -> None:
    """A request has been read."""
    it = as_proxy(proxy)
    it.requests += 1
    store_release(proxy + PROCESSED, it.processed + nbytes)
    if it.processed - it.complete >= PUBLISH:
        store_release(proxy + COMPLETE, it.processed)


# --- requests


@internal
def take_qp(proxy: int, queue: bool, value: int) -> None:
    """The queue pair of a request, of which a word has the number, if it has one of its own."""
    as_proxy(proxy).qp = (value >> 32) & 0xFFFFFFFF if queue else QP_DEFAULT


@internal
def take_copy(proxy: int, op: int, queue: bool, far: int, at: int) -> int:
    """PUT, GET and G; PUT_SIGNAL, whose words go on."""
    one, two, three = (
        next_word(proxy, at + 8), next_word(proxy, at + 16), next_word(proxy, at + 24)
    )  # fmt: skip
    near = (one & ~0xFF) | ((two >> 8) & 0xFF)
    nbytes, pe = (two >> 16) & 0xFFFFFFFFFFFF, (three >> 16) & 0xFFFF
    length, signal, value = 32, 0, 0
    if op == PUT_SIGNAL:
        signal, value = next_word(proxy, at + 32), next_word(proxy, at + 40)
        length = 48
    take_qp(proxy, queue, three)
    if as_proxy(proxy).failed != 0:
        return 0
    if nbytes > 0 and not copy(proxy, pe, far, near, nbytes, op in (GET, G)):
        return 0
    if op == PUT_SIGNAL:
        value = (value & ~0xFF) | ((signal >> 8) & 0xFF)
        start = (signal >> 24) & 0xFFFFFFFFFF
        entry = atomic(proxy, pe, start, 8, (signal >> 16) & 0xFF, value)
        if entry == 0:
            return 0
        enter(proxy, entry, nbytes)
    return length


@internal
def take_value(proxy: int, queue: bool, far: int, at: int) -> int:
    """P."""
    one, two = next_word(proxy, at + 8), next_word(proxy, at + 16)
    take_qp(proxy, queue, next_word(proxy, at + 24) if queue else 0)
    if as_proxy(proxy).failed != 0:
        return 0
    pe, nbytes = (one >> 16) & 0xFFFF, (two >> 16) & 0xFFFF
    start = remote(proxy, pe, far, nbytes)
    if start == 0:
        return 0
    entry = new_entry(proxy, pe, COPY, start, nbytes)
    as_entry(entry).value = ((one >> 32) & 0xFFFFFFFF) | (two & ~0xFFFFFFFF)
    enter(proxy, entry, 0)
    return 32 if queue else 24


@internal
def take_atomic(proxy: int, queue: bool, far: int, at: int) -> int:
    """AMO."""
    it = as_proxy(proxy)
    one, two = next_word(proxy, at + 8), next_word(proxy, at + 16)
    three, four = next_word(proxy, at + 24), next_word(proxy, at + 32)
    take_qp(proxy, queue, next_word(proxy, at + 40) if queue else 0)
    if as_proxy(proxy).failed != 0:
        return 0
    amo = (one >> 8) & 0xFF
    value = ((one >> 32) & 0xFFFFFFFF) | (two & ~0xFFFFFFFF)
    it.amo = amo
    entry = atomic(proxy, (one >> 16) & 0xFFFF, far, (two >> 16) & 0xFFFF, amo, value)
    if entry == 0:
        return 0
    as_entry(entry).compare = (three & ~0xFF) | ((two >> 8) & 0xFF)
    if amo & ~FLOAT > LAST_WITHOUT_RESULT:
        place = ((four >> 8) & 0xFFFFFFFFFFFFFF) * 16
        as_entry(entry).result = it.g_buf + (place & it.g_mask)
        as_entry(entry).flag = (place >> it.g_log) * 2 + 1
    enter(proxy, entry, 0)
    return 48 if queue else 40


@internal
def take_order(proxy: int, op: int, n: int, at: int) -> int:
    """FENCE and QUIET for `n` queues; 0: what a quiet waits for is not done."""
    it, pe, qps = as_proxy(proxy), ALL_PES, 0
    for k in range(n):
        asked = next_word(proxy, at + 8 + 8 * k)
        pe, qp = (asked >> 16) & 0xFFFF, (asked >> 32) & 0xFFFFFFFF
        if it.failed != 0:
            return 0
        if pe != ALL_PES and pe >= it.n_pes:
            refuse(proxy, BAD_PE, pe, it.n_pes - 1, 0, 0)
            return 0
        qps = ALL_QPS if qp == QP_ANY else qps | 1 << (qp & 63)
    if op == FENCE:
        fence(proxy, pe, qps if n > 0 else DEFAULT_QPS)
    elif hasten(proxy, pe, qps, at):
        return 0
    return 8 + 8 * n


@internal
def take(proxy: int) -> bool:
    """Read the next request; False: there is none, or it has to wait, or fails."""
    it = as_proxy(proxy)
    at = it.processed
    first = read(proxy, at)
    if not is_written(proxy, at, first):
        return False
    asked = (first >> 16) & 0xFF
    queue = asked > QP
    op = asked - QP if queue else asked
    far = (first >> 24) & 0xFFFFFFFFFF
    it.op, it.amo = op, 0
    if op in (PUT, GET, G, PUT_SIGNAL):
        length = take_copy(proxy, op, queue, far, at)
    elif op == P:
        length = take_value(proxy, queue, far, at)
    elif op == AMO:
        length = take_atomic(proxy, queue, far, at)
    elif op == FENCE or (op == QUIET and queue):
        length = take_order(proxy, op, (first >> 32) & 0xFFFFFFFF, at)
    else:
        refuse(proxy, UNKNOWN, asked, 0, 0, 0)
        return False
    if length == 0:
        return False
    pass_over(proxy, length)
    if op == QUIET:
        store_release(proxy + COMPLETE, it.processed)
    return True


# --- the loop


@internal
def acknowledge(proxy: int) -> bool:
    """Answer those who wait for all that they have asked for; whether anybody was answered."""
    it, answered = as_proxy(proxy), False
    asked = load_acquire(proxy + CST_ISSUE)
    if asked > it.cst_ack:
        store_release(proxy + CST_ACK, asked)
        answered = True
    for issue, ack in ((QUIET_ISSUE, QUIET_ACK), (HOST_ISSUE, HOST_ACK)):
        asked = load_acquire(proxy + issue)
        news = load_acquire(proxy + ack) < asked <= it.processed
        if news and not hasten(proxy, ALL_PES, ALL_QPS, asked):
            store_release(proxy + ack, asked)
            answered = True
    return answered


@internal
def back_off(proxy: int, idle: int, since: int) -> None:
    """Wait a little: longer the longer there has been nothing to do."""
    if idle > YIELDS:
        longest = SLOT // 2000 if as_proxy(proxy).live > 0 else LONGEST
        usleep(min(longest, 1 + (monotonic_ns() - since) // 16_000))
    elif idle > SPINS:
        sched_yield()


def loop(proxy: int) -> None:
    """Serve the channel until `stop` and all is done, or until a request is refused."""
    prctl(int_(TIMER_SLACK), 1, 0, 0, 0)
    it, idle, since = as_proxy(proxy), 0, monotonic_ns()
    while it.failed == 0:
        stop, moved = load_acquire(proxy + STOP), False
        for _ in range(BATCH):
            if not take(proxy):
                break
            moved = True
        if it.complete != it.processed:
            store_release(proxy + COMPLETE, it.processed)
        while it.live > 0 and finish_one(proxy, monotonic_ns()):
            moved = True
        moved = acknowledge(proxy) or moved
        if it.exit_state == EXIT_REQUESTED and it.failed == 0:
            refuse(proxy, EXIT, it.exit_code, 0, 0, 0)
        if moved:
            idle, since = 0, monotonic_ns()
        elif stop != 0 and it.live == 0:
            break
        else:
            idle += 1
            back_off(proxy, idle, since)


@cache
def run() -> Any:
    """The loop as a function for Python, that takes a PROXY's address and releases the GIL."""
    return c_function(types.void(word), loop).callable(None, ctypes.c_int64)
