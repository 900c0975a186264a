"""Atomic operations on one element of another PE."""

from __future__ import annotations

from gpushmem.ops.roles import Bits, ElementResult, Numbers, Pe, Value
from gpushmem.ops.row import ATOMIC, declare, reads, updates

NOTE = """Atomic with every other atomic operation on that element, of any PE, in kernels and on
hosts; not ordered with operations on anything else: put `fence` or `quiet` between. Element i is
reached by `dst[i:]`. dtypes: int32, int64, uint32, uint64{more}."""
ON_BITS, ON_NUMBERS = NOTE.format(more=""), NOTE.format(more=", float32, float64")


@declare(reads("dst", "0", ATOMIC), on_host=True, note=ON_NUMBERS)
def atomic_fetch(dst: Numbers, pe: Pe) -> ElementResult:
    """Return element 0 of `dst` (symmetric, on `pe`). OpenSHMEM 1.5: shmem_atomic_fetch."""


@declare(updates("dst"), on_host=True, note=ON_NUMBERS)
def atomic_set(dst: Numbers, value: Value, pe: Pe) -> None:
    """Write `value` to element 0 of `dst` (symmetric, on `pe`). OpenSHMEM 1.5: shmem_atomic_set."""


@declare(updates("dst"), on_host=True, note=ON_NUMBERS)
def atomic_swap(dst: Numbers, value: Value, pe: Pe) -> ElementResult:
    """Write `value` to element 0 of `dst` (symmetric, on `pe`); return what was there.

    OpenSHMEM 1.5: shmem_atomic_swap.
    """


@declare(updates("dst"), on_host=True, note=ON_BITS)
def atomic_compare_swap(dst: Bits, cond: Value, value: Value, pe: Pe) -> ElementResult:
    """Write `value` to element 0 of `dst` (symmetric, on `pe`) if it is `cond`; return what it was.

    It has been written if what is returned equals `cond`. OpenSHMEM 1.5:
    shmem_atomic_compare_swap.
    """


@declare(updates("dst"), on_host=True, note=ON_BITS)
def atomic_inc(dst: Bits, pe: Pe) -> None:
    """Add 1 to element 0 of `dst` (symmetric, on `pe`). OpenSHMEM 1.5: shmem_atomic_inc."""


@declare(updates("dst"), on_host=True, note=ON_BITS)
def atomic_fetch_inc(dst: Bits, pe: Pe) -> ElementResult:
    """Add 1 to element 0 of `dst` (symmetric, on `pe`); return what was there.

    OpenSHMEM 1.5: shmem_atomic_fetch_inc.
    """


@declare(updates("dst"), on_host=True, note=ON_NUMBERS)
def atomic_add(dst: Numbers, value: Value, pe: Pe) -> None:
    """Add `value` to element 0 of `dst` (symmetric, on `pe`). OpenSHMEM 1.5: shmem_atomic_add.

    Integers wrap around. Of floats the order of additions decides the last bits.
    """


@declare(updates("dst"), on_host=True, note=ON_NUMBERS)
def atomic_fetch_add(dst: Numbers, value: Value, pe: Pe) -> ElementResult:
    """Add `value` to element 0 of `dst` (symmetric, on `pe`); return what was there.

    Integers wrap around. OpenSHMEM 1.5: shmem_atomic_fetch_add.
    """


@declare(updates("dst"), on_host=True, note=ON_BITS)
def atomic_and(dst: Bits, value: Value, pe: Pe) -> None:
    """Clear the bits of element 0 of `dst` (symmetric, on `pe`) that `value` has not.

    OpenSHMEM 1.5: shmem_atomic_and.
    """


@declare(updates("dst"), on_host=True, note=ON_BITS)
def atomic_fetch_and(dst: Bits, value: Value, pe: Pe) -> ElementResult:
    """As `atomic_and`; return what was there. OpenSHMEM 1.5: shmem_atomic_fetch_and."""


@declare(updates("dst"), on_host=True, note=ON_BITS)
def atomic_or(dst: Bits, value: Value, pe: Pe) -> None:
    """Set the bits of `value` in element 0 of `dst` (symmetric, on `pe`).

    OpenSHMEM 1.5: shmem_atomic_or.
    """


@declare(updates("dst"), on_host=True, note=ON_BITS)
def atomic_fetch_or(dst: Bits, value: Value, pe: Pe) -> ElementResult:
    """As `atomic_or`; return what was there. OpenSHMEM 1.5: shmem_atomic_fetch_or."""


@declare(updates("dst"), on_host=True, note=ON_BITS)
def atomic_xor(dst: Bits, value: Value, pe: Pe) -> None:
    """Flip the bits of `value` in element 0 of `dst` (symmetric, on `pe`).

    OpenSHMEM 1.5: shmem_atomic_xor.
    """


@declare(updates("dst"), on_host=True, note=ON_BITS)
def atomic_fetch_xor(dst: Bits, value: Value, pe: Pe) -> ElementResult:
    """As `atomic_xor`; return what was there. OpenSHMEM 1.5: shmem_atomic_fetch_xor."""
