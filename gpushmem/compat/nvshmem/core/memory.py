"""Symmetric memory as buffers of `cuda.core`."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from gpushmem import runtime
from gpushmem.artifacts.argument_packing import address_of
from gpushmem.compat.cuda_core import Buffer, Device, MemoryResource
from gpushmem.compat.nvshmem.core import session
from gpushmem.compat.nvshmem.core.nvshmem_types import NvshmemError, NvshmemInvalid
from gpushmem.memory.array import DeviceArray

__all__ = [
    "NvshmemResource", "buffer", "free", "get_multicast_buffer", "get_peer_buffer",
    "register_external_buffer", "unregister_external_buffer",
]  # fmt: skip

logger = logging.getLogger("nvshmem")


class NvshmemResource(MemoryResource):
    """The symmetric heap."""

    def __init__(self, device: Any = None) -> None:
        self.device = device or Device()
        self.device_id = self.device.device_id

    def allocate(
        self, size: int, stream: Any = None, release: bool = False, except_on_del: bool = True
    ) -> Buffer:
        """Allocate symmetric memory; see `buffer`."""
        return buffer(size, release, except_on_del)


# Address -> the buffer that begins there, and what it is: allocated, registered, or a peer's.
known: dict[int, Buffer] = {}
_owned: set[int] = set()
_peers: dict[int, dict[int, Buffer]] = {}  # of an own buffer's address: PE -> its buffer
_resource: list[NvshmemResource] = []


def began() -> None:
    """The runtime has been initialised."""
    known.clear()
    _owned.clear()
    _peers.clear()
    _resource[:] = [NvshmemResource()]


def ends() -> None:
    """Free what was not freed, in the same order on all PEs, and say so."""
    left = [known[address] for address in _owned]
    for each in sorted(left, key=lambda buffer: buffer.owner.offset):  # type: ignore[attr-defined]
        free(each)
    if left:
        logger.error(
            "finalize: %d pieces of symmetric memory, %d bytes, were not freed; they are now",
            len(left), sum(each.size for each in left),
        )  # fmt: skip


def noted(array: Any, size: int) -> Buffer:
    """The buffer of an array in symmetric memory, this PE's or another's."""
    address = address_of(array.native())
    made = known[address] = Buffer.from_handle(address, size, _resource[0], array)
    return made


def buffer(size: int, release: bool = False, except_on_del: bool = True) -> Buffer:
    """Allocate `size` bytes of symmetric memory; collective.

    `release` and `except_on_del` make no difference: memory is freed by `free` and `finalize` only.
    """
    session.backend("buffer")
    if int(size) < 1:
        raise NvshmemError(f"buffer: cannot allocate {size} bytes")
    return allocated(int(size), np.uint8)


def allocated(shape: Any, dtype: Any) -> Buffer:
    """The buffer of a new array; collective."""
    session.backend("array")
    with session.errors():
        array = runtime.empty(shape, dtype)
    made = noted(array, array.nbytes)
    _owned.add(made.handle)
    return made


def checked(what: str, given: Any) -> Buffer:
    """The symmetric memory that begins there; raises `NvshmemInvalid` if there is none."""
    session.backend(what)
    found = known.get(given.handle) if isinstance(given, Buffer) else None
    if found is None:
        raise NvshmemInvalid(f"{what}: {given!r} is not symmetric memory of nvshmem.core")
    return found


def holding(given: Buffer) -> Buffer | None:
    """The symmetric memory that has all bytes of a buffer."""
    end = given.handle + given.size
    exact = known.get(given.handle)
    candidates = list(known.values()) if exact is None else [exact]
    return next(
        (b for b in candidates if b.handle <= given.handle and end <= b.handle + b.size), None
    )


def part(what: str, given: Any) -> Buffer:
    """The bytes of symmetric memory that a buffer names; raises `NvshmemInvalid` for others."""
    session.backend(what)
    found = holding(given) if isinstance(given, Buffer) else None
    if found is None:
        raise NvshmemInvalid(f"{what}: {given!r} is not symmetric memory of nvshmem.core")
    return Buffer.from_handle(given.handle, given.size, owner=found.owner)


def ordinary(buffer: Buffer) -> DeviceArray:
    """The bytes of a buffer in memory of this PE that is not symmetric."""
    return DeviceArray(buffer.memory().view(np.uint8), session.backend("a copy"))


def free(buffer: Buffer) -> None:
    """Free what `buffer` has allocated; collective. Does nothing for a peer's buffer."""
    if not session.present():
        logger.warning("free: the runtime is not initialised, so there is nothing to free")
        return
    found = checked("free", buffer)
    if found.handle in _owned:
        _owned.remove(found.handle)
        _forget(found)
        with session.errors():
            runtime.free(found.owner)


def _forget(buffer: Buffer) -> None:
    """Its memory, and its peers', will be something else's."""
    del known[buffer.handle]
    for peer in _peers.pop(buffer.handle, {}).values():
        known.pop(peer.handle, None)


def get_peer_buffer(buffer: Buffer, pe: int) -> Buffer:
    """The same memory on another PE, for loads and stores."""
    found = checked("get_peer_buffer", buffer)
    peers = _peers.setdefault(found.handle, {})
    if int(pe) not in peers:
        peer = session.call("peer_array", found.owner, int(pe))
        if address_of(peer.native()) == found.handle:  # the caller's own
            return found
        peers[int(pe)] = noted(peer, found.size)
    return peers[int(pe)]


def get_multicast_buffer(team: int, buffer: Buffer) -> Buffer:
    """Raise `NvshmemError`, as on GPUs without an NVLink switch."""
    checked("get_multicast_buffer", buffer)
    raise NvshmemError(
        "get_multicast_buffer: no address reaches several PEs here, as on GPUs without an NVLink "
        "switch; in kernels get_multicast_array does"
    )


def register_external_buffer(buffer: Buffer, preferred_address: Any = None) -> Buffer:
    """Make existing memory, whole pages, symmetric; collective. Returns the buffer to use."""
    session.backend("register_external_buffer")
    with session.errors():
        array = runtime.register_symmetric(buffer.memory().view(np.uint8))
    return noted(array, buffer.size)


def unregister_external_buffer(buffer: Buffer) -> None:
    """End what `register_external_buffer` began; collective."""
    found = checked("unregister_external_buffer", buffer)
    with session.errors():
        runtime.unregister_symmetric(found.owner)
    _forget(found)


def words(buffer: Buffer, dtype: Any) -> DeviceArray:
    """The bytes of a buffer as an array of gpushmem; what is left of an element is left out.

    Raises `NvshmemInvalid` if the buffer does not begin at an element.
    """
    array: Any = buffer.owner
    size, start = np.dtype(dtype).itemsize, buffer.handle - address_of(array.native())
    if buffer.handle % size:
        raise NvshmemInvalid(f"{buffer!r} does not begin at a multiple of {size} bytes")
    bytes_ = array.reshape(-1).view(np.uint8)
    made: DeviceArray = bytes_[start : start + buffer.size // size * size].view(dtype)
    return made
