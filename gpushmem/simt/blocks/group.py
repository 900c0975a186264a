"""What the threads of a block do one after the other, and the loops that let them.

`if t < n:`, `if t == 0:`, `if cuda.grid(1) < n:`: only those threads need a turn (`guarded`). What
is compared is the thread's index, or a sum of it and what is the same for all (which does not
overflow, or the optimiser would not have said so).
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gpushmem.simt.blocks.llvm_code import EXIT, Inst, targets_of
from gpushmem.simt.blocks.uniformity import is_pure

__all__ = ["Group", "Nest", "Node", "Turns", "guarded", "with_hints"]

# What LLVM is told of a loop, see `with_hints`.
SHORT, SELDOM = "!llvm.loop !short", "!llvm.loop !seldom"
HINTS = {
    SHORT: ('!"llvm.loop.interleave.count", i32 1', '!"llvm.loop.unroll.disable"'),
    SELDOM: ('!"llvm.loop.vectorize.enable", i1 false', '!"llvm.loop.unroll.disable"'),
}


@dataclass
class Node:
    """Instructions of one block, and the region that follows them."""

    label: str  # of the block
    insts: list[Inst]
    end: Inst | None = None  # the branch into the region; None: it is entered at `enters`
    enters: str = ""
    region: set[str] = field(default_factory=set)
    stop: str = ""
    kept: bool = False  # the phis where the region ends go to their places
    known: dict[str, str] = field(default_factory=dict)  # the branch's condition, in its loop


@dataclass
class Group:
    """What each thread does, one after the other."""

    nodes: list[Node] = field(default_factory=list)
    assigns: list[tuple[Inst, str]] = field(default_factory=list)  # phis at the end, their values
    reads: bool = False
    writes: bool = False

    def __bool__(self) -> bool:
        return bool(self.nodes) or bool(self.assigns)

    def at(self, label: str) -> Node:
        """The node to which instructions of a block are added."""
        if not self.nodes or self.nodes[-1].label != label or self.nodes[-1].region:
            self.nodes.append(Node(label, []))
        return self.nodes[-1]

    def add(self, inst: Inst) -> None:
        self.at(inst.block.label).insts.append(inst)
        self.touch(inst)

    def touch(self, inst: Inst) -> None:
        if inst.op == "load":
            self.reads = True
        elif inst.op in ("store", "atomicrmw", "cmpxchg", "fence") or (
            inst.op == "call" and not is_pure(inst)
        ):
            self.writes = True


class Turns(NamedTuple):
    """The threads of a row that have a turn: from the first to before the end."""

    first: str
    end: str
    single: bool = False  # there is at most one


class Nest:
    """Loops over the threads of a block: over rows of threads, and over those of a row.

    They are short, so more code for each than a vector at a time costs more than it gives: `hint`
    says so. Those that seldom run are left as they are. A block of one row has one loop.
    """

    hint = ", " + SHORT

    def __init__(self, to: Any, seldom: bool = False, only: Turns | None = None) -> None:
        self.to, self.only = to, only  # the first thread of a row that has a turn, and the end
        if seldom:
            self.hint = ", " + SELDOM
        self.x, self.y, self.z = (to.fresh(axis) for axis in "xyz")
        self.lane = to.fresh("lane")
        self.latch, self.row_latch = to.fresh("latch"), to.fresh("latch")
        self.row, self.next = to.fresh("row"), to.fresh("next")
        if to.row:
            self.y = self.z = self.row = "0"

    def begin(self) -> None:
        """Write all up to where a thread begins."""
        to = self.to
        self.ends: tuple[tuple[str, ...], ...] = ()
        if to.row:
            self.begin_row()
            return
        _, by, bz = to.extents
        zh, yh, zl, after, zn, yn, zby, zy = (to.fresh("z") for _ in range(8))
        before = to.current
        to.put(f"br label {zh}")
        to.mark(zh)
        to.put(f"{self.z} = phi i64 [ 0, {before} ], [ {zn}, {zl} ]")
        to.put(f"{zby} = mul nuw nsw i64 {self.z}, {by}")
        to.put(f"br label {yh}")
        to.mark(yh)
        to.put(f"{self.y} = phi i64 [ 0, {zh} ], [ {yn}, {self.row_latch} ]")
        to.put(f"{zy} = add nuw nsw i64 {zby}, {self.y}")
        to.put(f"{self.row} = mul nuw nsw i64 {zy}, {to.extents[0]}")
        self.ends = (
            (self.row_latch, self.y, yn, by, yh, zl),
            (zl, self.z, zn, bz, zh, after),
        )
        self.begin_row()

    def end(self) -> None:
        """Write the ends of the loops; those of a thread go to `latch`."""
        self.end_row()
        after = self.row_latch
        for latch in self.ends:
            self.step(*latch)
            after = latch[-1]
        self.to.mark(after)

    def begin_row(self) -> None:
        """Write the loop over the threads of a row."""
        to, head, before = self.to, self.to.fresh("head"), self.to.current
        self.head = head
        self.enter_row(head)
        first = "0" if self.only is None else self.only.first
        to.mark(head)
        to.put(f"{self.x} = phi i64 [ {first}, {before} ], [ {self.next}, {self.latch} ]")
        to.put(f"{self.lane} = add nuw nsw i64 {self.row}, {self.x}")

    def enter_row(self, head: str) -> None:
        """Write how a row's loop is entered, if a thread has a turn."""
        to = self.to
        if self.only is None:
            to.put(f"br label {head}")
        else:
            some = to.fresh("c")
            to.put(f"{some} = icmp slt i64 {self.only.first}, {self.only.end}")
            to.put(f"br i1 {some}, label {head}, label {self.row_latch}")

    def end_row(self) -> None:
        to = self.to
        end = to.extents[0] if self.only is None else self.only.end
        self.step(self.latch, self.x, self.next, end, self.head, self.row_latch, self.hint)

    def step(
        self, latch: str, index: str, following: str, extent: str, head: str, outer: str,
        hint: str = ", " + SELDOM,
    ) -> None:  # fmt: skip
        """Write the end of a loop, which goes on at its head, or behind it."""
        to, more = self.to, self.to.fresh("more")
        to.mark(latch)
        to.put(f"{following} = add nuw nsw i64 {index}, 1")
        to.put(f"{more} = icmp slt i64 {following}, {extent}")
        to.put(f"br i1 {more}, label {head}, label {outer}{hint}")


def with_hints(text: str) -> str:
    """A module's text, with the hints of loops as the metadata that LLVM reads: one node each."""
    numbers = itertools.count(
        1 + max(map(int, re.findall(r"^!(\d+) = ", text, re.MULTILINE)), default=0)
    )
    nodes: list[str] = []

    def node(what: str) -> str:
        nodes.append(f"!{(number := next(numbers))} = {what}")
        return f"!{number}"

    for hint, parts in HINTS.items():
        given = ", ".join(node(f"!{{{part}}}") for part in parts)
        pieces = text.split(hint)
        for k in range(1, len(pieces)):
            number = next(numbers)
            nodes.append(f"!{number} = distinct !{{!{number}, {given}}}")
            pieces[k] = f"!llvm.loop !{number}{pieces[k]}"
        text = "".join(pieces)
    return text + "\n".join(nodes) + "\n"


# --- only some threads

_icmp = re.compile(r" = icmp (?:samesign )?(\w+) (i32|i64) ([^,\s]+), (\S+)$")
_branch = re.compile(r"br i1 (%\S+), label (\S+), label (\S+)$")
SWAPPED = {"slt": "sgt", "sgt": "slt", "sle": "sge", "sge": "sle"}
SWAPPED |= {"u" + k[1:]: "u" + v[1:] for k, v in SWAPPED.items()} | {"eq": "eq", "ne": "ne"}
NEGATED = {"slt": "sge", "sge": "slt", "sgt": "sle", "sle": "sgt"}
NEGATED |= {"u" + k[1:]: "u" + v[1:] for k, v in NEGATED.items()} | {"eq": "ne", "ne": "eq"}


def guarded(to: Any, group: Group) -> Turns | None:
    """The threads of a row that have something to do in a group; or None: all.

    Writes code that computes them, and lets the node know how its branch goes for these.
    """
    if len(group.nodes) != 1 or group.assigns:
        return None
    node = group.nodes[0]
    condition = _condition(to, node)
    if condition is None or node.end is None:
        return None
    node.known = {
        node.end.uses[0]: "false" if _skips(to, node, targets_of(node.end)[0]) else "true"
    }
    return _bounds(to, *condition)


def _condition(to: Any, node: Node) -> tuple[str, str, str, str] | None:
    """Predicate, type, what is added to x and what that is compared with.

    If a node does nothing but where this holds.
    """
    if node.end is None or (node.stop != EXIT and to.blocks[node.stop].phis):
        return None
    members = {id(inst) for inst in [*node.insts, node.end]}
    members |= {id(i) for label in node.region for i in to.blocks[label].insts}
    for inst in node.insts:
        lasts = inst.name not in to.analysis.recipes and any(
            id(user) not in members for user in to.users(inst)
        )
        if lasts or not (is_pure(inst) or inst.name in to.analysis.lane_loads):
            return None
    found = _branch.match(node.end.text)
    if found is None or found[1] not in to.analysis.defs:
        return None
    compared = _icmp.search(to.analysis.defs[found[1]].text)
    ways = [_skips(to, node, target) for target in targets_of(node.end)]
    if compared is None or ways not in ([False, True], [True, False]):
        return None
    predicate, kind, left, right = compared.groups()
    if to.is_uniform(left):
        predicate, left, right = SWAPPED[predicate], right, left
    added = _added(to, left, predicate)
    if added is None or not to.is_uniform(right):
        return None
    if ways[0]:
        predicate = NEGATED[predicate]
    if predicate == "ne" or (added != "0" and predicate in ("ule", "ugt")):
        return None
    return predicate, kind, added, right


def _skips(to: Any, node: Node, target: str) -> bool:
    """Whether nothing is done on the way from there to where the region ends."""
    if target == node.stop:
        return True
    block = to.blocks[target]
    return target in node.region and len(block.insts) == 1 and block.follows == [node.stop]


def _is_x(to: Any, name: str) -> bool:
    """Whether a value is the thread's index on the first axis."""
    inst: Inst | None = to.analysis.defs.get(name)
    if inst is not None and inst.op in ("zext", "sext"):
        name = inst.uses[0]
    return bool(to.analysis.lane_loads.get(name) == 0)


def _added(to: Any, name: str, predicate: str) -> str | None:
    """What is added to x, if a value is x and perhaps something that is the same for all."""
    if _is_x(to, name):
        return "0"
    inst: Inst | None = to.analysis.defs.get(name)
    exact = "nuw" if predicate[0] == "u" else "nsw"
    if inst is None or inst.op != "add" or exact not in inst.text or len(inst.uses) != 2:
        return None
    left, right = inst.uses
    if to.is_uniform(left):
        left, right = right, left
    return right if _is_x(to, left) and to.is_uniform(right) else None


def _bounds(to: Any, predicate: str, kind: str, added: str, value: str) -> Turns:
    bx, signed = to.extents[0], predicate[0] != "u"
    limit, less = _wide(to, value, kind, signed), _wide(to, added, kind, signed)
    if added != "0":
        rest = to.fresh("n")
        if predicate == "eq":
            to.put(f"{rest} = sub i64 {limit}, {less}")
        else:
            sort = "ssub" if signed else "usub"
            to.put(f"{rest} = call i64 @llvm.{sort}.sat.i64(i64 {limit}, i64 {less})")
        limit = rest
    if predicate == "eq":
        inside, after = to.fresh("c"), to.fresh("n")
        to.put(f"{inside} = icmp ult i64 {limit}, {bx}")
        to.put(f"{after} = add i64 {limit}, 1")
        return Turns(limit, _select(to, inside, after, limit), single=True)
    if predicate in ("sle", "ule", "sgt", "ugt"):  # one more, if there is no overflow
        more, last = to.fresh("n"), to.fresh("n")
        to.put(f"{last} = sub nsw i64 {bx}, 1")
        limit = _clamped(to, limit, "-1" if signed else "0", last, signed)
        to.put(f"{more} = add nsw i64 {limit}, 1")
        limit = more
    else:
        limit = _clamped(to, limit, "0", bx, signed)
    return Turns("0", limit) if predicate[1] == "l" else Turns(limit, bx)


def _wide(to: Any, value: str, kind: str, signed: bool) -> str:
    value = to.operand(value)
    if kind == "i64":
        return value
    wide = to.fresh("wide")
    to.put(f"{wide} = {'sext' if signed else 'zext'} i32 {value} to i64")
    return str(wide)


def _clamped(to: Any, value: str, least: str, most: str, signed: bool) -> str:
    """`value`, but at least and at most these; an unsigned one is not less than 0."""
    high = to.fresh("c")
    to.put(f"{high} = icmp {'sgt' if signed else 'ugt'} i64 {value}, {most}")
    value = _select(to, high, most, value)
    if signed:
        low = to.fresh("c")
        to.put(f"{low} = icmp slt i64 {value}, {least}")
        value = _select(to, low, least, value)
    return value


def _select(to: Any, condition: str, first: str, second: str) -> str:
    chosen = to.fresh("n")
    to.put(f"{chosen} = select i1 {condition}, i64 {first}, i64 {second}")
    return str(chosen)
