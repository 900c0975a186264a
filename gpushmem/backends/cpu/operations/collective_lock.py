"""One call per PE: no two threads of a PE are in collectives of one team at the same time.

A thread that enters writes its FIBER to the team's record, and clears it on leaving. Where all
threads call a collective that one should call, they arrive here one after the other; so a thread
that has entered lets the others arrive before it continues.
"""

from __future__ import annotations

from typing import Any

from gpushmem.backends.cpu.operations.access import as_world
from gpushmem.backends.cpu.operations.collectives import TEAM_BYTES, team_at
from gpushmem.backends.cpu.operations.smem import check_has_all
from gpushmem.backends.cpu.sync.barrier import as_team
from gpushmem.backends.cpu.sync.world import TEAM
from gpushmem.backends.operation_errors import TWICE
from gpushmem.native.memory import compare_swap_word, store_release
from gpushmem.native.structs import offset, view
from gpushmem.ops.row import BLOCK, Op
from gpushmem.simt.functions import device, outlined
from gpushmem.simt.layout import FIBER, LAUNCH
from gpushmem.simt.thread import (
    alone,
    block_of,
    fail_with,
    fiber_word,
    launch_word,
    pause,
    site_word,
    text_word,
    thread_of,
    user_word,
)

__all__ = ["one_at_a_time"]

as_fiber, as_launch = view(FIBER), view(LAUNCH)
INSIDE = offset(TEAM, "inside")
# In so many turns of the ring a block that has not begun is resident, and its threads have run.
TURNS = 4


@outlined
def enter(team, what, whole_block):
    """Enter a collective of the team; returns its record's address. Fails if a thread is inside."""
    address = team_at(team)
    me = fiber_word()
    as_fiber(me).site = site_word()
    other = compare_swap_word(address + INSIDE, 0, me)
    if other != 0:
        index = (address - as_world(user_word()).teams) // TEAM_BYTES
        site = as_fiber(other).site
        fail_with(True, TWICE, (what, site, thread_of(other), block_of(other), index, 0, 0, 0))
    as_team(address).launch = launch_word()
    launch = as_launch(launch_word())
    blocks = launch.gdim[0] * launch.gdim[1] * launch.gdim[2]
    turns = 0 if alone() or (whole_block and blocks == 1) else 1
    if launch.next_block < blocks:
        turns = TURNS
    for _ in range(turns):
        pause()
    return address


@device
def leave(address):
    """Leave the collective."""
    as_team(address).launch = 0
    store_release(address + INSIDE, 0)


def one_at_a_time(op: Op, body: Any) -> Any:
    """The collective `body`, for one thread of a PE at a time; its arguments are a tuple."""
    body, name, whole_block = device(body), op.name, op.scope == BLOCK

    @device
    def of_all(given):
        inside = enter(0, text_word(name), whole_block)
        body()
        leave(inside)

    @device
    def of_a_team(given):
        inside = enter(given[0], text_word(name), whole_block)
        body(*given)
        leave(inside)

    @device
    def with_data(given):
        check_has_all()
        of_a_team(given)

    if op.arrays:
        return with_data
    return of_a_team if op.params else of_all
