"""What the engine tells the trace: runs of kernels, and blocks of those that wait."""

from __future__ import annotations

import ctypes
from functools import cache
from types import SimpleNamespace
from typing import Any

from numba import types

from gpushmem.native.c_function import c_function
from gpushmem.native.internal import internal
from gpushmem.native.memory import atomic_add_word, ticks
from gpushmem.native.structs import offset, view
from gpushmem.simt.layout import BLOCK as BLOCK_RECORD
from gpushmem.simt.layout import COMMON, FIBER, LAUNCH, LAUNCH_AT, RUN
from gpushmem.trace.ring import BLOCK, CORES, EVENT, KERNEL, NO_PE, RING, THREADS
from gpushmem.trace.ring import LAUNCH as LAUNCHED

__all__ = ["c_functions", "native"]

as_ring, as_event, as_run, as_common = map(view, (RING, EVENT, RUN, COMMON))
as_launch, as_fiber, as_block = map(view, (LAUNCH, FIBER, BLOCK_RECORD))
N, EVENT_BYTES = offset(RING, "n"), EVENT.itemsize


@internal
def append(
    ring: int, kind: int, pe: int, at: int, value: int, nbytes: int, site: int, block: int,
    began: int, ended: int, launch: int, thread: int,
) -> int:  # fmt: skip
    """A new event; returns its number. `launch` and `thread`: of a block, else 0."""
    number = atomic_add_word(ring + N, 1)
    here = as_ring(ring)
    event = as_event(here.events + (number & (here.most - 1)) * EVENT_BYTES)
    event.began, event.ended, event.site = began, ended, site
    event.at, event.value, event.nbytes = at, value, nbytes
    event.kind, event.thread, event.pe, event.launch, event.block = kind, thread, pe, launch, block
    return number


@internal
def launched(ring: int, name: int, site: int, thread: int) -> int:
    """The host's thread queues a kernel."""
    now = ticks()
    return append(ring, LAUNCHED, NO_PE, -1, name, 0, site, thread, now, now, 0, 0)


@internal
def close(ring: int, number: int) -> int:
    """What began with this event is over."""
    here = as_ring(ring)
    if here.n - number <= here.most:
        as_event(here.events + (number & (here.most - 1)) * EVENT_BYTES).ended = ticks()
    return 0


@internal
def now() -> int:
    return ticks()


@internal
def run_began(run_address: int) -> None:
    """A kernel begins, or another core joins it."""
    run, launch = as_run(run_address), as_launch(run_address + LAUNCH_AT)
    common = as_common(run.common)
    launch.kept, launch.block_ended = common.own, common.block_ended
    if launch.root != run_address + LAUNCH_AT:
        launch.event = as_launch(launch.root).event
        return
    blocks = launch.gdim[0] * launch.gdim[1] * launch.gdim[2]
    threads = launch.bdim[0] * launch.bdim[1] * launch.bdim[2]
    number = append(
        common.own, KERNEL, launch.label, blocks, run.stream, threads, 0, 0, ticks(), 0, 0, 0
    )
    launch.event = number + 1


@internal
def run_ended(run_address: int) -> None:
    """It has ended; another core's part, which has no event, ends unseen."""
    launch = as_launch(run_address + LAUNCH_AT)
    if launch.root == run_address + LAUNCH_AT:
        close(launch.kept, launch.event - 1)


@internal
def block_ended(fiber_address: int) -> None:
    """A block has ended, on the core that its last thread ran on."""
    fiber = as_fiber(fiber_address)
    launch, block = as_launch(fiber.launch), as_block(fiber.block)
    core = THREADS * (launch.part & CORES)
    append(
        launch.kept,
        BLOCK,
        NO_PE,
        -1,
        0,
        0,
        0,
        block.index,
        block.began,
        ticks(),
        launch.event,
        core,
    )


@cache
def native() -> SimpleNamespace:
    """C functions for Python, and the addresses of the engine's `hooks`."""
    calls = {
        "append": (append, 12), "launched": (launched, 4), "close": (close, 2), "now": (now, 0),
    }  # fmt: skip
    hooks = {"run_began": run_began, "run_ended": run_ended, "block_ended": block_ended}
    return c_functions(calls, hooks)


def c_functions(calls: dict[str, tuple[Any, int]], hooks: dict[str, Any]) -> SimpleNamespace:
    """Functions of so many words, which keep the GIL; `hooks`, which the engine calls."""
    made = SimpleNamespace(hooks={}, keep=[])
    word = types.intp
    for name, (function, n) in calls.items():
        code = c_function(word(*[word] * n), function.py_func)
        kind = ctypes.PYFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * n)
        setattr(made, name, kind(code.address))
        made.keep.append(code)
    for name, function in hooks.items():
        code = c_function(types.void(word), function.py_func)
        made.hooks[name] = code.address
        made.keep.append(code)
    return made
