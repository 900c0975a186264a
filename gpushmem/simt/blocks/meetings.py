"""The places where a kernel is cut: calls of functions that wait, or in which threads meet."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpushmem.simt.blocks.code import Function
from gpushmem.simt.blocks.text import Block, Inst, callee_of
from gpushmem.simt.compiler.kept import BARRIER, ONCE

__all__ = ["BARRIER", "EACH", "ONCE", "Cut", "cut_up", "suffixed"]

# How all threads of a block make such a call together: there is nothing to do; one call of a
# function does for all of them, if its arguments are the same; each makes its own.
EACH = 2


@dataclass(eq=False)
class Cut:
    """One call of a function that waits."""

    call: Inst
    how: int
    together: str  # the function that is called once for all
    follows: str = ""  # the label of what comes next
    label: str = ""
    args: list[str] = field(default_factory=list)


def suffixed(name: str, suffix: str) -> str:
    """A name with something added, quoted as it was."""
    return f'{name[:-1]}{suffix}"' if name.endswith('"') else name + suffix


def cut_up(function: Function, meetings: dict[str, tuple[int, str]]) -> None:
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
            how, together = meetings[name]
            call.cut = Cut(inst, how, together, rest.label, call.label)
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


def _jump(label: str, block: Block) -> Inst:
    return Inst(f"br label {label}", None, "void", "br", [], block)
