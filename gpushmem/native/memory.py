"""Memory and the C library, from compiled code of any Numba target.

All addresses and words are signed 64-bit integers: Numba would turn a mix of signed and unsigned
ones into floats. The atomics are what processes share memory through, so they are never merged,
hoisted or torn by the compiler.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils, extending
from numba.cuda import extending as cuda_extending

__all__ = [
    "atomic_add_word", "call_address", "compare_swap_word", "copy_bytes", "full_fence", "i8p",
    "i64", "int_", "intrinsic", "libc_free", "load_acquire", "malloc", "mmap", "monotonic_ns",
    "mprotect", "posix_fallocate", "prefetch_line", "release_fence", "sched_yield", "set_word",
    "simt_switch", "store_release", "stream_line", "ticks", "twins", "usleep", "vsnprintf",
    "word", "word_at",
]  # fmt: skip

# An intrinsic of Numba's -> the same one for numba-cuda.
twins: dict[Any, Any] = {}


def intrinsic(func: Any = None, prefer_literal: bool = False) -> Any:
    """Make an intrinsic that both the scheduler (plain Numba) and kernels (numba-cuda) can call."""
    if func is None:
        return lambda f: intrinsic(f, prefer_literal)
    plain = extending.intrinsic(prefer_literal=prefer_literal)(func)
    twins[plain] = cuda_extending._Intrinsic(func.__name__, func, prefer_literal)
    twins[plain]._register()
    return plain


i64 = ir.IntType(64)
i8p = ir.IntType(8).as_pointer()

word, int_ = types.intp, types.intc
mmap = types.ExternalFunction("mmap", word(word, word, int_, int_, int_, word))
mprotect = types.ExternalFunction("mprotect", int_(word, word, int_))
vsnprintf = types.ExternalFunction("vsnprintf", int_(word, word, word, word))
simt_switch = types.ExternalFunction("simt_switch", types.void(word, word))  # see `fiber`


def _of_word(name: str, result: Any) -> Any:
    """A function of the C library with one integer; numba-cuda cannot call an ExternalFunction."""

    @intrinsic
    def function(typingctx: Any, value: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            returned = ir.VoidType() if result == types.void else i64
            signature = ir.FunctionType(returned, [i64])
            made = builder.call(
                cgutils.get_or_insert_function(builder.module, signature, name), args
            )
            return context.get_dummy_value() if result == types.void else made

        return result(word), codegen

    return function


malloc, libc_free = _of_word("malloc", word), _of_word("free", types.void)


@intrinsic
def posix_fallocate(typingctx: Any, fd: Any, start: Any, nbytes: Any) -> Any:
    """Have the disk keep room for a part of a file; returns 0, or an error's number."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        i32 = ir.IntType(32)
        function = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(i32, [i32, i64, i64]), "posix_fallocate"
        )
        return builder.call(function, [builder.trunc(args[0], i32), *args[1:]])

    return int_(word, word, word), codegen


@intrinsic
def usleep(typingctx: Any, microseconds: Any) -> Any:
    """Let the core do something else for a time."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        i32 = ir.IntType(32)
        function = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(i32, [i32]), "usleep"
        )
        builder.call(function, [builder.trunc(args[0], i32)])
        return context.get_dummy_value()

    return types.void(word), codegen


@intrinsic
def sched_yield(typingctx: Any) -> Any:
    """Offer the core to other threads of the system."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        signature = ir.FunctionType(ir.IntType(32), [])
        builder.call(cgutils.get_or_insert_function(builder.module, signature, "sched_yield"), [])
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def monotonic_ns(typingctx: Any) -> Any:
    """Nanoseconds of CLOCK_MONOTONIC."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        i32 = ir.IntType(32)
        read = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(i32, [i32, i8p]), "clock_gettime"
        )
        time = cgutils.alloca_once(builder, i64, 2)
        builder.call(read, [i32(1), builder.bitcast(time, i8p)])
        seconds, rest = (builder.load(builder.gep(time, [i64(k)])) for k in range(2))
        return builder.add(builder.mul(seconds, i64(1_000_000_000)), rest)

    return types.intp(), codegen


@intrinsic
def ticks(typingctx: Any) -> Any:
    """The processor's clock, the same on all cores; see `trace.ring` for what a tick is."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        signature = ir.FunctionType(i64, [])
        read = cgutils.get_or_insert_function(builder.module, signature, "llvm.readcyclecounter")
        return builder.call(read, [])

    return types.intp(), codegen


@intrinsic
def copy_bytes(typingctx: Any, dst: Any, src: Any, nbytes: Any) -> Any:
    """Copy `nbytes` from address `src` to address `dst` (memmove)."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        dst, src, nbytes = args
        dst, src = builder.inttoptr(dst, i8p), builder.inttoptr(src, i8p)
        cgutils.raw_memmove(builder, dst, src, nbytes, 1)
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, types.intp), codegen


@intrinsic
def stream_line(typingctx: Any, dst: Any, src: Any) -> Any:
    """Copy 64 bytes to `dst`, a multiple of 64, past the caches; a `full_fence` orders it."""
    vector = ir.VectorType(i64, 4)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        hint = builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)])
        for half in (i64(0), i64(32)):
            to, from_ = (builder.inttoptr(builder.add(a, half), vector.as_pointer()) for a in args)
            builder.store(builder.load(from_, align=1), to, align=32)
            builder.block.instructions[-1].set_metadata("nontemporal", hint)
        return context.get_dummy_value()

    return types.void(types.intp, types.intp), codegen


@intrinsic
def prefetch_line(typingctx: Any, address: Any) -> Any:
    """Begin to load the 64 bytes around `address`; nothing happens if nothing is there."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        i32 = ir.IntType(32)
        signature = ir.FunctionType(ir.VoidType(), [i8p, i32, i32, i32])
        begin = cgutils.get_or_insert_function(builder.module, signature, "llvm.prefetch.p0i8")
        builder.call(begin, [builder.inttoptr(args[0], i8p), i32(0), i32(3), i32(1)])
        return context.get_dummy_value()

    return types.void(types.intp), codegen


@intrinsic
def load_acquire(typingctx: Any, address: Any) -> Any:
    """Load the 64-bit word at `address`; later accesses stay after it."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.load_atomic(builder.inttoptr(args[0], i64.as_pointer()), "acquire", 8)

    return types.intp(types.intp), codegen


@intrinsic
def word_at(typingctx: Any, address: Any) -> Any:
    """The 64-bit word at `address`."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.load(builder.inttoptr(args[0], i64.as_pointer()))

    return types.intp(types.intp), codegen


@intrinsic
def set_word(typingctx: Any, address: Any, value: Any) -> Any:
    """Set the 64-bit word at `address`."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        builder.store(args[1], builder.inttoptr(args[0], i64.as_pointer()))
        return context.get_dummy_value()

    return types.void(types.intp, types.intp), codegen


@intrinsic
def store_release(typingctx: Any, address: Any, value: Any) -> Any:
    """Store a 64-bit word at `address`; earlier accesses stay before it."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        address, value = args
        builder.store_atomic(value, builder.inttoptr(address, i64.as_pointer()), "release", 8)
        return context.get_dummy_value()

    return types.void(types.intp, types.intp), codegen


@intrinsic
def atomic_add_word(typingctx: Any, address: Any, value: Any) -> Any:
    """Add to the 64-bit word at `address`, return what it held; orders everything around it."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        address, value = args
        return builder.atomic_rmw(
            "add", builder.inttoptr(address, i64.as_pointer()), value, "seq_cst"
        )

    return types.intp(types.intp, types.intp), codegen


@intrinsic
def compare_swap_word(typingctx: Any, address: Any, expected: Any, value: Any) -> Any:
    """Set the 64-bit word at `address` if it is `expected`; return what it held."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        address, expected, value = args
        pointer = builder.inttoptr(address, i64.as_pointer())
        return builder.extract_value(
            builder.cmpxchg(pointer, expected, value, "seq_cst", "seq_cst"), 0
        )

    return types.intp(types.intp, types.intp, types.intp), codegen


@intrinsic
def call_address(typingctx: Any, function: Any, argument: Any) -> Any:
    """Call the C function `void f(int64)` at an address."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        fnty = ir.FunctionType(ir.VoidType(), [i64])
        builder.call(builder.inttoptr(args[0], fnty.as_pointer()), [args[1]])
        return context.get_dummy_value()

    return types.void(types.intp, types.intp), codegen


def _fence(ordering: str) -> Any:
    @intrinsic
    def fence(typingctx: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            builder.fence(ordering)
            return context.get_dummy_value()

        return types.void(), codegen

    return fence


release_fence = _fence("release")
full_fence = _fence("seq_cst")
