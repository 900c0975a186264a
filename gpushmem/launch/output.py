"""Lines of several PEs on one terminal, each with its PE's number before it."""

from __future__ import annotations

import os
import sys

__all__ = ["Tagger"]

Pipes = tuple[tuple[int, int], tuple[int, int]]  # (reader, writer) of stdout and of stderr
CHUNK = 65536


class Tagger:
    """Reads PEs' output from pipes and writes it on, whole lines at a time."""

    def __init__(self) -> None:
        self._open: dict[int, tuple[int, int, bytes]] = {}  # reader -> (PE, fd to write, rest)

    def pipes(self) -> Pipes:
        """Pipes for one PE."""
        return os.pipe2(os.O_CLOEXEC), os.pipe2(os.O_CLOEXEC)

    @staticmethod
    def redirect(pipes: Pipes) -> None:
        """In the PE: let its standard output and error be the pipes, by lines."""
        for fd, stream, (_, writer) in zip((1, 2), (sys.stdout, sys.stderr), pipes, strict=True):
            os.dup2(writer, fd)
            stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]

    def adopt(self, pe: int, pipes: Pipes) -> list[int]:
        """In the launcher: take over the readers, and return them."""
        for fd, (reader, writer) in zip((1, 2), pipes, strict=True):
            os.close(writer)
            self._open[reader] = (pe, fd, b"")
        return [reader for reader, _ in pipes]

    def read(self, reader: int) -> bool:
        """Pass on what there is to read; False at the end."""
        pe, fd, rest = self._open[reader]
        data = os.read(reader, CHUNK)
        *lines, rest = (rest + data).split(b"\n")
        if not data and rest:
            lines, rest = [*lines, rest], b""
        if lines:
            _write(fd, b"".join(b"[%d] %s\n" % (pe, line) for line in lines))
        if data:
            self._open[reader] = (pe, fd, rest)
            return True
        del self._open[reader]
        os.close(reader)
        return False

    def drain(self) -> None:
        """Pass on the rest; all writers have ended."""
        for reader in list(self._open):
            while self.read(reader):
                pass


def _write(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]
