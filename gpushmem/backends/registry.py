"""The backends: one table. A new backend is a package beside this file, and a row here."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

from gpushmem.backends.properties import About

__all__ = [
    "BACKENDS", "Entry", "about", "load", "that_are_late", "that_record", "that_trace",
    "that_use_gpus", "unasked",
]  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """A backend: its package, which has an `ABOUT`, and a sentence that describes it.

    By default the usable backend of the highest `rank` is chosen, never one of rank 0.
    """

    package: str
    rank: int
    summary: str


BACKENDS = {
    "cpu": Entry(
        "gpushmem.backends.cpu", 1,
        "Runs kernels natively on this machine's cores; PEs share memory.",
    ),
    "nvshmem": Entry(
        "gpushmem.backends.nvshmem", 2,
        "Runs kernels on GPUs; NVSHMEM moves the data.",
    ),
    "nvshmem-cpu": Entry(
        "gpushmem.backends.nvshmem_cpu", 0,
        "Runs kernels with NVSHMEM's own device code on this machine's cores.",
    ),
    "null": Entry(
        "gpushmem.backends.null", 0,
        "One PE, host operations in NumPy, and no kernels.",
    ),
}  # fmt: skip


def about(name: str) -> About:
    """Return a backend's `ABOUT`, without importing the backend."""
    found: About = importlib.import_module(BACKENDS[name].package).ABOUT
    return found


def load(name: str) -> Any:
    """Import and return "module:name"."""
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


def that_record() -> list[str]:
    """The backends that can record what PEs do."""
    return [name for name in BACKENDS if about(name).records]


def that_schedule() -> list[str]:
    """The backends that can record what PEs do in an order that is asked for."""
    return [name for name in BACKENDS if about(name).schedules]


def that_trace() -> list[str]:
    """The backends that can record what PEs do, and when."""
    return [name for name in BACKENDS if about(name).traces]


def that_are_late() -> list[str]:
    """The backends that can perform operations late."""
    return [name for name in BACKENDS if about(name).is_late]


def that_use_gpus() -> list[str]:
    """The backends whose kernels run on GPUs."""
    return [name for name in BACKENDS if "gpu" in about(name).needs]


def unasked() -> list[str]:
    """The backends to try by default, best first."""
    ranked = {name: entry.rank for name, entry in BACKENDS.items() if entry.rank}
    return sorted(ranked, key=lambda name: -ranked[name])
