"""Threads that fall out of step, and how they come into step again."""

from __future__ import annotations

from gpushmem.native.structs import offset
from gpushmem.simt.base.layout import LAUNCH, THREAD
from gpushmem.simt.blocks.group import Group
from gpushmem.simt.blocks.llvm_code import EXIT, Block, Inst
from gpushmem.simt.blocks.threads import Errors, Threads
from gpushmem.simt.blocks.uniformity import is_pure
from gpushmem.simt.compiler.cached_functions import BARRIER
from gpushmem.simt.compiler.target import Unfit

__all__ = ["Apart"]


class Apart(Threads):
    """Writes deciders, and what follows them."""

    written: set[str]  # labels
    parted: list[tuple[list[str], str]]  # where threads go on alone, and where they meet again

    def name_of(self, label: str) -> str:
        """The name here of a label that others go to."""
        raise NotImplementedError

    def enter(self, label: str, source: str) -> None:
        """Write the blocks from a local one on, entered from a branch of all threads."""
        raise NotImplementedError

    def meets(self, target: str, stop: str) -> bool:
        """Whether a block does nothing but lead to where the threads meet again."""
        block = self.blocks[target]
        return len(block.insts) == 1 and block.follows == [stop] and stop != EXIT

    def meeting_values(self, block: Block) -> list[str]:
        stop = self.flow.post_dominator[block.label]
        met = [t for t in block.follows if t != stop and self.meets(t, stop)]
        return [value for target in met for _, value in self.assigned(target, stop)]

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
            self.gather(what, chosen, what)

    def gather(self, what: str, value: str, op: str = "or") -> None:
        """Combine a thread's word with those of threads before it, in `%simt.or` or `%simt.and`."""
        before, after = self.fresh("c"), self.fresh("c")
        self.put(f"{before} = load i64, ptr %simt.{what}")
        self.put(f"{after} = {op} i64 {before}, {value}")
        self.put(f"store i64 {after}, ptr %simt.{what}")

    def decide(self, block: Block, group: Group) -> None:
        stop = self.flow.post_dominator[block.label]
        if stop in self.analysis.local:
            raise Unfit("threads meet again in a loop that each runs alone")
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
            self.enter(target, block.label)
        self.here = dict(here)
        self.mark(apart)
        self.fall_apart([t for t in block.follows if t != stop and not self.meets(t, stop)], stop)

    def fall_apart(self, starts: list[str], stop: str) -> None:
        """Let threads run alone, from where their codes say to where they meet again."""
        self.parted.append((starts, stop))
        reached = [*starts, stop] if stop != EXIT else starts
        names = sorted(set().union(*(self.alive_uniform(label) for label in reached)))
        for name in names:
            self.uniform(name)

        for name in names:
            kind = self.analysis.defs[name].type
            self.put(f"store {kind} {self.uniform(name)}, ptr {self.common(name)}")
        for name in self.shared_memory():
            self.copy_content(name, name, self.common(name))
        self.put(
            f"call void @llvm.memset.p0.i64(ptr {self.flags()}, i8 1, i64 %simt.threads, i1 false)"
        )
        code = self.run_lanes(self.codes[stop], stop != EXIT and self.leads_to_barrier(stop))
        met, other = self.fresh("met"), self.fresh("c")
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
            if n in self.analysis.defs and self.is_uniform(n)
            and n not in self.analysis.allocas and n not in self.analysis.recipes
        }  # fmt: skip

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
        """Call `lockstep.fall_apart`; returns the code that all threads have then."""
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
            self.loops(Group(), codes=compare, seldom=True)
        apart, well, together = self.fresh("c"), self.fresh("c"), self.fresh("together")
        again = self.fresh("again")
        self.put(f"{apart} = load i64, ptr %simt.and")
        self.put(f"{well} = icmp eq i64 {apart}, 0")
        self.put(f"br i1 {well}, label {together}, label {again}")
        self.mark(together)
        for name in names:
            kind = self.analysis.defs[name].type
            self.put(f"store {kind} {first[name]}, ptr {self.home(name)}")
        for name in self.shared_memory():
            self.copy_content(name, self.address(name, "0"), name)
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
        unlike, word = self.fresh("c"), self.fresh("c")
        self.put(f"{unlike} = icmp ne {kind} {value}, {first}")
        self.put(f"{word} = zext i1 {unlike} to i64")
        self.gather("and", word)
