"""Calls of a process group that its caller may wait for, and the thread that makes them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch.futures import Future

from gpushmem.errors import ShmemError, WaitTimeout
from gpushmem.source_lines import user_place
from gpushmem.waiting_threads import TURN, Parked, acts_for, block_signals

if TYPE_CHECKING:
    from gpushmem.torch.checking import Flight

__all__ = ["Call", "Queue", "Together", "Work", "failure"]


class Work(dist.Work):  # type: ignore[misc]
    """What a call of a process group returns; `result` are the tensors that it fills."""

    _done = False
    _error: BaseException | None = None
    _future: Future[Any] | None = None
    flight: Flight | None = None  # as the checker sees it

    def __init__(self, what: str, result: list[Any]) -> None:
        super().__init__()
        self.what, self._result = what, result
        self._lock = threading.Lock()

    def end(self, error: BaseException | None = None) -> Work:
        """Tell those who wait that the call has ended."""
        if self._settle(error):
            self.tell()
        return self

    def _settle(self, error: BaseException | None) -> bool:
        """Note that the call has ended; returns whether somebody has its future."""
        if self.flight is not None and error is None:
            self.flight.over()
        with self._lock:
            self._error, self._done = error, True
            return self._future is not None

    def tell(self) -> None:
        """Tell those who have the future, and run its callbacks."""
        if self._future is not None:
            self._tell(self._future)

    def _tell(self, future: Future[Any]) -> None:
        if self._error is None:
            future.set_result(self._result)
        else:
            future.set_exception(self._error)

    def _await(self) -> None:
        """Return when it has ended."""

    # --- as PyTorch calls them

    def wait(self, timeout: Any = None) -> bool:
        """Wait until the call has ended; raises its error."""
        if not self._done:
            self._await()
        if self._error is not None:
            raise self._error
        if self.flight is not None:
            self.flight.waited()
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        if self._done and self.flight is not None:
            self.flight.waited()
        return self._done

    def is_success(self) -> bool:
        return self._done and self._error is None

    def exception(self) -> BaseException | None:
        return self._error

    def result(self) -> list[Any]:
        return self._result

    def get_future(self) -> Future[Any]:
        if self.flight is not None:
            self.flight.leave()
        with self._lock:
            if self._future is not None:
                return self._future
            self._future = future = Future()
            done = self._done
        if done:
            self._tell(future)
        return future


class Call(Work):
    """A call that a `Queue` makes."""

    def __init__(self, what: str, call: Callable[[], None], result: list[Any]) -> None:
        super().__init__(what, result)
        self._call, self._ended, self._place = call, threading.Event(), user_place()

    def perform(self) -> None:
        """Make the call, and those that callbacks of its future make."""
        ident = threading.get_ident()
        outer = acts_for.get(ident)
        acts_for[ident] = self._place
        try:
            self._call()
        except BaseException as error:  # noqa: BLE001  (who waits gets it)
            self.end(error)
        else:
            self.end()
        if outer is None:
            del acts_for[ident]
        else:
            acts_for[ident] = outer
        self._ended.set()

    def finish(self) -> None:
        """Wait until it has been made."""
        with Parked(self.what, self._ended.is_set) as parked:
            parked.until(partial(self._ended.wait, TURN))

    _await = finish


class Together(Work):
    """Several calls as one."""

    def __init__(self, works: list[Work]) -> None:
        super().__init__("coalesced calls", [each for work in works for each in work.result()])
        self._works = works

    def wait(self, timeout: Any = None) -> bool:
        return all(work.wait() for work in self._works)

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)


class Queue:
    """A thread that makes calls one after the other. It starts with the first, and ends with us.

    It also runs the callbacks of a call's future, before the next call. A call that these make is
    made at once: so its place among all calls is the same on each rank, however far the threads
    that queue calls have come there.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._waiting: deque[Call] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._over = False

    @property
    def idle(self) -> bool:
        """Whether all calls have been made."""
        return not self._waiting

    def put(self, work: Call) -> Call:
        """Let a call be made after those before it; by a callback of ours: now."""
        if self._is_here():
            work.perform()
            return work
        with self._changed:
            self._waiting.append(work)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            self._changed.notify()
        return work

    def finish(self) -> None:
        """Wait until all calls have been made."""
        with self._changed:
            last = self._waiting[-1] if self._waiting else None
        if last is not None and not self._is_here():
            last.finish()

    def _is_here(self) -> bool:
        """Whether a callback of ours asks."""
        return self._thread is not None and self._thread.ident == threading.get_ident()

    def close(self) -> None:
        """End the thread when all has been done."""
        with self._changed:
            self._over = True
            self._changed.notify()

    def _run(self) -> None:
        block_signals()
        while self._wait():
            self._waiting[0].perform()
            with self._changed:
                self._waiting.popleft()

    def _wait(self) -> bool:
        """Wait for a call; returns whether there is one."""
        with self._changed:
            if not self._waiting and not self._over:
                with Parked("a call of torch.distributed", self._pending, worker=True):
                    while not self._pending():
                        self._changed.wait()
            return bool(self._waiting)

    def _pending(self) -> bool:
        return bool(self._waiting) or self._over


def failure(what: str, error: ShmemError) -> dist.DistBackendError:
    """PyTorch's error for one of ours; its text begins with the call."""
    text = str(error)
    if not text.startswith(what):
        text = f"{what}: {text}"
    if isinstance(error, WaitTimeout):
        text += " (the timeout of this call or its group)"
    return dist.DistBackendError(text)
