"""Atomic operations: as instructions, in loops of compare-and-swap, and plain in shared memory.

A block's threads run on one core, and switch only where they wait. So a plain read, change and
write is atomic in the block's shared memory, and as cheap as on a GPU. Whether a pointer is to
shared memory is tested at run time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from llvmlite import ir
from numba.core import cgutils

from gpushmem.native.memory import i8p, i64
from gpushmem.simt.compiler.primitives import dynamic_start, thread_field
from gpushmem.simt.compiler.symbols import OWN
from gpushmem.simt.compiler.target import INTRINSICS

__all__ = ["update"]

Change = Callable[[Any, Any, Any], Any]  # (builder, old, value) -> new


def _simple(method: str) -> Change:
    return lambda builder, old, value: getattr(builder, method)(old, value)


def _select(compare: str, how: str) -> Change:
    return lambda builder, old, value: builder.select(
        getattr(builder, f"icmp_{how}")(compare, old, value), old, value
    )


PLAIN: dict[str, Change] = {
    **{op: _simple(op) for op in ("add", "sub", "xor", "fadd", "fsub")},
    "and": _simple("and_"), "or": _simple("or_"), "xchg": lambda builder, old, value: value,
    "max": _select(">", "signed"), "min": _select("<", "signed"),
    "umax": _select(">", "unsigned"), "umin": _select("<", "unsigned"),
}  # fmt: skip


def atomic_rmw(builder: Any, op: str, pointer: Any, value: Any, ordering: str) -> Any:
    """LLVM's instruction, or, in the block's shared memory, its plain equivalent."""
    real = partial(ir.IRBuilder.atomic_rmw, builder, op, pointer, value, ordering)
    if op not in PLAIN or ordering != "monotonic":  # atomics of kernels are relaxed
        return real()
    area = builder.add(dynamic_start(builder), thread_field(builder, "dynamic_shared"))
    offset = builder.sub(builder.ptrtoint(pointer, i64), thread_field(builder, "shared"))
    with builder.if_else(builder.icmp_unsigned("<", offset, area)) as (inside, outside):
        with inside:
            mine = each_time(builder, pointer)
            plain = builder.load(mine)
            builder.store(PLAIN[op](builder, plain, value), mine)
            after_plain = builder.basic_block
        with outside:
            old = real()
            after_real = builder.basic_block
    result = builder.phi(old.type)
    result.add_incoming(plain, after_plain)
    result.add_incoming(old, after_real)
    return result


def each_time(builder: Any, pointer: Any) -> Any:
    """The same pointer, of which it cannot be said that threads in lockstep do the same there."""
    function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(i8p, [i8p]), OWN)
    function.attributes.update(("readnone", "nounwind"))
    return builder.bitcast(builder.call(function, [builder.bitcast(pointer, i8p)]), pointer.type)


INTRINSICS["atomicrmw"] = atomic_rmw

for _op, _names in {
    "fadd": ("llvm.nvvm.atomic.load.add.f32.p0f32", "llvm.nvvm.atomic.load.add.f64.p0f64"),
    "fsub": ("___numba_atomic_float_sub", "___numba_atomic_double_sub"),
    "uinc_wrap": ("llvm.nvvm.atomic.load.inc.32.p0i32", "___numba_atomic_u64_inc"),
    "udec_wrap": ("llvm.nvvm.atomic.load.dec.32.p0i32", "___numba_atomic_u64_dec"),
    "fmax": ("___numba_atomic_float_nanmax", "___numba_atomic_double_nanmax"),
    "fmin": ("___numba_atomic_float_nanmin", "___numba_atomic_double_nanmin"),
}.items():
    for _name in _names:
        INTRINSICS[_name] = lambda builder, pointer, value, op=_op: builder.atomic_rmw(
            op, pointer, value, "monotonic"
        )


def update(builder: Any, pointer: Any, change: Callable[[Any], tuple[Any, Any]]) -> Any:
    """Replace the word at `pointer` atomically; returns the old one.

    `change(old)` generates the new word, and a condition for storing it.
    """
    word = pointer.type.pointee
    first = builder.load_atomic(pointer, "monotonic", word.width // 8)
    seen = cgutils.alloca_once_value(builder, first)
    again, swap, done = (builder.append_basic_block(n) for n in ("again", "swap", "done"))
    builder.branch(again)
    builder.position_at_end(again)
    old = builder.load(seen)
    new, wanted = change(old)
    builder.cbranch(wanted, swap, done)
    builder.position_at_end(swap)
    result = builder.cmpxchg(pointer, old, new, "monotonic", "monotonic")
    builder.store(builder.extract_value(result, 0), seen)
    builder.cbranch(builder.extract_value(result, 1), done, again)
    builder.position_at_end(done)
    return builder.load(seen)


def _extremum(replaces: str, builder: Any, pointer: Any, value: Any) -> Any:
    """Store `value` if it is beyond the old one; a NaN on either side changes nothing."""
    word = ir.IntType(32 if value.type == ir.FloatType() else 64)
    bits = builder.bitcast(value, word)

    def change(old: Any) -> tuple[Any, Any]:
        return bits, builder.fcmp_ordered(replaces, builder.bitcast(old, value.type), value)

    old = update(builder, builder.bitcast(pointer, word.as_pointer()), change)
    return builder.bitcast(old, value.type)


for _name, _replaces in (("max", "<"), ("min", ">")):
    for _type in ("float", "double"):
        INTRINSICS[f"___numba_atomic_{_type}_{_name}"] = partial(_extremum, _replaces)
