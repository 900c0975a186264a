"""The other PEs, for a backend that needs none of our memory: who is where, and a word from PE 0.

NVSHMEM moves the data itself. To start, it needs each PE's number, and that some bytes of PE 0's
reach all. `bootstrap.meet` makes a `Peers` that does it in the way the PEs have.
"""

from __future__ import annotations

__all__ = ["Peers", "adopt", "current"]


class Peers:
    """PE `my_pe` of `n_pes`, which is the `local_pe`-th of the `n_local` PEs on its machine.

    `heap_size` is in bytes what the launcher was asked for, or None; `bootstrap` says for people
    how the PEs found each other. This class itself is for a process that is the only PE.
    """

    def __init__(
        self, my_pe: int = 0, n_pes: int = 1, local_pe: int = 0, n_local: int = 1,
        heap_size: int | None = None, bootstrap: str = "by itself",
    ) -> None:  # fmt: skip
        self.my_pe, self.n_pes = my_pe, n_pes
        self.local_pe, self.n_local = local_pe, n_local
        self.heap_size, self.bootstrap = heap_size, bootstrap

    def broadcast(self, payload: bytes | None) -> bytes:
        """PE 0 gives at most 512 bytes, the others None; every PE gets them. Once in a process.

        Returns on PE 0 when it has given them, elsewhere when they are here. Raises
        `BootstrapError` when PEs have not come within GPUSHMEM_BOOTSTRAP_TIMEOUT seconds, naming
        them, and what ends the job if that comes first.
        """
        assert payload is not None
        return payload

    def close(self) -> None:
        """Say that all PEs have what PE 0 gave, so that nothing has to be kept for them."""


_current: Peers | None = None


def adopt(peers: Peers | None) -> None:
    """Make `peers` those of this process."""
    global _current  # noqa: PLW0603
    _current = peers


def current() -> Peers | None:
    """The peers of this process, None if it has not met any yet."""
    return _current
