"""An LLVM function as Python objects: blocks of instructions, each a line of text.

The text is what LLVM prints when every value has a name. Only what the analyses here ask for is
read from it: the names that an instruction uses, its opcode, where a terminator may go. Error
exits, that is, returns of a status other than 0, are no part of the control flow: see `Function`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from gpushmem.simt.compiler.target import Unfit

__all__ = [
    "EXIT", "Block", "Function", "Inst", "callee_of", "read", "substituted", "targets_of",
    "type_of",
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


# --- functions


class Function:
    """A kernel's body.

    `errors` are the blocks that lead to error exits only. They, and the edges to them, are no part
    of `follows`: a thread that goes there ends the launch, and what becomes of the others is of no
    interest. A return of 0 is an edge to EXIT.
    """

    def __init__(self, head: str, args: list[tuple[str, str]], blocks: dict[str, Block]) -> None:
        self.head, self.args, self.blocks = head, args, blocks
        self.entry = next(iter(blocks))
        self.errors = self._errors()

    def _errors(self) -> set[str]:
        every = {label: targets_of(block.end) for label, block in self.blocks.items()}
        good = set()  # the blocks from which a thread may come to its end without an error
        for label, block in self.blocks.items():
            if block.end.op == "ret" and block.end.text.startswith("ret i32 0"):
                good.add(label)
        grown = True
        while grown:
            grown = False
            for label, targets in every.items():
                if label not in good and any(t in good for t in targets):
                    good.add(label)
                    grown = True
        for label, block in self.blocks.items():
            block.follows = [t for t in every[label] if t in good]
            if block.end.op == "ret" and label in good:
                block.follows = [EXIT]
        return self.blocks.keys() - good

    def rename(self, meaning: dict[str, str]) -> None:
        """Let other values, or numbers, stand for these wherever they are used."""
        for block in self:
            for inst in block.insts:
                if any(name in meaning for name in inst.uses):
                    inst.text = substituted(inst.text, meaning)
                    names = (meaning.get(name, name) for name in inst.uses)
                    inst.uses = [n for n in dict.fromkeys(names) if n.startswith("%")]

    def __iter__(self) -> Iterator[Block]:
        return iter(self.blocks.values())


def read(module: Any, name: str) -> Function:
    """The function `name` of an LLVM module whose values all have names."""
    function = module.get_function(name)
    lines = iter(str(function).splitlines())
    head = next(line for line in lines if line.startswith("define"))
    args = [(f"%{_quoted(a.name)}", str(a.type)) for a in function.arguments]
    blocks = _blocks(_whole_lines(lines))
    insts = [inst for block in blocks.values() for inst in block.insts]
    _ask_for_types(function, insts)
    known = {name for name, _ in args} | {inst.name for inst in insts if inst.name}
    returned = f", ptr {args[0][0]}"  # a kernel returns None, into what is the frame here
    for block in blocks.values():
        block.insts = [i for i in block.insts if not (i.op == "store" and returned in i.text)]
        for inst in block.insts:
            right = inst.text[len(inst.name) :] if inst.name else inst.text
            inst.uses = [n for n in dict.fromkeys(NAMES.findall(right)) if n in known]
        block.insts = [i for i in block.insts if not i.text.startswith(DROPPED)]
    _split_returns(blocks)
    return Function(head, args, blocks)


def _ask_for_types(function: Any, insts: list[Inst]) -> None:
    """Have LLVM give the types that are not in the instructions' texts."""
    if all(inst.type for inst in insts):
        return
    theirs = (inst for block in function.blocks for inst in block.instructions)
    for inst, its in zip(insts, theirs, strict=True):
        inst.type = inst.type or str(its.type)


def _quoted(name: str) -> str:
    return name if re.fullmatch(r"[\w.$-]+", name) else f'"{name}"'


def _whole_lines(lines: Iterator[str]) -> Iterator[str]:
    """Lines without comments; a switch, which LLVM prints on several, on one."""
    for line in lines:
        text = line.split(" ; preds")[0].split("; preds")[0].strip()
        if text.startswith("switch ") and text.endswith("["):
            parts = [text]
            while not parts[-1].startswith("]"):
                parts.append(next(lines).strip())
            text = " ".join(parts)
        if text and not text.startswith(";"):
            yield text


def _blocks(lines: Iterator[str]) -> dict[str, Block]:
    blocks: dict[str, Block] = {}
    block = Block("")
    for text in lines:
        if text == "}":
            break
        label = LABEL.match(text)
        if label:
            block = blocks[f"%{label[1]}"] = Block(f"%{label[1]}")
            continue
        plain = METADATA.sub("", text)
        result = RESULT.match(plain)
        rest = plain[result.end() :] if result else plain
        op = rest.split(" ", 1)[0]
        op = "call" if op in ("tail", "musttail", "notail") else op
        kind = type_of(op, rest) or ""
        block.insts.append(Inst(plain, result[1] if result else None, kind, op, [], block))
    return blocks


def _split_returns(blocks: dict[str, Block]) -> None:
    """Let each way to a return have a return of its own: some are errors, some are not."""
    for label in list(blocks):
        block = blocks[label]
        end = block.end
        status = end.text.removeprefix("ret i32 ")
        if end.op != "ret" or not status.startswith("%"):
            continue
        phi = next((p for p in block.phis if p.name == status), None)
        if phi is None or len(block.insts) != 2:
            continue
        values = dict.fromkeys(value for value, _ in phi.incoming)
        if len(values) < 2 or "0" not in values:
            continue
        zero, other = Block(f"{label}.ok"), Block(label)
        zero.insts = [Inst("ret i32 0", None, "", "ret", [], zero)]
        rest = [(v, b) for v, b in phi.incoming if v != "0"]
        for value, pred in phi.incoming:
            if value == "0":
                if _clash(rest, pred):
                    raise Unfit("an edge is both an error and none")
                last = blocks[pred].end
                last.text = substituted(last.text, {label: zero.label})
        text = f"{phi.name} = phi i32 " + ", ".join(f"[ {v}, {b} ]" for v, b in rest)
        other.insts = [Inst(text, phi.name, "i32", "phi", phi.uses, other), end]
        end.block = other
        blocks[label], blocks[zero.label] = other, zero


def _clash(rest: list[tuple[str, str]], pred: str) -> bool:
    return any(label == pred for _, label in rest)
