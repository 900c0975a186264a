"""Kernels whose threads meet only in `cuda.syncthreads`: loops between barriers, without fibers.

The kernel is lowered as a function that runs a whole block. Its code is cut at the barriers, and at
the branches that decide whether a barrier is reached (the header of a loop that contains one, say).
Each piece becomes a loop over the threads of the block, which the optimiser can vectorise; at its
end every thread has a *code*, the number of its next piece. If all threads agree, that piece
follows. If they do not, the block goes on in the slow lane: each thread runs alone from barrier to
barrier, selecting its pieces by its code. Nothing has to be proved about the kernel: a barrier in
divergent code is merely slower, and one that some threads never reach behaves as on a GPU.

A variable that is alive where a piece begins has a place per thread, unless it is proved to be the
same for the whole block, or to follow from the thread's index alone: then it is computed again
there. The same holds for memory it points to: local arrays, the state of iterators (`variables`).
All other variables belong to an iteration. Numba keeps them all on the stack, and the places are
assigned there (`FissionLower.getvar`, `SimtBuilder.alloca`).

This is what OpenCL implementations for CPUs do: Jaaskelainen et al., "pocl: A Performance-Portable
OpenCL Implementation", 2015, section 4.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from llvmlite import ir as llvm_ir
from numba import cuda
from numba.core import cgutils
from numba.cuda import types
from numba.cuda.core import ir
from numba.cuda.core.analysis import compute_cfg_from_blocks
from numba.cuda.core.callconv import RETCODE_NONE, RETCODE_OK
from numba.cuda.core.compiler_machinery import register_pass

from gpushmem.artifacts.shape import MAX_THREADS
from gpushmem.simt.base.layout import THREAD
from gpushmem.simt.base.native import i64
from gpushmem.simt.compiler.primitives import assume, hidden, store_field, thread_field
from gpushmem.simt.compiler.target import THREAD_ARG, SimtCompiler, SimtLower, SimtLowering, Unfit
from gpushmem.simt.grid.variables import Variables

__all__ = ["FissionCompiler", "Unfit", "bounded", "counted", "has_barriers"]

MAX_BYTES = 2 * 1024 * 1024  # of variables for all threads of a block
i32 = llvm_ir.IntType(32)
EXIT = 0  # code of a thread that has returned
WAITING = 1  # bit in the code of a thread that stands before a barrier


def has_barriers(py_func: Any) -> bool:
    """Whether a function mentions `syncthreads`: worth trying."""
    return "syncthreads" in py_func.__code__.co_names


def is_barrier(stmt: Any, typemap: dict[str, Any]) -> bool:
    """Whether an IR statement calls `cuda.syncthreads`."""
    if not isinstance(stmt, ir.Assign) or not isinstance(stmt.value, ir.Expr):
        return False
    if stmt.value.op != "call":
        return False
    function = typemap.get(stmt.value.func.name)
    return isinstance(function, types.Function) and function.typing_key is cuda.syncthreads


class FissionLower(SimtLower):
    """Lowers a kernel as a function that runs one block."""

    def init(self) -> None:
        self._cut()
        super().init()

    def _cut(self) -> None:
        """End a Numba block after each barrier; find where the pieces begin and end."""
        if self.context.enable_nrt:
            raise Unfit("variables count references, and begin as null in each thread")
        blocks = dict(self.func_ir.blocks)
        self.barriers: set[int] = set()  # blocks that end with a barrier
        following = max(blocks) + 1
        todo = list(blocks)
        while todo:
            label = todo.pop()
            block = blocks[label]
            body = block.body
            for k, stmt in enumerate(body):
                if is_barrier(stmt, self.fndesc.typemap):
                    rest = ir.Block(block.scope, stmt.loc)
                    rest.body = body[k + 1 :]
                    block.body = [*body[:k], ir.Jump(following, stmt.loc)]
                    blocks[following] = rest
                    self.barriers.add(label)
                    todo.append(following)
                    following += 1
                    break
        if any(isinstance(b.terminator, ir.Raise | ir.StaticRaise) for b in blocks.values()):
            raise Unfit("an exception ends one thread, or all")
        if not self.barriers:
            raise Unfit("the barrier is in code that Numba has found to be dead")
        self.func_ir.blocks = blocks
        self.blocks = dict(sorted(blocks.items()))
        if self._latches:
            raise Unfit("a loop waits for another thread by reading memory")
        cfg = compute_cfg_from_blocks(self.blocks)
        self.followers = {b: [s for s, _ in cfg.successors(b)] for b in blocks}
        self.deciders = self._deciding(cfg.post_dominators())
        ends = self.barriers | self.deciders
        starts = {s for b in ends for s in self.followers[b]}
        self.starts = [self.firstblk, *sorted(starts - {self.firstblk})]
        self.variables = Variables(self, cfg, starts)
        self.statements: dict[int, dict[str, Any]] = {}  # shared by a statement's lowerings

    def _deciding(self, post_dominators: dict[int, set[int]]) -> set[int]:
        """The branches that decide whether a barrier is reached."""
        controlled, deciders = set(self.barriers), set()
        grown = True
        while grown:
            grown = False
            for label, following in self.followers.items():
                if label in deciders or len(following) < 2:
                    continue
                for target in controlled:
                    after_some = any(target in post_dominators[s] for s in following)
                    if after_some and target not in post_dominators[label] - {label}:
                        deciders.add(label)
                        controlled.add(label)
                        grown = True
                        break
        return deciders

    # --- variables

    def _alloca_var(self, name: str, fetype: Any) -> None:
        if name in self.variables.per_thread and name not in self.varmap:
            lltype = self.context.get_value_type(fetype)
            self.varmap[name] = self.builder.place_per_thread(lltype, name)
        # Other variables are slots of the function's, whatever the statement that first needs one.
        places, self.builder.simt_places = self.builder.simt_places, None
        super()._alloca_var(name, fetype)
        self.builder.simt_places = places

    def getvar(self, name: str) -> llvm_ir.Value:
        pointer = super().getvar(name)
        if name in self.variables.per_thread:
            return self.builder.gep(pointer, [i64(0), self.builder.simt_lane], inbounds=True)
        return pointer

    # --- statements

    def lower_inst(self, inst: Any) -> None:
        if inst.is_terminator and self._label in self.barriers:
            self._end(self.codes[inst.target] | WAITING)
        elif inst.is_terminator and self._label in self.deciders:
            condition = self.loadvar(inst.cond.name)
            condition = self.context.cast(
                self.builder, condition, self.typeof(inst.cond.name), types.boolean
            )
            true, false = (i32(self.codes[t]) for t in (inst.truebr, inst.falsebr))
            self._end(self.builder.select(condition, true, false))
        else:
            # A statement has the same places in every piece that contains it.
            statement = self.statements.setdefault(id(inst), {})
            keeps = id(inst) in self.variables.keeping
            self.builder.simt_statement = statement
            self.builder.simt_places = statement.setdefault("places", []) if keeps else None
            self.builder.simt_place = 0
            super().lower_inst(inst)
            self.builder.simt_places = None

    def _leave(self, status: llvm_ir.Value) -> None:
        """The code of `return` and errors, which end a thread and not the function."""
        if status in (RETCODE_OK, RETCODE_NONE):
            self._end(EXIT)
        else:
            self.builder.ret(status)

    def _end(self, code: Any) -> None:
        """End the piece for this thread."""
        code = i32(code) if isinstance(code, int) else code
        self.ends.append((code, self.builder.basic_block))
        self.builder.branch(self.latch)

    # --- the function

    def lower_normal_function(self, fndesc: Any) -> None:
        self.setup_function(fndesc)
        self.extract_function_arguments()
        self.pre_lower()
        builder = self.builder
        builder.simt_leave = self._leave
        self.entry = builder.basic_block
        self.codes = {label: 2 * (k + 1) for k, label in enumerate(self.starts)}
        self.extents = [
            bounded(builder, thread_field(builder, "bdim", axis), MAX_THREADS) for axis in range(3)
        ]
        self.wanted = builder.place_per_thread(i32, "wanted")
        self.lowest, self.highest = (cgutils.alloca_once(builder, i32) for _ in range(2))
        self.done = builder.append_basic_block("done")
        self.slow = builder.append_basic_block("slow")
        self.pieces = {s: builder.append_basic_block(f"piece{s}") for s in self.starts}
        for start in self.starts:
            self._piece(start)
        self._slow_lane()
        builder.position_at_end(self.done)
        builder.ret(RETCODE_OK)
        builder.position_at_end(self.entry)
        builder.branch(self.pieces[self.firstblk])
        if builder.simt_bytes * MAX_THREADS > MAX_BYTES:
            raise Unfit(f"{builder.simt_bytes} bytes of variables per thread")
        self.post_lower()

    def _for_threads(self, body: Callable[[], None]) -> None:
        """Generate `body` in a loop over the threads of the block."""
        builder = self.builder
        bx, by, bz = self.extents
        exact = ("nuw", "nsw")
        thread = hidden(builder, THREAD_ARG)
        with counted(builder, i64(0), bz) as z, counted(builder, i64(0), by) as y:
            row = builder.mul(
                builder.add(builder.mul(z, by, flags=exact), y, flags=exact), bx, flags=exact
            )
            with counted(builder, i64(0), bx) as x:
                for axis, index in enumerate((x, y, z)):
                    store_field(builder, THREAD, thread, "tid", builder.trunc(index, i32), axis)
                builder.simt_lane = builder.add(row, x, flags=exact)
                body()

    def _wanted_place(self) -> llvm_ir.Value:
        return self.builder.gep(self.wanted, [i64(0), self.builder.simt_lane], inbounds=True)

    def _run_piece(self, start: int, latch: llvm_ir.Block) -> list[Any]:
        """Generate the blocks of a piece for one thread; gives its ends: (code, block)."""
        labels, todo = [], [start]
        while todo:
            label = todo.pop()
            if label not in labels:
                labels.append(label)
                if label not in self.barriers | self.deciders:
                    todo += self.followers[label]
        self.blkmap = {n: self.builder.append_basic_block(f"b{start}.{n}") for n in labels}
        self.latch, self.ends = latch, list[Any]()
        recipes = [
            self.variables.recipes.get(name, []) for name in sorted(self.variables.alive[start])
        ]
        for assign in dict.fromkeys(itertools.chain(*recipes)):
            super().lower_inst(assign)
        self.builder.branch(self.blkmap[start])
        for label in sorted(labels):
            self.builder.position_at_end(self.blkmap[label])
            self._label = label
            self.lower_block(self.blocks[label])
        return self.ends

    def _piece(self, start: int) -> None:
        """The fast lane: all threads run one piece, and then, if they agree, the next."""
        builder = self.builder
        builder.position_at_end(self.pieces[start])
        builder.store(i32(2**31 - 1), self.lowest)
        builder.store(i32(0), self.highest)
        ends: list[Any] = []

        def body() -> None:
            latch = builder.append_basic_block("latch")
            ends.extend(self._run_piece(start, latch))
            builder.position_at_end(latch)
            if _only(ends) is None:
                code = _merge(builder, ends)
                builder.store(code, self._wanted_place())
                for place, compare in ((self.lowest, "<"), (self.highest, ">")):
                    best = builder.load(place)
                    better = builder.icmp_signed(compare, code, best)
                    builder.store(builder.select(better, code, best), place)

        self._for_threads(body)
        code = _only(ends)
        if code is not None:
            builder.branch(self._target(code))
            return
        lowest = builder.load(self.lowest)
        agree = builder.append_basic_block("agree")
        same = builder.icmp_signed("==", lowest, builder.load(self.highest))
        builder.cbranch(same, agree, self.slow)
        builder.position_at_end(agree)
        switch = builder.switch(lowest, self.done)
        for code in sorted({c for end, _ in ends for c in _constants(end)} - {EXIT}):
            switch.add_case(i32(code), self._target(code))

    def _target(self, code: int) -> llvm_ir.Block:
        if code == EXIT:
            return self.done
        return self.pieces[self.starts[(code >> 1) - 1]]

    def _slow_lane(self) -> None:
        """Each thread runs alone to the next barrier; then those that have not returned go on."""
        builder = self.builder
        builder.position_at_end(self.slow)
        waiting = cgutils.alloca_once(builder, i32)

        def run() -> None:
            dispatch, stop = (builder.append_basic_block(n) for n in ("dispatch", "stop"))
            first = builder.load(self._wanted_place())
            arrivals = [(first, builder.basic_block)]
            builder.branch(dispatch)
            cases = []
            for start in self.starts:
                case = builder.append_basic_block(f"case{start}")
                builder.position_at_end(case)
                arrivals += self._run_piece(start, dispatch)
                cases.append((self.codes[start], case))
            builder.position_at_end(dispatch)
            code = _merge(builder, arrivals)
            switch = builder.switch(code, stop)
            for value, case in cases:
                switch.add_case(i32(value), case)
            builder.position_at_end(stop)
            builder.store(code, self._wanted_place())

        def release() -> None:
            place = self._wanted_place()
            code = builder.load(place)
            builder.store(builder.and_(code, i32(~WAITING)), place)
            builder.store(builder.or_(builder.load(waiting), code), waiting)

        builder.store(i32(0), waiting)
        self._for_threads(run)
        self._for_threads(release)
        more = builder.icmp_signed("!=", builder.load(waiting), i32(0))
        builder.cbranch(more, self.slow, self.done)


def bounded(builder: Any, value: llvm_ir.Value, limit: int) -> llvm_ir.Value:
    """Tell the optimiser that 1 <= value <= limit: index arithmetic then needs no wrapping."""
    assume(builder, builder.icmp_signed(">=", value, i32(1)))
    assume(builder, builder.icmp_signed("<=", value, i32(limit)))
    return builder.zext(value, i64)


def _constants(code: llvm_ir.Value) -> list[int]:
    """The values a code can have: it is a constant, or selected from two."""
    if isinstance(code, llvm_ir.Constant):
        return [code.constant]
    return [c.constant for c in code.operands[1:]]


def _only(ends: list[Any]) -> int | None:
    """The one code that all ends have, if there is one."""
    codes = {c for end, _ in ends for c in _constants(end)}
    return codes.pop() if len(codes) == 1 else None


def _merge(builder: Any, ends: list[Any]) -> llvm_ir.Value:
    phi = builder.phi(i32)
    for code, block in ends:
        phi.add_incoming(code, block)
    return phi


class counted:
    """`for index in range(begin, end)`, not empty, as a context manager giving the index."""

    def __init__(
        self, builder: llvm_ir.IRBuilder, begin: llvm_ir.Value, end: llvm_ir.Value
    ) -> None:
        self.builder, self.begin, self.end = builder, begin, end

    def __enter__(self) -> llvm_ir.Value:
        before = self.builder.basic_block
        self.head = self.builder.append_basic_block("loop")
        self.builder.branch(self.head)
        self.builder.position_at_end(self.head)
        self.index = self.builder.phi(i64)
        self.index.add_incoming(self.begin, before)
        return self.index

    def __exit__(self, *exc: object) -> None:
        following = self.builder.add(self.index, i64(1), flags=("nuw", "nsw"))
        self.index.add_incoming(following, self.builder.basic_block)
        after = self.builder.append_basic_block("after")
        more = self.builder.icmp_unsigned("<", following, self.end)
        self.builder.cbranch(more, self.head, after)
        self.builder.position_at_end(after)


@register_pass(mutates_CFG=True, analysis_only=False)
class FissionLowering(SimtLowering):
    """Native lowering with `FissionLower`."""

    _name = "simt_fission_lowering"

    @property
    def lowering_class(self) -> type:
        return FissionLower


class FissionCompiler(SimtCompiler):
    """The pipeline for kernels that may need no fibers."""

    lowering = FissionLowering
