"""The symmetric heap: the same allocations on every PE, at the same offsets.

An allocation's bytes are in the job's file. Its addresses, this PE's own and those for the peers,
are known to the stub of the driver as device memory, from `take` to `release`.
"""

import ctypes

import numpy as np

from tests.nvshmem.emulation.driver import function
from tests.nvshmem.emulation.errors import EmulationError
from tests.nvshmem.emulation.job import Job

ALIGNMENT = 512
POISON = 0xA5

_int, _size = ctypes.c_int, ctypes.c_size_t
_reserve = function("reserve", _size, _size, _size)
_add_range = function("add_range", _int, _size, _size, _size)
_remove_range = function("remove_range", _int, _size)
_charge = function("charge", _int, ctypes.c_int64)
_host = function("host", _size, _size, _size)
_move = function("move", _size, _size, _size)


def _is_virtual(address: int) -> bool:
    from cuda.bindings import driver

    status, handle = driver.cuMemRetainAllocationHandle(address)
    return int(status) == 0 and int(driver.cuMemRelease(handle)[0]) == 0


class Heap:
    """This PE's view. `reachable` are the PEs whose memory it can address: itself among them.

    It grows by `granule` bytes of the device's memory, and never shrinks.
    """

    def __init__(self, job: Job, reachable, granule: int):
        self.granule, self.charged = granule, 0
        self.job, self.reachable = job, tuple(reachable)
        # Elsewhere in each PE: an address is of use to its own PE only.
        hint = (2 << 44) + (job.me << 38)
        self.start = _reserve(job.n * job.segment, hint)
        self.mine = self.start + job.me * job.segment
        self.sizes: dict[int, int] = {}  # by offset
        self.external: dict[int, tuple[int, int]] = {}  # offset: the buffer, its bytes before

    def _gap(self, n: int) -> int | None:
        at = 0
        for offset in sorted(self.sizes):
            if at + n <= offset:
                break
            # The unused line at an allocation's end tells an overrun from a neighbour.
            at = offset + self.sizes[offset] + ALIGNMENT
            at = -(-at // ALIGNMENT) * ALIGNMENT
        return at if at + n <= self.job.segment else None

    def take(self, n: int) -> int | None:
        """Return the address of `n` bytes, the same on each PE; None where there is no room."""
        offset = self._gap(n)
        if offset is None or not self._grow(offset + n):
            return None
        for pe in self.reachable:
            _add_range(self._address(pe, offset), n, self.job.host(pe, offset))
        self.sizes[offset] = n
        self.job.bytes_at(self.job.me, offset, n)[: 16 << 20] = POISON
        return self.mine + offset

    def _grow(self, end: int) -> bool:
        more = -(-end // self.granule) * self.granule - self.charged
        if more > 0:
            if _charge(more):
                return False
            self.charged += more
        return True

    def release(self, address: int) -> None:
        """Give back what `take` returned."""
        offset = self.start_of(address, "free")
        for pe in self.reachable:
            _remove_range(self._address(pe, offset))
        del self.sizes[offset]

    def start_of(self, address: int, doing: str) -> int:
        """Return the offset of the allocation that starts at an address of this PE."""
        offset = int(address) - self.mine
        if offset not in self.sizes:
            raise EmulationError(f"{doing}: {int(address):#x} is not the start of an allocation")
        return offset

    def _address(self, pe: int, offset: int) -> int:
        return self.start + pe * self.job.segment + offset

    def offset(self, address: int, n: int, doing: str) -> int:
        """Return the offset of `n` bytes of one allocation, given by this PE's address of them."""
        offset = int(address) - self.mine
        for start, size in self.sizes.items():
            if start <= offset and offset + n <= start + size:
                return offset
        raise EmulationError(f"{doing}: {n} bytes at {int(address):#x} are not symmetric memory")

    def peer(self, address: int, pe: int) -> int:
        """`nvshmem_ptr`: 0 where this PE cannot address that one, or the address is not its own."""
        offset = int(address) - self.mine
        if not 0 <= offset < self.job.segment or pe not in self.reachable:
            return 0
        return self._address(pe, offset)

    def bytes_of(self, pe: int, address: int, n: int, doing: str) -> np.ndarray:
        """Return a PE's bytes of symmetric memory."""
        if not 0 <= pe < self.job.n:
            raise EmulationError(f"{doing}: there is no PE {pe} of {self.job.n}")
        return self.job.bytes_at(pe, self.offset(address, n, doing), n)

    def attach(self, buffer: int, n: int) -> int:
        """Give a buffer of this process a symmetric address too; 0 where that cannot be.

        Its bytes move into the job's file, and so are the same by either address. The buffer must
        be the beginning of an allocation of virtual memory, as large as it is in whole granules:
        with another NVSHMEM would end its heap.
        """
        n = -(-n // self.granule) * self.granule
        before = _host(buffer, n)
        if not before or _host(buffer - 1, 2) or not _is_virtual(buffer):
            raise EmulationError(
                f"buffer_register_symmetric: {n} bytes at {buffer:#x}: no more heap"
            )
        address = self.take(n)
        if address is None:
            return 0
        offset = address - self.mine
        ctypes.memmove(self.job.host(self.job.me, offset), before, n)
        _move(buffer, self.job.host(self.job.me, offset))
        self.external[offset] = (buffer, before)
        return address

    def detach(self, address: int) -> None:
        """End what `attach` began; the buffer keeps its contents."""
        offset = self.start_of(address, "buffer_unregister_symmetric")
        if offset not in self.external:
            raise EmulationError("buffer_unregister_symmetric: never registered")
        buffer, before = self.external.pop(offset)
        ctypes.memmove(before, self.job.host(self.job.me, offset), self.sizes[offset])
        _move(buffer, before)
        self.release(address)

    def close(self) -> None:
        """Forget all addresses."""
        for offset in list(self.sizes):
            self.release(self.mine + offset)
        _charge(-self.charged)
        self.charged = 0
