"""PEs started by other launchers, on one or several machines, learn the node layout from PE 0.

They use the `Channel` of their launcher, with two announcements by PE 0. The second repeats the
first, because in some channels it replaces it:

    PE -> PE 0    the machine it is on
    PE 0 -> all   {"machines": the number of each PE's machine}
    PE 0 -> all   {"machines": ..., "payload": the backend's bytes}
"""

from __future__ import annotations

import base64
import json
import time
from typing import Any

from gpushmem import settings
from gpushmem.errors import BootstrapError, ShmemError
from gpushmem.job.ranks import Peers
from gpushmem.start.bootstrap import machines
from gpushmem.start.bootstrap.channel import GRACE, Channel, Deadline
from gpushmem.start.bootstrap.same_machine import Nearby
from gpushmem.start.bootstrap.shared_directory import Directory
from gpushmem.start.bootstrap.shared_memory import found, raise_refusal, refusal

__all__ = ["exchange"]


def exchange(channel: Channel) -> Peers:
    """Meet the other PEs. Raises `BootstrapError` if they do not arrive in time."""
    if isinstance(channel, Directory):
        channel = Nearby(channel)
    deadline = Deadline(settings.get("GPUSHMEM_BOOTSTRAP_TIMEOUT"))
    try:
        return ConnectedPeers(
            channel, (_lead if channel.my_pe == 0 else _follow)(channel, deadline)
        )
    except BaseException:
        channel.close()
        raise


class ConnectedPeers(Peers):
    """PEs that have told PE 0 their machine; the channel stays open until `close`."""

    def __init__(self, channel: Channel, heard: dict[str, Any]) -> None:
        numbers = heard["machines"]
        mine = [pe for pe, host in enumerate(numbers) if host == numbers[channel.my_pe]]
        super().__init__(
            channel.my_pe, channel.n_pes, mine.index(channel.my_pe), len(mine),
            bootstrap=found(channel),
        )  # fmt: skip
        self._channel, self._heard = channel, heard

    def broadcast(self, payload: bytes | None) -> bytes:
        """See `Peers`."""
        if self.my_pe == 0:
            assert payload is not None
            self._heard["payload"] = base64.b64encode(payload).decode()
            _announce(self._channel, self._heard)
            return payload
        if "payload" not in self._heard:
            deadline = Deadline(settings.get("GPUSHMEM_BOOTSTRAP_TIMEOUT"))
            self._heard = _hear(self._channel, deadline, "payload")
        return base64.b64decode(self._heard["payload"])

    def close(self) -> None:
        """See `Peers`."""
        self._channel.close()


def _lead(channel: Channel, deadline: Deadline) -> dict[str, Any]:
    try:
        said = channel.gather(deadline)
        heard: dict[str, Any] = {"machines": machines.numbers({0: machines.identity(), **said})}
        _announce(channel, heard)
    except ShmemError as error:
        _announce(channel, refusal(error))
        raise
    return heard


def _announce(channel: Channel, what: dict[str, Any]) -> None:
    channel.announce(json.dumps(what, separators=(",", ":")).encode())


def _follow(channel: Channel, deadline: Deadline) -> dict[str, Any]:
    channel.say(machines.identity())
    return _hear(channel, deadline, "machines")


def _hear(channel: Channel, deadline: Deadline, what: str) -> dict[str, Any]:
    """Wait for PE 0 to announce `what`."""
    pause, longer = 0.002, deadline.later(min(GRACE, deadline.seconds))
    while True:
        answer = channel.answer(deadline)
        if answer is not None:
            heard: dict[str, Any] = json.loads(answer)
            raise_refusal(heard)
            if what in heard:
                return heard
            if "name" in heard:
                raise BootstrapError("PE 0 uses the cpu backend: use the same backend on all PEs")
        if not longer.left:
            raise BootstrapError(
                f"PE {channel.my_pe} of {channel.n_pes} waited {deadline.seconds:g} s for PE 0 "
                f"{channel.where}: {channel.trouble}. Check whether PE 0 runs, or has "
                "failed earlier; for more time set GPUSHMEM_BOOTSTRAP_TIMEOUT"
            )
        time.sleep(pause)
        pause = min(2 * pause, 0.1)
