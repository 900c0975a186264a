"""Blocks of code that lead to errors, where one thread runs into them."""

from __future__ import annotations

from typing import Any

from gpushmem.simt.blocks.emit import takes_thread
from gpushmem.simt.blocks.text import Inst, substituted, targets_of

__all__ = ["Errors"]


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
