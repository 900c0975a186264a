"""The innermost loops of a kernel: what they load and store, and how many loads are in flight.

A loop is what lies between a branch back and its target; its code is taken to run as it is printed.
An instruction that reads a register waits for the load that writes it, so loads are in flight
together up to the first that uses one of them.
"""

import re
from math import gcd
from typing import NamedTuple

from tests.nvshmem.machine.reader import FENCE, LOAD, STORE, SYS

PACK = 16  # bytes that a thread loads or stores at once, at most
REGISTER = re.compile(r"\bR(\d+)\b")


class Loop(NamedTuple):
    """Accesses to global memory in one trip: their bytes, in order; `in_flight`: bytes, at most.

    `fills`: whether it stores to shared memory, too; `shuffles`: whether lanes of a warp exchange
    registers; `length`: how many instructions it has.
    """

    loads: tuple[int, ...]
    stores: tuple[int, ...]
    in_flight: int
    fills: bool
    shuffles: bool
    length: int

    @property
    def is_wide(self):
        """Whether it moves packs of 16 bytes."""
        return PACK in self.loads + self.stores

    @property
    def is_narrow(self):
        """Whether it moves single elements of 16 bits, or of 8."""
        return bool(self.loads or self.stores) and max(self.loads + self.stores) <= 2

    @property
    def is_mixed(self):
        """Whether it moves packs, and single elements beside them."""
        return self.is_wide and min(self.loads + self.stores) <= 2

    @property
    def shape(self):
        """Loads and stores as the smallest numbers in proportion: a copy is 1, 1, a sum 2, 1."""
        n = gcd(len(self.loads), len(self.stores)) or 1
        return len(self.loads) // n, len(self.stores) // n


def innermost(function):
    """The loops of a function that have no loop inside, in the order of the code.

    And those that move packs, if no loop inside does.
    """
    back = (
        (min(after), at) for at, after in enumerate(function.next) if after and min(after) <= at
    )
    found = {(first, last): _loop(function.code[first : last + 1]) for first, last in back}
    packs = {at: loop for at, loop in found.items() if loop.is_wide}
    return [
        found[at] for at in sorted(found)
        if not any(_is_inside(other, at) for other in (packs if at in packs else found))
    ]  # fmt: skip


def _is_inside(one, other):
    return one != other and other[0] <= one[0] and one[1] <= other[1]


def _loop(code):
    widths = (tuple(i.width for i in code if _is_global(i, kind)) for kind in (LOAD, STORE))
    fills = any(i.kind == STORE and i.space == "shared" for i in code)
    shuffles = any(i.opcode.startswith("SHFL") for i in code)
    return Loop(*widths, in_flight(code), fills, shuffles, len(code))


def _is_global(instruction, kind):
    return instruction.kind == kind and instruction.space == "global"


def in_flight(code):
    """The most bytes that loads from global memory have under way at once in straight code."""
    under_way, most = {}, 0  # by the first register that a load writes: its bytes
    for instruction in code:
        loads = _is_global(instruction, LOAD)
        target, _, rest = instruction.words.partition(",")
        if loads and target.startswith("P"):  # of a load that writes a predicate, too
            target, _, rest = rest.partition(",")
        read = {int(n) for n in REGISTER.findall(rest if loads else instruction.words)}
        for first, width in list(under_way.items()):
            if not read.isdisjoint(range(first, first + max(1, width // 4))):
                del under_way[first]
        written = REGISTER.search(target)
        if loads and written:
            under_way[int(written[1])] = instruction.width
        most = max(most, sum(under_way.values()))
    return most


def lonely(found):
    """The narrow loops that have no wide one of the same shape, whose ends they could be."""
    wide = {loop.shape for loop in found if loop.is_wide}
    return [loop for loop in found if loop.is_narrow and loop.shape not in wide]


def fences(function):
    """How many fences of the system there are."""
    return sum(i.kind == FENCE and i.scope == SYS for i in function.code)
