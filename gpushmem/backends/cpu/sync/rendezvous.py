"""Where PEs meet that are in no team together yet: they agree on the row of a new one.

Its lines, one for each PE of the job, are those of the table's last row, which is no team. Each
pair of PEs counts its own rounds (`rounds`): both have been in the same calls, so both count alike,
whatever calls they make with others.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from gpushmem.artifacts.argument_packing import address_of
from gpushmem.backends.cpu.sync.host_barrier import HostBarrier, native
from gpushmem.backends.cpu.sync.world import World
from gpushmem.backends.operation_errors import different_calls

__all__ = ["Rendezvous"]


class Rendezvous:
    """The calling PE's side of it."""

    def __init__(self, world: World, barrier: HostBarrier) -> None:
        self._me, self._barrier = world.job.my_pe, barrier
        self._team = world.job.max_teams
        self._record = address_of(world.teams[self._team :])
        self._numbers = np.zeros(world.job.n_pes, np.int64)  # of the last round with each PE
        self._tell, self._came = native()["tell"], native()["came"]

    def largest(self, pes: list[int], what: str, number: int) -> int:
        """The largest of the numbers that `pes` give; they must be in the same call."""
        others = [pe for pe in pes if pe != self._me]
        calls = self._round(what, others, what)
        if any(call != what for call in calls.values()):
            raise different_calls({pe: calls.get(pe, what) for pe in sorted(pes)})
        return max(number, *map(int, self._round(what, others, str(number)).values()), -1)

    def _round(self, what: str, others: list[int], text: str) -> dict[int, str]:
        """Tell others a text; returns what each of them tells."""
        awaited = np.zeros_like(self._numbers)  # the round of each PE, 0 for who is not in the call
        for pe in others:
            awaited[pe] = number = int(self._numbers[pe]) + 1
            self._barrier.write(self._team, number, pe, text.encode())
            self._tell(self._record, number, pe)
        self._numbers[others] = awaited[others]
        passed = partial(self._came, self._record, address_of(awaited))
        self._barrier.wait(what, passed, partial(self._missing, awaited))
        return {pe: self._said(pe, int(awaited[pe])) for pe in others}

    def _missing(self, awaited: np.ndarray[Any, Any]) -> list[int]:
        rounds = (self._barrier.lines(self._team, number)["round"] for number in awaited.tolist())
        return [pe for pe, of_all in enumerate(rounds) if of_all[pe] < awaited[pe]]

    def _said(self, pe: int, number: int) -> str:
        boxes = self._barrier.boxes(self._team, number, self._me)
        return str(boxes[pe].decode(errors="replace"))
