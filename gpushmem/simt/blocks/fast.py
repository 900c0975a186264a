"""The function of a block whose threads are in step.

It has the control flow of the kernel. What is uniform is run once; a sequence of varying
instructions, with the regions that not all threads run, is a *group*, a loop over the threads. At a
decider each thread has a code, the label where it goes on. If all have the same, the block goes on
there. If not, those that are not yet where the threads meet again go there alone (`lanes`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gpushmem.simt.base.layout import LAUNCH, THREAD, offset
from gpushmem.simt.blocks.analysis import is_pure
from gpushmem.simt.blocks.emit import Emitter, alloca_bytes, renamed_phi, takes_thread
from gpushmem.simt.blocks.meetings import BARRIER, ONCE
from gpushmem.simt.blocks.strided import Strided, strided_loop
from gpushmem.simt.blocks.text import EXIT, Block, Inst, callee_of, substituted, targets_of
from gpushmem.simt.compiler.target import Unfit

__all__ = ["Fast"]


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


class Fast(Emitter):
    """Writes the function."""

    def make(self) -> str:
        self.count_threads()
        self.start += [f"  %simt.{name} = alloca i64" for name in ("or", "and")]
        self.homes: dict[str, str] = {}
        self.names: dict[str, str] = {}
        self.written: set[str] = set()
        self.todo = [self.function.entry]
        self.current = ""
        for name in self.analysis.allocas - self.analysis.per_lane:
            self.start.append(f"  {self.analysis.defs[name].text}")
        self.resumes: list[str] = []  # where a block may come back into step after a barrier
        while self.todo:
            label = self.todo.pop()
            if label not in self.written:
                self.stream(label)
        self.resume()
        self.mark("%simt.done")
        self.put("ret i32 0")
        return self.text(self.name_of(self.function.entry))

    # --- labels and values

    def mark(self, label: str) -> None:
        self.label(label)
        self.current = label

    def name_of(self, label: str) -> str:
        if label == EXIT:
            return "%simt.done"
        self.todo.append(label)
        return self.names.setdefault(label, f"%block.{len(self.names)}")

    def is_uniform(self, name: str) -> bool:
        return name not in self.analysis.varying

    def home(self, name: str) -> str:
        """Where a uniform value is kept."""
        if name not in self.homes:
            self.homes[name] = f"%simt.home{len(self.homes)}"
            self.start.append(f"  {self.homes[name]} = alloca {self.analysis.defs[name].type}")
        return self.homes[name]

    def uniform(self, name: str) -> str:
        """A uniform value, loaded here if it is not at hand."""
        if name not in self.analysis.defs or name in self.analysis.allocas:
            return name
        if name not in self.here:
            self.here[name] = value = self.fresh("u")
            self.put(f"{value} = load {self.analysis.defs[name].type}, ptr {self.home(name)}")
        return self.here[name]

    # --- what is run once for the block

    def stream(self, label: str) -> None:
        """Write blocks from one that others come to, as long as one follows another."""
        self.here: dict[str, str] = {}
        self.mark(self.name_of(label))
        self.go_on(label, Group())

    def go_on(self, label: str, group: Group) -> None:
        following: str | None = label
        while following is not None:
            self.written.add(following)
            block = self.blocks[following]
            if block.cut is not None:
                self.flush(group)
                group = Group()
                following = self.cut(block)
            else:
                for inst in block.body:
                    group = self.take(inst, group)
                following, group = self.finish(block, group)

    def take(self, inst: Inst, group: Group) -> Group:
        """Write one instruction, or keep it for the threads."""
        if inst.op == "alloca":
            return group
        if not self.analysis.is_block_level(inst):
            group.add(inst)
            return group
        reads = inst.op == "load"
        pure = is_pure(inst)
        if not pure and (group.writes or (group.reads and not reads)):
            self.flush(group)
            group = Group()
        self.once(inst)
        return group

    def once(self, inst: Inst) -> None:
        meaning = {name: self.uniform(name) for name in inst.uses if name != self.thread}
        result = self.rename(inst, meaning)
        if inst.name:
            self.here[inst.name] = result
            if self.analysis.is_wanted_elsewhere(inst):
                self.put(f"store {inst.type} {result}, ptr {self.home(inst.name)}")

    def users(self, inst: Inst) -> list[Inst]:
        return self.analysis.users.get(inst.name or "", [])

    def cut(self, block: Block) -> str | None:
        """Write a call that waits; returns the block that follows if it follows at once."""
        cut = block.cut
        if cut.how == BARRIER:
            self.put(f"br label {self.name_of(cut.follows)}")
            return None
        if cut.how == ONCE and self.analysis.is_block_call(cut.call):
            self.tell_index("0", "0", "0")
            call = cut.call
            text = call.text.replace(callee_of(call), cut.together)
            meaning = {name: self.uniform(name) for name in call.uses if name != self.thread}
            self.tell_together(1)
            result = self.fresh("r")
            self.put(substituted(text, meaning | {call.name: result}))
            self.tell_together(0)
            if self.is_uniform(call.name):
                self.put(f"store {call.type} {result}, ptr {self.home(call.name)}")
            else:  # asked for where threads may no longer be in step
                name = call.name
                self.loops(Group(), lambda lane: self.store_place(name, result, lane))
            self.put(f"br label {self.name_of(cut.follows)}")
            return None
        code = str(self.codes[block.label])
        self.loops(Group(), codes=lambda lane: self.store_code(code, lane))
        self.fall_apart([block.label], cut.follows)
        return None

    def tell_together(self, whether: int) -> None:
        """Record that a wait is that of all threads of the block."""
        self.put(f"store i64 {whether}, ptr %simt.together")

    def finish(self, block: Block, group: Group) -> tuple[str | None, Group]:
        """Write how a block ends; returns the block that follows at once, if one does."""
        end, label = block.end, block.label
        if end.op == "ret":
            self.flush(group)
            self.put("br label %simt.done")
        elif end.op == "unreachable":
            self.flush(group)
            self.put("unreachable")
        elif label in self.analysis.deciders:
            self.decide(block, group)
        elif any(name in self.analysis.varying for name in end.uses):
            return self.absorb(group, Node(label, [], end), block.follows)
        elif len(block.follows) == 1 and end.text.startswith("br label"):
            return self.jump(label, block.follows[0], group)
        else:
            self.branch(block, group)
        return None, Group()

    def jump(self, label: str, target: str, group: Group) -> tuple[str | None, Group]:
        if target in self.analysis.local:
            return self.absorb(group, Node(label, [], None, target), [target])
        if self.is_private(target, {label}):
            return target, group
        phis = self.blocks[target].phis
        group.assigns = self.assigned(label, target)
        self.flush(group)
        values = [
            (p, self.operand(value))
            for p in phis if self.is_uniform(p.name or "")
            for value, pred in p.incoming if pred == label
        ]  # fmt: skip
        for phi, value in values:
            self.put(f"store {phi.type} {value}, ptr {self.home(phi.name or '')}")
        self.put(f"br label {self.name_of(target)}")
        return None, Group()

    def operand(self, value: str) -> str:
        return self.uniform(value) if value.startswith("%") else value

    def is_private(self, target: str, group: set[str]) -> bool:
        """Whether a block is entered only from these: it can be written behind them."""
        return (
            target not in self.codes
            and target not in self.written
            and target not in self.analysis.local
            and all(p in group for p in self.flow.preds[target])
        )

    def branch(self, block: Block, group: Group) -> None:
        """Write a branch that all threads take alike. Its targets are entered from here only."""
        self.flush(group)
        meaning = {name: self.uniform(name) for name in block.end.uses}
        stubs = []
        for target in targets_of(block.end):
            if target in self.analysis.local or target in self.function.errors:
                stubs.append(target)
                meaning[target] = self.fresh("edge")
            else:
                meaning[target] = self.name_of(target)
        self.put(substituted(block.end.text, meaning))
        here, current = self.here, self.current
        for target in dict.fromkeys(stubs):
            self.here = dict(here)
            self.mark(meaning[target])
            if target in self.function.errors:
                self.fail(target, block.label, current)
            else:
                group = Group()
                node = Node(block.label, [], None, target)
                following, group = self.absorb(group, node, [target])
                if following is not None:
                    self.go_on(following, group)
        self.here = here

    def fail(self, error: str, source: str, current: str) -> None:
        """Write an error of the block, as one of its first thread."""
        errors = Errors(self, {source: self.current})
        first = errors.label_of(error)
        meaning = self.prefetched(errors.closure(error), set(), ("0", "0", "0", "0"))
        self.put(f"br label {first}")
        errors.write(meaning, ("0", "0", "0"))

    # --- what each thread does

    def absorb(self, group: Group, node: Node, targets: list[str]) -> tuple[str | None, Group]:
        """Let a group go on with a region; returns what follows at once, if it can."""
        region, stop = self.closure(targets)
        node.region, node.stop = region, stop
        if group.nodes and group.nodes[-1].label == node.label and not group.nodes[-1].region:
            node.insts = group.nodes.pop().insts
        loop = strided_loop(self.analysis, node.enters, region, stop) if node.enters else None
        if loop is not None:
            if node.insts:
                group.nodes.append(Node(node.label, node.insts))
            return self.stride(loop, node, group)
        group.nodes.append(node)
        for label in region:
            for inst in self.blocks[label].insts:
                group.touch(inst)
        labels = {n.label for n in group.nodes}.union(*(n.region for n in group.nodes))
        once = all(p in labels for label in region for p in self.flow.preds[label])
        if stop != EXIT and once and self.is_private(stop, labels):
            return stop, group
        node.kept = stop != EXIT
        self.flush(group)
        self.put(f"br label {self.name_of(stop)}")
        return None, Group()

    def stride(self, loop: Any, node: Node, group: Group) -> tuple[str | None, Group]:
        """Write a loop whose turns are dealt out to the threads."""
        Strided(self, loop).write(node.label, group)
        inside = loop.body | {loop.exit}
        once = all(p in inside | {node.label} for p in self.flow.preds[loop.header])
        if once and self.is_private(node.stop, inside):
            return node.stop, Group()
        self.put(f"br label {self.name_of(node.stop)}")
        return None, Group()

    def closure(self, targets: list[str]) -> tuple[set[str], str]:
        """The local blocks from these on; and where they end."""
        region: set[str] = set()
        stops: set[str] = set()
        todo = list(targets)
        while todo:
            label = todo.pop()
            if label in self.analysis.local:
                if label not in region:
                    region.add(label)
                    todo += self.blocks[label].follows
            else:
                stops.add(label)
        if len(stops) != 1:
            raise Unfit("threads leave a region at different places")
        return region, stops.pop()

    def flush(self, group: Group) -> None:
        if group:
            self.loops(group)

    def loops(self, group: Group, codes: Any = None, decider: Block | None = None) -> None:
        """Write a group, as loops over the threads of the block."""
        insts = [i for node in group.nodes for i in self.all_of(node)]
        members = set(map(id, insts))
        used = [n for i in insts for n in i.uses]
        if decider is not None:
            used += decider.end.uses
            used += [v for t, p in self.meeting_phis(decider) for v in [p] if v.startswith("%")]
        used += [v for _, v in group.assigns]
        errors = self.errors_of([*insts, decider.end] if decider else insts)
        own = {i.name for i in [*insts, *errors.insts] if i.name}
        used += [n for i in errors.insts for n in i.uses]
        self.load_uniform(used, own)
        nest = Nest(self)
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

    def errors_of(self, insts: list[Inst]) -> Errors:
        """The errors that may follow some instructions."""
        errors = Errors(self, {})
        for label in {t for i in insts for t in targets_of(i)} & self.function.errors:
            errors.insts += errors.closure(label)
        return errors

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
            self.lane_end(node.end, meaning, targets, errors)
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

    # --- phis between blocks

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

    # --- threads that fall out of step

    def meets(self, target: str, stop: str) -> bool:
        """Whether a block does nothing but lead to where the threads meet again."""
        block = self.blocks[target]
        return len(block.insts) == 1 and block.follows == [stop] and stop != EXIT

    def meeting_phis(self, block: Block) -> list[tuple[str, str]]:
        stop = self.flow.post_dominator[block.label]
        found = []
        for target in block.follows:
            if target != stop and self.meets(target, stop):
                found += [(target, value) for _, value in self.assigned(target, stop)]
        return found

    def write_codes(self, block: Block, meaning: dict[str, str], errors: Errors, lane: str) -> None:
        """Write the branch of a decider: each thread's code, and whether all have the same."""
        stop = self.flow.post_dominator[block.label]
        errors.came[block.label] = self.current
        labels = {t: self.fresh("to") for t in block.follows}
        self.lane_end(block.end, meaning, labels, errors)
        join, arrivals = self.fresh("code"), []
        for target in block.follows:
            self.mark(labels[target])
            code = self.codes[target]
            if target == stop:
                self.assign(self.assigned(block.label, stop), meaning, lane)
            elif self.meets(target, stop):
                self.assign(self.assigned(target, stop), meaning, lane)
                code = self.codes[stop]
            arrivals.append((str(code), self.current))
            self.put(f"br label {join}")
        self.mark(join)
        chosen = self.fresh("code")
        self.put(f"{chosen} = phi i64 " + ", ".join(f"[ {v}, {b} ]" for v, b in arrivals))
        self.store_code(chosen, lane)
        for what in ("or", "and"):
            before, after = self.fresh("c"), self.fresh("c")
            self.put(f"{before} = load i64, ptr %simt.{what}")
            self.put(f"{after} = {what} i64 {before}, {chosen}")
            self.put(f"store i64 {after}, ptr %simt.{what}")

    def decide(self, block: Block, group: Group) -> None:
        stop = self.flow.post_dominator[block.label]
        self.put("store i64 0, ptr %simt.or")
        self.put("store i64 -1, ptr %simt.and")
        self.loops(group, decider=block)
        codes: dict[int, str] = {}
        for target in block.follows:
            met = target != stop and self.meets(target, stop)
            codes[self.codes[stop if met else target]] = stop if met else target
        every, some, same = self.fresh("c"), self.fresh("c"), self.fresh("c")
        agree, apart = self.fresh("agree"), self.fresh("apart")
        self.put(f"{some} = load i64, ptr %simt.or")
        self.put(f"{every} = load i64, ptr %simt.and")
        self.put(f"{same} = icmp eq i64 {some}, {every}")
        self.put(f"br i1 {same}, label {agree}, label {apart}")
        self.mark(agree)
        here = self.here
        stubs: dict[str, str] = {}
        cases = []
        for code, target in codes.items():
            if target in self.analysis.local:
                stubs[target] = self.fresh("edge")
                cases.append((code, stubs[target]))
            else:
                cases.append((code, self.name_of(target)))
        (_, last), *rest = cases
        self.put(
            f"switch i64 {some}, label {last} [ "
            + " ".join(f"i64 {code}, label {label}" for code, label in rest) + " ]"
        )  # fmt: skip
        for target, name in stubs.items():
            self.here = dict(here)
            self.mark(name)
            following, group = self.absorb(Group(), Node(block.label, [], None, target), [target])
            if following is not None:
                self.go_on(following, group)
        self.here = dict(here)
        self.mark(apart)
        self.fall_apart([t for t in block.follows if t != stop and not self.meets(t, stop)], stop)

    def fall_apart(self, starts: list[str], stop: str) -> None:
        """Let threads run alone, from where their codes say to where they meet again."""
        reached = [*starts, stop] if stop != EXIT else starts
        names = sorted(set().union(*(self.alive_uniform(label) for label in reached)))
        for name in names:
            self.uniform(name)
        contents = {
            name: self.content(name)
            for name in sorted(self.analysis.allocas - self.analysis.per_lane)
        }

        def copy(lane: str) -> None:
            for name in names:
                self.store_place(name, self.uniform(name), lane)
            for name, (kind, value) in contents.items():
                self.put(f"store {kind} {value}, ptr {self.address(name, lane)}")

        if names or contents:
            self.loops(Group(), codes=copy)
        code = self.run_lanes(self.codes[stop], stop != EXIT and self.leads_to_barrier(stop))
        met = self.fresh("met")
        other = self.fresh("c")
        if stop == EXIT:
            self.put("br label %simt.done")
            return
        self.put(f"{other} = icmp eq i64 {code}, {self.codes[stop]}")
        self.put(f"br i1 {other}, label {self.name_of(stop)}, label {met}")
        self.mark(met)
        self.put(f"store i64 {code}, ptr %simt.or")
        self.put("br label %simt.resume")

    def alive_uniform(self, label: str) -> set[str]:
        """The uniform values that a thread needs that goes on alone from there."""
        names = set(self.flow.alive[label])
        names |= {
            use for name in names for step in self.analysis.recipes.get(name, ())
            for use in step.uses
        }  # fmt: skip
        return {
            n for n in names
            if n in self.analysis.defs and self.is_uniform(n) and n not in self.analysis.allocas
        }  # fmt: skip

    def content(self, name: str) -> tuple[str, str]:
        """What is in memory that the block's threads share while they are in step."""
        kind = self.kind_of_content(name)
        value = self.fresh("m")
        self.put(f"{value} = load {kind}, ptr {name}")
        return kind, value

    def kind_of_content(self, name: str) -> str:
        return f"i{8 * alloca_bytes(self.analysis.defs[name])}"

    def leads_to_barrier(self, label: str) -> bool:
        """Whether threads do nothing from there to a barrier that others could wait for."""
        block = self.blocks[label]
        if block.cut is not None:
            return bool(block.cut.how == BARRIER)
        quiet = all(is_pure(i) or i.op in ("load", "alloca") or self.is_own(i) for i in block.body)
        if not quiet or len(block.follows) != 1 or block.follows[0] == EXIT:
            return False
        return self.leads_to_barrier(block.follows[0])

    def is_own(self, inst: Inst) -> bool:
        """Whether an instruction stores to memory of one thread's."""
        return inst.op == "store" and any(use in self.analysis.roots for use in inst.uses)

    def run_lanes(self, stop: int, barrier: bool = False) -> str:
        """Call `scheduler.fall_apart`; returns the code that all threads have then."""
        function, code = self.fresh("f"), self.fresh("code")
        at, launch, address = self.fresh("at"), self.fresh("at"), self.fresh("at")
        self.put(f"{at} = getelementptr i8, ptr {self.thread}, i64 {offset(THREAD, 'launch')}")
        self.put(f"{launch} = load i64, ptr {at}")
        pointer = self.fresh("p")
        self.put(f"{pointer} = inttoptr i64 {launch} to ptr")
        self.put(f"{address} = getelementptr i8, ptr {pointer}, i64 {offset(LAUNCH, 'fall_apart')}")
        word = self.fresh("w")
        self.put(f"{word} = load i64, ptr {address}")
        self.put(f"{function} = inttoptr i64 {word} to ptr")
        thread = self.fresh("t")
        self.put(f"{thread} = ptrtoint ptr {self.thread} to i64")
        # With the frame, which others write to meanwhile.
        self.put(
            f"{code} = call i64 {function}"
            f"(i64 {thread}, i64 {stop}, ptr {self.memory}, i64 {int(barrier)})"
        )
        return code

    def resume(self) -> None:
        """Write how a block comes back into step, where all its threads have met at a barrier."""
        barriers = [
            self.blocks[label].cut.follows
            for label in self.analysis.cuts
            if self.is_parking(label) and self.blocks[label].cut.follows in self.written
        ]
        self.mark("%simt.resume")
        code = self.fresh("code")
        self.put(f"{code} = load i64, ptr %simt.or")
        labels = {label: self.fresh("resume") for label in barriers}
        self.put(
            f"switch i64 {code}, label %simt.done [ "
            + " ".join(f"i64 {self.codes[b]}, label {labels[b]}" for b in barriers) + " ]"
        )  # fmt: skip
        for label in barriers:
            self.here = {}
            self.mark(labels[label])
            self.resume_at(label)

    def resume_at(self, label: str) -> None:
        names = sorted(self.alive_uniform(label))
        first = {name: self.load_place(name, "0") for name in names}
        self.put("store i64 0, ptr %simt.and")

        def compare(lane: str) -> None:
            for name in names:
                self.differs(name, self.load_place(name, lane), first[name])

        if names:
            self.loops(Group(), codes=compare)
        apart, well, together = self.fresh("c"), self.fresh("c"), self.fresh("together")
        again = self.fresh("again")
        self.put(f"{apart} = load i64, ptr %simt.and")
        self.put(f"{well} = icmp eq i64 {apart}, 0")
        self.put(f"br i1 {well}, label {together}, label {again}")
        self.mark(together)
        for name in names:
            kind = self.analysis.defs[name].type
            self.put(f"store {kind} {first[name]}, ptr {self.home(name)}")
        for name in sorted(self.analysis.allocas - self.analysis.per_lane):
            kind, at = self.kind_of_content(name), self.address(name, "0")
            value = self.fresh("m")
            self.put(f"{value} = load {kind}, ptr {at}")
            self.put(f"store {kind} {value}, ptr {name}")
        self.put(f"br label {self.name_of(label)}")
        self.mark(again)
        code = self.run_lanes(-1)
        self.put(f"store i64 {code}, ptr %simt.or")
        self.put("br label %simt.resume")

    def differs(self, name: str, value: str, first: str) -> None:
        kind = self.analysis.defs[name].type
        if kind in ("float", "double", "half", "bfloat"):
            bits = {"float": "i32", "double": "i64", "half": "i16", "bfloat": "i16"}[kind]
            pair = []
            for v in (value, first):
                pair.append(self.fresh("b"))
                self.put(f"{pair[-1]} = bitcast {kind} {v} to {bits}")
            value, first, kind = *pair, bits
        elif kind[0] in "{[":
            raise Unfit("a structure is the same for all threads of a block")
        unlike, word, before, after = (self.fresh("c") for _ in range(4))
        self.put(f"{unlike} = icmp ne {kind} {value}, {first}")
        self.put(f"{word} = zext i1 {unlike} to i64")
        self.put(f"{before} = load i64, ptr %simt.and")
        self.put(f"{after} = or i64 {before}, {word}")
        self.put(f"store i64 {after}, ptr %simt.and")


class Nest:
    """Loops over the threads of a block."""

    def __init__(self, to: Fast) -> None:
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


class Errors:
    """Blocks that lead to errors, where one thread runs into them."""

    def __init__(self, to: Fast, came: dict[str, str]) -> None:
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
            meaning.pop(inst.name, None)
            to.compute(inst, meaning, list(index))
        else:
            if takes_thread(inst, to.thread):
                to.tell_index(*index)
            to.put(substituted(inst.text, meaning))
