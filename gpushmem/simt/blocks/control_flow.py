"""The control flow of a kernel: who is reached whatever a branch does, loops, what is alive where.

Sets of dominators are Python integers, a bit for each block.
"""

from __future__ import annotations

from functools import cached_property

from gpushmem.simt.blocks.llvm_code import EXIT, Function, targets_of
from gpushmem.simt.compiler.target import Unfit

__all__ = ["Flow"]


class Flow:
    """The graph of a function's blocks, without those that lead to errors."""

    def __init__(self, function: Function) -> None:
        self.function = function
        self.follows = {b.label: b.follows for b in function if b.label not in function.errors}
        self.labels = [at for at in _in_order(function.entry, self.follows) if at != EXIT]
        self.follows = {label: self.follows[label] for label in self.labels}
        self.preds: dict[str, list[str]] = {label: [] for label in [*self.labels, EXIT]}
        for label, targets in self.follows.items():
            for target in targets:
                self.preds[target].append(label)
        self._number = {label: k for k, label in enumerate([*self.labels, EXIT])}
        self.post_dominator = self._immediate_post_dominators()

    def _immediate_post_dominators(self) -> dict[str, str]:
        """By Cooper, Harvey and Kennedy, "A simple, fast dominance algorithm", 2001."""
        order = _in_order(EXIT, self.preds)
        rank = {label: k for k, label in enumerate(order)}
        if len(order) != len(self.labels) + 1:
            raise Unfit("a loop never ends")
        found = {EXIT: EXIT}
        changed = True
        while changed:
            changed = False
            for label in order[1:]:
                new = None
                for target in self.follows[label]:
                    if target in found:
                        new = target if new is None else self._common(target, new, found, rank)
                if new is not None and found.get(label) != new:
                    found[label] = new
                    changed = True
        return found

    @staticmethod
    def _common(a: str, b: str, found: dict[str, str], rank: dict[str, int]) -> str:
        while a != b:
            while rank[a] > rank[b]:
                a = found[a]
            while rank[b] > rank[a]:
                b = found[b]
        return a

    def region(self, label: str) -> set[str]:
        """The blocks that a thread may run from the branch that ends a block to where it is over.

        It is over at the block's immediate post-dominator. If the branch ends a loop, the region
        contains the block itself.
        """
        stop = self.post_dominator[label]
        found: set[str] = set()
        todo = [t for t in self.follows[label] if t != stop]
        while todo:
            at = todo.pop()
            if at not in found:
                found.add(at)
                todo += [t for t in self.follows[at] if t != stop]
        return found

    @cached_property
    def dominators(self) -> dict[str, int]:
        """For each block the set of those on every way to it."""
        every = (1 << len(self.labels)) - 1
        found = dict.fromkeys(self.labels, every)
        found[self.labels[0]] = self.bit(self.labels[0])
        changed = True
        while changed:
            changed = False
            for label in self.labels[1:]:
                new = every
                for pred in self.preds[label]:
                    new &= found[pred]
                new |= self.bit(label)
                if new != found[label]:
                    found[label] = new
                    changed = True
        return found

    def bit(self, label: str) -> int:
        return 1 << self._number[label]

    def loop_of(self, header: str) -> set[str]:
        """The blocks of the natural loop with this header; none if it is no header."""
        latches = [p for p in self.preds[header] if self.dominators[p] & self.bit(header)]
        found = {header} if latches else set()
        todo = latches
        while todo:
            at = todo.pop()
            if at not in found:
                found.add(at)
                todo += self.preds[at]
        return found

    @cached_property
    def alive(self) -> dict[str, set[str]]:
        """The values that are alive where a block begins, its phis not included."""
        blocks = self.function.blocks
        defined, used = {}, {}
        for label, block in blocks.items():
            mine: set[str] = set()
            asked: set[str] = set()
            for inst in block.insts:
                if inst.op != "phi":
                    asked.update(n for n in inst.uses if n not in mine)
                if inst.name:
                    mine.add(inst.name)
            defined[label], used[label] = mine, asked
        asked_by_phis: dict[tuple[str, str], set[str]] = {}
        for label, block in blocks.items():
            for phi in block.phis:
                for value, pred in phi.incoming:
                    asked_by_phis.setdefault((pred, label), set()).add(value)
        alive = {label: set(used[label]) for label in blocks}
        targets = {label: self._every_target(label) for label in blocks}
        changed = True
        while changed:
            changed = False
            for label in reversed(list(blocks)):
                out: set[str] = set()
                for target in targets[label]:
                    out |= alive[target] - {p.name for p in blocks[target].phis if p.name}
                    out |= asked_by_phis.get((label, target), set())
                new = used[label] | (out - defined[label])
                if not new <= alive[label]:
                    alive[label] |= new
                    changed = True
        known = {i.name for b in blocks.values() for i in b.insts if i.name}
        return {label: names & known for label, names in alive.items()}

    def _every_target(self, label: str) -> list[str]:
        return targets_of(self.function.blocks[label].end)


def _in_order(first: str, follows: dict[str, list[str]]) -> list[str]:
    """What is reached from a block, in reverse post-order."""
    seen, order = {first}, []
    todo = [(first, iter(follows[first]))]
    while todo:
        label, rest = todo[-1]
        for target in rest:
            if target not in seen:
                seen.add(target)
                todo.append((target, iter(follows.get(target, ()))))
                break
        else:
            order.append(label)
            todo.pop()
    return order[::-1]
