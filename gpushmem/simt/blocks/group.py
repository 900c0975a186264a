"""What the threads of a block do one after the other, and the loops that let them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gpushmem.simt.blocks.analysis import is_pure
from gpushmem.simt.blocks.text import Inst

__all__ = ["Group", "Nest", "Node"]


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


class Nest:
    """Loops over the threads of a block."""

    def __init__(self, to: Any) -> None:
        self.to = to
        self.x, self.y, self.z = (to.fresh(axis) for axis in "xyz")
        self.lane = to.fresh("lane")
        self.latch = to.fresh("latch")

    def begin(self) -> None:
        to = self.to
        bx, by, _ = to.extents
        self.heads = zh, yh, xh = [to.fresh("head") for _ in range(3)]
        self.latches = zl, yl, xl = to.fresh("latch"), to.fresh("latch"), self.latch
        self.nexts = zn, yn, xn = [to.fresh("next") for _ in range(3)]
        zby, zy, row = to.fresh("row"), to.fresh("row"), to.fresh("row")
        before = to.current
        to.put(f"br label {zh}")
        to.mark(zh)
        to.put(f"{self.z} = phi i64 [ 0, {before} ], [ {zn}, {zl} ]")
        to.put(f"{zby} = mul nuw nsw i64 {self.z}, {by}")
        to.put(f"br label {yh}")
        to.mark(yh)
        to.put(f"{self.y} = phi i64 [ 0, {zh} ], [ {yn}, {yl} ]")
        to.put(f"{zy} = add nuw nsw i64 {zby}, {self.y}")
        to.put(f"{row} = mul nuw nsw i64 {zy}, {bx}")
        to.put(f"br label {xh}")
        to.mark(xh)
        to.put(f"{self.x} = phi i64 [ 0, {yh} ], [ {xn}, {xl} ]")
        to.put(f"{self.lane} = add nuw nsw i64 {row}, {self.x}")
        self.row = row

    def end(self) -> None:
        to = self.to
        after = to.fresh("after")
        zh, yh, xh = self.heads
        zl, yl, xl = self.latches
        zn, yn, xn = self.nexts
        for latch, index, following, extent, head, outer in (
            (xl, self.x, xn, to.extents[0], xh, yl),
            (yl, self.y, yn, to.extents[1], yh, zl),
            (zl, self.z, zn, to.extents[2], zh, after),
        ):
            more = to.fresh("more")
            to.mark(latch)
            to.put(f"{following} = add nuw nsw i64 {index}, 1")
            to.put(f"{more} = icmp ult i64 {following}, {extent}")
            to.put(f"br i1 {more}, label {head}, label {outer}")
        to.mark(after)
