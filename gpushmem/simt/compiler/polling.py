"""Find the loops in which a thread waits for another one by reading memory.

A GPU's threads all make progress, so CUDA programs wait with loops such as
`while flag[0] == 0: pass` or `while cuda.atomic.cas(lock, 0, 0, 1) != 0: pass`. Fibers take turns:
such loops must yield to the other threads. A loop polls if its end depends on memory at a place
that the loop does not change: an element of an array at an index that stays the same, an atomic
operation or one of an embedder's that `polls`, or a device function whose arguments stay the same.
A binary search also ends by what it reads, but reads another place each time. A loop that counts up
to a number in memory does not wait either: a comparison with what counts is passed over. And where
such a comparison ends the loop in any case, a sum of what it reads is just a sum.
"""

from __future__ import annotations

import operator
from functools import cached_property
from typing import Any

from numba import cuda
from numba.cuda import types
from numba.cuda.core import ir
from numba.cuda.core.analysis import compute_cfg_from_blocks

from gpushmem.artifacts.compile_time_name import KernelName

__all__ = ["polling_latches"]

ATOMICS = {v for k, v in vars(cuda.atomic).items() if isinstance(v, type) and k[0] != "_"}


def polling_latches(blocks: dict[int, Any], typemap: dict[str, Any]) -> set[int]:
    """The blocks from which a polling loop starts over."""
    cfg = compute_cfg_from_blocks(blocks)
    latches: set[int] = set()
    for loop in cfg.loops().values():
        ends = {b for b in loop.body if loop.header in dict(cfg.successors(b))}
        always = set.intersection(*(cfg.dominators()[b] for b in ends))
        if _Loop(blocks, loop.body, typemap, always).polls():
            latches |= ends
    return latches


class _Loop:
    """The assignments of one loop. It has passed the blocks `always` when it starts over."""

    def __init__(
        self, blocks: dict[int, Any], body: set[int], typemap: dict[str, Any], always: set[int]
    ) -> None:
        self.typemap = typemap
        self.values: dict[str, list[Any]] = {}
        for label in body:
            for assign in blocks[label].find_insts(ir.Assign):
                self.values.setdefault(assign.target.name, []).append(assign.value)
        ends = {
            label: term.cond.name
            for label in body
            if isinstance(term := blocks[label].terminator, ir.Branch)
            and not {term.truebr, term.falsebr} <= body
            and term.cond.name in self.values
        }
        self.conditions = ends.values()
        self.behind: dict[str, set[str]] = {}
        self.in_any_case = [ends[label] for label in always & ends.keys()]

    def polls(self) -> bool:
        """Whether a branch out of the loop depends on memory at an unchanging place."""
        return any(self._waits_for(name) for name in self.conditions)

    def _waits_for(self, condition: str) -> bool:
        todo, seen = [condition], set[str]()
        while todo:
            name = todo.pop()
            if name in seen or (self.is_bounded and self._goes_round(name)):
                continue
            seen.add(name)
            for value in self.values[name]:
                if self._reads(value):
                    return True
                if not self._counts(value):
                    todo += [used for used in _used(value) if used in self.values]
        return False

    @cached_property
    def is_bounded(self) -> bool:
        """Whether it ends, whatever others write, since it counts."""
        values = (v for name in self.in_any_case for n in [name, *self._behind(name)]
                  for v in self.values[n])  # fmt: skip
        return any(map(self._counts, values))

    def _counts(self, value: Any) -> bool:
        """Whether it is a comparison with what grows by itself, from turn to turn."""
        if not (isinstance(value, ir.Expr) and value.op == "binop" and value.fn in COMPARISONS):
            return False
        own = [name for name in _used(value) if name in self.values]
        behind = {name for used in own for name in (used, *self._behind(used))}
        return any(self._goes_round(name) and self._is_pure(name) for name in behind)

    def _goes_round(self, name: str) -> bool:
        """Whether a turn of the loop computes the variable from what it was before."""
        is_phi = any(isinstance(v, ir.Var) for v in self.values[name])  # or a copy
        return is_phi and name in self._behind(name)

    def _is_pure(self, name: str) -> bool:
        values = (v for each in self._behind(name) for v in self.values[each])
        return not any(isinstance(v, ir.Expr) and self._uses_memory(v) for v in values)

    def _uses_memory(self, value: Any) -> bool:
        if value.op != "call":
            return value.op not in COUNTING
        is_ours = isinstance(self.typemap.get(value.func.name), KernelName)
        arrays = (isinstance(self.typemap.get(a.name), types.Array) for a in value.args)
        return is_ours or any(arrays)

    def _behind(self, name: str) -> set[str]:
        """The variables of the loop that a variable is computed from."""
        if name in self.behind:
            return self.behind[name]
        found = self.behind[name] = set()
        todo = [name]
        while todo:
            for value in self.values.get(todo.pop(), []):
                new = {v for v in _used(value) if v in self.values} - found
                found |= new
                todo += new
        return found

    def _reads(self, value: Any) -> bool:
        if not isinstance(value, ir.Expr):
            return False
        if value.op in ("getitem", "static_getitem"):
            typ = self.typemap.get(value.value.name)
            return isinstance(typ, types.Array | types.CPointer) and all(
                self._unchanging(v.name) for v in value.list_vars()
            )
        if value.op == "call":
            function = self.typemap.get(value.func.name)
            if isinstance(function, types.Function):
                return function.typing_key in ATOMICS
            if isinstance(function, KernelName):
                return function.polls
            if isinstance(function, types.Dispatcher):
                arrays = [isinstance(self.typemap.get(a.name), types.Array) for a in value.args]
                return any(arrays) and all(self._unchanging(a.name) for a in value.args)
        return False

    def _unchanging(self, name: str, depth: int = 0) -> bool:
        """Whether a variable has the same value in every turn of the loop."""
        if depth > 20:
            return False
        return all(self._constant(value, depth) for value in self.values.get(name, []))

    def _constant(self, value: Any, depth: int) -> bool:
        if isinstance(value, ir.Const | ir.Global | ir.FreeVar | ir.Arg):
            return True
        if isinstance(value, ir.Var):
            return self._unchanging(value.name, depth + 1)
        if isinstance(value, ir.Expr) and value.op in PURE:
            return all(self._unchanging(v.name, depth + 1) for v in value.list_vars())
        return False


def _used(value: Any) -> list[str]:
    """The variables in a value."""
    if isinstance(value, ir.Var):
        return [value.name]
    return [v.name for v in value.list_vars()] if isinstance(value, ir.Expr) else []


PURE = {"getattr", "build_tuple", "cast", "unary", "binop", "exhaust_iter"}
COUNTING = PURE | {"inplace_binop"}
COMPARISONS = {operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne}
