"""Sends and receives of a process group."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np

from gpushmem.artifacts.argument_packing import address_of
from gpushmem.backends.cpu.sync.messages import Letter, Mailbox
from gpushmem.errors import ShmemError
from gpushmem.torch.async_work import Work, failure
from gpushmem.waiting_threads import Parked, block_signals

if TYPE_CHECKING:
    from gpushmem.torch.checking import Flight

__all__ = ["Messages"]


class Messages:
    """The letters of one member. Those that nobody waits for are moved by a thread of their own."""

    def __init__(self, mail: Mailbox, name: str, seconds: float) -> None:
        self._mail, self.name, self.seconds = mail, name, seconds
        self._lock = threading.RLock()
        self._bell = np.zeros(1, np.int64)  # changed when the thread should look around
        self._waiting = 0  # callers in `wait`
        self._thread: threading.Thread | None = None
        self._changed = threading.Condition(self._lock)
        self._over = False

    def post(
        self, what: str, letter: Letter, tensors: list[Any], filled: Callable[[], None],
        flight: Flight | None = None,
    ) -> Work:  # fmt: skip
        """Send or expect a letter; `filled` is called when it has been delivered."""
        sent = _Sent(self, what, letter, tensors, filled)
        letter.told, sent.flight = sent.told, flight
        with self._lock:
            (self._mail.send if what == "send" else self._mail.receive)(letter)
            if not letter.done:
                self._ring()
        return sent

    def wait(self, what: str, letter: Letter) -> None:
        """Go on with all letters until this one has been delivered."""
        with self._lock:
            self._waiting += 1
            self._ring()
        try:
            while True:
                with self._lock:
                    self._mail.progress()
                    if letter.done:
                        return
                    watch = self._mail.watch()
                self._mail.wait(what, letter, watch, self.seconds)
        finally:
            with self._lock:
                self._waiting -= 1
                self._ring()

    def _ring(self) -> None:
        self._bell += 1
        if self._thread is None and self._mail.pending and not self._waiting:
            self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def close(self) -> None:
        """End the thread."""
        with self._lock:
            self._over = True
            self._ring()

    # --- the thread

    def _run(self) -> None:
        block_signals()
        while self._needed():
            with self._lock:
                self._mail.progress()
                watch = self._mail.watch(address_of(self._bell))
            with Parked("messages", watch.now, worker=True) as parked:
                parked.until(watch.sleeping)

    def _needed(self) -> bool:
        """Wait until there are letters that nobody waits for; returns false at the end."""
        with self._changed, Parked("messages", self._wanted, worker=True):
            while not self._wanted():
                self._changed.wait()
        return not self._over

    def _wanted(self) -> bool:
        return self._over or (self._mail.pending and not self._waiting)


class _Sent(Work):
    """A letter, as PyTorch sees it."""

    def __init__(
        self,
        messages: Messages,
        what: str,
        letter: Letter,
        tensors: list[Any],
        filled: Callable[[], None],
    ) -> None:
        super().__init__(what, tensors)
        self._messages, self._letter, self._filled = messages, letter, filled

    def told(self) -> None:
        """The letter has ended."""
        error = self._letter.error
        if error is None:
            with nullcontext() if self.flight is None else self.flight.filling():
                self._filled()
        if self._settle(error and failure(self.what, error)):
            # A callback may wait for what this thread is to move: it has one of its own.
            threading.Thread(target=self.tell, name=self._messages.name, daemon=True).start()

    def _await(self) -> None:
        try:
            self._messages.wait(self.what, self._letter)
        except ShmemError as error:
            raise failure(self.what, error) from error

    def source_rank(self) -> int:
        return self._letter.rank

    _source_rank = source_rank
