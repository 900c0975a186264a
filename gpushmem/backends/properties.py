"""Properties of a backend that are known without importing it, for the launcher and plans.

Each backend's package has an `ABOUT`, and imports nothing heavy for it. Code is named as
"module:name", and loaded when it is needed (`registry.load`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

__all__ = ["About", "Tuning"]

OF_ALL_REGISTERS = 256  # threads: 65536 registers, 255 for each
NIC_ONE_SHOT = 224 << 10  # bytes
FAST_LINKS = 10  # major compute capability: NVLink of 900 GB/s in each direction

Version = Callable[[str], "str | None"]  # of a package; None if it is not installed


@dataclass(frozen=True)
class Tuning:
    """How kernels that communicate are best launched on a backend; from `tuning()`.

    `threads` of a block, `moving_threads` of one that copies and adds up, and multiplies nothing;
    `blocks` of a grid; `piece_bytes`, what is sent, and then waited for, in one piece; `tile`, rows
    and columns of a product of matrices that is sent as soon as it is made; `product_rows`, rows of
    a product that is not sent, all columns at once, or 0 where a `tile` is best for these, too;
    `kernel_products`, how many products of two numbers a kernel that multiplies may have to be
    better than the library beside one that sends, None where it always is;
    `ll_bytes`, the data up to which a PE sends what all need to all others by LL, in one call;
    `ll128_bytes`, the same by LL128, and in each of two shots; `one_shot_bytes`, the same in one
    shot, where two take longer for their fences and signals;
    `block_bytes`, what a block that copies has at least. On GPUs: `multiprocessors` that a PE has
    for itself, and `moving_blocks` of a grid that copies and adds up, at most; else 0.
    Plans use it for what the user does not set.
    """

    threads: int
    moving_threads: int
    blocks: int
    piece_bytes: int
    tile: tuple[int, int]
    product_rows: int
    ll_bytes: int
    ll128_bytes: int
    one_shot_bytes: int
    kernel_products: int | None = None
    block_bytes: int = 1
    multiprocessors: int = 0
    moving_blocks: int = 0

    def all_blocks(self, threads: int) -> int:
        """Blocks of so many threads that keep all of a GPU busy, and surely run all at once.

        A multiprocessor has room for 256 threads with all the registers that one can have, and for
        any block. Without a GPU: `blocks`.
        """
        return self.multiprocessors * max(1, OF_ALL_REGISTERS // threads) or self.blocks

    def on_gpus(self, multiprocessors: int, capability: int) -> Tuning:
        """The same for PEs with so many multiprocessors, of a major compute capability, each.

        What only moves takes half of them where that is enough for NVLink (before 10.0).
        """
        moving = multiprocessors if capability >= FAST_LINKS else -(-multiprocessors // 2)
        return replace(self, multiprocessors=multiprocessors, moving_blocks=moving)

    def over_a_network(self) -> Tuning:
        """The same with blocks of whole warps, which operations between nodes need.

        And one shot for less: 32 KiB of 8 PEs, since a NIC is slower than NVLink.
        """
        threads, moving = (-(-n // 32) * 32 for n in (self.threads, self.moving_threads))
        one_shot = min(self.one_shot_bytes, NIC_ONE_SHOT)
        return replace(
            self, threads=threads, moving_threads=moving, one_shot_bytes=one_shot
        )  # fmt: skip


def _nothing() -> list[str]:
    return []


def _none_missing() -> str | None:
    return None


def _none_lacking(version: Version) -> list[str]:
    return []


@dataclass(frozen=True)
class About:
    """A backend's properties."""

    backend: str  # "module:class", a `base.Backend`
    tuning: Tuning
    shares_memory: bool  # PEs share the memory of a `Job`; else they are `Peers`
    records: bool = False  # it can record what PEs do (`--check`)
    schedules: bool = False  # ... in an order that is asked for (`--check-runs all`)
    traces: bool = False  # ... and when (`--trace`)
    recorded: Tuning | None = None  # while it does, if other than `tuning`
    is_late: bool = False  # it can perform operations late (`--memory weak`)
    warm_up: str | None = None  # called with n_pes before PEs are forked; None: new processes
    missing: Callable[[], str | None] = _none_missing  # why it cannot be used, and what to do
    reasons: Callable[[], list[str]] = _nothing  # why not to take it unless asked, in few words
    found: str = ""  # why it is taken where there are no reasons not to
    needs: tuple[str, ...] = ()  # of the machine: rows of `doctor.facts.NEEDS`
    lacking: Callable[[Version], list[str]] = _none_lacking  # of packages
