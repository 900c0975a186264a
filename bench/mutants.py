"""Mutants of a function that has been translated from a bitcode library, in LLVM's text.

A site is the line of a fence, or of one that publishes: a volatile, relaxed or releasing store of
one word, or an atomic operation of PTX. The words of requests to the proxy are none: each has a bit
that says that it is written, so they may be written in any order.

A store is moved before its data: upwards in its block and those that dominate it, with the
arithmetic and the loads that it needs, until a fence and an access that writes, or a call of a
function, lie between; a branch that it then precedes no longer decides about it. Of a loop it takes
the first round's values. Behind all else that it needs it stays, as far up as there is a fence or
an access that writes in between.
"""

import re
from itertools import count

from gpushmem.backends.nvshmem_cpu.layout import STATE
from gpushmem.native.structs import offset

RING = f"%simt.of.nvshmemi_device_state_d.{offset(STATE, 'proxy_channels_buf')}"
LEAF = r'call \S+ @"simt\.leaf '
FENCE = re.compile(LEAF + r"(?:llvm\.nvvm\.membar|fence)")
STORE = re.compile(
    LEAF + r"(?:volatile store|llvm\.nvvm\.atomic|atom\.|"
    r"st\.(?:volatile|relaxed|release)(?!\S*\.v[24]))"
)
WRITES = re.compile(
    LEAF + r"(?:volatile store|store|rmw |cas|atom\.|st\.)|call [^@]*@(?!\"simt|llvm)"
)
DEFINES = re.compile(r"\s*(%[\w.$-]+) = (.*)")
PURE = re.compile(
    r"(?:getelementptr|ptrtoint|inttoptr|bitcast|add|sub|mul|[us]div|[us]rem|and|or|xor|shl|lshr|"
    r"ashr|zext|sext|trunc|select|icmp) |load .*!invariant\.load|"
    r"(?:tail )?call [^@]*@(?:llvm\.[us](?:min|max)|\"simt\.leaf (?:volatile )?load)"
)
PHI = re.compile(r"(.* = )phi (\S+) ")
ENDS = re.compile(r"\s*(?:br|switch|ret|unreachable)\b")
INCOMING = re.compile(r"\[ ([^,]+), %([\w.$-]+) \]")
LABEL = re.compile(r"\s*([\w.$-]+):")
NUMBER = re.compile(r'"[^"]*"|%(\d+)')
VALUE = re.compile(r'"[^"]*"|(%[\w.$-]+)')


def sites(text):
    """(line, "fence" or "store", number among those) of each site."""
    found, inner, numbers = [], {}, {"fence": count(), "store": count()}
    for k, line in enumerate(text.splitlines()):
        if line.startswith("define "):
            inner = {}
        defines = DEFINES.match(line)
        if defines is not None:
            inner[defines[1]] = RING in line or any(map(inner.get, VALUE.findall(defines[2])))
        if FENCE.search(line):
            found.append((k, "fence", next(numbers["fence"])))
        elif STORE.search(line) and not inner.get(_pointer(line)):
            found.append((k, "store", next(numbers["store"])))
    return found


def _pointer(line):
    """What a call of a leaf takes first."""
    return VALUE.findall(line.partition("%simt.site")[2])[0]


def marked(text, address):
    """The text, in which each site sets its byte when it is executed: the bytes begin there."""
    lines = text.splitlines()
    for number, (at, *_) in reversed([*enumerate(sites(text))]):
        lines.insert(at, f"  store volatile i8 1, ptr inttoptr (i64 {address + number} to ptr)")
    return "\n".join(lines)


def mutant(text, kind, number):
    """The text without a fence, or with a store moved; None if it cannot be moved."""
    lines = text.splitlines()
    at = [at for at, which, _ in sites(text) if which == kind][number]
    if kind == "fence":
        del lines[at]
        return "\n".join(lines)
    first = max(k for k in range(at) if lines[k].startswith("define "))
    last = lines.index("}", at)
    body = [NUMBER.sub(lambda m: f"%v{m[1]}" if m[1] else m[0], s) for s in lines[first:last]]
    body = [re.sub(r"^\s*(\d+):", r"v\1:", line) for line in body]
    unnamed = re.findall(r"%v\d+", body[0])
    body.insert(1, f"v{len(unnamed)}:")
    body = _moved(body, at - first + 1)
    return body and "\n".join([*lines[:first], *body, *lines[last:]])


def _moved(body, at):
    """The lines of a function in which the store at this line has been moved up."""
    to, needed = _place(body, at)
    if to is None:
        return None
    names = {DEFINES.match(line)[1] for line in needed}

    def renamed(line):
        return VALUE.sub(lambda m: f"%m.{m[1][1:]}" if m[1] in names else m[0], line)

    result = DEFINES.match(body[at])
    lines = [renamed(line) for line in reversed(needed)]
    if result is None:
        body[at : at + 1], lines = [], [*lines, renamed(body[at])]
    else:
        lines.append(f"  %m.result = {renamed(result[2])}")
        kind = result[2].split()[1]
        body[at] = f"  {result[1]} = bitcast {kind} %m.result to {kind}"
    body[to:to] = lines
    return body


def _place(body, at):
    """Before which line a store goes, and the lines of arithmetic, last first, that go there."""
    wanted, needed = {*VALUE.findall(body[at].partition(" = ")[2] or body[at])}, []
    best, passed = (None, []), set()
    for to, lines in _upwards(body, at):
        for line in lines:
            defines = DEFINES.match(line)
            if defines is not None and defines[1] in wanted:
                if not PURE.match(defines[2]):
                    return best
                needed.append(line)
                wanted.discard(defines[1])
                wanted.update(VALUE.findall(defines[2]))
        here = {pattern for pattern in (FENCE, WRITES) if any(map(pattern.search, lines))}
        passed |= here
        if here and (best[0] is None or len(passed) == 2):
            best = to, [*needed]
        if len(passed) == 2:
            break
    return best


def _upwards(body, at):
    """The lines before which a store may go, nearest first, and those that it passes by that."""
    blocks, chain, before, dominates = _blocks(body, at)
    lower, end = None, at
    for block in chain:
        start = blocks[block][0]
        if lower is not None:
            between, todo = set(), [lower]
            while todo:
                new = before[todo.pop()] - between - {block, lower}
                between |= new
                todo.extend(new)
            end = max(k for k in range(*blocks[block]) if ENDS.match(body[k]))
            yield end, [body[k] for name in between for k in range(*blocks[name]) if k != at]
        for k in reversed(range(start + 1, end)):
            yield k, [_first_round(body[k], lambda name, to=block: dominates(to, name))]
        lower = block


def _first_round(line, again):
    """The line; a loop's variable as it begins."""
    phi = PHI.match(line)
    values = [value for value, name in INCOMING.findall(line) if not again(name)] if phi else []
    if len(values) != 1:
        return line
    return f"{phi[1]}select i1 true, {phi[2]} {values[0]}, {phi[2]} {values[0]}"


def _blocks(body, at):
    """Where each block is, those that dominate the line's, nearest first, and what precedes each;

    and a function: whether one block dominates another.
    """
    heads = [k for k in range(1, len(body)) if LABEL.match(body[k])]
    names = [LABEL.match(body[k])[1] for k in heads]
    blocks = dict(zip(names, zip(heads, [*heads[1:], len(body)], strict=True), strict=True))
    before = {name: set() for name in names}
    for name, (start, end) in blocks.items():
        for line in body[start:end]:
            for target in re.findall(r"label %([\w.$-]+)", line):
                before[target].add(name)
    bits = {name: 1 << k for k, name in enumerate(names)}
    everything = (1 << len(names)) - 1
    dominators = dict.fromkeys(names, everything) | {names[0]: 1}
    changed = True
    while changed:
        changed = False
        for name in names[1:]:
            found = everything
            for other in before[name]:
                found &= dominators[other]
            found |= bits[name]
            changed = changed or found != dominators[name]
            dominators[name] = found
    (own,) = (name for name, (start, end) in blocks.items() if start < at < end)
    chain = [name for name in names if dominators[own] & bits[name]]
    chain.sort(key=lambda name: -dominators[name].bit_count())
    return blocks, chain, before, lambda one, other: bool(dominators[other] & bits[one])
