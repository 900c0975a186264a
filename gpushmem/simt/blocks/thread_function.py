"""The function that a thread runs alone, while those of its block are not in step.

It is the kernel as it was, for one thread. It begins where the thread's code says, and returns
where the block's threads meet again (`BLOCK.stop`), at a barrier, or at the end; then the thread's
code says where. Its values are variables, which the optimiser makes values again; those that are
alive where it begins come from the frame, and those that are alive where it ends go there.
"""

from __future__ import annotations

from gpushmem.native.structs import offset
from gpushmem.simt.base.layout import EXITED, PARKED, THREAD
from gpushmem.simt.blocks.emit import Emitter
from gpushmem.simt.blocks.llvm_code import EXIT, Block, Inst, callee_of, substituted, targets_of

__all__ = ["Lanes"]


class Lanes(Emitter):
    """Writes the function."""

    def make(self, parted: list[tuple[list[str], str]]) -> str:
        """The function's text. `parted` has where threads go on alone, and where they meet again.

        If they never do, it is empty: nobody calls it.
        """
        if not parted:
            return f"{self.head()}\n  ret i32 0\n}}\n"
        self.count_threads()
        self._index()
        self.stops = {stop for _, stop in parted} - {EXIT}
        behind = {self.blocks[c].cut.follows for c in self.analysis.cuts if self.is_parking(c)}
        begins = self.stops | behind.union(*(starts for starts, _ in parted)) - {EXIT}
        self.names = {label: f"%lane.{k}" for k, label in enumerate(self.blocks)}
        self.label("%simt.dispatch")
        at, code = self.fresh("at"), self.fresh("code")
        self.put(f"{at} = getelementptr inbounds i64, ptr {self.memory}, i64 %simt.lane")
        self.put(f"{code} = load i64, ptr {at}")
        self.take_memory()
        starts = {label: c for label, c in self.codes.items() if label in begins}
        stubs = {label: self.fresh("go") for label in starts}
        self.put(
            f"switch i64 {code}, label %simt.end [ "
            + " ".join(f"i64 {c}, label {stubs[label]}" for label, c in starts.items()) + " ]"
        )  # fmt: skip
        for label in starts:
            self.label(stubs[label])
            for name in self.needed(label):
                self.store(name, self.take(name))
            self.put(f"br label {self.inside(label)}")
        self.label("%simt.end")
        self.store_code("0", "%simt.lane")
        self.put("ret i32 0")
        for block in self.function:
            self.block(block)
        return self.text("%simt.dispatch")

    def take_memory(self) -> None:
        """Take a copy of the memory that all threads had in common, if they have just parted."""
        flag, first, own = self.fresh("flag"), self.fresh("first"), self.fresh("own")
        at = self.fresh("at")
        self.put(f"{at} = getelementptr inbounds i8, ptr {self.flags()}, i64 %simt.lane")
        self.put(f"{flag} = load i8, ptr {at}")
        self.put(f"%simt.parts = icmp ne i8 {flag}, 0")
        self.put(f"br i1 %simt.parts, label {first}, label {own}")
        self.label(first)
        for name in self.shared_memory():
            self.copy_content(name, self.common(name), self.address(name, "%simt.lane"))
        self.put(f"br label {own}")
        self.label(own)

    def take(self, name: str) -> str:
        """A value as it was when the thread stopped, or when all had it in common."""
        if name in self.analysis.varying:
            return self.load_place(name, "%simt.lane")
        at, value, own = self.fresh("at"), self.fresh("l"), self.address(name, "%simt.lane")
        self.put(f"{at} = select i1 %simt.parts, ptr {self.common(name)}, ptr {own}")
        self.put(f"{value} = load {self.analysis.defs[name].type}, ptr {at}")
        return value

    def needed(self, label: str) -> list[str]:
        """What a thread needs that goes on there."""
        analysis = self.analysis
        names = self.flow.alive[label] | {phi.name or "" for phi in self.blocks[label].phis}
        steps = [step for name in names for step in analysis.recipes.get(name, ())]
        names = names | {use for step in steps for use in step.uses}
        return sorted(
            names & analysis.defs.keys() - analysis.allocas - analysis.recipes.keys()
            - analysis.lane_loads.keys() - {step.name for step in steps}
        )  # fmt: skip

    def leave(self, label: str, code: int) -> None:
        """Return, to go on at a label later."""
        at = self.fresh("at")
        self.put(f"{at} = getelementptr inbounds i8, ptr {self.flags()}, i64 %simt.lane")
        self.put(f"store i8 0, ptr {at}")
        for name in self.needed(label):
            self.store_place(name, self.load(name), "%simt.lane")
        self.store_code(str(code), "%simt.lane")
        self.put("ret i32 0")

    def load(self, name: str) -> str:
        value = self.fresh("l")
        self.put(f"{value} = load {self.analysis.defs[name].type}, ptr {self.home(name)}")
        return value

    def store(self, name: str, value: str) -> None:
        self.put(f"store {self.analysis.defs[name].type} {value}, ptr {self.home(name)}")

    def inside(self, label: str) -> str:
        """Where a block's code begins, behind the question whether the thread stops there."""
        return f"{self.names[label]}.in" if label in self.stops else self.names[label]

    def _index(self) -> None:
        for axis, name in enumerate("xyz"):
            self.start += [
                f"  %simt.at.t{name} = getelementptr i8, ptr {self.thread}, "
                f"i64 {offset(THREAD, 'tid') + 4 * axis}",
                f"  %simt.t{name}.32 = load i32, ptr %simt.at.t{name}",
                f"  %simt.t{name} = zext i32 %simt.t{name}.32 to i64",
            ]
        self.start += [
            f"  %simt.zby = mul nuw nsw i64 %simt.tz, {self.extents[1]}",
            "  %simt.zy = add nuw nsw i64 %simt.zby, %simt.ty",
            "  %simt.row = mul nuw nsw i64 %simt.zy, %simt.bx",
            "  %simt.lane = add nuw nsw i64 %simt.row, %simt.tx",
        ]

    def block(self, block: Block) -> None:
        label = block.label
        self.label(self.names[label])
        if label in self.stops:
            at, same, out = self.fresh("stop"), self.fresh("c"), self.fresh("out")
            self.put(f"{at} = load volatile i64, ptr %simt.stop")
            self.put(f"{same} = icmp eq i64 {at}, {self.codes[label]}")
            self.put(f"br i1 {same}, label {out}, label {self.inside(label)}")
            self.label(out)
            self.leave(label, self.codes[label])
            self.label(self.inside(label))
        self.meaning: dict[str, str] = {}
        if self.is_parking(label):
            self.park(block)
            follows = block.cut.follows
            if follows == EXIT:
                self.store_code(str(EXITED | PARKED), "%simt.lane")
                self.put("ret i32 0")
            else:
                self.leave(follows, self.codes[follows] | PARKED)
            return
        for inst in block.body:
            if inst.op == "alloca":
                continue
            self.prepare(inst)
            if inst.name:
                self.meaning[inst.name] = self.fresh("r")
            self.put(substituted(inst.text, self.meaning))
            if inst.name and self.analysis.is_wanted_elsewhere(inst):
                self.store(inst.name, self.meaning[inst.name])
        self.finish(block)

    def park(self, block: Block) -> None:
        """Write the call of what checks that a thread may be at a barrier."""
        cut = block.cut
        status, failed = self.fresh("status"), self.fresh("c")
        out, well = self.fresh("out"), self.fresh("well")
        self.prepare(cut.call)
        text = cut.call.text.replace(f"@{callee_of(cut.call)}(", f"@{cut.meeting.called}(", 1)
        self.put(substituted(text, self.meaning | {cut.call.name: status}))
        self.put(f"{failed} = icmp ne i32 {status}, 0")
        self.put(f"br i1 {failed}, label {out}, label {well}")
        self.label(out)
        self.put(f"ret i32 {status}")
        self.label(well)

    def prepare(self, inst: Inst) -> None:
        """Have what an instruction uses at hand."""
        for name in inst.uses:
            self.value(name)

    def value(self, name: str) -> str:
        if name in self.meaning or name not in self.analysis.defs:
            return self.meaning.get(name, name)
        if name in self.analysis.allocas:
            self.meaning[name] = self.address(name, "%simt.lane")
        elif name in self.analysis.recipes:
            for step in self.analysis.recipes[name]:
                self.compute(step)
        else:
            self.meaning[name] = self.load(name)
        return self.meaning[name]

    def compute(self, step: Inst) -> None:
        """Write one step of a recipe."""
        if step.name in self.meaning or step.name is None:
            return
        axis = self.analysis.lane_loads.get(step.name)
        if axis is not None:
            self.meaning[step.name] = f"%simt.t{'xyz'[axis]}.32"
            return
        for use in step.uses:
            self.value(use)
        self.meaning[step.name] = self.fresh("r")
        self.put(substituted(step.text, self.meaning))

    def finish(self, block: Block) -> None:
        end = block.end
        if end.op == "ret" and EXIT in block.follows:
            self.store_code("0", "%simt.lane")
            self.put("ret i32 0")
            return
        self.prepare(end)
        targets = targets_of(end)
        edges = {t: self.fresh("edge") if self.blocks[t].phis else self.names[t] for t in targets}
        self.put(substituted(end.text, self.meaning | edges))
        meaning = self.meaning
        for target in targets:
            phis = self.blocks[target].phis
            if not phis:
                continue
            self.label(edges[target])
            self.meaning = dict(meaning)
            values = []
            for phi in phis:
                value = next(v for v, pred in phi.incoming if pred == block.label)
                values.append((phi, self.value(value) if value.startswith("%") else value))
            for phi, value in values:
                self.store(phi.name or "", value)
            self.put(f"br label {self.names[target]}")
