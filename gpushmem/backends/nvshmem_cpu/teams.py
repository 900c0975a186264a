"""NVSHMEM's records of teams, as its device code reads them.

Facts from its host code: `src/host/team/team_internal.cpp` (public, 3.4.5), and from the device
code of 3.7 and 3.8: `non_abi/device/team/nvshmemi_team_defines.cuh`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpushmem.artifacts.argument_packing import address_of
from gpushmem.backends.nvshmem_cpu.layout import RECEXCH, TEAM

__all__ = ["INVALID", "TeamRecord", "exchange_partners", "stride_of"]

INVALID = -1


class TeamRecord:
    """A team of one PE: `fields` in memory at `address`, and the tables they point to.

    `pe_mapping` has the members, and after them the number in the team of each PE of the job.
    """

    def __init__(self, number: int, members: Sequence[int], my_pe: int, n_pes: int) -> None:
        self._memory = np.zeros(1, TEAM)
        self.address = address_of(self._memory)
        self.fields: Any = self._memory[0]
        self.mapping = np.full(len(members) + n_pes, INVALID, np.int32)
        self.mapping[: len(members)] = members
        self.mapping[len(members) + np.array(members)] = range(len(members))
        rank, stride = list(members).index(my_pe), stride_of(members)
        values = {
            "version": (4 << 16) + TEAM.itemsize,
            "my_pe": rank,
            "start": members[0] if stride > 0 else INVALID,
            "stride": stride,
            "size": len(members),
            "team_idx": number,
            "ll_flag": 1,
            "team_node": INVALID,
            "team_same_mype_node": INVALID,
            "team_dups": [number] + [INVALID] * 127,  # duplicates serve multicast alone
            "pe_mapping": address_of(self.mapping),
        }
        for name, value in values.items():
            self.fields[name] = value
        self.fields["config"]["version"] = (2 << 16) + TEAM["config"].itemsize
        self.fields["config"]["num_contexts"] = self.fields["config"]["uniqueid"] = INVALID
        self._set_partners(rank, members)

    def _set_partners(self, rank: int, members: Sequence[int]) -> None:
        send_to, receive_from, phases = exchange_partners(rank, len(members))
        pe_of = {**dict(enumerate(members)), INVALID: INVALID}
        self._senders = np.array([pe_of[k] for k in receive_from] or [INVALID], np.int32)
        self._phases = np.array([pe_of[k] for k in phases] or [INVALID], np.int32)
        self._rows = address_of(self._phases) + 4 * np.arange(len(self._phases))
        exchange = self.fields["reduce_recexch"]
        exchange["version"] = (1 << 16) + RECEXCH.itemsize
        exchange["step1_sendto"] = pe_of[send_to]
        exchange["step1_nrecvs"] = len(receive_from)
        exchange["step1_recvfrom"] = address_of(self._senders)
        exchange["step2_nphases"] = len(phases)
        exchange["step2_nbrs"] = address_of(self._rows)


def stride_of(members: Sequence[int]) -> int:
    """The positive distance between members, if it is always the same, else INVALID."""
    steps = set(np.diff(members).tolist()) or {1}
    return steps.pop() if len(steps) == 1 and min(steps) > 0 else INVALID


def exchange_partners(rank: int, size: int) -> tuple[int, list[int], list[int]]:
    """With whom a member exchanges in a recursive exchange of radix 2: numbers in the team.

    As many members as a power of two exchange, each phase with another one. The others are the
    even ones of the first pairs: they send to their odd neighbour before, and get its result.
    Returns whom the member sends to (-1: it takes part), from whom it receives before, and its
    partner in each phase.
    """
    phases = size.bit_length() - 1
    pairs = size - (1 << phases)
    if rank < 2 * pairs and rank % 2 == 0:
        return rank + 1, [], [INVALID] * phases
    place = rank // 2 if rank < 2 * pairs else rank - pairs
    others = [place ^ (1 << phase) for phase in range(phases)]
    partners = [2 * other + 1 if other < pairs else other + pairs for other in others]
    return INVALID, [rank - 1] if rank < 2 * pairs else [], partners
