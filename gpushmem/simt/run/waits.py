"""Waiting threads: their records, read from Python while they wait.

Reading stops nothing. Of a launch that makes progress, a thread may be listed that has just ceased
to wait; a launch that hangs, the case this is for, is shown exactly.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from gpushmem.artifacts.argument_packing import address_of
from gpushmem.native.structs import offset
from gpushmem.simt.base.layout import BLOCK, FIBER, LAUNCH
from gpushmem.simt.compiler.groups import MEETING
from gpushmem.simt.run.kernel import Run, running
from gpushmem.simt.run.lockstep import IN_STEP

__all__ = ["Wait", "unstarted", "waits"]

LOOKS = 20  # at a launch of which no thread seems to wait
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
    found: dict[int, list[Wait]] = {}
    for launch in _on_fibers():
        some = list(_of(launch))
        for _ in range(LOOKS):  # one that polls waits most of the time, but not always
            some = some or list(_of(launch))
        if launch.root in found:  # another core runs some of its blocks
            both = [*found[launch.root], *some]
            found[launch.root] = sorted(both, key=lambda wait: wait.block[::-1])
        else:
            found[launch.root] = some
    return [wait for of_launch in found.values() for wait in of_launch]


def unstarted() -> list[tuple[str, int, int]]:
    """Launches with blocks that wait for a place: (kernel, resident blocks, blocks not started)."""
    return [
        (launch.name, int(launch.launch["total"][0]), launch.blocks - int(started))
        for launch in _on_fibers()
        if launch.whole and (started := launch.launch["next_block"][0]) < launch.blocks
    ]


def _of(launch: Run) -> Iterator[Wait]:
    if launch.lockstep:
        yield from _in_lockstep(launch)
    else:
        yield from _alone(launch)


def _in_lockstep(launch: Run) -> Iterator[Wait]:
    """Also threads for which one waits, and those at a barrier, which are no fibers."""
    blocks: dict[int, tuple[int, ...]] = {}
    waits = []
    for wait, fiber in _records(launch):
        blocks[int(fiber["block"])] = tuple(map(int, fiber["thread"]["bid"]))
        if wait is None:
            continue
        if fiber["together"]:
            waits += [replace(wait, thread=t) for t in _threads(launch)]
        else:
            waits.append(wait)
    for address, bid in blocks.items():
        waits += _parked(launch, address, bid)
    seen: set[Any] = set()  # a ring that changes under us may show a thread twice
    for wait in sorted(waits, key=lambda w: (w.block[::-1], w.thread[::-1])):
        if (wait.block, wait.thread) not in seen:
            seen.add((wait.block, wait.thread))
            yield wait


def _threads(launch: Run) -> Iterator[tuple[int, int, int]]:
    x, y, z = map(int, launch.launch["bdim"][0].tolist())
    return ((k % x, k // x % y, k // (x * y)) for k in range(x * y * z))


def _parked(launch: Run, address: int, bid: tuple[int, ...]) -> Iterator[Wait]:
    """The threads of a block that stand at a barrier."""
    threads = list(_threads(launch))
    found = _peek(address, BLOCK.itemsize)
    block = np.frombuffer(found, BLOCK)[0] if found else None
    if block is None or block["stop"] == IN_STEP:
        return
    codes = np.frombuffer(_peek(int(block["frame"]), 8 * len(threads)), np.int64).tolist()
    sites, group = int(launch.launch["sites"][0]), address + offset(BLOCK, "all")
    for thread, code in zip(threads, codes, strict=False):
        if code & 1 or (block["barrier"] and code == block["stop"] and code > 0):
            site = _peek(sites + 8 * (code >> 1), 8)
            yield Wait(
                launch.name, bid, thread, "syncthreads", _text(int.from_bytes(site, "little")),
                group, MEETING, int(block["all"]["generation"]), 8, _seconds(launch),
            )  # fmt: skip


def _peek(address: int, nbytes: int) -> bytes:
    """Memory that its launch may free meanwhile: nothing, then."""
    try:
        with Path("/proc/self/mem").open("rb", buffering=0) as memory:
            memory.seek(address)
            return memory.read(nbytes)
    except (OSError, OverflowError, ValueError):
        return b""


def _seconds(launch: Run) -> float:
    idle_since = int(launch.launch["idle_since"][0])
    return (time.monotonic_ns() - idle_since) / 1e9 if idle_since else 0.0


def _alone(launch: Run) -> Iterator[Wait]:
    return (wait for wait, _ in _records(launch) if wait is not None)


def _records(launch: Run) -> Iterator[tuple[Wait | None, Any]]:
    """The fibers of a launch, each with what it waits for."""
    seconds = _seconds(launch)
    ring = address_of(launch.launch) + offset(LAUNCH, "ring")
    address = int(_at(FIBER, ring)["next"])
    for _ in range(MOST):
        if address in (0, ring):
            return
        fiber, wait = _at(FIBER, address), None
        if fiber["what"]:
            thread = fiber["thread"]
            wait = Wait(
                launch.name, tuple(map(int, thread["bid"])), tuple(map(int, thread["tid"])),
                _text(fiber["what"]), _text(fiber["site"]), int(fiber["address"]),
                int(fiber["compare"]), int(fiber["wanted"]), int(fiber["width"]), seconds,
            )  # fmt: skip
        yield wait, fiber
        address = int(fiber["next"])


def _at(struct: np.dtype[Any], address: int) -> Any:
    buffer = (ctypes.c_char * struct.itemsize).from_address(address)
    return np.frombuffer(memoryview(buffer), struct)[0].copy()


def _text(address: Any) -> str:
    return ctypes.string_at(int(address)).decode() if address else "?"
