"""From a compiled kernel body to a function that runs a whole grid.

The body is linked with everything it calls into one module. There are three kinds of entry. If the
module does not refer to `pause`, it is a loop nest over blocks and threads with the body inlined,
which LLVM vectorises. If it does, `scheduler.run` drives fibers: one for each block where `blocks`
can make functions of a whole block of the kernel, otherwise one for each thread. In each case it is
the C function `void entry(LAUNCH*)`; the kernel's arguments are at `LAUNCH.args`, 8 bytes for each
of the values that numba-cuda makes of them (`pack`).
"""

from __future__ import annotations

import ctypes
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any, NamedTuple

import llvmlite.binding as llvm
from llvmlite import ir
from llvmlite.binding import Linkage
from numba.core.base import _load_global_helpers
from numba.core.codegen import CPUCodeLibrary, JITCPUCodegen
from numba.core.compiler_lock import global_compiler_lock as core_lock
from numba.cuda import types

from gpushmem.artifacts.gpu_limits import MAX_THREADS
from gpushmem.errors import BackendUnavailable
from gpushmem.native.memory import i8p, i64
from gpushmem.simt.base import fiber, llvm_passes, printing
from gpushmem.simt.base.external_functions import suppliers, supply
from gpushmem.simt.base.function_attributes import with_attributes
from gpushmem.simt.base.layout import BLOCK as BLOCK_FIELDS
from gpushmem.simt.base.layout import FIBER, FRAME_ALIGN, LAUNCH, SPREAD, THREAD
from gpushmem.simt.bitcode import declare_device as _declared  # noqa: F401  (it fills INTRINSICS)
from gpushmem.simt.blocks.transform import BLOCK, LANE, SITES, Lockstep, in_lockstep
from gpushmem.simt.blocks.vector_instructions import WIDTH
from gpushmem.simt.compiler import observer
from gpushmem.simt.compiler.primitives import (
    DYNAMIC_START,
    PAUSE,
    assume,
    load_field,
    record_failure,
    store_field,
)
from gpushmem.simt.compiler.symbols import OBSERVED, OWN, SHARED, TRIPS
from gpushmem.simt.compiler.target import (
    SimtCallConv,
    Unfit,
    compile_function,
    compiling,
    exceptions,
    simt_target,
    site_text,
)
from gpushmem.simt.intrinsics import numba_cuda_names as _names  # noqa: F401  (it fills INTRINSICS)

__all__ = ["Entry", "build", "freeze", "thaw", "warm_up"]

i32 = ir.IntType(32)
MAX_DIM = 2**31 - 1
AREA_ALIGN = 64
ONE, ROW, ROWS = "one", "row", "rows"  # kinds of blocks
C_ENTRY = ctypes.CFUNCTYPE(None, ctypes.c_int64)


@dataclass(frozen=True)
class Entry:
    """A kernel compiled for one signature."""

    call: Any  # call(launch_address), without the GIL
    # How threads run: as "loops", in "lockstep" (loops between waits) or as "fibers".
    kind: str
    serves: tuple[str, ...]  # the kinds of blocks that it is for, see `kind_of_block`
    reason: str  # why as fibers; in lockstep, where threads wait alone
    shared_bytes: int  # static shared memory per block
    arrays: tuple[tuple[int, observer.SharedArray], ...]  # of an observed kernel, with offsets
    dynamic_start: int  # where the dynamic shared memory begins
    local_bytes: int  # local arrays and variables per thread
    frame_bytes: int  # of what lives longer than a piece of code, per thread, in lockstep
    const_bytes: int
    vectors: int  # loops over threads that `blocks` takes VECTOR at a time
    observed: int  # places that the observer has
    cooperative: bool  # may synchronise the grid
    codes: frozenset[int]  # the keys of `exceptions` that it may return
    externals: frozenset[str]  # functions of other libraries: the keys of `suppliers`
    embedded: bool  # calls operations of an embedder, who gives launches their `user` word
    cacheable: bool  # refers to nothing that exists in this process only
    launch_config_sensitive: bool  # compiling it looked at how it is launched
    quick: bool  # compiled with little optimisation
    body: str  # what numba-cuda calls it
    name: str  # of the function
    code: bytes  # object code
    better: str = ""  # where the store will have it optimised, see `kernel_cache`;
    overdue: bool = False  # and an earlier job has not
    bitcode: bytes = field(default=b"", compare=False)  # before that; of one compiled here

    @property
    def waits(self) -> bool:
        """Whether it needs the scheduler."""
        return self.kind in ("fibers", "lockstep")

    def assembly(self) -> str:
        """The machine code as text."""
        machine = _quick_machine() if self.quick else _codegen()._tm
        return str(machine.emit_assembly(llvm.parse_bitcode(self.bitcode)))


VECTOR = WIDTH
MAX_FRAME = 1 << 18  # bytes on the stack
SHOWN = 3  # lines where threads wait alone
LINKED = (Linkage.linkonce_odr, Linkage.weak_odr)


_optnone = re.compile(r"^(attributes #\d+ = \{.*) optnone\b", re.MULTILINE)
# Of what is to be compiled quickly; the machine code then is made without optimisation, which takes
# a tenth of the time. On O1 with such machine code LLVM took twice as long, with none of these
# passes three times as long: there is so much code then (docs/performance-notes.md).
QUICK_PASSES = "always_inliner", *llvm_passes.SIMPLIFYING


class EntryLibrary(CPUCodeLibrary):
    """The module of one kernel: optimised as a whole, then turned into machine code.

    It has an LLVM context of its own, and with it goes all that LLVM needed to compile the kernel.
    A kernel in lockstep has a function for a thread `alone`.
    """

    def __init__(
        self, codegen: Any, name: str, context: Any, alone: str = "", quick: bool = False
    ) -> None:
        super().__init__(codegen, name)
        self.alone, self.quick = alone, quick
        empty = str(codegen._create_empty_module(name))
        self._final_module = llvm.parse_assembly(empty, context)

    def _optimize_functions(self, ll_module: Any) -> None:
        """Nothing: they are optimised where they are called, which is the quicker by a fifth."""

    def _optimize_final_module(self) -> None:
        module = self._final_module
        for value in [*module.functions, *module.global_variables]:
            linked_in = value.linkage in LINKED or value.name.startswith("simt.")
            if linked_in and not value.is_declaration:
                value.linkage = "internal"
        if self.quick:
            self._optimize_a_little()
        elif self.alone:
            self._optimize_lockstep()
        else:
            super()._optimize_final_module()
        missing = [
            function.name
            for function in module.functions
            if function.is_declaration
            and not function.name.startswith("llvm.")
            and llvm.address_of_symbol(function.name) is None
        ]
        if missing:  # otherwise the JIT engine ends the process, or calls address 0
            raise BackendUnavailable(
                f"the kernel calls {', '.join(missing)}, which the CPU engine does not have"
            )

    def _optimize_a_little(self) -> None:
        builder = llvm_passes.builder_for(self._machine(), speed_level=0)
        llvm_passes.over_module(self._final_module, QUICK_PASSES, builder)

    def _machine(self) -> Any:
        return _quick_machine() if self.quick else self._codegen._tm

    def _optimize_lockstep(self) -> None:
        """Do less, in half the time.

        It is spent at O3 on copies of loops with a branch taken out of them, which O2 does not
        make, and on the function for a thread alone, whose variables only become values here. LLVM
        passes over a function with `optnone`, which the module's text is then rid of.
        """
        module = with_attributes(self._final_module, {self.alone: ("noinline", "optnone")})
        builder = self._codegen._pass_builder(opt=2)
        builder.getModulePassManager().run(module, builder)
        text = _optnone.sub(r"\1", str(module))
        self._final_module = module = llvm.parse_assembly(text, module._context)
        llvm_passes.over_functions(
            [module.get_function(self.alone)], llvm_passes.SIMPLIFYING, builder
        )

    def _finalize_final_module(self) -> None:
        self.code = self._machine().emit_object(self._final_module)
        self.bitcode = self._final_module.as_bitcode()


def _loaded(code: bytes, name: str) -> Any:
    """Load object code; returns its function `name` for Python, which calls it without the GIL."""
    engine = _codegen()._engine._ee
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return C_ENTRY(engine.get_function_address(name))


class How(NamedTuple):
    """How code is made of a kernel; see `build`."""

    report: bool
    quick: bool


def build(
    py_func: Any,
    args: tuple[Any, ...],
    return_type: Any = None,
    report: bool = True,
    lockstep: bool = True,
    row: bool = False,
    quick: bool = False,
    **options: Any,
) -> tuple[Any, Entry]:
    """Compile a kernel for Numba types `args`; returns Numba's compile result and the entry.

    Without `report`, a thread that raises an exception just ends, as on a GPU without debugging.
    Without `lockstep`, threads of a kernel that waits are fibers: the better for blocks of one.
    With `row`, code in lockstep is for blocks of one row of threads only, which is less code. With
    `quick`, it is optimised little.
    """
    with compiling():  # LLVM's modules and ours are used by one thread at a time
        how = How(report, quick)
        return _build_fitting(py_func, args, return_type, how, lockstep, row, options)


def _build_fitting(
    py_func: Any,
    args: tuple[Any, ...],
    return_type: Any,
    how: How,
    lockstep: bool,
    row: bool,
    options: dict[str, Any],
) -> tuple[Any, Entry]:
    """Loops for what never waits; lockstep for what does, or fibers."""
    cres = compile_function(py_func, args, return_type, **options)
    body = cres.library.linked(quick=how.quick)
    waits = any(f.name == PAUSE for f in body.functions)
    reason = "its blocks have one thread"
    if lockstep:
        try:
            if observer.current() is not None:
                raise Unfit("each access is observed, with its thread")
            name = cres.fndesc.mangled_name
            kind = _Lockstep if waits else _Blocks
            # One that never waits is one function: nothing is to be gained by two of it.
            fit = in_lockstep(body, name, row and waits)
            serves = (ROW, ROWS) if not waits else (ROW,) if row else (ROWS,)
            return cres, _build(cres, fit, kind, how, serves)
        except Unfit as error:
            reason, body = str(error), cres.library.linked(quick=how.quick)
    if waits:
        serves = (ROW, ROWS) if lockstep else (ONE,)
        return cres, _build(cres, body, _Fibers, how, serves, reason)
    return cres, _build(cres, body, _Loops, how, (ONE, ROW, ROWS) if lockstep else (ONE,))


def kind_of_block(block: tuple[int, ...]) -> str:
    """The kind of a block of these extents: of one thread, of one row of threads, or of rows."""
    if block[1] * block[2] > 1:
        return ROWS
    return ROW if block[0] > 1 else ONE


def freeze(entry: Entry) -> dict[str, Any]:
    """An entry as data that can be pickled: object code, and what its status codes mean."""
    fields = {k: getattr(entry, k) for k in Entry.__dataclass_fields__ if k not in OF_PROCESS}
    return {"fields": fields, "exceptions": {code: exceptions[code] for code in entry.codes}}


def thaw(frozen: dict[str, Any]) -> Entry:
    """The entry of what `freeze` made, perhaps in another process."""
    warm_up()
    fields = frozen["fields"]
    exceptions.update(frozen["exceptions"])
    supply(fields["externals"])
    with core_lock:
        return Entry(call=_loaded(fields["code"], fields["name"]), **fields)


OF_PROCESS = ("call", "bitcode")  # what an Entry has for the process that compiled it


@core_lock
def _build(
    cres: Any,
    body: Any,
    kind: type[_Entry],
    how: How,
    serves: tuple[str, ...],
    reason: str = "",
) -> Entry:
    """Link a compiled body with an entry of some kind, and turn it into machine code."""
    printing.install()
    frame_bytes, alone, vectors = 0, "", 0
    if isinstance(body, Lockstep):
        lines = "; ".join(body.lines[:SHOWN]) + (" ..." if len(body.lines) > SHOWN else "")
        reason = f"threads wait alone at {lines}" if lines else ""
        frame_bytes, alone, vectors = body.frame_bytes, body.alone, body.vectors
        body = body.module
        if kind is _Blocks and frame_bytes * MAX_THREADS > MAX_FRAME:
            raise Unfit("too much of a thread is alive between its loops")
    if kind in (_Fibers, _Lockstep):
        fiber.install()  # the linker must know simt_switch
    placed, shared_bytes = _placements(body)
    observed = [gv.name for gv in body.global_variables if gv.name.startswith(OBSERVED)]
    placed |= {name: k * observer.PLACE_BYTES for k, name in enumerate(observed)}
    externals = frozenset(f.name for f in body.functions if f.name in suppliers)

    # A name used once: a kernel from disk shares the JIT engine with others.
    name = f"{cres.fndesc.mangled_name}.entry.{uuid.uuid4().hex}"
    module = simt_target.target_context.codegen()._create_empty_module(name)
    dynamic_start = -(-shared_bytes // AREA_ALIGN) * AREA_ALIGN
    placed[DYNAMIC_START] = dynamic_start
    for constant, start in placed.items():
        _define_constant(module, constant, i64(start))
    _define_constant(module, SITE_NAME, site_text(cres.fndesc.qualname))
    text = _entry_text(
        kind,  # type: ignore[arg-type]  # mypy asks whether its objects can be hashed
        cres.fndesc.argtypes,
        how.report,
        frame_bytes if kind is _Blocks else 0,
        observer.current() is not None,
    )
    for stands_for, real in ((BODY_NAME, cres.fndesc.mangled_name), (ENTRY_NAME, name)):
        text = text.replace(f'"{stands_for}', f'"{real}')
    library = EntryLibrary(_codegen(), name, body._context, alone, how.quick)
    for part in (text, str(module)):
        library.add_llvm_module(llvm.parse_assembly(part, body._context))
    library.add_llvm_module(body)
    supply(externals)
    library.finalize()
    return Entry(
        call=_loaded(library.code, name),
        kind=kind.kind,
        serves=serves,
        reason=reason,
        frame_bytes=frame_bytes,
        shared_bytes=shared_bytes,
        arrays=tuple(
            (placed[name], array)
            for lib in cres.library.everything()
            for name, array in lib.arrays
            if name in placed
        ),
        dynamic_start=dynamic_start,
        local_bytes=sum(lib.local_bytes for lib in cres.library.everything()),
        vectors=vectors,
        observed=len(observed),
        const_bytes=sum(lib.const_bytes for lib in cres.library.everything()),
        cooperative=cres.library.use_cooperative,
        codes=frozenset().union(*(lib.codes for lib in cres.library.everything())),
        externals=externals,
        embedded=any(lib.embedded for lib in cres.library.everything()),
        cacheable=not any(lib.referenced_objects for lib in cres.library.everything()),
        launch_config_sensitive=bool((cres.metadata or {}).get("launch_config_sensitive")),
        quick=how.quick,
        body=cres.fndesc.llvm_func_name,
        name=name,
        code=library.code,
        bitcode=library.bitcode,
    )


@cache
def _codegen() -> Any:
    _load_global_helpers()  # Numba's C functions, which `reshape` and others call
    return JITCPUCodegen("simt.exec")


@cache
def _quick_machine() -> Any:
    """LLVM's description of this machine, for code that is made quickly."""
    usual, options = _codegen(), {"opt": 0}
    usual._customize_tm_options(options)
    return llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(**options)


def warm_up() -> None:
    """Prepare what all entries need, before processes are forked from this one."""
    printing.install()
    fiber.install()
    _codegen()


def _placements(module: Any) -> tuple[dict[str, int], int]:
    """Offsets of the static shared arrays: name of the constant -> offset; total bytes."""
    at, starts = 0, {}
    for gv in module.global_variables:
        if gv.name.startswith(SHARED):
            nbytes, align = map(int, gv.name.split(".")[-2:])
            at = -(-at // align) * align
            starts[gv.name] = at
            at += nbytes
    return starts, at


def _define_constant(module: ir.Module, name: str, value: ir.Constant) -> None:
    gv = ir.GlobalVariable(module, value.type, name)
    gv.global_constant = True
    gv.initializer = value


def _define_markers(module: ir.Module) -> None:
    """Define the functions of which only their names said something."""
    own = ir.Function(module, ir.FunctionType(i8p, [i8p]), OWN)
    builder = ir.IRBuilder(own.append_basic_block("entry"))
    builder.ret(own.args[0])
    trips = ir.Function(module, ir.FunctionType(i64, [i64] * 3), TRIPS)
    builder = ir.IRBuilder(trips.append_basic_block("entry"))
    start, stop, step = trips.args
    diff, zero = builder.sub(stop, start), i64(0)
    ahead = builder.icmp_signed(">", diff, zero)
    with builder.if_then(builder.xor(ahead, builder.icmp_signed(">", step, zero))):
        builder.ret(zero)
        builder.position_at_end(builder.append_basic_block("unreachable"))
    rest = builder.srem(diff, step)
    rest = builder.select(ahead, rest, builder.neg(rest))
    more = builder.zext(builder.icmp_signed(">", rest, zero), i64)
    builder.ret(builder.add(builder.sdiv(diff, step), more))
    for function in (own, trips):
        function.attributes.add("alwaysinline")


# In the text of an entry the first two stand for a kernel's own names.
BODY_NAME, ENTRY_NAME, SITE_NAME = "simt.kernel.body", "simt.kernel.entry", "simt.kernel.site"


@lru_cache(maxsize=256)
def _entry_text(
    kind: type[_Entry], argtypes: Any, report: bool, frame_bytes: int, observed: bool
) -> str:
    """The entry around a body with these arguments, as LLVM's text; made once for many kernels."""
    module = simt_target.target_context.codegen()._create_empty_module(ENTRY_NAME)
    _define_markers(module)
    entry = kind(simt_target.target_context, module, argtypes, report)
    entry.frame_bytes = frame_bytes
    entry.make()
    return str(module)


class _Entry:
    """Common to all kinds of entry: the function `entry(launch)` around the body."""

    kind: str
    frame_bytes = 0  # per thread

    def __init__(self, context: Any, module: ir.Module, argtypes: Any, report: bool) -> None:
        self.report = report
        self.context, self.module, self.argtypes = context, module, argtypes
        self.conv = SimtCallConv(context)
        fnty = self.conv.get_function_type(types.none, argtypes)
        self.body = ir.Function(module, fnty, BODY_NAME)
        self.slots = context.get_arg_packer(argtypes)
        self.function = ir.Function(module, ir.FunctionType(ir.VoidType(), [i64]), ENTRY_NAME)

    def make(self) -> None:
        """Build the entry; it returns normally also when the kernel failed: see LAUNCH.failed."""
        builder = ir.IRBuilder(self.function.append_basic_block("entry"))
        launch = builder.inttoptr(self.function.args[0], i8p)
        site = ir.GlobalVariable(self.module, ir.IntType(8), SITE_NAME)
        site.global_constant = True
        self.fill(builder, launch, site)
        builder.ret_void()

    def fill(self, builder: ir.IRBuilder, launch: ir.Value, site: ir.Value) -> None:
        raise NotImplementedError

    def arguments(self, builder: ir.IRBuilder, launch: ir.Value) -> tuple[ir.Value, ...]:
        """The kernel's arguments, from their 8-byte slots."""
        slots = builder.inttoptr(load_field(builder, LAUNCH, launch, "args"), i8p)
        flat = [
            builder.load(builder.bitcast(builder.gep(slots, [i64(8 * k)]), typ.as_pointer()))
            for k, typ in enumerate(self.slots.argument_types)
        ]
        unpacked: tuple[ir.Value, ...] = self.slots.from_arguments(builder, flat)
        return unpacked

    def run_thread(
        self,
        builder: ir.IRBuilder,
        thread: ir.Value,
        args: tuple[ir.Value, ...],
        site: ir.Value,
        attrs: Any = (),
    ) -> ir.Value:
        """Call the body for one thread, note a failure; return whether it failed."""
        hide = _Attributes(builder, attrs)
        status, _ = self.conv.call_function(
            hide, self.body, types.none, self.argtypes, args, (thread, site)
        )
        return self.note(builder, thread, site, status)

    def note(
        self, builder: ir.IRBuilder, thread: ir.Value, site: ir.Value, status: Any
    ) -> ir.Value:
        """Note a failure; return whether there is one."""
        if not self.report:
            launch = builder.inttoptr(load_field(builder, THREAD, thread, "launch"), i8p)
            failed = load_field(builder, LAUNCH, launch, "failed")
            return builder.and_(status.is_error, builder.icmp_signed("!=", failed, i64(0)))
        with builder.if_then(status.is_error, likely=False):
            launch = builder.inttoptr(load_field(builder, THREAD, thread, "launch"), i8p)
            failed = load_field(builder, LAUNCH, launch, "failed")
            with builder.if_then(builder.icmp_signed("==", failed, i64(0))):
                record_failure(builder, thread, i64(1), site, [])
                store_field(builder, LAUNCH, launch, "exception", builder.sext(status.code, i64))
        return status.is_error


class _Attributes:
    """A builder whose calls get attributes."""

    def __init__(self, builder: ir.IRBuilder, attrs: Any) -> None:
        self._builder, self._attrs = builder, attrs

    def call(self, callee: Any, args: Any) -> Any:
        return self._builder.call(callee, args, attrs=self._attrs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._builder, name)


INDICES = ("bid", "gdim"), ("tid", "bdim")  # of blocks in the grid, of threads in the block


class _Loops(_Entry):
    """Threads as loop iterations: for kernels that never wait."""

    kind = "loops"
    indices: tuple[tuple[str, str], ...] = INDICES

    def begin(self, builder: ir.IRBuilder) -> None:
        """Generate what precedes the loops."""

    def fill(self, builder: ir.IRBuilder, launch: ir.Value, site: ir.Value) -> None:
        args = self.arguments(builder, launch)
        area = ir.ArrayType(ir.IntType(8), THREAD.itemsize)
        thread = builder.bitcast(builder.alloca(area, name="thread"), i8p)
        store_field(builder, THREAD, thread, "launch", builder.ptrtoint(launch, i64))
        store_field(builder, THREAD, thread, "fiber", i64(0))
        for word in ("user", "shared", "dynamic_shared", "places"):
            store_field(builder, THREAD, thread, word, load_field(builder, LAUNCH, launch, word))
        bounds: dict[Any, tuple[ir.Value, ir.Value]] = {}
        for extent, limit in (("bdim", MAX_THREADS), ("gdim", MAX_DIM)):
            for axis in range(3):
                value = load_field(builder, LAUNCH, launch, extent, axis)
                store_field(builder, THREAD, thread, extent, value, axis)
                bounds[extent, axis] = i64(0), _bounded(builder, value, limit)
        for axis in range(3):  # this launch's part of the grid
            part = [load_field(builder, LAUNCH, launch, f, axis) for f in ("begin", "end")]
            bounds["gdim", axis] = tuple(builder.zext(v, i64) for v in part)
        done = builder.append_basic_block("done")
        self.begin(builder)
        counters = [(index, extent, axis) for index, extent in self.indices for axis in (2, 1, 0)]

        def nest(level: int) -> None:
            if level == len(counters):
                if observer.current() is not None:
                    number = _number(builder, thread)
                    store_field(builder, THREAD, thread, "number", number)
                    mark = builder.mul(number, i64(SPREAD))
                    store_field(builder, THREAD, thread, "mark", mark)
                failed = self.run_thread(builder, thread, args, site, ("alwaysinline",))
                with builder.if_then(failed, likely=False):
                    builder.branch(done)
                    builder.position_at_end(builder.append_basic_block("unreachable"))
                return
            field, bound, axis = counters[level]
            with _counted(builder, *bounds[bound, axis]) as index:
                store_field(builder, THREAD, thread, field, builder.trunc(index, i32), axis)
                nest(level + 1)

        nest(0)
        builder.branch(done)
        builder.position_at_end(done)


class _Blocks(_Loops):
    """Blocks as loop iterations: for kernels that never wait, of which `blocks` made a function."""

    indices = INDICES[:1]

    def begin(self, builder: ir.IRBuilder) -> None:
        area = ir.ArrayType(ir.IntType(8), max(1, self.frame_bytes * MAX_THREADS))
        self.frame = builder.alloca(area)
        self.frame.align = FRAME_ALIGN

    def run_thread(
        self,
        builder: ir.IRBuilder,
        thread: ir.Value,
        args: tuple[ir.Value, ...],
        site: ir.Value,
        attrs: Any = (),
    ) -> ir.Value:
        """Call the function of a block, note a failure; return whether it failed."""
        name = f"{self.body.name}.{BLOCK}"
        function = ir.Function(self.module, self.body.function_type, name)
        memory = builder.bitcast(self.frame, function.args[0].type)
        flat = self.slots.as_arguments(builder, args)
        status = builder.call(function, [memory, thread, site, *flat], attrs=attrs)
        return self.note(builder, thread, site, self.conv._get_return_status(builder, status))


def _bounded(builder: ir.IRBuilder, value: ir.Value, limit: int) -> ir.Value:
    """Tell the optimiser that 1 <= value <= limit: index arithmetic then needs no wrapping."""
    assume(builder, builder.icmp_signed(">=", value, i32(1)))
    assume(builder, builder.icmp_signed("<=", value, i32(limit)))
    return builder.zext(value, i64)


@contextmanager
def _counted(builder: ir.IRBuilder, begin: ir.Value, end: ir.Value) -> Iterator[ir.Value]:
    """`for index in range(begin, end)`, not empty."""
    before = builder.basic_block
    head = builder.append_basic_block("loop")
    builder.branch(head)
    builder.position_at_end(head)
    index = builder.phi(i64)
    index.add_incoming(begin, before)
    yield index
    following = builder.add(index, i64(1), flags=("nuw", "nsw"))
    index.add_incoming(following, builder.basic_block)
    after = builder.append_basic_block("after")
    builder.cbranch(builder.icmp_unsigned("<", following, end), head, after)
    builder.position_at_end(after)


def _number(builder: ir.IRBuilder, thread: ir.Value) -> ir.Value:
    """The number of a thread in its launch."""
    number = i64(0)
    for index, extent in INDICES:
        for axis in (2, 1, 0):
            at, length = (
                builder.zext(load_field(builder, THREAD, thread, field, axis), i64)
                for field in (index, extent)
            )
            number = builder.add(builder.mul(number, length), at)
    return number


class _Fibers(_Entry):
    """Threads as fibers: `thread_main` runs one, the scheduler runs them all."""

    kind = "fibers"

    def fill(self, builder: ir.IRBuilder, launch: ir.Value, site: ir.Value) -> None:
        main = self.thread_main(site)
        store_field(builder, LAUNCH, launch, "thread_main", builder.ptrtoint(main, i64))
        run = load_field(builder, LAUNCH, launch, "run")
        fnty = ir.FunctionType(ir.VoidType(), [i64])
        builder.call(builder.inttoptr(run, fnty.as_pointer()), [builder.ptrtoint(launch, i64)])

    def thread_main(self, site: ir.Value) -> ir.Function:
        main = ir.Function(
            self.module, ir.FunctionType(ir.VoidType(), [i8p]), f"{self.function.name}.thread"
        )
        main.linkage = "internal"
        builder = ir.IRBuilder(main.append_basic_block("entry"))
        (thread,) = main.args
        launch = builder.inttoptr(load_field(builder, THREAD, thread, "launch"), i8p)
        self.run_thread(builder, thread, self.arguments(builder, launch), site)
        builder.ret_void()
        return main


class _Lockstep(_Fibers):
    """Blocks as fibers: `thread_main` runs one, `lane_main` a thread that is out of step."""

    kind = "lockstep"

    def fill(self, builder: ir.IRBuilder, launch: ir.Value, site: ir.Value) -> None:
        name, of_all = self.body.name, self.body.function_type
        lane = self._main(f"{name}.{LANE}", of_all, site, "lane")
        self.block = f"{name}.{BLOCK}", of_all
        store_field(builder, LAUNCH, launch, "lane_main", builder.ptrtoint(lane, i64))
        sites = ir.GlobalVariable(self.module, ir.ArrayType(i8p, 0), f"{name}{SITES}")
        sites.global_constant = True
        store_field(builder, LAUNCH, launch, "sites", builder.ptrtoint(sites, i64))
        super().fill(builder, launch, site)

    def thread_main(self, site: ir.Value) -> ir.Function:
        return self._main(*self.block, site, "thread")

    def _main(self, name: str, kind: Any, site: ir.Value, what: str) -> ir.Function:
        """A C function of a THREAD that calls one of the two that the kernel has become."""
        fnty = ir.FunctionType(ir.VoidType(), [i8p])
        main = ir.Function(self.module, fnty, f"{self.function.name}.{what}")
        main.linkage = "internal"
        builder = ir.IRBuilder(main.append_basic_block("entry"))
        (thread,) = main.args
        launch, fiber_ = (
            builder.inttoptr(load_field(builder, THREAD, thread, field), i8p)
            for field in ("launch", "fiber")
        )
        block = builder.inttoptr(load_field(builder, FIBER, fiber_, "block"), i8p)
        frame = builder.inttoptr(load_field(builder, BLOCK_FIELDS, block, "frame"), i8p)
        flat = self.slots.as_arguments(builder, self.arguments(builder, launch))
        memory = builder.bitcast(frame, kind.args[0])
        status = builder.call(ir.Function(self.module, kind, name), [memory, thread, site, *flat])
        self.note(builder, thread, site, self.conv._get_return_status(builder, status))
        builder.ret_void()
        return main
