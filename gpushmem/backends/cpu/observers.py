"""Who reads the events of kernels: a row for each reader, by the setting that asks for it.

A reader's compiled code is in its room (`check.instrumentation`, `trace.instrumentation`,
`trace.counter_instrumentation`); of hosts it is told as a `Reader` of `backends.host`
(`host_checking`, `host_tracing`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from gpushmem import settings
from gpushmem.backends.cpu.checked_process import process_recorder
from gpushmem.backends.cpu.operations import hook
from gpushmem.backends.cpu.operations.hook import Observer, is_event
from gpushmem.check import instrumentation as checking
from gpushmem.check import turns
from gpushmem.errors import ArgumentError
from gpushmem.simt.observe import observe_also, witnessed_by
from gpushmem.trace import counter_instrumentation as counting
from gpushmem.trace import instrumentation as tracing

__all__ = ["READERS", "observe_kernels"]


class Row(NamedTuple):
    """Observers of operations, and of loads, stores and barriers; what errors call them."""

    operations: Observer
    accesses: Any
    name: str


READERS = {
    "GPUSHMEM_CHECK": Row(
        Observer(
            is_event, checking.generate, checking.generate_after,
            group_called=checking.group_called, name=checking.OBSERVER.name, pauses=turns.PAUSES,
        ),
        checking.OBSERVER, "the checker",
    ),
    "GPUSHMEM_TRACE": Row(
        Observer(is_event, tracing.generate, tracing.generate_after, name="trace"),
        None, "the trace",
    ),
    "GPUSHMEM_STATS": Row(
        Observer(is_event, counting.generate, counting.generate_after, name="stats"),
        None, "counters",
    ),
}  # fmt: skip
EXCLUSIVE = {"GPUSHMEM_TRACE", "GPUSHMEM_STATS"}  # which use the same memory


def observe_kernels(*names: str) -> None:
    """Let kernels that are compiled from now on be observed as settings say, all or these.

    Raises `ArgumentError` if readers exclude each other, `ShmemError` if it is too late for a
    change: kernels that have been compiled, and what they call, stay as they are.
    """
    wanted = [name for name in READERS if settings.is_set(name)]
    if EXCLUSIVE.issubset(wanted):
        raise ArgumentError(
            f"{' and '.join(sorted(EXCLUSIVE))}: set one of them; a trace has the counters"
        )
    for name in names or READERS:
        row, on = READERS[name], name in wanted
        hook.refuse_change(row.operations.name, row.name, on)
        if row.accesses is None and on != (row.operations in hook.OBSERVERS):
            observe_also(row.operations.name, on)
        hook.watch(row.operations, row.accesses, on)
    witnessed_by(process_recorder if "GPUSHMEM_CHECK" in wanted else None)
