"""Kernels in pairs: one body, compiled with our operations and with nvshmem4py's.

A body is a function of the operations it calls, so that both sides of a pair are the same text.
`theirs` are the functions that nvshmem4py documents for Numba kernels (nvshmem.core.device.numba),
and where it has none, those of its bindings.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from numba import cuda
from numba.cuda import types

WORDS = types.Array(types.int64, 1, "C")
SIGNAL = types.Array(types.uint64, 1, "C")
INT = types.int64
THREADS = {"": 1, "_warp": 32, "_block": 256}
PART_THREADS = 512


class Pair(NamedTuple):
    """What is measured under a name."""

    body: Callable[..., Any]
    calls: tuple[str, ...]  # the operations that the body is given
    argtypes: tuple[Any, ...]
    threads: int


# --- bodies


def streamed(op, quiet):
    """One copy after the other: what an operation costs, and how many bytes a second it moves."""

    def kernel(dst, src, pe, reps):
        for _ in range(reps):
            op(dst, src, pe)
        quiet()

    return kernel


def completed(op, quiet):
    """Each copy waited for: how long until it has arrived."""

    def kernel(dst, src, pe, reps):
        for _ in range(reps):
            op(dst, src, pe)
            quiet()

    return kernel


def valued(op, quiet):
    """A value to element 0."""

    def kernel(dst, src, pe, reps):
        for i in range(reps):
            op(dst, i, pe)
        quiet()

    return kernel


def asked(op, quiet):
    """Element 0; what is fetched is used."""

    def kernel(dst, src, pe, reps):
        total = 0
        for _ in range(reps):
            total += op(src, pe)
        dst[0] = total

    return kernel


def fetched(op, quiet):
    """A value to element 0, and what was there is used."""

    def kernel(dst, src, pe, reps):
        total = 0
        for _ in range(reps):
            total += op(dst, 1, pe)
        src[0] = total

    return kernel


def ping_pong(signal_op, wait):
    """Signals to and fro: PE 0 begins. With one PE, to itself."""

    def kernel(signal, me, other, begin, reps):
        for i in range(begin, begin + reps):
            if me == 0:
                signal_op(signal, i, 9, other)  # 9: set
                wait(signal, 5, i)  # 5: >=
            else:
                wait(signal, 5, i)
                signal_op(signal, i, 9, other)

    return kernel


def parts(op, quiet):
    """Every block copies its part."""

    def kernel(dst, src, pe):
        n = src.size // cuda.gridDim.x
        first = cuda.blockIdx.x * n
        op(dst[first : first + n], src[first : first + n], pe)
        quiet()

    return kernel


def nothing():
    """A kernel that does nothing, for what its launch costs."""

    def kernel(dst, src, n):
        if n < 0:
            dst[0] = src[0]

    return kernel


# --- pairs

COPYING = (WORDS, WORDS, INT, INT)
PAIRS = {
    f"{verb}{scope}": Pair(streamed, (f"{verb}{scope}", "quiet"), COPYING, n)
    for verb in ("put", "get")
    for scope, n in THREADS.items()
}
PAIRS |= {
    f"put{scope} and quiet": Pair(completed, (f"put{scope}", "quiet"), COPYING, n)
    for scope, n in THREADS.items()
}
PAIRS |= {
    "p": Pair(valued, ("p", "quiet"), COPYING, 1),
    "g": Pair(asked, ("g", "quiet"), COPYING, 1),
    "atomic_add": Pair(valued, ("atomic_add", "quiet"), COPYING, 1),
    "atomic_fetch_add": Pair(fetched, ("atomic_fetch_add", "quiet"), COPYING, 1),
    "signal ping-pong": Pair(
        ping_pong, ("signal_op", "signal_wait_until"), (SIGNAL, INT, INT, INT, INT), 1
    ),
    "put_block in parts": Pair(
        parts, ("put_block", "quiet"), (WORDS, WORDS, INT), PART_THREADS
    ),
    "nothing": Pair(nothing, (), (WORDS, WORDS, INT), 32),
}  # fmt: skip
OTHER_NAMES = {"signal_wait_until": "signal_wait"}


def ours(name):
    """Python function of our side of a pair."""
    import gpushmem as shmem

    pair = PAIRS[name]
    return pair.body(*(getattr(shmem, call) for call in pair.calls))


def theirs(name):
    """Python function of nvshmem4py's side of a pair."""
    from nvshmem.bindings.device import numba as bindings
    from nvshmem.core.device import numba as documented

    def find(call):
        found = getattr(documented, OTHER_NAMES.get(call, call), None)
        return found or getattr(bindings, call)

    pair = PAIRS[name]
    return pair.body(*map(find, pair.calls))
