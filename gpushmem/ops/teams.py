"""Teams of PEs."""

from __future__ import annotations

from gpushmem.ops.roles import Index, Integer, Members, Pe, TeamHandle, TeamResult, TwoTeams
from gpushmem.ops.row import declare

SPLITTING = """\
Collective over `parent`: all its members call, with the same arguments; waits for this
PE's kernels. Returns TEAM_INVALID to a PE that is in none of the new teams. Raises `TeamError` on
all when there are as many teams as there can be: GPUSHMEM_MAX_TEAMS, by default 256."""


@declare(on_host=True, stream=False)
def team_my_pe(team: TeamHandle) -> Index:
    """Return the number of the calling PE in `team`; -1 for TEAM_INVALID.

    OpenSHMEM 1.5: shmem_team_my_pe.
    """


@declare(on_host=True, stream=False)
def team_n_pes(team: TeamHandle) -> Index:
    """Return how many PEs `team` has; -1 for TEAM_INVALID. OpenSHMEM 1.5: shmem_team_n_pes."""


@declare(on_host=True, stream=False)
def team_translate_pe(src_team: TeamHandle, src_pe: Pe, dst_team: TeamHandle) -> Index:
    """Return the number that PE `src_pe` of `src_team` has in `dst_team`; -1 if it has none.

    With TEAM_WORLD as `dst_team` it is the number that `put` and the like take. OpenSHMEM 1.5:
    shmem_team_translate_pe.
    """


@declare(in_kernels=False, on_host=True, stream=False, note=SPLITTING, meets=True)
def team_split_strided(
    parent: TeamHandle, start: Integer, stride: Integer, size: Integer
) -> TeamResult:
    """Make a team of the PEs `start + k * stride` of `parent`, k from 0 to `size - 1`; return it.

    PE k of the new team is the k-th of them. OpenSHMEM 1.5: shmem_team_split_strided.
    """


@declare(in_kernels=False, on_host=True, stream=False, note=SPLITTING, meets=True)
def team_split_2d(parent: TeamHandle, xrange: Integer) -> TwoTeams:
    """Lay `parent` out in rows of `xrange` PEs; return the caller's row and column as teams.

    PE i of `parent` is in row `i // xrange` and column `i % xrange`; the last row may be shorter.
    OpenSHMEM 1.5: shmem_team_split_2d.
    """


@declare(in_kernels=False, on_host=True, stream=False, meets=True)
def team_init(pes: Members) -> TeamResult:
    """Make a team of any PEs of the job, in any order; return it. PE k of the team is `pes[k]`.

    `pes` are numbers in TEAM_WORLD, each at most once. Collective over them: only they call, with
    the same list; no other PE takes part. Waits for this PE's kernels. Raises `TeamError` on all of
    them when there are as many teams as there can be. NVSHMEM 3: nvshmemx_team_init.
    """


@declare(in_kernels=False, on_host=True, stream=False, meets=True)
def team_destroy(team: TeamHandle) -> None:
    """Destroy `team`. Collective over it; waits for this PE's kernels.

    Using it afterwards raises `TeamError`. The predefined teams stay. OpenSHMEM 1.5:
    shmem_team_destroy.
    """
