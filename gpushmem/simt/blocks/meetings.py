"""The places where a kernel is cut: calls of functions that wait, or in which threads meet."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from gpushmem.simt.blocks.code import Function
from gpushmem.simt.blocks.text import Block, Inst, callee_of
from gpushmem.simt.compiler.kept import ALL, BARRIER, LANES, ONCE, Meeting

__all__ = ["BARRIER", "EACH", "LANES", "ONCE", "Cut", "cut_up", "suffixed"]

# How all threads of a block make such a call together: there is nothing to do; one call of a
# function does for all of them, if its arguments are the same, or computes the results of all, if
# all lanes take part; each makes its own.
EACH = 4


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


FULL = ("-1", "4294967295")  # masks of all lanes
_argument = re.compile(r"(?:^|, )(i\d+) (?:\w+ )*([^\s,]+)")


def _words(text: str) -> list[tuple[str, str]]:
    """The integers among a call's arguments."""
    return [(kind, value) for kind, value in _argument.findall(text.split("(", 1)[1][:-1])]


def _jump(label: str, block: Block) -> Inst:
    return Inst(f"br label {label}", None, "void", "br", [], block)
