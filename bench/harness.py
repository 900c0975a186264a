"""What the benchmarks share: timing, the table, the results kept as data."""

import json
import os
import platform
import time
from importlib.metadata import version
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from gpushmem.progress import progress

os.environ.setdefault("GPUSHMEM_TIER", "full")  # code as it is when it has been optimised
RESULTS = Path(__file__).parent / "results"


def best_of(repeats, *functions):
    """Seconds each function takes, the best of `repeats` rounds in which all take turns.

    A run that is not timed precedes each, so that none finds the caches as another left them.
    """
    best = [float("inf")] * len(functions)
    for _ in range(repeats):
        for k, function in enumerate(functions):
            function()
            began = time.perf_counter()
            function()
            best[k] = min(best[k], time.perf_counter() - began)
    return best


def row(what, ours, against, peer, aim, speed, shown=None):
    """One row of `report`: the times in seconds or None, `speed` the ratio or None."""
    shown = shown or seconds
    return {
        "what": what, "ours": shown(ours), "against": against, "peer": shown(peer),
        "ratio": "" if speed is None else f"{speed:.2f}x", "aim": aim,
    }  # fmt: skip


def slowdowns(name, against, aim, times, shown=None, more=()):
    """Report (what, ours, peer), with the median and the worst of the ratios, and `more` rows."""
    ratios = [ours / peer for _, ours, peer in times]
    rows = [row(what, ours, against, peer, "", ours / peer, shown) for what, ours, peer in times]
    for what, ratio in (("median", median(ratios)), ("worst", max(ratios))):
        rows.append(row(what, None, against, None, aim, ratio))
    report(name, [*rows, *more])


def measured(name, rows):
    """The rows of an iterator as a list."""
    kept = []
    with progress(f"{name}: measurements") as bar:
        bar.now("")
        for one in rows:
            kept.append(one)
            bar.advance(1, f"the last: {one['what']}")
    return kept


def seconds(t):
    if t is None:
        return ""
    for unit, scale in (("s", 1), ("ms", 1e3), ("us", 1e6)):
        if t * scale >= 1:
            return f"{t * scale:.3g} {unit}"
    return f"{t * 1e9:.3g} ns"


def size(nbytes):
    return "" if nbytes is None else f"{nbytes / 1e6:.3g} MB"


def machine():
    """What the numbers were taken on."""
    cpu = next(
        (
            line.split(":")[1].strip()
            for line in open("/proc/cpuinfo")
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    packages = {
        name: version(name) for name in ("gpushmem", "numba", "numba-cuda", "llvmlite", "numpy")
    }
    return {"cpu": cpu, "cores": os.cpu_count(), "python": platform.python_version(), **packages}


def report(name, rows, keep=True, **peers):
    """Print `rows` (see `row`) and keep them in results/name.json, with the versions of `peers`.

    On a terminal it shows how many there are while they are measured, where `rows` is an iterator.
    Without `keep` they are only printed.
    """
    rows = rows if isinstance(rows, list) else measured(name, rows)
    table = Table(title=name)
    for column in ("what", "ours", "against", "peer", "ratio", "aim"):
        table.add_column(column, justify="right" if column in ("ours", "peer", "ratio") else "left")
    for row in rows:
        table.add_row(
            *(str(row.get(c, "")) for c in ("what", "ours", "against", "peer", "ratio", "aim"))
        )
    Console(width=120).print(table)
    if not keep:
        return
    RESULTS.mkdir(exist_ok=True)
    data = {"machine": machine() | peers, "rows": rows}
    (RESULTS / f"{name}.json").write_text(json.dumps(data, indent=2) + "\n")
