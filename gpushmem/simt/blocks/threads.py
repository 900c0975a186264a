"""What each thread of a block does, written as loops over the threads."""

from __future__ import annotations

from itertools import chain
from typing import Any

from gpushmem.native.structs import offset
from gpushmem.simt.base.layout import THREAD
from gpushmem.simt.blocks.emit import Emitter, renamed_phi, takes_thread
from gpushmem.simt.blocks.group import Group, Nest, Node, guarded
from gpushmem.simt.blocks.llvm_code import EXIT, Block, Inst, substituted, targets_of
from gpushmem.simt.blocks.vectors import Chunks, Vectors
from gpushmem.simt.compiler.target import Unfit

__all__ = ["Errors", "Threads"]


class Threads(Emitter):
    """Writes groups, and has the values that they use at hand."""

    here: dict[str, str]  # uniform value -> its name, where it has been loaded from its home
    current: str  # the label of the block that is being written

    # --- labels and values

    def mark(self, label: str) -> None:
        self.label(label)
        self.current = label

    def is_uniform(self, name: str) -> bool:
        return name not in self.analysis.varying

    def uniform(self, name: str) -> str:
        """A uniform value, loaded here if it is not at hand."""
        if name not in self.analysis.defs or name in self.analysis.allocas:
            return name
        if name not in self.here:
            self.here[name] = value = self.fresh("u")
            self.put(f"{value} = load {self.analysis.defs[name].type}, ptr {self.home(name)}")
        return self.here[name]

    def operand(self, value: str) -> str:
        return self.uniform(value) if value.startswith("%") else value

    def users(self, inst: Inst) -> list[Inst]:
        return self.analysis.users.get(inst.name or "", [])

    # --- groups

    def meeting_values(self, block: Block) -> list[str]:
        """What the branch of a decider gives to phis where threads meet again."""
        raise NotImplementedError

    def write_codes(self, block: Block, meaning: dict[str, str], errors: Errors, lane: str) -> None:
        """Write the branch of a decider: where a thread goes on."""
        raise NotImplementedError

    def flush(self, group: Group) -> None:
        if group:
            self.loops(group)

    def loops(
        self, group: Group, codes: Any = None, decider: Block | None = None, seldom: bool = False
    ) -> None:
        """Write a group, as loops over the threads of the block."""
        insts = [i for node in group.nodes for i in self.all_of(node)]
        members = set(map(id, insts))
        used = [n for i in insts for n in i.uses]
        if decider is not None:
            used += [*decider.end.uses, *self.meeting_values(decider)]
        used += [v for _, v in group.assigns]
        errors = self.errors_of([*insts, decider.end] if decider else insts)
        own = {i.name for i in [*insts, *errors.insts] if i.name}
        used += [n for i in errors.insts for n in i.uses]
        self.load_uniform(used, own)
        only = guarded(self, group) if decider is None and codes is None else None
        self.saves |= only is not None
        nest = None
        if decider is None and codes is None and not seldom and not (only and only.single):
            nest = self.in_vectors(group, used, only)
        if nest is None:
            nest = Nest(self, seldom, only)
            nest.begin()
        lane = nest.lane
        meaning = self.meaning_of(used, own, (lane, nest.x, nest.y, nest.z))
        self.write_nodes(group, meaning, errors, members, nest)
        self.assign(group.assigns, meaning, lane)
        if decider is not None:
            self.write_codes(decider, meaning, errors, lane)
        if codes is not None:
            codes(lane)
        self.put(f"br label {nest.latch}")
        errors.write(meaning, (nest.x, nest.y, nest.z))
        nest.end()

    def in_vectors(self, group: Group, used: list[str], only: Any) -> Nest | None:
        """Begin loops over threads that are taken several at a time, if that can be."""
        lines, current, here = len(self.lines), self.current, dict(self.here)
        try:
            nest = Chunks(self, only, Vectors(self, group, used).write)
            nest.begin()
        except Unfit:
            del self.lines[lines:]
            self.current, self.here = current, here
            return None
        self.vectors += 1
        inside = (self.blocks[at].insts for node in group.nodes for at in node.region)
        self.saves |= any(i.op in ("load", "store") for i in chain.from_iterable(inside))
        return nest

    def errors_of(self, insts: list[Inst]) -> Errors:
        """The errors that may follow some instructions."""
        errors = Errors(self, {})
        for label in {t for i in insts for t in targets_of(i)} & self.function.errors:
            errors.insts += errors.closure(label)
        return errors

    def fail(self, error: str, source: str) -> None:
        """Write an error of the block, as one of its first thread."""
        errors = Errors(self, {source: self.current})
        first = errors.label_of(error)
        meaning = self.prefetched(errors.closure(error), set(), ("0", "0", "0", "0"))
        self.put(f"br label {first}")
        errors.write(meaning, ("0", "0", "0"))

    def all_of(self, node: Node) -> list[Inst]:
        """The instructions of a node, its region and the phis behind that included."""
        found = list(node.insts)
        if node.end is not None:
            found.append(node.end)
        for label in self.in_order(node.region):
            found += self.blocks[label].insts
        if node.region and node.stop != EXIT:
            found += self.blocks[node.stop].phis
        return found

    def in_order(self, region: set[str]) -> list[str]:
        return [label for label in self.flow.labels if label in region]

    def load_uniform(self, used: list[str], own: set[str]) -> None:
        """Load what a group uses of uniform values, before its loops."""
        for name in dict.fromkeys(used):
            if name in own or name == self.thread:
                continue
            if name in self.analysis.recipes:
                for step in self.analysis.recipes[name]:
                    for use in step.uses:
                        if self.is_uniform(use) and use != self.thread:
                            self.uniform(use)
            elif self.is_uniform(name):
                self.uniform(name)

    def prefetched(
        self, insts: list[Inst], own: set[str], where: tuple[str, str, str, str]
    ) -> dict[str, str]:
        used = [n for i in insts for n in i.uses]
        own = own | {i.name for i in insts if i.name}
        self.load_uniform(used, own)
        return self.meaning_of(used, own, where)

    def meaning_of(
        self, used: list[str], own: set[str], where: tuple[str, str, str, str]
    ) -> dict[str, str]:
        """What the values are called in a loop that uses them, loaded or computed as needed."""
        lane, *index = where
        meaning: dict[str, str] = {}
        for name in dict.fromkeys(used):
            if name in own or name in meaning or name == self.thread:
                continue
            if name not in self.analysis.defs:
                continue
            if name in self.analysis.recipes:
                for step in self.analysis.recipes[name]:
                    self.compute(step, meaning, index)
            elif name in self.analysis.per_lane:
                meaning[name] = self.address(name, lane)
            elif self.is_uniform(name):
                meaning[name] = self.uniform(name)
            else:
                meaning[name] = self.load_place(name, lane)
        return meaning

    def compute(self, step: Inst, meaning: dict[str, str], index: list[str]) -> None:
        """Write one step of a recipe."""
        if step.name in meaning:
            return
        axis = self.analysis.lane_loads.get(step.name or "")
        if axis is not None:
            if index[axis].startswith("%"):
                meaning[step.name or ""] = narrow = self.fresh("t")
                self.put(f"{narrow} = trunc nuw nsw i64 {index[axis]} to i32")
            else:
                meaning[step.name or ""] = index[axis]
            return
        for use in step.uses:
            if use not in meaning and use in self.analysis.defs and self.is_uniform(use):
                meaning[use] = self.uniform(use)
        meaning[step.name or ""] = self.rename(step, meaning)

    def write_nodes(
        self, group: Group, meaning: dict[str, str], errors: Errors, members: set[int], nest: Any
    ) -> None:
        for node in group.nodes:
            for inst in node.insts:
                self.lane_inst(inst, meaning, members, nest)
            errors.came[node.label] = self.current
            if node.region or node.end is not None:
                self.write_region(node, meaning, errors, members, nest)

    def write_region(
        self, node: Node, meaning: dict[str, str], errors: Errors, members: set[int], nest: Any
    ) -> None:
        """Write a branch that threads may take differently, and what they do then."""
        labels = {label: self.fresh("part") for label in node.region}
        join = self.fresh("join")
        targets = labels | {node.stop: join}
        for label in node.region:
            for inst in self.blocks[label].insts:
                if inst.name:
                    meaning[inst.name] = self.fresh("r")
        if node.end is not None:
            self.lane_end(node.end, meaning | node.known, targets, errors)
        else:
            self.put(f"br label {labels[node.enters]}")
        came = labels | {node.label: self.current}
        for label in self.in_order(node.region):
            errors.came[label] = labels[label]
            self.write_part(self.blocks[label], labels[label], came, meaning, members, nest)
            if self.blocks[label].end.op == "ret":
                self.put(f"br label {join}")
            else:
                self.lane_end(self.blocks[label].end, meaning, targets, errors)
        self.mark(join)
        phis = self.blocks[node.stop].phis if node.stop != EXIT else []
        names = {phi.name or "": self.fresh("r") for phi in phis}
        for phi in phis:
            self.lane_phi(phi, names[phi.name or ""], meaning, came)
        meaning.update(names)
        for phi in phis:
            if node.kept:
                self.store_place(phi.name or "", names[phi.name or ""], nest.lane)
            else:
                self.keep(phi, meaning, members, nest)

    def write_part(
        self, block: Block, label: str, came: dict[str, str], meaning: dict[str, str],
        members: set[int], nest: Any,
    ) -> None:  # fmt: skip
        """Write one block of a region, without how it ends."""
        self.mark(label)
        for phi in block.phis:
            self.lane_phi(phi, meaning[phi.name or ""], meaning, came)
        for phi in block.phis:
            self.keep(phi, meaning, members, nest)
        for inst in block.body:
            self.lane_inst(inst, meaning, members, nest)

    def lane_phi(self, phi: Inst, name: str, meaning: dict[str, str], came: dict[str, str]) -> None:
        incoming = [(meaning.get(v, v), came[p]) for v, p in phi.incoming if p in came]
        self.put(renamed_phi(phi, name, incoming))

    def lane_inst(self, inst: Inst, meaning: dict[str, str], members: set[int], nest: Any) -> None:
        if inst.op == "alloca":
            return
        if inst.name in self.analysis.lane_loads:
            meaning.pop(inst.name, None)
            self.compute(inst, meaning, [nest.x, nest.y, nest.z])
            return
        if takes_thread(inst, self.thread):
            self.tell_index(nest.x, nest.y, nest.z)
        result = meaning.get(inst.name or "") if inst.name else None
        if inst.name and result is None:
            result = self.fresh("r")
        if inst.name:
            meaning[inst.name] = result or ""
        self.put(substituted(inst.text, meaning))
        self.keep(inst, meaning, members, nest)

    def keep(self, inst: Inst, meaning: dict[str, str], members: set[int], nest: Any) -> None:
        """Store a thread's value, if others than this group use it."""
        if inst.name is None or inst.name in self.analysis.recipes:
            return
        if any(id(u) not in members for u in self.users(inst)):
            self.store_place(inst.name, meaning[inst.name], nest.lane)

    def lane_end(
        self, end: Inst, meaning: dict[str, str], targets: dict[str, str], errors: Errors
    ) -> None:
        names = {}
        for label in targets_of(end):
            names[label] = (
                errors.label_of(label) if label in self.function.errors else targets[label]
            )
        self.put(substituted(end.text, meaning | names))

    def tell_index(self, x: str, y: str, z: str) -> None:
        """Write a thread's index to THREAD, for functions that read it there."""
        for axis, index in enumerate((x, y, z)):
            at = self.fresh("at")
            field_ = offset(THREAD, "tid") + 4 * axis
            self.put(f"{at} = getelementptr i8, ptr {self.thread}, i64 {field_}")
            narrow = index
            if index.startswith("%"):
                narrow = self.fresh("t")
                self.put(f"{narrow} = trunc nuw nsw i64 {index} to i32")
            self.put(f"store i32 {narrow}, ptr {at}")

    def assigned(self, label: str, target: str) -> list[tuple[Inst, str]]:
        """The varying phis of a block, with what they are if it is entered from another."""
        return [
            (phi, value)
            for phi in self.blocks[target].phis if not self.is_uniform(phi.name or "")
            for value, pred in dict.fromkeys(phi.incoming) if pred == label
        ]  # fmt: skip

    def assign(self, phis: list[tuple[Inst, str]], meaning: dict[str, str], lane: str) -> None:
        values = [(phi, meaning.get(value, value)) for phi, value in phis]
        for phi, value in values:
            self.store_place(phi.name or "", value, lane)


# --- blocks that lead to errors, where one thread runs into them


class Errors:
    """Blocks that lead to errors, where one thread runs into them."""

    def __init__(self, to: Any, came: dict[str, str]) -> None:
        self.to, self.came = to, came  # label -> the one that it has here
        self.labels: dict[str, str] = {}
        self.insts: list[Inst] = []  # all that may be run

    def label_of(self, label: str) -> str:
        if label not in self.labels:
            self.labels[label] = self.to.fresh("error")
        return self.labels[label]

    def closure(self, label: str) -> list[Inst]:
        """All instructions from an error on."""
        found, todo, seen = [], [label], set()
        while todo:
            at = todo.pop()
            if at not in seen:
                seen.add(at)
                found += self.to.blocks[at].insts
                todo += targets_of(self.to.blocks[at].end)
        return found

    def write(self, meaning: dict[str, str], index: tuple[str, str, str]) -> None:
        to = self.to
        order: list[str] = []
        todo = list(self.labels)
        while todo:
            label = todo.pop()
            if label not in order:
                order.append(label)
                todo += targets_of(to.blocks[label].end)
        for label in order:
            self.label_of(label)
        for label in order:
            self.came[label] = self.labels[label]
            for inst in to.blocks[label].insts:
                if inst.name and inst.name not in to.analysis.lane_loads:
                    meaning[inst.name] = to.fresh("r")
        for label in order:
            to.mark(self.labels[label])
            for inst in to.blocks[label].insts:
                self._write(inst, meaning, index)

    def _write(self, inst: Inst, meaning: dict[str, str], index: tuple[str, str, str]) -> None:
        to = self.to
        if inst.op == "phi":
            to.lane_phi(inst, meaning[inst.name or ""], meaning, self.came)
        elif inst.op == "ret":
            to.tell_index(*index)
            to.put(substituted(inst.text, meaning))
        elif inst.op in ("br", "switch"):
            names = {t: self.labels[t] for t in targets_of(inst)}
            to.put(substituted(inst.text, meaning | names))
        elif inst.name in to.analysis.lane_loads:
            meaning.pop(inst.name or "", None)
            to.compute(inst, meaning, list(index))
        else:
            if takes_thread(inst, to.thread):
                to.tell_index(*index)
            to.put(substituted(inst.text, meaning))
