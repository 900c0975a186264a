"""Started by anything: PE 0 listens at an address that the user gives, the others connect to it.

Descriptors cannot be sent that way. It tells the PEs whether they are on one machine, and where to
get the descriptors.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket

from gpushmem import settings
from gpushmem.bootstrap.channel import Channel, Deadline, place
from gpushmem.bootstrap.client import Client
from gpushmem.bootstrap.handshake import Unproven
from gpushmem.bootstrap.server import Listener
from gpushmem.errors import ArgumentError, BootstrapError

__all__ = ["PREFIX", "address", "channel"]

PREFIX = "tcp://"
PURPOSE = b"place"
NEEDED = ("GPUSHMEM_PE", "GPUSHMEM_N_PES", "GPUSHMEM_JOB_KEY")


def address(name: str) -> tuple[str, int]:
    """Host and port of "tcp://host:port"; raises `ArgumentError`."""
    found = re.fullmatch(r"tcp://(?:\[([^\[\]]+)\]|([^:\[\]/\s]+)):([0-9]{1,5})", name)
    if found is None or not 0 < int(found[3]) < 65536:
        raise ArgumentError(
            f"bootstrap {name!r} is not of the form tcp://host:port, with a port from 1 to 65535 "
            "(tcp://[::1]:port for an IPv6 address)"
        )
    return found[1] or found[2], int(found[3])


def channel(name: str) -> Channel | None:
    """How this job's PEs reach each other; None if there is one."""
    host, port = address(name)
    absent = [variable for variable in NEEDED if not settings.is_set(variable)]
    if absent:
        raise BootstrapError(
            f"bootstrap {name}: {', '.join(absent)} not set; each PE needs its number (from 0), "
            "how many there are, and a secret that all share, such as one from "
            "`openssl rand -hex 32`"
        )
    for variable in NEEDED[:2]:
        settings.get(variable)  # its own error is the better one
    my_pe, n_pes = place("GPUSHMEM_PE", "GPUSHMEM_N_PES")
    return None if n_pes == 1 else Tcp(my_pe, n_pes, host, port)


class Tcp(Channel):
    """PE 0 and its connections, or a PE's connection to it."""

    def __init__(self, my_pe: int, n_pes: int, host: str, port: int) -> None:
        shown = f"{PREFIX}[{host}]:{port}" if ":" in host else f"{PREFIX}{host}:{port}"
        super().__init__(my_pe, n_pes, shown, f"at {shown}", "nothing was tried")
        self.key: bytes = os.fsencode(settings.get("GPUSHMEM_JOB_KEY"))
        self._host, self._port = host, port
        self._listener: Listener | None = None
        self._client: Client | None = None
        self._said = b""

    def say(self, identity: bytes) -> None:
        self._said = identity

    def gather(self, deadline: Deadline) -> dict[int, bytes]:
        self._listener = Listener(self._listening(), self.key, PURPOSE, self.n_pes)
        return self._listener.gather(deadline, self.where)

    def announce(self, answer: bytes) -> None:
        if self._listener is not None:
            self._listener.tell_all(answer)

    def answer(self, deadline: Deadline) -> bytes | None:
        try:
            if self._client is None:
                self._client = self._connect(deadline)
                self._client.say(self._said)
            return self._client.hear(deadline.later(min(3.0, deadline.seconds)))
        except TimeoutError:
            self.failed(
                "it does not answer"
                if self._client is None
                else "PE 0 is there, and waits for other PEs"
            )
        except (OSError, Unproven) as error:
            self.failed(getattr(error, "strerror", None) or str(error))
        self._hang_up()
        return None

    def close(self) -> None:
        self._hang_up()
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def _hang_up(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _connect(self, deadline: Deadline) -> Client:
        family, kind, proto, _, where = self._resolve(0)
        with contextlib.ExitStack() as stack:
            sock = stack.enter_context(socket.socket(family, kind, proto))
            made = Client(sock, where, self.key, PURPOSE, self.my_pe, self.n_pes, deadline)
            stack.pop_all()
        return made

    def _listening(self) -> socket.socket:
        sock = None
        try:
            family, kind, proto, _, where = self._resolve(socket.AI_PASSIVE)
            sock = socket.socket(family, kind, proto)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(where)
            sock.listen(4096)
        except OSError as error:
            if sock is not None:
                sock.close()
            raise BootstrapError(
                f"PE 0 cannot listen at {self.found}: {error.strerror or error}. The host must "
                "be one of this machine's names or addresses, the port free"
            ) from None
        return sock

    def _resolve(self, flags: int) -> tuple[int, int, int, str, tuple[str, int]]:
        found = socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM, flags=flags)
        # localhost may mean two addresses: PE 0 and the others must take the same.
        return min(found)  # type: ignore[return-value]
