"""Streams: work is done in order on one stream, concurrently on several, and asynchronously.

Each stream has a queue and a worker thread, which runs launches in native code and enters Python
for other work (`queue`). The default stream is CUDA's legacy one: work on it starts after all work
given to other streams before, and work given to them later starts after it. A launch that fails
takes the rest of its stream's queue with it; its error is raised by the next synchronisation, as in
CUDA. `Device.raise_error` raises it before, for hosts that poll.
"""

from __future__ import annotations

import ctypes
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import numpy as np

from gpushmem.artifacts.argument_packing import address_of
from gpushmem.artifacts.launch_shape import NONBLOCKING
from gpushmem.errors import ArgumentError, ShmemError
from gpushmem.simt.run.kernel import Place, Running, run_hooks, running
from gpushmem.simt.run.queue import (
    AT,
    CALL,
    COPY,
    DONE,
    END,
    LAUNCHES,
    ONE,
    PUT,
    SKIP,
    WAIT,
    native,
    new_queue,
)
from gpushmem.waiting_threads import TURN, Parked, block_signals

__all__ = ["Copy", "Device", "Launches", "Stream"]

# A timespec: for how long a host waits before it looks at signals.
_turn = np.array([0, int(TURN * 1e9)], np.int64)
TURN_AT = address_of(_turn)
NONE = id(None)

CAPTURED = (
    "a stream is being captured: what is queued on it does not run now, so nothing can wait for "
    "it; end the capture, and launch the graph"
)


class Launches:
    """Launches to be queued together, as one item."""

    def __init__(self, launches: list[Running]) -> None:
        self.launches = launches
        self._pairs = np.array([(each.begins_with, each.args) for each in launches], np.int64)
        self.address = address_of(self._pairs)


class Copy:
    """A copy of memory to be queued, or to be made by a call; `keep` lives until it is done."""

    def __init__(self, dst: int, src: int, nbytes: int, keep: object = None) -> None:
        self._pair = (ctypes.c_int64 * 2)(dst, src)
        self.address, self.nbytes, self._keep = ctypes.addressof(self._pair), nbytes, keep

    def __call__(self) -> None:
        dst, src = self._pair
        ctypes.memmove(dst, src, self.nbytes)


class Queue:
    """A native queue, and Python's side of what is in it."""

    def __init__(self, owner: Stream) -> None:
        self._owner = weakref.ref(owner)
        self._native, self._memory = native(), new_queue()
        self.address = address_of(self._memory)
        self._words = memoryview(cast(Any, self._memory.view(np.int64)))
        self._place = Place(self._memory["run"])
        # Kept alive until its work is done, whatever its owner does.
        self.stream: Stream | None = None
        self.launch = self._place.launch

    @property
    def put_so_far(self) -> int:
        """How many items have been put."""
        return self._words[PUT // 8]

    def reached(self, count: int) -> bool:
        """Whether `count` items are done."""
        return self._words[DONE // 8] >= count

    def skips(self, whether: bool) -> None:
        """Whether to do nothing of what is in the queue."""
        self._words[SKIP // 8] = whether

    def put(self, kind: int, what: int, count: int, keep: object) -> None:
        """Put an item, and keep what it needs until it is done."""
        if not self._native.put(self.address, kind, what, count, id(keep)):
            raise MemoryError("no memory to queue a launch")

    def forget(self) -> bool:
        """Let go of what the items needed that are done; returns whether all are."""
        return bool(self._native.reclaim(self.address))

    def in_hand(self) -> Any:
        """What is kept for the item in hand; None if it is done."""
        return self._native.in_hand(self.address, NONE)

    def launch_in_hand(self) -> Running:
        """The launch of the item in hand that is being run."""
        work = self.in_hand()
        return work.launches[self._words[AT // 8] - 1] if type(work) is Launches else work

    def end(self) -> None:
        """Nothing more will be put: let the worker end."""
        self.put(END, 0, 0, None)

    def comes(self, count: int) -> Callable[[], object]:
        """What waits for a turn for `count` items to be done, for `Parked.until`."""
        return partial(self._native.await_done, self.address, count, TURN_AT)

    def work(self) -> None:
        """Body of the worker thread."""
        block_signals()
        drain, address = self._native.drain, self.address
        while True:
            with Parked("work", self._moves, self._place.current, worker=True):
                code = drain(address)
            if code == END:
                self.forget()
                return
            stream = self._owner()
            assert stream is not None  # the item in hand is not done
            stream.do(code)
            del stream

    def _moves(self) -> bool:
        """Whether the worker may go on without anybody else, or does something."""
        if self.reached(self.put_so_far):
            return False
        run = self._place.current()
        if run is not None:
            return not run.fibers
        work = self.in_hand()
        if type(work) is tuple:
            other, count = work
            return bool(other.reached(count))
        return True


class Stream:
    """An ordered queue of work; made by `Device.stream()`."""

    def __init__(self, device: Device, blocking: bool = True) -> None:
        self.device, self.blocking = device, blocking
        self.queue = Queue(self)
        self._worker: threading.Thread | None = None
        self.error: BaseException | None = None  # of a launch that has failed, until it is raised
        self._awaits: tuple[Queue, int] | None = None  # what it was last told to wait for
        self.waited: Callable[[], None] | None = None  # called when the host has waited for it
        self.number = id(self) | (0 if blocking else NONBLOCKING)  # by which a witness knows it
        self._captured: list[Any] | None = None  # what is queued, while it is captured
        self._origin = self  # the stream whose capture it is
        self._joined: list[Stream] = []  # others in its capture

    def submit(self, work: Running | Launches | Copy | Callable[[], object]) -> None:
        """Queue launches, a copy, or a call `work()`; returns at once."""
        if self._captured is not None:
            self._capture(work)
            return
        if run_hooks and type(work) is Launches:
            for launch in work.launches:
                self.submit(launch)
            return
        device, queue = self.device, self.queue
        with device.lock:
            if len(device.busy) != 1 or self not in device.busy:
                self._order()
            if run_hooks and type(work) is Running:
                queue.put(CALL, 0, 0, work)  # of which Python is to know
            elif type(work) is Running:
                queue.put(ONE, work.begins_with, work.args, work)
            elif type(work) is Launches:
                queue.put(LAUNCHES, work.address, len(work.launches), work)
            elif type(work) is Copy:
                queue.put(COPY, work.address, work.nbytes, work)
            else:
                queue.put(CALL, 0, 0, work)
            self._now_busy()

    def _now_busy(self) -> None:
        if self.queue.stream is None:  # at first, or when a handler of signals has just waited
            self.queue.stream = self
            self.device.busy.add(self)

    def wait_for(self, other: Stream, wait_now: Callable[[Stream, Stream], None]) -> None:
        """Let what is queued from now on wait for what has been queued on `other`.

        By `wait_now(stream, for_what)`, now or at each launch of a graph.

        If `other` is captured, this stream joins the capture: what is queued here until it ends is
        part of the graph, and is queued here when that is launched. A captured stream does not wait
        for one that is not.
        """
        captured, origin = other._captured, other._origin
        if captured is None:
            if self._captured is None:
                wait_now(self, other)
            return
        if self is self.device.default:
            raise ArgumentError(CAPTURED)
        if self._captured is None:
            self._captured, self._origin = captured, origin
            origin._joined.append(self)

        def wait(on: Stream) -> None:
            first, then = (on if stream is origin else stream for stream in (other, self))
            wait_now(then, first)

        captured.append(wait)

    def wait_now_for(self, other: Stream) -> None:
        """Queue a wait for what has been queued on another stream."""
        with self.device.lock:
            self._order()
            after = other.queue, other.queue.put_so_far
            self.queue.put(WAIT, after[0].address, after[1], after)
            self._now_busy()

    def submit_by(self, put: Callable[[Stream], object]) -> None:
        """Call `put(self)`, which submits; if it is captured, at each launch of the graph."""
        if self._captured is None:
            put(self)
        else:
            self._captured.append(put if self._origin is self else lambda _: put(self))

    def _capture(self, work: Any) -> None:
        assert self._captured is not None
        if self._origin is not self:
            self._captured.append(lambda _: self.submit(work))
        elif type(work) is Launches:  # of another graph
            self._captured += work.launches
        else:
            self._captured.append(work if type(work) is Running else lambda on: on.submit(work))

    @property
    def is_captured(self) -> bool:
        """Whether what is queued now is for a graph."""
        return self._captured is not None

    def begin_capture(self) -> list[Any]:
        """Collect what is queued from now on, and run nothing of it; returns the collection."""
        if self is self.device.default:
            raise ArgumentError(
                "the default stream cannot be captured: capture one of gpushmem.stream()"
            )
        if self._captured is not None:
            raise ArgumentError("the stream is being captured already")
        self.device.captures[self] = threading.get_ident()
        self._captured = []
        return self._captured

    def end_capture(self) -> None:
        """Run what is queued from now on."""
        for stream in (self, *self._joined):
            stream._captured, stream._origin = None, stream
        self._joined.clear()
        self.device.captures.pop(self, None)

    def _order(self) -> None:
        """Let what comes next on this stream wait for what has to come before it on others."""
        device = self.device
        for other in list(device.busy):
            if other.forget() or other is self or device.default not in (self, other):
                continue
            if not (self.blocking and other.blocking):
                continue
            after = other.queue, other.queue.put_so_far
            if after != self._awaits:
                self._awaits = after
                self.queue.put(WAIT, after[0].address, after[1], after)
        if self._worker is None:
            # A daemon: a kernel that never ends must not keep the process alive.
            self._worker = threading.Thread(target=self.queue.work, daemon=True)
            self._worker.start()
            weakref.finalize(self, self.queue.end)

    def forget(self) -> bool:
        """Let go of what has been done; returns whether that is all. With the device's lock."""
        if not self.queue.forget():
            return False
        self.device.busy.discard(self)
        self.queue.stream = self._awaits = None
        return True

    def done(self) -> bool:
        """Whether all work given so far is done."""
        return self.queue.reached(self.queue.put_so_far)

    def synchronize(self, what: str = "synchronize") -> None:
        """Wait for all work queued so far; raises the error of a launch that failed.

        `what` names the call in reports. An interrupt (Ctrl-C) cancels the launches
        being waited for.
        """
        if self._captured is not None:
            raise ArgumentError(CAPTURED)
        self.wait_for_all(what)

    def wait_for_all(self, what: str = "synchronize") -> None:
        """As `synchronize`, of what was queued before a capture."""
        queue, count = self.queue, self.queue.put_so_far
        try:
            if not queue.reached(count):
                with Parked(what, partial(queue.reached, count)) as wait:
                    wait.until(queue.comes(count))
        except BaseException:
            self.device.cancel()
            raise
        with self.device.lock:
            error, self.error = self.error, None
            queue.skips(False)
            self.device.failed.discard(self)
            self.forget()
        if error is not None:
            raise _to_raise(error)
        if self.waited is not None:
            self.waited()

    @contextmanager
    def auto_synchronize(self) -> Iterator[Stream]:
        """Synchronise at the end of a `with` block."""
        yield self
        self.synchronize()

    def do(self, code: int) -> None:
        """Do Python's part of the item in hand, on the worker thread, as `drain` says."""
        try:
            if code == CALL:
                self.queue.in_hand()()
            else:
                self.queue.launch_in_hand().complete(self.queue.launch, code)
        except BaseException as error:  # noqa: BLE001  (raised by synchronize)
            with self.device.lock:
                self.error = error
                self.queue.skips(True)
                self.device.failed.add(self)


def _to_raise(error: BaseException) -> BaseException:
    """The error of a launch: one of ours says where in the kernel it was, not in the engine."""
    return error.with_traceback(None) if isinstance(error, ShmemError) else error


class Device:
    """The streams of one process, and their common state."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # a finalizer may submit while a submission is under way
        self._streams: weakref.WeakSet[Stream] = weakref.WeakSet()
        self.busy: set[Stream] = set()  # those with work that was not done when last looked
        self.failed: set[Stream] = set()  # kept until their errors have been raised
        self.captures: dict[Stream, int] = {}  # and the thread that captures
        self.default = self.stream()

    def stream(self, blocking: bool = True) -> Stream:
        """Make a stream; its thread ends with the last reference to it.

        Unless it is `blocking` it is not ordered with the default stream.
        """
        stream = Stream(self, blocking)
        self._streams.add(stream)
        return stream

    def idle(self) -> bool:
        """Whether all work given to the streams is done, and all errors have been raised."""
        with self.lock:
            return not self.failed and all(stream.forget() for stream in list(self.busy))

    def synchronize(self) -> None:
        """Wait for all streams, but those that other threads capture; raises the first error."""
        if threading.get_ident() in list(self.captures.values()):
            raise ArgumentError(CAPTURED)
        for stream in list(self._streams):
            stream.wait_for_all()

    def raise_error(self) -> None:
        """Raise the error of a launch that has failed, if there is one, without waiting.

        Who synchronises hears it again only if its stream still waits for another one.
        """
        for stream in list(self.failed):
            if stream.done():
                stream.wait_for_all()
            elif (error := stream.error) is not None:
                raise _to_raise(error)

    def stop(self, seconds: float) -> bool:
        """Cancel all queued work; returns whether the streams are done within `seconds`."""
        end = time.monotonic() + seconds
        while not all(stream.done() for stream in list(self._streams)):
            if time.monotonic() > end:
                return False
            self.cancel()
            time.sleep(1e-3)
        return True

    def cancel(self) -> None:
        """Stop the launches that make no progress."""
        for run in running():
            run.cancel()
