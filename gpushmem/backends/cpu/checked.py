"""What the host of a PE that is checked records: its operations, launches and waits for them."""

from __future__ import annotations

import sys
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
from gpushmem.backends.cpu.world import World
from gpushmem.check.log import (
    BEGIN,
    CALL,
    DONE,
    EFFECT,
    END,
    HOST,
    OP,
    REFUSED,
    SUBMIT,
    SYNC,
    TEAM,
    Log,
)
from gpushmem.check.recording import COMPARED, KIND_OF, PLACE
from gpushmem.lines import assigned_name, line_of, user_frame
from gpushmem.ops import Op
from gpushmem.ops.team import Team
from gpushmem.simt.run.kernel import Running

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
        self._teams = 0
        self._known: dict[int, Any] = {}
        self._live: list[tuple[int, int]] = []
        self._lists = 0  # of arrays, in the log
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
        words = number, launch.shape.threads, stream, self._live_now()
        self._log.append(SUBMIT, 0, self._site(), words)
        return number

    @contextmanager
    def running(self, launch: Running, number: int) -> Iterator[None]:
        """A launch runs."""
        launch.observed = number, self._log.address
        self._log.append(BEGIN, number)
        try:
            yield
        finally:
            self._log.flush(number, launch.places, PLACE)
            self._log.append(END, number)

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
        self._log.append(CALL, 0, site, (0,))
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

    def accessed(self, array: np.ndarray[Any, Any], how: int, values: Any = None) -> None:
        """The host reads or writes an array of its PE: `how` as `simt.compiler.observer` says."""
        number = _only_number(array.dtype, np.asarray(values))
        filled = () if number is None else (array.itemsize, number)
        words = address_of(array), array.nbytes, how, *filled
        self._log.append(HOST, 0, self._site(), words)

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
        """Write down which arrays there are."""
        for a in self.allocated():
            if self._known.get(a.offset) is not a:
                self._known[a.offset] = a
                self._log.describe(
                    array=a.offset, bytes=a.nbytes, dtype=str(a.dtype), shape=a.shape,
                    item=a.dtype.itemsize, name=assigned_name(a.where), where=str(a.where),
                )  # fmt: skip

    def close(self) -> None:
        """The PE's part of the job is over."""
        self.name_arrays()
        self._log.end()


def _only_number(dtype: np.dtype[Any], values: np.ndarray[Any, Any]) -> int | None:
    """The whole number that all elements are which are set to these values, if it is one."""
    if dtype.kind not in "iu" or values.dtype.kind not in "biu" or not values.size:
        return None
    return int(values.flat[0].astype(dtype)) if (values == values.flat[0]).all() else None


def check_kernels() -> None:
    """Let kernels be checked, if the job is; raises `ShmemError` if it is too late for that."""
    hook.check(settings.is_set("GPUSHMEM_CHECK"))
