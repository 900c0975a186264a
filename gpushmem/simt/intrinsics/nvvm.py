"""NVVM's intrinsics, which a GPU provides in hardware, each as a generator of CPU code.

An entry of INTRINSICS is `f(builder, *args) -> value`: it generates the code that stands in place
of a call. The table is keyed by the intrinsic's name, or by the text of inline assembly. An
intrinsic that involves other threads calls a device function of `synchronization`.

Sources: NVVM IR Specification (special registers, barriers, shuffle, vote, match), PTX ISA.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from llvmlite import ir
from numba.core import cgutils
from numba.cuda import types

from gpushmem.artifacts.gpu_model import LANES
from gpushmem.artifacts.launch_shape import AXES
from gpushmem.native.memory import i8p, i64
from gpushmem.simt.compiler import observer
from gpushmem.simt.compiler.primitives import (
    DYNAMIC_START,
    assume,
    core_launch,
    observer_place,
    place,
    place_name,
    thread_field,
)
from gpushmem.simt.compiler.target import INTRINSICS, call_device
from gpushmem.simt.intrinsics import synchronization

__all__ = ["implements", "laneid", "match_all", "shuffle", "tell", "vote", "vprintf"]

i1, i32 = ir.IntType(1), ir.IntType(32)
SHARED_SPACE = 3
POLLED_TURNS = 16  # a power of two


def implements(*names: str) -> Any:
    """Enter a code generator in the table under `names`."""

    def enter(generator: Any) -> Any:
        for name in names:
            INTRINSICS[name] = generator
        return generator

    return enter


# --- special registers

SREG = "llvm.nvvm.read.ptx.sreg."


def _register(field: str, axis: int, builder: Any) -> ir.Value:
    value = thread_field(builder, field, axis)
    # An index made from it then needs no test for negative values, and loops vectorise.
    assume(builder, builder.icmp_signed(">=", value, i32(0)))
    return value


for _name, _field in (("tid", "tid"), ("ctaid", "bid"), ("ntid", "bdim"), ("nctaid", "gdim")):
    for _axis, _letter in enumerate(AXES):
        INTRINSICS[f"{SREG}{_name}.{_letter}"] = partial(_register, _field, _axis)


@implements(f"{SREG}warpsize")
def warpsize(builder: Any) -> ir.Value:
    return i32(LANES)


@implements(f"{SREG}laneid")
def laneid(builder: Any) -> ir.Value:
    x, y, z = (thread_field(builder, "tid", axis) for axis in range(3))
    width, height = (thread_field(builder, "bdim", axis) for axis in range(2))
    row = builder.add(y, builder.mul(height, z))
    return builder.and_(builder.add(x, builder.mul(width, row)), i32(LANES - 1))


@implements("mov.u32 $0, %lanemask_lt;")
def lanemask_lt(builder: Any) -> ir.Value:
    return builder.sub(builder.shl(i32(1), laneid(builder)), i32(1))


@implements("mov.u32 $0, %dynamic_smem_size;")
def dynamic_smem_size(builder: Any) -> ir.Value:
    return builder.trunc(thread_field(builder, "dynamic_shared"), i32)


# --- memory


@implements("addrspacecast")
def generic_address(builder: Any, value: ir.Value) -> ir.Value:
    """Address of a shared array in this block's area; other values as they are."""
    if value.type.addrspace != SHARED_SPACE or not isinstance(value, ir.GlobalVariable):
        return value
    if value.initializer is None:
        name = DYNAMIC_START
    else:
        nbytes = builder.simt_context.get_abi_sizeof(value.value_type)
        name = place_name(nbytes, max(value.align or 0, 16))
        value.linkage = "internal"  # no longer referred to, it will be dropped
    if builder.simt_array is not None and (made := builder.simt_array()) is not None:
        builder.simt_context.active_code_library.arrays.append((name, made))
    return place(builder, name)


def _membar(scope: int, name: str) -> None:
    @implements(name)
    def membar(builder: Any) -> None:
        tell(builder, "fences", (types.intp, i64(scope)))
        builder.fence("seq_cst")


for _scope, _name in enumerate(("cta", "gl", "sys")):
    _membar(_scope, f"llvm.nvvm.membar.{_name}")


for _point in ("wait", "launch_dependents"):  # launches on a stream run one after the other
    INTRINSICS[f"griddepcontrol.{_point};"] = lambda builder: None


# Loads and stores with a hint for a GPU's caches.
for _bits in (8, 16, 32, 64):
    for _hint in ("ca", "cg", "cs", "lu", "cv"):
        INTRINSICS[f"ld.global.{_hint}.b{_bits} $0, [$1];"] = lambda builder, p: builder.load(p)
    for _hint in ("wb", "cg", "cs", "wt"):
        INTRINSICS[f"st.global.{_hint}.b{_bits} [$0], $1;"] = lambda b, p, v: b.store(v, p)


# --- barriers


def _meet(builder: Any, function: Any, *args: tuple[Any, ir.Value]) -> ir.Value:
    """Call a device function of `synchronization` with (Numba type, value) pairs."""
    sig = types.int64(*(typ for typ, _ in args))
    return call_device(builder, function, sig, [value for _, value in args])


def _wide(builder: Any, value: ir.Value) -> tuple[Any, ir.Value]:
    return types.intp, builder.zext(value, i64)


INTRINSICS["observer's place"] = observer_place


def tell(builder: Any, what: str, *args: tuple[Any, ir.Value]) -> None:
    """Tell the observer, if there is one."""
    seen = observer.current()
    if seen is not None:
        sig = types.void(*(typ for typ, _ in args))
        call_device(builder, getattr(seen, what), sig, [value for _, value in args])


@implements("llvm.nvvm.barrier0")
def barrier(builder: Any) -> None:
    _meet(builder, synchronization.syncthreads)
    tell(builder, "block_met")


def _counting(op: str) -> None:
    @implements(f"llvm.nvvm.barrier0.{op}")
    def counting(builder: Any, predicate: ir.Value) -> ir.Value:
        function = synchronization.BLOCK_REDUCTIONS[op]
        result = builder.trunc(_meet(builder, function, _wide(builder, predicate)), i32)
        tell(builder, "block_met")
        return result


for _op in synchronization.BLOCK_REDUCTIONS:
    _counting(_op)


@implements("cudaCGGetIntrinsicHandle")
def grid_handle(builder: Any, which: ir.Value) -> ir.Value:
    return i64(1)


@implements("cudaCGSynchronize")
def grid_sync(builder: Any, handle: ir.Value, flags: ir.Value) -> ir.Value:
    tell(builder, "grid_meets")
    result = builder.trunc(_meet(builder, synchronization.grid_sync), i32)
    tell(builder, "grid_met")
    return result


# --- warps


@implements("llvm.nvvm.bar.warp.sync")
def syncwarp(builder: Any, mask: ir.Value) -> None:
    tell(builder, "warp_meets", _wide(builder, mask))
    _meet(builder, synchronization.syncwarp, _wide(builder, mask))
    tell(builder, "warp_met", _wide(builder, mask))


@implements("llvm.nvvm.shfl.sync.i32")
def shuffle(
    builder: Any, mask: ir.Value, mode: ir.Value, value: ir.Value, lane: ir.Value, clamp: ir.Value
) -> ir.Value:
    args = (mask, mode, value, lane)
    word = _meet(builder, synchronization.shuffle, *(_wide(builder, a) for a in args))
    return _pair(builder, builder.trunc(word, i32), i1(1))


@implements("llvm.nvvm.vote.sync")
def vote(builder: Any, mask: ir.Value, mode: ir.Value, predicate: ir.Value) -> ir.Value:
    args = (mask, mode, predicate)
    word = _meet(builder, synchronization.vote, *(_wide(builder, a) for a in args))
    bits = builder.trunc(word, i32)
    return _pair(builder, bits, builder.icmp_unsigned("!=", bits, i32(0)))


@implements("llvm.nvvm.match.any.sync.i32", "llvm.nvvm.match.any.sync.i64")
def match_any(builder: Any, mask: ir.Value, value: ir.Value) -> ir.Value:
    word = _meet(builder, synchronization.match_any, _wide(builder, mask), _word(builder, value))
    return builder.trunc(word, i32)


@implements("llvm.nvvm.match.all.sync.i32", "llvm.nvvm.match.all.sync.i64")
def match_all(builder: Any, mask: ir.Value, value: ir.Value) -> ir.Value:
    word = _meet(builder, synchronization.match_all, _wide(builder, mask), _word(builder, value))
    bits = builder.trunc(word, i32)
    return _pair(builder, bits, builder.icmp_unsigned("!=", bits, i32(0)))


def _word(builder: Any, value: ir.Value) -> tuple[Any, ir.Value]:
    return _wide(builder, value) if value.type != i64 else (types.intp, value)


def _pair(builder: Any, first: ir.Value, second: ir.Value) -> ir.Value:
    return cgutils.pack_struct(builder, [first, second])


@implements("activemask.b32 $0;")
def activemask(builder: Any) -> ir.Value:
    return builder.trunc(_meet(builder, synchronization.activemask), i32)


@implements("nanosleep.u32 $0;")
def nanosleep(builder: Any, ns: ir.Value) -> None:
    _meet(builder, synchronization.nanosleep, _wide(builder, ns))


@implements("polling loop")
def polling_loop(builder: Any) -> None:
    """Let other threads run, in some turns of a loop that reads memory until it changes."""
    count = cgutils.alloca_once(builder, i32)  # starts at 0
    turn = builder.add(builder.load(count), i32(1))
    builder.store(turn, count)
    due = builder.icmp_unsigned("==", builder.and_(turn, i32(POLLED_TURNS - 1)), i32(0))
    with builder.if_then(due):
        _meet(builder, synchronization.look_again)


@implements("brkpt;")
def breakpoint_(builder: Any) -> None:
    """A breakpoint without a debugger does nothing."""


# --- print


@implements("vprintf")
def vprintf(builder: Any, text: ir.Value, packed: ir.Value) -> ir.Value:
    """Format a line; `packed` points to a structure of integers, doubles and strings."""
    structure = packed.operands[0].type.pointee  # what numba-cuda's bitcast came from
    source = packed.operands[0]
    slots = cgutils.alloca_once(builder, i64, max(1, len(structure.elements)))
    for k, element in enumerate(structure.elements):
        value = builder.load(builder.gep(source, [i32(0), i32(k)]))
        if isinstance(element, ir.IntType):
            value = builder.sext(value, i64) if element.width < i64.width else value
        elif isinstance(element, ir.PointerType):
            value = builder.ptrtoint(value, i64)
        else:
            value = builder.bitcast(value, i64)
        builder.store(value, builder.gep(slots, [i32(k)]))
    launch = core_launch(builder)
    write = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(ir.VoidType(), [i64, i8p, i64]), "simt_print"
    )
    builder.call(write, [launch, builder.bitcast(text, i8p), builder.ptrtoint(slots, i64)])
    return i32(0)
