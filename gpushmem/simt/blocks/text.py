"""Lines of LLVM code as Python objects."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

__all__ = [
    "DROPPED", "EXIT", "LABEL", "METADATA", "NAMES", "RESULT", "Block", "Inst", "callee_of",
    "substituted", "targets_of", "type_of",
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


_scalar = re.compile(r"(?:i\d+|half|bfloat|float|double|void|ptr(?: addrspace\(\d+\))?)(?![\w.])")
_MARKS = {  # what may be between an opcode and its type
    "nuw", "nsw", "exact", "disjoint", "samesign", "fast", "nnan", "ninf", "nsz", "arcp",
    "contract", "afn", "reassoc", "atomic", "volatile", "weak", "tail", "call", "noundef",
    "zeroext", "signext", "nonnull", "noalias",
}  # fmt: skip
_ADDRESS = {"alloca", "getelementptr", "inttoptr"}
_NOTHING = {"store", "br", "switch", "ret", "unreachable", "fence"}
_CASTS = {
    "trunc", "zext", "sext", "fptrunc", "fpext", "fptoui", "fptosi", "uitofp", "sitofp", "ptrtoint",
    "bitcast", "addrspacecast",
}  # fmt: skip
_FIRST = {  # those whose result is of the type that comes first
    "add", "sub", "mul", "udiv", "sdiv", "urem", "srem", "shl", "lshr", "ashr", "and", "or", "xor",
    "fadd", "fsub", "fmul", "fdiv", "frem", "fneg", "freeze", "phi", "load", "insertvalue", "call",
}  # fmt: skip


def type_of(op: str, right: str) -> str | None:
    """The type of what an instruction gives; None if its text does not tell by itself.

    LLVM says it, too, but a question to it takes longer than all else about an instruction.
    """
    if op in _NOTHING:
        return "void"
    if "<" in right.partition("@")[0]:  # a vector
        return None
    if op in _ADDRESS:
        return "ptr" if "addrspace(" not in right else None
    if op in ("icmp", "fcmp"):
        return "i1"
    if op in _CASTS:
        return _type_at(right.rpartition(" to ")[2])
    if op in ("select", "atomicrmw", "cmpxchg"):
        first, _, second = right.partition(", ")
        found = None if "(" in first else _type_at(second)
        return f"{{ {found}, i1 }}" if op == "cmpxchg" and found else found
    if op in _FIRST:
        words = right.removeprefix(op)
        while (word := words.lstrip().partition(" ")[0]) in _MARKS:
            words = words.lstrip()[len(word) :]
        return _type_at(words.lstrip())
    return None


def _type_at(text: str) -> str | None:
    """The type that a text begins with."""
    found = _scalar.match(text)
    if found:
        return found[0]
    if not text.startswith(("[", "{")):
        return None
    depth = 0
    for k, letter in enumerate(text):
        depth += (letter in "[{") - (letter in "]}")
        if depth == 0:
            return text[: k + 1]
    return None


def targets_of(end: Inst) -> list[str]:
    return list(dict.fromkeys(_edge.findall(end.text)))


def callee_of(inst: Inst) -> str:
    """The name of the function that a call calls; empty for an address or assembly."""
    found = _callee.search(inst.text)
    return found[1].strip('"') if found else ""


def substituted(text: str, meaning: dict[str, str]) -> str:
    """An instruction's text with other names."""
    return NAMES.sub(lambda m: meaning.get(m[0], m[0]), text)
