"""What a kernel needs on a GPU, and how many of its blocks a multiprocessor holds."""

from __future__ import annotations

import gc
import math
from dataclasses import dataclass

from gpushmem.backends.nvshmem import aot
from gpushmem.explain.launches import Launched
from gpushmem.explain.occupancy import Occupancy, occupancy

__all__ = ["OnGpu", "forget_code_of_cpus", "on_gpu"]


@dataclass(frozen=True)
class OnGpu:
    """A kernel for one architecture: what it needs, or why it cannot be compiled."""

    arch: str
    error: str
    needs: aot.Resources | None
    code_bytes: int
    occupancy: tuple[Occupancy | None, ...]  # of each launch; None: limits are not known


def on_gpu(kernel: Launched, arch: str) -> OnGpu:
    """Compile a kernel for a GPU, without one; a failure is part of the result."""
    from gpushmem.backends.nvshmem.compiler import Arch  # noqa: PLC0415  (takes a second)

    if kernel.source is None:
        said = "its code is of Numba's cache, its source not known: leave cache=True out"
        return OnGpu(arch, said, None, 0, ())
    function, argtypes, *_ = kernel.source
    try:
        built = aot.build(function, argtypes, aot.code_options(kernel.options), arch)
    except Exception as error:  # noqa: BLE001  (Numba's, the linker's: whatever stops it is told)
        return OnGpu(arch, str(error) or type(error).__name__, None, 0, ())
    needs, capability = built.needs, Arch.of(arch).capability
    fits = (
        occupancy(
            capability, math.prod(shape.block), needs.registers,
            needs.shared + shape.dynamic_shared, needs.barriers,
        )
        for shape in kernel.times
    )  # fmt: skip
    return OnGpu(arch, "", needs, len(built.code["cubin"]), tuple(fits))


def forget_code_of_cpus() -> None:
    """Let device functions of `numba.cuda.jit` be compiled for GPUs from now on.

    A dispatcher knows its code by types alone, and the program may have compiled it for CPUs.
    """
    from numba.cuda.dispatcher import CUDADispatcher  # noqa: PLC0415

    for thing in gc.get_objects():
        if type(thing) is CUDADispatcher:
            thing.overloads.clear()
