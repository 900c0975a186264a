"""The GPU's clock, read by a kernel: to compare it with the host's."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from gpushmem.artifacts.launch_shape import shape_of
from gpushmem.backends.nvshmem.gpu.arrays import GpuArray
from gpushmem.backends.nvshmem.gpu.device import Device
from gpushmem.backends.nvshmem.kernels import Kernel, Loader
from gpushmem.backends.nvshmem.operations.composed import nanoseconds

__all__ = ["read"]


def show_clock(shown: Any) -> None:
    """A kernel: the time, in nanoseconds."""
    shown[0] = nanoseconds()


@cache
def _of(device: Device) -> tuple[Kernel, GpuArray]:
    return Kernel(show_clock, {}), device.array((1,), np.dtype(np.int64))


def read(device: Device, loader: Loader) -> int:
    """What the GPU's clock shows; returns when the GPU has answered."""
    kernel, shown = _of(device)
    stream = device.own.cuda
    kernel.prepare(loader, shape_of(1, 1), stream, (shown,))()
    device.wait(stream, "the trace")
    return int(device.read(shown)[0])
