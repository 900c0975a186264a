"""`multicast_array` in kernels: a value of its own type; assigning to it assigns on all PEs.

Where NVSHMEM has a multicast address (NVLink SHARP, compute capability 9.0 and up), an element of 4
or 8 bytes is stored by one `multimem.st`, which the switch sends to all of them. Otherwise it is
stored to one PE after the other.
"""

from __future__ import annotations

import operator
from typing import Any

from llvmlite import ir
from numba.cuda import cgutils, types
from numba.cuda.datamodel.models import StructModel
from numba.cuda.extending import overload
from numba.cuda.models import register_model

from gpushmem.backends.nvshmem.operations.device_calls import (
    Value,
    call,
    compute_capability,
    intrinsic,
)
from gpushmem.ops import OPS

__all__ = ["INSTRUCTION", "STORES", "has_multimem", "make"]

MULTIMEM = (9, 0)  # the compute capability from which on there is `multimem.st`
# Width in bytes -> the instruction's type, and the constraint of the register.
STORES = {4: ("u32", "r"), 8: ("u64", "l")}
INSTRUCTION = "multimem.st.relaxed.sys.global.{} [$0], $1;"
team_n_pes, team_translate_pe, peer_array = (
    OPS[name].function for name in ("team_n_pes", "team_translate_pe", "peer_array")
)


class Multicast(types.Type):
    """An array on all PEs of a team."""

    def __init__(self, array: Any) -> None:
        self.array = array
        super().__init__(f"nvshmem_multicast({array})")


@register_model(Multicast)
class MulticastModel(StructModel):
    """The caller's own array, the team, and the address that reaches all, 0 if there is none."""

    def __init__(self, dmm: Any, fe_type: Any) -> None:
        members = [("array", fe_type.array), ("team", types.int32), ("address", types.uint64)]
        super().__init__(dmm, fe_type, members)


@intrinsic
def make(typingctx: Any, array: Any, team: Any) -> Any:
    """An array and a team as one value."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        both = cgutils.create_struct_proxy(sig.return_type)(context, builder)
        both.array, both.team = args
        values = [Value(types.int32, args[1]), Value(array, args[0])]
        both.address = call(context, builder, "gpushmem_mc_ptr", values)
        return both._getvalue()

    return Multicast(array)(array, types.int32), codegen


def _field(name: str, typ: Any) -> Any:
    def field(typingctx: Any, multicast: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            proxy = cgutils.create_struct_proxy(multicast)
            return getattr(proxy(context, builder, args[0]), name)

        return (typ or multicast.array)(multicast), codegen

    return intrinsic(field)


array_of, team_of = _field("array", None), _field("team", types.int32)
address_of = _field("address", types.uint64)


@intrinsic
def store(typingctx: Any, array: Any, address: Any, index: Any, value: Any) -> Any:
    """Store an element to the array that begins at a multicast `address`."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        _, address, index, value = args
        data = context.get_data_type(array.dtype)
        nbytes = context.get_abi_sizeof(data)
        typ, register = STORES[nbytes]
        slot = cgutils.alloca_once(builder, data)
        context.pack_value(builder, array.dtype, value, slot)
        word = ir.IntType(8 * nbytes)
        bits = builder.load(builder.bitcast(slot, word.as_pointer()))
        place = builder.add(address, builder.mul(index, index.type(nbytes)))
        kind = ir.FunctionType(ir.VoidType(), [place.type, word])
        text = INSTRUCTION.format(typ)
        builder.call(ir.InlineAsm(kind, text, f"l,{register}", side_effect=True), [place, bits])
        return context.get_dummy_value()

    return types.void(array, types.uint64, types.intp, array.dtype), codegen


def has_multimem() -> bool:
    """Whether what is compiled now is for GPUs that have `multimem` instructions."""
    capability = compute_capability()
    return capability is not None and tuple(capability[:2]) >= MULTIMEM


def _has_instruction(array: Any, index: Any, value: Any) -> bool:
    """Whether an assignment can be one `multimem.st` where the hardware has it."""
    return (
        has_multimem()
        and array.ndim == 1
        and array.layout == "C"
        and isinstance(index, types.Integer)
        and getattr(array.dtype, "bitwidth", 0) // 8 in STORES
    )


@overload(operator.setitem)
def set_on_all(target, index, value):
    if not isinstance(target, Multicast):
        return None

    def one_by_one(target, index, value):
        array, team = array_of(target), team_of(target)
        for rank in range(team_n_pes(team)):
            copy = peer_array(array, team_translate_pe(team, rank, 0))
            copy[index] = value

    def at_once(target, index, value):
        array, address = array_of(target), address_of(target)
        if address != 0:
            place = index if index >= 0 else index + array.size
            store(array, address, place, value)
        else:
            team = team_of(target)
            for rank in range(team_n_pes(team)):
                copy = peer_array(array, team_translate_pe(team, rank, 0))
                copy[index] = value

    chosen = at_once if _has_instruction(target.array, index, value) else one_by_one
    vars(chosen)["simt_observed"] = True  # where a checker looks: its stores are the user's
    return chosen
