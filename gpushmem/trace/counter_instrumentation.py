"""What adds to the counters: code that is compiled into operations, and functions of the engine's.

They take the place of what `instrumentation` and `kernel_events` add to the ring.
"""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any

from numba import types

from gpushmem.native.internal import internal
from gpushmem.native.memory import atomic_add_word, i64, ticks
from gpushmem.native.structs import view
from gpushmem.ops import OPS
from gpushmem.simt.functions import outlined
from gpushmem.simt.layout import COMMON, LAUNCH, LAUNCH_AT, RUN
from gpushmem.trace import kernel_events
from gpushmem.trace.counters import COUNTERS, N_ROWS, ROW, ROWS_AT
from gpushmem.trace.instrumentation import now
from gpushmem.trace.operation_events import of_call
from gpushmem.trace.ring import KERNEL, KIND_OF, NO_PE
from gpushmem.trace.ring import LAUNCH as LAUNCHED

__all__ = ["generate", "generate_after", "native"]

as_counters, as_run, as_common, as_launch = map(view, (COUNTERS, RUN, COMMON, LAUNCH))
ROW_BYTES = ROW.itemsize
CALLS, NBYTES, TICKS = (ROW.fields[name][1] for name in ROW.names)  # type: ignore[index,union-attr]
GETS = tuple(KIND_OF[name] for name, op in OPS.items() if op.plain in ("get", "iget", "g"))
KIND_BITS, ALL_TICKS = 10, (1 << 53) - 1  # of what `append` returns for what has not ended
assert N_ROWS <= 1 << KIND_BITS


@internal
def add(counters: int, kind: int, nbytes: int, took: int) -> None:
    """One more call."""
    row = counters + ROWS_AT + kind * ROW_BYTES
    atomic_add_word(row + CALLS, 1)
    atomic_add_word(row + TICKS, took)
    if nbytes != 0:
        atomic_add_word(row + NBYTES, nbytes)


# --- in kernels

added = outlined(add.py_func)


@outlined
def moved(counters, kind, pe, nbytes, gets, took):
    """One more call, which has moved bytes to or from a PE."""
    added(counters, kind, nbytes, took)
    here = as_counters(counters)
    if pe >= 0 and pe < here.n_pes and nbytes != 0:
        atomic_add_word((here.got if gets else here.put) + 8 * pe, nbytes)


@outlined
def since(began):
    return ticks() - began


def generate(call: Any) -> Any:
    """Begin: the time."""
    return call.run(now, returns=types.intp)


def generate_after(call: Any, result: Any, kind: int, token: Any) -> None:
    """End: the operation has returned."""
    kind_of_call = KIND_OF[call.op.name]
    counters, number = call.trace(), i64(kind_of_call)
    took = call.run(since, token, returns=types.intp)
    if call.op.waits:
        call.run(added, counters, number, i64(0), took)
        return
    events = of_call(call)
    nbytes = i64(0)
    for _, _, _, each in events:
        nbytes = call.builder.add(nbytes, each)
    gets = i64(int(kind_of_call in GETS))
    call.run(moved, counters, number, events[0][0], nbytes, gets, took)


# --- for the host, and the engine; as `kernel_events` has them for a ring


@internal
def append(
    counters: int, kind: int, pe: int, at: int, value: int, nbytes: int, site: int, block: int,
    began: int, ended: int, launch: int, thread: int,
) -> int:  # fmt: skip
    """Something that the host does; if it has not ended, returns what `close` is to be given."""
    if ended == 0:
        return ((began & ALL_TICKS) << KIND_BITS) | kind
    add(counters, kind, nbytes, ended - began)
    here = as_counters(counters)
    if pe != NO_PE and nbytes != 0:
        atomic_add_word((here.got if kind in GETS else here.put) + 8 * pe, nbytes)
    return 0


@internal
def launched(counters: int, name: int, site: int, thread: int) -> int:
    add(counters, LAUNCHED, 0, 0)
    return 0


@internal
def close(counters: int, what: int) -> int:
    kind = what & ((1 << KIND_BITS) - 1)
    add(counters, kind, 0, (ticks() - (what >> KIND_BITS)) & ALL_TICKS)
    return 0


@internal
def run_began(run_address: int) -> None:
    """A kernel begins, or another core joins it."""
    launch = as_launch(run_address + LAUNCH_AT)
    if launch.root == run_address + LAUNCH_AT:
        launch.kept = ticks()


@internal
def run_ended(run_address: int) -> None:
    run, launch = as_run(run_address), as_launch(run_address + LAUNCH_AT)
    if launch.root == run_address + LAUNCH_AT:
        add(as_common(run.common).own, KERNEL, 0, ticks() - launch.kept)


@cache
def native() -> SimpleNamespace:
    """C functions for Python, and the engine's `hooks`, as `kernel_events.native`."""
    calls = {
        "append": (append, 12), "launched": (launched, 4), "close": (close, 2),
        "now": (kernel_events.now, 0),
    }  # fmt: skip
    return kernel_events.c_functions(calls, {"run_began": run_began, "run_ended": run_ended})
