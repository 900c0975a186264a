"""A kernel made ready for `uniformity`: one function, its loops alike, cut where threads wait."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from gpushmem.simt.base import llvm_passes
from gpushmem.simt.base.function_attributes import with_attributes
from gpushmem.simt.blocks.llvm_code import (
    Block,
    Function,
    Inst,
    callee_of,
    substituted,
    targets_of,
)
from gpushmem.simt.blocks.uniformity import is_pure
from gpushmem.simt.compiler.cached_functions import ALL, BARRIER, LANES, Meeting, kept_names
from gpushmem.simt.compiler.primitives import PAUSE

__all__ = [
    "EACH", "Cut", "cut_up", "forget_statuses", "join", "one_function", "sink", "suffixed",
    "waiting_in",
]  # fmt: skip

# --- one function

SMALL = 300  # instructions of a function that is put into the kernel


def waiting_in(lines: list[str]) -> tuple[set[str], set[str]]:
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


def one_function(body: Any, name: str, within: set[str], mets: dict[str, Any]) -> Any:
    """Let the kernel be one function with those `within` it, but for what waits, and simple.

    Returns the module that `body` has become.
    """
    added: dict[str, tuple[str, ...]] = {}
    for function in body.functions:
        if function.is_declaration:
            continue
        attributes = b" ".join(function.attributes)
        if function.name in mets:
            added[function.name] = "noinline", "convergent", "noduplicate"
        elif function.name == name:
            function.linkage = "external"
        elif b"noinline" not in attributes and (
            function.name in within or function.name not in kept_names
        ):
            added[function.name] = ("alwaysinline",)
    body = with_attributes(body, added)
    kept = {name for met in mets.values() for name in (met.called, met.alike)}
    for function in body.functions:
        if not function.is_declaration and function.name != name:
            function.linkage = "external" if function.name in kept else "internal"
    llvm_passes.over_module(body, ("always_inliner", "global_dead_code_eliminate"))
    llvm_passes.over_functions([body.get_function(name)], SIMPLIFYING)
    for function in body.functions:
        if not function.is_declaration and function.name in kept:
            function.linkage = "internal"
    return body


SIMPLIFYING = (
    "sroa", "simplify_cfg", "instruction_combine", "sroa", "simplify_cfg", "jump_threading",
    "new_gvn", "sroa", "instruction_combine", "simplify_cfg", "dead_code_elimination",
    "break_critical_edges", "instruction_namer",
)  # fmt: skip


# --- loops alike: what depends on a branch's condition is computed behind the branch

_branch = re.compile(r"br i1 (%\S+), label (\S+), label (\S+)$")


def sink(function: Function) -> None:
    """Move instructions behind branches whose first way alone needs them."""
    users: dict[str, list[Inst]] = {}
    for block in function:
        for inst in block.insts:
            for name in inst.uses:
                users.setdefault(name, []).append(inst)
    meaning: dict[str, str] = {}
    for block in list(function):
        found = _branch.match(block.end.text)
        if found is None or found[2] == found[3] or found[2] not in function.blocks:
            continue
        chosen = _chosen(block, found[1])
        if not chosen or not any(inst.op == "select" for inst in chosen):
            continue
        behind = _behind(function, block, found[2])
        moved = _movable(chosen, users, behind)
        if moved:
            _move(moved, block, function.blocks[found[2]], meaning, found[1])
    function.rename(meaning)


def _chosen(block: Block, condition: str) -> list[Inst]:
    """What a block computes from a condition."""
    found: list[Inst] = []
    names = {condition}
    for inst in block.body:
        if inst.name != condition and is_pure(inst) and names.intersection(inst.uses):
            found.append(inst)
            names.add(inst.name or "")
    return found


def _behind(function: Function, block: Block, target: str) -> set[str]:
    """The labels that are reached only through the edge from a block to one of its targets."""
    seen, todo = {function.entry}, [function.entry]
    while todo:
        label = todo.pop()
        for following in targets_of(function.blocks[label].end):
            if following not in seen and (label, following) != (block.label, target):
                seen.add(following)
                todo.append(following)
    return function.blocks.keys() - seen


def _movable(chosen: list[Inst], users: dict[str, list[Inst]], behind: set[str]) -> list[Inst]:
    """Those of which all users are behind the branch, or move there, too."""
    moved = list(chosen)
    while True:
        kept = [inst for inst in moved if all(
            user in moved or _is_behind(user, inst.name or "", behind)
            for user in users.get(inst.name or "", [])
        )]  # fmt: skip
        if kept == moved:
            return moved
        moved = kept


def _is_behind(user: Inst, name: str, behind: set[str]) -> bool:
    if user.op == "phi":
        return all(pred in behind for value, pred in user.incoming if value == name)
    return user.block.label in behind


def _move(
    moved: list[Inst], block: Block, target: Block, meaning: dict[str, str], condition: str
) -> None:
    """Move instructions to the beginning of a block that is entered where the condition holds."""
    block.insts = [inst for inst in block.insts if inst not in moved]
    left = []
    for inst in moved:
        known = _known(inst, condition)
        if known is None:
            left.append(inst)
        else:
            meaning[inst.name or ""] = meaning.get(known, known)
    for inst in left:
        inst.block = target
    target.insts[len(target.phis) : len(target.phis)] = left


def _known(inst: Inst, condition: str) -> str | None:
    """What an instruction computes where the condition is true, if that is a value already."""
    select = re.search(rf" = select i1 {re.escape(condition)}, \S+ ([^,]+), \S+ [^,]+$", inst.text)
    if select:
        return select[1]
    number = re.search(rf" = (sext|zext(?: nneg)?) i1 {re.escape(condition)} to i\d+$", inst.text)
    if number:
        return "-1" if number[1] == "sext" else "1"
    return None


# --- cuts: calls of functions that wait, or in which threads meet

# How all threads of a block make such a call together: there is nothing to do; one call of a
# function does for all of them, if its arguments are the same, or computes the results of all, if
# all lanes take part; one does for all of a warp; each makes its own.
EACH = 5


@dataclass(eq=False)
class Cut:
    """One call of a function that waits."""

    call: Inst
    how: int
    meeting: Meeting
    follows: str = ""  # the label of what comes next
    label: str = ""
    args: list[tuple[str, str]] = field(default_factory=list)  # types and values, of LANES


def suffixed(name: str, suffix: str) -> str:
    """A name with something added, quoted as it was."""
    return f'{name[:-1]}{suffix}"' if name.endswith('"') else name + suffix


def cut_up(function: Function, meetings: dict[str, Meeting]) -> None:
    """Let each call of one of these functions be a block of its own."""
    whole = dict(function.blocks)
    function.blocks.clear()
    last: dict[str, str] = {}  # block as it was -> label of its last part
    for label, block in whole.items():
        part, insts, k = block, block.insts, 0
        block.insts = []
        function.blocks[label] = block
        for inst in insts:
            name = callee_of(inst) if inst.op == "call" else ""
            if name not in meetings or label in function.errors:
                part.insts.append(inst)
                continue
            k += 1
            call = Block(suffixed(label, f".cut{k}"))
            rest = Block(suffixed(label, f".after{k}"))
            how = meetings[name].how
            args = _words(inst.text) if how in (LANES, ALL) else []
            if how in (LANES, ALL):
                how = LANES if how == ALL or args[0][1] in FULL else EACH
            call.cut = Cut(inst, how, meetings[name], rest.label, call.label, args)
            part.insts.append(_jump(call.label, part))
            call.insts = [inst, _jump(rest.label, call)]
            rest.follows, part.follows, call.follows = part.follows, [call.label], [rest.label]
            function.blocks[call.label], function.blocks[rest.label] = call, rest
            part = rest
        last[label] = part.label
    moved = {old: new for old, new in last.items() if old != new}
    for block in function:
        for inst in block.insts:
            inst.block = block
            if inst.op == "phi" and moved:
                head, _, incoming = inst.text.partition(" = phi ")
                for before, after in moved.items():
                    incoming = incoming.replace(f", {before} ]", f", {after} ]")
                inst.text = f"{head} = phi {incoming}"


def join(function: Function, edges: set[str], stop: str) -> None:
    """Let the ways from some blocks to another meet before it, in a block of their own."""
    block = function.blocks[stop]
    made = Block(suffixed(stop, ".met"))
    while made.label in function.blocks:
        made.label = suffixed(made.label, ".met")
    for phi in block.phis:
        came = {pred: value for value, pred in phi.incoming if pred in edges}
        rest = {pred: value for value, pred in phi.incoming if pred not in edges}
        head, values = phi.text.partition(" [ ")[0], {*came.values()}
        if len(values) == 1:
            (rest[made.label],) = values
        else:
            name = suffixed(made.label, f".{len(made.insts)}")
            text = f"{name} = phi {head.partition(' = phi ')[2]} {_ways(came)}"
            made.insts.append(Inst(text, name, phi.type, "phi", _named(came), made))
            rest[made.label] = name
        phi.text, phi.uses = f"{head} {_ways(rest)}", _named(rest)
    made.insts.append(_jump(stop, made))
    made.follows = [stop]
    for label in edges:
        end = function.blocks[label].end
        end.text = substituted(end.text, {stop: made.label})
        follows = function.blocks[label].follows
        follows[follows.index(stop)] = made.label
    function.blocks[made.label] = made


def _ways(incoming: dict[str, str]) -> str:
    return ", ".join(f"[ {value}, {pred} ]" for pred, value in incoming.items())


def _named(incoming: dict[str, str]) -> list[str]:
    return [v for v in dict.fromkeys(incoming.values()) if v.startswith("%")]


FULL = ("-1", "4294967295")  # masks of all lanes
_argument = re.compile(r"(?:^|, )(i\d+) (?:\w+ )*([^\s,]+)")


def _words(text: str) -> list[tuple[str, str]]:
    """The integers among a call's arguments."""
    return [(kind, value) for kind, value in _argument.findall(text.split("(", 1)[1][:-1])]


def _jump(label: str, block: Block) -> Inst:
    return Inst(f"br label {label}", None, "void", "br", [], block)


def forget_statuses(function: Function) -> None:
    """Barriers of threads in step do not fail: their status is 0."""
    cuts = [b.cut for b in function if b.cut is not None]
    function.rename({cut.call.name or "": "0" for cut in cuts if cut.how == BARRIER})
