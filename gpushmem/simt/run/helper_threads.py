"""Threads that help with launches of kernels that wait: each runs blocks on a core of its own.

While such launches begin, the helpers look ten thousand times a second for one that was running at
their last look, too, and join it if it has blocks for them (`load_balancing`). So a launch that
ends sooner pays nothing for them, and one that takes longer need not know it when it begins. A
helper's part of a launch is a run of its own, in `running()`: what waits there is in reports. After
some time without a launch the helpers sleep, until the next one rings.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numba import types

from gpushmem.artifacts.argument_packing import address_of
from gpushmem.native.c_function import c_function
from gpushmem.native.internal import internal
from gpushmem.native.lock import lock, unlock
from gpushmem.native.memory import (
    call_address,
    full_fence,
    libc_free,
    load_acquire,
    monotonic_ns,
    sched_yield,
    store_release,
    usleep,
)
from gpushmem.simt.run import cores
from gpushmem.simt.run.load_balancing import CROWDED, join, leave
from gpushmem.simt.run.queue import (
    DOZES,
    HELP_BELL,
    LAUNCH_AT,
    POOL_AT,
    WORK,
    as_common,
    as_launch,
    as_run,
    begin,
    borrow_pool,
    end,
    new_run,
    of_process,
    return_pool,
    sleep_at,
)
from gpushmem.waiting_threads import Parked, block_signals

__all__ = ["start"]

LOOKS = 50  # without a launch, before a helper sleeps
PERIOD_US = 100  # from one look to the next


@internal
def find(common_address: int, last_run: int, last_number: int) -> tuple[int, int, bool]:
    """The first run that others may help with, its number, and whether the caller has joined it.

    It joins what it has seen before, or, where every launch is worth a second core, what it sees;
    nothing for a while after a core turned out to be `crowded`.
    """
    common = as_common(common_address)
    found = number = 0
    joined = False
    lock(common_address)
    address = common.latest
    while address != 0 and found == 0:
        run = as_run(address)
        if as_launch(address + LAUNCH_AT).open != 0:
            found, number = address, run.number
        address = run.next
    known = (found == last_run and number == last_number) or common.worth < 0
    if found != 0 and known and monotonic_ns() >= common.alone_until:
        # `close` waits for who has joined, so the run goes on.
        joined = join(found + LAUNCH_AT)
    unlock(common_address)
    return found, number, joined


@internal
def assist(root_run: int, run_address: int, part: int) -> None:
    """Run blocks of a launch that has been joined, in a run of one's own."""
    root_address, launch_address = root_run + LAUNCH_AT, run_address + LAUNCH_AT
    common = as_run(run_address).common
    launch = as_launch(launch_address)
    begin(run_address, as_run(root_run).template, as_launch(root_address).args, root_address)
    launch.part = part
    kept = borrow_pool(common, launch.slot_bytes)
    if kept != 0:
        launch.pool = kept + POOL_AT
        call_address(launch.entry, launch_address)
        return_pool(common, kept)
    if launch.text != 0:
        call_address(launch.flush, launch_address)
        libc_free(launch.text)
    end(run_address)
    if launch.crowded != 0 or load_acquire(root_address + CROWDED) != 0:
        as_common(common).alone_until = monotonic_ns() + as_common(common).alone_ns
    leave(root_address)


@internal
def help_launches(common_address: int, run_address: int, part: int) -> int:
    """Body of a helper's thread."""
    common = as_common(common_address)
    run = number = 0
    while part > 0:
        work, looks = load_acquire(common_address + WORK), 0
        while looks < LOOKS:
            looks += 1
            run, number, joined = find(common_address, run, number)
            if joined:
                assist(run, run_address, part)
            if run != 0:
                looks = 0
            if common.worth >= 0:
                usleep(PERIOD_US)
            else:
                sched_yield()
        bell = load_acquire(common_address + HELP_BELL)
        store_release(common_address + DOZES, 1)
        full_fence()
        if load_acquire(common_address + WORK) == work:
            sleep_at(common_address + HELP_BELL, bell, 0)
    return 0


_started: dict[int, int] = {}  # threads of a process, which a fork does not have


def start(place: Callable[[np.ndarray[Any, Any]], Any]) -> None:
    """See to it that as many threads help as there are cores for this process's kernels.

    `place` makes a Place of a RUN.
    """
    native()  # compiled now, if nobody has: the first launch, too, is to have help
    pid, wanted = os.getpid(), cores.usable_cores() - 1
    for number in range(_started.get(pid, 0), wanted):
        _started[pid] = number + 1
        threading.Thread(target=_body, args=(number + 1, place), daemon=True).start()


def _body(part: int, place: Callable[[np.ndarray[Any, Any]], Any]) -> None:
    block_signals()
    memory = new_run()
    with Parked("help", lambda: False, place(memory).current, worker=True):
        native()(address_of(of_process), address_of(memory), part)


@cache
def native() -> Callable[[int, int, int], int]:
    code = c_function(types.intp(*[types.intp] * 3), help_launches.py_func)
    return code.callable(*[ctypes.c_int64] * 4)
