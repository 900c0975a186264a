"""The jobs of this user on this machine, found by their boards.

A board is memory without a name, but each process of its job has it open, and `/proc` shows that to
processes of the same user. So nothing has to be registered, and nothing is left behind.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gpushmem.errors import ArgumentError
from gpushmem.job.board import Board
from gpushmem.job.report import report_on

__all__ = ["Found", "inspect", "jobs"]

BOARD = "/memfd:gpushmem-board"
ANSWERS = 2.0  # seconds that PEs have to tell what they do


@dataclass
class Found:
    """A job: its number is that of its launcher, or of its first process."""

    number: int
    n_pes: int
    n_running: int
    seconds: float  # since it was started
    command: str
    processes: list[int]
    descriptor: Path  # of the board, in one of them


def jobs() -> list[Found]:
    """The jobs that run now, the oldest first."""
    boards: dict[int, list[tuple[int, Path]]] = {}
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            for inode, descriptor in _boards_of(process):
                boards.setdefault(inode, []).append((int(process.name), descriptor))
    found = [_found(holders) for holders in boards.values()]
    return sorted((job for job in found if job is not None), key=lambda job: -job.seconds)


def inspect(number: int, stacks: bool = False) -> str:
    """The report on the job that process `number` belongs to; the job goes on."""
    running = jobs()
    job = next((job for job in running if number in (job.number, *job.processes)), None)
    if job is None:
        known = ", ".join(str(job.number) for job in running) or "none"
        raise ArgumentError(f"there is no job {number} of yours on this machine; running: {known}")
    try:
        with _open(job.descriptor) as board:
            return report_on(board, ANSWERS, stacks)
    except (OSError, ValueError):
        raise ArgumentError(f"job {number} has just ended") from None


def _boards_of(process: Path) -> list[tuple[int, Path]]:
    try:
        return [
            (descriptor.stat().st_ino, descriptor)
            for descriptor in (process / "fd").iterdir()
            if str(descriptor.readlink()).startswith(BOARD)
        ]
    except OSError:  # another's, or gone
        return []


def _found(holders: list[tuple[int, Path]]) -> Found | None:
    processes = sorted({process for process, _ in holders})
    try:
        with _open(holders[0][1]) as board:
            pes = board.pes
            number = board["launcher"] or int(pes["pid"].min()) or processes[0]
            running = int(((pes["ended"] == 0) & (pes["pid"] != 0)).sum())
            seconds = time.time() - board["started"] / 1e9
            command = _command(number if number in processes else processes[0])
            return Found(number, board.n_pes, running, seconds, command, processes, holders[0][1])
    except (OSError, ValueError):  # it has just ended, or is of another version
        return None


@contextmanager
def _open(descriptor: Path) -> Iterator[Board]:
    fd = os.open(descriptor, os.O_RDWR)
    try:
        yield Board(fd)
    finally:
        os.close(fd)


def _command(process: int) -> str:
    words = Path(f"/proc/{process}/cmdline").read_bytes().decode(errors="replace").split("\0")
    return " ".join(Path(word).name if k < 2 else word for k, word in enumerate(words)).strip()
