"""`load_vector` and `store_vector` in kernels: the program's own loads and stores, word by word."""

from __future__ import annotations

from typing import Any

from numba import types

from gpushmem.backends.cpu.operations.access import aligned
from gpushmem.backends.vector_accesses import Access, definitions
from gpushmem.native.memory import i64, intrinsic
from gpushmem.simt.functions import call_device, load_word, store_word

__all__ = ["BODIES", "check_place"]


def check_place(builder: Any, address: Any, access: Access) -> None:
    """Fail where a GPU would: the place is not a multiple of the bytes."""
    sig = types.intp(types.intp, types.intp)
    call_device(builder, aligned, sig, [address, i64(access.nbytes)])


def places(builder: Any, address: Any, access: Access) -> list[Any]:
    """Where the words are."""
    size = access.bits // 8
    return [builder.add(address, i64(k * size)) for k in range(access.words)]


def load(builder: Any, address: Any, access: Access) -> list[Any]:
    check_place(builder, address, access)
    how = access.bits, access.order, access.scope
    return [load_word(builder, place, *how) for place in places(builder, address, access)]


def store(builder: Any, address: Any, access: Access, words: list[Any]) -> None:
    check_place(builder, address, access)
    for place, word in zip(places(builder, address, access), words, strict=True):
        store_word(builder, place, word, access.order, access.scope)


BODIES = {
    name: intrinsic(definition, prefer_literal=True)
    for name, definition in definitions(load, store).items()
}
