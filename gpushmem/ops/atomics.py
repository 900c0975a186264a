"""Atomic operations on one element of another PE."""

from __future__ import annotations

from gpushmem.ops.roles import Bits, ElementResult, Numbers, Pe, Value
from gpushmem.ops.row import ATOMIC, declare, reads, updates

NOTE = """Atomic with every other atomic operation on that element, by any PE, in kernels and on
hosts. Not ordered with operations on other memory: use `fence` or `quiet` in between. `dst[i:]`
addresses element i. dtypes: int32, int64, uint32, uint64{more}."""
ON_BITS, ON_NUMBERS = NOTE.format(more=""), NOTE.format(more=", float32, float64")


@declare(reads("dst", "0", ATOMIC), on_host=True, note=ON_NUMBERS)
def atomic_fetch(dst: Numbers, pe: Pe) -> ElementResult:
    """Return element 0 of `dst` (symmetric, on `pe`). OpenSHMEM 1.5: shmem_atomic_fetch."""


@declare(updates("dst"), on_host=True, note=ON_NUMBERS)
def atomic_set(dst: Numbers, value: Value, pe: Pe) -> None:
    """Write `value` to element 0 of `dst` (symmetric, on `pe`). OpenSHMEM 1.5: shmem_atomic_set."""


@declare(updates("dst"), on_host=True, note=ON_NUMBERS)
def atomic_swap(dst: Numbers, value: Value, pe: Pe) -> ElementResult:
    """Write `value` to element 0 of `dst` (symmetric, on `pe`); return its previous value.

    OpenSHMEM 1.5: shmem_atomic_swap.
    """


@declare(updates("dst"), on_host=True, note=ON_BITS)
def atomic_compare_swap(dst: Bits, cond: Value, value: Value, pe: Pe) -> ElementResult:
    """Write `value` to element 0 of `dst` (symmetric, on `pe`) if it is `cond`; return what it was.

    The write took place if the result equals `cond`. OpenSHMEM 1.5:
    shmem_atomic_compare_swap.
    """


@declare(updates("dst"), on_host=True, note=ON_BITS)
def atomic_inc(dst: Bits, pe: Pe) -> None:
    """Add 1 to element 0 of `dst` (symmetric, on `pe`). OpenSHMEM 1.5: shmem_atomic_inc."""


@declare(updates("dst"), on_host=True, note=ON_BITS)
def atomic_fetch_inc(dst: Bits, pe: Pe) -> ElementResult:
    """Add 1 to element 0 of `dst` (symmetric, on `pe`); return its previous value.

    OpenSHMEM 1.5: shmem_atomic_fetch_inc.
    """


@declare(updates("dst"), on_host=True, note=ON_NUMBERS)
def atomic_add(dst: Numbers, value: Value, pe: Pe) -> None:
    """Add `value` to element 0 of `dst` (symmetric, on `pe`). OpenSHMEM 1.5: shmem_atomic_add.

    Integers wrap around. Sums of floats depend on the order of the additions.
    """


@declare(updates("dst"), on_host=True, note=ON_NUMBERS)
def atomic_fetch_add(dst: Numbers, value: Value, pe: Pe) -> ElementResult:
    """Add `value` to element 0 of `dst` (symmetric, on `pe`); return its previous value.

    Integers wrap around. OpenSHMEM 1.5: shmem_atomic_fetch_add.
    """


@declare(updates("dst"), on_host=True, note=ON_BITS)
def atomic_and(dst: Bits, value: Value, pe: Pe) -> None:
    """Replace element 0 of `dst` (symmetric, on `pe`) by its bitwise AND with `value`.

    OpenSHMEM 1.5: shmem_atomic_and.
    """


@declare(updates("dst"), on_host=True, note=ON_BITS)
def atomic_fetch_and(dst: Bits, value: Value, pe: Pe) -> ElementResult:
    """As `atomic_and`; return the previous value. OpenSHMEM 1.5: shmem_atomic_fetch_and."""


@declare(updates("dst"), on_host=True, note=ON_BITS)
def atomic_or(dst: Bits, value: Value, pe: Pe) -> None:
    """Replace element 0 of `dst` (symmetric, on `pe`) by its bitwise OR with `value`.

    OpenSHMEM 1.5: shmem_atomic_or.
    """


@declare(updates("dst"), on_host=True, note=ON_BITS)
def atomic_fetch_or(dst: Bits, value: Value, pe: Pe) -> ElementResult:
    """As `atomic_or`; return the previous value. OpenSHMEM 1.5: shmem_atomic_fetch_or."""


@declare(updates("dst"), on_host=True, note=ON_BITS)
def atomic_xor(dst: Bits, value: Value, pe: Pe) -> None:
    """Replace element 0 of `dst` (symmetric, on `pe`) by its bitwise XOR with `value`.

    OpenSHMEM 1.5: shmem_atomic_xor.
    """


@declare(updates("dst"), on_host=True, note=ON_BITS)
def atomic_fetch_xor(dst: Bits, value: Value, pe: Pe) -> ElementResult:
    """As `atomic_xor`; return the previous value. OpenSHMEM 1.5: shmem_atomic_fetch_xor."""
