"""Errors of functions that have been inlined, told from what else they return.

Where a function returned, all its ways come together, and its status says which it was. An error
then leads to the next such place, and so on to the kernel's end. Here errors get a way of their
own: in the control flow, threads part for good there, and do not meet again.
"""

from __future__ import annotations

import re

from gpushmem.simt.blocks.text import Block, Inst, substituted, targets_of

__all__ = ["split_statuses"]

_branch = re.compile(r"^br i1 (%\S+), label (%\S+), label ([^\s,]+)")
_compare = re.compile(r" = icmp (eq|ne) i32 (%\S+), 0$")
MOST = 60  # blocks from an error on


def split_statuses(blocks: dict[str, Block]) -> None:
    """Give errors blocks of their own, wherever a status is asked for that is a phi."""
    changed = True
    while changed:
        changed = False
        bad = _bad_edges(blocks)
        for label in list(blocks):
            if not label.endswith(SUFFIX) and _split(blocks, label, bad):
                changed = True
                break


SUFFIX = ".bad"


def _error_of(block: Block) -> tuple[str, str] | None:
    """Of a block that asks for a status: the value, and where errors go."""
    found = _branch.match(block.end.text)
    asks = next((i for i in block.insts if found and i.name == found[1]), None)
    compares = _compare.search(asks.text) if asks is not None else None
    if found is None or compares is None:
        return None
    return compares[2], found[3] if compares[1] == "eq" else found[2]


def _bad_edges(blocks: dict[str, Block]) -> set[tuple[str, str]]:
    """The edges that only errors take."""
    preds: dict[str, list[str]] = {label: [] for label in blocks}
    for label, block in blocks.items():
        for target in targets_of(block.end):
            preds[target].append(label)
    bad = {
        (label, asked[1])
        for label, block in blocks.items()
        if (asked := _error_of(block)) is not None
    }
    todo = [target for _, target in bad]
    while todo:
        label = todo.pop()
        if preds[label] and all((p, label) in bad for p in preds[label]):
            for target in targets_of(blocks[label].end):
                if (label, target) not in bad:
                    bad.add((label, target))
                    todo.append(target)
    return bad


def _split(blocks: dict[str, Block], label: str, bad: set[tuple[str, str]]) -> bool:
    """Let errors that come to a block which asks for their status go round it."""
    block = blocks[label]
    asked = _error_of(block)
    status = next((p for p in block.phis if asked and p.name == asked[0]), None)
    if asked is None or status is None or len(block.phis) + 2 != len(block.insts):
        return False
    wrong = [
        (value, pred) for value, pred in status.incoming
        if (pred, label) in bad or re.fullmatch(r"[1-9]\d*|-1|-3", value)
    ]  # fmt: skip
    leaving = {pred for _, pred in wrong}
    error = asked[1]
    after = _from(blocks, error)
    names = {p.name for p in block.phis} - {status.name}
    used = {n for at in after for i in blocks[at].insts for n in i.uses}
    if not wrong or len(after) > MOST or used & names or label in after:
        return False
    if any(targets_of(blocks[pred].end) != [label] for pred in leaving):
        return False
    if any(pred in leaving for value, pred in status.incoming if (value, pred) not in wrong):
        return False
    other = _quoted(label, SUFFIX)
    while other in blocks:
        other = _quoted(other, SUFFIX)
    apart = Block(other)
    name = _fresh(blocks, status.name or "", SUFFIX)
    apart.insts = [
        _phi(name, wrong, apart),
        Inst(f"br label {error}", None, "void", "br", [], apart),
    ]
    blocks[other] = apart
    for pred in leaving:
        end = blocks[pred].end
        end.text = substituted(end.text, {label: other})
    for phi in block.phis:
        left = [(v, p) for v, p in phi.incoming if p not in leaving]
        kind = phi.text.split(" = phi ", 1)[1].split(" [ ")[0]
        phi.text = f"{phi.name} = phi {kind} " + ", ".join(f"[ {v}, {p} ]" for v, p in left)
        phi.uses = list(dict.fromkeys(v for v, _ in left if v.startswith("%")))
    if not status.incoming:  # nobody comes here but with errors
        _drop(blocks, label)
    _merge(blocks, error, after, status.name or "", [(label, status.name or ""), (other, name)])
    return True


def _merge(
    blocks: dict[str, Block], error: str, after: set[str], status: str,
    came: list[tuple[str, str]],
) -> None:  # fmt: skip
    """Let an error's block, and those after it, have the status from where it comes."""
    there = [(value, pred) for pred, value in came if pred in blocks]
    either = _fresh(blocks, status, ".any")
    block = blocks[error]
    for at in after:
        for inst in blocks[at].insts:
            if status in inst.uses:
                inst.text = substituted(inst.text, {status: either})
                inst.uses = [either if n == status else n for n in inst.uses]
    block.insts.insert(0, _phi(either, there, block))


def _drop(blocks: dict[str, Block], label: str) -> None:
    """Forget a block that nobody comes to, and what it gave to phis."""
    gone = blocks.pop(label)
    for target in targets_of(gone.end):
        for phi in blocks[target].phis:
            kind = phi.text.split(" = phi ", 1)[1].split(" [ ")[0]
            left = [(v, p) for v, p in phi.incoming if p != label]
            phi.text = f"{phi.name} = phi {kind} " + ", ".join(f"[ {v}, {p} ]" for v, p in left)
            phi.uses = list(dict.fromkeys(v for v, _ in left if v.startswith("%")))


def _phi(name: str, incoming: list[tuple[str, str]], block: Block) -> Inst:
    text = f"{name} = phi i32 " + ", ".join(f"[ {v}, {b} ]" for v, b in incoming)
    uses = list(dict.fromkeys(v for v, _ in incoming if v.startswith("%")))
    return Inst(text, name, "i32", "phi", uses, block)


def _from(blocks: dict[str, Block], label: str) -> set[str]:
    """The blocks from one on."""
    seen: set[str] = set()
    todo = [label]
    while todo and len(seen) <= MOST:
        at = todo.pop()
        if at not in seen:
            seen.add(at)
            todo += targets_of(blocks[at].end)
    return seen


def _fresh(blocks: dict[str, Block], name: str, suffix: str) -> str:
    known = {i.name for b in blocks.values() for i in b.insts}
    name = _quoted(name, suffix)
    while name in known:
        name = _quoted(name, suffix)
    return name


def _quoted(name: str, suffix: str) -> str:
    return f'{name[:-1]}{suffix}"' if name.endswith('"') else name + suffix
