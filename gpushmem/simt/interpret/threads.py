"""The threads of a launch as greenlets: who runs, who waits for what, and what ends the wait.

A `Fiber` is a greenlet that runs the threads of a block one after the other; when one has to wait,
the hub, `Grid.run`, goes on with another fiber. So a kernel that never waits needs one fiber.

The rules are those of the compiled engine (`compiler.groups`, `intrinsics.synchronization`):
threads that have returned are not waited for; lanes with different masks do not wait for each
other; `activemask` is answered when no lane of the warp can go on. Threads run in their order, and
blocks, too: the next one begins when all threads wait for the grid, or for memory to change.

A thread that waits for memory reads one element again and again, and gives way after `SAME` times;
so that any other loop of reads ends, too, a thread gives way after many reads, whatever it reads.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from itertools import product
from pathlib import Path
from typing import Any

from greenlet import GreenletExit, getcurrent, greenlet

from gpushmem.artifacts.gpu_model import LANES
from gpushmem.artifacts.launch_shape import LaunchShape
from gpushmem.errors import ArgumentError, KernelError
from gpushmem.simt.run.kernel import resident_blocks

__all__ = ["FULL", "Block", "Fiber", "Grid", "Thread", "caller", "current", "line_of", "user_frame"]

SAME = 16  # reads of one element
PATIENCE, LEAST = 100_000, 1_000  # reads of any elements: at first, and when threads have given way
ROUNDS = 8  # in which threads that may wait for memory have a turn, before another block begins
FULL = 0xFFFFFFFF
POLLS, READS, GRID, ACTIVE = "a loop that reads memory", "many reads", "grid.sync", "activemask"
OWN = str(Path(__file__).parent)
SHOWN = 8  # threads of a group that an error names


class Fiber(greenlet):
    """A greenlet that runs threads of a block."""

    thread: Any = None  # the one that it runs

    def __init__(self, block: Block) -> None:
        super().__init__()
        self.block, self.grid = block, block.grid
        self.array: Any = None  # read last, and where
        self.index: Any = None
        self.same = 0
        self.patience = block.grid.patience

    def run(self) -> None:
        """Run the block's threads that have not begun, until one waits, and then that one."""
        block, grid = self.block, self.grid
        with grid.errors():
            for thread in block.begin(self):
                self.thread = thread
                try:
                    grid.call()
                except GreenletExit:
                    raise
                except BaseException:
                    grid.failed = thread
                    raise
                thread.ends()
                if block.claimed is not self:
                    return

    def looks(self, array: Any, index: Any) -> None:
        """The thread reads an element."""
        if (array is self.array and index is self.index) or self._again(array, index):
            self.same += 1
            if self.same >= SAME:
                self.thread.give_way(POLLS)
            return
        self.array, self.index, self.same = array, index, 0
        self.patience -= 1
        if self.patience < 0:
            self.grid.patience = max(LEAST, self.grid.patience // 2)
            self.patience = self.grid.patience
            self.thread.give_way(READS)

    def _again(self, array: Any, index: Any) -> bool:
        if array is not self.array:
            return False
        try:
            return bool(index == self.index)
        except ValueError:  # an index that is an array
            return False


class Thread:
    """A thread of the grid; `what` it waits for, and in a warp with which mask and value."""

    __slots__ = (
        "block", "call", "fiber", "lane", "number", "result", "returned", "shared_at", "tid",
        "value", "warp", "what",
    )  # fmt: skip

    def __init__(self, block: Block, number: int, tid: tuple[int, int, int]) -> None:
        self.block, self.number, self.tid = block, number, tid
        self.lane, self.warp = number % LANES, number // LANES
        self.fiber: Fiber | None = None
        self.what: str | None = None
        self.call: Any = None  # the operation of a warp in which it waits, and the mask
        self.value: Any = None
        self.result: Any = None
        self.returned = False

    def __repr__(self) -> str:
        return f"thread {self.tid} of block {self.block.bid}"

    @property
    def lanes(self) -> list[Thread]:
        """The threads of its warp that have not returned."""
        first = self.warp * LANES
        return [t for t in self.block.threads[first : first + LANES] if not t.returned]

    def pause(self) -> None:
        """Let others run until `go`, which may have come before."""
        fiber = self.fiber
        assert fiber is not None
        if self.block.claimed is fiber:  # the block's other threads need another one
            self.block.claimed = None
        fiber.array, fiber.same = None, 0
        self.block.grid.hub.switch()

    def wait(self, what: str) -> None:
        """Let others run until `go`."""
        self.what = what
        self.pause()

    def go(self) -> None:
        """End the wait."""
        self.what = self.call = None
        self.block.grid.ready.append(self.fiber)

    def give_way(self, what: str = POLLS) -> None:
        """Let all others have a turn."""
        self.block.grid.polling.append(self)
        self.wait(what)

    def ends(self) -> None:
        """Return from the kernel: nobody waits for this thread any more."""
        block = self.block
        self.returned, self.fiber = True, None
        block.alive -= 1
        block.grid.alive -= 1
        if block.arrived:
            block.meet_if_all()
        block.grid.meet_if_all()
        if block.calling:
            for lane in self.lanes:
                if lane.call is not None and lane.call[0] != ACTIVE and lane.assembled():
                    lane.act()
        if not block.alive:
            block.grid.blocks.remove(block)

    # --- warps

    def meet(self, name: str, mask: int, value: Any, result: Callable[[list[Thread]], None]) -> Any:
        """Wait for the lanes of a mask, with a value; `result` gives each of them its result."""
        mask = int(mask) & FULL
        if not mask >> self.lane & 1:
            raise KernelError(
                f"{name}: lane {self.lane} calls with mask {mask:#010x}, in which it is not"
            )
        self.call, self.value, self.what = (name, mask, result), value, name
        self.block.calling += 1
        if self.assembled():
            self.act()
        self.pause()
        return self.result

    def peers(self) -> list[Thread]:
        """The living lanes of the mask."""
        return [t for t in self.lanes if self.call[1] >> t.lane & 1]

    def assembled(self) -> bool:
        """Whether all lanes of the mask wait in the same call."""
        return all(t.call is not None and t.call[:2] == self.call[:2] for t in self.peers())

    def act(self) -> None:
        """Give all lanes their results, and let them go."""
        peers = self.peers()
        self.call[2](peers)
        self.block.calling -= len(peers)
        for lane in peers:
            lane.go()

    def active(self) -> int:
        """The lanes that are at this line when no lane can go on."""
        frame = caller()
        self.call = (ACTIVE, (frame.f_code, frame.f_lasti) if frame else None)
        self.wait(ACTIVE)
        return int(self.result)


class Block:
    """A block of threads that have begun."""

    def __init__(self, grid: Grid, bid: tuple[int, int, int]) -> None:
        self.grid, self.bid = grid, bid
        x, y, z = grid.shape.block
        tids = ((i, j, k) for k in range(z) for j in range(y) for i in range(x))
        self.threads = [Thread(self, n, tid) for n, tid in enumerate(tids)]
        self.alive, self.begun = len(self.threads), 0
        self.claimed: Fiber | None = None  # the one that runs threads that have not begun
        self.arrived: list[Thread] = []  # at the barrier
        self.votes = self.calling = 0  # threads in calls of warps
        self.shared: dict[Any, Any] = {}  # place in the code -> array
        self.shared_bytes = grid.shape.dynamic_shared
        self.dynamic: Any = None

    def begin(self, fiber: Fiber) -> Iterator[Thread]:
        """The threads that have not begun, as long as this fiber is to run them."""
        self.claimed = fiber
        while self.begun < len(self.threads):
            thread = self.threads[self.begun]
            self.begun += 1
            thread.fiber = fiber
            yield thread
        self.claimed = None

    def meet(self, thread: Thread, what: str, vote: Any = False) -> tuple[int, int]:
        """A barrier; how many have voted for, and how many there were."""
        self.votes += bool(vote)
        self.arrived.append(thread)
        thread.what = what
        self.meet_if_all()
        thread.pause()
        votes, living = thread.result
        return votes, living

    def meet_if_all(self) -> None:
        """End the barrier if all living threads are there."""
        if len(self.arrived) == self.alive:
            result = self.votes, self.alive
            there, self.arrived, self.votes = self.arrived, [], 0
            for thread in sorted(there, key=lambda t: t.number):
                thread.result = result
                thread.go()


class Grid:
    """One launch."""

    def __init__(
        self,
        name: str,
        shape: LaunchShape,
        call: Callable[[], object],
        errors: Callable[[], AbstractContextManager[object]],
    ) -> None:
        self.name, self.shape, self.call, self.errors = name, shape, call, errors
        self.hub = getcurrent()
        self.ready: deque[Any] = deque()
        self.polling: list[Thread] = []
        self.blocks: list[Block] = []  # that have begun, and have threads that have not returned
        self.count = shape.grid[0] * shape.grid[1] * shape.grid[2]
        self.alive = self.count * shape.threads
        self.met: list[Thread] = []  # at the grid's barrier
        self.patience, self.rounds = PATIENCE, 0
        self.failed: Thread | None = None  # the one that has raised an exception

    def run(self) -> None:
        """Run the grid; raises what a thread raises."""
        x, y, z = map(range, self.shape.grid)
        waiting = ((i, j, k) for k, j, i in product(z, y, x))
        resident = resident_blocks(self.shape.threads)
        try:
            while True:
                fiber = self.next()
                if fiber is None and self.may_begin() and len(self.blocks) < resident:
                    bid = next(waiting, None)
                    if bid is not None:
                        self.rounds += 1
                        self.blocks.append(Block(self, bid))
                        continue
                if fiber is None and self.polling:
                    self.rounds += 1
                    polling, self.polling = self.polling, []
                    for thread in polling:
                        thread.go()
                    continue
                if fiber is None:
                    if self.blocks:
                        raise self.deadlock(self.blocks)
                    return
                fiber.switch()
        finally:
            self.end()

    def next(self) -> Any:
        """The fiber that is to run now; None if none can."""
        if self.ready:
            return self.ready.popleft()
        for block in self.blocks:
            if block.begun < len(block.threads):
                return Fiber(block)
        for block in self.blocks:
            self.answer(block)
            if self.ready:
                return self.ready.popleft()
            waits = [t.what for t in block.threads if not t.returned]
            if waits and not {POLLS, READS, GRID} & set(waits):
                raise self.deadlock([block])
        return None

    def may_begin(self) -> bool:
        """Whether another block may be what the threads wait for."""
        tired = any(thread.what == READS for thread in self.polling)
        return not tired or self.rounds % ROUNDS == ROUNDS - 1

    def answer(self, block: Block) -> None:
        """Answer `activemask` where lanes wait for nothing else."""
        warps: dict[int, list[Thread]] = {}
        for thread in block.threads:
            if thread.what == ACTIVE:
                warps.setdefault(thread.warp, []).append(thread)
        for lanes in warps.values():
            alike = [t for t in lanes if t.call == lanes[0].call]
            bits = sum(1 << t.lane for t in alike)
            for thread in alike:
                thread.result = bits
                thread.go()

    def meet(self, thread: Thread) -> None:
        """The grid's barrier."""
        most = resident_blocks(self.shape.threads)
        if self.count > most:
            raise ArgumentError(
                f"kernel {self.name} synchronises its grid of {self.count} blocks of "
                f"{self.shape.threads} threads; at most {most} fit the GPU modelled at once: "
                "launch fewer, and let each do more"
            )
        self.met.append(thread)
        thread.what = GRID
        self.meet_if_all()
        thread.pause()

    def meet_if_all(self) -> None:
        """End the grid's barrier if all living threads are there."""
        if self.met and len(self.met) == self.alive:
            there, self.met = self.met, []
            for thread in there:
                thread.go()

    def deadlock(self, blocks: list[Block]) -> KernelError:
        """The error that says where threads wait that can never go on."""
        groups: dict[tuple[str, str], list[str]] = {}
        for block in blocks:
            for t in block.threads:
                where = "returned" if t.returned else f"wait in {t.what}"
                line = line_of(t.fiber) if t.fiber is not None else ""
                name = f"{t.tid}" if len(blocks) == 1 else f"{t.tid} of block {block.bid}"
                groups.setdefault((where, line), []).append(name)
        lines = [
            f"  {len(names)} {where}{line and ' at ' + line}: {', '.join(names[:SHOWN])}"
            + (", ..." if len(names) > SHOWN else "")
            for (where, line), names in groups.items()
        ]
        of = f"block {blocks[0].bid}" if len(blocks) == 1 else f"{len(blocks)} blocks"
        return KernelError(
            f"kernel {self.name}: no thread of {of} can go on; of its threads\n" + "\n".join(lines)
            + "\nLet all threads of a block, or all lanes of the mask, come to the same wait."
        )  # fmt: skip

    def end(self) -> None:
        """End the greenlets that are left."""
        for block in self.blocks:
            for thread in block.threads:
                if thread.fiber is not None and thread.fiber:
                    thread.fiber.throw(GreenletExit)
        self.blocks = []


def current() -> Thread:
    """The thread that runs."""
    fiber = getcurrent()
    if fiber.__class__ is not Fiber:
        raise RuntimeError("this name has a meaning in a kernel only")
    thread: Thread = fiber.thread
    return thread


def user_frame(frame: Any) -> Any:
    """The innermost frame that is not of this package."""
    while frame is not None and frame.f_code.co_filename.startswith(OWN):
        frame = frame.f_back
    return frame


def caller() -> Any:
    """The frame of the kernel's that has called this package."""
    return user_frame(sys._getframe())


def line_of(fiber: Fiber) -> str:
    """Where a fiber waits, as `file.py:12 in kernel`."""
    frame = user_frame(fiber.gr_frame)
    if frame is None:
        return "?"
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} in {frame.f_code.co_name}"
