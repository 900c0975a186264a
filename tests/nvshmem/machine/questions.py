"""What is asked of a kernel's code: of all its paths, through the functions that it calls.

A path has a state, which instructions change; `walk` finds all states in which each instruction can
be met. Nothing is known of conditions: a path counts even if it is never taken.
"""

import re

from tests.nvshmem.machine.reader import ATOMIC, CALL, END, FENCE, LOAD, STORE, SYS

# Functions of paths over a network, which are not asked about: NVSHMEM's own code orders those.
NETWORK = re.compile(r"nvshmemi_transfer_(?!syncapi_update_mem)")


def walk(functions, entry, start, step):
    """All (instruction, state before it) of paths from `entry`; and the states at the ends.

    The instructions are in the order of the code, those of `entry` first.
    """
    ends, met = {}, {}

    def visit(name, state):
        if (name, state) in ends:  # also while it is being visited: recursion adds nothing
            return ends[name, state]
        found = ends[name, state] = set()
        function, todo, seen = functions[name], [(0, state)], set()
        while todo:
            at, now = todo.pop()
            if (at, now) in seen:
                continue
            seen.add((at, now))
            instruction = function.code[at]
            met[name, at, now] = instruction
            called = instruction.to[0] if instruction.kind == CALL and instruction.to else ""
            if NETWORK.search(called):
                continue
            after = visit(called, now) if called in functions else {step(instruction, now)}
            if instruction.kind == END:
                found |= after
            if instruction.kind != END or instruction.falls:
                todo += [(n, s) for n in function.next[at] for s in after]
        return found

    last = visit(entry, start)
    order = sorted(met.items(), key=lambda item: (item[0][0] != entry, item[0][:2]))
    return [(instruction, state) for (_, _, state), instruction in order], last


def is_plain(instruction, kind):
    """A load or store that others may not see, or which may see what is old."""
    return instruction.kind == kind and instruction.space == "global" and not instruction.strong


def hears(instruction, width=None):
    """It reads what other PEs write."""
    strong = instruction.space == "global" and instruction.strong and instruction.scope == SYS
    return strong and instruction.kind in (LOAD, ATOMIC) and width in (None, instruction.width)


def tells(instruction, width=None):
    """It writes what other PEs read."""
    strong = instruction.space == "global" and instruction.strong and instruction.scope == SYS
    return strong and instruction.kind in (STORE, ATOMIC) and width in (None, instruction.width)


# --- questions

NOTHING, DIRTY, FENCED = "nothing", "dirty", "fenced"


def is_fenced(functions, entry):
    """Whether all paths have a fence of the system."""

    def step(instruction, state):
        return FENCED if instruction.kind == FENCE and instruction.scope == SYS else state

    return walk(functions, entry, NOTHING, step)[1] == {FENCED}


def heard(functions, entry):
    """How paths end: without having heard, DIRTY with loads that may be old, or FENCED."""

    def step(instruction, state):
        if hears(instruction):
            return FENCED if instruction.acquires else DIRTY
        return FENCED if instruction.acquires and state == DIRTY else state

    return walk(functions, entry, NOTHING, step)[1]


def told(functions, entry, start=DIRTY):
    """How other PEs are told: DIRTY, if stores before that may not be visible, or FENCED."""

    def step(instruction, state):
        if is_plain(instruction, STORE):
            return DIRTY
        fence = instruction.releases and instruction.scope == SYS
        return FENCED if fence and state == DIRTY else state

    met, _ = walk(functions, entry, start, step)
    return {FENCED if i.releases else state for i, state in met if tells(i)}


def comes_again(function, at, without=()):
    """Whether an instruction can follow itself, without certain others in between."""
    todo, seen = list(function.next[at]), set(without)
    while todo:
        now = todo.pop()
        if now == at:
            return True
        if now not in seen:
            seen.add(now)
            todo += function.next[now]
    return False


def reached(function):
    """The numbers of the instructions on paths from the first."""
    todo, seen = [0], set()
    while todo:
        at = todo.pop()
        if at not in seen:
            seen.add(at)
            todo += function.next[at]
    return seen


def is_polled(function, width):
    """Whether a loop of the function hears words of a width."""
    return any(
        hears(function.code[at], width) and comes_again(function, at) for at in reached(function)
    )


def is_deaf(function, width):
    """Whether a loop goes round without hearing, and without calling a function."""
    code = {at: function.code[at] for at in reached(function)}
    asks = {at for at, i in code.items() if hears(i, width) or i.kind in (ATOMIC, CALL)}
    heads = {n for at in code for n in function.next[at] if n <= at} - asks
    return any(comes_again(function, at, asks) for at in heads)


def accesses(functions, entry):
    """The accesses to memory of other PEs or of the user, as (kind, width, strong, scope)."""
    met, _ = walk(functions, entry, NOTHING, lambda instruction, state: state)
    return {
        (i.kind, i.width, i.strong, i.scope) for i, _ in met
        if i.space == "global" and i.kind in (LOAD, STORE, ATOMIC)
    }  # fmt: skip
