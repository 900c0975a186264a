"""Others connect to PE 0, too: it lets in who has the key, once each, and waits for nobody else."""

import contextlib
import secrets
import socket
import struct
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushmem.job.pe_ranges import compact
from gpushmem.start import bootstrap
from gpushmem.start.bootstrap import handshake, server, shared_memory, tcp
from gpushmem.start.bootstrap.channel import Deadline
from gpushmem.start.bootstrap.client import Client
from gpushmem.start.bootstrap.handshake import Unproven
from tests.bootstrap.processes import Process, free_port, joined, step
from tests.bootstrap.processes import tcp as tcp_env
from tests.files import open_files

KEY = "a secret"


def hello(pe, n):
    return handshake.HELLO.pack(handshake.MAGIC, pe, n, secrets.token_bytes(32))


def garbage(sock):
    """What is no greeting, as long as one and longer."""
    sock.sendall(secrets.token_bytes(4096))


def short_garbage(sock):
    sock.sendall(b"GET / HTTP/1.1\r\n\r\n")


def silence(sock):
    """Connect, and say nothing."""


def half(sock):
    sock.sendall(hello(1, 3)[:20])


def wrong_proof(sock):
    sock.sendall(hello(1, 3))
    assert len(sock.recv(64)) == 64
    sock.sendall(secrets.token_bytes(32))


def reflection(sock):
    """Send PE 0's own proof back to it."""
    sock.sendall(hello(1, 3))
    sock.sendall(sock.recv(64)[32:])


def hang_up(sock):
    sock.sendall(hello(1, 3))
    sock.close()


ATTACKS = [garbage, short_garbage, silence, half, wrong_proof, reflection, hang_up]


def as_pe(address, pe, n, key=KEY, purpose=tcp.PURPOSE):
    """Come as a PE, with a key."""
    family = socket.AF_INET if isinstance(address, tuple) else socket.AF_UNIX
    if family == socket.AF_INET:
        family, _, _, _, address = min(socket.getaddrinfo(*address, type=socket.SOCK_STREAM))
    sock = socket.socket(family)
    return Client(sock, address, key.encode(), purpose, pe, n, Deadline(5))


def connected(address):
    """A connection, as soon as PE 0 listens."""
    until = time.monotonic() + 20
    while True:
        family = socket.AF_UNIX
        where = address
        if isinstance(address, tuple):
            family, _, _, _, where = min(socket.getaddrinfo(*address, type=socket.SOCK_STREAM))
        sock = socket.socket(family)
        try:
            sock.connect(where)
        except ConnectionError:
            sock.close()
            assert time.monotonic() < until
            time.sleep(0.01)
        else:
            return sock


def abstract_names(pid):
    """Names of the abstract sockets at which a process listens."""
    links = []
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            links.append(str(fd.readlink()))
    rows = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    return {row[7] for row in rows if len(row) > 7 and f"socket:[{row[6]}]" in links}


def attacked(env, address_of, purpose):
    """PEs 0 and 1 of 3 run; do all we can; PE 2 comes: all join. Returns what PE 0 said."""
    first = [Process(joined(), **env(pe) | {"GPUSHMEM_VERBOSE": "1"}) for pe in (0, 1)]
    address = address_of(first[0].pid)
    with contextlib.ExitStack() as stack:
        for attack in ATTACKS:
            attack(stack.enter_context(connected(address)))
        with pytest.raises((Unproven, OSError)):
            as_pe(address, 2, 3, "another secret", purpose)
        if purpose == tcp.PURPOSE:  # whose key is known
            until = time.monotonic() + 10
            while "PE 1 is already connected" not in first[0].output:
                assert time.monotonic() < until
                with contextlib.closing(as_pe(address, 1, 3)) as twice:
                    twice.say(b"me, too")
                    time.sleep(0.02)
            for pe, n in ((0, 3), (3, 3), (2**32 - 1, 3), (2, 4)):
                wrong = stack.enter_context(contextlib.closing(as_pe(address, pe, n)))
                with contextlib.suppress(OSError):
                    wrong.say(b"let me in")
        processes = [*first, Process(joined(), **env(2))]
        began = time.monotonic()
        texts = [process.wait() for process in processes]
        assert time.monotonic() - began < 5, "silent connections keep nobody waiting"
    assert [process.value[0] for process in processes if process.value] == [0, 1, 2], texts
    return texts[0]


def test_strangers_at_the_port():
    port = free_port()
    said = attacked(tcp_env(3, port), lambda _: ("localhost", port), tcp.PURPOSE)
    assert "PE 0 dropped a connection: it does not speak this protocol" in said
    assert "it does not have this job's key" in said
    assert "PE 1 is already connected" in said
    assert "it says it is PE 3 of 3; this job has PEs 0 to 2" in said
    assert "Traceback" not in said


def test_strangers_at_the_socket():
    def address(pid):
        until = time.monotonic() + 10
        while not (names := abstract_names(pid)):
            assert time.monotonic() < until
            time.sleep(0.01)
        return "\0" + names.pop().removeprefix("@")

    said = attacked(step(3), address, shared_memory.PURPOSE)
    assert "it does not have this job's key" in said
    assert "Traceback" not in said


def test_nothing_is_said_of_strangers_unasked():
    port = free_port()
    env = tcp_env(2, port)
    first = Process(joined(), **env(0))
    with connected(("localhost", port)) as sock:
        garbage(sock)
        second = Process(joined(), **env(1))
        assert (first.wait(), second.wait()) == ("", "")


def test_more_strangers_than_pe_0_keeps(monkeypatch):
    monkeypatch.setattr(server, "STRANGERS", 5)
    port = free_port()
    env = tcp_env(3, port)
    first = [Process(joined(), **env(pe)) for pe in (0, 1)]
    with contextlib.ExitStack() as stack:
        for _ in range(40):
            stack.enter_context(connected(("localhost", port)))
        for process in (*first, Process(joined(), **env(2))):
            assert process.wait() == ""
            assert process.value is not None


def test_a_silent_connection_is_dropped_in_time(monkeypatch):
    monkeypatch.setattr(server, "PROVE", 0.2)
    port = free_port()
    first = Process(joined(), **tcp_env(2, port)(0) | {"GPUSHMEM_VERBOSE": "1"})
    with connected(("localhost", port)) as sock:
        sock.settimeout(3)
        assert sock.recv(1) == b""
        dribble = connected(("localhost", port))
        with pytest.raises(OSError), dribble:  # a byte now and then does not help
            for byte in hello(1, 2) * 100:
                dribble.sendall(bytes([byte]))
                time.sleep(0.02)
    assert "it did not authenticate within 0.2 s" in first.output
    Process(joined(), **tcp_env(2, port)(1)).wait()
    first.wait()
    assert first.value is not None


@pytest.mark.parametrize("answer", [b"", b"x" * 64, b"x" * 10, b"\0" * 4096])
def test_who_pretends_to_be_pe_0_is_not_believed(answer):
    with socket.create_server(("localhost", 0), backlog=50) as listener:
        port = listener.getsockname()[1]

        def pretend():
            with contextlib.suppress(OSError):
                while True:
                    sock, _ = listener.accept()
                    with sock:
                        sock.recv(48)
                        sock.sendall(answer)

        thread = threading.Thread(target=pretend)
        thread.start()
        env = tcp_env(2, port)(1) | {"GPUSHMEM_BOOTSTRAP_TIMEOUT": "0.5"}
        text = Process(joined(), **env).wait()
        listener.shutdown(socket.SHUT_RDWR)
    thread.join()
    assert "BootstrapError: PE 1 of 2 waited 0.5 s for PE 0 at tcp://localhost" in text
    told = ("does not have this job's key", "closed the connection", "reset by peer", "refused")
    assert any(word in text for word in told)


@pytest.mark.parametrize("how", [bootstrap.join, bootstrap.find_peers])
def test_a_false_pe_0_that_answers_a_byte_at_a_time_keeps_nobody_longer(how):
    with socket.create_server(("localhost", 0), backlog=50) as listener:
        port = listener.getsockname()[1]

        def dribble():
            with contextlib.suppress(OSError):
                while True:
                    sock, _ = listener.accept()
                    with sock, contextlib.suppress(OSError):
                        while True:
                            sock.sendall(b"x")
                            time.sleep(0.1)

        thread = threading.Thread(target=dribble, daemon=True)
        thread.start()
        env = tcp_env(2, port)(1) | {"GPUSHMEM_BOOTSTRAP_TIMEOUT": "0.5"}
        began = time.monotonic()
        text = Process(how, **env).wait()
        took = time.monotonic() - began
        listener.shutdown(socket.SHUT_RDWR)
    assert "BootstrapError: PE 1 of 2 waited 0.5 s for PE 0 at tcp://localhost" in text
    assert "it does not answer" in text
    assert took < 4, "64 bytes would take 6.4 s"


def test_a_pe_with_another_key_does_not_come_in():
    port = free_port()
    env = {"GPUSHMEM_BOOTSTRAP_TIMEOUT": "0.6"}
    first = Process(joined(), **tcp_env(2, port)(0) | env)
    second = Process(joined(), **tcp_env(2, port, "mine")(1) | env)
    assert "the process that answers there does not have this job's key" in second.wait()
    assert "PE 1 of 2 has not arrived" in first.wait()


# --- the conversation itself


def talk(client, server_side):
    """Let two generators talk; returns what they return."""
    sides = [client, server_side]
    inbox, wants, results = [b"", b""], [None, None], [None, None]
    running = {0, 1}
    for side in (0, 1):
        _advance(sides, side, None, inbox, wants, results, running)
    while running:
        ready = [s for s in running if len(inbox[s]) >= wants[s]]
        assert ready, "they wait for each other"
        side = ready[0]
        data, inbox[side] = inbox[side][: wants[side]], inbox[side][wants[side] :]
        _advance(sides, side, data, inbox, wants, results, running)
    return results


def _advance(sides, side, data, inbox, wants, results, running):
    try:
        wanted = sides[side].send(data)
        while isinstance(wanted, bytes):
            inbox[1 - side] += wanted
            wanted = next(sides[side])
        wants[side] = wanted
    except StopIteration as end:
        results[side] = end.value
        running.discard(side)


def sessions(purpose=b"p"):
    mine, (_, theirs) = talk(
        handshake.greet(b"k", b"p", 1, 2), handshake.receive_greeting(b"k", purpose, 2)
    )
    return mine, theirs


def received(session, data):
    """What a session makes of these bytes."""
    conversation = session.receive()
    wanted = next(conversation)
    with pytest.raises(StopIteration) as end:
        while True:
            assert len(data) >= wanted, "more is wanted than there is"
            piece, data = data[:wanted], data[wanted:]
            wanted = conversation.send(piece)
    return end.value.value


@given(st.lists(st.binary(max_size=100), max_size=5))
def test_frames_arrive_as_they_were(payloads):
    mine, theirs = sessions()
    for payload in payloads:
        assert received(theirs, mine.frame(payload)) == payload
        assert received(mine, theirs.frame(payload)) == payload


@given(st.binary(min_size=1, max_size=20), st.data())
@settings(max_examples=50)
def test_frames_that_were_changed_are_refused(payload, data):
    mine, theirs = sessions()
    frame = bytearray(mine.frame(payload))
    at = data.draw(st.integers(4, len(frame) - 1))
    frame[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(Unproven, match="modified in transit"):
        received(theirs, bytes(frame))


def test_frames_cannot_be_repeated_swapped_or_sent_back():
    mine, theirs = sessions()
    one, two = mine.frame(b"one"), mine.frame(b"two")
    with pytest.raises(Unproven):
        received(theirs, two)
    assert received(theirs, one) == b"one"
    with pytest.raises(Unproven):
        received(theirs, one)
    with pytest.raises(Unproven):
        received(mine, one)


def test_a_frame_that_claims_to_be_huge_is_refused():
    with pytest.raises(Unproven, match="4294967295 bytes"):
        received(sessions()[0], struct.pack("!I", 2**32 - 1))


def test_a_proof_for_one_purpose_is_none_for_another():
    with pytest.raises(Unproven):
        sessions(b"q")


@given(st.binary(min_size=48, max_size=48), st.binary(min_size=32, max_size=32))
@settings(max_examples=50)
def test_no_greeting_without_the_key_is_accepted(greeting, proof):
    conversation = handshake.receive_greeting(b"k", b"p", 2)
    assert next(conversation) == 48
    with pytest.raises(Unproven):
        conversation.send(greeting)
        next(conversation)
        conversation.send(proof)


@pytest.mark.parametrize(
    ("pes", "text"),
    [([3], "PE 3"), ([7, 3, 5, 6], "PEs 3, 5-7"), ([1, 2], "PEs 1, 2")],
)
def test_pes_are_named_compactly(pes, text):
    assert compact(pes) == text


def test_descriptors_of_a_process_that_has_too_few(tmp_path):
    """What came of a message that did not come whole is closed again."""
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with left, right:
        client = Client.__new__(Client)
        client._socket, client._deadline = right, Deadline(5)
        socket.send_fds(left, [b"f"], [0, 1])
        before = open_files()
        with pytest.raises(ConnectionError, match=r"2 of 3 descriptors arrived.*ulimit -n"):
            client.receive_fds(3)
        assert not open_files() - before
