"""Order and accesses that NVSHMEM's device functions leave open, in the code around their calls.

*Meetings.* NVSHMEM 3.8 tells other PEs of a `sync` by plain flags, and looks at theirs by relaxed
loads. Neither side has a fence, so that what a PE stored before may come later, and what its block,
or another one of the same multiprocessor, has read before may be seen again; the same holds for
the way out of its barriers and collectives. A call in which PEs meet therefore stands between two
fences of the system's scope (PTX ISA, "memory consistency model": a fence, then a relaxed store, is
a release pattern; a relaxed load, then a fence, an acquire pattern). The threads of a warp or block
synchronise before the first, which then covers what all of them have stored, and after the second.
Barriers begin with a quiet, which has a fence.

*Fences of groups.* In the warp and block forms of `qp_fence` and `qp_quiet` NVSHMEM's thread 0 acts
for all, as soon as it is there; so the threads synchronise before, and what any of them has
written is covered.

*Elements* of PEs that are mapped are loaded and stored as PTX's relaxed accesses of the system's
scope. NVSHMEM's own `p` and `g` are plain ones, which the optimiser may take out of a loop that
polls, and which may be answered by the first-level cache of a multiprocessor.

*Copies by TMA*, in kernels that give NVSHMEM shared memory; `EXTRA` in `device_calls` has the code.
TMA sees what threads have stored, and they what it has, after a fence between the two (PTX ISA,
"async proxy"). NVSHMEM 3.8 has one for its own shared memory, not for the arrays, so here one
stands before each put and get. A thread can wait for those copies alone that it has begun, and
those of a block are begun by one: so all wait before a barrier, in which NVSHMEM's fence may come
too early for them, and before `release_smem`, where they then synchronise.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from llvmlite import ir
from numba.cuda import cgutils

from gpushmem.ops.row import BLOCK, WARP, Op

__all__ = ["FENCE", "KINDS", "LOAD", "STORE", "around", "assembly", "load", "store"]

FENCE = "fence.acq_rel.sys;"
# Bits of an element -> the instruction; the constraint of its register, and that one's bits.
KINDS = {8: ("u8", "h", 16), 16: ("u16", "h", 16), 32: ("u32", "r", 32), 64: ("u64", "l", 64)}
LOAD, STORE = "ld.relaxed.sys.global.{} $0, [$1];", "st.relaxed.sys.global.{} [$0], $1;"
# Functions of LLVM by which the threads of a group synchronise, and their argument: all lanes.
TOGETHER: dict[str, tuple[str, list[Any]]] = {
    WARP: ("llvm.nvvm.bar.warp.sync", [ir.IntType(32)(-1)]),
    BLOCK: ("llvm.nvvm.barrier0", []),
}


def load(builder: Any, address: Any, bits: int) -> Any:
    """The element at an address, an integer."""
    name, register, width = KINDS[bits]
    kind = ir.FunctionType(ir.IntType(width), [address.type])
    found = assembly(builder, kind, LOAD.format(name), f"={register},l", address)
    return found if width == bits else builder.trunc(found, ir.IntType(bits))


def store(builder: Any, address: Any, value: Any, bits: int) -> None:
    """Store an element, given as an integer, at an address."""
    name, register, width = KINDS[bits]
    word = value if width == bits else builder.zext(value, ir.IntType(width))
    kind = ir.FunctionType(ir.VoidType(), [address.type, word.type])
    assembly(builder, kind, STORE.format(name), f"l,{register}", address, word)


@contextmanager
def around(builder: Any, op: Op) -> Iterator[None]:
    """Around the code of a call: if PEs meet in it, or it orders what its group has written."""
    meets, orders = op.facts.meets, op.facts.orders
    if orders in ("fence", "quiet") or (meets and orders != "barrier"):
        _synchronise(builder, op.scope)
    if meets and orders != "barrier":
        _fence(builder)
    yield
    if meets:
        _fence(builder)
        _synchronise(builder, op.scope)


def _fence(builder: Any) -> None:
    assembly(builder, ir.FunctionType(ir.VoidType(), []), FENCE, "")


def _synchronise(builder: Any, scope: str) -> None:
    if scope in TOGETHER:
        name, given = TOGETHER[scope]
        kind = ir.FunctionType(ir.VoidType(), [a.type for a in given])
        builder.call(cgutils.get_or_insert_function(builder.module, kind, name), given)


def assembly(builder: Any, kind: Any, text: str, registers: str, *given: Any) -> Any:
    """An instruction that stays where it is, and across which no access to memory moves."""
    constraints = ",".join(filter(None, [registers, "~{memory}"]))
    return builder.call(ir.InlineAsm(kind, text, constraints, side_effect=True), given)
