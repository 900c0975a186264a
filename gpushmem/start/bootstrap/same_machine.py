"""PEs on one machine that share only a private directory: it holds the name of PE 0's socket."""

from __future__ import annotations

import json
import os
import secrets
import socket

from gpushmem.start.bootstrap.channel import Deadline
from gpushmem.start.bootstrap.client import Client
from gpushmem.start.bootstrap.shared_directory import Directory
from gpushmem.start.bootstrap.sockets import Sockets

__all__ = ["Nearby"]


class Nearby(Sockets):
    """A `Directory` in which the other PEs can send to PE 0, too."""

    purpose = b"peers"

    def __init__(self, directory: Directory) -> None:
        super().__init__(
            directory.my_pe, directory.n_pes, directory.found, directory.where, directory.idle
        )
        self._directory = directory

    def gather(self, deadline: Deadline) -> dict[int, bytes]:
        """PE 0: wait for all; then remove the file: a later reader belongs to another job."""
        try:
            return super().gather(deadline)
        finally:
            self._directory.close()

    def listening(self) -> socket.socket:
        """PE 0: create a socket without a file, and a fresh key."""
        self.key = secrets.token_bytes(32)
        name = f"gpushmem-{os.getuid()}-{secrets.token_hex(16)}"
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.bind("\0" + name)
        sock.listen(4096)
        self._directory.announce(json.dumps({"name": name, "key": self.key.hex()}).encode())
        return sock

    def connect(self, deadline: Deadline) -> Client | None:
        """PEs other than 0: read the file, and connect."""
        found = self._directory.answer(deadline)
        if found is None:
            return None
        try:
            place = json.loads(found)
            name, key = "\0" + place["name"], bytes.fromhex(place["key"])
        except (ValueError, KeyError, TypeError):
            raise ConnectionError("its content is not valid") from None
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        return Client(sock, name, key, self.purpose, self.my_pe, self.n_pes, deadline)

    def close(self) -> None:
        """Close the connections, and remove the file if it still exists."""
        super().close()
        self._directory.close()

    @property
    def trouble(self) -> str:
        """The outcomes of the attempts, of the connection and of the directory."""
        return super().trouble if self._troubles else self._directory.trouble
