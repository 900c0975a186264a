"""Waiting threads: their records, read from Python while they wait.

Reading stops nothing. Of a launch that makes progress, a thread may be listed that has just ceased
to wait; a launch that hangs, the case this is for, is shown exactly.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpushmem.artifacts.arguments import address_of
from gpushmem.simt.base.layout import FIBER, LAUNCH, offset
from gpushmem.simt.run.kernel import Run, running

__all__ = ["Wait", "unstarted", "waits"]

MOST = 20_000  # records read of one launch; a ring that changes under us is not followed forever


@dataclass(frozen=True)
class Wait:
    """One waiting thread."""

    kernel: str
    block: tuple[int, ...]
    thread: tuple[int, ...]
    what: str  # the operation
    site: str  # "file.py:12 in kernel"
    address: int  # of the object waited on; a GROUP for barriers
    compare: int
    wanted: int
    width: int  # bytes at `address`, negative if the value is signed
    seconds: float  # since any thread of the launch moved


def _on_fibers() -> list[Run]:
    return [run for run in running() if run.fibers]


def waits() -> list[Wait]:
    """The waiting threads of all launches of this process."""
    return [wait for launch in _on_fibers() for wait in _of(launch)]


def unstarted() -> list[tuple[str, int, int]]:
    """Launches with blocks that wait for a place: (kernel, resident blocks, blocks not started)."""
    return [
        (launch.name, int(launch.launch["resident"][0]), launch.blocks - int(started))
        for launch in _on_fibers()
        if (started := launch.launch["next_block"][0]) < launch.blocks
    ]


def _of(launch: Run) -> Iterator[Wait]:
    idle_since = int(launch.launch["idle_since"][0])
    seconds = (time.monotonic_ns() - idle_since) / 1e9 if idle_since else 0.0
    ring = address_of(launch.launch) + offset(LAUNCH, "ring")
    address = int(_at(FIBER, ring)["next"])
    for _ in range(MOST):
        if address in (0, ring):
            return
        fiber = _at(FIBER, address)
        if fiber["what"]:
            thread = fiber["thread"]
            yield Wait(
                launch.name, tuple(map(int, thread["bid"])), tuple(map(int, thread["tid"])),
                _text(fiber["what"]), _text(fiber["site"]), int(fiber["address"]),
                int(fiber["compare"]), int(fiber["wanted"]), int(fiber["width"]), seconds,
            )  # fmt: skip
        address = int(fiber["next"])


def _at(struct: np.dtype[Any], address: int) -> Any:
    buffer = (ctypes.c_char * struct.itemsize).from_address(address)
    return np.frombuffer(memoryview(buffer), struct)[0].copy()


def _text(address: Any) -> str:
    return ctypes.string_at(int(address)).decode() if address else "?"
