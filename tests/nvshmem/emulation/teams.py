"""Teams: numbers for tuples of PEs of the world."""

import functools
import operator
import os
import time

from tests.nvshmem.emulation.errors import EmulationError
from tests.nvshmem.emulation.job import MAX_TEAMS, Job, limit

WORLD, SHARED, NODE, SAME_MYPE_NODE, SAME_GPU, GPU_LEADERS, MC_SHARED, FIRST_FREE = range(8)


class Teams:
    """The teams that this PE is in, by number. `devices` are the PEs' devices."""

    def __init__(self, job: Job, devices, per_node: int):
        self.job = job
        pes = range(job.n)
        node = [pe for pe in pes if pe // per_node == job.me // per_node]
        leaders = [pe for pe in pes if devices.index(devices[pe]) == pe]
        self.members = {
            WORLD: tuple(pes),
            SHARED: tuple(node),
            NODE: tuple(node),
            SAME_MYPE_NODE: tuple(pe for pe in pes if pe % per_node == job.me % per_node),
            SAME_GPU: tuple(pe for pe in pes if devices[pe] == devices[job.me]),
        }
        if job.me in leaders:
            self.members[GPU_LEADERS] = tuple(leaders)
        self.most = min(int(os.environ.get("NVSHMEM_MAX_TEAMS", "32")), MAX_TEAMS)

    def of(self, team: int, doing: str) -> tuple[int, ...]:
        """Return a team's PEs, or raise EmulationError where this PE has no such team."""
        if int(team) not in self.members:
            raise EmulationError(f"{doing}: PE {self.job.me} is in no team {int(team)}")
        return self.members[int(team)]

    def my_pe(self, team: int) -> int:
        """Return this PE's number in a team, or -1."""
        members = self.members.get(int(team), ())
        return members.index(self.job.me) if self.job.me in members else -1

    def n_pes(self, team: int) -> int:
        """Return the size of a team, or -1."""
        return len(self.members[int(team)]) if int(team) in self.members else -1

    def translate(self, team: int, pe: int, other: int) -> int:
        """Return what PE `pe` of one team is in another, or -1."""
        members, others = self.members.get(int(team)), self.members.get(int(other))
        if members is None or others is None or not 0 <= pe < len(members):
            return -1
        return others.index(members[pe]) if members[pe] in others else -1

    def barrier(self, team: int, doing: str) -> None:
        """Wait for a team's PEs."""
        self.job.barrier(int(team), self.of(team, doing), doing)

    def meet(self, team: int, doing: str) -> None:
        """Wait for a team's PEs, each in the same collective."""
        self.job.meet(int(team), self.of(team, doing), doing)

    def free(self) -> int:
        """Return the numbers that this PE has free, a bit each."""
        return sum(1 << team for team in range(FIRST_FREE, self.most) if team not in self.members)

    def free_of(self, pes) -> int:
        """Return the lowest number that PEs have all said to have free; -1 if there is none."""
        free = functools.reduce(operator.and_, (int(self.job.per_pe(1)[pe]) for pe in pes))
        return (free & -free).bit_length() - 1

    def init(self, size: int, rank: int, identity: int) -> int:
        """Make a team of the `size` PEs that come with an id; no other PE calls."""
        words, me = [self.job.per_pe(which) for which in range(5)], self.job.me
        words[1][me], words[2][me], words[3][me] = self.free(), rank, identity
        pes = self._come(words[3], identity, range(self.job.n), size)
        own = tuple(sorted(pes, key=lambda pe: words[2][pe]))
        if [int(words[2][pe]) for pe in own] != list(range(size)):
            raise EmulationError(f"team_init: the members are not numbered from 0 to {size - 1}")
        number = self.free_of(own)
        if number >= 0 and me == min(own):
            self.job.reset(number, me)
        words[4][me] = identity
        if number < 0:
            self._come(words[4], identity, own, size)
            return number
        self._come(words[4], identity, [min(own)], 1)  # and has reset the barrier
        self.members[number] = own
        self.barrier(number, "team_init")
        return number

    def _come(self, words, identity: int, pes, size: int) -> list[int]:
        """Wait until `size` of `pes` have written an id; EmulationError after `limit`."""
        deadline = time.monotonic() + limit()
        while len(found := [pe for pe in pes if words[pe] == identity]) < size:
            if time.monotonic() > deadline:
                raise EmulationError(f"team_init: {len(found)} of {size} PEs have come")
            time.sleep(0.001)
        return found

    def split(self, parent: int, chosen: list[tuple[int, ...]], doing: str) -> int:
        """Make teams of the PEs in `chosen`, which do not overlap; return that of this PE, or -1.

        All of the parent's PEs call. The number is the lowest that all of them have free.
        """
        self.meet(parent, doing)
        free = self.free()
        self.job.per_pe(1)[self.job.me] = free
        self.barrier(parent, doing)
        number = self.free_of(self.of(parent, doing))
        own = next((pes for pes in chosen if self.job.me in pes), None)
        if own and number >= 0 and self.job.me == min(own):
            self.job.reset(number, min(own))
        self.barrier(parent, doing)
        if own is None or number < 0:
            return -1
        self.members[number] = own
        return number

    def split_strided(self, parent: int, start: int, stride: int, size: int) -> int:
        """Return the new team's number; -1 to those not in it."""
        doing = f"team_split_strided(start={start}, stride={stride}, size={size})"
        members = self.of(parent, doing)
        if start < 0 or stride < 1 or size < 1 or start + (size - 1) * stride >= len(members):
            return -1
        chosen = tuple(members[start + i * stride] for i in range(size))
        return self.split(parent, [chosen], doing)

    def split_2d(self, parent: int, width: int) -> tuple[int, int]:
        """Return this PE's teams along x, `width` PEs of following numbers, and along y."""
        doing = f"team_split_2d(xrange={width})"
        members = self.of(parent, doing)
        width = min(width, len(members))
        rows = [members[at : at + width] for at in range(0, len(members), width)]
        columns = [members[at::width] for at in range(width)]
        return self.split(parent, rows, doing + " x"), self.split(parent, columns, doing + " y")

    def destroy(self, team: int) -> None:
        """End a team that was split off; NVSHMEM's own stay, and what is none is passed over."""
        if int(team) >= FIRST_FREE and int(team) in self.members:
            self.meet(team, "team_destroy")
            self.job.leave(int(team), self.members.pop(int(team)))
