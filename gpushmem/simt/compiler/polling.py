"""Find the loops in which a thread waits for another one by reading memory.

A GPU's threads all make progress, so CUDA programs wait with loops such as
`while flag[0] == 0: pass` or `while cuda.atomic.cas(lock, 0, 0, 1) != 0: pass`. Fibers take turns:
such loops must yield to the other threads. A loop polls if its end depends on memory at a place
that the loop does not change: an element of an array at an index that stays the same, an atomic
operation or one of an embedder's that `polls`, or a device function whose arguments stay the same.
A binary search also ends by what it reads, but reads another place each time.
"""

from __future__ import annotations

from typing import Any

from numba import cuda
from numba.cuda import types
from numba.cuda.core import ir
from numba.cuda.core.analysis import compute_cfg_from_blocks

from gpushmem.artifacts.kernel_name import KernelName

__all__ = ["polling_latches"]

ATOMICS = {v for k, v in vars(cuda.atomic).items() if isinstance(v, type) and k[0] != "_"}


def polling_latches(blocks: dict[int, Any], typemap: dict[str, Any]) -> set[int]:
    """The blocks from which a polling loop starts over."""
    cfg = compute_cfg_from_blocks(blocks)
    latches: set[int] = set()
    for loop in cfg.loops().values():
        if _Loop(blocks, loop.body, typemap).polls():
            ends = {b for b in loop.body if loop.header in dict(cfg.successors(b))}
            latches |= ends
    return latches


class _Loop:
    """The assignments of one loop."""

    def __init__(self, blocks: dict[int, Any], body: set[int], typemap: dict[str, Any]) -> None:
        self.blocks, self.body, self.typemap = blocks, body, typemap
        self.values: dict[str, list[Any]] = {}
        for label in body:
            for assign in blocks[label].find_insts(ir.Assign):
                self.values.setdefault(assign.target.name, []).append(assign.value)

    def polls(self) -> bool:
        """Whether a branch out of the loop depends on memory at an unchanging place."""
        todo = [
            term.cond.name
            for label in self.body
            if isinstance(term := self.blocks[label].terminator, ir.Branch)
            and not {term.truebr, term.falsebr} <= self.body
        ]
        seen: set[str] = set()
        while todo:
            name = todo.pop()
            if name in seen:
                continue
            seen.add(name)
            for value in self.values.get(name, []):
                if self._reads(value):
                    return True
                if isinstance(value, ir.Var):
                    todo.append(value.name)
                elif isinstance(value, ir.Expr):
                    todo.extend(v.name for v in value.list_vars())
        return False

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


PURE = {"getattr", "build_tuple", "cast", "unary", "binop", "exhaust_iter"}
