"""Puts, gets and signals in a stream.

Arguments are checked when the call is made; the bytes move when the stream comes to it, which the
stub of the driver does at once, or whenever a captured graph runs.
"""

import ctypes
import itertools

import numpy as np

from tests.nvshmem.emulation.driver import function, host_address
from tests.nvshmem.emulation.errors import EmulationError
from tests.nvshmem.emulation.job import limit, load64, store64, wait64
from tests.nvshmem.emulation.world import complete

SIGNAL_SET, SIGNAL_ADD = 9, 10
COMPARISONS = ("==", "!=", ">", "<=", "<", ">=")

_CALL = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
_calls: dict[int, object] = {}
_numbers = itertools.count(1)
failures: list[BaseException] = []  # of what ran out of a graph, where nobody could be told


@_CALL
def _run(number):
    try:
        _calls[number]()
    except BaseException as error:
        failures.append(error)
        return 1
    return 0


_enqueue = function("enqueue", ctypes.c_int, ctypes.c_void_p, _CALL, ctypes.c_void_p)


def on_stream(stream, action) -> None:
    """Do `action()` when the stream comes to it. What it raises is raised here if that is now."""
    number, ran, before = next(_numbers), [], len(failures)

    def once():
        ran.append(True)
        action()

    _calls[number] = once
    result = _enqueue(as_int(stream), _run, number)
    if len(failures) > before:
        raise failures.pop()
    if result:
        raise EmulationError(f"the stream {as_int(stream):#x} cannot be used: CUresult {result}")
    if ran:
        del _calls[number]


def as_int(value) -> int:
    """Take what Cython takes for an integer: no floats, no strings."""
    if isinstance(value, float | str | bytes | None):
        raise TypeError(f"an integer is required, not {value!r}")
    return int(value)


def device_bytes(address, n: int, doing: str) -> np.ndarray:
    """Return memory that this PE's device may use."""
    try:
        at = host_address(as_int(address), n)
    except ValueError as error:
        raise EmulationError(f"{doing}: {error}") from None
    return np.frombuffer((ctypes.c_char * n).from_address(at), np.uint8)


registered: dict[int, int] = {}  # local buffers that NVSHMEM knows: address, bytes


def local_bytes(address: int, n: int, pe: int, doing: str) -> np.ndarray:
    """Return this PE's side of a copy: for a PE of another node what a network adapter reaches."""
    world, found = complete(), device_bytes(address, n, doing)
    symmetric = 0 <= address - world.heap.mine < world.job.segment
    known = any(
        start <= address and address + n <= start + size for start, size in registered.items()
    )
    if pe not in world.heap.reachable and not symmetric and not known:
        raise EmulationError(
            f"{doing}: {n} bytes at {address:#x}, for PE {pe} of another node, are neither "
            "symmetric nor registered: NVSHMEM would end the process"
        )
    return found


def _copy(stream, to, come_from):
    # Looked up when it runs: a graph may run after the memory is gone.
    to(), come_from()

    def action():
        to()[:] = come_from()

    on_stream(stream, action)


def putmem(dest, source, n, pe, stream):
    """`nvshmemx_putmem_on_stream`."""
    dest, source, n, pe = map(as_int, (dest, source, n, pe))
    world = complete()
    if n:
        _copy(
            stream,
            lambda: world.heap.bytes_of(pe, dest, n, "put"),
            lambda: local_bytes(source, n, pe, "put"),
        )


def getmem(dest, source, n, pe, stream):
    """`nvshmemx_getmem_on_stream`."""
    dest, source, n, pe = map(as_int, (dest, source, n, pe))
    world = complete()
    if n:
        _copy(
            stream,
            lambda: local_bytes(dest, n, pe, "get"),
            lambda: world.heap.bytes_of(pe, source, n, "get"),
        )


def _signal_at(pe: int, address: int, doing: str) -> int:
    if address % 8:
        raise EmulationError(f"{doing}: the signal at {address:#x} is not aligned to 8 bytes")
    return complete().heap.bytes_of(pe, address, 8, doing).ctypes.data


def signal_op(signal, value, operation, pe, stream):
    """`nvshmemx_signal_op_on_stream`."""
    signal, value, operation, pe = map(as_int, (signal, value, operation, pe))
    if operation not in (SIGNAL_SET, SIGNAL_ADD):
        raise EmulationError(f"signal_op: {operation} is no operation on signals")
    _signal_at(pe, signal, "signal_op")

    def action():
        at = _signal_at(pe, signal, "signal_op")
        with complete().job:
            store64(at, value if operation == SIGNAL_SET else load64(at) + value)

    on_stream(stream, action)


def putmem_signal(dest, source, n, signal, value, operation, pe, stream):
    """`nvshmemx_putmem_signal_on_stream`."""
    putmem(dest, source, n, pe, stream)
    signal_op(signal, value, operation, pe, stream)


def signal_wait_until(signal, comparison, value, stream):
    """`nvshmemx_signal_wait_until_on_stream`. EmulationError after `limit`."""
    signal, comparison, value = map(as_int, (signal, comparison, value))
    me = complete().job.me
    if not 0 <= comparison < len(COMPARISONS):
        raise EmulationError(f"signal_wait_until: {comparison} is no comparison")
    _signal_at(me, signal, "signal_wait_until")

    def action():
        at = _signal_at(me, signal, "signal_wait_until")
        if wait64(at, comparison, value, limit()):
            raise EmulationError(
                f"PE {me} waited {limit():.0f} s for a signal {COMPARISONS[comparison]} {value}; "
                f"it is {load64(at)}"
            )

    on_stream(stream, action)


def signal_fetch(signal):
    """`nvshmem_signal_fetch`."""
    return load64(_signal_at(complete().job.me, as_int(signal), "signal_fetch"))


def nothing(stream):
    """`nvshmemx_quiet_on_stream`, `flush`: all is complete when it is done, here."""
    complete()
    on_stream(stream, lambda: None)


FUNCTIONS = {
    "putmem_on_stream": putmem,
    "getmem_on_stream": getmem,
    "putmem_signal_on_stream": putmem_signal,
    "signal_op_on_stream": signal_op,
    "signal_wait_until_on_stream": signal_wait_until,
    "signal_fetch": signal_fetch,
    "quiet_on_stream": nothing,
    "flush_on_stream": nothing,
}
