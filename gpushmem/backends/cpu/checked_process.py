"""What a process records that is checked: its launches, and its waits for them.

That is all there is to record of a program of numba.cuda. What the host of a PE does besides is in
`host_checking`.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gpushmem import settings
from gpushmem.artifacts.argument_packing import address_of
from gpushmem.backends.cpu.seeded_order import number_of, order_of
from gpushmem.check.instrumentation import PLACE, adder, reserver
from gpushmem.check.log import BEGIN, END, HOST, SUBMIT, SYNC, VALUE, Log
from gpushmem.check.turns import Schedule
from gpushmem.job.job import current
from gpushmem.simt.launch import Running
from gpushmem.simt.observe import LOAD, STORE
from gpushmem.source_lines import assigned_name, line_of, user_frame, users_files

if TYPE_CHECKING:
    from gpushmem.simt.observe import Work

HELD_UP, BETWEEN = 100, 0.002  # launches; seconds from the first PE to the second
SMALL = 4096  # bytes: of copies of more it is not looked whether they are all zero
__all__ = ["ProcessRecorder", "of_pe", "process_recorder", "warm_up"]

of_pe: list[ProcessRecorder] = []  # the recorder of a PE, from `init` to `finalize`


def process_recorder() -> ProcessRecorder | None:
    """Who records what this process does: its PE's recorder, if it is one.

    None: nobody, as it is in no job, and another process, which may have started it, is PE 0.
    """
    if of_pe:
        return of_pe[0]
    folder = settings.get("GPUSHMEM_CHECK")
    return _alone(Path(folder), os.getpid()) if folder else None


@cache
def _alone(folder: Path, pid: int) -> ProcessRecorder | None:
    if current() is not None or not (folder / "pe0.log").exists():
        return ProcessRecorder(folder)
    if not settings.get("GPUSHMEM_SIM"):
        return None
    # The simulator's processes have numbers as PEs have, and nothing in common.
    for number in range(1, settings.MOST):
        with suppress(FileExistsError):
            (folder / f"pe{number}.log").touch(exist_ok=False)
            return ProcessRecorder(folder, number)
    return None


@cache
def _log(folder: Path, pe: int) -> Log:
    """The process's log: one, however often it calls `init`."""
    job = current()
    stamp = address_of(_stamp) if job is None else job.board.address("stamp")
    return Log(folder, pe, stamp, adder(), reserver())


def warm_up() -> None:
    """Prepare what a recorder needs, in the process that PEs are forked from."""
    adder()
    reserver()
    users_files()


_stamp = np.zeros(1, np.int64)  # of a process without a job


class ProcessRecorder:
    """Appends to the process's log what its host does."""

    def __init__(self, folder: Path, number: int = 0) -> None:
        job = current()
        self.pe, self.n_pes = (number, 1) if job is None else (job.my_pe, job.n_pes)
        self._log = _log(folder, self.pe)
        self._schedule = Schedule.of(folder)
        if self._schedule is not None:
            self._log.follow(self._schedule.address)
        self._seed = settings.get("GPUSHMEM_SEED") if settings.is_set("GPUSHMEM_SEED") else None
        self._log.give_way(self._seed or 0)

    def _site(self) -> int:
        line = line_of(user_frame(sys._getframe(2)))
        return self._log.line(str(line), line.file)

    def _live_now(self) -> int:
        """The number of the list of the symmetric arrays that there are."""
        return 0

    # --- launches

    @property
    def launches(self) -> int:
        """How many there have been, with what else was queued."""
        return self._log.launches

    def submitted(self, launch: Running, stream: int) -> int:
        """The host has queued a launch; returns a number for it."""
        shared = [{"at": at, **array._asdict()} for at, array in launch.entry.arrays]
        return self._submit(
            launch.name, launch.shape.threads, stream, self._site(), launch.meets, shared=shared
        )

    def _submit(
        self, name: str, threads: int, stream: int, site: int, resident: bool = True, **facts: Any
    ) -> int:
        number = self._log.launch_number()
        self._log.describe(launch=number, kernel=name, **facts)
        self._log.append(
            SUBMIT, 0, site, (number, threads, stream, self._live_now(), int(resident))
        )
        return number

    @contextmanager
    def running(self, launch: Running, number: int) -> Iterator[None]:
        """A launch runs."""
        if self._seed is not None:
            self._hold_up(launch, self._seed, number)
        launch.observed = number, self._log.address
        self._log.append(BEGIN, number)
        try:
            yield
        finally:
            if self._schedule is not None:
                self._schedule.release(self.pe)
            self._log.flush(number, launch.places, PLACE)
            self._log.append(END, number)

    def _hold_up(self, launch: Running, seed: int, number: int) -> None:
        """Let PEs, blocks and threads begin in an order that the seed chooses."""
        places = [number_of(seed, number, pe) for pe in range(self.n_pes)]
        own = places[self.pe]
        launch.launch["seed"] = order_of(own)
        if number <= HELD_UP:
            time.sleep(BETWEEN * sum(place < own for place in places))

    def returned(self, number: int) -> None:
        """The host has waited for one launch."""
        self._log.append(SYNC, 0, self._site(), (0, number))

    def waited_for(self, stream: int) -> None:
        """The host has waited for a stream."""
        self._log.append(SYNC, 0, self._site(), (0, 0, stream))

    def synchronized(self) -> None:
        """The host has waited for all it has submitted."""
        self._log.append(SYNC, 0, self._site(), (self._log.launches + 1,))

    # --- what else is queued

    def queues(self, work: Work, stream: int) -> tuple[int, Callable[[], None]]:
        """The host queues a copy, or a mark in a stream; recorded as a launch of one thread."""
        site = self._site()
        number = self._submit(work.name, 1, stream, site, work=True)

        def reached() -> None:
            self._log.append(BEGIN, number)
            if work.after:
                self._log.append(SYNC, number, site, (0, work.after), clock=1)
            for start, how in ((work.reads, LOAD), (work.writes, STORE)):
                if start and work.nbytes:
                    words = start, work.nbytes, how, 0, 1
                    self._log.append(HOST, number, site, words, clock=1)
            if 0 < work.nbytes <= SMALL and work.writes and not any(work.contents()):
                self._log.append(VALUE, number, site, (work.writes, work.nbytes, 0), clock=1)
            self._log.append(END, number)
            if work.tells_host:
                self._log.append(SYNC, 0, site, (0, number))

        return number, reached

    def got_memory(self, address: int, nbytes: int, guard: int) -> None:
        """The host has allocated memory of the device, or pinned memory."""
        where = line_of(user_frame(sys._getframe(1)))
        self._log.describe(
            memory=address, bytes=nbytes, guard=guard, name=assigned_name(where), where=str(where)
        )

    def end(self) -> None:
        """What has been recorded is complete; more may follow."""
        self._log.end()
