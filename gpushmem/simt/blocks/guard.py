"""`if t < n:`, `if t == 0:`, `if cuda.grid(1) < n:`: only those threads need a turn of the loop.

What is compared is the thread's index, or a sum of it and what is the same for all (which does not
overflow, or the optimiser would not have said so).
"""

from __future__ import annotations

import re
from typing import Any

from gpushmem.simt.blocks.analysis import is_pure
from gpushmem.simt.blocks.group import Group, Node, Turns
from gpushmem.simt.blocks.text import EXIT, Inst, targets_of

__all__ = ["guarded"]

_icmp = re.compile(r" = icmp (?:samesign )?(\w+) (i32|i64) ([^,\s]+), (\S+)$")
_branch = re.compile(r"br i1 (%\S+), label (\S+), label (\S+)$")
SWAPPED = {"slt": "sgt", "sgt": "slt", "sle": "sge", "sge": "sle"}
SWAPPED |= {"u" + k[1:]: "u" + v[1:] for k, v in SWAPPED.items()} | {"eq": "eq", "ne": "ne"}
NEGATED = {"slt": "sge", "sge": "slt", "sgt": "sle", "sle": "sgt"}
NEGATED |= {"u" + k[1:]: "u" + v[1:] for k, v in NEGATED.items()} | {"eq": "ne", "ne": "eq"}


def guarded(to: Any, group: Group) -> Turns | None:
    """The threads of a row that have something to do in a group; or None: all.

    Writes code that computes them, and lets the node know how its branch goes for these.
    """
    if len(group.nodes) != 1 or group.assigns:
        return None
    node = group.nodes[0]
    condition = _condition(to, node)
    if condition is None or node.end is None:
        return None
    node.known = {
        node.end.uses[0]: "false" if _skips(to, node, targets_of(node.end)[0]) else "true"
    }
    return _bounds(to, *condition)


def _condition(to: Any, node: Node) -> tuple[str, str, str, str] | None:
    """Predicate, type, what is added to x and what that is compared with.

    If a node does nothing but where this holds.
    """
    if node.end is None or (node.stop != EXIT and to.blocks[node.stop].phis):
        return None
    members = {id(inst) for inst in [*node.insts, node.end]}
    members |= {id(i) for label in node.region for i in to.blocks[label].insts}
    for inst in node.insts:
        lasts = inst.name not in to.analysis.recipes and any(
            id(user) not in members for user in to.users(inst)
        )
        if lasts or not (is_pure(inst) or inst.name in to.analysis.lane_loads):
            return None
    found = _branch.match(node.end.text)
    if found is None or found[1] not in to.analysis.defs:
        return None
    compared = _icmp.search(to.analysis.defs[found[1]].text)
    ways = [_skips(to, node, target) for target in targets_of(node.end)]
    if compared is None or ways not in ([False, True], [True, False]):
        return None
    predicate, kind, left, right = compared.groups()
    if to.is_uniform(left):
        predicate, left, right = SWAPPED[predicate], right, left
    added = _added(to, left, predicate)
    if added is None or not to.is_uniform(right):
        return None
    if ways[0]:
        predicate = NEGATED[predicate]
    if predicate == "ne" or (added != "0" and predicate in ("ule", "ugt")):
        return None
    return predicate, kind, added, right


def _skips(to: Any, node: Node, target: str) -> bool:
    """Whether nothing is done on the way from there to where the region ends."""
    if target == node.stop:
        return True
    block = to.blocks[target]
    return target in node.region and len(block.insts) == 1 and block.follows == [node.stop]


def _is_x(to: Any, name: str) -> bool:
    """Whether a value is the thread's index on the first axis."""
    inst: Inst | None = to.analysis.defs.get(name)
    if inst is not None and inst.op in ("zext", "sext"):
        name = inst.uses[0]
    return bool(to.analysis.lane_loads.get(name) == 0)


def _added(to: Any, name: str, predicate: str) -> str | None:
    """What is added to x, if a value is x and perhaps something that is the same for all."""
    if _is_x(to, name):
        return "0"
    inst: Inst | None = to.analysis.defs.get(name)
    exact = "nuw" if predicate[0] == "u" else "nsw"
    if inst is None or inst.op != "add" or exact not in inst.text or len(inst.uses) != 2:
        return None
    left, right = inst.uses
    if to.is_uniform(left):
        left, right = right, left
    return right if _is_x(to, left) and to.is_uniform(right) else None


def _bounds(to: Any, predicate: str, kind: str, added: str, value: str) -> Turns:
    bx, signed = to.extents[0], predicate[0] != "u"
    limit, less = _wide(to, value, kind, signed), _wide(to, added, kind, signed)
    if added != "0":
        rest = to.fresh("n")
        if predicate == "eq":
            to.put(f"{rest} = sub i64 {limit}, {less}")
        else:
            sort = "ssub" if signed else "usub"
            to.put(f"{rest} = call i64 @llvm.{sort}.sat.i64(i64 {limit}, i64 {less})")
        limit = rest
    if predicate == "eq":
        inside, after = to.fresh("c"), to.fresh("n")
        to.put(f"{inside} = icmp ult i64 {limit}, {bx}")
        to.put(f"{after} = add i64 {limit}, 1")
        return Turns(limit, _select(to, inside, after, limit), single=True)
    if predicate in ("sle", "ule", "sgt", "ugt"):  # one more, if there is no overflow
        more, last = to.fresh("n"), to.fresh("n")
        to.put(f"{last} = sub nsw i64 {bx}, 1")
        limit = _clamped(to, limit, "-1" if signed else "0", last, signed)
        to.put(f"{more} = add nsw i64 {limit}, 1")
        limit = more
    else:
        limit = _clamped(to, limit, "0", bx, signed)
    return Turns("0", limit) if predicate[1] == "l" else Turns(limit, bx)


def _wide(to: Any, value: str, kind: str, signed: bool) -> str:
    value = to.operand(value)
    if kind == "i64":
        return value
    wide = to.fresh("wide")
    to.put(f"{wide} = {'sext' if signed else 'zext'} i32 {value} to i64")
    return str(wide)


def _clamped(to: Any, value: str, least: str, most: str, signed: bool) -> str:
    """`value`, but at least and at most these; an unsigned one is not less than 0."""
    high = to.fresh("c")
    to.put(f"{high} = icmp {'sgt' if signed else 'ugt'} i64 {value}, {most}")
    value = _select(to, high, most, value)
    if signed:
        low = to.fresh("c")
        to.put(f"{low} = icmp slt i64 {value}, {least}")
        value = _select(to, low, least, value)
    return value


def _select(to: Any, condition: str, first: str, second: str) -> str:
    chosen = to.fresh("n")
    to.put(f"{chosen} = select i1 {condition}, i64 {first}, i64 {second}")
    return str(chosen)
