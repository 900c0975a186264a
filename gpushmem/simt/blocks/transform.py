"""A kernel's module, as compiled for one thread, made into one for blocks in lockstep.

Between two cuts the threads of a block may run in any order, as on a GPU. All steps rely on that,
and each keeps an invariant that the next ones use (GPUSHMEM_VERIFY compares what comes out with
threads that run one by one):

- `sink` moves only what has no effect, behind the branch that it depends on.
- `cut_up` leaves each wait and meeting at the end of its block, a cut: nobody is inside of a block
  when somebody else goes on.
- `Analysis`: all threads that run an instruction together compute the same uniform value. Where
  some are in another turn of a loop, or have left it, nothing that the turns change is uniform.
- `Fast` reaches a cut with all threads of the block. What is alive then and varies is in the frame,
  an element for each thread; what is uniform is kept once, and is what each thread would have.
- `Apart`: before a thread goes on alone, what is uniform and alive is where it finds it. Threads
  are in step again only at one label, with equal uniform values.
- `Lanes` runs the kernel's own code for one thread: it takes what is alive from the frame, and
  leaves there what is alive where it stops.
- `guard` and `strided` leave out only turns that do nothing, and keep the order of a thread's own.
- `vectors`: a lane whose mask is off neither writes nor fails. A vector in which a thread would
  fail is left to turns one by one before anything is written.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import llvmlite.binding as llvm

from gpushmem.simt.base import passes
from gpushmem.simt.blocks.analysis import Analysis
from gpushmem.simt.blocks.code import Function, read
from gpushmem.simt.blocks.emit import resume_codes
from gpushmem.simt.blocks.fast import Fast
from gpushmem.simt.blocks.frame import Frame
from gpushmem.simt.blocks.group import SHORT, with_hints
from gpushmem.simt.blocks.lanes import Lanes
from gpushmem.simt.blocks.meetings import BARRIER, EACH, LANES, cut_up
from gpushmem.simt.blocks.sink import sink
from gpushmem.simt.blocks.text import EXIT, callee_of
from gpushmem.simt.compiler.kept import Meeting, kept_names, meetings
from gpushmem.simt.compiler.primitives import PAUSE
from gpushmem.simt.compiler.target import Unfit

__all__ = ["BLOCK", "LANE", "SITES", "Lockstep", "in_lockstep"]

BLOCK, LANE = "block", "lane"  # what the names of the two functions end in
SITES = ".sites"  # a table: the C string that names a barrier's line, by code
MOST = 8000  # instructions of a kernel with all that waits in it
MOST_LINES = 2000  # of the text of one that never waits: it costs more than it brings


@dataclass
class Lockstep:
    """What a kernel has become."""

    module: Any  # in which it is two functions, of the same arguments as before
    frame_bytes: int  # of a block's frame, per thread
    alone: str = ""  # the name of the function of a thread alone
    vectors: int = 0  # loops over threads that are taken several at a time
    lines: list[str] = field(default_factory=list)  # where threads wait that are not in step then


def in_lockstep(body: Any, name: str, row: bool = False) -> Lockstep:
    """Make two functions of the kernel `name`: of a block in step, and of a thread alone.

    Of one that never waits, the first only. For blocks of one `row` of threads, or for all.
    Raises `Unfit` for what cannot be, or gains nothing.
    """
    lines = str(body).splitlines()
    waiting, small = _waiting(lines)
    if name not in waiting and len(lines) > MOST_LINES:
        raise Unfit("it does not wait, and is long")
    mets = {
        kept: meetings.get(kept, Meeting(EACH, kept))
        for kept in waiting & kept_names if kept != name
    }  # fmt: skip
    _prepare(body, name, waiting | small, mets)
    function = read(body, name)
    if function.entry in function.errors:
        raise Unfit("it always fails")
    if sum(len(block.insts) for block in function) > MOST:
        raise Unfit("it is too long")
    calls = {callee_of(i) for block in function for i in block.insts if i.op == "call"}
    if calls & (waiting - mets.keys()) or PAUSE in calls:
        raise Unfit("it waits in code that is not one function with it")
    sink(function)
    cut_up(function, mets)
    _forget_statuses(function)
    analysis = Analysis(function)
    _check_warps(analysis)
    if analysis.own_loads:
        raise Unfit("its threads are numbered")
    frame, codes = Frame(), resume_codes(analysis)
    block = Fast(analysis, frame, codes, BLOCK, row)
    fast = block.make()
    if name not in waiting:
        if not block.saves:
            raise Unfit("it does not wait, nor does it gain")
        module = _with(body, name, [fast.replace(f", {SHORT}", "")])
        return Lockstep(module, frame.bytes, vectors=block.vectors)
    lanes = Lanes(analysis, frame, codes, LANE, row).make(block.parted)
    sites = _sites(analysis, codes, name)
    module = _with(body, name, [fast, lanes, sites])
    return Lockstep(module, frame.bytes, f"{name}.{LANE}", block.vectors, _alone(analysis))


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
            and (b.label in apart or not analysis.is_block_call(b.cut.call))
        )
    )


def _site_of(call: Any) -> tuple[str, str]:
    """The constant that names a call's line, and its text."""
    found = re.search(r'ptr (?:\w+(?:\(\d+\))? )*(@"?\.const\.([^"]*)"?)[,)]', call.text)
    return (found[1], found[2]) if found else ("null", "?")


SMALL = 300  # instructions of a function that is put into the kernel


def _waiting(lines: list[str]) -> tuple[set[str], set[str]]:
    """The functions that come to a pause, by themselves or by what they call; those that are small.

    LLVM's text tells both sooner than its answers about each instruction.
    """
    callers: dict[str, set[str]] = {}
    sizes: dict[str, int] = {}
    current = ""
    called = re.compile(r'@("[^"]*"|[\w.$-]+)\(')
    for line in lines:
        if line.startswith("define"):
            found = called.search(line)
            current = found[1].strip('"') if found else ""
            sizes[current] = 0
            continue
        if current and line.startswith("  "):
            sizes[current] += 1
        if current and "call " in line:
            for target in called.findall(line):
                callers.setdefault(target.strip('"'), set()).add(current)
    waiting: set[str] = set()
    todo = [PAUSE]
    while todo:
        for caller in callers.get(todo.pop(), ()):
            if caller not in waiting:
                waiting.add(caller)
                todo.append(caller)
    return waiting, {function for function, size in sizes.items() if size < SMALL}


def _prepare(body: Any, name: str, within: set[str], mets: dict[str, Any]) -> None:
    """Let the kernel be one function with those `within` it, but for what waits, and simple."""
    for function in body.functions:
        if function.is_declaration:
            continue
        attributes = b" ".join(function.attributes)
        if function.name in mets:
            function.add_function_attribute("noinline")
            function.add_function_attribute("convergent")
            function.add_function_attribute("noduplicate")
        elif function.name == name:
            function.linkage = "external"
        elif b"noinline" not in attributes and (
            function.name in within or function.name not in kept_names
        ):
            function.add_function_attribute("alwaysinline")
    kept = {name for met in mets.values() for name in (met.called, met.alike)}
    for function in body.functions:
        if not function.is_declaration and function.name != name:
            function.linkage = "external" if function.name in kept else "internal"
    passes.over_module(body, ("always_inliner", "global_dead_code_eliminate"))
    passes.over_functions([body.get_function(name)], PASSES)
    for function in body.functions:
        if not function.is_declaration and function.name in kept:
            function.linkage = "internal"


PASSES = (
    "sroa", "simplify_cfg", "instruction_combine", "sroa", "simplify_cfg", "jump_threading",
    "new_gvn", "sroa", "instruction_combine", "simplify_cfg", "dead_code_elimination",
    "break_critical_edges", "instruction_namer",
)  # fmt: skip


def _forget_statuses(function: Function) -> None:
    """Barriers of threads in step do not fail: their status is 0."""
    cuts = [b.cut for b in function if b.cut is not None]
    function.rename({cut.call.name or "": "0" for cut in cuts if cut.how == BARRIER})


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
