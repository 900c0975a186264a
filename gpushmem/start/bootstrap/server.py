"""The server side of meeting: PE 0's listening socket, to which the other PEs connect.

Any process can connect. A connection that does not authenticate in time, or claims to be a PE that
is already connected, is dropped, and the job continues; it never delays the others.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import time

from gpushmem.start.bootstrap.channel import Deadline, missing, note
from gpushmem.start.bootstrap.handshake import Session, Talk, Unproven, receive_greeting

__all__ = ["Listener"]

PROVE = 5.0  # seconds a new connection has to authenticate
STRANGERS = 128  # limit on connections that have not authenticated yet
REST = 0.05  # seconds without accepting after accept has failed


class _Connection:
    """One connection: the data received so far, and its PE once authenticated."""

    def __init__(self, sock: socket.socket, talk: Talk) -> None:
        self.socket = sock
        self.until = time.monotonic() + PROVE
        self.pe: int | None = None
        self.session: Session | None = None
        self.said = b""
        self._talk = talk
        self._data = b""
        self._wants = 0
        self._resume(None)

    def feed(self) -> bool:
        """Read available data; True at the end of the exchange. Raises `Unproven`, `OSError`."""
        data = self.socket.recv(max(1, self._wants - len(self._data)))
        if not data:
            raise ConnectionError("it was closed")
        self._data += data
        while self._data and len(self._data) >= self._wants:
            whole, self._data = self._data, b""
            if not self._resume(whole):
                return True
        return False

    def _resume(self, data: bytes | None) -> bool:
        try:
            wanted = self._talk.send(data)  # None starts it
            while isinstance(wanted, bytes):
                if self.socket.send(wanted) != len(wanted):
                    raise ConnectionError("it does not read")
                wanted = next(self._talk)
        except StopIteration as end:
            self.pe, self.session, self.said = end.value
            return False
        self._wants = wanted
        return True


def _introduction(key: bytes, purpose: bytes, n_pes: int) -> Talk:
    pe, session = yield from receive_greeting(key, purpose, n_pes)
    return pe, session, (yield from session.receive())


class Listener:
    """A listening socket, closed with this object, and the PEs connected to it."""

    def __init__(self, sock: socket.socket, key: bytes, purpose: bytes, n_pes: int) -> None:
        self._socket, self._key, self._purpose, self._n_pes = sock, key, purpose, n_pes
        self._strangers: list[_Connection] = []
        self.here: dict[int, _Connection] = {}
        self._deaf_until = 0.0
        self._selector = selectors.DefaultSelector()
        sock.setblocking(False)
        self._selector.register(sock, selectors.EVENT_READ)

    def gather(self, deadline: Deadline, where: str) -> dict[int, bytes]:
        """Wait for all other PEs; returns each one's first message. Raises `Missing`."""
        while len(self.here) < self._n_pes - 1:
            if not deadline.left:
                absent = [pe for pe in range(1, self._n_pes) if pe not in self.here]
                raise missing(absent, self._n_pes, deadline.seconds, where)
            self._turn(min(deadline.left, self._patience()))
        return {pe: connection.said for pe, connection in self.here.items()}

    def tell(self, pe: int, payload: bytes, seconds: float = PROVE) -> None:
        """Send a frame to a PE that is connected. Raises `OSError`."""
        connection = self.here[pe]
        assert connection.session is not None
        connection.socket.settimeout(max(0.001, seconds))
        connection.socket.sendall(connection.session.frame(payload))

    def tell_all(self, payload: bytes) -> None:
        """Send a frame to all connected PEs that can still be reached."""
        for pe in self.here:
            with contextlib.suppress(OSError):
                self.tell(pe, payload)

    def close(self) -> None:
        """Close all connections and the socket itself."""
        for connection in (*self._strangers, *self.here.values()):
            connection.socket.close()
        self._selector.close()
        self._socket.close()

    # --- one iteration of the event loop

    def _patience(self) -> float:
        now = time.monotonic()
        times = [c.until for c in self._strangers]
        return max(0.0, min([*times, now + 1, *([self._deaf_until] * self._deaf)]) - now)

    @property
    def _deaf(self) -> bool:
        return self._socket.fileno() not in self._selector.get_map()

    def _turn(self, seconds: float) -> None:
        for key, _ in self._selector.select(seconds):
            if key.fileobj is self._socket:
                self._accept()
            elif key.data in self._strangers or key.data in self.here.values():
                self._hear(key.data)
        now = time.monotonic()
        for connection in [c for c in self._strangers if c.until <= now]:
            self._drop(connection, f"it did not authenticate within {PROVE:g} s")
        if self._deaf and now >= self._deaf_until:
            self._selector.register(self._socket, selectors.EVENT_READ)

    def _accept(self) -> None:
        try:
            sock, _ = self._socket.accept()
        except (BlockingIOError, InterruptedError, ConnectionError):
            return
        except OSError as error:  # out of descriptors: some may be closed soon
            self._selector.unregister(self._socket)
            self._deaf_until = time.monotonic() + REST
            if self._strangers:
                self._drop(self._strangers[0], f"its descriptor is needed: {error.strerror}")
            return
        sock.setblocking(False)
        connection = _Connection(sock, _introduction(self._key, self._purpose, self._n_pes))
        self._strangers.append(connection)
        self._selector.register(sock, selectors.EVENT_READ, connection)
        if len(self._strangers) > STRANGERS:
            self._drop(self._strangers[0], "too many connections have not authenticated")

    def _hear(self, connection: _Connection) -> None:
        try:
            if connection.pe is not None:  # it closed, or is not one of our PEs
                gone = not connection.socket.recv(1)
                raise ConnectionError("it left" if gone else "it spoke out of turn")
            if connection.feed():
                self._welcome(connection)
        except (BlockingIOError, InterruptedError):
            return
        except (Unproven, OSError) as error:
            self._drop(connection, str(error))

    def _welcome(self, connection: _Connection) -> None:
        pe = connection.pe
        assert pe is not None
        if pe in self.here:
            connection.pe = None  # the other one stays
            raise Unproven(f"PE {pe} is already connected")
        self._strangers.remove(connection)
        self.here[pe] = connection

    def _drop(self, connection: _Connection, why: str) -> None:
        self._selector.unregister(connection.socket)
        connection.socket.close()
        if connection in self._strangers:
            self._strangers.remove(connection)
        who = "a connection"
        if connection.pe is not None:
            who = f"PE {connection.pe}'s connection"
            self.here.pop(connection.pe, None)
        note(f"PE 0 dropped {who}: {why}")
