"""What depends on a branch's condition is computed behind the branch.

LLVM turns `if there is another turn: take it` of range loops into `select`s in front of the branch
that then leaves the loop or not. Behind it they are their first or second value, and the loop's
variable grows by its step again, as `strided` wants to see it.
"""

from __future__ import annotations

import re

from gpushmem.simt.blocks.analysis import is_pure
from gpushmem.simt.blocks.code import Function
from gpushmem.simt.blocks.text import Block, Inst, targets_of

__all__ = ["sink"]

_branch = re.compile(r"br i1 (%\S+), label (\S+), label (\S+)$")


def sink(function: Function) -> None:
    """Move instructions behind branches whose first way alone needs them."""
    users: dict[str, list[Inst]] = {}
    for block in function:
        for inst in block.insts:
            for name in inst.uses:
                users.setdefault(name, []).append(inst)
    meaning: dict[str, str] = {}
    for block in list(function):
        found = _branch.match(block.end.text)
        if found is None or found[2] == found[3] or found[2] not in function.blocks:
            continue
        chosen = _chosen(block, found[1])
        if not chosen or not any(inst.op == "select" for inst in chosen):
            continue
        behind = _behind(function, block, found[2])
        moved = _movable(chosen, users, behind)
        if moved:
            _move(moved, block, function.blocks[found[2]], meaning, found[1])
    function.rename(meaning)


def _chosen(block: Block, condition: str) -> list[Inst]:
    """What a block computes from a condition."""
    found: list[Inst] = []
    names = {condition}
    for inst in block.body:
        if inst.name != condition and is_pure(inst) and names.intersection(inst.uses):
            found.append(inst)
            names.add(inst.name or "")
    return found


def _behind(function: Function, block: Block, target: str) -> set[str]:
    """The labels that are reached only through the edge from a block to one of its targets."""
    seen, todo = {function.entry}, [function.entry]
    while todo:
        label = todo.pop()
        for following in targets_of(function.blocks[label].end):
            if following not in seen and (label, following) != (block.label, target):
                seen.add(following)
                todo.append(following)
    return function.blocks.keys() - seen


def _movable(chosen: list[Inst], users: dict[str, list[Inst]], behind: set[str]) -> list[Inst]:
    """Those of which all users are behind the branch, or move there, too."""
    moved = list(chosen)
    while True:
        kept = [inst for inst in moved if all(
            user in moved or _is_behind(user, inst.name or "", behind)
            for user in users.get(inst.name or "", [])
        )]  # fmt: skip
        if kept == moved:
            return moved
        moved = kept


def _is_behind(user: Inst, name: str, behind: set[str]) -> bool:
    if user.op == "phi":
        return all(pred in behind for value, pred in user.incoming if value == name)
    return user.block.label in behind


def _move(
    moved: list[Inst], block: Block, target: Block, meaning: dict[str, str], condition: str
) -> None:
    """Move instructions to the beginning of a block that is entered where the condition holds."""
    block.insts = [inst for inst in block.insts if inst not in moved]
    left = []
    for inst in moved:
        known = _known(inst, condition)
        if known is None:
            left.append(inst)
        else:
            meaning[inst.name or ""] = meaning.get(known, known)
    for inst in left:
        inst.block = target
    target.insts[len(target.phis) : len(target.phis)] = left


def _known(inst: Inst, condition: str) -> str | None:
    """What an instruction computes where the condition is true, if that is a value already."""
    select = re.search(rf" = select i1 {re.escape(condition)}, \S+ ([^,]+), \S+ [^,]+$", inst.text)
    if select:
        return select[1]
    number = re.search(rf" = (sext|zext(?: nneg)?) i1 {re.escape(condition)} to i\d+$", inst.text)
    if number:
        return "-1" if number[1] == "sext" else "1"
    return None
