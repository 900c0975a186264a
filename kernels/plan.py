"""What the kernels of this package have in common: plans, and calls without a barrier between.

A *plan* owns what a kernel needs on the symmetric heap, made once for a size, a dtype and a team.
Calling it launches the kernel; calls follow each other without any barrier. What makes that sound:

**Two slots and an epoch.** Each call has a number, its *epoch*: 1, 2, 3, ... on every PE. There are
two copies of each *box* (memory that other PEs write to) and of each *signal*: epoch e uses slot
e % 2; a signal is set to e, and waited for until it equals e. Kernels count the epochs
themselves, each block for itself (`parts.begin`, `parts.end`), so a launch is the same every time,
and can be captured in a CUDA graph. The one rule that a kernel must keep:

    in every call, each PE must receive something from every PE it writes to, directly or through
    others.

Then PE p may write to slot e % 2 of PE q in epoch e without asking. Before it began epoch e, p
finished epoch e - 1, in which it heard of something that q did in epoch e - 1. That q did after it
had finished epoch e - 2, since one call is launched behind the other on a stream: so q had done all
its reads of what was in this slot before. Nor can a signal of epoch e be taken for one of e - 2, or
come before it: that one had been seen, since q had finished. So nothing is asked of the order in
which things of different epochs arrive, and within an epoch only what `put_signal` promises of its
own data. A PE that has nothing to say signals all the same.

Signals are compared with `CMP_EQ`: a larger one cannot be there. If it were, it would be better to
wait for ever, which is reported, than to go on with boxes that were overwritten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from math import prod
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

import numpy as np
from gpushmem.kernels.arena import USED

import gpushmem as shmem
from gpushmem.checks import check_methods, checked, dtype_name, dtype_of, nbytes_of

__all__ = ["SLOTS", "Plan"]

Self = TypeVar("Self", bound="Plan")

SLOTS = 2
MOST_THREADS, MOST_BLOCKS = 1024, 65535
KEPT = 32  # registered arrays that a plan remembers
BOUND = 64  # launches that a plan remembers, as a rule
GRAPHS, REPEATED = 16, 3  # calls that a plan remembers; the one from which on a call is a graph
TOLD = (
    "algorithm",
    "method",
    "form",
    "piece",
    "pieces",
    "tile",
    "tiles",
    "group",
    "rows_together",
)  # of plans that have it


class Repeat:
    """A call that queues much, made again and again with the same arguments."""

    def __init__(self, args: tuple[Any, ...]) -> None:
        self.args, self.calls = args, 0
        self.graph: Any = None


class Bound(NamedTuple):
    """A launch that can be repeated with the same arguments."""

    args: tuple[Any, ...]
    arrays: list[Any]  # the device arrays in them
    launch: Callable[[], None]


def any_released(arrays: Iterable[Any]) -> bool:
    """Whether one of the arrays is a device array of memory that has been released."""
    try:
        for array in arrays:
            if isinstance(array, shmem.DeviceArray):
                array.native()
    except shmem.ShmemError:
        return True
    return False


class Plan:
    """What a kernel needs between calls: a team, memory on the symmetric heap, the epochs.

    Making one and `free` are collective over the world; where several teams are in use, each PE
    gives its own, and PEs that are in none give TEAM_INVALID. With an `Arena` both are collective
    over the team alone. Sizes must be the same on all PEs of
    a team. All members make the same calls in the same order. A call that is on another stream than
    the one before waits for that one. As a context manager a plan is freed at the end of the block.
    `threads` and `blocks` say how a kernel is launched; by default what suits the backend
    (`tuning`), and what the kernel does (`moves`, `fills`, `one_thread`), in blocks that have
    something to do: at most `parts`. docs/plans.md tells how to write one.
    """

    moves = False  # whether its kernels copy and add up, and multiply no matrices
    fills = False  # whether they keep a whole GPU busy: multiply, or load more than they send
    one_thread = False  # whether a block has one on CPUs: warps or rows have work of their own
    bound = BOUND  # how many launches a plan remembers
    graphs = GRAPHS  # how many calls of several launches are graphs, where they repeat

    def __init_subclass__(cls) -> None:
        check_methods(cls)

    @checked
    def __init__(
        self, team: Any = shmem.TEAM_WORLD, *, blocks: int | None = None,
        threads: int | None = None, parts: int | None = None,
    ) -> None:  # fmt: skip
        self.team, self.tuning = team, shmem.tuning()
        self.my_pe, self.n_pes = max(team.my_pe, 0), max(team.n_pes, 1)
        suggested = self.tuning.moving_threads if self.moves else self.tuning.threads
        if self.one_thread and self.reachable and not self.tuning.multiprocessors:
            suggested = 1  # what threads do alike is done for each, and loops over rows are theirs
        self.threads = suggested if threads is None else threads
        most, self._why = self._most_blocks()
        if blocks is not None:
            most, self._why = blocks, "as asked for"
        elif parts is not None and parts < most:
            most, self._why = max(1, parts), "more would be of no use"
        self.blocks = most
        if not (1 <= self.threads <= MOST_THREADS and 1 <= self.blocks <= MOST_BLOCKS):
            raise shmem.ArgumentError(
                f"{type(self).__name__}: {self.blocks} blocks of {self.threads} threads cannot be: "
                f"at most {MOST_BLOCKS} of {MOST_THREADS}"
            )
        self._epochs = self.epochs()
        self.inboxes: list[Any] = []  # all that `boxes` made
        self._memory: list[Any] = []
        self._plans: list[Any] = []  # that it is made of
        self._arena = USED.get()
        self._registered: list[Any] = []
        self._stream: Any = None
        self._flat: dict[Any, tuple[Any, Any]] = {}  # by id and part: arrays, with one axis
        self._shared: dict[int, tuple[Any, Any]] = {}  # by id: registered memory, for kernels
        self._bound: dict[Any, Bound] = {}  # by kernel and arguments
        self._repeats: dict[Any, Repeat] = {}  # by arguments
        self._captured: Any = None  # a stream

    def epochs(self) -> Any:
        """The number of the last call, for each block."""
        return shmem.to_device(np.zeros(self.blocks, "int64"))

    def _most_blocks(self) -> tuple[int, str]:
        """How many blocks there are if all have something to do, and why."""
        if not self.tuning.multiprocessors:
            return self.tuning.blocks, "without a GPU few are best"
        on = f"of {self.tuning.multiprocessors} multiprocessors"
        if self.fills:
            return self.tuning.all_blocks(self.threads), f"all {on}, with what runs on them at once"
        if self.moves:
            return self.tuning.moving_blocks, f"enough {on} for the links"
        return self.tuning.blocks, f"some {on}"

    def describe(self) -> str:
        """Say what the plan does: launch, pieces, memory, what a PE sends in a call.

        Not collective. For people to read: lines may change.
        """
        told = {"grid": f"{self.blocks}, blocks of {self.threads} threads: {self._why}"}
        told |= {name: str(getattr(self, name)) for name in TOLD if hasattr(self, name)}
        told["memory"] = f"{self._nbytes()} bytes on the heap"
        if hasattr(self, "sends"):
            told["sends"] = "{} bytes in {} messages".format(*self.sends())
        lines = (f"\n  {what.replace('_', ' '):11}{said}" for what, said in told.items())
        return f"{type(self).__name__}, team of {self.n_pes}{''.join(lines)}"

    def _nbytes(self) -> int:
        own = sum(array.nbytes for array in self._memory)
        return own + sum(plan._nbytes() for plan in self._plans)

    def boxes(self, *shape: int, dtype: Any) -> Any:
        """Memory for others to write to: an array (SLOTS, *shape)."""
        self.inboxes.append(self.memory(SLOTS, *shape, dtype=dtype))
        return self.inboxes[-1]

    def signals(self, *shape: int) -> Any:
        """Signals for others to set: an array (SLOTS, *shape) of zeros."""
        return self.memory(SLOTS, *shape, dtype="uint64")

    def memory(self, *shape: int, dtype: Any) -> Any:
        """Symmetric memory that lives as long as the plan, zeroed: an array of this shape."""
        what = type(self).__name__
        dtype = dtype_of(what, dtype)
        count = prod(shape)
        words = -(-nbytes_of(what, shape, dtype) // 8)
        try:
            made = self._words(words)
        except shmem.HeapExhausted:  # on all PEs: what there is of the plan is of no use
            self.free()
            raise
        self._memory.append(made)
        return made.view(dtype)[:count].reshape(shape)

    def _words(self, words: int) -> Any:
        if self._arena is None:
            return shmem.zeros(self._largest(words), "uint64")
        return self._arena.allocate(self.team, 8 * words)

    @cached_property
    def reachable(self) -> bool:
        """Whether the memory of all members can be loaded and stored."""
        n, to = max(self.team.n_pes, 0), shmem.TEAM_SHARED
        return all(self.team.translate_pe(pe, to) >= 0 for pe in range(n))

    @property
    def by_team(self) -> bool:
        """Whether making the plan is collective over its team alone, which may be all PEs."""
        return self._arena is not None or self.team == shmem.TEAM_WORLD

    def sendable(self, array: Any) -> Any:
        """A device array of the plan's own, as memory that kernels can send from to any member.

        If the team spans machines, the plan registers it until `free`. Arrays that users pass in
        they must register themselves.
        """
        if self.reachable:
            return array
        self._registered.append(shmem.register(array))
        return self._registered[-1]

    def _largest(self, number: int) -> int:
        """The largest of the PEs' numbers: teams may differ in size, allocations must not."""
        if self.team == shmem.TEAM_WORLD:
            return number
        mine, largest = shmem.full(1, number, "int64"), shmem.empty(1, "int64")
        shmem.reduce(shmem.TEAM_WORLD, largest, mine, "max")
        found = int(largest.numpy()[0])
        shmem.free(mine)
        shmem.free(largest)
        return found

    def launch(self, kernel: Any, stream: Any, *args: Any, shared: int = 0) -> None:
        """Launch a kernel for the next call; its last two arguments are the team and the epochs.

        A block has `shared` bytes of dynamic shared memory.
        """
        self.on(stream)
        self.launch_as((self.blocks, self.threads, stream, shared), self._epochs, kernel, *args)

    def on(self, stream: Any) -> None:
        """Let what this call launches on `stream` follow the call before, whichever its stream."""
        if not self.team:
            raise shmem.TeamError(f"{type(self).__name__}: this PE is not in the plan's team")
        if stream is not self._stream:
            before, self._stream = self._stream, stream
            if before is None or self._follow(stream, before):
                self._bound.clear()

    def _follow(self, stream: Any, before: Any) -> bool:
        """Order a stream after another; whether they are two."""
        if shmem.is_capturing(before) and not shmem.is_capturing(stream):
            return True  # what is captured runs when its graph does
        return shmem.wait_stream(stream, before)

    def repeat(self, queue: Callable[..., None], stream: Any, *args: Any) -> None:
        """Call `queue(*args, stream)`, which queues several launches; or launch a graph of it.

        A graph it is from the third call on with the same arguments, as far as `graphs` are kept,
        unless the caller captures `stream`. What is queued must not depend on anything else.
        `queue` gets arrays as kernels take them (`on_device`).
        """
        args = self._as_kernels_take(args)
        if not self.graphs or shmem.is_capturing(stream):
            queue(*args, stream)
            return
        key = tuple(map(id, args))  # of objects that are alive, since they are kept
        known = self._repeats.get(key)
        if known is None or any_released(known.args):
            if len(self._repeats) >= self.graphs:
                del self._repeats[next(iter(self._repeats))]
            known = self._repeats[key] = Repeat(args)
        known.calls += 1
        if known.calls < REPEATED:
            queue(*args, stream)
            return
        self.on(stream)
        if known.graph is None:
            known.graph = self._graph_of(queue, args)
        known.graph.launch(stream)

    def _graph_of(self, queue: Callable[..., None], args: tuple[Any, ...]) -> Any:
        """Capture a call, on a stream of the plan's."""
        if self._captured is None:
            self._captured = shmem.stream(nonblocking=True)
        before = self._stream
        try:
            with shmem.capture(self._captured) as graph:
                queue(*args, self._captured)
        finally:
            self._bound.clear()  # launches on that stream
            self._stream = before
        return graph

    def launch_as(self, shape: tuple[Any, ...], epochs: Any, kernel: Any, *args: Any) -> None:
        """As `launch`, with blocks, threads, stream, shared memory, and other epochs of each block.

        A kernel has one shape, and one stream, between two calls of `on` with different streams.
        """
        key = (kernel, *map(id, args))  # of objects that are alive, since it is bound to them
        known = self._bound.get(key)
        if known is None or any_released(known.arrays):
            if len(self._bound) >= self.bound:
                del self._bound[next(iter(self._bound))]
            known = self._bound[key] = self._bind(kernel[shape], epochs, args)
        known.launch()

    def _bind(self, launch: Any, epochs: Any, args: tuple[Any, ...]) -> Bound:
        given = self._as_kernels_take(args)
        arrays = [x for x in given if isinstance(x, shmem.DeviceArray)]
        return Bound(args, arrays, launch.bind(*given, self.team, epochs))

    def flat(self, x: Any, first: int = 0, last: int | None = None) -> Any:
        """Return an array, or elements `first` to `last`, with one axis.

        It is the same object for the same array.
        """
        x = self.on_device("x", x)
        key = id(x), first, last
        known = self._flat.get(key)
        if known is None or known[0] is not x:
            if len(self._flat) >= BOUND:
                del self._flat[next(iter(self._flat))]
            self._flat[key] = known = x, x.reshape(-1)[first:last]
        return known[1]

    def expect(self, what: str, array: Any, shape: tuple[int, ...], dtype: Any) -> None:
        """Raise `ArgumentError` if an array has not the shape and dtype that the plan is for.

        Memory of the host's must be registered (`register`).
        """
        self.fits(what, self.on_device(what, array), shape, dtype)

    def fits(self, what: str, array: Any, shape: tuple[int, ...], dtype: Any) -> None:
        """As `expect`, wherever the array's memory is."""
        if isinstance(dtype, np.dtype) and array.dtype == dtype and array.shape == shape:
            return
        wanted = dtype_of(f"{type(self).__name__}: dtype", dtype)
        if tuple(array.shape) != shape or dtype_name(array.dtype) != wanted.name:
            raise shmem.ArgumentError(
                f"{type(self).__name__}: {what} has shape {tuple(array.shape)} and dtype "
                f"{dtype_name(array.dtype)}, the plan is for {shape} of {wanted}"
            )

    def on_device(self, what: str, array: Any) -> Any:
        """What kernels get for an array; the same object for the same array.

        Raises `ArgumentError` for what is neither a device array nor registered, naming `what`.
        """
        if isinstance(array, shmem.DeviceArray):
            return array
        known = self._shared.get(id(array))
        if known is None or known[0] is not array or any_released(known[1:]):
            shared = shmem.on_device(array, type(self).__name__, what)
            if len(self._shared) >= KEPT:
                self._shared.clear()
            self._shared[id(array)] = known = array, shared
        return known[1]

    def _as_kernels_take(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(self.on_device("x", x) if hasattr(x, "__dlpack__") else x for x in args)

    def free(self) -> None:
        """Give the memory back; collective over the world, or with an `Arena` over the team."""
        self._repeats.clear()
        self._bound.clear()
        self._flat.clear()
        self._shared.clear()
        while self._registered:
            shmem.unregister(self._registered.pop())
        while self._plans:
            self._plans.pop().free()
        while self._memory:
            if self._arena is None:
                shmem.free(self._memory.pop())
            else:
                self._arena.release(self.team, self._memory.pop())

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        if kind is None:  # after an error the other PEs may be anywhere
            self.free()
