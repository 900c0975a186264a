"""Persistent connections of all PEs to PE 0, which exchange frames."""

from __future__ import annotations

import socket

from gpushmem.start.bootstrap.channel import GRACE, Channel, Deadline
from gpushmem.start.bootstrap.client import Client
from gpushmem.start.bootstrap.handshake import Unproven
from gpushmem.start.bootstrap.server import Listener

__all__ = ["Sockets"]


class Sockets(Channel):
    """PE 0 and its connections, or a PE's connection to it; subclasses open the sockets."""

    key: bytes | None
    purpose: bytes
    _listener: Listener | None = None
    _client: Client | None = None
    _said = b""

    def listening(self) -> socket.socket:
        """PE 0: open the socket the others connect to; sets `key`."""
        raise NotImplementedError

    def connect(self, deadline: Deadline) -> Client | None:
        """PEs other than 0: connect to PE 0; None if its address is not known yet."""
        raise NotImplementedError

    def say(self, identity: bytes) -> None:
        """Keep the message until the connection is made."""
        self._said = identity

    def gather(self, deadline: Deadline) -> dict[int, bytes]:
        """PE 0: listen, and wait for all PEs."""
        sock = self.listening()
        assert self.key is not None
        self._listener = Listener(sock, self.key, self.purpose, self.n_pes)
        return self._listener.gather(deadline, self.where)

    def announce(self, answer: bytes) -> None:
        """PE 0: send a frame to each connected PE."""
        if self._listener is not None:
            self._listener.tell_all(answer)

    def answer(self, deadline: Deadline) -> bytes | None:
        """PEs other than 0: connect if necessary, then wait for the next frame."""
        try:
            if self._client is None:
                self._client = self.connect(deadline)
                if self._client is None:
                    return None
                self._client.say(self._said)
            return self._client.hear(deadline.later(min(GRACE, deadline.seconds)))
        except TimeoutError:
            self.failed(
                "it does not answer"
                if self._client is None
                else "PE 0 is there, waiting for other PEs"
            )
        except (OSError, Unproven) as error:
            self.failed(getattr(error, "strerror", None) or str(error))
        self._hang_up()
        return None

    def close(self) -> None:
        """Close the connections."""
        self._hang_up()
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def _hang_up(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None
