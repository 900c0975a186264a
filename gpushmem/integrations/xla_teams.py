"""The teams whose collectives XLA calls; see `integrations.jax`."""

from __future__ import annotations

import math
import time
from functools import partial
from itertools import count
from typing import Any

from gpushmem import runtime
from gpushmem.artifacts.argument_packing import address_of
from gpushmem.backends.cpu.xla_calls import (
    BUSY,
    GROUP,
    TEAMS,
    WHAT,
    handler,
    place_of,
    table,
    trying,
    unlocking,
)
from gpushmem.communicators import pes_of
from gpushmem.errors import BackendUnavailable, ShmemError
from gpushmem.integrations import xla_ffi
from gpushmem.integrations.xla_ffi import Buffer
from gpushmem.native.structs import new
from gpushmem.ops.teams import team_init

__all__ = ["REDUCTIONS", "ROWS", "WHAT", "Here", "collective", "here"]

NAME = "gpushmem.integrations.jax"
REDUCTIONS = ("", "sum", "prod", "min", "max", "and", "or", "xor")
ROWS = WHAT[2:]  # these send a row to each PE


class Calls:
    """What makes the calls of a team: another team of the same PEs, which nobody else uses.

    C code makes those that are like one before (`xla_calls`), Python all others; who has the lock
    makes one. JAX orders the calls of one thread of Python's. Compiled functions have `number`,
    which no other has in this process, also after another `init`.
    """

    def __init__(self, backend: Any, team: Any) -> None:
        made = team_init(pes_of(NAME, team))
        self.number, self.failed = next(_numbers), ""
        self._collectives = backend.host_collectives(made)
        self._group = new(GROUP)
        for name, value in self._collectives.memory.items():
            self._group[name] = value
        self._busy = address_of(self._group) + BUSY
        if self.number < TEAMS:
            table["groups"][0, self.number] = address_of(self._group)

    @property
    def made(self) -> int:
        """How many calls were made without Python."""
        return int(self._group["made"][0])

    def call(self, late: bool, what: int, op: int, x: Buffer, out: Buffer) -> None:
        """Make a call, or end one that C code has begun."""
        while not late and not trying()(self._busy):
            time.sleep(5e-5)
        try:
            if self.failed:
                raise ShmemError(f"an earlier call has failed: {self.failed}")
            if late:
                self._collectives.end(WHAT[what], math.inf)
            else:
                self._make(what, op, x, out)
        except BaseException as error:
            self.failed = self.failed or str(error)
            self._group["of"]["kind"] = 0  # all later ones come here
            raise
        finally:
            unlocking()(self._busy)

    def _make(self, what: int, op: int, x: Buffer, out: Buffer) -> None:
        makes, name, reduction = self._collectives, WHAT[what], REDUCTIONS[op]
        if not makes.seen:  # else Python tells of each call
            known = makes.prepared(name, reduction, x.dtype)
            self._group["of"][0, place_of(what, op, x.code)] = known
        sends = _places(makes.n_pes, x, name in ROWS)
        takes = _places(makes.n_pes, out, not reduction)
        nbytes = sends[makes.n_pes]
        makes.call(name, x.dtype, sends, takes, name not in ROWS, nbytes, op=reduction)

    def forget(self) -> None:
        """The session is over."""
        if self.number < TEAMS:
            table["groups"][0, self.number] = 0


def _places(n: int, buffer: Buffer, by_rows: bool) -> list[int]:
    """Addresses and sizes for each PE: of a row each, or of all for the first."""
    row, rest = buffer.nbytes // n if by_rows else buffer.nbytes, [0] * (n - 1)
    if not by_rows:
        return [buffer.address, *rest, row, *rest]
    return [*(buffer.address + k * row for k in range(n)), *[row] * n]


_numbers = count()


class Here:
    """What there is between `init` and `finalize`: who makes the calls of each team."""

    def __init__(self, of: runtime.Runtime) -> None:
        self.runtime = of
        self._of: dict[int, Calls] = {}
        self.by_number: dict[int, Calls] = {}
        of.at_end.append(self._forget)

    def _forget(self) -> None:
        for calls in self.by_number.values():
            calls.forget()
        self.by_number.clear()

    def calls(self, team: Any) -> Calls:
        """Who makes the calls of `team`; collective over it when it is new."""
        if int(team) not in self._of:
            made = self._of[int(team)] = Calls(self.runtime.backend, team)
            self.by_number[made.number] = made
        return self._of[int(team)]


_here: list[Here] = []  # the last one


def here() -> Here:
    """The one of the runtime that is running."""
    running = runtime.current(NAME)
    if not _here or _here[0].runtime is not running:
        if not hasattr(running.backend, "host_collectives"):
            raise BackendUnavailable(
                f"{NAME}: the backend {running.backend.name} has no collectives of arrays in host "
                "memory; the backend cpu has"
            )
        _here[:] = [Here(running)]
    return _here[0]


# --- what XLA calls


def _collective(late: bool, given: list[Buffer], taken: list[Buffer], numbers: list[int]) -> None:
    op, team, what = numbers
    calls = here().by_number.get(team)
    if calls is None:
        raise ShmemError(
            f"{WHAT[what]}: this function was compiled in an earlier session: call "
            "jax.clear_caches() after gpushmem.finalize()"
        )
    calls.call(late, what, op, given[0], taken[0])


def collective() -> Any:
    """The handler of collectives, whose attributes are op, team, what, behind a token."""
    for field, function in _kept.items():
        table[field] = xla_ffi.place(function)
    return handler()


_kept = {k: xla_ffi.handler(partial(_collective, k == "late")) for k in ("slow", "late")}
