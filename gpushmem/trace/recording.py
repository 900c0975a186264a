"""What operations in kernels add to the trace: code that is compiled into each call.

A call that never waits is one event, written when it has been performed; of one that moves data and
a signal, one event each. A wait is written when it begins and completed when it is over, so one
that never ends is in the trace, too.
"""

from __future__ import annotations

from typing import Any

from numba import types

from gpushmem.ops import Op
from gpushmem.ops.row import READS, Effect
from gpushmem.simt.base.layout import LAUNCH, THREAD, offset, view
from gpushmem.simt.base.native import atomic_add_word, i64, ticks
from gpushmem.simt.compiler.kept import outlined
from gpushmem.simt.compiler.primitives import core_word, launch_word, site_word, thread_word
from gpushmem.simt.compiler.target import device
from gpushmem.trace import kernels
from gpushmem.trace.kernels import close
from gpushmem.trace.ring import CORES, EVENT, KIND_OF, NO_PE, RING, THREADS

__all__ = ["append", "closed", "events_of", "generate", "generate_after", "now", "wants"]

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
    event.kind, event.pe, event.launch = kind, pe, launch.number
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
closed, now = device(close.py_func), device(kernels.now.py_func)


def wants(op: Op) -> bool:
    """Whether calls of an operation are events: those that only compute are not."""
    return bool(op.facts.effects or op.waits or op.facts.orders)


def generate(call: Any) -> Any:
    """Begin; returns what `generate_after` needs: the time, or the number of the event."""
    if not call.op.waits:
        return call.run(now, returns=types.intp)
    words = [call.trace(), i64(KIND_OF[call.op.name]), *_of_wait(call)]
    return call.run(opened, *words, returns=types.intp)


def generate_after(call: Any, result: Any, kind: int, token: Any) -> None:
    """End: the operation has returned."""
    ring = call.trace()
    if call.op.waits:
        call.run(closed, ring, token, returns=types.intp)
        return
    for words in events_of(call):
        call.run(note, ring, i64(KIND_OF[call.op.name]), *words, token)


def _of_wait(call: Any) -> list[Any]:
    """Offset, value and bytes of what is waited for; of a meeting the team, and the bytes sent."""
    op = call.op
    if op.facts.meets:
        team = call.integer("team") if "team" in call.values else i64(0)
        sent = [effect for effect in op.facts.effects if effect.how == READS]
        if not sent or not _is_array(call, sent[0]):
            return [i64(-1), team, i64(0)]
        return [call.offset(sent[0].array), team, call.nbytes(sent[0])]
    name = op.facts.waits_for
    effect = next(effect for effect in op.facts.effects if effect.array == name)
    return [call.offset(name), _integer(call, "value"), call.nbytes(effect)]


def events_of(call: Any) -> list[list[Any]]:
    """PE, offset, value and bytes of each event: one for each effect on memory that PEs share."""
    op = call.op
    pe = call.integer("pe") if "pe" in call.values else i64(NO_PE)
    seen = [
        effect
        for effect in op.facts.effects
        if op.arrays[effect.array].symmetric and _is_array(call, effect)
    ]
    found = [
        [pe, call.offset(effect.array), _integer(call, "value"), call.nbytes(effect)]
        for effect in seen
    ]
    return found or [[pe, i64(-1), _integer(call, "value"), i64(0)]]


def _is_array(call: Any, effect: Effect) -> bool:
    return isinstance(call.argtypes[effect.array], types.Array)


def _integer(call: Any, name: str) -> Any:
    return call.integer(name) if isinstance(call.argtypes.get(name), types.Integer) else i64(0)
