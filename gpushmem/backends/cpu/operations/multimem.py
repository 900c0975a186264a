"""`multimem_reduce` in kernels: elements of all PEs of a team, loaded one after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpushmem.backends.cpu.operations.access import (
    address_of,
    array_at,
    as_world,
    itemsize_of,
    load_element,
    remote,
    size_of,
)
from gpushmem.backends.cpu.operations.collectives import on_member, team_at
from gpushmem.backends.cpu.sync.barrier import as_team
from gpushmem.backends.operation_errors import TOO_SMALL
from gpushmem.backends.reductions import COMBINE, widened
from gpushmem.native.memory import intrinsic
from gpushmem.ops.roles import SwitchReduction
from gpushmem.simt.functions import device
from gpushmem.simt.thread import fail_if, user_word

__all__ = ["REDUCING", "reducing"]

wide = intrinsic(widened)


@device
def there(address, nbytes):
    return address


@device
def nothing(address, nbytes):
    pass


def reducing(seen: Any = there, written: Any = nothing) -> dict[str, Callable[..., Any]]:
    """The operation for each value of `op`.

    `seen(address, nbytes)` is where an element is loaded from; `written` is told of the result.
    """
    return {op: _reducing(device(COMBINE[op]), seen, written) for op in SwitchReduction.names}


def _reducing(combine: Any, seen: Any, written: Any) -> Callable[..., Any]:
    def multimem_reduce(dst, src, team):
        team = team_at(team)
        members, size, n = as_team(team).n_pes, itemsize_of(src), size_of(src)
        target, source = address_of(dst), address_of(src)
        fail_if(size_of(dst) < n, TOO_SMALL, size_of(dst), n, target, source)
        remote(source, n * size, as_world(user_word()).my_pe)
        out = array_at(dst, target, n)
        for i in range(n):
            place = source + i * size
            total = wide(load_element(src, seen(on_member(team, place, 0), size)))
            for rank in range(1, members):
                at = seen(on_member(team, place, rank), size)
                total = combine(total, wide(load_element(src, at)))
            out[i] = total
        written(target, n * size)

    return multimem_reduce


REDUCING = {"multimem_reduce": reducing()}
