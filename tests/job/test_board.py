"""The board: what does not fit, who is first, who does not answer."""

import os
import threading
import time

import pytest

from gpushmem.errors import PeerFailed
from gpushmem.job.board import ACCOUNT_BYTES, DEADLOCK, FAILED, Board


@pytest.fixture
def board():
    fd = os.memfd_create("test-board")
    Board.create(fd, 3)
    yield Board(fd)
    os.close(fd)


@pytest.mark.quiet
def test_an_account_that_is_too_long_goes_without_its_journal(board):
    words = [[k, 1, "a line of some length.py:100"] for k in range(ACCOUNT_BYTES // 20)]
    board.pes["initialised"] = 1
    number = board.ask()
    board.answer(1, number, {"pe": 1, "journal": {"words": words, "puts": [], "lost": False}})
    began = time.monotonic()
    accounts = board.accounts(number, 0.1)
    assert time.monotonic() - began < 1
    assert accounts[1]["journal"] == {"words": [], "puts": [], "lost": True}
    assert accounts[0] is accounts[2] is None


def test_what_cannot_be_read_is_told(board):
    number = board.ask()
    board.answer(0, number, {"pe": 0})
    board.pes["account_bytes"][0] -= 1
    assert "error" in board.accounts(number, 0.1)[0]


def test_the_first_verdict_wins(board):
    won = []

    def claim(k):
        if board.claim(FAILED, k, f"reason {k}"):
            won.append(k)

    threads = [threading.Thread(target=claim, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (k,) = won
    error = board.error()
    assert isinstance(error, PeerFailed)
    assert (error.pe, error.reason) == (k, f"reason {k}")
    assert not board.claim(DEADLOCK, 0, "later")
    assert board.heading() == f"PE {k} failed: reason {k}"


def test_no_board():
    fd = os.memfd_create("no-board")
    os.ftruncate(fd, 1 << 20)
    with pytest.raises(ValueError, match="not the board of a gpushmem job"):
        Board(fd)
    os.close(fd)


@pytest.mark.parametrize("launcher", [0, 1])
def test_a_deadlock_is_over_when_all_pes_have_handled_it(board, launcher):
    board["launcher"] = launcher
    board.handle(0)  # of none
    assert board.claim(DEADLOCK, -1, "no PE can go on")
    for pe in range(3):
        assert not board.renew()
        board.handle(pe)
    assert board.renew() == bool(launcher)  # which has to hear of it first
    assert board.error() is None
    assert not board.pes["handled"].any()


def test_a_deadlock_stays_if_a_pe_has_ended(board):
    assert board.claim(DEADLOCK, -1, "no PE can go on")
    board.mark_ended(1, 0)
    for pe in range(3):
        board.handle(pe)
    assert not board.renew()
    assert board["verdict"] == DEADLOCK
    board.claim(FAILED, 0, "too late")
    assert board["verdict"] == DEADLOCK
