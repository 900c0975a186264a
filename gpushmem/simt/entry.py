"""From a compiled kernel body to a function that runs a whole grid.

The body is linked with everything it calls into one module. If that module mentions `pause`, the
threads are fibers and `scheduler.run` drives them; otherwise the entry is a plain loop nest over
blocks and threads with the body inlined, which LLVM vectorises. Either way Python calls it as
`entry(launch_address, *args)`, with the GIL released while it runs.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

from llvmlite import ir
from llvmlite.binding import Linkage
from numba.core import cgutils, funcdesc, types
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler_lock import global_compiler_lock
from numba.core.lowering import Environment

from gpushmem.simt import fiber
from gpushmem.simt.layout import LAUNCH, THREAD
from gpushmem.simt.native import i8p, i64
from gpushmem.simt.primitives import (
    DYNAMIC_START,
    PAUSE,
    load_field,
    record_failure,
    store_field,
)
from gpushmem.simt.target import SimtCallConv, environments, simt_target

__all__ = ["Entry", "build"]

i32 = ir.IntType(32)
MAX_DIM = 2**31 - 1
AREA_ALIGN = 64


@dataclass(frozen=True)
class Entry:
    """A kernel compiled for one signature."""

    call: Any  # call(launch_address, *args)
    waits: bool  # runs on fibers
    shared_bytes: int  # static shared memory per block
    local_bytes: int  # local arrays per thread
    library: Any


class EntryLibrary(JITCodeLibrary):
    """The module of one kernel: optimised as a whole, then turned into machine code."""

    def _optimize_final_module(self) -> None:
        module = self._final_module
        for value in [*module.functions, *module.global_variables]:
            linked_in = value.linkage == Linkage.linkonce_odr or value.name.startswith("simt.")
            if linked_in and not value.is_declaration:
                value.linkage = "internal"
        super()._optimize_final_module()


@global_compiler_lock
def build(cres: Any) -> Entry:
    """Build the entry of a compiled kernel body (a Numba compile result)."""
    context = simt_target.target_context.subtarget(plain=True)
    body = cres.library._get_module_for_linking()
    waits = any(f.name == PAUSE for f in body.functions)
    if waits:
        fiber.install()  # the linker must know simt_switch
    areas = {kind: _placements(body, kind) for kind in ("shared", "local")}

    codegen = context.codegen()
    fndesc = _describe(cres, next(_serial))
    library = EntryLibrary(codegen, fndesc.qualname)
    module = context.create_module(fndesc.qualname)
    for placed, _ in areas.values():
        for name, start in placed.items():
            _define_constant(module, name, start)
    sizes = {kind: total for kind, (_, total) in areas.items()}
    _define_constant(module, DYNAMIC_START, sizes["shared"])
    maker = _Fibers if waits else _Loops
    maker(context, module, cres.fndesc, fndesc, sizes).make()
    library.add_ir_module(module)
    library.add_linking_library(cres.library)
    env = Environment.from_fndesc(fndesc)
    context.create_cpython_wrapper(library, fndesc, env, None, release_gil=True)
    library.finalize()
    call = context.get_executable(library, fndesc, env)
    for gv in library._final_module.global_variables:
        if gv.name in environments:
            codegen.set_env(gv.name, environments[gv.name])
    return Entry(call, waits, sizes["shared"], sizes["local"], library)


_serial = itertools.count()


def _describe(cres: Any, serial: int) -> Any:
    argtypes = (types.intp, *cres.fndesc.argtypes)
    return funcdesc.PythonFunctionDescriptor(
        native=True,
        modname=cres.fndesc.modname,
        qualname=f"{cres.fndesc.qualname}.entry",
        unique_name=f"{cres.fndesc.unique_name}.entry",
        doc="",
        typemap={},
        restype=types.none,
        calltypes={},
        args=("launch", *cres.fndesc.args),
        kws=(),
        global_dict={},
        uid=serial,
        argtypes=argtypes,
        mangler=funcdesc.default_mangler,
    )


def _placements(module: Any, kind: str) -> tuple[dict[str, int], int]:
    """Offsets of the static arrays of one kind: name of the constant -> offset; total bytes."""
    at, starts = 0, {}
    for gv in module.global_variables:
        if gv.name.startswith(f"simt.{kind}."):
            nbytes, align = map(int, gv.name.split(".")[-2:])
            at = -(-at // align) * align
            starts[gv.name] = at
            at += nbytes
    return starts, -(-at // AREA_ALIGN) * AREA_ALIGN


def _define_constant(module: ir.Module, name: str, value: int) -> None:
    gv = ir.GlobalVariable(module, i64, name)
    gv.global_constant = True
    gv.initializer = i64(value)


class _Entry:
    """What both kinds of entry share: the function `entry(launch, args...)` around the body."""

    def __init__(
        self, context: Any, module: ir.Module, body: Any, fndesc: Any, sizes: dict[str, int]
    ) -> None:
        self.context, self.module, self.fndesc, self.sizes = context, module, fndesc, sizes
        self.conv = SimtCallConv(context)
        self.argtypes = fndesc.argtypes[1:]
        fnty = self.conv.get_function_type(types.none, self.argtypes)
        self.body = ir.Function(module, fnty, body.mangled_name)
        plain = context.call_conv.get_function_type(types.none, fndesc.argtypes)
        self.function = ir.Function(module, plain, fndesc.llvm_func_name)
        context.call_conv.decorate_function(self.function, fndesc.args, fndesc.argtypes)

    def make(self) -> None:
        """Build the entry; it returns normally also when the kernel failed: see LAUNCH.failed."""
        builder = ir.IRBuilder(self.function.append_basic_block("entry"))
        launch, *args = self.context.call_conv.decode_arguments(
            builder, self.fndesc.argtypes, self.function
        )
        launch = builder.inttoptr(launch, i8p)
        site = self.context.insert_const_string(self.module, self.fndesc.qualname)
        self.fill(builder, launch, args, site)
        self.context.call_conv.return_native_none(builder)

    def fill(
        self, builder: ir.IRBuilder, launch: ir.Value, args: list[ir.Value], site: ir.Value
    ) -> None:
        raise NotImplementedError

    def run_thread(
        self,
        builder: ir.IRBuilder,
        thread: ir.Value,
        args: list[ir.Value],
        site: ir.Value,
        attrs: Any = None,
    ) -> ir.Value:
        """Call the body for one thread, note a failure; return whether it failed."""
        status, _ = self.conv.call_function(
            builder, self.body, types.none, self.argtypes, args, attrs, (thread, site)
        )
        with builder.if_then(status.is_error, likely=False):
            record_failure(builder, thread, i64(1), site, [])
            launch = builder.inttoptr(load_field(builder, THREAD, thread, "launch"), i8p)
            excinfo = builder.ptrtoint(status.excinfoptr, i64)
            store_field(builder, LAUNCH, launch, "excinfo", excinfo)
        return status.is_error


class _Loops(_Entry):
    """Threads as loop iterations: for kernels that never wait."""

    def fill(
        self, builder: ir.IRBuilder, launch: ir.Value, args: list[ir.Value], site: ir.Value
    ) -> None:
        area = ir.ArrayType(ir.IntType(8), THREAD.itemsize)
        thread = builder.bitcast(builder.alloca(area, name="thread"), i8p)
        local = builder.alloca(
            ir.ArrayType(ir.IntType(8), max(self.sizes["local"], 1)), name="local"
        )
        local.align = AREA_ALIGN
        store_field(builder, THREAD, thread, "local", builder.ptrtoint(local, i64))
        store_field(builder, THREAD, thread, "launch", builder.ptrtoint(launch, i64))
        store_field(builder, THREAD, thread, "fiber", i64(0))
        for field in ("user", "shared", "dynamic_shared"):
            store_field(builder, THREAD, thread, field, load_field(builder, LAUNCH, launch, field))
        bounds = {}
        for field, limit in (("bdim", 1024), ("gdim", MAX_DIM)):
            for axis in range(3):
                value = load_field(builder, LAUNCH, launch, field, axis)
                store_field(builder, THREAD, thread, field, value, axis)
                bounds[field, axis] = self.bounded(builder, value, limit)
        done = builder.append_basic_block("done")
        counters = [("bid", "gdim", axis) for axis in (2, 1, 0)] + [
            ("tid", "bdim", axis) for axis in (2, 1, 0)
        ]

        def nest(level: int) -> None:
            if level == len(counters):
                failed = self.run_thread(builder, thread, args, site, ("alwaysinline",))
                with builder.if_then(failed, likely=False):
                    builder.branch(done)
                    builder.position_at_end(builder.append_basic_block("unreachable"))
                return
            field, bound, axis = counters[level]
            with self.counted(builder, bounds[bound, axis]) as index:
                store_field(builder, THREAD, thread, field, builder.trunc(index, i32), axis)
                nest(level + 1)

        nest(0)
        builder.branch(done)
        builder.position_at_end(done)

    def bounded(self, builder: ir.IRBuilder, value: ir.Value, limit: int) -> ir.Value:
        """Tell the optimiser that 1 <= value <= limit: index arithmetic then needs no wrapping."""
        assume = cgutils.get_or_insert_function(
            self.module, ir.FunctionType(ir.VoidType(), [ir.IntType(1)]), "llvm.assume"
        )
        builder.call(assume, [builder.icmp_signed(">=", value, i32(1))])
        builder.call(assume, [builder.icmp_signed("<=", value, i32(limit))])
        return builder.zext(value, i64)

    def counted(self, builder: ir.IRBuilder, count: ir.Value) -> Any:
        """`for index in range(count)`, count >= 1, as a context manager giving the index."""
        return _counted(builder, count)


class _counted:
    def __init__(self, builder: ir.IRBuilder, count: ir.Value) -> None:
        self.builder, self.count = builder, count

    def __enter__(self) -> ir.Value:
        before = self.builder.basic_block
        self.head = self.builder.append_basic_block("loop")
        self.builder.branch(self.head)
        self.builder.position_at_end(self.head)
        self.index = self.builder.phi(i64)
        self.index.add_incoming(i64(0), before)
        return self.index

    def __exit__(self, *exc: object) -> None:
        following = self.builder.add(self.index, i64(1), flags=("nuw", "nsw"))
        self.index.add_incoming(following, self.builder.basic_block)
        after = self.builder.append_basic_block("after")
        more = self.builder.icmp_unsigned("<", following, self.count)
        self.builder.cbranch(more, self.head, after)
        self.builder.position_at_end(after)


class _Fibers(_Entry):
    """Threads as fibers: `thread_main` runs one, the scheduler runs them all."""

    def fill(
        self, builder: ir.IRBuilder, launch: ir.Value, args: list[ir.Value], site: ir.Value
    ) -> None:
        packed = ir.LiteralStructType([a.type for a in args])
        store = builder.alloca(packed)
        for k, value in enumerate(args):
            builder.store(value, builder.gep(store, [i32(0), i32(k)]))
        store_field(builder, LAUNCH, launch, "args", builder.ptrtoint(store, i64))
        main = self.thread_main(packed, site)
        store_field(builder, LAUNCH, launch, "thread_main", builder.ptrtoint(main, i64))
        run = load_field(builder, LAUNCH, launch, "run")
        fnty = ir.FunctionType(ir.VoidType(), [i64])
        builder.call(builder.inttoptr(run, fnty.as_pointer()), [builder.ptrtoint(launch, i64)])

    def thread_main(self, packed: ir.LiteralStructType, site: ir.Value) -> ir.Function:
        main = ir.Function(
            self.module, ir.FunctionType(ir.VoidType(), [i8p]), f"{self.function.name}.thread"
        )
        main.linkage = "internal"
        builder = ir.IRBuilder(main.append_basic_block("entry"))
        (thread,) = main.args
        launch = builder.inttoptr(load_field(builder, THREAD, thread, "launch"), i8p)
        store = builder.inttoptr(load_field(builder, LAUNCH, launch, "args"), packed.as_pointer())
        args = [
            builder.load(builder.gep(store, [i32(0), i32(k)])) for k in range(len(packed.elements))
        ]
        self.run_thread(builder, thread, args, site)
        builder.ret_void()
        return main
