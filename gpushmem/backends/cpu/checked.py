"""What the host of a PE that is checked records: its operations, launches and waits for them."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from gpushmem import settings
from gpushmem.artifacts.arguments import address_of
from gpushmem.backends.cpu import hook
from gpushmem.backends.cpu.inline import nbytes_of
from gpushmem.backends.cpu.seeds import number_of, order_of
from gpushmem.backends.cpu.world import World
from gpushmem.check.log import (
    BEGIN,
    CALL,
    DONE,
    EFFECT,
    END,
    EXPOSED,
    HOST,
    OP,
    REFUSED,
    SUBMIT,
    SYNC,
    TEAM,
    VALUE,
    Log,
)
from gpushmem.check.recording import COMPARED, KIND_OF, PLACE
from gpushmem.lines import assigned_name, line_of, user_frame
from gpushmem.ops import Op
from gpushmem.ops.team import Team
from gpushmem.simt.compiler.observer import LOAD, STORE
from gpushmem.simt.run.kernel import Running
from gpushmem.size import span

FEW, MOST_PIECES = 64, 4096  # numbers of which each is recorded; parts of a strided array
HELD_UP, APART = 100, 0.002  # launches; seconds from the first PE to the second
__all__ = ["Recorder", "check_kernels", "recorder"]


def recorder(world: World) -> Recorder | None:
    """The recorder of this PE, if the job is checked."""
    folder = settings.get("GPUSHMEM_CHECK")
    return Recorder(Path(folder), world) if folder else None


@cache
def _log(folder: Path, pe: int, stamp: int) -> Log:
    """The PE's log: one, however often it calls `init`."""
    return Log(folder, pe, stamp)


class Recorder:
    """Appends to the PE's log what its host does."""

    def __init__(self, folder: Path, world: World) -> None:
        self._world = world
        self._log = _log(folder, world.job.my_pe, world.board.address("stamp"))
        self._seed = settings.get("GPUSHMEM_SEED") if settings.is_set("GPUSHMEM_SEED") else None
        self._teams = 0
        self._known: dict[int, Any] = {}
        self._live: list[tuple[int, int]] = []
        self._lists = 0  # of arrays, in the log
        self._met = 0  # stamp of the last meeting
        self.allocated: Callable[[], Sequence[Any]] = list

    def mapped(self) -> None:
        """The heap has been mapped."""
        world = self._world
        self._log.describe(heap=world.heap, stride=world.stride, n_pes=world.job.n_pes)

    def _site(self) -> int:
        line = line_of(user_frame(sys._getframe(2)))
        return self._log.line(str(line), line.file)

    # --- launches

    def submitted(self, launch: Running, stream: int) -> int:
        """The host has queued a launch; returns a number for it."""
        number = self._log.launch_number()
        self._log.describe(launch=number, kernel=launch.name)
        words = number, launch.shape.threads, stream, self._live_now(), int(launch.meets)
        self._log.append(SUBMIT, 0, self._site(), words)
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
            self._log.flush(number, launch.places, PLACE)
            self._log.append(END, number)

    def _hold_up(self, launch: Running, seed: int, number: int) -> None:
        """Let PEs, blocks and threads begin in an order that the seed chooses."""
        job = self._world.job
        places = [number_of(seed, number, pe) for pe in range(job.n_pes)]
        own = places[job.my_pe]
        launch.launch["seed"] = order_of(own)
        if number <= HELD_UP:
            time.sleep(APART * sum(place < own for place in places))

    def returned(self, number: int) -> None:
        """The host has waited for one launch."""
        self._log.append(SYNC, 0, self._site(), (0, number))

    def waited_for(self, stream: int) -> None:
        """The host has waited for a stream."""
        self._log.append(SYNC, 0, self._site(), (0, 0, stream))

    def synchronized(self) -> None:
        """The host has waited for all it has submitted."""
        self._log.append(SYNC, 0, self._site(), (self._log.launches + 1,))

    # --- operations of the host

    @contextmanager
    def meeting(self) -> Iterator[None]:
        """All PEs make this call, and wait for each other in it."""
        site = self._site()
        self._met = self._log.append(CALL, 0, site, (0,))
        yield
        self._log.append(CALL, 0, site, (1,))

    def queued(
        self, op: Op, arguments: dict[str, Any], run: Callable[[], Any], stream: int
    ) -> Callable[[], Any]:
        """An operation that the host queues on a stream; as a launch of one thread."""
        site, number = self._site(), self._log.launch_number()
        self._log.describe(launch=number, kernel=op.name)
        self._log.append(SUBMIT, 0, site, (number, 1, stream, self._live_now()))

        def queued() -> Any:
            self._log.append(BEGIN, number)
            try:
                return self._call(op, arguments, run, site, number)
            finally:
                self._log.append(END, number)

        return queued

    def call(self, op: Op, arguments: dict[str, Any], run: Callable[[], Any]) -> Any:
        """An operation that the host performs itself."""
        return self._call(op, arguments, run, self._site())

    def _call(
        self, op: Op, arguments: dict[str, Any], run: Callable[[], Any], site: int, launch: int = 0
    ) -> Any:
        number = KIND_OF[op.name]
        given = next((arguments[name] for name in COMPARED if name in arguments), 0)
        compare, value = (
            int(number) if isinstance(number, int | np.integer) else 0
            for number in (given, arguments.get("value", 0))
        )
        team = int(arguments.get("team", -1))
        arrays = [isinstance(arguments[effect.array], np.ndarray) for effect in op.facts.effects]
        pe = int(arguments.get("pe", -1))
        called = number, sum(arrays) << 8, pe, team, compare, value
        self._log.append(OP, launch, site, called, clock=1)
        for k, effect in enumerate(op.facts.effects):
            array = arguments[effect.array]
            if isinstance(array, np.ndarray):
                strided = effect.extent in ("stride", "parts")
                stride = arguments.get(f"{effect.array}_stride", 1) if strided else 1
                words = (
                    k, address_of(array), nbytes_of(effect, arguments),
                    stride * array.itemsize, array.itemsize,
                )  # fmt: skip
                self._log.append(EFFECT, launch, site, words, clock=1)
        try:
            result = run()
        except BaseException:
            self._log.append(DONE, launch, site, (number, 0, REFUSED), clock=2)
            raise
        kind = 2
        if isinstance(result, int | np.integer | np.bool_):
            kind = int(op.result() == "bool")
        self._new_teams(result)
        returned = number, int(result) if kind < 2 else 0, kind
        self._log.append(DONE, launch, site, returned, clock=2)
        return result

    def read(self, array: np.ndarray[Any, Any]) -> None:
        """The host reads an array of its PE."""
        self._accessed(array, LOAD, self._site())

    def written(self, array: np.ndarray[Any, Any], values: np.ndarray[Any, Any]) -> None:
        """The host writes an array of its PE.

        PEs may wait for it: of integers the values are recorded, if all are equal or they are few.
        """
        site = self._site()
        pieces = self._accessed(array, STORE, site)
        if array.dtype.kind not in "iu" or not values.size:
            return
        values = np.asarray(values).astype(array.dtype)
        if (values == values.flat[0]).all():
            for address, nbytes, stride, times in pieces:
                for k in range(min(times, MOST_PIECES)):
                    written = address + k * stride, nbytes, int(values.flat[0])
                    self._log.append(VALUE, 0, site, written)
        elif values.size == array.size <= FEW and array.flags.c_contiguous:
            for k, number in enumerate(values.ravel().tolist()):
                written = address_of(array) + k * array.itemsize, array.itemsize, number
                self._log.append(VALUE, 0, site, written)

    def exposed(self, array: np.ndarray[Any, Any]) -> None:
        """The host has an array, which it may write to unseen."""
        start, end = span(array)
        self._log.append(EXPOSED, 0, self._site(), (start, end - start, STORE, 0, 1))

    def _accessed(
        self, array: np.ndarray[Any, Any], how: int, site: int
    ) -> list[tuple[int, int, int, int]]:
        """The host accesses an array; returns its pieces."""
        pieces = [*_pieces(array)]
        for address, nbytes, stride, times in pieces:
            self._log.append(HOST, 0, site, (address, nbytes, how, stride, times))
        return pieces

    def _new_teams(self, result: Any) -> None:
        """Record the teams that an operation has made."""
        for team in result if isinstance(result, tuple) else (result,):
            if isinstance(team, Team) and team >= 0:
                n = int(self._world.teams["n_pes"][team])
                self._teams += 1
                self._log.describe(
                    members=self._teams, pes=self._world.members[int(team)][:n].tolist()
                )
                self._log.append(TEAM, 0, self._site(), (int(team), self._teams))

    def _live_now(self) -> int:
        """The number of the list of the arrays that there are."""
        live = [(a.offset, a.nbytes) for a in self.allocated()]
        if live != self._live or not self._lists:
            self._live = live
            self._lists += 1
            self._log.describe(live=live)
        return self._lists - 1

    def name_arrays(self) -> None:
        """Write down which arrays are new: allocated since the last meeting."""
        for a in self.allocated():
            if self._known.get(a.offset) is not a:
                self._known[a.offset] = a
                self._log.describe(
                    array=a.offset, bytes=a.nbytes, dtype=str(a.dtype), shape=a.shape,
                    item=a.dtype.itemsize, name=assigned_name(a.where), where=str(a.where),
                    since=self._met,
                )  # fmt: skip

    def close(self) -> None:
        """The PE's part of the job is over."""
        self._log.end()


def _pieces(array: np.ndarray[Any, Any]) -> Iterator[tuple[int, int, int, int]]:
    """The memory of an array: address and bytes of pieces, bytes to the next one, how many."""
    axes = [(abs(step), n) for n, step in zip(array.shape, array.strides, strict=True) if n > 1]
    axes.sort()
    nbytes = array.itemsize * (array.size > 0)
    while axes and axes[0][0] == nbytes:
        nbytes *= axes.pop(0)[1]
    stride, times = axes.pop(0) if axes else (0, 1)
    start = span(array)[0]
    for index in np.ndindex(*(n for _, n in axes)):
        offset = sum(k * step for k, (step, _) in zip(index, axes, strict=True))
        yield start + offset, nbytes, stride, times


def check_kernels() -> None:
    """Let kernels be checked, if the job is; raises `ShmemError` if it is too late for that."""
    hook.check(settings.is_set("GPUSHMEM_CHECK"))
