"""Loops whose turns are dealt out to the threads: `for i in range(t, n, cuda.blockDim.x)`.

Thread by thread, such a loop goes through memory in strides. Here each round of all threads is one
loop, over elements that are neighbours, which the optimiser can vectorise; rounds follow one
another. If they are as long as the block, and a turn does not depend on which thread it falls to,
all rounds are one loop. The order of a thread's own turns is kept; between the turns of different
threads there is none, since a loop like this contains no wait.

That a loop is one is seen by its number of turns, a call of `simt.trips`: it starts at the thread's
index plus what is the same for all, and its end and step are the same for all, too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from gpushmem.simt.blocks.emit import takes_thread
from gpushmem.simt.blocks.group import Nest
from gpushmem.simt.blocks.llvm_code import EXIT, Block, Inst
from gpushmem.simt.blocks.uniformity import Analysis, trips_of

__all__ = ["Strided", "strided_loop"]


ENDLESS = 2**62  # turns, of a round that is all rounds


@dataclass
class Loop:
    """A loop over `range(start, stop, step)`."""

    header: str
    body: set[str]  # with the header
    index: Inst  # the phi that is the loop's variable
    start: str
    stop: str
    step: str
    carried: list[Inst]  # phis that each thread takes from one turn to the next
    unused: set[str]  # what only counts the turns
    exit: str


def strided_loop(analysis: Analysis, header: str, region: set[str], stop: str) -> Loop | None:
    """The loop with a header, if its turns are dealt out to the threads."""
    blocks, flow, defs = analysis.function.blocks, analysis.flow, analysis.defs
    body = flow.loop_of(header)
    if not body or stop == EXIT:
        return None
    block = blocks[header]
    outside = [t for t in block.follows if t not in body]
    latches = [p for p in flow.preds[header] if p in body]
    if len(outside) != 1 or len(latches) != 1 or not block.end.uses:
        return None
    if not _is_whole(blocks, body, region, outside[0], stop):
        return None
    condition = defs.get(block.end.uses[0])
    if condition is None or condition.op != "icmp" or condition.block is not block:
        return None
    phis = block.phis
    counts = [p for p in phis if p.name in condition.uses]
    if (
        len(counts) != 1
        or len(condition.uses) != 1
        or not re.search(r"icmp (sgt|ne)", condition.text)
    ):
        return None
    count = counts[0]
    ends = trips_of(defs.get(_from_outside(count, body)))
    less = defs.get(_from_inside(count, body))
    if (
        ends is None
        or less is None
        or set(analysis.users.get(count.name or "", [])) != {condition, less}
    ):
        return None
    if analysis.users.get(less.name or "", []) != [count]:
        return None
    start, end, step = ends
    if end in analysis.varying or step in analysis.varying or not _positive(analysis, step):
        return None
    if _coefficient(analysis, start) != 1 or start not in analysis.recipes:
        return None
    index = _index(analysis, phis, body, start, step)
    unused = {count.name or "", less.name or "", condition.name or ""}
    if index is None or analysis.users.get(condition.name or "", []) != [block.end]:
        return None
    carried = [p for p in phis if p not in (index, count)]
    unused.add(_from_inside(index, body))
    return Loop(header, body, index, start, end, step, carried, unused, outside[0])


def _index(
    analysis: Analysis, phis: list[Inst], body: set[str], start: str, step: str
) -> Inst | None:
    """The loop's variable: it begins at `start`, and grows by `step`."""
    for phi in phis:
        following = analysis.defs.get(_from_inside(phi, body))
        if _from_outside(phi, body) != start or following is None or following.op != "add":
            continue
        adds = following.text.endswith((f" {phi.name}, {step}", f" {step}, {phi.name}"))
        alone = analysis.users.get(following.name or "", []) == [phi]
        if adds and alone and not _used_outside(analysis, phi, body):
            return phi
    return None


def _is_whole(
    blocks: dict[str, Block], body: set[str], region: set[str], outside: str, stop: str
) -> bool:
    """Whether a region is the loop, which is left at its header only, to where the region ends."""
    behind = region - body  # there may be a block that only leads on
    if behind - {outside} or (behind and not _leads(blocks[outside], stop)):
        return False
    if not behind and outside != stop:
        return False
    inner = [label for label in body if outside not in blocks[label].follows]
    return all(t in body for label in inner for t in blocks[label].follows) and (
        len(inner) == len(body) - 1
    )


def _leads(block: Any, stop: str) -> bool:
    return len(block.insts) == 1 and block.follows == [stop]


def _from_outside(phi: Inst, body: set[str]) -> str:
    values = {value for value, pred in phi.incoming if pred not in body}
    return values.pop() if len(values) == 1 else ""


def _from_inside(phi: Inst, body: set[str]) -> str:
    values = {value for value, pred in phi.incoming if pred in body}
    return values.pop() if len(values) == 1 else ""


def _used_outside(analysis: Analysis, inst: Inst, body: set[str]) -> bool:
    return any(u.block.label not in body for u in analysis.users.get(inst.name or "", []))


def _positive(analysis: Analysis, value: str, depth: int = 0) -> bool:
    """Whether a step is certainly not negative."""
    if not value.startswith("%"):
        return int(value) > 0
    inst = analysis.defs.get(value)
    if inst is None or depth > 8:
        return False
    if inst.op == "zext":
        return True
    if inst.op in ("mul", "add", "shl"):
        parts = re.findall(r"(%[^\s,]+|-?\d+)(?:,|$)", inst.text.split(f" = {inst.op} ", 1)[1])
        return all(_positive(analysis, part, depth + 1) for part in parts)
    return False


def _coefficient(analysis: Analysis, value: str, depth: int = 0) -> int | None:
    """By how much a value grows from one thread of a row to the next; None if that varies."""
    if value not in analysis.varying:
        return 0
    axis = analysis.lane_loads.get(value)
    if axis is not None:
        return 1 if axis == 0 else 0
    inst = analysis.defs.get(value)
    if inst is None or depth > 20:
        return None
    if inst.op in ("zext", "sext", "trunc", "freeze"):
        return _coefficient(analysis, inst.uses[0], depth + 1)
    if inst.op in ("add", "or") and (inst.op == "add" or " disjoint " in inst.text):
        return _sum(analysis, inst, depth)
    if inst.op in ("mul", "shl"):
        parts = [_coefficient(analysis, use, depth + 1) for use in inst.uses]
        return 0 if all(part == 0 for part in parts) else None
    return None


def _sum(analysis: Analysis, inst: Inst, depth: int) -> int | None:
    parts = [_coefficient(analysis, use, depth + 1) for use in inst.uses]
    if len(inst.uses) == 1 and re.search(r"(%\S+), \1$", inst.text):
        return None  # twice the same
    if any(part is None for part in parts):
        return None
    return sum(part for part in parts if part is not None)


class Strided:
    """Writes such a loop."""

    def __init__(self, to: Any, loop: Loop) -> None:
        self.to, self.loop = to, loop

    def write(self, label: str, group: Any) -> None:
        """Write the loop, entered from the block `label` behind a group of instructions."""
        to, loop = self.to, self.loop
        carried = {phi.name for phi in loop.carried}
        group.assigns = [(p, v) for p, v in to.assigned(label, loop.header) if p.name in carried]
        to.flush(group)
        insts = [
            i for at in to.in_order(loop.body) for i in to.blocks[at].insts
            if i.name not in loop.unused
        ]  # fmt: skip
        own = {i.name for i in insts if i.name} | loop.unused
        used = [n for i in insts for n in i.uses if n not in loop.unused]
        used += [v for p in loop.carried for v, _ in p.incoming]
        errors = to.errors_of(insts)
        # What errors say is here, too: no place of a thread's is needed, nor, if all rounds are one
        # loop, is there one for each turn.
        members = set(map(id, [*insts, *errors.insts]))
        for inst in errors.insts:
            used += inst.uses
            own.add(inst.name or "")
        to.load_uniform([*used, loop.start], own)
        end, step = to.operand(loop.stop), to.operand(loop.step)
        nest = Rounds(to, loop.start, end, step, self._is_flat(insts, errors.insts, own))
        nest.begin()
        meaning = to.meaning_of(used, own, nest.where)
        meaning[loop.index.name or ""] = nest.index
        self._turn(nest, meaning, errors, members)
        nest.end()

    def _is_flat(self, insts: list[Inst], errors: list[Inst], own: set[str]) -> bool:
        """Whether a turn does not depend on which thread it falls to, and leaves no value.

        The index does not count: what it is used for besides the turns only counts them.
        """
        to, loop = self.to, self.loop
        if loop.carried:
            return False
        inside = {id(inst) for inst in [*insts, *errors]}
        for inst in insts:
            if inst.name in to.analysis.lane_loads or takes_thread(inst, to.thread):
                return False
            users = (user for user in to.users(inst) if user.name not in loop.unused)
            if any(id(user) not in inside for user in users):
                return False
        given = {n for i in [*insts, *errors] if i is not loop.index for n in i.uses} - own
        return all(to.is_uniform(n) for n in given - loop.unused if n in to.analysis.defs)

    def _turn(self, nest: Any, meaning: dict[str, str], errors: Any, members: set[int]) -> None:
        """Write what one thread does in one turn."""
        to, loop = self.to, self.loop
        lane, where = nest.lane, nest.thread()
        for phi in loop.carried:
            meaning[phi.name or ""] = to.load_place(phi.name or "", lane)
        labels = {at: to.fresh("part") for at in loop.body}
        back = to.fresh("back")
        for at in loop.body:
            for inst in to.blocks[at].insts:
                counts = inst.op == "phi" and at == loop.header
                if inst.name and not counts and inst.name not in loop.unused:
                    meaning.setdefault(inst.name, to.fresh("r"))
        came = dict(labels)
        to.put(f"br label {labels[loop.header]}")
        for at in to.in_order(loop.body):
            block = to.blocks[at]
            to.mark(labels[at])
            errors.came[at] = labels[at]
            if at != loop.header:
                for phi in block.phis:
                    to.lane_phi(phi, meaning[phi.name or ""], meaning, came)
            for inst in block.body:
                if inst.name not in loop.unused:
                    to.lane_inst(inst, meaning, members, nest)
            targets = labels | {loop.header: back}
            if at == loop.header:
                inside = next(t for t in block.follows if t in loop.body)
                to.put(f"br label {labels[inside] if inside != loop.header else back}")
            else:
                to.lane_end(block.end, meaning, targets, errors)
        to.mark(back)
        values = [(p, _from_inside(p, loop.body)) for p in loop.carried]
        for phi, value in [(p, meaning.get(v, v)) for p, v in values]:
            to.store_place(phi.name or "", value, lane)
        to.put(f"br label {nest.latch}")
        errors.write(meaning, where)


class Rounds(Nest):
    """In a row of threads, loops over rounds, and in them over the threads that have a turn."""

    def __init__(self, to: Any, start: str, end: str, step: str, flat: bool) -> None:
        super().__init__(to)
        self.start, self.limit, self.stride, self.flat = start, end, step, flat
        self.index, self.count, self.base = to.fresh("i"), to.fresh("n"), to.fresh("base")
        self.rounds, self.over = to.fresh("head"), to.fresh("latch")
        self.following = to.fresh("next")
        self.where = self.lane, self.x, self.y, self.z

    def begin(self) -> None:
        to, bx = self.to, self.to.extents[0]
        self.chunk = bx
        if self.flat:
            one, same, self.fits, self.chunk = (to.fresh("c") for _ in range(4))
            to.put(f"{one} = icmp eq i64 %simt.byz, 1")
            to.put(f"{same} = icmp eq i64 {self.stride}, {bx}")
            to.put(f"{self.fits} = and i1 {one}, {same}")
            to.put(f"{self.chunk} = select i1 {self.fits}, i64 {ENDLESS}, i64 {bx}")
        super().begin()

    def thread(self) -> tuple[str, str, str]:
        """The index of the thread whose turn it is; written here."""
        if not self.flat:
            return self.x, self.y, self.z
        x = self.to.fresh("x")
        self.to.put(f"{x} = urem i64 {self.x}, {self.to.extents[0]}")
        return x, self.y, self.z

    def begin_row(self) -> None:
        to = self.to
        first: dict[str, str] = {}
        for step in to.analysis.recipes[self.start]:
            to.compute(step, first, ["0", self.y, self.z])
        more, enter, left, fewer = (to.fresh("c") for _ in range(4))
        before = to.current
        to.put(f"br label {self.rounds}")
        to.mark(self.rounds)
        to.put(
            f"{self.base} = phi i64 [ {first[self.start]}, {before} ], "
            f"[ {self.following}, {self.over} ]"
        )
        to.put(f"{more} = icmp slt i64 {self.base}, {self.limit}")
        to.put(f"br i1 {more}, label {enter}, label {self.row_latch}")
        to.mark(enter)
        to.put(f"{left} = sub i64 {self.limit}, {self.base}")
        to.put(f"{fewer} = icmp slt i64 {left}, {self.chunk}")
        to.put(f"{self.count} = select i1 {fewer}, i64 {left}, i64 {self.chunk}")
        super().begin_row()
        to.put(f"{self.index} = add nsw i64 {self.base}, {self.x}")

    def end_row(self) -> None:
        to = self.to
        self.step(self.latch, self.x, self.next, self.count, self.head, self.over, "")
        to.mark(self.over)
        to.put(f"{self.following} = add nsw i64 {self.base}, {self.stride}")
        if self.flat:  # `base` goes on evenly, so that it is known not to be negative
            to.put(f"br i1 {self.fits}, label {self.row_latch}, label {self.rounds}")
            return
        to.put(f"br label {self.rounds}")
