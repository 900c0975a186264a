"""`ps` and `inspect` where what they read is not what a job would write: words, and no waiting."""

import fcntl
import io
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest
from rich.console import Console

from gpushmem.cli.inspect import _table
from gpushmem.cli.time_limit import give_up_after
from gpushmem.diagnosis import job_reader, jobs
from gpushmem.diagnosis.report import report
from gpushmem.errors import ArgumentError
from gpushmem.job.board import FAILED, PES_AT, Board, board_bytes
from gpushmem.job.safe_text import plain
from tests.bootstrap.processes import Process
from tests.launch.test_local import within

MOST_DESCRIPTORS = os.sysconf("SC_OPEN_MAX")
HOSTILE = "\x1b[2J\x1b]0;owned\x07\x9b1m\u202e"


@contextmanager
def holder(prepare, meanwhile=lambda fd: signal.pause()):
    """A process that has a board, as `prepare(fd)` makes it, and does something for ever.

    It has no other: this process may have been the PE of a job of its own.
    """
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.closerange(3, writer)
            os.closerange(writer + 1, MOST_DESCRIPTORS)
            fd = os.memfd_create("gpushmem-board")
            prepare(fd)
            os.write(writer, b"x")
            while True:
                meanwhile(fd)
        finally:
            os._exit(1)
    try:
        os.close(writer)
        assert os.read(reader, 1) == b"x"
        yield pid
    finally:
        os.close(reader)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def a_board(change=lambda board: None):
    """A board of two PEs that have called init, changed."""

    def prepare(fd):
        Board.create(fd, 2)
        board = Board(fd)
        board.pes["initialised"] = 1
        change(board)

    return prepare


def says(*texts):
    """A board whose PEs have answered all that will be asked, with these accounts."""

    def change(board):
        for pe, text in enumerate(texts):
            data = text.encode() if isinstance(text, str) else json.dumps(text).encode()
            board._boxes[pe][: len(data)] = list(data)
            board.pes["account_bytes"][pe] = len(data)
        board.pes["answered"] = 1 << 40

    return a_board(change)


def locked(fd):
    a_board()(fd)
    fcntl.lockf(fd, fcntl.LOCK_EX)


def answers_and_forgets(fd, number=itertools.count()):  # noqa: B008
    """Each look finds another number of PEs that have answered."""
    os.pwrite(fd, (next(number) % 2 << 40).to_bytes(8, "little"), PES_AT + 8 * 8)
    time.sleep(0.001)


def shrinks_and_grows(fd):
    os.ftruncate(fd, 0)
    a_board()(fd)


def in_words(pid):
    """What `inspect` says, if it says no report."""
    try:
        return "report: " + jobs.inspect(pid)
    except ArgumentError as error:
        return str(error)


WAIT = {"kernel": "k", "block": [0, 0, 0], "thread": [0, 0, 0], "more": 0, "site": HOSTILE}
WAIT |= {"seconds": 1.0, "host": None, "what": f"sleep{HOSTILE}"}
ACCOUNT = {"pe": 0, "waits": [WAIT], "more": 0, "busy": [HOSTILE], "unstarted": [], "host": []}
ACCOUNT |= {"journal": {"words": [], "puts": [], "lost": False}, "stacks": [f"a\n{HOSTILE}"]}
MARKED = ACCOUNT | {"busy": [], "waits": [WAIT | {"what": "[link=http://x]y[/link][/red]"}]}
NO_PE = ACCOUNT | {"busy": [], "waits": [WAIT | {"for": "[/red]", "team": None, "seconds": "5"}]}
# What holds a board, and a part of what is said of it.
BOARDS = {
    "locked": (locked, None, "cannot be inspected: its board has been locked for 0.2 s"),
    "restless": (a_board(), answers_and_forgets, "report: "),
    "nested": (says("[" * 500_000, "5"), None, "job "),
    "not json": (says("}", "\xff"), None, "its account cannot be read"),
    "wrong": (says({"waits": 5}, {"waits": [{}]}), None, "cannot be inspected: "),
    "lists": (says([], [[]]), None, "cannot be inspected: "),
    "silent": (a_board(), None, "PEs 0-1: does not answer"),
    "markup": (says(MARKED, MARKED), None, "[link=http://x]y"),
    "no PEs": (says(NO_PE, NO_PE), None, ""),
    "honest": (says(ACCOUNT, ACCOUNT), None, r"kernel \x1b[2J\x1b]0;owned\x07\x9b1m\u202e is run"),
}


@pytest.mark.parametrize("name", BOARDS)
def test_inspect_of_any_board_ends_in_words(name, monkeypatch):
    monkeypatch.setattr(job_reader, "LOCKED", 0.2)
    monkeypatch.setattr(jobs, "ANSWERS", 0.1)
    prepare, meanwhile, said = BOARDS[name]
    with holder(prepare, *filter(None, [meanwhile])) as pid:
        began = time.monotonic()
        text = in_words(pid)
        assert time.monotonic() - began < 10
    assert said.replace("PEs 0-1", "PEs 0, 1") in text
    assert all(plain(line) == line for line in text.split("\n"))


@pytest.mark.parametrize("name", BOARDS)
def test_following_any_board_ends_in_words(name, monkeypatch):
    monkeypatch.setattr(job_reader, "LOCKED", 0.1)
    monkeypatch.setattr(jobs, "ANSWERS", 0.1)
    prepare, meanwhile, said = BOARDS[name]
    terminal = Console(file=io.StringIO(), force_terminal=True, width=200)

    def show(rows):
        terminal.print(_table(1, rows, 20))
        raise KeyboardInterrupt  # no error of the board's

    with holder(prepare, *filter(None, [meanwhile])) as pid:
        try:
            jobs.follow(pid, show)
        except KeyboardInterrupt:
            text = re.sub(r"\x1b\[[0-9;]*m", "", terminal.file.getvalue())  # rich's own colours
        except ArgumentError as error:
            text = str(error)
    assert text
    assert said in text or name != "markup", "it is shown as it is"
    assert all(plain(line) == line for line in text.split("\n"))


def test_a_board_that_shrinks_kills_nobody(monkeypatch):
    monkeypatch.setattr(jobs, "ANSWERS", 0.01)
    with holder(a_board(), shrinks_and_grows) as pid:
        for _ in range(20):
            in_words(pid)


def sized(n_pes, nbytes):
    def prepare(fd):
        a_board()(fd)
        os.pwrite(fd, n_pes.to_bytes(8, "little", signed=True), 8)
        os.ftruncate(fd, nbytes)

    return prepare


@pytest.mark.parametrize("n_pes", [0, -1, 3, 1 << 20, 1 << 62])
def test_boards_of_impossible_sizes_are_none(n_pes):
    with holder(sized(n_pes, board_bytes(2))) as pid:
        assert "you have no job" in in_words(pid)


def test_a_board_cannot_claim_anothers_number():
    def claims(board):
        board["launcher"] = 1

    with holder(a_board(claims)) as pid:
        numbers = [job.number for job in jobs.jobs()]
        assert pid in numbers
        assert 1 not in numbers


def test_what_only_has_a_boards_name_is_not_opened(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "file").touch()
    for name in ("fifo", "file"):
        with (
            pytest.raises(ValueError, match="not the memory of a job"),
            jobs._open(tmp_path / name),
        ):
            pass


def test_commands_are_shown_without_their_control_characters():
    with subprocess.Popen([sys.executable, "-c", "input()", HOSTILE], stdin=subprocess.PIPE) as it:
        shown = within(5, lambda: jobs._command(it.pid))  # it is new, and has none for a moment
        it.communicate(b"\n")
    assert shown.endswith(r"\x1b[2J\x1b]0;owned\x07\x9b1m\u202e")


def test_verdicts_and_reports_are_shown_without_control_characters():
    fd = os.memfd_create("test-board")
    Board.create(fd, 2)
    board = Board(fd)
    board.claim(FAILED, 1, f"ValueError: {HOSTILE}\nsecond line", f"a{HOSTILE}\n\tb")
    os.close(fd)
    assert board.heading().endswith(r"\x1b[2J\x1b]0;owned\x07\x9b1m\u202e\nsecond line")
    assert str(board.error()) == board.heading()
    assert board.text == "a\\x1b[2J\\x1b]0;owned\\x07\\x9b1m\\u202e\n        b"
    assert plain("umlauts: äöü, 数") == "umlauts: äöü, 数"
    assert report({0: None}, {0: "has ended"}) == "PE 0: has ended\n"


def test_a_command_that_is_kept_gives_up():
    def body():
        give_up_after(0.2)
        while True:
            pass

    assert "no answer within 0.2 s" in Process(body).wait()
