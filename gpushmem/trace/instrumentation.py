"""What operations in kernels add to the trace: code that is compiled into each call.

A call that never waits is one event, written when it has been performed; of one that moves data and
a signal, one event each. A wait is written when it begins and completed when it is over, so one
that never ends is in the trace, too.
"""

from __future__ import annotations

from typing import Any

from numba import types

from gpushmem.native.memory import atomic_add_word, i64, ticks
from gpushmem.native.structs import offset, view
from gpushmem.simt.functions import device, outlined
from gpushmem.simt.layout import LAUNCH, THREAD
from gpushmem.simt.thread import core_word, launch_word, site_word, thread_word
from gpushmem.trace import kernel_events
from gpushmem.trace.kernel_events import close
from gpushmem.trace.operation_events import of_call, of_wait
from gpushmem.trace.ring import CORES, EVENT, KIND_OF, NO_PE, RING, THREADS

__all__ = ["append", "closed", "generate", "generate_after", "now"]

as_ring, as_event, as_launch, as_thread = map(view, (RING, EVENT, LAUNCH, THREAD))
N, EVENT_BYTES = offset(RING, "n"), EVENT.itemsize


@device
def append(ring, kind, pe, at, value, nbytes, began, ended):
    """A new event of the calling thread; returns its number."""
    number = atomic_add_word(ring + N, 1)
    here = as_ring(ring)
    event = as_event(here.events + (number & (here.most - 1)) * EVENT_BYTES)
    thread, launch = as_thread(thread_word()), as_launch(launch_word())
    tid, bdim, bid, gdim = thread.tid, thread.bdim, thread.bid, thread.gdim
    event.began, event.ended, event.site = began, ended, site_word()
    event.at, event.value, event.nbytes = at, value, nbytes
    event.kind, event.pe, event.launch = kind, pe, launch.event
    event.thread = (
        tid[0] + bdim[0] * (tid[1] + bdim[1] * tid[2])
        + THREADS * (as_launch(core_word()).part & CORES)
    )  # fmt: skip
    event.block = bid[0] + gdim[0] * (bid[1] + gdim[1] * bid[2])
    return number


@outlined
def note(ring, kind, pe, at, value, nbytes, began):
    """An operation that began then has been performed."""
    append(ring, kind, pe, at, value, nbytes, began, ticks())


@outlined
def opened(ring, kind, at, value, nbytes):
    """A wait begins; returns the number of its event."""
    return append(ring, kind, NO_PE, at, value, nbytes, ticks(), 0)


# A wait is over; the time.
closed, now = device(close.py_func), device(kernel_events.now.py_func)


def generate(call: Any) -> Any:
    """Begin; returns what `generate_after` needs: the time, or the number of the event."""
    if not call.op.waits:
        return call.run(now, returns=types.intp)
    words = [call.trace(), i64(KIND_OF[call.op.name]), *of_wait(call)]
    return call.run(opened, *words, returns=types.intp)


def generate_after(call: Any, result: Any, kind: int, token: Any) -> None:
    """End: the operation has returned."""
    ring = call.trace()
    if call.op.waits:
        call.run(closed, ring, token, returns=types.intp)
        return
    for words in of_call(call):
        call.run(note, ring, i64(KIND_OF[call.op.name]), *words, token)
