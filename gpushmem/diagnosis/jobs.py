"""Finds this user's jobs on this machine, by their boards.

A board is unnamed memory, but each process of its job has it open, and `/proc` shows that to
processes of the same user. So jobs need not register, and nothing is left behind.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gpushmem.diagnosis.job_reader import Outside, is_memory
from gpushmem.diagnosis.live import Live, Row
from gpushmem.diagnosis.report import gone, report_on
from gpushmem.errors import ArgumentError
from gpushmem.job.safe_text import plain

__all__ = ["Found", "follow", "inspect", "jobs"]

BOARD = "/memfd:gpushmem-board"
ANSWERS = 2.0  # seconds PEs have to send their accounts
PAUSE = 0.5  # seconds between two looks at a job that is followed
PATIENCE = 5  # looks in a row that may fail
COMMAND_BYTES = 4096  # limit on the length of a command shown


@dataclass
class Found:
    """A running job; its number is the pid of its launcher, or of its first process."""

    number: int
    n_pes: int
    n_running: int
    seconds: float  # since it was started
    command: str
    processes: list[int]
    descriptor: Path  # of the board, in one of the processes


def jobs() -> list[Found]:
    """Return the running jobs, the oldest first."""
    boards: dict[int, list[tuple[int, Path]]] = {}
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            for inode, descriptor in _boards_of(process):
                boards.setdefault(inode, []).append((int(process.name), descriptor))
    found = [_found(holders) for holders in boards.values()]
    return sorted((job for job in found if job is not None), key=lambda job: -job.seconds)


def inspect(number: int, stacks: bool = False) -> str:
    """Return the report on the job that process `number` belongs to; the job continues."""
    with _board_of(number) as (_, board):
        return report_on(board, ANSWERS, stacks)


def follow(number: int, show: Callable[[list[Row]], None]) -> None:
    """Call `show` with what each PE of the job does, see `live`, until the job has ended.

    It is the job that the number belongs to now, also when that process ends before the others.
    """
    live, failed = Live(), 0
    with _board_of(number) as (job, board):
        while _runs(job):
            try:
                board.again()
                accounts = board.accounts(board.ask(), ANSWERS)
                failed = 0
            except TimeoutError:  # its lock is taken
                failed += 1
                if failed > PATIENCE:
                    raise
                continue
            show(live.look(accounts, gone(board)))
            time.sleep(PAUSE)


@contextmanager
def _board_of(number: int) -> Iterator[tuple[Found, Outside]]:
    running = jobs()
    job = next((job for job in running if number in (job.number, *job.processes)), None)
    if job is None:
        known = ", ".join(str(job.number) for job in running) or "none"
        raise ArgumentError(f"you have no job {number} on this machine; running: {known}")
    try:
        with _open(job.descriptor) as board:
            yield job, board
    except Exception as error:  # root may inspect any user's job: its memory may hold anything
        if not _runs(job):
            raise ArgumentError(f"job {number} has just ended") from None
        raise ArgumentError(
            f"job {number} cannot be inspected: {plain(str(error) or type(error).__name__)}"
        ) from error


def _runs(job: Found) -> bool:
    """Whether a process of the job is left."""
    return any(Path(f"/proc/{process}").exists() for process in job.processes)


def _boards_of(process: Path) -> list[tuple[int, Path]]:
    try:
        descriptors = list((process / "fd").iterdir())
    except OSError:  # another user's, or it has ended
        return []
    return [(inode, path) for path in descriptors if (inode := _board_in(path)) is not None]


def _board_in(descriptor: Path) -> int | None:
    """Return the inode if the descriptor is a board, else None."""
    try:
        if not str(descriptor.readlink()).startswith(BOARD):
            return None
        with _pinned(descriptor) as fd:
            return os.fstat(fd).st_ino
    except (OSError, ValueError):
        return None


def _found(holders: list[tuple[int, Path]]) -> Found | None:
    processes = sorted({process for process, _ in holders})
    try:
        with _open(holders[0][1]) as board:
            pes = board.pes
            said = board["launcher"] or int(pes["pid"].min())
            number = said if said in processes else processes[0]
            running = int(((pes["ended"] == 0) & (pes["pid"] != 0)).sum())
            seconds = time.time() - board["started"] / 1e9
            command = _command(number)
            return Found(number, board.n_pes, running, seconds, command, processes, holders[0][1])
    except (OSError, ValueError):  # it has just ended, has another version, or is not a board
        return None


@contextmanager
def _open(descriptor: Path) -> Iterator[Outside]:
    with _pinned(descriptor) as pinned:
        fd = os.open(f"/proc/self/fd/{pinned}", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            yield Outside(fd)
        finally:
            os.close(fd)


@contextmanager
def _pinned(descriptor: Path) -> Iterator[int]:
    """Open a process's file with O_PATH, which cannot block; `ValueError` if it is not a memfd.

    The link's name proves nothing: a FIFO, or a file on the user's own file system, may have the
    name of a board.
    """
    fd = os.open(descriptor, os.O_PATH | os.O_CLOEXEC)
    try:
        if not is_memory(fd):
            raise ValueError("not the memory of a job")
        yield fd
    finally:
        os.close(fd)


def _command(process: int) -> str:
    with open(f"/proc/{process}/cmdline", "rb") as file:
        words = file.read(COMMAND_BYTES).decode(errors="replace").split("\0")
    words = [Path(word).name if k < 2 else word for k, word in enumerate(words)]
    return plain(" ".join(words).strip())
