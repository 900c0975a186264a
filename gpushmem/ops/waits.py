"""Waiting for what other PEs write, and tests of it."""

from __future__ import annotations

from functools import partial

from gpushmem.ops.roles import (
    Comparison,
    Index,
    Indices,
    Own,
    OwnSignal,
    SignalResult,
    SignalValue,
    Status,
    Timeout,
    Truth,
    Wanted,
    Whether,
)
from gpushmem.ops.row import ATOMIC, SIGNAL, declare, reads, writes

TIMEOUT = """With `timeout_ns`, nanoseconds of 0 or more, the wait ends after that time even if the
condition does not hold; 0 polls once, after yielding to the other threads. {status} A condition
that holds when the wait ends counts, however late that is. If it does not hold, nothing is
guaranteed about what other PEs wrote. Without a timeout (None) it waits indefinitely."""
WHETHER = TIMEOUT.format(status="It then returns whether the condition held: True or False.")
NO_INDEX = TIMEOUT.format(
    status="""It then returns -1. It also returns -1, at once, if there is nothing to wait for:
check `status` to tell the two cases apart."""
)
NO_COUNT = TIMEOUT.format(
    status="""It then returns 0 and leaves `indices` unchanged. It also returns 0, at once, if there
is nothing to wait for: check `status` to tell the two cases apart."""
)


@declare(reads("signal", "0", SIGNAL), on_host=True, note=WHETHER, waits_for="signal")
def signal_wait_until(
    signal: OwnSignal, cmp: Comparison, value: SignalValue, timeout_ns: Timeout = None
) -> SignalResult:
    """Wait until element 0 of `signal` (uint64, own) satisfies `cmp` with `value`; return it.

    The signal is the caller's own. `cmp` is CMP_EQ, CMP_NE, CMP_GT, CMP_LE, CMP_LT or CMP_GE. On
    return the data put before the signal is visible to the calling thread, and to other threads of
    the block after `cuda.syncthreads()`. The signal keeps its value: reset it, or wait for larger
    values. To wait for several signals in one call, give an array of them to `wait_until_all`,
    `wait_until_any` or `wait_until_some`: data that was put before those that satisfy `cmp` is then
    visible, too.
    OpenSHMEM 1.5: shmem_signal_wait_until.
    """


WAITING = """"Own" means on the calling PE. `cmp` is CMP_EQ, CMP_NE, CMP_GT, CMP_LE, CMP_LT
or CMP_GE. The elements must be written by `p`, by an atomic operation or by a signal; data that
the writer ordered before that write is then visible to the calling thread. dtypes: int16, int32,
int64, uint16, uint32, uint64."""
STATUS = """`status` is None or an integer array as long as `ivars`. Elements whose `status` is
nonzero are excluded. On GPUs its dtype must be int32 or uint32."""
INDICES = "On GPUs the dtype of `indices` must be int64 or uint64."
SEVERAL, SOME = f"{STATUS} {WAITING}", f"{STATUS} {INDICES} {WAITING}"

# What waits for several elements, and tests of several, have in common.
LOOKING = reads("ivars", kind=ATOMIC), reads("status", "ivars")
FOUND = writes("indices", "ivars")
declare_wait = partial(declare, *LOOKING, on_host=True, vector=True, waits_for="ivars")
declare_test = partial(declare, *LOOKING, on_host=True, vector=True, stream=False, note=SEVERAL)


@declare(reads("ivar", "0", ATOMIC), on_host=True, note=f"{WAITING}\n\n{WHETHER}", waits_for="ivar")
def wait_until(ivar: Own, cmp: Comparison, value: Wanted, timeout_ns: Timeout = None) -> Whether:
    """Wait until element 0 of `ivar` (symmetric, own) satisfies `cmp` with `value`.

    OpenSHMEM 1.5: shmem_wait_until.
    """


@declare_wait(note=f"{SEVERAL}\n\n{WHETHER}")
def wait_until_all(
    ivars: Own, status: Status, cmp: Comparison, value: Wanted, timeout_ns: Timeout = None
) -> Whether:
    """Wait until all elements of `ivars` (symmetric, own) satisfy `cmp` with `value`.

    OpenSHMEM 1.5: shmem_wait_until_all.
    """


@declare_wait(note=f"{SEVERAL}\n\n{NO_INDEX}")
def wait_until_any(
    ivars: Own, status: Status, cmp: Comparison, value: Wanted, timeout_ns: Timeout = None
) -> Index:
    """Wait until one element of `ivars` (symmetric, own) satisfies `cmp`; return its index.

    If several do, the index of any of them; if all are excluded, -1 (SIZE_MAX in C). Each call of a
    PE begins its search one element further, as in NVSHMEM. OpenSHMEM 1.5: shmem_wait_until_any.
    """


@declare_wait(FOUND, note=f"{SOME}\n\n{NO_COUNT}")
def wait_until_some(
    ivars: Own,
    indices: Indices,
    status: Status,
    cmp: Comparison,
    value: Wanted,
    timeout_ns: Timeout = None,
) -> Index:
    """Wait until at least one element of `ivars` (symmetric, own) satisfies `cmp`.

    Writes the indices of those that do to `indices`, an integer array as long as `ivars`, and
    returns how many: 0 if there is nothing to wait for. OpenSHMEM 1.5: shmem_wait_until_some.
    """


@declare(reads("ivar", "0", ATOMIC), on_host=True, stream=False, note=WAITING)
def test(ivar: Own, cmp: Comparison, value: Wanted) -> Truth:
    """Return whether element 0 of `ivar` (symmetric, own) satisfies `cmp` with `value`.

    OpenSHMEM 1.5: shmem_test.
    """


@declare_test()
def test_all(ivars: Own, status: Status, cmp: Comparison, value: Wanted) -> Truth:
    """Return whether all elements of `ivars` (symmetric, own) satisfy `cmp` with `value`.

    True also if all are excluded. OpenSHMEM 1.5: shmem_test_all.
    """


@declare_test()
def test_any(ivars: Own, status: Status, cmp: Comparison, value: Wanted) -> Index:
    """Return the index of an element of `ivars` (symmetric, own) that satisfies `cmp`, or -1.

    If several do, any of them. OpenSHMEM 1.5: shmem_test_any, which returns SIZE_MAX instead of -1.
    """


@declare_test(FOUND, note=SOME)
def test_some(
    ivars: Own, indices: Indices, status: Status, cmp: Comparison, value: Wanted
) -> Index:
    """Write the indices of elements of `ivars` that satisfy `cmp` to `indices`; return how many.

    `ivars` is symmetric, own. OpenSHMEM 1.5: shmem_test_some.
    """
