"""PEs started by any means: PE 0 listens at an address that the user gives, the others connect.

Descriptors cannot be sent over TCP. The connection tells the PEs whether they are on one machine,
and where to fetch the descriptors.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket

from gpushmem import settings
from gpushmem.errors import ArgumentError, BootstrapError
from gpushmem.start.bootstrap.channel import Channel, Deadline, place
from gpushmem.start.bootstrap.client import Client
from gpushmem.start.bootstrap.sockets import Sockets

__all__ = ["PREFIX", "address", "channel"]

PREFIX = "tcp://"
PURPOSE = b"place"
KEY = "GPUSHMEM_JOB_KEY"
# Variables with the PE's number and the number of PEs: the user's, else the launcher's.
PLACES = (
    ("GPUSHMEM_PE", "GPUSHMEM_N_PES"),
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
)


def address(name: str) -> tuple[str, int]:
    """Parse host and port of "tcp://host:port"; raises `ArgumentError`."""
    found = re.fullmatch(r"tcp://(?:\[([^\[\]]+)\]|([^:\[\]/\s]+)):([0-9]{1,5})", name)
    if found is None or not 0 < int(found[3]) < 65536:
        raise ArgumentError(
            f"bootstrap {name!r} is not of the form tcp://host:port, with a port from 1 to 65535 "
            "(tcp://[::1]:port for an IPv6 address)"
        )
    return found[1] or found[2], int(found[3])


def channel(name: str, several: bool = False) -> Channel | None:
    """Return the channel between this job's PEs; None for one PE."""
    host, port = address(name)
    names = _place()
    absent = [variable for variable in (*names, KEY) if not os.environ.get(variable)]
    if absent:
        raise BootstrapError(
            f"bootstrap {name}: {', '.join(absent)} not set; each PE needs its number (from 0), "
            "the number of PEs, and a secret shared by all, for example from "
            "`openssl rand -hex 32`"
        )
    for variable in PLACES[0]:
        settings.get(variable)  # raises the more specific error
    my_pe, n_pes = place(*names)
    return None if n_pes == 1 else Tcp(my_pe, n_pes, host, port)


def _place() -> tuple[str, str]:
    """Return the names of the variables with this PE's number; by default the user's own."""
    if any(settings.is_set(name) for name in PLACES[0]):
        return PLACES[0]
    return next((pair for pair in PLACES if all(map(os.environ.get, pair))), PLACES[0])


class Tcp(Sockets):
    """PE 0 listens at the address."""

    purpose = PURPOSE

    def __init__(self, my_pe: int, n_pes: int, host: str, port: int) -> None:
        shown = f"{PREFIX}[{host}]:{port}" if ":" in host else f"{PREFIX}{host}:{port}"
        super().__init__(my_pe, n_pes, shown, f"at {shown}", "nothing was tried")
        self.key = os.fsencode(settings.get(KEY))
        self._host, self._port = host, port

    def connect(self, deadline: Deadline) -> Client:
        """PEs other than 0: connect to the address."""
        family, kind, proto, _, where = self._resolve(0)
        key = self.key
        assert key is not None
        with contextlib.ExitStack() as stack:
            sock = stack.enter_context(socket.socket(family, kind, proto))
            made = Client(sock, where, key, self.purpose, self.my_pe, self.n_pes, deadline)
            stack.pop_all()
        return made

    def listening(self) -> socket.socket:
        """PE 0: listen at the address. Raises `BootstrapError`."""
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
                "be a name or address of this machine, and the port must be free"
            ) from None
        return sock

    def _resolve(self, flags: int) -> tuple[int, int, int, str, tuple[str, int]]:
        found = socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM, flags=flags)
        # localhost may resolve to two addresses: PE 0 and the others must use the same one.
        return min(found)  # type: ignore[return-value]
