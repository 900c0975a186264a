"""C functions of other libraries that kernels call, resolved when the first kernel needs them.

Machine code refers to them by name, also on disk: each process gives the names their addresses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import llvmlite.binding as llvm

__all__ = ["suppliers", "supply"]

suppliers: dict[str, Callable[[], int]] = {}  # name -> function that returns its address


def supply(names: Iterable[str]) -> None:
    """Make functions known to the linker of this process."""
    for name in names:
        if llvm.address_of_symbol(name) is None:
            llvm.add_symbol(name, suppliers[name]())
