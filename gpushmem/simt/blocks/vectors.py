"""Groups as vector instructions: `WIDTH` neighbouring threads of a row at a time, one a lane.

LLVM vectorises a loop over threads if a turn is short and has no branches that matter. Here
branches become masks, as in a GPU's warps: each block of code runs with the mask of the lanes that
come there, and is skipped if there are none; where ways meet, values are chosen by masks. A loop
runs until no lane is left in it; if all leave it together, it needs no mask of its own.

`lane_shapes` says which values need vectors at all. Accesses of neighbouring elements are loads and
stores of vectors; whether addresses that are vectors are neighbours is asked where they are used.
What lanes cannot do together, atomics and calls, they do one after the other.

A row's last threads that do not fill a vector have their turns one by one. So have those of a
vector in which an index is negative or a thread fails, if that is seen before anything is written.
"""

from __future__ import annotations

import re
from typing import Any

from gpushmem.simt.blocks.group import Nest, Node, Turns
from gpushmem.simt.blocks.lane_shapes import UNIFORM, VECTOR, Loop, Shape, matched
from gpushmem.simt.blocks.llvm_code import EXIT, Inst, substituted, targets_of
from gpushmem.simt.blocks.vector_instructions import FULL, MASK, NONE, WIDTH, Wide, wide
from gpushmem.simt.compiler.target import Unfit

__all__ = ["Chunks", "Vectors"]

COPIES = 2  # so deep in each other pieces are written again for all lanes
SHORT_PIECE = 5  # instructions of one that is not worth it
_branch = re.compile(r"br i1 (\S+), label ([^\s,]+), label ([^\s,]+)")
_switch = re.compile(r"switch (i\d+) (\S+), label ([^\s,]+)")
_case = re.compile(r"(i\d+) (-?\d+), label (%[^\s\]]+)")


class Chunks(Nest):
    """The loops over threads, those of a row in vectors first; the rest, one by one."""

    def __init__(self, to: Any, only: Turns | None, write: Any) -> None:
        super().__init__(to, seldom=True, only=only)
        self.write = write
        self.first, self.past = to.fresh("x"), to.fresh("past")
        self.chunk, self.bail, self.done = to.fresh("chunk"), to.fresh("bail"), to.fresh("done")
        self.limit = to.fresh("limit")

    def begin_row(self) -> None:
        to, before = self.to, self.to.current
        first, end, _ = self.only or Turns("0", to.extents[0])
        self.stop = end
        fits, some = to.fresh("c"), to.fresh("c")
        body, rest, latch = to.fresh("vector"), to.fresh("rest"), to.fresh("latch")
        self.head = to.fresh("head")
        self.enter_row(self.chunk)
        to.mark(self.chunk)
        to.put(
            f"{self.first} = phi i64 [ {first}, {before} ], [ {self.past}, {latch} ], "
            f"[ {self.limit}, {self.done} ]"
        )
        to.put(f"{self.past} = add nuw nsw i64 {self.first}, {WIDTH}")
        to.put(f"{fits} = icmp sle i64 {self.past}, {end}")
        to.put(f"br i1 {fits}, label {body}, label {rest}")
        to.mark(body)
        lane = to.fresh("lane")
        to.put(f"{lane} = add nuw nsw i64 {self.row}, {self.first}")
        bails = self.write(self.first, self.y, self.z, lane, self.bail)
        to.put(f"br label {latch}")
        to.mark(latch)
        to.put(f"br label {self.chunk}")
        ways = f"[ {end}, {self.chunk} ]"
        if bails:
            to.mark(self.bail)
            to.put(f"br label {rest}")
            ways += f", [ {self.past}, {self.bail} ]"
        to.mark(rest)
        to.put(f"{self.limit} = phi i64 {ways}")
        to.put(f"{some} = icmp slt i64 {self.first}, {self.limit}")
        to.put(f"br i1 {some}, label {self.head}, label {self.done}")
        to.mark(self.head)
        to.put(f"{self.x} = phi i64 [ {self.first}, {rest} ], [ {self.next}, {self.latch} ]")
        to.put(f"{self.lane} = add nuw nsw i64 {self.row}, {self.x}")

    def end_row(self) -> None:
        to, more = self.to, self.to.fresh("more")
        self.step(self.latch, self.x, self.next, self.limit, self.head, self.done, self.hint)
        to.mark(self.done)
        to.put(f"{more} = icmp slt i64 {self.limit}, {self.stop}")
        to.put(f"br i1 {more}, label {self.chunk}, label {self.row_latch}")


class Vectors(Wide):
    """Writes what the threads of one vector do."""

    def write(self, x: str, y: str, z: str, lane: str, bail: str) -> bool:
        """Write it for the threads from `x` on; whether there is a way to `bail`."""
        self.where, self.lane, self.bail, self.bails = (x, y, z), lane, bail, False
        self.known: dict[str, tuple[Shape, str]] = {}
        self.edges: dict[tuple[str, str], str] = {}
        self.masks: dict[str, str] = {}  # of blocks
        self.mask, self.active = FULL, {FULL}
        self._have_at_hand()
        for node, order in zip(self.group.nodes, self.shapes.orders, strict=True):
            self._insts(node.insts)
            if node.region or node.end is not None:
                self._region(node, order)
        values = [(phi, self.vector(value, phi.type)) for phi, value in self.group.assigns]
        for phi, value in values:
            self._store_place(phi, value)
        return self.bails

    # --- control flow

    def _region(self, node: Node, order: list[str]) -> None:
        self.node = node
        self.masks = {node.label: FULL}
        self.outs: dict[str, str] = {}  # header of an even loop -> the label behind it
        self.tests: dict[str, tuple[str, str]] = {}  # mask -> whether it is another one, else none
        self.copies = COPIES
        if node.end is not None:
            known = {name: (UNIFORM, text) for name, text in node.known.items()}
            self.known.update(known)
            self._end(node.end, node.label)
        else:
            self.edges[node.label, node.enters] = FULL
        self._level(order, None)
        self.mask = FULL
        if node.stop != EXIT:
            phis = self.to.blocks[node.stop].phis
            new = {phi.name or "": self._meet(phi, node.stop) for phi in phis}
            self.known.update(new)
            for phi in phis:
                if node.kept:
                    self._store_place(phi, self.vector(phi.name or "", phi.type))
                else:
                    self._keep(phi)

    def _level(self, labels: list[str], loop: Loop | None) -> None:
        """Write the blocks of a loop, or of a part of it: in pieces, each behind one block."""
        flow = self.to.flow
        while labels:
            bit = flow.bit(labels[0])
            piece = [label for label in labels if flow.dominators[label] & bit]
            labels = [label for label in labels if not flow.dominators[label] & bit]
            self._piece(piece, loop)

    def _piece(self, piece: list[str], loop: Loop | None) -> None:
        """Write blocks that are run only behind the first: not at all if no lane comes there.

        If all lanes do, there is no need for masks: that is written once more.
        """
        to, first = self.to, piece[0]
        mask = self._mask_of(first, loop)
        if mask in self.active:
            self._inside(piece, loop, mask)
            return
        if mask == NONE:
            return
        on, join, before = to.fresh("on"), to.fresh("join"), to.current
        versions = [(on, mask)]
        arrivals = [before]
        if mask in self.tests:
            test, same = self.tests[mask]
            versions = [(on, same)]
            to.put(f"br i1 {test}, label {on}, label {join}")
        elif self._is_long(piece) and self.copies:
            full, some = to.fresh("full"), to.fresh("some")
            versions.append((full, FULL))
            to.put(f"br i1 {self.all(mask)}, label {full}, label {some}")
            to.mark(some)
            arrivals = [some]
            to.put(f"br i1 {self.any(mask)}, label {on}, label {join}")
        else:
            to.put(f"br i1 {self.any(mask)}, label {on}, label {join}")
        state = self.edges, self.known, self.masks, self.active, self.copies
        ends = []
        for label, lanes in versions:
            self.edges, self.known, self.masks = dict(state[0]), dict(state[1]), dict(state[2])
            self.active = state[3] | {lanes}
            self.copies = state[4] - 1 if lanes == FULL else state[4] if lanes != mask else 0
            to.mark(label)
            self._inside(piece, loop, lanes)
            ends.append((to.current, self.edges, self.known))
            to.put(f"br label {join}")
        self.edges, self.known, self.masks, self.active, self.copies = state
        to.mark(join)
        self._join(set(piece), arrivals[0], ends)

    def _is_long(self, piece: list[str]) -> bool:
        """Whether it is worth while to write a piece twice."""
        if any(label in self.shapes.loops for label in piece):
            return True
        return sum(len(self.to.blocks[label].insts) for label in piece) > SHORT_PIECE

    def _join(self, piece: set[str], before: str, ends: list[Any]) -> None:
        """Have the masks and values at hand that come out of a piece, or of none."""
        leaving = dict.fromkeys(
            edge for _, edges, _ in ends for edge in edges
            if edge[0] in piece and edge[1] not in piece
        )  # fmt: skip
        phis = []
        for edge in leaving:
            ways = "".join(f", [ {edges.get(edge, NONE)}, {came} ]" for came, edges, _ in ends)
            phis.append((edge, f"phi {MASK} [ {NONE}, {before} ]{ways}"))
        for edge, text in phis:
            self.edges[edge] = self.put(text, "mask")
        for inst in self.shapes.insts:
            name = inst.name or ""
            if inst.block.label not in piece or not all(name in known for _, _, known in ends):
                continue
            if all(u.block.label in piece for u in self.to.users(inst)):
                continue
            shape = ends[0][2][name][0]
            if any(known[name][0].step != shape.step for _, _, known in ends):
                raise Unfit("a value has two shapes")
            kind = wide(inst.type) if shape.step is None else inst.type
            ways = "".join(f", [ {known[name][1]}, {came} ]" for came, _, known in ends)
            self.known[name] = shape, self.put(f"phi {kind} [ poison, {before} ]{ways}")

    def _inside(self, piece: list[str], loop: Loop | None, mask: str) -> None:
        first = piece[0]
        inner = self.shapes.loops.get(first)
        self.mask = mask
        if inner is not None and inner is not loop:
            self._loop(inner, [label for label in piece if label in inner.body], mask)
            rest = [label for label in piece if label not in inner.body]
        else:
            self.masks[first] = mask
            self._block(first, loop)
            rest = piece[1:]
        self._level(rest, loop)

    def _mask_of(self, label: str, loop: Loop | None) -> str:
        flow = self.to.flow
        inner = self.shapes.inner.get(label)
        if loop is not None and loop.even and inner is loop and all(
            flow.dominators[latch] & flow.bit(label) for latch in loop.latches
        ):  # fmt: skip
            return self.masks[loop.header]
        around = self._same_lanes(label)
        if around is not None:
            return self.masks[around]
        return self.either([self.edges[p, label] for p in self._preds(label)])

    def _preds(self, label: str) -> list[str]:
        return [p for p in self.to.flow.preds[label] if (p, label) in self.edges]

    def _same_lanes(self, label: str) -> str | None:
        """A block before this one from which all lanes come here, and only they."""
        flow, inner = self.to.flow, self.shapes.inner
        around = [
            d for d in self.masks
            if d != label and flow.dominators[label] & flow.bit(d)
            and inner.get(d) is inner.get(label)
        ]  # fmt: skip
        if not around:
            return None
        nearest = max(around, key=lambda d: flow.dominators[d].bit_count())
        return nearest if self._all_reach(nearest, label) else None

    def _all_reach(self, start: str, label: str) -> bool:
        """Whether all ways from a block come to another, without starting a loop over."""
        seen: set[str] = set()
        todo = list(self.to.blocks[start].follows)
        loop = self.shapes.inner.get(start)
        while todo:
            at = todo.pop()
            if at == label or at in seen:
                continue
            seen.add(at)
            if at not in self.node.region:
                return False
            if loop is not None and (at == loop.header or at not in loop.body):
                return False
            todo += self.to.blocks[at].follows
        return True

    def _block(self, label: str, loop: Loop | None) -> None:
        block = self.to.blocks[label]
        if loop is None or label != loop.header:
            new = {phi.name or "": self._meet(phi, label) for phi in block.phis}
            self.known.update(new)
        for phi in block.phis:
            self._keep(phi)
        self._insts(block.body)
        if loop is not None and loop.even and label == loop.exits[0][0]:
            self._even_end(loop)
        else:
            self._end(block.end, label)

    def _meet(self, phi: Inst, label: str) -> tuple[Shape, str]:
        """A value that depends on the way a lane has come."""
        return self._chosen(phi, label, phi.incoming)

    def _chosen(self, phi: Inst, label: str, ways: list[tuple[str, str]]) -> tuple[Shape, str]:
        """What a phi is for lanes that come to a block by some of its ways."""
        ways = [(v, p) for v, p in dict.fromkeys(ways) if (p, label) in self.edges]
        if len({v for v, _ in ways}) == 1:
            return self.get(ways[0][0])
        kind = wide(phi.type)
        found = self.vector(ways[0][0], phi.type)
        for value, pred in ways[1:]:
            mask = self.edges[pred, label]
            other = self.vector(value, phi.type)
            if mask == FULL:
                found = other
            elif mask != NONE:
                found = self.put(f"select {MASK} {mask}, {kind} {other}, {kind} {found}")
        return VECTOR, found

    def _end(self, end: Inst, label: str) -> None:
        """Write which lanes go where at the end of a block."""
        mask = self.masks[label]
        targets = targets_of(end)
        if end.op == "ret":
            return
        if end.op == "switch":
            self._switch(end, label, mask)
            return
        if len(targets) == 1:
            self.edges[label, targets[0]] = mask
            return
        condition, first, second = matched(_branch, end.text)
        shape, text = self.get(condition)
        errors = self.to.function.errors
        if shape.step == 0:
            yes = self._if(text, mask, NONE)
            no = self._if(text, NONE, mask)
        else:
            yes = self.both(mask, text)
            no = self.both(mask, self.put(f"xor {MASK} {text}, {FULL}"))
        for target, lanes in ((first, yes), (second, no)):
            if target in errors:
                self.bail_if(self.any(lanes))
        for target, lanes in ((first, yes), (second, no)):
            if target not in errors:
                self.edges[label, target] = lanes

    def _if(self, condition: str, one: str, other: str) -> str:
        if condition in ("true", "false"):
            return one if condition == "true" else other
        mask = self.put(f"select i1 {condition}, {MASK} {one}, {MASK} {other}", "mask")
        if one == NONE:
            condition = self.put(f"xor i1 {condition}, true")
        self.tests[mask] = condition, other if one == NONE else one
        return mask

    def _switch(self, end: Inst, label: str, mask: str) -> None:
        kind, value, default = matched(_switch, end.text)
        chosen = self.vector(value, kind)
        ways: dict[str, list[str]] = {}
        for _, number, target in _case.findall(end.text.split("[", 1)[1]):
            same = self.put(f"icmp eq {wide(kind)} {chosen}, splat ({kind} {number})")
            ways.setdefault(target, []).append(self.both(mask, same))
        taken = self.either([m for masks in ways.values() for m in masks])
        rest = self.both(mask, self.put(f"xor {MASK} {taken}, {FULL}"))
        ways.setdefault(default, []).append(rest)
        for target, masks in ways.items():
            self.edges[label, target] = self.either(masks)

    # --- loops

    def _loop(self, loop: Loop, labels: list[str], mask: str) -> None:
        to, header = self.to, loop.header
        phis = to.blocks[header].phis
        entering = {phi.name or "": self._entering(phi, loop) for phi in phis}
        before, head = to.current, to.fresh("head")
        to.put(f"br label {head}")
        to.mark(head)
        slots: dict[str, tuple[int, str]] = {}
        for phi in phis:
            name, shape = phi.name or "", self.shapes.of[phi.name or ""]
            slots[name] = len(to.lines), to.fresh("r")
            to.lines.append("")
            self.known[name] = shape, slots[name][1]
        write = self._even if loop.even else self._uneven
        came = write(loop, labels, mask, before, head)
        for phi in phis:
            name = phi.name or ""
            shape, at = self.shapes.of[name], slots[name]
            kind = wide(phi.type) if shape.step is None else phi.type
            to.lines[at[0]] = (
                f"  {at[1]} = phi {kind} [ {entering[name]}, {before} ], "
                f"[ {self.back[name]}, {came} ]"
            )
        self._after_loop(loop)
        self.mask = mask

    def _entering(self, phi: Inst, loop: Loop) -> str:
        return self._as_shaped(phi, [(v, p) for v, p in phi.incoming if p not in loop.body])

    def _as_shaped(self, phi: Inst, ways: list[tuple[str, str]]) -> str:
        """What a header's phi gets from some of its ways, as its shape wants it."""
        shape = self.shapes.of[phi.name or ""]
        found, text = self._chosen(phi, phi.block.label, ways)
        if shape.step is None:
            return self.as_vector(found, text, phi.type)
        if found.step != shape.step:
            raise Unfit("a loop's value is not of its shape")
        return text

    def _take_back(self, loop: Loop) -> None:
        """Have what the phis of a loop are in the next turn."""
        self.back = {
            phi.name or "": self._as_shaped(phi, [w for w in phi.incoming if w[1] in loop.body])
            for phi in self.to.blocks[loop.header].phis
        }

    def _even(self, loop: Loop, labels: list[str], mask: str, before: str, head: str) -> str:
        """Write a loop that all lanes leave together; returns the label of its end."""
        self._inside(labels, loop, mask)
        self._take_back(loop)
        came = self.to.current
        self.to.put(f"br label {head}")
        self.to.mark(self.outs.pop(loop.header))
        self.edges[loop.exits[0]] = mask
        return str(came)

    def _even_end(self, loop: Loop) -> None:
        """Write the branch that ends such a loop."""
        (label, target), to = loop.exits[0], self.to
        end = to.blocks[label].end
        out, on = to.fresh("out"), to.fresh("on")
        self.outs[loop.header] = out
        (inside,) = [t for t in to.blocks[label].follows if t != target]
        names = {target: out, inside: on}
        if set(targets_of(end)) - names.keys():
            raise Unfit("a loop ends in an error")
        meaning = {n: self.scalar(n) for n in end.uses}
        to.put(substituted(end.text, meaning | names))
        to.mark(on)
        self.edges[label, inside] = self.masks[loop.header]

    def _uneven(self, loop: Loop, labels: list[str], mask: str, before: str, head: str) -> str:
        """Write a loop that runs until no lane is left in it."""
        to = self.to
        inside = to.fresh("mask")
        at = len(to.lines)
        to.lines.append("")
        lasting = [i for at in labels for i in to.blocks[at].insts if self._lasts(i, loop)]
        kept = {}
        for inst in lasting:
            kept[inst.name or ""] = len(to.lines), to.fresh("last")
            to.lines.append("")
        ways = {}
        if len(loop.exits) > 1:
            for edge in loop.exits:
                ways[edge] = len(to.lines), to.fresh("left")
                to.lines.append("")
        active, self.active = self.active, self.active | {inside}
        self._inside(labels, loop, inside)
        self.active = active
        self.mask = inside
        on = self.either([self.edges[p, loop.header] for p in loop.latches])
        self._take_back(loop)
        last = {}
        for inst in lasting:
            name, kind = inst.name or "", wide(inst.type)
            value = self.vector(name, inst.type)
            last[name] = kept[name][1]
            for edge in loop.exits:
                if to.flow.dominators[edge[0]] & to.flow.bit(inst.block.label):
                    lanes = self.edges[edge]
                    last[name] = self.put(
                        f"select {MASK} {lanes}, {kind} {value}, {kind} {last[name]}"
                    )
        left = {e: self.put(f"or {MASK} {name}, {self.edges[e]}") for e, (_, name) in ways.items()}
        out, more = to.fresh("out"), self.any(on)
        came = to.current
        to.put(f"br i1 {more}, label {head}, label {out}")
        to.mark(out)
        to.lines[at] = f"  {inside} = phi {MASK} [ {mask}, {before} ], [ {on}, {came} ]"
        for inst in lasting:
            name = inst.name or ""
            line, phi = kept[name]
            to.lines[line] = (
                f"  {phi} = phi {wide(inst.type)} [ poison, {before} ], [ {last[name]}, {came} ]"
            )
            self.known[name] = VECTOR, last[name]
        for edge, (line, phi) in ways.items():
            to.lines[line] = f"  {phi} = phi {MASK} [ {NONE}, {before} ], [ {left[edge]}, {came} ]"
            self.edges[edge] = left[edge]
        if not ways:
            self.edges[loop.exits[0]] = mask
        return str(came)

    def _lasts(self, inst: Inst, loop: Loop) -> bool:
        """Whether a value is used behind the loop, in this group."""
        if any(value == inst.name for _, value in self.group.assigns):
            return True
        users = (u for u in self.to.users(inst) if id(u) in self.members)
        return any(u.block.label not in loop.body for u in users)

    def _after_loop(self, loop: Loop) -> None:
        """What is in the loop is over: only the edges out of it are left."""
        out = set(loop.exits)
        for edge in list(self.edges):
            if edge[0] in loop.body and edge not in out:
                del self.edges[edge]
