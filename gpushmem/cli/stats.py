"""Counters of a job's PEs as text, for `gpushmem run --stats`."""

from __future__ import annotations

from gpushmem.cli.trace import table, time
from gpushmem.size import format_size
from gpushmem.trace.counters import Count, Stats

__all__ = ["report"]

NOTE = "Times of operations are those of all threads that call them."


def report(every: list[Stats]) -> list[str]:
    """A table of PEs, and one of operations, of all PEs."""
    if not every:
        return ["gpushmem: no PE has counted anything: none has called init"]
    rows = [
        ["PE", "launches", "in kernels", "compiling", "sent", "received", "heap peak", "operations",
         "waiting in them"]
    ]  # fmt: skip
    for stats in every:
        sent = sum(stats.put) + sum(s.got[stats.pe] for s in every)
        came = sum(stats.got) + sum(s.put[stats.pe] for s in every)
        rows.append(
            [
                str(stats.pe), str(stats.kernels.calls), _time(stats.kernels),
                _time(stats.compiling), format_size(sent), format_size(came),
                format_size(stats.heap_peak), str(sum(c.calls for c in stats.operations.values())),
                _time(stats.waiting),
            ]
        )  # fmt: skip
    lines = ["", *table(rows)]
    operations = [["calls", "bytes", "time", "per call", "most on", "operation"]]
    for name, each in sorted(_by_operation(every).items(), key=lambda item: -_seconds(item[1])):
        calls, seconds = sum(c.calls for c in each.values()), _seconds(each)
        nbytes = sum(c.nbytes for c in each.values())
        longest = max(each, key=lambda pe: each[pe].seconds)
        operations.append(
            [
                str(calls), format_size(nbytes) if nbytes else "", time(1e9 * seconds),
                time(1e9 * seconds / calls), f"PE {longest}", name,
            ]
        )  # fmt: skip
    if len(operations) > 1:
        lines += ["", f"Operations. {NOTE}", *table(operations)]
    return lines


def _by_operation(every: list[Stats]) -> dict[str, dict[int, Count]]:
    found: dict[str, dict[int, Count]] = {}
    for stats in every:
        for name, count in stats.operations.items():
            found.setdefault(name, {})[stats.pe] = count
    return found


def _seconds(each: dict[int, Count]) -> float:
    return sum(count.seconds for count in each.values())


def _time(count: Count) -> str:
    return time(1e9 * count.seconds)
