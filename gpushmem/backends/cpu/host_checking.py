"""What the host of a PE that is checked records: besides launches, its operations and arrays."""

from __future__ import annotations

import math
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from gpushmem import settings
from gpushmem.artifacts.argument_packing import address_of
from gpushmem.artifacts.guarded_memory import GUARD, guarded, spend
from gpushmem.backends.base import Shape
from gpushmem.backends.cpu.checked_process import ProcessRecorder, of_pe
from gpushmem.backends.cpu.sync.world import World
from gpushmem.backends.host.event_readers import Reader
from gpushmem.backends.host.host_kernels import nbytes_of
from gpushmem.check.instrumentation import COMPARED, KIND_OF
from gpushmem.check.log import (
    BEGIN,
    CALL,
    DONE,
    EFFECT,
    END,
    EXPOSED,
    HOST,
    MESSAGE,
    NO_INTEGER,
    OP,
    REFUSED,
    TEAM,
    VALUE,
)
from gpushmem.check.turns import changes_nothing, named, takes_turns
from gpushmem.ops import OPS, Op
from gpushmem.ops.roles import Value
from gpushmem.simt.observe import LOAD, STORE
from gpushmem.size import span
from gpushmem.source_lines import assigned_name

FEW, MOST_PIECES = 64, 4096  # numbers of which each is recorded; parts of a strided array
__all__ = ["Recorder", "recorder"]


def recorder(world: World) -> Recorder | None:
    """The recorder of this PE, if the job is checked."""
    folder = settings.get("GPUSHMEM_CHECK")
    return Recorder(Path(folder), world) if folder else None


class _Memory:
    """Guarded memory, as NumPy takes it; its addresses are not used again."""

    def __init__(self, nbytes: int) -> None:
        memory, self.address = guarded(nbytes)
        self.__array_interface__ = {
            "shape": (nbytes,), "typestr": "|u1", "data": (self.address, False), "version": 3,
        }  # fmt: skip
        weakref.finalize(self, spend, memory).atexit = False


class Recorder(ProcessRecorder, Reader):
    """Appends to the PE's log what its host does."""

    def __init__(self, folder: Path, world: World) -> None:
        super().__init__(folder)
        self._world = world
        self._teams = 0
        self._known: dict[int, Any] = {}
        self._live: list[tuple[int, int]] = []
        self._lists = 0  # of arrays, in the log
        self._met = 0  # stamp of the last meeting
        self._messages: dict[Any, int] = defaultdict(int)
        of_pe[:] = [self]

    def mapped(self) -> None:
        world = self._world
        self._log.describe(heap=world.heap, stride=world.stride, n_pes=world.job.n_pes)

    def device_array(self, shape: Shape, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        """An array with gaps around it, in which the checker sees accesses."""
        nbytes = math.prod(shape) * dtype.itemsize
        if not nbytes:
            return np.empty(shape, dtype)
        memory = _Memory(nbytes)
        self.got_memory(memory.address, nbytes, GUARD)
        return np.asarray(memory).view(dtype).reshape(shape)

    # --- operations of the host

    @contextmanager
    def meeting(self, what: str) -> Iterator[None]:
        site = self._site()
        self.arrays()  # a part of the log may end here, see `check.parts`
        self._met = self._log.append(CALL, 0, site, (0,))
        yield
        self._log.append(CALL, 0, site, (1,))

    def queued(
        self, op: Op, arguments: dict[str, Any], run: Callable[[], Any], stream: int
    ) -> Callable[[], Any]:
        """As a launch of one thread."""
        site = self._site()
        number = self._submit(op.name, 1, stream, site)

        def queued() -> Any:
            self._log.append(BEGIN, number)
            try:
                return self._call(op, arguments, run, site, number)
            finally:
                self._log.append(END, number)

        return queued

    def call(self, op: Op, arguments: dict[str, Any], run: Callable[[], Any]) -> Any:
        return self._call(op, arguments, run, self._site())

    def collective(self, what: str, team: int, run: Callable[[], None]) -> None:
        self._call(OPS["sync"], {"team": team}, run, self._site())

    def _call(
        self, op: Op, arguments: dict[str, Any], run: Callable[[], Any], site: int, launch: int = 0
    ) -> Any:
        with self._turn(op, launch, site) as count:
            return self._called(op, arguments, run, site, launch, count)

    def _called(
        self, op: Op, arguments: dict[str, Any], run: Callable[[], Any], site: int, launch: int,
        count: Callable[[bool, Any], int],
    ) -> Any:  # fmt: skip
        number = KIND_OF[op.name]
        given = next((arguments[name] for name in COMPARED if name in arguments), 0)
        compare, value = (
            int(number) if isinstance(number, int | np.integer) else 0
            for number in (given, arguments.get("value", 0))
        )
        team = int(arguments.get("team", -1))
        arrays = [isinstance(arguments[effect.array], np.ndarray) for effect in op.facts.effects]
        pe = int(arguments.get("pe", -1))
        floats = bool(op.named(Value)) and arguments["dst"].dtype.kind not in "iu"
        called = number, sum(arrays) << 8 | NO_INTEGER * floats, pe, team, compare, value
        self._log.append(OP, launch, site, called, clock=1)
        for k, effect in enumerate(op.facts.effects):
            array = arguments[effect.array]
            if isinstance(array, np.ndarray):
                if op.arrays[effect.array].ndim == 2:
                    self._log.append(EFFECT, launch, site, _of_matrix(k, array), clock=1)
                    continue
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
        seen = int(result) if kind < 2 else 0
        turn = count(changes_nothing(op, seen, compare, value), seen)
        returned = number, seen, kind, turn
        self._log.append(DONE, launch, site, returned, clock=2)
        return result

    def _turn(
        self, op: Op, launch: int, site: int
    ) -> AbstractContextManager[Callable[[bool, Any], int]]:
        """The turn of a call: what gives its number, 0 if it takes none."""
        if self._schedule is None or op.waits or not takes_turns(op):
            return nullcontext(lambda nothing, seen: 0)
        thread = 0 if launch else self._log.thread()
        return self._schedule.turn(named(self.pe, launch, thread), (op.name, site))

    def read(self, array: np.ndarray[Any, Any]) -> None:
        self._accessed(array, LOAD, self._site())

    def written(self, array: np.ndarray[Any, Any], values: np.ndarray[Any, Any]) -> None:
        """Of integers, for which PEs may wait, the values, if all are equal or they are few."""
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
        start, end = span(array)
        self._log.append(EXPOSED, 0, self._site(), (start, end - start, STORE, 0, 1))

    # --- calls of torch.distributed: as launches of one thread

    def begins(self, what: str, arrays: list[np.ndarray[Any, Any]], stream: int) -> tuple[int, int]:
        """The host makes a call that goes on, and uses arrays: its number, and that of its line.

        The calls of one stream come one after the other; -1: in no order.
        """
        site = self._site()
        tensors = [(address_of(a), a.nbytes, a.itemsize, a.shape) for a in arrays]
        return self._submit(what, 1, stream, site, work=True, tensors=tensors), site

    def ends(
        self, number: int, site: int, arrays: list[tuple[np.ndarray[Any, Any], int]],
        received: tuple[int, ...] | None,
    ) -> None:  # fmt: skip
        """Such a call has used them; and received a message, of one PE, to one, team and tag."""
        self._log.append(BEGIN, number)
        if received is not None:
            self._passed(1, received, site, number)
        for array, how in arrays:
            self._accessed(array, how, site, number)
        self._log.append(END, number)

    def sends(self, *message: int) -> None:
        """The host sends a message: of one PE, to one, team and tag."""
        self._passed(0, message, self._site())

    def _passed(self, what: int, message: tuple[int, ...], site: int, launch: int = 0) -> None:
        count = self._messages[what, message] = self._messages[what, message] + 1
        self._log.append(MESSAGE, launch, site, (what, *message, count), clock=1)

    def uses(self, array: np.ndarray[Any, Any], how: int) -> None:
        """The host reads or writes what such a call uses."""
        self._accessed(array, how, self._site())

    def _accessed(
        self, array: np.ndarray[Any, Any], how: int, site: int, launch: int = 0
    ) -> list[tuple[int, int, int, int]]:
        """The host accesses an array; returns its pieces."""
        pieces = [*_pieces(array)]
        for address, nbytes, stride, times in pieces:
            words = address, nbytes, how, stride, times
            self._log.append(HOST, launch, site, words, clock=int(launch > 0))
        return pieces

    def _new_teams(self, result: Any) -> None:
        """Record the teams that an operation has made."""
        for team, pes in self._world.teams_in(result):
            self._teams += 1
            self._log.describe(members=self._teams, pes=pes)
            self._log.append(TEAM, 0, self._site(), (team, self._teams))

    def _live_now(self) -> int:
        """The number of the list of the arrays that there are."""
        live = [(a.offset, a.nbytes) for a in self.allocated()]
        if live != self._live or not self._lists:
            self._live = live
            self._lists += 1
            self._log.describe(live=live)
        return self._lists - 1

    def arrays(self) -> None:
        """Of those allocated since the last meeting."""
        for a in self.allocated():
            if self._known.get(a.offset) is not a:
                self._known[a.offset] = a
                self._log.describe(
                    array=a.offset, bytes=a.nbytes, dtype=str(a.dtype), shape=a.shape,
                    item=a.dtype.itemsize, name=assigned_name(a.where), where=str(a.where),
                    since=self._met,
                )  # fmt: skip

    def close(self) -> None:
        self.end()
        of_pe.clear()


def _of_matrix(k: int, array: np.ndarray[Any, Any]) -> tuple[int, ...]:
    """The words of an effect on a matrix, as of a kernel's."""
    (rows, columns), (pitch, stride), item = array.shape, array.strides, array.itemsize
    nbytes = columns * item if rows else 0
    return k + (rows << 8), address_of(array), nbytes, stride, item, pitch


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
