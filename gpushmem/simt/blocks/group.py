"""What the threads of a block do one after the other, and the loops that let them."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gpushmem.simt.blocks.analysis import is_pure
from gpushmem.simt.blocks.text import Inst

__all__ = ["Group", "Nest", "Node", "Turns", "with_hints"]

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
