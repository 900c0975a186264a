"""Lines of LLVM code as Python objects."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

__all__ = [
    "DROPPED", "EXIT", "LABEL", "METADATA", "NAMES", "RESULT", "Block", "Inst", "callee_of",
    "substituted", "targets_of",
]  # fmt: skip

NAME = r'%(?:"[^"]*"|[\w.$-]+)'
NAMES = re.compile(NAME)
LABEL = re.compile(r'^("[^"]*"|[\w.$-]+):')
METADATA = re.compile(r", !(?:alias\.scope|noalias|srcloc|noundef|invariant\.load) !\d+")
RESULT = re.compile(rf"^({NAME}) = ")
_callee = re.compile(r"@(\"[^\"]*\"|[\w.$-]+)\(")
_edge = re.compile(rf"label ({NAME})")
_incoming = re.compile(rf"\[ (.+?), ({NAME}) \]")
DROPPED = (
    "call void @llvm.assume(", "call void @llvm.lifetime.",
    "call void @llvm.experimental.noalias.scope.decl(", "call void @llvm.dbg.",
    "tail call void @llvm.experimental.noalias.scope.decl(",
)  # fmt: skip
EXIT = "%<exit>"  # the label that stands for the end of a thread


@dataclass(eq=False)
class Inst:
    """One instruction."""

    text: str  # without what is before "=" removed, and without metadata about aliases
    name: str | None  # of its result
    type: str  # of its result
    op: str
    uses: list[str]  # names of values, labels not included
    block: Block = field(repr=False, default=None)  # type: ignore[assignment]

    @property
    def incoming(self) -> list[tuple[str, str]]:
        """Of a phi: (value, label)."""
        return [(value, label) for value, label in _incoming.findall(self.text)]


@dataclass(eq=False)
class Block:
    """A basic block; `label` begins with %."""

    label: str
    insts: list[Inst] = field(default_factory=list)
    follows: list[str] = field(default_factory=list)  # labels, each once; EXIT
    cut: Any = None  # the meeting that its one instruction is

    @property
    def phis(self) -> list[Inst]:
        return [inst for inst in self.insts if inst.op == "phi"]

    @property
    def body(self) -> list[Inst]:
        """What is neither a phi nor the terminator."""
        return [inst for inst in self.insts[:-1] if inst.op != "phi"]

    @property
    def end(self) -> Inst:
        return self.insts[-1]


def targets_of(end: Inst) -> list[str]:
    return list(dict.fromkeys(_edge.findall(end.text)))


def callee_of(inst: Inst) -> str:
    """The name of the function that a call calls; empty for an address or assembly."""
    found = _callee.search(inst.text)
    return found[1].strip('"') if found else ""


def substituted(text: str, meaning: dict[str, str]) -> str:
    """An instruction's text with other names."""
    return NAMES.sub(lambda m: meaning.get(m[0], m[0]), text)
