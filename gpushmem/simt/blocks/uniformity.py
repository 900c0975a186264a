"""What is the same for all threads of a block, and what is not.

A value is *uniform* if all threads compute the same whenever they run its instruction together: it
follows from the kernel's arguments, the block's index, and memory at uniform addresses, read once
for all of them. Everything else is *varying*; so is what is computed where not all threads need be
(`local`: the regions of varying branches in which nobody waits), and what comes out of a region of
which threads may run different parts.

A branch on a varying value whose region contains a cut is a *decider*: threads may fall out of step
there. Where they do, what is uniform is kept for each thread (see `thread_function`).
"""

from __future__ import annotations

import re
from functools import cached_property

from gpushmem.native.structs import offset
from gpushmem.simt.base.layout import THREAD
from gpushmem.simt.blocks.control_flow import Flow
from gpushmem.simt.blocks.llvm_code import EXIT, Function, Inst, callee_of
from gpushmem.simt.compiler.cached_functions import BARRIER, ONCE
from gpushmem.simt.compiler.symbols import OWN, TRIPS

__all__ = ["Analysis", "is_pure", "trips_of"]

THREAD_ARG = 1
LANE_FIELDS = {offset(THREAD, "tid") + 4 * axis: axis for axis in range(3)}
OWN_FIELDS = {offset(THREAD, "number"), offset(THREAD, "mark")}
PURE_CALLS = re.compile(
    r"llvm\.(smin|smax|umin|umax|abs|fabs|sqrt|fma|fmuladd|floor|ceil|rint|trunc|round|minnum|"
    r"maxnum|minimum|maximum|copysign|ctpop|ctlz|cttz|bswap|bitreverse|fshl|fshr|uadd|sadd|usub|"
    r"ssub|umul|smul|exp|log|pow|sin|cos|canonicalize|is\.fpclass|fptosi|fptoui)"
)
# They do nothing but to the memory that they are given.
PLAIN_CALLS = "llvm.memset.", "llvm.memcpy.", "numba_attempt_nocopy_reshape"
POINTERS = ("getelementptr", "bitcast", "ptrtoint", "inttoptr", "add")  # that make one of another
MEMORY = ("load", "store", "call", "atomicrmw", "cmpxchg", "fence", "alloca")
DIVISIONS = ("sdiv", "udiv", "srem", "urem")  # which trap, where they would not have been run
MOST = 40  # instructions that compute a value again


def is_pure(inst: Inst) -> bool:
    """Whether an instruction only computes."""
    if inst.op == "call":
        name = callee_of(inst)
        return bool(PURE_CALLS.match(name)) or name in (OWN, TRIPS)
    return inst.op not in MEMORY and inst.op not in ("phi", "br", "switch", "ret", "unreachable")


def trips_of(inst: Inst | None) -> list[str] | None:
    """Start, stop and step, as text, if an instruction counts the turns of a range loop."""
    if inst is None or inst.op != "call" or callee_of(inst) != TRIPS:
        return None
    inside = inst.text.split(f"@{TRIPS}(", 1)[1].rsplit(")", 1)[0]
    return [part.split()[-1] for part in inside.split(",")]


class Analysis:
    """What varies in a function that has been cut up."""

    def __init__(self, function: Function) -> None:
        self.function, self.flow = function, Flow(function)
        self.defs = {i.name: i for b in function for i in b.insts if i.name}
        self.users: dict[str, list[Inst]] = {}
        for block in function:
            for inst in block.insts:
                for name in inst.uses:
                    self.users.setdefault(name, []).append(inst)
        self.thread = function.args[THREAD_ARG][0]
        self.cuts = [
            b.label for b in function if b.cut is not None and b.label in self.flow.follows
        ]
        self.lane_loads: dict[str, int] = {}  # loads of a thread's index: axis
        self.own_loads: set[str] = set()
        for name, inst in self.defs.items():
            if inst.op == "load":
                at = self._thread_offset(inst.uses[0]) if inst.uses else None
                if at in LANE_FIELDS:
                    self.lane_loads[name] = LANE_FIELDS[at]
                elif at in OWN_FIELDS:
                    self.own_loads.add(name)
        self.allocas = {n for n, i in self.defs.items() if i.op == "alloca"}
        self.roots = self._roots()
        self.per_lane: set[str] = set()  # allocas of which each thread has its own
        self.varying: set[str] = set(self.lane_loads) | self.own_loads
        self.local: set[str] = set()
        self.deciders: dict[str, set[str]] = {}  # label -> region
        self.left: dict[str, set[str]] = {}  # value -> blocks of the regions that it comes out of
        self._joins: dict[str, set[str]] = {}
        self._grow()

    def _thread_offset(self, name: str) -> int | None:
        if name == self.thread:
            return 0
        inst = self.defs.get(name)
        if inst is not None and inst.op == "getelementptr" and inst.uses == [self.thread]:
            found = re.search(r"getelementptr .*?i8, ptr \S+, i64 (\d+)$", inst.text)
            return int(found[1]) if found else None
        return None

    # --- allocas

    def _roots(self) -> dict[str, str]:
        """Pointer, perhaps as a number -> the alloca that it points into."""
        roots = {name: name for name in self.allocas}
        todo = list(self.allocas)
        while todo:
            name = todo.pop()
            for user in self.users.get(name, []):
                derived = user.op in POINTERS and (user.op == "add" or user.uses[0] == name)
                if derived and user.name and user.name not in roots:
                    roots[user.name] = roots[name]
                    todo.append(user.name)
        return roots

    @cached_property
    def uses_of_allocas(self) -> dict[str, list[tuple[str, Inst]]]:
        """Alloca -> (pointer, instruction) for all that is done with it."""
        found: dict[str, list[tuple[str, Inst]]] = {name: [] for name in self.allocas}
        for pointer, root in self.roots.items():
            for user in self.users.get(pointer, []):
                if self.roots.get(user.name or "") != root or user.op in ("phi", "select"):
                    found[root].append((pointer, user))
        return found

    def _varies_as_memory(self, root: str) -> bool:
        """Whether each thread needs memory of its own for an alloca."""
        written: list[str] = []
        uses = self.uses_of_allocas[root]
        for pointer, inst in uses:
            label = inst.block.label
            if label in self.function.errors:
                continue
            if inst.op == "load":
                continue
            if inst.op == "store":
                value = _stored(inst)
                if value == pointer:
                    return True
                if label in self.local or pointer in self.varying or value in self.varying:
                    return True
            elif inst.op == "call":
                if label in self.local or not self.is_block_call(inst):
                    return True
            else:
                return True
            written.append(label)
        for region in self.deciders.values():
            if any(w in region for w in written) and any(
                i.block.label not in region for _, i in uses if i.op != "store"
            ):
                return True
        return False

    # --- values

    def is_block_call(self, inst: Inst) -> bool:
        """Whether one call does for all threads of the block, if they make it together."""
        name = callee_of(inst)
        cut = inst.block.cut
        if cut is not None:
            if cut.how == BARRIER:
                return True
            return cut.how == ONCE and not any(a in self.varying for a in self.data_args(inst))
        if name == OWN:
            return False
        if is_pure(inst) or name.startswith(PLAIN_CALLS):
            return not any(a in self.varying for a in inst.uses)
        return False

    def data_args(self, inst: Inst) -> list[str]:
        """The arguments of a call that waits: not the hidden ones, nor where its result goes."""
        skipped = 1 if inst.uses and inst.uses[0] in self.roots else 0
        return [a for a in inst.uses[skipped:] if a != self.thread]

    def is_block_level(self, inst: Inst) -> bool:
        """Whether an instruction is run once for the block; its block is not local."""
        if inst.name:
            return inst.name not in self.varying
        if inst.op == "call":
            return self.is_block_call(inst)
        return not any(name in self.varying for name in inst.uses)

    def _varies(self, inst: Inst) -> bool:
        if inst.block.label in self.local:
            return True
        if inst.op in ("atomicrmw", "cmpxchg"):
            return True
        if inst.op == "alloca":
            return inst.name in self.per_lane
        if inst.op == "call":
            return not self.is_block_call(inst)
        return any(name in self.varying for name in inst.uses)

    def _grow(self) -> None:
        """Let what varies grow until nothing follows from it that is not among it."""
        branches: set[str] = set()
        while True:
            before = len(self.varying), len(self.local), len(self.per_lane), len(self.deciders)
            for label in self.flow.labels:
                for inst in self.function.blocks[label].insts:
                    if inst.name and inst.name not in self.varying and self._varies(inst):
                        self.varying.add(inst.name)
            self._branch(branches)
            self.per_lane |= {
                root for root in self.allocas - self.per_lane if self._varies_as_memory(root)
            }
            if before == (
                len(self.varying), len(self.local), len(self.per_lane), len(self.deciders)
            ):  # fmt: skip
                return

    def _branch(self, known: set[str]) -> None:
        """Find what follows from branches that vary, and are not `known` yet."""
        for label in self.flow.labels:
            block = self.function.blocks[label]
            varies = len(block.follows) > 1 and any(u in self.varying for u in block.end.uses)
            if not varies or label in known:
                continue
            known.add(label)
            region = self.flow.region(label)
            if any(self.function.blocks[r].cut is not None for r in region):
                self.deciders[label] = region
            else:
                self.local |= region
            self._leave(label, region, self.flow.post_dominator[label])

    def _leave(self, label: str, region: set[str], stop: str) -> None:
        """Let what comes out of a region vary."""
        inside = region | self.function.errors
        for each in region:
            for inst in self.function.blocks[each].insts:
                if inst.name and any(
                    u.block.label not in inside for u in self.users.get(inst.name, [])
                ):
                    self.varying.add(inst.name)
                    self.left.setdefault(inst.name, set()).update(region)
        if stop != EXIT:
            phis = self.function.blocks[stop].phis
            edges = {p for p in self.flow.preds[stop] if p == label or p in region}
            came = [{value for value, pred in phi.incoming if pred in edges} for phi in phis]
            if edges < {*self.flow.preds[stop]} and any(
                len(values) == 1 and not values & self.varying for values in came
            ):
                self._joins[stop] = self._joins.get(stop, set()) | edges
            self.varying.update(p.name for p in phis if p.name)

    @cached_property
    def joins(self) -> dict[str, set[str]]:
        """Blocks where threads meet, and others come from elsewhere: the edges of those that met.

        With a block of their own before it (`prepare.join`), what they all bring along is uniform.
        """
        return {stop: edges for stop, edges in self._joins.items() if stop not in self.local}

    def is_wanted_elsewhere(self, inst: Inst) -> bool:
        """Whether a value is asked for in another block than the one that computes it."""
        users = self.users.get(inst.name or "", [])
        return inst.name in self.ingredients or any(
            u.block is not inst.block or u.op == "phi" for u in users
        )

    @cached_property
    def ingredients(self) -> set[str]:
        """What values that are computed again are made of."""
        return {use for steps in self.recipes.values() for step in steps for use in step.uses}

    # --- what is computed again

    @cached_property
    def recipes(self) -> dict[str, list[Inst]]:
        """For varying values that follow from a thread's index alone: how, in order.

        And for pointers to what threads share while they are in step: one alone has its own.
        What comes out of a region cannot be computed again from what is uniform in the region:
        threads leave a loop in different turns, and outside its counter is that of the last.
        """
        found: dict[str, list[Inst] | None] = {}

        def recipe(name: str) -> list[Inst] | None:
            if name in found:
                return found[name]
            found[name] = None
            inst = self.defs[name]
            steps: dict[Inst, None] = {}
            if name in self.lane_loads:
                found[name] = [inst]
                return found[name]
            if name in self.own_loads or not is_pure(inst) or inst.op in DIVISIONS:
                return None
            if inst.block.label in self.local:
                return None
            for use in inst.uses:
                if use in self.varying and use in self.defs:
                    needed = recipe(use)
                    if needed is None:
                        return None
                    steps |= dict.fromkeys(needed)
            steps[inst] = None
            uniform = {u for s in steps for u in s.uses} & self.defs.keys() - self.varying
            left = self.left.get(name, set())
            if len(steps) <= MOST and not any(self.defs[u].block.label in left for u in uniform):
                found[name] = list(steps)
            return found[name]

        made = {
            name: steps for name in self.varying if name in self.defs and (steps := recipe(name))
        }
        return made | {
            name: self._pointer(name) for name in self.roots.keys() - self.allocas - self.varying
        }

    def _pointer(self, name: str) -> list[Inst]:
        """How a pointer is made of an alloca's address."""
        inst = self.defs[name]
        steps: dict[Inst, None] = {}
        for use in inst.uses:
            if use in self.roots and use not in self.allocas:
                steps |= dict.fromkeys(self._pointer(use))
        return list(steps | {inst: None})


def _stored(inst: Inst) -> str:
    """The value that a store stores."""
    text = inst.text.split("store ", 1)[1]
    return re.split(r", ptr ", text)[0].split()[-1]
