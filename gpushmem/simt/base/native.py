"""Memory and the C library, from compiled code of any Numba target.

All addresses and words are signed 64-bit integers: Numba would turn a mix of signed and unsigned
ones into floats. The atomics are what processes share memory through, so they are never merged,
hoisted or torn by the compiler.
"""

from __future__ import annotations

import ctypes
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils, config, extending
from numba.core.codegen import JITCPUCodegen, get_host_cpu_features
from numba.core.compiler_lock import global_compiler_lock
from numba.cuda import extending as cuda_extending

from gpushmem import settings, store
from gpushmem.artifacts.toolchain import engine
from gpushmem.garbage import seldom_collected
from gpushmem.simt.base.c_code import module_of

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
usleep = types.ExternalFunction("usleep", int_(types.uintc))
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


# --- C functions kept from run to run


@dataclass(frozen=True)
class CFunction:
    """A compiled C function: its code, and where its entry is."""

    name: str
    library: Any

    @property
    def address(self) -> int:
        """Address of the entry."""
        return int(self.library.get_pointer_to_function(self.name))

    def dump(self) -> bytes:
        """The function as bytes."""
        return pickle.dumps((self.name, self.library.serialize_using_object_code()))

    @staticmethod
    def load(data: bytes) -> CFunction:
        """Read what `dump` wrote."""
        name, code = pickle.loads(data)  # noqa: S301  (`disk` checks the owner)
        return CFunction(name, _codegen().unserialize_library(code))

    def callable(self, result: Any, *arguments: Any) -> Callable[..., Any]:
        """The function for Python, by ctypes' types; it releases the GIL while it runs."""
        function = ctypes.CFUNCTYPE(result, *arguments)(self.address)
        function._keep = self  # type: ignore[attr-defined]
        return function


def c_function(signature: Any, function: Callable[..., Any], *more: Any) -> CFunction:
    """Compile a function of this package to a C function, or take it from the store.

    `more` tells functions of the same name apart. Functions from the store are loaded without
    Numba's CPU target, which takes half a second to start.
    """
    where = function.__module__, function.__qualname__, str(signature), *more
    name = store.key("c_function", where, _codegen().magic_tuple(), engine()) + store.ENGINE

    def build() -> CFunction:
        entry = f"{function.__qualname__}.{name}"
        module = module_of(function, signature, entry)
        for each in module.functions:
            if not each.is_declaration and each.name != entry:
                each.linkage = "internal"
        library = _codegen().create_library(entry)
        library.enable_object_caching()
        library.add_llvm_module(module)
        library.finalize()
        return CFunction(entry, library)

    # Compiling a kernel holds the lock, and may need this function.
    with global_compiler_lock, seldom_collected():
        return store.get_or_build(name, build, CFunction.dump, CFunction.load)


# Processors that C functions are compiled for, the best first, and what the best needs.
LEVELS = {
    "x86-64-v3": {"avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe"},
    "x86-64-v2": {"cx16", "popcnt", "sse3", "sse4.1", "sse4.2", "ssse3"},
}


@cache
def level() -> str | None:
    """The processor that C functions are compiled for; None: this machine's own."""
    if config.CPU_NAME is not None or config.CPU_FEATURES is not None:
        return None
    features = get_host_cpu_features()
    has = {each[1:] for each in features.split(",") if each.startswith("+")}
    asked = settings.get("GPUSHMEM_CPU")
    fit = [name for name, needed in LEVELS.items() if needed <= has]
    return asked if asked in fit else next(iter(fit), None)


class _Codegen(JITCPUCodegen):
    """Makes code for all machines of a level, so that it can be installed with the package."""

    def _get_host_cpu_name(self) -> str:
        return level() or super()._get_host_cpu_name()

    def _get_host_cpu_features(self) -> str:
        return "" if level() else super()._get_host_cpu_features()


@cache
def _codegen() -> Any:
    return _Codegen("simt.c")
