"""The function of a block whose threads are in step.

It has the control flow of the kernel. What is uniform is run once; a sequence of varying
instructions, with the regions that not all threads run, is a *group*, a loop over the threads. At a
decider each thread has a code, the label where it goes on. If all have the same, the block goes on
there. If not, those that are not yet where the threads meet again go there alone
(`thread_function`).
"""

from __future__ import annotations

from typing import Any

from gpushmem.simt.blocks.divergence import Apart
from gpushmem.simt.blocks.group import Group, Nest, Node
from gpushmem.simt.blocks.llvm_code import EXIT, Block, Inst, callee_of, substituted, targets_of
from gpushmem.simt.blocks.prepare import Cut
from gpushmem.simt.blocks.strided_loops import Strided, strided_loop
from gpushmem.simt.blocks.uniformity import is_pure
from gpushmem.simt.compiler.cached_functions import BARRIER, LANES, ONCE, WARPS
from gpushmem.simt.compiler.target import Unfit

__all__ = ["Fast"]


class Fast(Apart):
    """Writes the function."""

    def make(self) -> str:
        self.count_threads()
        self.start += [f"  %simt.{name} = alloca i64" for name in ("or", "and")]
        self.names: dict[str, str] = {}
        self.written: set[str] = set()
        self.parted: list[tuple[list[str], str]] = []
        self.todo = [self.function.entry]
        self.current = ""
        for name in self.analysis.allocas - self.analysis.per_lane:
            self.start.append(f"  {self.analysis.defs[name].text}")
        while self.todo:
            label = self.todo.pop()
            if label not in self.written:
                self.stream(label)
        if self.parted:
            self.resume()
        self.mark("%simt.done")
        self.put("ret i32 0")
        return self.text(self.name_of(self.function.entry))

    def name_of(self, label: str) -> str:
        if label == EXIT:
            return "%simt.done"
        self.todo.append(label)
        return self.names.setdefault(label, f"%block.{len(self.names)}")

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

    def cut(self, block: Block) -> str | None:
        """Write a call that waits; returns the block that follows if it follows at once."""
        cut = block.cut
        if cut.how == BARRIER:
            self.put(f"br label {self.name_of(cut.follows)}")
            return None
        if cut.how == ONCE and self.analysis.is_block_call(cut.call):
            self.tell_index("0", "0", "0")
            call = cut.call
            text = call.text.replace(callee_of(call), cut.meeting.called)
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
        if cut.how == LANES:
            self.call_of_all(cut)
            self.put(f"br label {self.name_of(cut.follows)}")
            return None
        if cut.how == WARPS:
            self.call_of_warps(cut)
        code = str(self.codes[block.label])
        self.loops(Group(), codes=lambda lane: self.store_code(code, lane), seldom=True)
        self.fall_apart([block.label], cut.follows)
        return None

    def call_of_all(self, cut: Cut) -> None:
        """Write a call that computes the results of all threads."""
        call, name = cut.call, cut.call.name or ""
        result = call.uses[0]
        if result not in self.analysis.per_lane:
            raise Unfit("the result of a call of all goes to memory that they share")
        own = [cut.meeting.varies] if self.is_alike(cut) else range(len(cut.args))
        areas = {k: f"{name}.{k}" for k in own}
        values = [value for _, value in cut.args if value.startswith("%")]
        self.load_uniform(values, set())
        nest = Nest(self)
        nest.begin()
        meaning = self.meaning_of(values, set(), (nest.lane, nest.x, nest.y, nest.z))
        for k, area in areas.items():
            kind, value = cut.args[k]
            self.put(
                f"store {kind} {meaning.get(value, value)}, ptr {self.address(area, nest.lane)}"
            )
        self.store_place(name, "0", nest.lane)
        self.put(f"br label {nest.latch}")
        nest.end()
        words = [self.operand(value) for _, value in cut.args]
        for k, area in areas.items():
            words[k] = self.word_of(area)
        words += [self.word_of(result), "%simt.threads"]
        given = ", ".join(f"i64 {word}" for word in words)
        hidden = ", ".join(call.text.split("(", 1)[1].split(", ")[1:3])
        function = cut.meeting.alike if self.is_alike(cut) else cut.meeting.called
        self.put(f"{self.fresh('r')} = call i32 @{function}(ptr %simt.or, {hidden}, {given})")

    def call_of_warps(self, cut: Cut) -> None:
        """Write a call that one thread of each warp makes; threads that differ go on alone."""
        call = cut.call
        result, *values = call.uses
        self.load_uniform(values, set())
        self.put("store i64 0, ptr %simt.or")
        nest = Nest(self)
        nest.begin()
        meaning = self.meaning_of(values, set(), (nest.lane, nest.x, nest.y, nest.z))
        self.tell_index(nest.x, nest.y, nest.z)
        name = call.name or ""
        status, differ = self.fresh("c"), self.fresh("c")
        text = call.text.replace(callee_of(call), cut.meeting.called)
        self.put(substituted(text, meaning | {name: status, result: "%simt.and"}))
        self.store_place(name, status, nest.lane)
        self.put(f"{differ} = load i64, ptr %simt.and")
        self.gather("or", differ)
        self.put(f"br label {nest.latch}")
        nest.end()
        some, alike, apart = self.fresh("c"), self.fresh("c"), self.fresh("apart")
        self.put(f"{some} = load i64, ptr %simt.or")
        self.put(f"{alike} = icmp eq i64 {some}, 0")
        self.put(f"br i1 {alike}, label {self.name_of(cut.follows)}, label {apart}")
        self.mark(apart)

    def is_alike(self, cut: Cut) -> bool:
        """Whether only one argument of a call differs from thread to thread."""
        others = [value for k, (_, value) in enumerate(cut.args) if k != cut.meeting.varies]
        plain = all(kind == "i64" for kind, _ in cut.args)
        return bool(cut.meeting.alike) and plain and all(map(self.is_uniform, others))

    def word_of(self, area: str) -> str:
        word = self.fresh("area")
        self.put(f"{word} = ptrtoint ptr {self.place_of(area)} to i64")
        return word

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
        here = self.here
        for target in dict.fromkeys(stubs):
            self.here = dict(here)
            self.mark(meaning[target])
            if target in self.function.errors:
                self.fail(target, block.label)
            else:
                self.enter(target, block.label)
        self.here = here

    def absorb(self, group: Group, node: Node, targets: list[str]) -> tuple[str | None, Group]:
        """Let a group go on with a region; returns what follows at once, if it can."""
        region, stop = self.closure(targets)
        node.region, node.stop = region, stop
        if group.nodes and group.nodes[-1].label == node.label and not group.nodes[-1].region:
            node.insts = group.nodes.pop().insts
        loop = strided_loop(self.analysis, node.enters, region, stop) if node.enters else None
        if loop is not None:
            self.saves = True
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

    def enter(self, label: str, source: str) -> None:
        """Write the blocks from a local one on, entered from a branch of all threads."""
        following, group = self.absorb(Group(), Node(source, [], None, label), [label])
        if following is not None:
            self.go_on(following, group)
