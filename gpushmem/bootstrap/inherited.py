"""PEs that `gpushmem run` has started have the job's board: what PE 0 gives goes through it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gpushmem import settings
from gpushmem.bootstrap.channel import Deadline, missing, name_pes
from gpushmem.bootstrap.polling import poll
from gpushmem.errors import BootstrapError
from gpushmem.job.job import Job
from gpushmem.job.peers import Peers

__all__ = ["Inherited"]

GRACE = 3.0  # seconds that others wait longer than PE 0, to learn from it what is missing


class Inherited(Peers):
    """The PEs of a job whose memory this process has, which are all on this machine."""

    def __init__(self, job: Job) -> None:
        super().__init__(
            job.my_pe, job.n_pes, job.local_pe, job.n_local, job.heap_size, job.bootstrap
        )
        self._board = job.board
        self._board.pes["met"][job.my_pe] = 1

    def broadcast(self, payload: bytes | None) -> bytes:
        """See `Peers`. PE 0 waits until all have come; a PE that ends instead is an error."""
        deadline = Deadline(settings.get("GPUSHMEM_BOOTSTRAP_TIMEOUT"))
        if self.my_pe != 0:
            return self._receive(deadline)
        assert payload is not None
        if not poll(deadline, self._unless_over(self._all_met)):
            raise missing(self._absent(), self.n_pes, deadline.seconds, self.bootstrap)
        self._board.post(payload)
        return payload

    def _receive(self, deadline: Deadline) -> bytes:
        if not poll(deadline.later(GRACE), self._unless_over(lambda: self._board["mail"] != 0)):
            raise BootstrapError(
                f"PE {self.my_pe} of {self.n_pes} waited {deadline.seconds:g} s for PE 0, which "
                "has not got to that point of init: see whether it runs; for more time set "
                "GPUSHMEM_BOOTSTRAP_TIMEOUT"
            )
        mail = self._board.mail()
        assert mail is not None
        return mail

    def _absent(self) -> list[int]:
        return [int(pe) for pe in np.flatnonzero(self._board.pes["met"] == 0)]

    def _all_met(self) -> bool:
        gone = [pe for pe in self._absent() if self._board.pes["ended"][pe]]
        if gone:
            raise BootstrapError(f"{name_pes(gone, self.n_pes)} ended without calling init")
        return not self._absent()

    def _unless_over(self, condition: Callable[[], bool]) -> Callable[[], bool]:
        """The condition; but once the job is over, or PE 0 has ended, an error."""

        def check() -> bool:
            error = self._board.error()
            if error is not None:
                raise error
            if not condition() and self._board.pes["ended"][0]:
                raise BootstrapError(f"PE 0 of {self.n_pes} ended before the others had met it")
            return condition()

        return check
