"""`multimem_store` in kernels, and `multicast_array`: to assign to it is to assign on all PEs.

Where NVSHMEM has a multicast address (NVLink SHARP, compute capability 9.0 and up), an element of 4
or 8 bytes is stored by one `multimem.st`, which the switch sends to all of them; so are words of 16
bytes of `multimem_store`. Otherwise it is stored to one PE after the other.
"""

from __future__ import annotations

import operator
from functools import cache
from typing import Any

from llvmlite import ir
from numba import cuda
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
from gpushmem.backends.nvshmem.operations.vectors import (
    I32,
    PACK,
    SHARES,
    TOGETHER,
    Word,
    copying,
    elements_of,
    flat,
    moving,
    words_in,
)
from gpushmem.backends.nvshmem.operations.vectors import address_of as place_of
from gpushmem.ops import OPS

__all__ = ["INSTRUCTION", "STORES", "STORE_WORD", "has_multimem", "make", "on_all", "storing"]

MULTIMEM = (9, 0)  # the compute capability from which on there is `multimem.st`
# Width in bytes -> the instruction's type, and the constraint of the register.
STORES = {4: ("u32", "r"), 8: ("u64", "l")}
INSTRUCTION = "multimem.st.relaxed.sys.global.{} [$0], $1;"
STORE_WORD = "multimem.st.relaxed.sys.global.v4.f32 [$0], {$1, $2, $3, $4};"
team_my_pe, team_n_pes, team_translate_pe, peer_array = (
    OPS[name].function for name in ("team_my_pe", "team_n_pes", "team_translate_pe", "peer_array")
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


# --- multimem_store


@intrinsic
def on_all(typingctx: Any, array: Any, team: Any) -> Any:
    """The multicast address of a symmetric array; 0 if there is none."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        values = [Value(types.intp, args[1]), Value(array, args[0])]
        return call(context, builder, "gpushmem_mc_ptr", values)

    return types.intp(array, types.intp), codegen


@intrinsic
def store_word(typingctx: Any, address: Any, word: Any) -> Any:
    """Store a word of 16 bytes at a multicast address."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        parts = cgutils.unpack_tuple(builder, args[1])
        kind = ir.FunctionType(ir.VoidType(), [args[0].type, *[I32] * len(parts)])
        text = ir.InlineAsm(kind, STORE_WORD, "l,r,r,r,r", side_effect=True)
        builder.call(text, [args[0], *parts])
        return context.get_dummy_value()

    return types.void(types.intp, Word), codegen


@cache
def _elements_on_all(share: Any) -> Any:
    """`elements_of` by the switch: `(dst, address, src, head, tail)`."""

    @cuda.jit(device=True)
    def elements(dst, address, src, head, tail):
        first, step = share()
        for k in range(first, head + src.size - tail, step):
            i = k if k < head else k - head + tail
            store(dst, address, i, src[i])

    return elements


@cache
def storing(scope: str, _: str, dtype: Any, has_instruction: bool) -> Any:
    """The device function `(dst, src, team)` of `multimem_store` for a scope's threads."""
    share, together, copy = SHARES[scope], TOGETHER[scope], copying(scope)
    packs, elements, elements_on_all = moving(share, store_word), elements_of(share), nothing
    in_one = getattr(dtype, "bitwidth", 0) // 8 in STORES  # whether the switch stores an element
    if in_one:
        elements_on_all = _elements_on_all(share)

    @cuda.jit(device=True)
    def one_by_one(dst, src, team):
        for k in range(1, team_n_pes(team) + 1):
            copy(peer_array(dst, after_me(team, k)), src)

    @cuda.jit(device=True)
    def at_once(dst, src, team, address):
        source, size, head, tail = place_of(src), src.itemsize, 0, 0
        if (address - source) % PACK == 0 and PACK % size == 0:
            head, n, tail = words_in(address, src.size, size)
            packs(address + head * size, source + head * size, n)
        if in_one:
            elements_on_all(dst, address, src, head, tail)
        elif head + src.size - tail > 0:
            for k in range(1, team_n_pes(team) + 1):
                elements(peer_array(dst, after_me(team, k)), src, head, tail)

    @cuda.jit(device=True)
    def chosen(dst, src, team):
        address = on_all(dst, team) if has_instruction else 0
        if address != 0:
            at_once(dst, src, team, address)
        else:
            one_by_one(dst, src, team)
        together()

    @cuda.jit(device=True)
    def storing(dst, src, team):
        chosen(flat(dst), flat(src), team)

    return storing


@cuda.jit(device=True)
def after_me(team, k):
    """The k-th member after the caller, who is the last."""
    rank = (team_my_pe(team) + k) % team_n_pes(team)
    return team_translate_pe(team, rank, 0)


@cuda.jit(device=True)
def nothing(dst, address, src, head, tail):
    pass
