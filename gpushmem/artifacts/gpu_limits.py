"""What GPUs of a compute capability hold at most.

Source: CUDA C++ Programming Guide 13, "Technical Specifications per Compute Capability".
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = [
    "LIMITS", "MAX_STATIC_SHARED", "MAX_THREADS", "MOST_REGISTERS", "REGISTERS", "Limits",
    "most_registers",
]  # fmt: skip

MAX_THREADS = 1024  # of a block
REGISTERS = 65536  # of a multiprocessor, and of a block
MOST_REGISTERS = 255  # of a thread
MAX_STATIC_SHARED = 48 * 1024  # bytes of a block; more as dynamic shared memory only


class Limits(NamedTuple):
    """What a multiprocessor holds at most."""

    threads: int
    blocks: int
    shared: int  # bytes
    barriers: int = 0  # of blocks, such as that of `syncthreads`; 0: enough for all
    reserved: int = 1024  # bytes of shared memory per block
    shared_unit: int = 128

    @property
    def max_shared(self) -> int:
        """Bytes of shared memory that a block can have, with dynamic shared memory."""
        return self.shared - self.reserved


KIB = 1024
LIMITS = {
    (7, 5): Limits(1024, 16, 64 * KIB, reserved=0, shared_unit=256),
    (8, 0): Limits(2048, 32, 164 * KIB),
    (8, 6): Limits(1536, 16, 100 * KIB),
    (8, 7): Limits(1536, 16, 164 * KIB),
    (8, 8): Limits(1536, 16, 100 * KIB),
    (8, 9): Limits(1536, 24, 100 * KIB),
    (9, 0): Limits(2048, 32, 228 * KIB, 64),
    (10, 0): Limits(2048, 32, 228 * KIB, 64),
    (10, 3): Limits(2048, 32, 228 * KIB, 32),
    (11, 0): Limits(1536, 24, 228 * KIB, 24),
    (12, 0): Limits(1536, 24, 100 * KIB, 24),
    (12, 1): Limits(1536, 24, 100 * KIB, 24),
}


def most_registers(threads: int) -> int:
    """How many registers a thread can have in a block of so many: 255, or what there is for it.

    A warp gets its registers in units of 256, from one of four equal parts of all.
    """
    warps = -(-threads // 128) * 4
    return min(MOST_REGISTERS, REGISTERS // warps // 256 * 8)
