"""The client side of a connection to PE 0, used by the other PEs."""

from __future__ import annotations

import array
import os
import socket
from typing import Any

from gpushmem.start.bootstrap.channel import Deadline
from gpushmem.start.bootstrap.handshake import Session, Talk, greet

__all__ = ["ATTEMPT", "Client"]

ATTEMPT = 10.0  # seconds to connect and do the handshake: more than PE 0's own limit
SIZE = array.array("i").itemsize  # of a descriptor


class Client:
    """An authenticated connection to PE 0. Raises `OSError`, `Unproven`.

    Every exchange has a deadline for the whole of it: a server that answers one byte at a time
    cannot extend it.
    """

    def __init__(
        self, sock: socket.socket, address: str | tuple[str, int], key: bytes, purpose: bytes,
        pe: int, n_pes: int, deadline: Deadline,
    ) -> None:  # fmt: skip
        self._socket = sock
        self._deadline = Deadline(min(ATTEMPT, deadline.left))
        try:
            self._in_time().connect(address)
            self._session: Session = self._run(greet(key, purpose, pe, n_pes))
        except BaseException:
            sock.close()
            raise

    def say(self, payload: bytes) -> None:
        """Send a frame."""
        self._in_time().sendall(self._session.frame(payload))

    def hear(self, deadline: Deadline) -> bytes:
        """Receive a frame; the deadline also applies to what follows."""
        self._deadline = deadline
        payload: bytes = self._run(self._session.receive())
        return payload

    def receive_fds(self, n: int) -> list[int]:
        """Receive one message of `n` descriptors, marked close-on-exec."""
        room = socket.CMSG_LEN(n * SIZE)  # socket.recv_fds ignores its flags
        data, extra, flags, _ = self._in_time().recvmsg(1, room, socket.MSG_CMSG_CLOEXEC)
        fds = array.array("i")
        for level, kind, content in extra:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                fds.frombytes(content[: len(content) - len(content) % SIZE])
        if data and len(fds) == n and not flags & socket.MSG_CTRUNC:
            return list(fds)
        for fd in fds:
            os.close(fd)
        raise ConnectionError(
            f"{len(fds)} of {n} descriptors arrived: the limit on open files may be too low "
            "(ulimit -n)"
            if data
            else "PE 0 closed the connection"
        )

    def confirm(self) -> None:
        """Confirm that these descriptors have arrived."""
        self._in_time().sendall(b"k")

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def _in_time(self) -> socket.socket:
        """Return the socket with its timeout set to the time that is left."""
        if not self._deadline.left:
            raise TimeoutError("it does not answer in time")
        self._socket.settimeout(max(0.001, self._deadline.left))
        return self._socket

    def _run(self, talk: Talk) -> Any:
        wanted = next(talk)
        try:
            while True:
                if isinstance(wanted, bytes):
                    self._in_time().sendall(wanted)
                    wanted = next(talk)
                else:
                    wanted = talk.send(self._exactly(wanted))
        except StopIteration as end:
            return end.value

    def _exactly(self, n: int) -> bytes:
        data = b""
        while len(data) < n:
            more = self._in_time().recv(n - len(data))
            if not more:
                raise ConnectionError("PE 0 closed the connection")
            data += more
        return data
