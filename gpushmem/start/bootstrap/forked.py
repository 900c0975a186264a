"""PEs started by `gpushmem run`: PE 0's announcement goes through the job's board."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gpushmem import settings
from gpushmem.errors import BootstrapError
from gpushmem.job.job import Job
from gpushmem.job.pe_ranges import compact
from gpushmem.job.ranks import Peers
from gpushmem.start.bootstrap.channel import GRACE, Deadline, missing
from gpushmem.start.bootstrap.polling import poll

__all__ = ["Inherited"]


class Inherited(Peers):
    """The PEs of a job whose memory this process has inherited; all are on this machine."""

    def __init__(self, job: Job) -> None:
        super().__init__(
            job.my_pe, job.n_pes, job.local_pe, job.n_local, job.heap_size, job.bootstrap
        )
        self._board = job.board
        self._board.pes["met"][job.my_pe] = 1

    def broadcast(self, payload: bytes | None) -> bytes:
        """See `Peers`. PE 0 waits until all PEs have arrived; raises if one ends instead."""
        deadline = Deadline(settings.get("GPUSHMEM_BOOTSTRAP_TIMEOUT"))
        if self.my_pe != 0:
            return self._receive(deadline)
        assert payload is not None
        if not poll(deadline, self._unless_over(self._all_met)):
            raise missing(self._absent(), self.n_pes, deadline.seconds, self.bootstrap)
        self._board.announce(payload)
        return payload

    def _receive(self, deadline: Deadline) -> bytes:
        announced = self._unless_over(lambda: self._board["announced"] != 0)
        if not poll(deadline.later(GRACE), announced):
            raise BootstrapError(
                f"PE {self.my_pe} of {self.n_pes} waited {deadline.seconds:g} s for PE 0, which "
                "has not reached this point of init: check whether it runs; for more time set "
                "GPUSHMEM_BOOTSTRAP_TIMEOUT"
            )
        payload = self._board.announcement()
        assert payload is not None
        return payload

    def _absent(self) -> list[int]:
        return [int(pe) for pe in np.flatnonzero(self._board.pes["met"] == 0)]

    def _all_met(self) -> bool:
        gone = [pe for pe in self._absent() if self._board.pes["ended"][pe]]
        if gone:
            raise BootstrapError(f"{compact(gone)} of {self.n_pes} ended without calling init")
        return not self._absent()

    def _unless_over(self, condition: Callable[[], bool]) -> Callable[[], bool]:
        """Wrap a condition: raises if the job is over, or if PE 0 has ended."""

        def check() -> bool:
            error = self._board.error()
            if error is not None:
                raise error
            if not condition() and self._board.pes["ended"][0]:
                raise BootstrapError(f"PE 0 of {self.n_pes} ended before the others had met it")
            return condition()

        return check
