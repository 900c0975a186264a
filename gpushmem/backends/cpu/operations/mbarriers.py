"""mbarriers in kernels, words in a block's shared memory, and copies in bulk, which they count.

For what is in a word see COUNT. It is changed by compare-and-swap: threads in step make each
instruction of a change one after the other. A copy is performed at once.
"""

from __future__ import annotations

from typing import Any

from numba import types

from gpushmem.backends.cpu.operations.access import address_of, aligned, itemsize_of
from gpushmem.backends.cpu.operations.async_copies import check_shared
from gpushmem.backends.operation_errors import (
    BAD_COUNT,
    BAD_PARITY,
    NO_MBARRIER,
    NOT_BULK,
    TOO_MANY,
    TOO_MUCH,
    UNSHARED,
)
from gpushmem.diagnosis.pe_state import BYTES, COUNT, MISSING, MOST_ARRIVALS, PHASE
from gpushmem.native.memory import compare_swap_word, copy_bytes, load_acquire, store_release
from gpushmem.simt.functions import ITSELF, KeptDispatcher, device
from gpushmem.simt.thread import begin_wait, end_wait, fail_if, pause, text_word

__all__ = [
    "BODIES", "arrive", "await_phase", "awaiting", "begin", "bulk_of", "check_copy", "copy",
    "element", "perform",
]  # fmt: skip

ALIGNMENT = 16  # bytes, of copies


@device
def checked(barrier):
    """The address of an mbarrier; fails if there can be none."""
    check_shared(barrier, 8, NO_MBARRIER)
    return aligned(barrier, 8)


@device
def begin(barrier, count):
    """Let it be in phase 0."""
    fail_if(count < 1 or count > MOST_ARRIVALS, BAD_COUNT, count, MOST_ARRIVALS, 0, 0)
    store_release(checked(barrier), count << MISSING | count << COUNT)


@device
def after(word, arrivals, nbytes):
    """What a word is after so many arrivals, and when so many bytes more are to be copied."""
    count, missing = word >> COUNT & MOST_ARRIVALS, (word >> MISSING & MOST_ARRIVALS) - arrivals
    left = (word >> BYTES) + nbytes
    fail_if(missing < 0, TOO_MANY, count, left - nbytes, 0, 0)
    too_much = abs(left) > MOST_ARRIVALS or (missing == 0 and left < 0)
    fail_if(too_much, TOO_MUCH, abs(nbytes), left, MOST_ARRIVALS, 0)
    parity = word & 1
    if missing == 0 and left == 0:
        parity, missing = 1 - parity, count
    return left << BYTES | missing << MISSING | count << COUNT | parity


@device
def change(barrier, arrivals, nbytes):
    word = load_acquire(barrier)
    found = compare_swap_word(barrier, word, after(word, arrivals, nbytes))
    while found != word:
        word = found
        found = compare_swap_word(barrier, word, after(word, arrivals, nbytes))


@device
def arrive(barrier, nbytes):
    fail_if(nbytes < 0, TOO_MUCH, nbytes, nbytes, MOST_ARRIVALS, 0)
    change(checked(barrier), 1, nbytes)


def awaiting(look: Any) -> Any:
    """A wait for a phase; `look` is called before each look at the mbarrier."""

    def await_phase(barrier, parity):
        fail_if(parity & 1 != parity, BAD_PARITY, parity, 0, 0, 0)
        look(checked(barrier))
        if load_acquire(barrier) & 1 == parity:
            begin_wait(text_word("mbarrier_wait"), barrier, PHASE, parity, 8)
            while load_acquire(barrier) & 1 == parity:
                pause()
                look(barrier)
            end_wait()

    return await_phase


@device
def nothing(barrier):
    pass


await_phase = KeptDispatcher(awaiting(nothing), f"{__name__}.await_phase", ITSELF)


@device
def check_copy(target, source, nbytes, barrier):
    """Fail where there can be no copy in bulk."""
    fail_if(nbytes < ALIGNMENT or nbytes % ALIGNMENT != 0, NOT_BULK, nbytes, 0, 0, 0)
    check_shared(target, nbytes, UNSHARED)
    aligned(target, ALIGNMENT)
    aligned(source, ALIGNMENT)
    checked(barrier)


@device
def perform(target, source, nbytes, barrier):
    copy_bytes(target, source, nbytes)
    change(barrier, 0, -nbytes)


@device
def copy(target, source, nbytes, barrier):
    check_copy(target, source, nbytes, barrier)
    perform(target, source, nbytes, barrier)


# --- the operations


@device
def element(bars, i):
    return address_of(bars) + i * itemsize_of(bars)


@device
def bulk_of(dst, i, src, j, n, bars, k):
    """Where a copy goes to, and is from, its bytes, and the mbarrier that counts them."""
    return element(dst, i), element(src, j), types.intp(n) * itemsize_of(src), element(bars, k)


def mbarrier_init(bars, i, count):
    begin(element(bars, i), types.intp(count))


def mbarrier_arrive(bars, i):
    arrive(element(bars, i), 0)


def mbarrier_arrive_and_expect_tx(bars, i, nbytes):
    arrive(element(bars, i), types.intp(nbytes))


def mbarrier_wait(bars, i, parity):
    await_phase(element(bars, i), types.intp(parity))


def copy_bulk(dst, i, src, j, n, bars, k):
    target, source, nbytes, barrier = bulk_of(dst, i, src, j, n, bars, k)
    copy(target, source, nbytes, barrier)


BODIES = {
    f.__name__: f
    for f in (
        mbarrier_init, mbarrier_arrive, mbarrier_arrive_and_expect_tx, mbarrier_wait, copy_bulk
    )
}  # fmt: skip
