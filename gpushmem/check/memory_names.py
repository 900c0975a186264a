"""What memory is called in reports: elements of arrays, by their variables."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gpushmem.check.accesses import Access
from gpushmem.check.history import History
from gpushmem.check.log import BLOCK_BITS

__all__ = [
    "named",
    "named_memory",
    "of",
    "of_array",
    "of_block",
    "of_device",
    "of_heap",
    "of_tensor",
]


def of_array(array: dict[str, Any], owner: int, place: int) -> str:
    """The element of an array that a byte is in, for people."""
    return named(array, owner, _index(place - array["array"], array))


def _index(offset: int, array: dict[str, Any]) -> str:
    """The index of the element at this many bytes from the start of an array."""
    element, shape = offset // array["item"], tuple(array["shape"])
    if len(shape) > 1 and element < math.prod(shape):
        return str(list(map(int, np.unravel_index(element, shape))))
    return f"[{element}]"


def named(array: dict[str, Any], owner: int, index: str = "") -> str:
    """An array, for people."""
    name = f"`{array['name'] or 'symmetric array'}{index}`"
    return (
        f"{name} on PE {owner} ({array['dtype']}, shape {tuple(array['shape'])}, allocated at "
        f"{array['where']})"
    )


def of_block(history: History, access: Access, place: int) -> str:
    """The element of a block's shared memory that a byte is in, for people."""
    _, owner, launch = access.space
    block, offset = place >> BLOCK_BITS, place & (1 << BLOCK_BITS) - 1
    memory = f"shared memory of block {block}" + f" on PE {owner}" * (not history.without_pes)
    here = []
    for a in history.pes[owner].launch_facts[launch].get("shared", ()):
        nbytes = math.prod(a["shape"]) * a["item"] or 1 << BLOCK_BITS  # or: it is dynamic
        if a["name"] and a["at"] <= offset < a["at"] + nbytes:
            here.append(a)
    if not here:
        return f"byte {offset} of {memory}"
    array = min(here, key=lambda a: a["item"] != access.size)  # dynamic memory may be several
    shape = f"shape {tuple(array['shape'])}" if math.prod(array["shape"]) else "dynamic"
    return (
        f"`{array['name']}{_index(offset - array['at'], array)}` in {memory} ({array['dtype']}, "
        f"{shape}, allocated at {array['where']})"
    )


def of_tensor(history: History, access: Access, start: int) -> str | None:
    """The element of a tensor that a call of torch.distributed uses, for people; None: of none."""
    launch = history.pes[access.pe].launch_facts.get(access.launch, {})
    for address, nbytes, item, shape in launch.get("tensors", ()):
        if address <= start < address + nbytes:
            index = _index(start - address, {"item": item, "shape": shape})
            return f"`tensor{index}` of {launch['kernel']} on PE {access.pe} (shape {tuple(shape)})"
    return None


def of_device(history: History, owner: int, start: int) -> str:
    """A byte of memory that is not symmetric, for people."""
    for memory in reversed(history.pes[owner].memories):
        if memory["memory"] <= start < memory["memory"] + max(memory["bytes"], 1):
            named = named_memory(history, owner, memory)
            return f"byte {start - memory['memory']} of {named}"
    return f"memory of PE {owner} that is not symmetric, address {start:#x}"


def named_memory(history: History, owner: int, memory: dict[str, Any]) -> str:
    """Memory that is not symmetric, for people."""
    whose = "" if history.without_pes else f" on PE {owner}"
    return (
        f"`{memory['name'] or 'device array'}`{whose} ({memory['bytes']} bytes, allocated at "
        f"{memory['where']})"
    )


def of(history: History, access: Access, start: int) -> str:
    """What an access is to, for people."""
    kind, owner = access.space[:2]
    if kind == "shared":
        return of_block(history, access, start)
    return of_device(history, owner, start) if kind == "memory" else of_heap(history, access, start)


def of_heap(history: History, access: Access, start: int) -> str:
    """The element of an array that an access is to, for people."""
    owner = access.space[1]
    for array in reversed(history.pes[access.pe].arrays):
        if array["array"] <= start < array["array"] + max(array["bytes"], 1):
            return of_array(array, owner, start)
    return f"offset {start:#x} of the symmetric heap of PE {owner}"
