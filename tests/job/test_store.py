"""What PEs of a job keep for each other: claims, appending, and who dies meanwhile."""

import hashlib
import os
import select
import signal
import threading
import time
from contextlib import contextmanager

import pytest

from gpushmem.job import store as stores
from gpushmem.job.store import RECORD, START, Store

A, B = (hashlib.sha256(text).digest() for text in (b"a", b"b"))


@pytest.fixture
def fd():
    fd = os.memfd_create("store")
    yield fd
    os.close(fd)


KEPT = []


def claims(fd):
    """A function that claims A and keeps it."""

    def claim():
        KEPT.append(Store(fd).claim(A))
        KEPT[-1].__enter__()

    return claim


@contextmanager
def child(function):
    """A process that runs `function`, then says so through a pipe and sleeps until it is killed."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        function()
        os.write(writer, b"1")
        time.sleep(20)
        os._exit(0)
    try:
        os.close(writer)
        yield lambda: os.read(reader, 1), lambda: os.kill(pid, signal.SIGKILL), reader
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(reader)


def test_what_is_kept_is_found_by_others(fd):
    here, there = Store(fd), Store(fd)
    assert here.find(A) is None
    here.add(A, b"one")
    there.add(B, b"two" * 1000)
    there.add(A, b"another")  # what is there stays
    for store in (here, there, Store(fd)):
        assert store.find(A) == b"one"
        assert store.find(B) == b"two" * 1000
        assert store.find(hashlib.sha256(b"c").digest()) is None


def test_data_of_nothing_is_not_nothing(fd):
    Store(fd).add(A, b"")
    assert Store(fd).find(A) == b""


@pytest.mark.parametrize("reached", [1, RECORD.size + 2, None])
def test_a_process_killed_while_it_appends_leaves_nothing(fd, reached):
    store = Store(fd)
    store.add(B, b"before")

    def append():
        victim = Store(fd)
        write = victim._write

        def dies(data, at):
            write(data[:reached], at)
            os.kill(os.getpid(), signal.SIGKILL)  # so it is never counted

        victim._write = dies
        victim.add(A, b"of the dead" * 100)

    with child(append) as (done, *_):
        assert done() == b""  # it has died
    assert store.find(A) is None
    store.add(A, b"mine")
    assert Store(fd).find(A) == store.find(A) == b"mine"
    assert Store(fd).find(B) == b"before"


def test_a_claim_waits_until_another_has_made_it(fd):
    def make():
        store = Store(fd)
        with store.claim(A):
            os.write(started, b"1")
            time.sleep(0.2)
            store.add(A, b"made there")

    begun, started = os.pipe()
    with child(make):
        assert os.read(begun, 1)
        store = Store(fd)
        assert store.find(A) is None
        with store.claim(A):
            assert store.find(A) == b"made there"


def test_another_claim_waits_for_nobody(fd):
    store = Store(fd)
    with child(claims(fd)) as (claimed, *_):
        claimed()
        began = time.monotonic()
        with store.claim(B):
            assert time.monotonic() - began < 5


def test_the_claim_of_the_dead_is_given_to_another(fd):
    store = Store(fd)
    with child(claims(fd)) as (claimed, kill, _):
        claimed()
        threading.Timer(0.2, kill).start()
        began = time.monotonic()
        with store.claim(A):
            assert 0.15 < time.monotonic() - began < 10
            assert store.find(A) is None
            with child(claims(fd)) as (_, _, third):
                assert select.select([third], [], [], 0.2)[0] == []  # it has to wait


def test_ctrl_c_ends_the_waiting_for_a_claim(fd):
    store = Store(fd)
    with child(claims(fd)) as (claimed, *_):
        claimed()
        threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt), store.claim(A):
            pytest.fail("claimed twice")
    with store.claim(A):
        pass


def test_claims_of_threads_exclude_each_other(fd):
    store, inside, most = Store(fd), [], []

    def make():
        with store.claim(A):
            inside.append(1)
            most.append(len(inside))
            time.sleep(0.02)
            inside.pop()

    threads = [threading.Thread(target=make) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 4


def test_two_who_wait_for_each_other_both_go_on(fd):
    def other():
        store = Store(fd)
        with store.claim(B):
            os.write(started, b"1")
            with store.claim(A):
                pass

    begun, started = os.pipe()
    with child(other) as (done, *_):
        store = Store(fd)
        with store.claim(A):
            os.read(begun, 1)
            time.sleep(0.1)
            with store.claim(B):
                pass
        assert done() == b"1"


def test_a_handler_in_the_middle_of_a_call_finds_nothing(fd):
    store = Store(fd)
    store.add(A, b"one")
    with store._locked(stores.fcntl.LOCK_EX):
        assert store.find(A) is None
        store.add(B, b"two")
    assert store.find(A) == b"one"
    assert store.find(B) is None


def test_a_full_store_keeps_what_it_has(fd, monkeypatch):
    monkeypatch.setattr(stores, "MOST_BYTES", 1000)
    store = Store(fd)
    store.add(A, bytes(800))
    store.add(B, bytes(800))
    assert store.find(A) == bytes(800)
    assert store.find(B) == b""
    assert os.fstat(fd).st_size < 1000


@pytest.mark.parametrize(
    ("at", "garbage"),
    [
        (0, b"\xff" * 8),  # the end is below 0
        (0, b"\xff" * 7 + b"\x7f"),  # ... is far behind the file's
        (0, bytes(8)),  # ... is lost
        (START, b"\xff" * RECORD.size),  # a record's size is below 0
        (START + 32, b"\xff" * 7 + b"\x7f"),  # ... is more than there is
        (START + RECORD.size + 1, b"\xff"),  # data that nobody has written
    ],
)
def test_a_broken_store_finds_nothing_wrong_and_fails_nobody(fd, at, garbage):
    Store(fd).add(A, b"one")
    os.pwrite(fd, garbage, at)
    store = Store(fd)
    assert store.find(A) in (None, b"one")
    store.add(B, b"two")
    assert store.find(B) in (None, b"two")


def test_a_store_that_is_gone_fails_nobody():
    fd = os.memfd_create("store")
    store = Store(fd)
    os.close(fd)
    store.add(A, b"one")
    with store.claim(A):
        assert store.find(A) is None
