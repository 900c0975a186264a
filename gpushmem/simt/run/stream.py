"""Streams: work is done in order on one stream, concurrently on several, and asynchronously.

Each stream has a worker thread; the GIL is released while a grid runs. The default stream is
CUDA's legacy one: work on it starts after all work given to other streams before, and work given
to them later starts after it. A launch that fails takes the rest of its stream's queue with it;
its error is raised by the next synchronisation, as in CUDA.
"""

from __future__ import annotations

import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from queue import SimpleQueue

from gpushmem.errors import ShmemError
from gpushmem.simt.base.parking import Parked
from gpushmem.simt.run.kernel import running

__all__ = ["Device", "Stream"]


@dataclass
class _Work:
    stream: Stream  # kept alive until the work is done, whatever its owner does
    run: Callable[[], object]
    after: list[threading.Event]
    done: threading.Event = field(default_factory=threading.Event)


class _Inbox:
    """The queue of a worker; empty when the worker has begun all of it."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[_Work | None] = SimpleQueue()
        self._put = self._begun = 0

    def put(self, work: _Work | None) -> None:
        self._put += 1
        self._queue.put(work)

    def next(self) -> _Work | None:
        # Not the queue's own method: a worker may have taken the last item without having begun it.
        with Parked("work", lambda: self._put != self._begun, worker=True):
            work = self._queue.get()
        self._begun += 1
        return work


class Stream:
    """An ordered queue of work; made by `Device.stream()`."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._inbox = _Inbox()
        self._worker: threading.Thread | None = None
        self._error: BaseException | None = None
        self.waited: Callable[[], None] | None = None  # called when the host has waited for it
        self.last = threading.Event()  # set when all work given so far is done
        self.last.set()

    def submit(self, run: Callable[[], object]) -> None:
        """Queue `run()` on this stream; returns at once."""
        with self._device.lock:
            work = _Work(self, run, self._device.dependencies(self))
            self.last = work.done
            if self._worker is None:
                # A daemon: a kernel that never ends must not keep the process alive.
                args = (self._inbox,)
                self._worker = threading.Thread(target=_work_on, args=args, daemon=True)
                self._worker.start()
                weakref.finalize(self, self._inbox.put, None)
            self._inbox.put(work)

    def synchronize(self, what: str = "synchronize") -> None:
        """Wait for all work queued so far; raises the error of a launch that failed.

        `what` names the call in reports. An interrupt (Ctrl-C) cancels the launches
        being waited for.
        """
        try:
            if not (last := self.last).is_set():
                with Parked(what, last.is_set) as wait:
                    wait.until(last)
        except BaseException:
            self._device.cancel()
            raise
        error, self._error = self._error, None
        self._device.failed.discard(self)
        if error is not None:
            raise error.with_traceback(None) if isinstance(error, ShmemError) else error
        if self.waited is not None:
            self.waited()

    @contextmanager
    def auto_synchronize(self) -> Iterator[Stream]:
        """Synchronise at the end of a `with` block."""
        yield self
        self.synchronize()

    def do(self, work: _Work) -> None:
        """Run one piece of work on the worker thread."""
        try:
            for event in work.after:
                with Parked("other streams", event.is_set, worker=True):
                    event.wait()
            if self._error is None:
                work.run()
        except BaseException as error:  # noqa: BLE001  (raised by synchronize)
            self._error = error
            self._device.failed.add(self)
        finally:
            work.done.set()


def _work_on(inbox: _Inbox) -> None:
    """Body of a worker thread; holds no reference to its stream between two pieces of work."""
    # Signals are the main thread's: a handler must not run on a fiber's small stack.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGUSR1})
    while (work := inbox.next()) is not None:
        work.stream.do(work)
        del work


class Device:
    """The streams of one process, and their common state."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # a finalizer may submit while a submission is under way
        self._streams: weakref.WeakSet[Stream] = weakref.WeakSet()
        self.failed: set[Stream] = set()  # kept until their errors have been raised
        self.default = self.stream()

    def stream(self) -> Stream:
        """Make a stream; its thread ends with the last reference to it."""
        stream = Stream(self)
        self._streams.add(stream)
        return stream

    def dependencies(self, stream: Stream) -> list[threading.Event]:
        """The work on other streams that new work on `stream` must wait for."""
        others = self._streams if stream is self.default else [self.default]
        return [s.last for s in others if s is not stream and not s.last.is_set()]

    def synchronize(self) -> None:
        """Wait for all streams; raises the first error found."""
        for stream in list(self._streams):
            stream.synchronize()

    def stop(self, seconds: float) -> bool:
        """Cancel all queued work; returns whether the streams are done within `seconds`."""
        end = time.monotonic() + seconds
        while not all(stream.last.is_set() for stream in list(self._streams)):
            if time.monotonic() > end:
                return False
            self.cancel()
            time.sleep(1e-3)
        return True

    def cancel(self) -> None:
        """Stop the launches that make no progress."""
        for launch in list(running):
            launch.cancel()
