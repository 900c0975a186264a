"""Rounds: how the members of a team synchronise, in kernels and on hosts.

In each round every member writes to a line of its own in the memory of every other: a description
of its call, with all that must be equal on all members, and last the number of the round. A thread
that waits for a member polls that line in its own memory. A round of n PEs thus takes the time of
one message, and there is no shared counter.

There are two sets of lines, used alternately. A member may write its line of round k when the
others have read round k - 2; they have, once they have written round k - 1, so it waits for that
first. Data that do not fit a line go to a box, by the same rule.

Memory order: `post` stores the number with release order, `arrived` loads it with acquire order. A
thread that has seen a member arrive therefore sees all that member had written before, to any PE.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gpushmem.backends.cpu.sync.world import LINE, LINE_OF, TEAM
from gpushmem.native.internal import internal
from gpushmem.native.memory import load_acquire, store_release
from gpushmem.native.structs import offset, view
from gpushmem.simt.embed import bind
from gpushmem.simt.functions import device

__all__ = [
    "arrived", "as_line", "as_number", "as_team", "box", "box_at", "line", "pe_of", "post",
    "rank_of", "say",
]  # fmt: skip

as_team, as_line = view(TEAM), view(LINE_OF)
as_number = view(np.dtype([("pe", "i8")]))
TEXT = offset(LINE_OF, "text")
TEXT_BYTES = LINE - TEXT
SAID = 4  # words


def both(function: Callable[..., Any]) -> Any:
    """Make a function that the host's compiled code and kernels can call."""
    compiled = internal(function)
    bind(compiled, device(function))
    return compiled


@both
def pe_of(team, rank):
    """Number in the job of the team's member `rank`."""
    return as_number(as_team(team).members + 8 * rank).pe


@both
def rank_of(team, pe):
    """Number in the team of PE `pe` of the job; -1 if it is not a member."""
    return as_number(as_team(team).ranks + 8 * pe).pe


@both
def line(team, number, rank):
    """Address of the line in which member `rank` writes to this PE in round `number`."""
    record = as_team(team)
    return record.lines + ((number & 1) * record.n_pes + rank) * LINE


@both
def away(team, rank):
    """Bytes from an address of this PE to the same one on member `rank`."""
    record = as_team(team)
    return (pe_of(team, rank) - record.world_pe) * record.span


@both
def box(team, number, rank, nbytes):
    """Address of the `nbytes` that member `rank` sends to this PE in round `number`."""
    record = as_team(team)
    if nbytes <= TEXT_BYTES:
        return line(team, number, rank) + TEXT
    return record.boxes + ((number & 1) * record.n_pes + rank) * record.box_bytes


@both
def box_at(team, number, rank, nbytes):
    """Address on member `rank` of the `nbytes` that this PE sends to it in round `number`."""
    return box(team, number, as_team(team).my_pe, nbytes) + away(team, rank)


@both
def say(team, kind, detail, dst, src):
    """Set the description of this PE's call, which `post` sends: see `LINE_OF`."""
    said = as_team(team).said
    said[0], said[1], said[2], said[3] = kind, detail, dst, src


@both
def post(team, number, rank):
    """Send member `rank` this PE's description for round `number`; its box is already filled."""
    record = as_team(team)
    address = line(team, number, record.my_pe) + away(team, rank)
    there = as_line(address).said
    for k in range(SAID):
        there[k] = record.said[k]
    store_release(address, number)


@both
def arrived(team, number, rank):
    """Whether member `rank` is in round `number`."""
    return load_acquire(line(team, number, rank)) >= number
