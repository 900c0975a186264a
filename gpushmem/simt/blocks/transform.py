"""A kernel's module, as compiled for one thread, made into one for blocks in lockstep: all passes.

`PASSES` has them in order. Each takes a `Work` as the ones before have left it, and fills in more.
Between two cuts the threads of a block may run in any order, as on a GPU: all passes rely on that.
GPUSHMEM_VERIFY compares what comes out with threads that run one by one.

`block` writes its function group by group. A *group* is what threads do one after the other between
two things that the block does once; for each, the first that can is taken (`threads.Threads`):

- `strided_loops`, a loop whose turns are dealt out to threads: as a loop over neighbours. Leaves
  out only turns that do nothing; keeps the order of a thread's own.
- `vectors`, with `lane_shapes` and `vector_instructions`: eight neighbouring threads at a time. A
  lane whose mask is off neither writes nor fails; a vector in which a thread would fail is left to
  turns one by one before anything is written.
- `threads`: a loop over the threads, for those alone that have something to do (`group.guarded`).

A branch that varies and decides what threads wait for is written by `divergence`: before a thread
goes on alone, what is uniform and alive is where it finds it; threads are in step again only at one
label, with equal uniform values.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import llvmlite.binding as llvm

from gpushmem.simt.blocks.emit import Frame, resume_codes
from gpushmem.simt.blocks.group import SHORT, with_hints
from gpushmem.simt.blocks.llvm_code import EXIT, Function, callee_of, read
from gpushmem.simt.blocks.lockstep import Fast
from gpushmem.simt.blocks.prepare import (
    EACH,
    cut_up,
    forget_statuses,
    join,
    one_function,
    sink,
    waiting_in,
)
from gpushmem.simt.blocks.thread_function import Lanes
from gpushmem.simt.blocks.uniformity import Analysis
from gpushmem.simt.compiler.cached_functions import (
    BARRIER,
    LANES,
    WARPS,
    Meeting,
    kept_names,
    meetings,
)
from gpushmem.simt.compiler.primitives import PAUSE
from gpushmem.simt.compiler.target import Unfit

__all__ = ["BLOCK", "LANE", "PASSES", "SITES", "Lockstep", "in_lockstep"]

BLOCK, LANE = "block", "lane"  # what the names of the two functions end in
SITES = ".sites"  # a table: the C string that names a barrier's line, by code
MOST = 8000  # instructions of a kernel with all that waits in it
JOINS = 2  # how often it is analysed again, with threads that meet before others come
MOST_LINES = 2000  # of the text of one that never waits: it costs more than it brings


@dataclass
class Lockstep:
    """What a kernel has become."""

    module: Any  # in which it is two functions, of the same arguments as before
    frame_bytes: int  # of a block's frame, per thread
    alone: str = ""  # the name of the function of a thread alone
    vectors: int = 0  # loops over threads that are taken several at a time
    lines: list[str] = field(default_factory=list)  # where threads wait that are not in step then


class Work:
    """A kernel, and what the passes have made of it."""

    function: Function  # by `read_in`
    analysis: Analysis  # by `analyse`, as the next two
    frame: Frame
    codes: dict[str, int]  # of the labels at which a thread may go on
    fast: Fast  # by `block`

    def __init__(self, body: Any, name: str, row: bool) -> None:
        self.body, self.name, self.row = body, name, row  # the module; for blocks of one row
        self.waiting: set[str] = set()  # functions that come to a pause: by `find_waits`, ...
        self.small: set[str] = set()
        self.mets: dict[str, Meeting] = {}  # ... and those at whose calls the kernel is cut
        self.texts: list[str] = []  # what is put in place of the kernel

    @property
    def waits(self) -> bool:
        return self.name in self.waiting


def find_waits(work: Work) -> None:
    """Find what waits, and what is small."""
    lines = str(work.body).splitlines()
    work.waiting, work.small = waiting_in(lines)
    if not work.waits and len(lines) > MOST_LINES:
        raise Unfit("it does not wait, and is long")
    work.mets = {
        kept: meetings.get(kept, Meeting(EACH, kept))
        for kept in work.waiting & kept_names if kept != work.name
    }  # fmt: skip


def inline(work: Work) -> None:
    """Put into the kernel what waits."""
    work.body = one_function(work.body, work.name, work.waiting | work.small, work.mets)


def read_in(work: Work) -> None:
    """Read LLVM's function."""
    work.function = function = read(work.body, work.name)
    if function.entry in function.errors:
        raise Unfit("it always fails")
    if sum(len(block.insts) for block in function) > MOST:
        raise Unfit("it is too long")
    calls = {callee_of(i) for block in function for i in block.insts if i.op == "call"}
    if calls & (work.waiting - work.mets.keys()) or PAUSE in calls:
        raise Unfit("it waits in code that is not one function with it")


def sink_selects(work: Work) -> None:
    """Move what depends on a branch's condition behind the branch."""
    sink(work.function)


def cut(work: Work) -> None:
    """Cut the kernel at its meetings."""
    cut_up(work.function, work.mets)
    forget_statuses(work.function)


def analyse(work: Work) -> None:
    """Find out what is the same for all threads."""
    work.analysis = Analysis(work.function)
    for _ in range(JOINS):
        for stop, edges in work.analysis.joins.items():
            join(work.function, edges, stop)
        if work.analysis.joins:
            work.analysis = Analysis(work.function)
    _check_warps(work.analysis)
    if work.analysis.own_loads:
        raise Unfit("its threads are numbered")
    work.frame, work.codes = Frame(), resume_codes(work.analysis)


def block(work: Work) -> None:
    """Write the function of a block in step."""
    work.fast = Fast(work.analysis, work.frame, work.codes, BLOCK, work.row)
    work.texts = [work.fast.make()]
    if not work.waits:
        if not work.fast.saves:
            raise Unfit("it does not wait, nor does it gain")
        work.texts = [work.texts[0].replace(f", {SHORT}", "")]


def lane(work: Work) -> None:
    """Write the function of a thread alone, and the table of barriers' lines."""
    if work.waits:
        lanes = Lanes(work.analysis, work.frame, work.codes, LANE, work.row)
        work.texts += [lanes.make(work.fast.parted), _sites(work.analysis, work.codes, work.name)]


class Pass(NamedTuple):
    """One step, and its contract with the others."""

    run: Callable[[Work], None]
    takes: str
    gives: str
    assumes: str


PASSES = (
    Pass(
        find_waits, "the module, all that the kernel calls in it, for one thread",
        "who waits; the meetings, by the functions that are called for them",
        "who waits comes to PAUSE, by what it calls",
    ),
    Pass(
        inline, "who waits; the meetings",
        "one function, each value with a name, and meetings as calls that are not moved",
        "a meeting's function is kept in the store; what never waits may stay a call",
    ),
    Pass(
        read_in, "that function",
        "blocks and instructions; what leads to errors only is apart from the control flow",
        "a thread that fails ends the launch: what becomes of the others is of no interest",
    ),
    Pass(
        sink_selects,
        "blocks", "range loops whose variable grows by its step, as `strided_loops` wants it",
        "what is moved has no effect, and is needed behind the first way of its branch only",
    ),
    Pass(
        cut, "blocks", "each meeting at the end of a block of its own: a cut",
        "nobody is inside of a block when somebody else goes on",
    ),
    Pass(
        analyse,
        "blocks with cuts", "what varies, what is local, deciders; labels' codes; a frame",
        "threads that run an instruction together compute the same uniform value; where some are "
        "in another turn of a loop, or have left it, nothing that the turns change is uniform",
    ),
    Pass(
        block, "all that", "the text of a function that reaches each cut with all threads",
        "what is alive at a cut and varies is in the frame, an element for each thread; what is "
        "uniform is kept once, and is what each thread would have",
    ),
    Pass(
        lane,
        "all that; where threads part", "the kernel as it was, from a label on, for one thread",
        "it takes what is alive from the frame, and leaves there what is alive where it stops",
    ),
)  # fmt: skip


def in_lockstep(body: Any, name: str, row: bool = False) -> Lockstep:
    """Make two functions of the kernel `name`: of a block in step, and of a thread alone.

    Of one that never waits, the first only. For blocks of one `row` of threads, or for all.
    Raises `Unfit` for what cannot be, or gains nothing.
    """
    work = Work(body, name, row)
    for each in PASSES:
        each.run(work)
    module, made = _with(work.body, name, work.texts), work.fast
    if not work.waits:
        return Lockstep(module, work.frame.bytes, vectors=made.vectors)
    alone = _alone(work.analysis)
    return Lockstep(module, work.frame.bytes, f"{name}.{LANE}", made.vectors, alone)


def _check_warps(analysis: Analysis) -> None:
    """Leave kernels to fibers in which warps meet: threads would run alone all the time."""
    apart = set().union(*analysis.deciders.values())
    for label in analysis.cuts:
        cut = analysis.function.blocks[label].cut
        if cut.how == EACH and label not in apart:
            line = _site_of(cut.call)[1].partition("|")
            raise Unfit(f"threads meet by warps, or one by one, at {line[0]}")


def _alone(analysis: Analysis) -> list[str]:
    """The lines of waits that not all threads of a block are in together, each once."""
    apart = set().union(*analysis.deciders.values())
    blocks = [analysis.function.blocks[label] for label in analysis.cuts]
    return list(
        dict.fromkeys(
            _site_of(b.cut.call)[1].partition("|")[0]
            for b in blocks
            if b.cut.how not in (BARRIER, LANES)
            and (b.label in apart or not (b.cut.how == WARPS or analysis.is_block_call(b.cut.call)))
        )
    )


def _site_of(call: Any) -> tuple[str, str]:
    """The constant that names a call's line, and its text."""
    found = re.search(r'ptr (?:\w+(?:\(\d+\))? )*(@"?\.const\.([^"]*)"?)[,)]', call.text)
    return (found[1], found[2]) if found else ("null", "?")


def _sites(analysis: Analysis, codes: dict[str, int], name: str) -> str:
    """The table of barriers' lines, for reports."""
    texts = ["null"] * (len(codes) + 1)
    for label, code in codes.items():
        barrier = _barrier_after(analysis, label)
        if barrier is not None:
            texts[code // 2] = _site_of(barrier.call)[0]
            texts[codes[barrier.follows] // 2] = _site_of(barrier.call)[0]
    items = ", ".join(f"ptr {text}" for text in texts)
    return f'@"{name}{SITES}" = weak_odr constant [{len(texts)} x ptr] [{items}]\n'


def _barrier_after(analysis: Analysis, label: str) -> Any:
    """The barrier to which a label leads."""
    for _ in range(len(analysis.flow.labels)):
        if label == EXIT:
            return None
        block = analysis.function.blocks[label]
        if block.cut is not None:
            return block.cut if block.cut.how == BARRIER else None
        if len(block.follows) != 1:
            return None
        label = block.follows[0]
    return None


def _with(body: Any, name: str, texts: list[str]) -> Any:
    """The module with these in place of the kernel."""
    text = str(body)
    start = re.search(rf'^define [^\n]*@"?{re.escape(name)}"?\(', text, re.MULTILINE)
    assert start is not None
    end = text.index("\n}\n", start.start()) + 3
    needed = "".join(f"declare {each}\n" for each in DECLARED if f"@{_name(each)}(" not in text)
    whole = text[: start.start()] + "\n".join(texts) + needed + text[end:]
    return llvm.parse_assembly(with_hints(whole), body._context)


# What the functions that are written here call.
DECLARED = (
    "void @llvm.assume(i1)", "void @llvm.memset.p0.i64(ptr, i8, i64, i1)",
    "i64 @llvm.ssub.sat.i64(i64, i64)", "i64 @llvm.usub.sat.i64(i64, i64)",
)  # fmt: skip


def _name(declared: str) -> str:
    return declared.split("@", 1)[1].split("(", 1)[0]
