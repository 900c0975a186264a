"""What a GPU's code calls that is not code: each `Leaf` of a translation, as the engine's.

Memory orders are kept. Relaxed and volatile accesses are atomic ones of LLVM, `monotonic`, so they
are neither torn nor repeated nor left out; acquiring loads, releasing stores and fences are LLVM's;
scopes make no difference here, other than for an observer. A load of 16 bytes is two of 8: PTX
promises nothing of vectors as wholes. A thread that loads again and again what does not change lets
the others run (`look`).

Sources: PTX ISA 8.5, sections 8 (memory consistency model) and 9.7; NVVM IR specification.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba.core import cgutils
from numba.cuda import types

from gpushmem.errors import BackendUnavailable
from gpushmem.native.memory import i8p, i64, monotonic_ns
from gpushmem.native.structs import view
from gpushmem.simt.base.layout import LAUNCH, THREAD
from gpushmem.simt.base.llvm_contexts import new_context
from gpushmem.simt.bitcode.translate import Leaf
from gpushmem.simt.compiler import observer
from gpushmem.simt.compiler.primitives import (
    ASSERTED,
    PAUSE,
    as_fiber,
    as_launch,
    fail_if,
    fiber_word,
    load_field,
    pause,
    place,
    poll,
    text_word,
    thread_field,
    thread_word,
)
from gpushmem.simt.compiler.target import (
    INTRINSICS,
    SITE_ARG,
    THREAD_ARG,
    SimtBuilder,
    call_device,
    device,
    observe_access,
    simt_target,
)
from gpushmem.simt.intrinsics import nvvm
from gpushmem.simt.intrinsics.atomics import update
from gpushmem.simt.intrinsics.half_floats import narrow, widen

__all__ = ["define", "now", "places", "typed", "unseen_polls"]

i1, i16, i32 = (ir.IntType(n) for n in (1, 16, 32))
RESERVED = 1024  # bytes of shared memory that CUDA keeps in each block
as_thread = view(THREAD)
Generate = Callable[..., Any]
# Variable of a library that is elsewhere -> generates its address.
places: dict[str, Callable[[Any], Any]] = {}
WORDS = {"float": ir.FloatType(), "double": ir.DoubleType(), "half": ir.HalfType(), "ptr": i8p,
         "void": ir.VoidType()}  # fmt: skip


def typed(text: str) -> Any:
    """Llvmlite's type of LLVM's text."""
    text = text.strip()
    if text in WORDS:
        return WORDS[text]
    if re.fullmatch(r"i\d+", text):
        return ir.IntType(int(text[1:]))
    if re.fullmatch(r"\{[^{}]*\}", text):
        return ir.LiteralStructType([typed(part) for part in text.strip("{} ").split(",")])
    raise BackendUnavailable(
        f"the CPU engine cannot load, store, pass or return values of LLVM's type {text}, as a "
        "function of a bitcode library does"
    )


def define(module: ir.Module, leaf: Leaf) -> None:
    """Add the function of a leaf to a module.

    It has the arguments of the calling convention, and returns as a function of C. If what it
    calls fails, that is known to the launch, and the thread ends here.
    """
    generate = generator(leaf)
    arguments = [typed(a) for a in leaf.arguments]
    builder = _begin(module, leaf.name.strip('"'), typed(leaf.result), arguments)
    called = observer.moves() or leaf.what.startswith(LARGE)
    builder.function.attributes.add("noinline" if called else "alwaysinline")
    value = generate(builder, *builder.function.args[3:])
    if leaf.result == "void":
        builder.ret_void()
    else:
        builder.ret(value)


# Leaves that are called: they wait, or end the thread. Where accesses are moved, all are.
LARGE = (
    "llvm.nvvm.barrier", "bar.sync", "llvm.nvvm.bar.warp", "llvm.nvvm.shfl", "llvm.nvvm.vote",
    "llvm.nvvm.match", "llvm.nvvm.redux", "activemask", "nanosleep", "__assertfail", "printf",
)  # fmt: skip


def _begin(module: ir.Module, name: str, result: Any, arguments: list[Any]) -> SimtBuilder:
    kind = ir.FunctionType(result, [i8p, i8p, i8p, *arguments])
    builder = SimtBuilder(ir.Function(module, kind, name).append_basic_block("entry"))
    builder.simt_context = simt_target.target_context
    builder.simt_leave = lambda code: _leave(builder)
    return builder


def _leave(builder: ir.IRBuilder) -> None:
    """End the thread, which is a fiber: the reference to `PAUSE` makes it one."""
    thread = builder.function.args[THREAD_ARG]
    launch = builder.inttoptr(load_field(builder, THREAD, thread, "launch"), i8p)
    end = load_field(builder, LAUNCH, launch, "end_thread")
    kind = ir.FunctionType(ir.VoidType(), [i64])
    builder.call(builder.inttoptr(end, kind.as_pointer()), [builder.ptrtoint(thread, i64)])
    switch = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(ir.VoidType(), [i8p, i64]), PAUSE
    )
    builder.call(switch, [thread, i64(0)])  # which is never reached
    builder.unreachable()


def generator(leaf: Leaf) -> Generate:
    """The generator of a leaf's code; raises `BackendUnavailable` if there is none."""
    for pattern, make in PATTERNS:
        match = pattern.fullmatch(leaf.what)
        if match is not None:
            made = make(leaf, *match.groups())
            if made is not None:
                return made
    plain = INTRINSICS.get(leaf.what)
    if plain is not None:
        return plain
    shown = leaf.what.replace("\\0A", " ").replace("\\09", " ")
    raise BackendUnavailable(
        f"the CPU engine does not know `{' '.join(shown.split())}` ({leaf.detail or 'NVVM'}), "
        "which a function of a bitcode library uses"
    )


# --- memory


@device
def look(address, width, value):
    """After a load that may be one of a loop's: let the others run if nothing has changed.

    A thread that has said what it waits for waits; others poll. One that looks at several places in
    turn polls now and then.
    """
    fiber = as_fiber(fiber_word())
    same = fiber.looked == address and fiber.saw == value
    fiber.looked, fiber.saw = address, value
    fiber.looks += 1
    if same and fiber.what != 0:
        pause()
    elif same or fiber.looks & 15 == 0:
        if fiber.what == 0:
            poll(text_word("a function of NVSHMEM"), address, width)
        else:
            as_launch(fiber.launch).polls += 1
            pause()


def _looked(builder: Any, pointer: Any, value: Any) -> None:
    word = value
    if isinstance(value.type, ir.PointerType):
        word = builder.ptrtoint(value, i64)
    elif not isinstance(value.type, ir.IntType):
        word = builder.bitcast(value, _word_of(value.type))
    width = word.type.width // 8
    if word.type.width < i64.width:
        word = builder.zext(word, i64)
    words = [builder.ptrtoint(pointer, i64), i64(width), word]
    thread, site = builder.function.args[THREAD_ARG], builder.function.args[SITE_ARG]
    hidden = [i8p(None), thread, builder.simt_site or site]
    ir.IRBuilder.call(builder, _look(builder.module), [*hidden, *words])


def _look(module: ir.Module) -> ir.Function:
    """The module's function that calls `look`."""
    if LOOK not in module.globals:
        builder = _begin(module, LOOK, ir.VoidType(), [i64] * 3)
        builder.function.attributes.add("noinline")
        builder.function.linkage = "linkonce_odr"
        words = types.void(types.intp, types.intp, types.intp)
        call_device(builder, look, words, list(builder.function.args[3:]))
        builder.ret_void()
    return module.globals[LOOK]


LOOK = "simt.leaf.look"


# --- polling loops


def unseen_polls(builder: Any) -> None:
    """Let other threads run, in a loop that reads memory until it changes, unseen by the optimiser.

    As on a GPU, it may take out of the loop what nothing in the loop changes.
    """
    name = "simt.leaf.polls"
    declared = builder.module.globals.get(name)
    if declared is None:
        kind = ir.FunctionType(ir.VoidType(), [i8p, i8p, i8p])
        declared = ir.Function(builder.module, kind, name)
    builder.simt_context.active_code_library.add_linking_library(_polls())
    site = builder.simt_site or builder.function.args[SITE_ARG]
    hidden = [i8p(None), builder.function.args[THREAD_ARG], site]
    ir.IRBuilder.call(builder, declared, hidden)


@device
def poll_now_and_then():
    fiber = as_fiber(fiber_word())
    fiber.looks += 1
    if fiber.looks & 15 == 0:
        poll(text_word("a loop that reads memory"), 0, 8)


@cache
def _polls() -> Any:
    """The function that does so: of memory, it changes none that others can."""
    context = simt_target.target_context
    library = context.codegen().create_library("bitcode.polls")
    module = library.create_ir_module("bitcode.polls")
    with context.push_code_library(library):
        builder = _begin(module, "simt.leaf.polls.inside", ir.VoidType(), [])
        call_device(builder, poll_now_and_then, types.void(), [])
        builder.ret_void()
    library.add_ir_module(module)
    library.finalize()
    library.bitcode.insert(0, llvm.parse_assembly(POLLS, new_context()).as_bitcode())
    return library


POLLS = """
declare void @simt.leaf.polls.inside(ptr, ptr, ptr)
define linkonce_odr void @simt.leaf.polls(ptr %none, ptr %thread, ptr %site) #0 {
  call void @simt.leaf.polls.inside(ptr %none, ptr %thread, ptr %site)
  ret void
}
attributes #0 = { noinline optnone nounwind willreturn memory(inaccessiblemem: readwrite) }
"""


# --- accesses

ORDERS = {"": None, "weak": None, "volatile": "monotonic", "relaxed": "monotonic",
          "acquire": "acquire", "release": "release", "acq_rel": "acq_rel",
          "mmio": "monotonic", "mmio.relaxed": "monotonic"}  # fmt: skip


def _at(builder: Any, pointer: Any, kind: Any, offset: int = 0) -> Any:
    """A pointer that an observer takes for one to memory, whatever it comes from."""
    address = builder.ptrtoint(pointer, i64)
    if offset:
        address = builder.add(address, i64(offset))
    observe, builder.simt_observe = builder.simt_observe, None
    made = builder.inttoptr(address, kind.as_pointer())
    builder.simt_observe = observe
    return made


def _loaded(builder: Any, pointer: Any, kind: Any, order: str | None, offset: int = 0) -> Any:
    place = _at(builder, pointer, kind, offset)
    if order is None:
        return _seen(builder).load(place)
    word = _word_of(kind)
    place = builder.bitcast(place, word.as_pointer())
    load = partial(ir.IRBuilder.load_atomic, builder, place, order, word.width // 8)
    value = _seen(builder)._as_one(place, load, observer.RELAXED)
    if order == "acquire":
        _tell(builder, GPU)
    return _as(builder, value, kind)


def _stored(builder: Any, value: Any, pointer: Any, order: str | None, offset: int = 0) -> None:
    place = _at(builder, pointer, value.type, offset)
    if order is None:
        _seen(builder).store(value, place)
        return
    word = _word_of(value.type)
    place = builder.bitcast(place, word.as_pointer())
    bits = _as(builder, value, word)
    store = partial(ir.IRBuilder.store_atomic, builder, bits, place, order, word.width // 8)
    if order == "release":
        _tell(builder, GPU)
    _seen(builder)._as_one(place, store, observer.RELAXED)


GPU = 1  # a scope


def _tell(builder: Any, scope: int) -> None:
    """Tell the observer of a fence, or of an access that orders as one does."""
    if observer.moves():
        nvvm.tell(builder, "fences", (types.intp, i64(scope)))


def _word_of(kind: Any) -> Any:
    if isinstance(kind, ir.IntType):
        return kind
    return i64 if isinstance(kind, ir.PointerType | ir.DoubleType) else (
        i32 if isinstance(kind, ir.FloatType) else i16
    )  # fmt: skip


def _as(builder: Any, value: Any, kind: Any) -> Any:
    if value.type == kind:
        return value
    if isinstance(kind, ir.PointerType):
        return builder.inttoptr(value, kind)
    if isinstance(value.type, ir.PointerType):
        return builder.ptrtoint(value, kind)
    return builder.bitcast(value, kind)


def _seen(builder: Any) -> Any:
    """The builder, whose accesses an observer sees if there is one."""
    if observer.moves():
        builder.simt_observe = observe_access
    return builder


def _plain(leaf: Leaf, volatile: str | None, what: str) -> Generate:
    """Loads and stores of C++, also volatile ones."""
    order = "monotonic" if volatile else None

    def load(builder: Any, pointer: Any) -> Any:
        value = _loaded(builder, pointer, typed(leaf.result), order)
        if volatile:
            _looked(builder, pointer, value)
        return value

    def store(builder: Any, pointer: Any, value: Any) -> None:
        _stored(builder, value, pointer, order)

    return load if what == "load" else store


def _access(
    leaf: Leaf, what: str, order: str, scope: str | None, many: str | None, letter: str, bits: str
) -> Generate | None:
    """Loads and stores of PTX."""
    if order not in ORDERS:
        return None
    n, word = int(many or 1), ir.IntType(int(bits))
    # Two neighbours are one word of 8 bytes where they fit: data and flag of NVSHMEM's LL protocol.
    joined = n == 4 and word == i32

    def load(builder: Any, pointer: Any) -> Any:
        if joined:
            pairs = [_loaded(builder, pointer, i64, ORDERS[order], 8 * k) for k in range(2)]
            values = [
                builder.trunc(builder.lshr(pair, i64(32 * half)), i32)
                for pair in pairs for half in range(2)
            ]  # fmt: skip
        else:
            values = [
                _loaded(builder, pointer, word, ORDERS[order], k * word.width // 8)
                for k in range(n)
            ]
        if ORDERS[order] is not None:
            _looked(builder, pointer, values[-1])
        wanted = typed(leaf.result)
        if n == 1 and isinstance(wanted, ir.IntType) and wanted.width > word.width:
            return (builder.sext if letter == "s" else builder.zext)(values[0], wanted)
        if n == 1:
            return _as(builder, values[0], wanted)
        return cgutils.pack_struct(builder, values)

    def store(builder: Any, pointer: Any, *values: Any) -> None:
        if joined:
            wide = [builder.zext(value, i64) for value in values]
            for k in range(2):
                pair = builder.or_(wide[2 * k], builder.shl(wide[2 * k + 1], i64(32)))
                _stored(builder, pair, pointer, ORDERS[order], 8 * k)
            return
        for k, value in enumerate(values):
            fits = value.type == word or not isinstance(value.type, ir.IntType)
            part = value if fits else builder.trunc(value, word)
            _stored(builder, part, pointer, ORDERS[order], k * word.width // 8)

    return load if what == "ld" else store


ATOMICS = {"add": "add", "and": "and", "or": "or", "xor": "xor", "exch": "xchg", "max": "max",
           "min": "min", "inc": "uinc_wrap", "dec": "udec_wrap"}  # fmt: skip


def _changing(op: str, order: str, orders: bool) -> Generate:
    """LLVM's `atomicrmw`; `orders`: whether it does, on a GPU, order other accesses."""
    seen_as = observer.OTHER if orders else observer.RELAXED

    def change(builder: Any, pointer: Any, value: Any) -> Any:
        place = _at(builder, pointer, value.type)
        generate = partial(INTRINSICS["atomicrmw"], builder, op, place, value, order)
        old = _seen(builder)._as_one(place, generate, seen_as)
        _looked(builder, pointer, old)
        return old

    return change


def _swapping(order: str, failing: str, orders: bool, whole: bool) -> Generate:
    """LLVM's `cmpxchg`: all that it returns, or what was there."""
    seen_as = observer.OTHER if orders else observer.RELAXED

    def swap(builder: Any, pointer: Any, expected: Any, value: Any) -> Any:
        place = _at(builder, pointer, value.type)
        generate = partial(ir.IRBuilder.cmpxchg, builder, place, expected, value, order, failing)
        both = _seen(builder)._as_one(place, generate, seen_as)
        old = builder.extract_value(both, 0)
        _looked(builder, pointer, old)
        return both if whole else old

    return swap


def _atomic(leaf: Leaf, op: str, order: str, letter: str) -> Generate | None:
    """Atomic operations of PTX and NVVM."""
    memory_order = ORDERS.get(order) or "monotonic"
    orders = memory_order != "monotonic"
    if op == "cas":
        failing = "acquire" if memory_order in ("acquire", "acq_rel") else "monotonic"
        return _swapping(memory_order, failing, orders, whole=False)
    which = ATOMICS.get(op)
    if which is None:
        return None
    if letter == "f":
        which = "f" + which
    elif letter == "u" and op in ("max", "min"):
        which = "u" + which
    return _changing(which, memory_order, orders)


def _rmw(leaf: Leaf, op: str) -> Generate:
    """CUDA's atomic functions, which order nothing, whatever LLVM's text says of them."""
    return _changing(op, leaf.detail, orders=False)


def _cas(leaf: Leaf) -> Generate:
    order, failing = leaf.detail.split()
    return _swapping(order, failing, orders=False, whole=True)


SCOPES = {"cta": "llvm.nvvm.membar.cta", "block": "llvm.nvvm.membar.cta",
          "gpu": "llvm.nvvm.membar.gl", "device": "llvm.nvvm.membar.gl",
          "sys": "llvm.nvvm.membar.sys", "gl": "llvm.nvvm.membar.gl"}  # fmt: skip


def _fence(leaf: Leaf, scope: str) -> Generate | None:
    return INTRINSICS.get(SCOPES.get(scope, ""))


def _cpp_fence(leaf: Leaf) -> Generate | None:
    return _fence(leaf, leaf.detail.split()[1])


# --- threads


@device
def check_barrier(number, count):
    bdim = as_thread(thread_word()).bdim
    whole = number == 0 and (count == 0 or count == bdim[0] * bdim[1] * bdim[2])
    text = text_word("a barrier of the whole block, number 0")
    fail_if(not whole, ASSERTED, text, text_word("PTX"), 0, text_word("bar.sync"))


def _barrier(leaf: Leaf) -> Generate:
    """Barriers of the whole block, number 0; others end the thread."""

    def meet(builder: Any, number: Any, count: Any = None) -> None:
        threads = i32(0) if count is None else count
        words = [builder.zext(word, i64) for word in (number, threads)]
        call_device(builder, check_barrier, types.void(types.intp, types.intp), words)
        INTRINSICS["llvm.nvvm.barrier0"](builder)

    return meet


def _laneid(leaf: Leaf) -> Generate:
    return nvvm.laneid


MODES = {"idx": 0, "up": 1, "down": 2, "bfly": 3}
VOTES = {"all": 0, "any": 1, "uni": 2, "ballot": 3}


def _shuffle(leaf: Leaf, mode: str, letter: str) -> Generate:
    def exchange(builder: Any, mask: Any, value: Any, lane: Any, clamp: Any) -> Any:
        kind = value.type
        both = nvvm.shuffle(builder, mask, i32(MODES[mode]), _as(builder, value, i32), lane, clamp)
        return _as(builder, builder.extract_value(both, 0), kind)

    return exchange


def _vote(leaf: Leaf, mode: str) -> Generate:
    def vote(builder: Any, mask: Any, predicate: Any) -> Any:
        both = nvvm.vote(builder, mask, i32(VOTES[mode]), predicate)
        return builder.extract_value(both, 0 if mode == "ballot" else 1)

    return vote


def _match_all(leaf: Leaf, bits: str) -> Generate:
    return nvvm.match_all


@device
def check_mask(mask):
    text = text_word("a mask of all lanes")
    fail_if(mask != -1, ASSERTED, text, text_word("PTX"), 0, text_word("redux.sync"))


def _redux(leaf: Leaf) -> Generate:
    """The sum of all lanes' values, by five exchanges; another mask ends the thread."""

    def total(builder: Any, value: Any, mask: Any) -> Any:
        call_device(builder, check_mask, types.void(types.intp), [builder.sext(mask, i64)])
        for distance in (16, 8, 4, 2, 1):
            both = nvvm.shuffle(builder, mask, i32(3), value, i32(distance), i32(31))
            value = builder.add(value, builder.extract_value(both, 0))
        return value

    return total


def _globaltimer(leaf: Leaf) -> Generate:
    return now


def now(builder: Any) -> Any:
    """What `%globaltimer` shows."""
    return call_device(builder, clock, types.intp(), [])


@device
def clock():
    return monotonic_ns()


def _gridid(leaf: Leaf) -> Generate:
    """A number of the launch: its address, which no other has at the same time."""
    return lambda builder: thread_field(builder, "launch")


def _zero(leaf: Leaf) -> Generate:
    return lambda builder, *args: typed(leaf.result)(0)


# --- arithmetic


def _bfind(leaf: Leaf) -> Generate:
    """How far the highest bit that is set is from the top; all ones if none is."""

    def find(builder: Any, value: Any) -> Any:
        zeros = builder.ctlz(value, i1(0))
        none = builder.icmp_unsigned("==", value, i32(0))
        return builder.select(none, i32(-1), zeros)

    return find


def _funnel(leaf: Leaf) -> Generate:
    """The lower word of two, as one, shifted to the right."""

    def shift(builder: Any, low: Any, high: Any, by: Any) -> Any:
        both = builder.or_(builder.zext(low, i64), builder.shl(builder.zext(high, i64), i64(32)))
        by = builder.zext(builder.and_(by, i32(31)), i64)
        return builder.trunc(builder.lshr(both, by), i32)

    return shift


def _reserved(leaf: Leaf) -> Generate:
    """The part of a block's shared memory that CUDA keeps for cooperative groups."""

    def find(builder: Any) -> Any:
        name = f"simt.shared.reserved.{RESERVED}.16"
        return builder.ptrtoint(place(builder, name), i64)

    return find


def _pair(leaf: Leaf) -> Generate:
    return lambda builder, first, second: cgutils.pack_struct(builder, [first, second])


def _half(leaf: Leaf, op: str, fmt: str) -> Generate:
    """Sums and products of 16-bit floats."""
    kind = "half" if fmt == "f16" else "bfloat"

    def compute(builder: Any, a: Any, b: Any) -> Any:
        method = builder.fadd if op == "add" else builder.fmul
        return narrow(kind, builder, method(widen(kind, builder, a), widen(kind, builder, b)))

    return compute


def _add_half(leaf: Leaf, fmt: str) -> Generate:
    def add(builder: Any, pointer: Any, value: Any) -> Any:
        compute = _half(leaf, "add", fmt)
        place = _at(builder, pointer, i16)
        return update(builder, place, lambda old: (compute(builder, old, value), i1(1)))

    return add


def _compare_halves(leaf: Leaf, op: str, fmt: str) -> Generate:
    kind = "half" if fmt == "f16" else "bfloat"
    yes = {"f16": 1, "f32": 0xFFFFFFFF}

    def compare(builder: Any, a: Any, b: Any) -> Any:
        sign = {"lt": "<", "gt": ">"}[op]
        found = builder.fcmp_ordered(sign, widen(kind, builder, a), widen(kind, builder, b))
        result = typed(leaf.result)
        return builder.select(found, result(yes[fmt]), result(0))

    return compare


# --- the C library of CUDA


@device
def fail_asserted(text, file, line, function):
    fail_if(True, ASSERTED, text, file, line, function)


def _assert(leaf: Leaf) -> Generate:
    def fail(builder: Any, text: Any, file: Any, line: Any, function: Any, size: Any) -> None:
        words = [builder.ptrtoint(p, i64) for p in (text, file, function)]
        args = [words[0], words[1], builder.zext(line, i64), words[2]]
        call_device(builder, fail_asserted, types.void(*[types.intp] * 4), args)

    return fail


def _printf(leaf: Leaf) -> Generate:
    """Print what is packed as C passes it: integers of 4 or 8 bytes, pointers, doubles."""
    formats = leaf.detail.split()
    fields = [ir.DoubleType() if f[-1] in "aAeEfFgG" else
              i64 if "l" in f or "z" in f or f[-1] in "ps" else i32 for f in formats]  # fmt: skip

    def show(builder: Any, text: Any, packed: Any) -> Any:
        kind = ir.LiteralStructType(fields)
        source = builder.bitcast(packed, kind.as_pointer())
        return nvvm.vprintf(builder, text, builder.bitcast(source, i8p))

    return show


def _address(leaf: Leaf, variable: str) -> Generate:
    return places[variable]


PATTERNS: list[tuple[re.Pattern[str], Callable[..., Generate | None]]] = [
    (re.compile(pattern), make)
    for pattern, make in (
        (r"(volatile )?(load|store)", _plain),
        (r"(ld|st)(?:\.(volatile|weak|relaxed|acquire|release|mmio\.relaxed|mmio))?"
         r"(?:\.(cta|gpu|sys|cs))?(?:\.global)?(?:\.L1::no_allocate)?(?:\.v([24]))?"
         r"\.([bus])(8|16|32|64)\s.*", lambda leaf, what, order, *rest: _access(
             leaf, what, order or "", *rest)),
        (r"atom\.(\w+)\.(\w+)\.(?:cta|gpu|sys)\.([usbf])(?:32|64) .*", _atomic),
        (r"llvm\.nvvm\.atomic\.(\w+)\.gen\.([if])\.(?:cta|gpu|sys)\.[if](?:32|64)\.p0",
         lambda leaf, op, letter: _atomic(
             leaf, op, "relaxed", "u" if op in ("max", "min") and letter == "i" else letter)),
        (r"rmw (\w+)", _rmw),
        (r"cas", _cas),
        (r"fence\.acq_rel\.(\w+);", _fence),
        (r"fence", _cpp_fence),
        (r"llvm\.nvvm\.barrier\.cta\.sync\.aligned\.all|bar\.sync \$0, \$1;", _barrier),
        (r"mov\.u32\s+\$0,\s+%laneid;", _laneid),
        (r"mov\.u32\s+\$0,\s+%smid;", _zero),
        (r"mov\.u64\s+\$0,\s+%globaltimer;", _globaltimer),
        (r"mov\.u64\s+\$0,\s+%gridid;", _gridid),
        (r"llvm\.nvvm\.shfl\.sync\.(\w+)\.([if])32", _shuffle),
        (r"llvm\.nvvm\.vote\.(\w+)\.sync", _vote),
        (r"llvm\.nvvm\.match\.all\.sync\.i(32|64)p", _match_all),
        (r"llvm\.nvvm\.redux\.sync\.add", _redux),
        (r"isspacep\.local \$0, \$1;|llvm\.nvvm\.isspacep\.local", _zero),
        (r"\{.*%reserved_smem_offset_1;.*", _reserved),
        (r"bfind\.shiftamt\.u32 \$0, \$1;", _bfind),
        (r"mov\.b64 \$0, \$2;.*mov\.b64 \$1, \$3;", _pair),
        (r"\{(add|mul)\.(f16) .*", _half),
        (r"\{.*0x(3f80|8000)U;.*fma\.rn\.bf16 .*", lambda leaf, one: _half(
            leaf, "add" if one == "3f80" else "mul", "bf16")),
        (r"\{ atom\.add\.noftz\.(f16) .*", _add_half),
        (r"shf\.r\.wrap\.b32 .*", _funnel),
        (r"\{.*setp\.(lt|gt)\.(f16) .*", _compare_halves),
        (r"\{.*set\.(lt|gt)\.f32\.(f32) .*", _compare_halves),
        (r"__assertfail", _assert),
        (r"printf", _printf),
        (r"address of (\w+)", _address),
    )
]  # fmt: skip
