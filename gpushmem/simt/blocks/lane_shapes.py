"""How the values of a group look in the lanes of a vector: `vectors` writes it for several threads.

The threads of a row are taken `WIDTH` at a time, each in a lane. A value is the same in all lanes
(its *step* is 0), grows evenly from lane to lane (its step is that number: the index of a thread,
addresses of neighbouring elements), or is a vector. Only vectors need vector instructions; the
others are computed once, for the first lane. What is said of a value holds where the lanes are on
that runs its instruction together: in a loop that some lanes leave earlier than others, a counter
is still the same in all that are left. Behind such a loop it is not.

A loop is *even* if all lanes leave it together. Whether the end of a loop varies follows from the
shapes, and they from that: all is assumed to be even until something contradicts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from gpushmem.simt.blocks.emit import size_of
from gpushmem.simt.blocks.group import Group
from gpushmem.simt.blocks.llvm_code import Inst, callee_of, targets_of
from gpushmem.simt.blocks.uniformity import is_pure
from gpushmem.simt.compiler.symbols import OWN
from gpushmem.simt.compiler.target import Unfit

__all__ = [
    "UNIFORM", "VECTOR", "Loop", "Parsed", "Shape", "Shapes", "check_type", "matched", "parsed",
]  # fmt: skip


@dataclass(frozen=True)
class Shape:
    """By how much a value grows from lane to lane; None: nothing is known, it is a vector.

    `signed`, `unsigned`: as numbers of that kind they grow so, too, without overflow.
    """

    step: int | None
    signed: bool = False
    unsigned: bool = False


UNIFORM, VECTOR = Shape(0, True, True), Shape(None)
FLAGS = re.compile(
    r"(?:nuw|nsw|exact|nneg|disjoint|samesign|inbounds|nusw|fast|nnan|ninf|nsz|arcp|contract|afn"
    r"|reassoc)\s+"
)
SCALAR = re.compile(r"(?:i1|i8|i16|i32|i64|half|bfloat|float|double|ptr)$")
CASTS = (
    "zext", "sext", "trunc", "fptrunc", "fpext", "fptoui", "fptosi", "uitofp", "sitofp", "ptrtoint",
    "inttoptr", "bitcast",
)  # fmt: skip
BINARY = (
    "add", "sub", "mul", "sdiv", "udiv", "srem", "urem", "fadd", "fsub", "fmul", "fdiv", "frem",
    "and", "or", "xor", "shl", "lshr", "ashr",
)  # fmt: skip
MEMORY = ("load", "store")
_notes = re.compile(r"(?:, ![\w.]+ !\d+)+$")
_pair = re.compile(r"(\S+) (.+), (.+)$")
_comparison = re.compile(r"(\w+) (\S+) (.+), (.+)$")
_cast = re.compile(r"(\S+) (.+) to (\S+)$")


def matched(pattern: Any, text: str) -> tuple[str, ...]:
    """The groups of a pattern, or `Unfit`."""
    found = pattern.match(text)
    if found is None:
        raise Unfit(f"{text} is not understood")
    groups: tuple[str, ...] = found.groups()
    return groups


def check_type(kind: str) -> None:
    """Raise `Unfit` if a value of this type cannot be an element of a vector."""
    if not SCALAR.match(kind):
        raise Unfit(f"a value is of type {kind}")


@dataclass(frozen=True)
class Parsed:
    """An instruction: its flags, types and operands."""

    op: str
    flags: str
    operands: tuple[tuple[str, str], ...]  # types and values
    extra: str = ""  # predicate, element type, function, or alignment
    plain: bool = True  # whether lanes may do it together, as one vector instruction


@cache
def parsed(text: str) -> Parsed:
    """What an instruction's text says; raises `Unfit` for what is not understood."""
    text = _notes.sub("", text)
    right = text.split(" = ", 1)[1] if re.match(r"%[^=]*? = ", text) else text
    op, _, rest = right.partition(" ")
    found = FLAGS.match(rest)
    flags = ""
    while found:
        flags, rest = flags + found[0], rest[found.end() :]
        found = FLAGS.match(rest)
    if op in ("tail", "notail"):
        op, _, rest = rest.partition(" ")
    if op in BINARY:
        kind, one, other = matched(_pair, rest)
        return Parsed(op, flags, ((kind, one), (kind, other)))
    if op in ("icmp", "fcmp"):
        predicate, kind, one, other = matched(_comparison, rest)
        return Parsed(op, flags, ((kind, one), (kind, other)), predicate)
    if op in CASTS:
        kind, value, to = matched(_cast, rest)
        return Parsed(op, flags, ((kind, value),), to)
    if op in ("fneg", "freeze"):
        kind, value = rest.split(" ", 1)
        return Parsed(op, flags, ((kind, value),))
    if op in ("select", "getelementptr", "load", "store"):
        extra = ""
        plain = not re.match(r"(volatile|atomic) ", rest)
        if op in MEMORY:
            rest, _, extra = re.sub(r"^(volatile|atomic) ", "", rest).partition(", align ")
        parts = _split(rest)
        if op in ("getelementptr", "load"):
            kind, *parts = parts
            extra = f"{kind}|{extra}"
        return Parsed(op, flags, tuple(map(_typed, parts)), extra, plain)
    if op == "call":
        found = re.match(r"(\S+) (@[^(]+)\((.*)\)(?: #\d+)?$", rest)
        if found is not None:
            name = found[2][1:].strip('"')
            plain = name.startswith("llvm.") and "with.overflow" not in name
            operands = tuple(map(_typed, _split(found[3]))) if found[3] else ()
            return Parsed(op, flags, operands, name, plain)
    return Parsed(op, flags, (), right, plain=False)


def _split(text: str) -> list[str]:
    """The parts between commas that are in no brackets."""
    parts, depth, start = [], 0, 0
    for k, sign in enumerate(text):
        depth += (sign in "([{<") - (sign in ")]}>")
        if sign == "," and depth == 0:
            parts.append(text[start:k].strip())
            start = k + 1
    return [*parts, text[start:].strip()]


def _typed(text: str) -> tuple[str, str]:
    kind, _, value = text.partition(" ")
    value = re.sub(
        r"^(?:(?:noundef|nonnull|nocapture|readonly|align \d+|captures\(\w+\)) )+", "", value
    )
    return kind, value


@dataclass
class Loop:
    """A loop in a group."""

    header: str
    body: set[str]
    latches: list[str]
    exits: list[tuple[str, str]]  # edges
    even: bool  # all lanes leave it together
    parent: Loop | None = None


class Shapes:
    """The shapes of what a group computes; raises `Unfit` if lanes cannot run it together."""

    def __init__(self, to: Any, group: Group) -> None:
        self.to, self.group = to, group
        self.flow, self.analysis, self.blocks = to.flow, to.analysis, to.blocks
        self.loops: dict[str, Loop] = {}  # header -> loop
        self.inner: dict[str, Loop] = {}  # label -> the innermost loop
        self.region: set[str] = set()
        for node in group.nodes:
            if node.label in node.region or self.region & node.region:
                raise Unfit("a region begins in itself")
            self.region |= node.region
            self._find_loops(node.region)
        self.insts = [i for node in group.nodes for i in to.all_of(node)]
        self.home = {i.name: i for i in self.insts if i.name}
        self.of: dict[str, Shape] = {}
        self.clean: set[int] = set()  # instructions before which nothing has been written
        self.orders = [self.order(node.region) for node in group.nodes]
        self._find_clean()
        self._check()
        self._grow()
        self._check_serial()
        self._check_accesses()

    # --- loops

    def _find_loops(self, region: set[str]) -> None:
        dominators, bit = self.flow.dominators, self.flow.bit
        order = {label: k for k, label in enumerate(self.flow.labels)}
        for label in self.flow.labels:
            if label not in region:
                continue
            for target in self.blocks[label].follows:
                if target in region and order[target] <= order[label]:
                    if not dominators[label] & bit(target):
                        raise Unfit("a loop has two entries")
                    self._add_loop(target, region)
        for loop in self.loops.values():
            around = [o for o in self.loops.values() if o is not loop and loop.header in o.body]
            loop.parent = min(around, key=lambda o: len(o.body), default=None)
            if any(not loop.body <= o.body for o in around):
                raise Unfit("loops overlap")
        for label in region:
            around = [o for o in self.loops.values() if label in o.body]
            if around:
                self.inner[label] = min(around, key=lambda o: len(o.body))

    def _add_loop(self, header: str, region: set[str]) -> None:
        if header in self.loops:
            return
        body = self.flow.loop_of(header)
        if not body <= region:
            raise Unfit("a loop leaves its region")
        latches = [p for p in self.flow.preds[header] if p in body]
        exits = [(p, t) for p in sorted(body) for t in self.blocks[p].follows if t not in body]
        leaving = {p for p, _ in exits}
        dominators, bit = self.flow.dominators, self.flow.bit
        even = len(exits) == 1 and all(
            dominators[latch] & bit(p) for latch in latches for p in leaving
        )
        even = even and self.blocks[exits[0][0]].end.op == "br"
        self.loops[header] = Loop(header, body, latches, exits, even)

    def outermost(self, label: str) -> Loop | None:
        loop = self.inner.get(label)
        while loop is not None and loop.parent is not None:
            loop = loop.parent
        return loop

    # --- effects

    def is_serial(self, inst: Inst) -> bool:
        """Whether lanes do it one after the other."""
        if inst.op in ("phi", "br", "switch", "ret", "unreachable", "alloca"):
            return False
        if inst.name in self.analysis.lane_loads:
            return False
        if inst.op == "call" and not (is_pure(inst) and parsed(inst.text).plain):
            return not self._is_uniform_call(inst)
        return not parsed(inst.text).plain

    def _is_uniform_call(self, inst: Inst) -> bool:
        """Whether a call that only computes gives all lanes the same."""
        if not is_pure(inst) or callee_of(inst) == OWN:
            return False
        return all(self.at(n, inst.block.label).step == 0 for n in inst.uses)

    def _writes(self, inst: Inst) -> bool:
        return inst.op == "store" or (
            inst.op not in ("phi", "br", "switch", "ret", "load", "alloca") and not is_pure(inst)
        )

    def _find_clean(self) -> None:
        written = False
        for node, order in zip(self.group.nodes, self.orders, strict=True):
            for inst in [*node.insts, *([node.end] if node.end else [])]:
                written = self._note(inst, written)
            for label in order:
                loop = self.outermost(label)
                if loop is not None and any(
                    self._writes(i) for at in loop.body for i in self.blocks[at].insts
                ):
                    written = True
                for inst in self.blocks[label].insts:
                    written = self._note(inst, written)

    def _note(self, inst: Inst, written: bool) -> bool:
        if not written:
            self.clean.add(id(inst))
        return written or self._writes(inst)

    def order(self, region: set[str]) -> list[str]:
        """A region's blocks: each behind those that lead to it, loops in one piece."""
        rank = {label: k for k, label in enumerate(self.flow.labels)}

        def level(labels: set[str], loop: Loop | None) -> Iterator[str]:
            def unit(label: str) -> str:
                """The header of the loop in this level that a block is in, or the block."""
                at = self.inner.get(label)
                while at is not None and at is not loop:
                    if at.parent is loop:
                        return at.header
                    at = at.parent
                return label

            units = {unit(label) for label in labels}
            ahead: dict[str, set[str]] = {u: set() for u in units}
            for label in labels:
                at = unit(label)
                if loop is None or label != loop.header:
                    before = [p for p in self.flow.preds[label] if p in labels]
                    ahead[at] |= {unit(p) for p in before} - {at}
            done: set[str] = set()
            while len(done) < len(units):
                ready = [u for u in units - done if ahead[u] <= done]
                if not ready:
                    raise Unfit("blocks have no order")
                at = min(ready, key=rank.__getitem__)
                done.add(at)
                inner = self.loops.get(at)
                if inner is not None and inner is not loop:
                    yield from level(inner.body, inner)
                else:
                    yield at

        return list(level(set(region), None))

    # --- what is supported

    def _check(self) -> None:
        for inst in self.insts:
            if inst.op in ("alloca", "unreachable"):
                raise Unfit(f"a group has {inst.op}")
            fails = set(targets_of(inst)) & self.to.function.errors
            if fails and (inst.op != "br" or id(inst) not in self.clean):
                raise Unfit("a thread may fail where others have written")
            if inst.name and inst.op != "cmpxchg":
                check_type(inst.type)
            if inst.op == "store":
                check_type(parsed(inst.text).operands[0][0])

    # --- shapes

    def at(self, value: str, label: str) -> Shape:
        """The shape that a value has where a block uses it."""
        inst = self.home.get(value)
        if inst is None:
            return self.outside(value)
        shape = self.of.get(value, UNIFORM)
        loop = self.inner.get(inst.block.label)
        while loop is not None and label not in loop.body:
            if not loop.even:
                return VECTOR
            loop = loop.parent
        return shape

    def outside(self, value: str) -> Shape:
        """The shape of what is no part of the group."""
        analysis = self.analysis
        if not value.startswith("%") or value not in analysis.defs:
            return UNIFORM
        if value in analysis.lane_loads:
            return Shape(int(analysis.lane_loads[value] == 0), True, True)
        if value in analysis.recipes:
            if value not in self.of:
                for step in analysis.recipes[value]:
                    self.of[step.name or ""] = self._shape(step)
            return self.of[value]
        if value in analysis.per_lane:
            self.to.place_of(value)
            return Shape(self.to.frame.sizes[value], True, True)
        return UNIFORM if self.to.is_uniform(value) else VECTOR

    def _check_serial(self) -> None:
        """Refuse what lanes do one by one, unless they do other loops together."""

        def is_serial(insts: list[Inst]) -> bool:
            return any(self.is_serial(i) and not is_pure(i) for i in insts)

        insides = [
            (loop, is_serial([i for at in loop.body for i in self.blocks[at].insts]))
            for loop in self.loops.values()
        ]
        if any(serial and not loop.even for loop, serial in insides):
            raise Unfit("threads may wait for each other in a loop")
        if is_serial(self.insts) and all(serial for _, serial in insides):
            raise Unfit("lanes would take turns most of the time")

    def _check_accesses(self) -> None:
        """Refuse loops that some lanes leave earlier, if most accesses in them are scattered."""
        for loop in self.loops.values():
            inside = [i for at in loop.body for i in self.blocks[at].insts]
            accesses = [i for i in inside if i.op in MEMORY]
            if not loop.even and 2 * sum(map(self._is_scattered, accesses)) > len(accesses):
                raise Unfit("lanes use memory here and there in a loop")

    def _is_scattered(self, inst: Inst) -> bool:
        """Whether the lanes of a load or store neither use one element nor neighbours."""
        what = parsed(inst.text)
        kind = what.operands[0][0] if inst.op == "store" else what.extra.partition("|")[0]
        step = self.at(what.operands[-1][1], inst.block.label).step
        return step not in (0, size_of(kind))

    def _grow(self) -> None:
        """Let vectors spread until all shapes agree."""
        while True:
            before = dict(self.of), [loop.even for loop in self.loops.values()]
            for inst in self.insts:
                if inst.name:
                    self.of[inst.name] = self._met(inst, self._shape(inst))
            for loop in self.loops.values():
                if loop.even:  # it has one exit
                    label = loop.exits[0][0]
                    uses = self.blocks[label].end.uses
                    loop.even = all(self.at(n, label).step == 0 for n in uses)
            if before == (dict(self.of), [loop.even for loop in self.loops.values()]):
                break

    def _met(self, inst: Inst, new: Shape) -> Shape:
        old = self.of.get(inst.name or "")
        if old is None or old == new:
            return new
        if old.step != new.step:
            return VECTOR
        return Shape(old.step, old.signed and new.signed, old.unsigned and new.unsigned)

    def _shape(self, inst: Inst) -> Shape:
        name = inst.name or ""
        if name in self.analysis.lane_loads:
            return self.outside(name)
        if inst.op == "phi":
            return self._phi(inst)
        if self.is_serial(inst):
            return VECTOR
        shapes = [
            self.at(v, inst.block.label) if v.startswith("%") else UNIFORM
            for _, v in parsed(inst.text).operands
        ]
        if all(s.step == 0 for s in shapes):
            return UNIFORM
        if any(s.step is None for s in shapes):
            return VECTOR
        return self._linear(inst, parsed(inst.text), shapes)

    def _phi(self, phi: Inst) -> Shape:
        label = phi.block.label
        loop = self.loops.get(label)
        values = []
        for value, pred in phi.incoming:
            if pred not in self.flow.follows:
                continue
            known = value not in self.home or value in self.of or not value.startswith("%")
            if known:
                values.append((value, pred, self.at(value, pred)))
        if loop is not None and label in self.region:
            inside = {v for v, p, _ in values if p in loop.body}
            around = {v for v, p, _ in values if p not in loop.body}
            joined = len(inside) <= 1 and len(around) <= 1
        else:
            joined = len({v for v, _, _ in values}) <= 1
        if not values:
            return UNIFORM
        if not joined:
            return VECTOR
        first, *rest = [s for _, _, s in values]
        if any(s.step != first.step for s in rest):
            return VECTOR
        every = [first, *rest]
        return Shape(first.step, all(s.signed for s in every), all(s.unsigned for s in every))

    def _linear(self, inst: Inst, what: Parsed, shapes: list[Shape]) -> Shape:
        """The shape of what is computed of values of which some grow and none is a vector."""
        op, steps = inst.op, [s.step or 0 for s in shapes]
        signed, unsigned = (all(getattr(s, k) for s in shapes) for k in ("signed", "unsigned"))
        nsw, nuw = "nsw" in what.flags, "nuw" in what.flags
        if op == "add" or (op == "or" and "disjoint" in what.flags):
            exact = op == "or"
            step = sum(steps)
            return Shape(step, signed and (nsw or exact), unsigned and step >= 0 and (nuw or exact))
        if op == "sub":
            return Shape(steps[0] - steps[1], signed and nsw)
        if op in ("mul", "shl") and re.fullmatch(r"-?\d+", what.operands[1][1]):
            number = int(what.operands[1][1])
            by = number if op == "mul" else 1 << number
            return Shape(steps[0] * by, signed and nsw, unsigned and by >= 0 and nuw)
        if op == "zext" and (unsigned or ("nneg" in what.flags and signed)):
            return Shape(steps[0], True, True)
        if op == "sext" and signed:
            return Shape(steps[0], True)
        if op == "trunc":
            return Shape(steps[0]) if what.extra != "i1" else VECTOR
        if op in ("inttoptr", "ptrtoint"):
            same = "i64" in (what.extra, what.operands[0][0])
            return Shape(steps[0]) if same else VECTOR
        if op == "freeze":
            return shapes[0]
        if op == "select" and steps[0] == 0 and steps[1] == steps[2]:
            return Shape(steps[1], signed, unsigned)
        if op == "getelementptr":
            return self._element(what, steps)
        if self.is_wrap(inst):
            return UNIFORM
        return VECTOR

    def _element(self, what: Parsed, steps: list[int]) -> Shape:
        """The shape of an address: of a base, plus an index times the size of an element."""
        kind = what.extra.split("|")[0]
        if not any(steps[1:]):
            return Shape(steps[0])
        if len(steps) != 2 or what.operands[1][0] != "i64":
            return VECTOR
        return Shape(steps[0] + steps[1] * size_of(kind))

    def is_wrap(self, inst: Inst) -> bool:
        """Whether an instruction asks if an index is negative: Numba adds the length then.

        Seldom it is, and then all lanes start over, one after the other. So nothing may have been
        written before.
        """
        inside = self.home.get(inst.name or "") is inst
        if inst.op != "icmp" or (inside and id(inst) not in self.clean):
            return False
        what = parsed(inst.text)
        (_, left), (_, right) = what.operands
        if what.extra != "slt" or not re.fullmatch(r"0|-\d+", right):
            return False
        step = self.at(left, inst.block.label).step
        if not step or step < 0:
            return False
        users = self.to.users(inst)
        return bool(users) and all(
            u.op == "select" and u.uses[0] == inst.name and parsed(u.text).operands[2][1] == "0"
            for u in users
        )
