"""`load_vector`, `store_vector` and `copy_async` in kernels: one instruction of PTX each.

Plain ones are LLVM's, so that the optimiser may move and combine them as any others. Those of an
order stay where they are, and no access to memory moves across them; so do those of "stream".
Addresses are generic: the array may be in shared memory. Where an asynchronous copy goes is made an
address of shared memory beside its instruction.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from llvmlite import ir
from numba.cuda import types

from gpushmem.backends.nvshmem.operations import mbarriers
from gpushmem.backends.nvshmem.operations.device_calls import itemsize_of
from gpushmem.backends.nvshmem.operations.ordering import KINDS, assembly
from gpushmem.backends.vector_accesses import Access, definitions, place_of
from gpushmem.ops.roles import SCOPES, LoadAccess, StoreAccess

__all__ = ["COMMIT", "COPIES", "DEFINITIONS", "WAIT", "instructions"]


def _instruction(access: Access, loads: bool) -> tuple[str, Any]:
    """An access of words in an order, or past the caches: its text, and what it gives."""
    kind = "cs" if access.order == "stream" else f"{access.order}.{SCOPES[access.scope]}"
    many = f".v{access.words}" if access.words > 1 else ""
    first = 0 if loads else 1
    words = ", ".join(f"${first + k}" for k in range(access.words))
    words = f"{{{words}}}" if many else words
    name = f"{kind}{many}.{KINDS[access.bits][0]}"
    word = ir.IntType(KINDS[access.bits][2])
    result = ir.LiteralStructType([word] * access.words) if many else word
    if loads:
        return f"ld.{name} {words}, [${access.words}];", result
    return f"st.{name} [$0], {words};", ir.VoidType()


def load(builder: Any, address: Any, access: Access) -> list[Any]:
    word = ir.IntType(access.bits)
    if access.order == "weak":
        kind = ir.VectorType(word, access.words) if access.words > 1 else word
        found = builder.load(builder.inttoptr(address, kind.as_pointer()))
        found.align = access.nbytes
        if access.words == 1:
            return [found]
        return [builder.extract_element(found, ir.IntType(32)(k)) for k in range(access.words)]
    text, result = _instruction(access, loads=True)
    registers = [f"={KINDS[access.bits][1]}"] * access.words
    found = _call(builder, text, result, [*registers, "l"], [address])
    several = access.words > 1
    words = [builder.extract_value(found, k) for k in range(access.words)] if several else [found]
    return [builder.trunc(w, word) if w.type != word else w for w in words]


def store(builder: Any, address: Any, access: Access, words: list[Any]) -> None:
    if access.order == "weak":
        value = words[0]
        if access.words > 1:
            value = ir.VectorType(value.type, access.words)(ir.Undefined)
            for k, word in enumerate(words):
                value = builder.insert_element(value, word, ir.IntType(32)(k))
        pointer = builder.inttoptr(address, value.type.as_pointer())
        builder.store(value, pointer, align=access.nbytes)
        return
    text, result = _instruction(access, loads=False)
    _, register, bits = KINDS[access.bits]
    wide = [builder.zext(w, ir.IntType(bits)) if w.type.width < bits else w for w in words]
    _call(builder, text, result, ["l", *[register] * access.words], [address, *wide])


def _call(builder: Any, text: str, result: Any, registers: list[str], given: list[Any]) -> Any:
    kind = ir.FunctionType(result, [value.type for value in given])
    constraints = ",".join([*registers, "~{memory}"])
    return builder.call(ir.InlineAsm(kind, text, constraints, side_effect=True), given)


def instructions() -> Iterator[tuple[Access, bool, str]]:
    """All that are written as text: each access, whether it loads, and the text."""
    shapes = [(bits, 1) for bits in KINDS] + [(32, 2), (32, 4), (64, 2)]
    for role, loads in ((LoadAccess, True), (StoreAccess, False)):
        for name in role.names[1:]:
            order, _, scope = name.partition(".")
            for bits, count in shapes:
                access = Access(order, SCOPES.index(scope) if scope else 0, bits, count)
                yield access, loads, _instruction(access, loads)[0]


# --- copies to shared memory

# Bytes -> the instruction; 16 go past the first-level cache.
COPIES = {
    nbytes: "{ .reg .u64 to; cvta.to.shared.u64 to, $0; "
    f"cp.async.{'cg' if nbytes == 16 else 'ca'}.shared.global [to], [$1], {nbytes}; }}"
    for nbytes in (16, 8, 4)
}
COMMIT, WAIT = "cp.async.commit_group;", "cp.async.wait_group {};"
NOTHING = ir.FunctionType(ir.VoidType(), [])


def copy_async(typingctx: Any, dst: Any, i: Any, src: Any, j: Any, n: Any) -> Any:
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        places = [
            place_of(context, builder, array, args[k:])[0] for k, array in ((0, dst), (2, src))
        ]
        kind = ir.FunctionType(ir.VoidType(), [place.type for place in places])
        nbytes = n.literal_value * itemsize_of(src)
        assembly(builder, kind, COPIES[nbytes], "l,l", *places)
        return context.get_dummy_value()

    return types.void(dst, types.intp, src, types.intp, n), codegen


def copy_async_commit(typingctx: Any) -> Any:
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        assembly(builder, NOTHING, COMMIT, "")
        return context.get_dummy_value()

    return types.void(), codegen


def copy_async_wait(typingctx: Any, n: Any) -> Any:
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        assembly(builder, NOTHING, WAIT.format(n.literal_value), "")
        return context.get_dummy_value()

    return types.void(n), codegen


DEFINITIONS = definitions(load, store) | mbarriers.DEFINITIONS | {
    f.__name__: f for f in (copy_async, copy_async_commit, copy_async_wait)
}  # fmt: skip
