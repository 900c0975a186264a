"""Where a block keeps what each of its threads needs from one piece of code to the next."""

from __future__ import annotations

from functools import cache

import llvmlite.binding as llvm

from gpushmem.simt.base.contexts import new_context
from gpushmem.simt.base.layout import CODE_BYTES, FRAME_ALIGN
from gpushmem.simt.compiler.target import Unfit, simt_target

__all__ = ["LEAST", "Frame", "size_of"]

LEAST = 16


@cache
def size_of(kind: str) -> int:
    """Bytes of an LLVM type, given as text."""
    if kind.startswith("<"):
        raise Unfit("a vector is alive across a wait")
    module = llvm.parse_assembly(f"@x = external global {kind}", new_context())
    target = simt_target.target_context.target_data
    return int(target.get_abi_size(module.get_global_variable("x").global_value_type))


class Frame:
    """Places, one after the other, behind the codes; each has an element for each thread.

    A place begins at its offset times the number of threads, rounded up to a multiple of LEAST: so
    all are aligned to that, and have room for as many elements. For a larger alignment the offset
    is a multiple of so many LEASTs, and an element's size one of the alignment.
    """

    def __init__(self) -> None:
        self.offsets: dict[str, int] = {}
        self.sizes: dict[str, int] = {}
        self.bytes = CODE_BYTES

    def place(self, name: str, size: int, align: int) -> int:
        """The offset of a value's place, per thread."""
        if name not in self.offsets:
            if align > FRAME_ALIGN:
                raise Unfit(f"a local array is aligned to more than {FRAME_ALIGN} bytes")
            unit = max(1, align // LEAST)
            self.bytes = -(-self.bytes // unit) * unit
            self.offsets[name] = self.bytes
            self.sizes[name] = size
            self.bytes += size
        return self.offsets[name]
