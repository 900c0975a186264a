"""Reads the board of another job, defensively: it may belong to another, hostile user."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from gpushmem import settings
from gpushmem.job.board import ACCOUNT_BYTES, JOB, MAGIC, PE, PES_AT, Board, board_bytes, boxes_at

__all__ = ["Outside", "is_memory"]

LOCKED = 2.0  # limit on waiting for the board's lock, in seconds
MOST_BYTES = 64 << 20  # limit on bytes read as accounts


class Outside(Board):
    """A board read through bounded copies; no call blocks without a limit.

    It is not mapped: if its file were truncated meanwhile, the reader would be killed by SIGBUS.
    Raises `ValueError` if it is not a board, `OSError` if it cannot be read or locked.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        head = np.frombuffer(self._read_at(0, JOB.itemsize), JOB)
        self.n_pes = int(head["n_pes"][0])
        known = head["magic"][0] == MAGIC and 1 <= self.n_pes <= settings.MOST
        if not known or os.fstat(fd).st_size != board_bytes(self.n_pes):
            raise ValueError("not the board of a gpushmem job of this version")
        self.again()

    def again(self) -> None:
        """Allow as many bytes of accounts again."""
        self._left = MOST_BYTES

    @property
    def pes(self) -> np.ndarray[Any, Any]:  # type: ignore[override]
        """A copy of the PEs' entries, as they are now."""
        return np.frombuffer(self._read_at(PES_AT, self.n_pes * PE.itemsize), PE)

    def __getitem__(self, field: str) -> int:
        return int(np.frombuffer(self._read_at(_place(field), 8), np.int64)[0])

    def __setitem__(self, field: str, value: int) -> None:
        os.pwrite(self._fd, np.int64(value).tobytes(), _place(field))

    def _told(self, pe: int, nbytes: int) -> bytes:
        if not 0 <= nbytes <= min(ACCOUNT_BYTES, self._left):
            return b""
        self._left -= nbytes
        return self._read_at(boxes_at(self.n_pes) + pe * ACCOUNT_BYTES, nbytes)

    def _read_at(self, place: int, nbytes: int) -> bytes:
        data = os.pread(self._fd, nbytes, place)
        if len(data) < nbytes:
            raise ValueError("the board has been truncated")
        return data

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        until = time.monotonic() + LOCKED
        while True:
            try:
                fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise TimeoutError(f"its board has been locked for {LOCKED:g} s") from None
                time.sleep(0.01)
        try:
            yield
        finally:
            fcntl.lockf(self._fd, fcntl.LOCK_UN)


def is_memory(fd: int) -> bool:
    """Whether a descriptor is a memfd. Does not query its file system, which may block.

    All memfds are on one internal mount, so comparing mount ids is enough.
    """
    ours = os.memfd_create("gpushmem-probe")
    try:
        return _mount(fd) == _mount(ours)
    finally:
        os.close(ours)


def _mount(fd: int) -> str | None:
    with open(f"/proc/self/fdinfo/{fd}") as about:
        return next((line for line in about if line.startswith("mnt_id:")), None)


def _place(field: str) -> int:
    place: int = JOB.fields[field][1]  # type: ignore[index]
    return place
