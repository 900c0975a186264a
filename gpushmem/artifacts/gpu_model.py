"""The modelled GPU: limits that programs can query and launches respect.

GPUSHMEM_SIM_GPU names it (`gpushmem sim --gpu`). Sources: `artifacts.limits`, for what a compute
capability decides; for the rest NVIDIA's data sheets of the T4, A100, H100 SXM and B200, and what
the CUDA driver tells of them.
"""

from __future__ import annotations

from typing import NamedTuple

from gpushmem import settings
from gpushmem.artifacts.gpu_limits import LIMITS, Limits
from gpushmem.errors import ArgumentError

__all__ = ["LANES", "MAX_WARPS", "MODELS", "Gpu", "choose", "modelled"]

LANES = 32  # threads of a warp
MAX_WARPS = 32  # of a block
MIB, GIB = 1 << 20, 1 << 30


class Gpu(NamedTuple):
    """A GPU: sizes in bytes, clocks in kHz."""

    key: str  # its name here
    name: str
    capability: tuple[int, int]
    sms: int  # multiprocessors
    l2: int
    memory: int
    clock: int  # the boost clock
    memory_clock: int
    bus: int  # bits
    double_ratio: int  # how many times as fast single precision is

    @property
    def limits(self) -> Limits:
        """What a multiprocessor holds at most."""
        return LIMITS[self.capability]

    def blocks_per_sm(self, threads: int, shared: int = 0) -> int:
        """How many blocks of so many threads, and bytes of shared memory, fit a multiprocessor."""
        limits = self.limits
        by_shared = limits.shared // (shared + limits.reserved) if shared else limits.blocks
        return min(limits.blocks, limits.threads // max(threads, 1), by_shared)


MODELS = {
    gpu.key: gpu
    for gpu in (
        Gpu("t4", "Tesla T4", (7, 5), 40, 4 * MIB, 15110 * MIB, 1_590_000, 5_001_000, 256, 32),
        Gpu(
            "a100", "NVIDIA A100-SXM4-80GB", (8, 0), 108, 40 * MIB, 80 * GIB,
            1_410_000, 1_593_000, 5120, 2,
        ),
        Gpu(
            "h100", "NVIDIA H100 80GB HBM3", (9, 0), 132, 50 * MIB, 80 * GIB,
            1_980_000, 2_619_000, 5120, 2,
        ),
        Gpu(
            "b200", "NVIDIA B200", (10, 0), 148, 253 * MIB // 2, 178 * GIB,
            1_965_000, 3_996_000, 7680, 2,
        ),
    )
}  # fmt: skip
_modelled: list[Gpu] = []


def modelled() -> Gpu:
    """The GPU that this process models: `choose` changes it.

    Raises `ArgumentError` if GPUSHMEM_SIM_GPU, which is read at the first call, names none.
    """
    if not _modelled:
        choose(settings.get("GPUSHMEM_SIM_GPU"))
    return _modelled[0]


def choose(name: str) -> Gpu:
    """Model another GPU from now on; what has been compiled is for the one before.

    Raises `ArgumentError` if it is none of `MODELS`.
    """
    if name not in MODELS:
        raise ArgumentError(f"{name!r} is no GPU that can be modelled: choose {', '.join(MODELS)}")
    _modelled[:] = [MODELS[name]]
    return MODELS[name]
