"""How many blocks of a kernel a multiprocessor holds at once, and what limits them.

The rules are those of NVIDIA's occupancy calculator, `cuda_occupancy.h` of the CUDA toolkit: each
warp gets registers in units of 256, from one of four equal parts of the register file; each block
gets shared memory in units of 128 bytes (256 before 8.0), with 1 KiB that the system reserves from
8.0 on. The L1 cache is taken to leave as much shared memory as it can.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

from gpushmem.artifacts.gpu_limits import (
    LIMITS,
    MAX_THREADS,
    MOST_REGISTERS,
    REGISTERS,
    Limits,
)

__all__ = ["Occupancy", "occupancy"]

WARP = 32  # threads
REGISTER_UNIT = 256
PARTS = 4  # of the register file
ANY = sys.maxsize  # blocks: no limit


@dataclass(frozen=True)
class Occupancy:
    """Blocks that a multiprocessor holds, its warps then, and the warps that it could hold."""

    blocks_per_multiprocessor: int
    warps: int
    most_warps: int
    limited_by: tuple[str, ...]  # of "registers", "shared memory", "threads", "blocks", "barriers"


def occupancy(
    capability: tuple[int, int], threads: int, registers: int, shared: int, barriers: int = 0
) -> Occupancy | None:
    """The occupancy for blocks of `threads`; None for a compute capability that is not known.

    `registers` are those of a thread; `shared` are the bytes of a block, static and dynamic. 0
    blocks: such a block cannot be launched.
    """
    limits = LIMITS.get(capability)
    if limits is None:
        return None
    warps = -(-threads // WARP)
    fitting = {
        "registers": _by_registers(warps, registers),
        "shared memory": _by_shared(limits, shared),
        "threads": limits.threads // WARP // warps if threads <= MAX_THREADS else 0,
        "blocks": limits.blocks,
        "barriers": limits.barriers // barriers if limits.barriers and barriers else ANY,
    }
    least = min(fitting.values())
    limiting = tuple(what for what, blocks in fitting.items() if blocks == least)
    if "blocks" in limiting:  # of which each has a barrier
        limiting = tuple(what for what in limiting if what != "barriers")
    return Occupancy(least, least * warps, limits.threads // WARP, limiting)


def _by_registers(warps: int, registers: int) -> int:
    of_a_warp = -(-registers * WARP // REGISTER_UNIT) * REGISTER_UNIT
    of_a_block = of_a_warp * -(-warps // PARTS) * PARTS  # as the hardware checks it
    if registers > MOST_REGISTERS or of_a_block > REGISTERS:
        return 0
    return REGISTERS // PARTS // max(of_a_warp, REGISTER_UNIT) * PARTS // warps


def _by_shared(limits: Limits, shared: int) -> int:
    needed = -(-(shared + limits.reserved) // limits.shared_unit) * limits.shared_unit
    return limits.shared // needed if needed else ANY
