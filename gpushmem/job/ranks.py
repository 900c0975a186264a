"""Ranks, node layout, and one broadcast from PE 0, for backends that do not use shared memory.

NVSHMEM moves the data itself. To start, it needs each PE's number, and a few bytes sent from PE 0
to all PEs. `start.bootstrap.find_peers` returns a `Peers` that provides both for the launcher in
use.
"""

from __future__ import annotations

__all__ = ["Peers", "adopt", "current"]


class Peers:
    """PE `my_pe` of `n_pes`, which is number `local_pe` of the `n_local` PEs on its machine.

    `heap_size` is the heap size in bytes from the launcher's options, or None; `bootstrap`
    describes, for messages, how the PEs found each other. This base class is for a process that is
    the only PE.
    """

    def __init__(
        self, my_pe: int = 0, n_pes: int = 1, local_pe: int = 0, n_local: int = 1,
        heap_size: int | None = None, bootstrap: str = "by itself",
    ) -> None:  # fmt: skip
        self.my_pe, self.n_pes = my_pe, n_pes
        self.local_pe, self.n_local = local_pe, n_local
        self.heap_size, self.bootstrap = heap_size, bootstrap

    def broadcast(self, payload: bytes | None) -> bytes:
        """Send at most 512 bytes from PE 0 to all PEs (others pass None). Once per process.

        Returns on PE 0 when the bytes are sent, elsewhere when they have arrived. Raises
        `BootstrapError` naming the PEs that do not arrive within GPUSHMEM_BOOTSTRAP_TIMEOUT
        seconds, or the job's error if the job ends first.
        """
        assert payload is not None
        return payload

    def close(self) -> None:
        """Declare that all PEs have received the broadcast, so that nothing needs to be kept."""


_current: Peers | None = None


def adopt(peers: Peers | None) -> None:
    """Make `peers` the current peers of this process."""
    global _current  # noqa: PLW0603
    _current = peers


def current() -> Peers | None:
    """Return the peers of this process; None if it has not met any yet."""
    return _current
