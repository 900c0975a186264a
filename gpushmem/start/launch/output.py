"""Output of PEs through pipes: prefixed with the PE's number, or sent to Python's streams."""

from __future__ import annotations

import io
import os
import sys

__all__ = ["Pipes", "Tagger", "own_streams", "whole_lines"]

Ends = tuple[tuple[int, int], tuple[int, int]]  # (reader, writer) of stdout and of stderr
CHUNK = 65536


class Pipes:
    """Reads PEs' output from pipes and forwards it, whole lines at a time."""

    def __init__(self) -> None:
        self._open: dict[int, tuple[int, int, bytes]] = {}  # reader -> (PE, fd to write, rest)
        self._fds: set[int] = set()

    def pipes(self) -> Ends:
        """Create the pipes for one PE."""
        return self._pipe(), self._pipe()

    def _pipe(self) -> tuple[int, int]:
        ends = os.pipe2(os.O_CLOEXEC)
        self._fds.update(ends)
        return ends

    def _close(self, fd: int) -> None:
        self._fds.discard(fd)
        os.close(fd)

    def close(self) -> None:
        """In the launcher: close all pipes that are still open."""
        for fd in list(self._fds):
            self._close(fd)

    @staticmethod
    def redirect(pipes: Ends) -> None:
        """In the PE: redirect standard output and error to the pipes, line buffered."""
        for fd, (_, writer) in zip((1, 2), pipes, strict=True):
            os.dup2(writer, fd)
        own_streams()

    def take_readers(self, pe: int, pipes: Ends) -> list[int]:
        """In the launcher: take over the readers, and return them."""
        for fd, (reader, writer) in zip((1, 2), pipes, strict=True):
            self._close(writer)
            self._open[reader] = (pe, fd, b"")
        return [reader for reader, _ in pipes]

    def read(self, reader: int) -> bool:
        """Forward the available data; False at end of file."""
        pe, fd, rest = self._open[reader]
        try:
            data = os.read(reader, CHUNK)
        except BlockingIOError:  # see `drain`
            data = b""
        *lines, rest = (rest + data).split(b"\n")
        if not data and rest:
            lines, rest = [*lines, rest], b""
        if lines:
            self.write(fd, b"".join(self.line(pe, line) for line in lines))
        if data:
            self._open[reader] = (pe, fd, rest)
            return True
        del self._open[reader]
        self._close(reader)
        return False

    def drain(self) -> None:
        """Forward the rest. The PEs have ended, but processes they started may still write."""
        for reader in list(self._open):
            os.set_blocking(reader, False)
            while self.read(reader):
                pass

    def line(self, pe: int, line: bytes) -> bytes:
        """Format a PE's line."""
        return line + b"\n"

    def write(self, fd: int, data: bytes) -> None:
        """Write to Python's standard output or error."""
        stream = sys.stdout if fd == 1 else sys.stderr
        if stream is not None:  # None if the process was started without one
            stream.write(data.decode(errors="replace"))


class Tagger(Pipes):
    """Pipes that prefix each line with the number of its PE, for one terminal."""

    def line(self, pe: int, line: bytes) -> bytes:
        """Format a PE's line."""
        return b"[%d] %s\n" % (pe, line)

    def write(self, fd: int, data: bytes) -> None:
        """Write to the process's standard output or error."""
        while data:
            data = data[os.write(fd, data) :]


def own_streams() -> None:
    """Connect Python's streams to this process's standard output and error, line buffered."""
    sys.stdout, sys.stderr = (
        io.TextIOWrapper(io.BufferedWriter(io.FileIO(fd, "w", closefd=False)),
                         errors="backslashreplace", line_buffering=True)
        for fd in (1, 2)
    )  # fmt: skip


def whole_lines() -> None:
    """Let a line be one write with PYTHONUNBUFFERED, too, so that lines of PEs do not mix.

    `print` hands over its end by itself, and as it is then, that is a write of its own.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.write_through:
            stream.reconfigure(line_buffering=True, write_through=False)
