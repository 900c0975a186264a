"""Where variables are kept in a kernel whose threads run as loops between barriers.

Wherever a piece of the kernel begins (see `fission`), a variable that is alive there is one of

- *the block's*: proved to be the same for all threads. It is kept once.
- *the lane's*: proved to follow from the thread's index. It is computed again in each piece, so
  that the optimiser sees how it differs from one iteration of its loop to the next.
- *the thread's*: all others. They have a place per thread.

What a thread's variable points to has to live as long as the variable. Numba's code keeps local
arrays, the state of iterators and temporaries on the stack, and hands out their addresses. So the
stack memory of a statement is kept per thread too, unless it is proved that no address of it is
in a thread's variable: because of the types, which say what can hold an address (`addresses_in`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from numba import cuda
from numba.cuda import types
from numba.cuda.core import ir
from numba.cuda.core.analysis import compute_live_map, compute_use_defs
from numba.cuda.datamodel import models

from gpushmem.simt.base.native import twins
from gpushmem.simt.intrinsics.names import grid, gridsize

__all__ = ["Variables", "addresses_in"]

# --- what a value can point to

# Nothing; elements of arrays; memory that holds no addresses, as an iterator's count; any memory.
NOTHING, ELEMENTS, STATE, ANYTHING = range(4)
# Types whose values the code never reads.
NAMES = (
    types.Callable, types.Module, types.DTypeSpec, types.TypeRef, types.NoneType,
    types.EllipsisType, types.StringLiteral, types.Omitted,
)  # fmt: skip


def addresses_in(model: Any) -> int:
    """What addresses in a value point to, by the data model of its type."""
    if isinstance(model, models.ArrayModel):
        inner = addresses_in(model._dmm.lookup(model.fe_type.dtype))
        return ELEMENTS if inner in (NOTHING, STATE) else ANYTHING  # of numbers, or of records
    if isinstance(model, models.RecordModel):
        return STATE
    if isinstance(model, models.OpaqueModel):
        return NOTHING if isinstance(model.fe_type, NAMES) else ANYTHING
    if isinstance(model, models.PointerModel):
        return STATE if addresses_in(model._pointee_model) == NOTHING else ANYTHING
    if isinstance(model, models.StructModel):
        return max(map(addresses_in, model._models), default=NOTHING)
    if isinstance(model, models.UniTupleModel):
        return addresses_in(model._elem_model)
    return ANYTHING if "*" in str(model.get_value_type()) else NOTHING


# --- what a value depends on

BLOCK, LANE, HISTORY = range(3)  # the last: it changes, or reads memory
MAX_RECIPE = 50  # statements
PURE_CALLS = (twins[gridsize], range, cuda.shared.array, int, float, bool, abs, min, max)
NUMBERS = types.Number | types.Boolean


class Variables:
    """The variables of a kernel, given as Numba's blocks, that are alive where pieces begin."""

    def __init__(self, lower: Any, cfg: Any, starts: Iterable[int]) -> None:
        self.typemap: dict[str, Any] = lower.fndesc.typemap
        self._models = lower.context.data_model_manager
        blocks = lower.blocks
        use_defs = compute_use_defs(blocks)
        self.alive = compute_live_map(cfg, blocks, use_defs.usemap, use_defs.defmap)
        self._assigns: dict[str, list[ir.Assign]] = {}
        self._users: dict[str, list[Any]] = {}  # statements that mention a variable
        for stmt in (s for block in blocks.values() for s in block.body):
            if isinstance(stmt, ir.Assign):
                self._assigns.setdefault(stmt.target.name, []).append(stmt)
            for name in _names(stmt):
                self._users.setdefault(name, []).append(stmt)
        self._origins: dict[str, int] = {}
        crossing: set[str] = set().union(*(self.alive[s] for s in starts))
        lane = {name: self._recipe(name) for name in crossing if self._origin(name) == LANE}
        self.recipes = {name: recipe for name, recipe in lane.items() if recipe}
        changing = {name for name in crossing if self._origin(name) != BLOCK}
        self.per_thread = changing - self.recipes.keys()
        self.keeping = self._keeping()

    # --- stack memory

    def _keeping(self) -> set[int]:
        """The statements, by `id`, whose stack memory is kept per thread.

        An address gets into a variable by a statement that assigns to it, from the statement's own
        memory or from another variable. Where a variable leads to memory that can hold addresses,
        every statement that mentions the variable may put some there.
        """
        keeping: set[int] = set()
        reached: set[str] = set()
        todo = list(self.per_thread)
        while todo:
            name = todo.pop()
            holds = self._addresses(name)
            if name in reached or holds == NOTHING or self._origin(name) != HISTORY:
                continue
            reached.add(name)
            for stmt in (self._users if holds == ANYTHING else self._assigns).get(name, []):
                keeping.add(id(stmt))
                todo += _names(stmt)
        return keeping

    def _addresses(self, name: str) -> int:
        return addresses_in(self._models[self.typemap[name]])

    # --- origins

    def _origin(self, name: str, depth: int = 0) -> int:
        """What a variable depends on: BLOCK, LANE, or HISTORY."""
        if name not in self._origins:
            self._origins[name] = HISTORY  # if assigned more than once
            assigns = self._assigns.get(name, [])
            if len(assigns) == 1 and depth < MAX_RECIPE:
                value = assigns[0].value
                own = self._own_origin(value, name)
                operands = (self._origin(n, depth + 1) for n in _operands(value))
                self._origins[name] = max([own, *operands])
        return self._origins[name]

    def _own_origin(self, value: Any, target: str) -> int:
        """The dependence that an expression adds to those of its operands.

        Only those pass whose value is made of their operands' values, without memory of their own.
        """
        if isinstance(value, ir.Var | ir.Arg):
            return BLOCK
        if self._addresses(target) > ELEMENTS:
            return HISTORY
        if isinstance(value, ir.Const | ir.Global | ir.FreeVar):
            return BLOCK
        how = self._expressions.get(getattr(value, "op", ""))
        return HISTORY if how is None else how(self, value, self.typemap.get(target))

    def _of_call(self, value: Any, typ: Any) -> int:
        function = self.typemap.get(value.func.name)
        key = getattr(function, "typing_key", None)
        if key is twins[grid]:
            return LANE
        pure = key in PURE_CALLS or isinstance(function, types.NumberClass)
        return BLOCK if pure and self._only_values(value) else HISTORY

    def _of_attribute(self, value: Any, typ: Any) -> int:
        source = self.typemap.get(value.value.name)
        if isinstance(source, types.Module):
            return LANE if value.attr in ("threadIdx", "laneid") else BLOCK
        fixed = isinstance(source, types.Array | types.Dim3 | types.Complex)
        return BLOCK if fixed else HISTORY

    def _of_element(self, value: Any, typ: Any) -> int:
        source = self.typemap.get(value.value.name)
        return BLOCK if isinstance(source, types.BaseTuple) else HISTORY

    def _of_arithmetic(self, value: Any, typ: Any) -> int:
        return BLOCK if isinstance(typ, NUMBERS) and self._only_values(value) else HISTORY

    def _of_tuple(self, value: Any, typ: Any) -> int:
        return BLOCK

    _expressions = {
        "call": _of_call,
        "getattr": _of_attribute,
        "static_getitem": _of_element,
        "exhaust_iter": _of_element,
        "build_tuple": _of_tuple,
        **dict.fromkeys(("binop", "inplace_binop", "unary", "cast"), _of_arithmetic),
    }

    def _only_values(self, value: Any) -> bool:
        """Whether no operand points to memory that the expression could read."""
        return all(self._addresses(name) == NOTHING for name in _operands(value))

    def _recipe(self, name: str) -> list[ir.Assign]:
        """The statements that compute a variable from nothing, in order; none if too many."""
        steps: dict[str, ir.Assign] = {}

        def add(name: str) -> None:
            if name not in steps:
                (assign,) = self._assigns[name]
                for operand in _operands(assign.value):
                    add(operand)
                steps[name] = assign

        add(name)
        functions = (self.typemap[step] for step in steps)
        once = any(getattr(f, "typing_key", None) in (range, cuda.shared.array) for f in functions)
        return [] if once or len(steps) > MAX_RECIPE else list(steps.values())


def _operands(value: Any) -> list[str]:
    """The variables that the right side of an assignment names."""
    if isinstance(value, ir.Var):
        return [value.name]
    return [v.name for v in value.list_vars()] if isinstance(value, ir.Expr) else []


def _names(stmt: Any) -> list[str]:
    """The variables that a statement mentions, the one it assigns to included."""
    return [v.name for v in stmt.list_vars()]
