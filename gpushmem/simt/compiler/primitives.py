"""The engine's services to kernel code: identity, waiting, yielding, failing, shared arrays.

The code of `numba.cuda` names (`numba_cuda_names`) and of an embedder's operations is written with
these intrinsics, as ordinary device functions. They exist on the `simt` target only.

Waiting follows one pattern, cheap when there is nothing to wait for::

    if not ready():
        begin_wait("name", address, compare, wanted, width)
        while not ready():
            pause()
        end_wait()

Between `begin_wait` and `end_wait` the thread's record describes its wait (`waits.py` reads it). A
kernel that refers to `pause` runs on fibers, not in a plain loop.
"""

from __future__ import annotations

import itertools
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.cuda.core.errors import RequireLiteralValue

from gpushmem.native.memory import atomic_add_word, i8p, i64, intrinsic, release_fence
from gpushmem.native.structs import offset, view
from gpushmem.simt.base.layout import FIBER, LAUNCH, THREAD
from gpushmem.simt.compiler.cached_functions import outlined
from gpushmem.simt.compiler.symbols import FAILURE, OBSERVED, SHARED
from gpushmem.simt.compiler.target import SITE_ARG, THREAD_ARG, device

__all__ = [
    "ASSERTED",
    "DYNAMIC_START",
    "LOOKS",
    "alone",
    "begin_wait",
    "block_of",
    "core_launch",
    "core_word",
    "end_wait",
    "enter_timed",
    "fail_if",
    "fail_with",
    "launch_word",
    "leave_timed",
    "pause",
    "place",
    "place_name",
    "poll",
    "thread_field",
    "thread_of",
    "unpacked",
    "user_word",
]

PAUSE = "simt_switch"  # a kernel that refers to this symbol runs on fibers
# Failure code, beside those of `groups`: an assertion of a bitcode library. The values: the address
# of its text and of the file's name, the line, and the address of the function's name.
ASSERTED = 68

as_fiber, as_launch, as_thread = view(FIBER), view(LAUNCH), view(THREAD)
TIMED = offset(LAUNCH, "timed")
# FIBER.compare of a thread that polls, or waits for lanes (`wanted`: a mask); see also `groups`
POLLING, LANE_MEETING = -2, -3
THREAD_OF = offset(FIBER, "thread")


# --- the hidden context


def hidden(builder: ir.IRBuilder, index: int) -> ir.Value:
    """The hidden argument of the function being built."""
    return builder.function.args[index]


def load_field(
    builder: ir.IRBuilder, struct: Any, pointer: ir.Value, field: str, axis: int = 0
) -> ir.Value:
    """Load `field` (element `axis` of it) of the native `struct` at `pointer`."""
    base = struct.fields[field][0].base
    at = builder.gep(pointer, [i64(offset(struct, field) + axis * base.itemsize)])
    return builder.load(builder.bitcast(at, ir.IntType(8 * base.itemsize).as_pointer()))


def store_field(
    builder: ir.IRBuilder,
    struct: Any,
    pointer: ir.Value,
    field: str,
    value: ir.Value,
    axis: int = 0,
) -> None:
    """Store to `field` (element `axis` of it) of the native `struct` at `pointer`."""
    base = struct.fields[field][0].base
    at = builder.gep(pointer, [i64(offset(struct, field) + axis * base.itemsize)])
    builder.store(value, builder.bitcast(at, value.type.as_pointer()))


def thread_field(builder: ir.IRBuilder, field: str, axis: int = 0) -> ir.Value:
    """Load a field of the calling thread's THREAD, for use in code generators."""
    return load_field(builder, THREAD, hidden(builder, THREAD_ARG), field, axis)


def assume(builder: ir.IRBuilder, condition: ir.Value) -> None:
    """Tell the optimiser that a condition always holds."""
    fnty = ir.FunctionType(ir.VoidType(), [ir.IntType(1)])
    builder.call(cgutils.get_or_insert_function(builder.module, fnty, "llvm.assume"), [condition])


def _thread_word(field: str) -> Any:
    @intrinsic
    def word(typingctx: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            if field == "user":
                vars(builder.module)["simt_embedded"] = True  # it needs an embedder: see `entry`
            return thread_field(builder, field)

        return types.intp(), codegen

    return word


user_word = _thread_word("user")
launch_word = _thread_word("launch")
fiber_word = _thread_word("fiber")


def core_launch(builder: ir.IRBuilder) -> ir.Value:
    """Address of the LAUNCH of the core that the calling thread runs on: see `layout`."""
    launch, fiber = thread_field(builder, "launch"), thread_field(builder, "fiber")
    here = cgutils.alloca_once_value(builder, launch)
    with builder.if_then(builder.icmp_signed("!=", fiber, i64(0))):
        its = load_field(builder, FIBER, builder.inttoptr(fiber, i8p), "launch")
        builder.store(its, here)
    return builder.load(here)


@intrinsic
def core_word(typingctx: Any) -> Any:
    """`core_launch`, called by device functions."""
    return types.intp(), lambda context, builder, sig, args: core_launch(builder)


@intrinsic
def thread_word(typingctx: Any) -> Any:
    """Address of the calling thread's THREAD."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.ptrtoint(hidden(builder, THREAD_ARG), i64)

    return types.intp(), codegen


@intrinsic
def site_word(typingctx: Any) -> Any:
    """Address of the text naming the kernel's current line."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.ptrtoint(hidden(builder, SITE_ARG), i64)

    return types.intp(), codegen


@intrinsic(prefer_literal=True)
def text_word(typingctx: Any, text: Any) -> Any:
    """Address of a literal as a C string."""
    if not isinstance(text, types.StringLiteral):
        raise RequireLiteralValue("text must be a literal string")

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.ptrtoint(
            context.insert_const_string(builder.module, text.literal_value), i64
        )

    return types.intp(text), codegen


# --- waiting


@intrinsic
def pause(typingctx: Any) -> Any:
    """Yield to the next thread of the ring; returns in this thread's next turn."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        switch = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(ir.VoidType(), [i8p, i64]), PAUSE
        )
        fiber = builder.inttoptr(thread_field(builder, "fiber"), i8p)
        following = builder.inttoptr(load_field(builder, FIBER, fiber, "next"), i8p)
        builder.call(switch, [fiber, load_field(builder, FIBER, following, "sp")])
        return context.get_dummy_value()

    assert offset(FIBER, "sp") == 0
    return types.void(), codegen


@intrinsic
def alone(typingctx: Any) -> Any:
    """Whether no other thread of the launch is resident, to which `pause` would yield."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        fiber = thread_field(builder, "fiber")
        following = fiber
        for _ in range(2):  # round the ring: the scheduler, and this thread again
            pointer = builder.inttoptr(following, i8p)
            following = load_field(builder, FIBER, pointer, "next")
        return builder.icmp_signed("==", following, fiber)

    return types.boolean(), codegen


LOOKS = 32  # how often a thread that is alone polls before it yields


@outlined
def begin_wait(what, address, compare, wanted, width):
    """Record that the calling thread starts to wait; `what` is a `text_word`.

    `width`: bytes of the value at `address`, negative if it is signed.
    """
    fiber = as_fiber(fiber_word())
    as_launch(fiber.launch).progress += 1
    release_fence()  # the record is not visible before the progress
    fiber.site = site_word()
    fiber.address = address
    fiber.compare = compare
    fiber.wanted = wanted
    fiber.width = width
    fiber.waits += 1
    fiber.what = what


@device
def end_wait():
    """Record that the wait is over."""
    as_fiber(fiber_word()).what = 0
    release_fence()  # later accesses are not visible before the end of the wait


@device
def enter_timed():
    """Record, after `begin_wait`, that the wait has a timeout.

    It counts as a poll: a loop around waits that run out of time is no progress.
    """
    atomic_add_word(launch_word() + TIMED, 1)
    launch = as_launch(as_fiber(fiber_word()).launch)
    launch.progress -= 1
    launch.polls += 1


@device
def leave_timed(held):
    """Record, beside `end_wait`, that a wait with a timeout is over, and whether it `held`."""
    atomic_add_word(launch_word() + TIMED, -1)
    if held:
        as_launch(as_fiber(fiber_word()).launch).progress += 1


@device
def poll(what, address, width):
    """Let the others run once: for operations that programs call in loops until they see a change.

    Meanwhile the record says that the thread polls `address` with the operation `what`.
    """
    fiber = as_fiber(fiber_word())
    fiber.site, fiber.address, fiber.compare, fiber.what = site_word(), address, POLLING, what
    fiber.width = width
    as_launch(fiber.launch).polls += 1
    pause()
    fiber.what = 0


# --- failing


def record_failure(
    builder: ir.IRBuilder, thread: ir.Value, code: ir.Value, site: ir.Value, values: Any
) -> None:
    """Record the launch's first failure, with the thread.

    A call, not code of the kernel's: it would be most of what the optimiser has to read. It gets
    what THREAD says, not the THREAD, which can then be in registers.
    """
    said = [load_field(builder, THREAD, thread, "launch"), code, builder.ptrtoint(site, i64)]
    said += [load_field(builder, THREAD, thread, field, axis) for field, axis in WHICH]
    builder.call(_recorder(builder.module, len(values)), [*said, *values])


WHICH = [(field, axis) for axis in range(3) for field in ("tid", "bid")]


def _recorder(module: ir.Module, n_values: int) -> ir.Function:
    """The function that `record_failure` calls; it is the same in all modules."""
    i32 = ir.IntType(32)
    fnty = ir.FunctionType(ir.VoidType(), [i64] * 3 + [i32] * len(WHICH) + [i64] * n_values)
    record = cgutils.get_or_insert_function(module, fnty, f"{FAILURE}{n_values}")
    if not record.is_declaration:
        return record
    record.linkage = "linkonce_odr"
    record.attributes.update(("cold", "noinline", "nounwind"))
    builder = ir.IRBuilder(record.append_basic_block("entry"))
    address, code, site, *numbers = record.args
    launch = builder.inttoptr(address, i8p)
    failed = load_field(builder, LAUNCH, launch, "failed")
    with builder.if_then(builder.icmp_signed("==", failed, i64(0))):
        store_field(builder, LAUNCH, launch, "failed", code)
        store_field(builder, LAUNCH, launch, "site", site)
        for (field, axis), value in zip(WHICH, numbers, strict=False):
            store_field(builder, LAUNCH, launch, f"failed_{field}", value, axis)
        for k, value in enumerate(numbers[len(WHICH) :]):
            store_field(builder, LAUNCH, launch, "values", value, k)
    builder.ret_void()
    return record


@intrinsic
def fail_if(typingctx: Any, condition: Any, code: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    """End the launch with failure `code` > 1 and four numbers for its message, if `condition`."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        condition, code, *values = args
        with builder.if_then(condition, likely=False):
            record_failure(
                builder, hidden(builder, THREAD_ARG), code, hidden(builder, SITE_ARG), values
            )
            context.call_conv.return_user_exc(builder, RuntimeError, loc=None)
        return context.get_dummy_value()

    word = types.intp
    return types.void(types.boolean, word, word, word, word, word), codegen


@intrinsic
def fail_with(typingctx: Any, condition: Any, code: Any, values: Any) -> Any:
    """`fail_if` with a tuple of up to eight numbers."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        condition, code, packed = args
        with builder.if_then(condition, likely=False):
            numbers = cgutils.unpack_tuple(builder, packed)
            record_failure(
                builder, hidden(builder, THREAD_ARG), code, hidden(builder, SITE_ARG), numbers
            )
            context.call_conv.return_user_exc(builder, RuntimeError, loc=None)
        return context.get_dummy_value()

    words = types.UniTuple(types.intp, len(values))
    return types.void(types.boolean, types.intp, words), codegen


@device
def thread_of(fiber):
    """The number in its block of a FIBER's thread, as one word; see `unpacked`."""
    tid = as_thread(fiber + THREAD_OF).tid
    return types.intp(tid[0]) | types.intp(tid[1]) << 32 | types.intp(tid[2]) << 48


@device
def block_of(fiber):
    """The number of a FIBER's block, as one word."""
    bid = as_thread(fiber + THREAD_OF).bid
    return types.intp(bid[0]) | types.intp(bid[1]) << 32 | types.intp(bid[2]) << 48


def unpacked(word: int) -> tuple[int, int, int]:
    """What `thread_of` and `block_of` have packed."""
    return word & 0xFFFFFFFF, word >> 32 & 0xFFFF, word >> 48 & 0xFFFF


# --- static placement of shared arrays


def place_name(nbytes: int, align: int) -> str:
    """The name of a new place in the block's shared memory."""
    return f"{SHARED}{next(_serial)}.{nbytes}.{align}"


def place(builder: ir.IRBuilder, name: str) -> ir.Value:
    """Address of a place in the block's shared memory, the same at every execution.

    The offset is a constant that `entry` chooses when it knows all arrays of the kernel: an
    undefined global here, whose name carries size and alignment. `DYNAMIC_START` is the place of
    the dynamic memory, which follows all others.
    """
    start = builder.load(_constant(builder, name))
    return builder.inttoptr(builder.add(thread_field(builder, "shared"), start), i8p)


def dynamic_start(builder: ir.IRBuilder) -> ir.Value:
    """Bytes of static shared arrays, rounded up: where the dynamic ones begin."""
    return builder.load(_constant(builder, DYNAMIC_START))


def _constant(builder: ir.IRBuilder, name: str) -> ir.GlobalVariable:
    """A number that `entry` defines when the whole kernel is known."""
    start = builder.module.globals.get(name)
    if start is None:
        start = ir.GlobalVariable(builder.module, i64, name)
        start.global_constant = True
    return start


def observer_place(builder: ir.IRBuilder) -> ir.Value:
    """Address of memory of the launch that is the observer's, for the access that is lowered."""
    start = builder.load(_constant(builder, f"{OBSERVED}{next(_serial)}"))
    return builder.add(thread_field(builder, "places"), start)


DYNAMIC_START = "simt.dynamic"
_serial = itertools.count()
