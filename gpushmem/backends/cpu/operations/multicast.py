"""`multimem_store` in kernels; `multicast_array`, to which assigning is to assign on all PEs."""

from __future__ import annotations

import operator
from typing import Any

from numba.cuda import cgutils, types
from numba.cuda.datamodel.models import StructModel
from numba.cuda.extending import overload
from numba.cuda.models import register_model

from gpushmem.backends.cpu.operations.access import (
    address_of,
    array_like,
    copy_one,
    itemsize_of,
    remote,
    size_of,
)
from gpushmem.backends.cpu.operations.collectives import team_at
from gpushmem.backends.cpu.sync.barrier import as_team, pe_of
from gpushmem.backends.operation_errors import TOO_SMALL
from gpushmem.native.memory import intrinsic
from gpushmem.simt.thread import fail_if

__all__ = ["multicast_array", "multimem_store", "storing"]


class Multicast(types.Type):
    """An array on all PEs of a team."""

    def __init__(self, array: Any) -> None:
        self.array = array
        super().__init__(f"multicast({array})")


@register_model(Multicast)
class MulticastModel(StructModel):
    """The caller's own array, and the address of the team's record."""

    def __init__(self, dmm: Any, fe_type: Any) -> None:
        super().__init__(dmm, fe_type, [("array", fe_type.array), ("team", types.intp)])


@intrinsic
def make_multicast(typingctx: Any, array: Any, team: Any) -> Any:
    """An array and a team as one value."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        both = cgutils.create_struct_proxy(sig.return_type)(context, builder)
        both.array, both.team = args
        return both._getvalue()

    return Multicast(array)(array, types.intp), codegen


def _field(name: str) -> Any:
    @intrinsic
    def field(typingctx: Any, multicast: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            proxy = cgutils.create_struct_proxy(multicast)
            return getattr(proxy(context, builder, args[0]), name)

        return (multicast.array if name == "array" else types.intp)(multicast), codegen

    return field


array_of, team_of = _field("array"), _field("team")


def multicast_array(array, team):
    return make_multicast(array, team_at(team))


@overload(operator.setitem)
def set_on_all(target, index, value):
    if not isinstance(target, Multicast):
        return None

    def assign(target, index, value):
        array, team = array_of(target), team_of(target)
        nbytes = size_of(array) * itemsize_of(array)
        for rank in range(as_team(team).n_pes):
            copy = array_like(array, remote(address_of(array), nbytes, pe_of(team, rank)))
            copy[index] = value

    vars(assign)["simt_observed"] = True  # its stores are the user's
    return assign


def storing(store):
    """The body of `multimem_store`: `store(target, source, nbytes)` for each member, in turn."""

    def multimem_store(dst, src, team):
        team, n = team_at(team), size_of(src)
        fail_if(size_of(dst) < n, TOO_SMALL, size_of(dst), n, address_of(dst), address_of(src))
        nbytes = n * itemsize_of(src)
        for rank in range(as_team(team).n_pes):
            target = remote(address_of(dst), nbytes, pe_of(team, rank))
            store(target, address_of(src), nbytes)

    return multimem_store


multimem_store = storing(copy_one)
