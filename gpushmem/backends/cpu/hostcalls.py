"""Host calls of operations that run as a kernel of one thread.

Hosts and kernels thus share one implementation of waits and collectives, with its checks and
reports; with `stream=` the call is an ordinary launch.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numba.core.errors import NumbaError

from gpushmem.artifacts.launch_shape import shape_of
from gpushmem.backends.cpu.host_checking import Recorder
from gpushmem.backends.host import host_kernels
from gpushmem.backends.host.host_kernels import host_kernel, result_dtype, split_reduction
from gpushmem.ops import Op
from gpushmem.simt.launch import Device, Kernel, KernelFailure, Running, Stream

__all__ = ["HostCalls"]


class HostCalls:
    """Launches operations: on the caller's stream, or outside all streams, waiting for the end."""

    _kernels: dict[tuple[Any, ...], Kernel] = {}  # compiled code outlives `finalize`

    def __init__(
        self,
        world: np.ndarray[Any, Any],
        failed: Callable[[KernelFailure], Exception] | None = None,
        run: Callable[..., None] | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        self._world, self._failed, self._run, self._recorder = world, failed, run, recorder
        self._device = Device()
        self._idle: list[Stream] = []

    def run(self, op: Op, arguments: dict[str, Any]) -> Any:
        """Do the operation and return its result; raises `KernelFailure`."""
        launch, result = self.prepare(op, arguments)
        run: Any = launch if self._run is None else partial(self._run, launch)
        if self._recorder is not None:
            number = self._recorder.submitted(launch, -1)
            run = partial(run, number)
        try:
            stream = self._idle.pop()
        except IndexError:  # other threads of this PE wait on theirs
            stream = self._device.stream()
        stream.submit(run)
        try:
            stream.synchronize(op.name)
        except KernelFailure:
            self._idle.append(stream)
            raise
        if self._recorder is not None:
            self._recorder.returned(number)
        self._idle.append(stream)  # unless interrupted: its launch is still being cancelled
        return result[0] if result_dtype(op, arguments) else None

    def prepare(self, op: Op, arguments: dict[str, Any]) -> tuple[Running, np.ndarray[Any, Any]]:
        """A launch of the operation, and where its result will be.

        Raises `ArgumentError` for arguments of wrong kinds.
        """
        arguments = host_kernels.kernel_arguments(op, arguments)
        result = np.zeros(1, result_dtype(op, arguments) or "int64")
        reduction, others = split_reduction(op, arguments)
        key = (op.name, len(arguments), reduction)
        kernel = self._kernels.get(key)
        if kernel is None:
            returns = result_dtype(op, arguments) is not None
            kernel = self._kernels[key] = Kernel(
                host_kernel(op, tuple(others), reduction, returns), cache=True
            )
        try:
            return kernel.prepare(
                ONE, (result, *others.values()), self._world, self._failed
            ), result
        except (NumbaError, ValueError) as error:
            raise host_kernels.not_compiled(op, arguments, error) from None


ONE = shape_of(1, 1)
