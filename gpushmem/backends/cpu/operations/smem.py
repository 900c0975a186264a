"""Shared memory that a block has given to NVSHMEM: nothing uses it here, its rules are checked.

The block's record has the line of `give_smem` until `release_smem`; the engine finds it there if
the block ends.
"""

from __future__ import annotations

from gpushmem.backends.cpu.operations.access import address_of, itemsize_of, size_of
from gpushmem.backends.operation_errors import (
    BAD_AMOUNT,
    GIVEN,
    MISPLACED,
    NOT_GIVEN,
    NOT_NOW,
    NOT_SHARED,
    SMALL_SMEM,
)
from gpushmem.native.structs import view
from gpushmem.ops import SMEM_BARRIERS_ONLY, SMEM_BYTES
from gpushmem.simt.functions import device
from gpushmem.simt.layout import BLOCK, FIBER, LAUNCH
from gpushmem.simt.thread import fail_if, fiber_word, launch_word, site_word

__all__ = ["BODIES", "check_has_all", "give", "take_back"]

as_block, as_fiber, as_launch = view(BLOCK), view(FIBER), view(LAUNCH)
LEAST = SMEM_BYTES[SMEM_BARRIERS_ONLY]
ALIGNMENT = 16


@device
def give(address, nbytes):
    block = as_block(as_fiber(fiber_word()).block)
    start, end = block.shared, block.shared + as_launch(launch_word()).shared_bytes
    fail_if(address < start or address + nbytes > end, NOT_SHARED, address, nbytes, 0, 0)
    fail_if(address % ALIGNMENT != 0, MISPLACED, address % ALIGNMENT, ALIGNMENT, 0, 0)
    fail_if(nbytes < LEAST, SMALL_SMEM, nbytes, LEAST, 0, 0)
    fail_if(block.owed != 0, GIVEN, block.owed, 0, 0, 0)
    block.owed = site_word()


@device
def take_back():
    block = as_block(as_fiber(fiber_word()).block)
    fail_if(block.owed == 0, NOT_GIVEN, 0, 0, 0, 0)
    block.owed = 0


@device
def check_has_all():
    """Fail if the block has given memory: for collectives."""
    owed = as_block(as_fiber(fiber_word()).block).owed
    fail_if(owed != 0, NOT_NOW, owed, 0, 0, 0)


def ask_smem(amount):
    fail_if(amount < 0 or amount >= len(SMEM_BYTES), BAD_AMOUNT, amount, 0, 0, 0)
    return SMEM_BYTES[amount]


def give_smem(smem):
    give(address_of(smem), size_of(smem) * itemsize_of(smem))


def release_smem():
    take_back()


BODIES = {f.__name__: f for f in (ask_smem, give_smem, release_smem)}
