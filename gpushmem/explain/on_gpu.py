"""What a kernel needs on a GPU, and how many of its blocks a multiprocessor holds."""

from __future__ import annotations

import gc
import math
from dataclasses import dataclass

from gpushmem.backends.nvshmem.compile import aot, options
from gpushmem.explain.launches import Launched
from gpushmem.explain.occupancy import Occupancy, occupancy

__all__ = ["OfBlocks", "OnGpu", "forget_code_of_cpus", "on_gpu"]


@dataclass(frozen=True)
class OfBlocks:
    """The occupancy with blocks of a size; None: the architecture's limits are not known."""

    threads: int
    dynamic_shared: int  # bytes
    occupancy: Occupancy | None


@dataclass(frozen=True)
class OnGpu:
    """A kernel for one architecture: what it needs, or why it cannot be compiled."""

    arch: str
    error: str
    needs: aot.Resources | None = None
    code_bytes: int = 0
    blocks: tuple[OfBlocks, ...] = ()  # as launched, then as asked for


def on_gpu(kernel: Launched, arch: str, asked: tuple[int, ...] = ()) -> OnGpu:
    """Compile a kernel for a GPU, without one; a failure is part of the result.

    The occupancy is told for the blocks that were launched, and for `asked` threads.
    """
    from gpushmem.backends.nvshmem.compile.compiler import Arch  # noqa: PLC0415  (takes a second)

    if kernel.source is None:
        return OnGpu(
            arch, "its code is of Numba's cache, its source not known: leave cache=True out"
        )
    function, argtypes, *_ = kernel.source
    try:
        built = aot.build(function, argtypes, options.code_options(kernel.options), arch)
    except Exception as error:  # noqa: BLE001  (Numba's, the linker's: whatever stops it is told)
        return OnGpu(arch, str(error) or type(error).__name__)
    needs, capability = built.needs, Arch.of(arch).capability
    launched = [(math.prod(shape.block), shape.dynamic_shared) for shape in kernel.times]
    most = max(dynamic for _, dynamic in launched)
    sizes = dict.fromkeys(launched + [(threads, most) for threads in asked])
    blocks = (
        OfBlocks(threads, dynamic, occupancy(
            capability, threads, needs.registers, needs.shared + dynamic, needs.barriers
        ))
        for threads, dynamic in sizes
    )  # fmt: skip
    return OnGpu(arch, "", needs, len(built.code["cubin"]), tuple(blocks))


def forget_code_of_cpus() -> None:
    """Let device functions of `numba.cuda.jit` be compiled for GPUs from now on.

    A dispatcher knows its code by types alone, and the program may have compiled it for CPUs.
    """
    from numba.cuda.dispatcher import CUDADispatcher  # noqa: PLC0415

    for thing in gc.get_objects():
        if type(thing) is CUDADispatcher:
            thing.overloads.clear()
