"""What a backend must supply.

The runtime, the arrays and `jit` are written against this, so a backend can be read on its own:
one symmetric segment per PE, device memory, streams, kernels, and the host side of the operations.
A *native array* is whatever the backend's kernels take as an array and Python can slice. It speaks
DLPack, and `__array_interface__` or `__cuda_array_interface__`, whichever its memory is: other
libraries share memory through these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import update_wrapper
from typing import Any, Protocol

import numpy as np

from gpushmem.ops import Op

__all__ = ["Backend", "DeviceFunction", "Shape"]

Shape = tuple[int, ...]


class DeviceFunction:
    """A function for kernels to call; outside kernels it runs as plain Python."""

    def __init__(self, py_func: Callable[..., Any]) -> None:
        self.py_func = py_func
        update_wrapper(self, py_func)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the Python function, on the host."""
        return self.py_func(*args, **kwargs)


class Backend(Protocol):
    """One PE's connection to the machine, from `init` to `finalize`."""

    name: str
    my_pe: int
    n_pes: int
    heap_bytes: int
    allocated: Callable[[], Sequence[Any]]  # set by the runtime: `memory.stats.Allocated`, sorted

    def meet(self, what: str, nbytes: int = -1) -> None:
        """Wait until every PE is in this collective call with the same `what` and `nbytes`.

        Waits for this PE's streams first, and raises the error of a kernel that failed. Raises
        `CollectiveMismatch` on every PE when they are not in the same call.
        """

    def forget(self, offset: int, nbytes: int) -> None:
        """Take note that the heap's bytes at `offset` have been allocated anew."""

    def set_timeout(self, seconds: float | None) -> None:
        """End the job when a host of it has waited for so long in one call; None: never."""

    def symmetric(self, offset: int, shape: Shape, dtype: np.dtype[Any]) -> Any:
        """Native array at `offset` in this PE's symmetric segment."""

    def heap_offset(self, native: Any) -> int:
        """Offset in the segment of a native array made by `symmetric`, or of a view of one."""

    def device_array(self, shape: Shape, dtype: np.dtype[Any]) -> Any:
        """Native array in ordinary device memory, contents undefined."""

    def to_host(self, native: Any) -> np.ndarray[Any, Any]:
        """Copy of a native array in host memory; waits for this PE's streams first."""

    def from_host(self, native: Any, values: Any) -> None:
        """Write `values`, broadcast, to a native array; waits for this PE's streams first."""

    def host_view(self, native: Any) -> np.ndarray[Any, Any]:
        """The same memory as a NumPy array, where the host can reach it; else `ShmemError`."""

    def register(self, buffer: Any, memory: np.ndarray[Any, Any]) -> Any:
        """Native array on memory that the user has; `ArgumentError` where the device cannot.

        `memory` describes it, C-contiguous and writable: shape, dtype, address. It can be read
        unless `buffer`, what the user gave, has a `__cuda_array_interface__`.
        """

    def unregister(self, native: Any) -> None:
        """End what `register` did. No stream of this PE uses the memory any more."""

    def stream(self) -> Any:
        """Make a stream with `synchronize()`."""

    def synchronize(self) -> None:
        """Wait for all streams of this PE; raises the error of a kernel that failed."""

    def stop(self, seconds: float) -> bool:
        """Cancel this PE's launches, if the device can; whether all end within so many seconds."""

    def settle(self, what: str) -> None:
        """`synchronize`, and see that what PEs called last was the same on all of them.

        For the end of a script or of the runtime, which is `what` is done.
        """

    def kernel(self, py_func: Callable[..., Any], options: dict[str, Any]) -> Any:
        """Prepare a Python function to be launched as a kernel."""

    def prepare(
        self, kernel: Any, config: tuple[Any, ...], args: tuple[Any, ...]
    ) -> Callable[[], None]:
        """Make a launch, to be called any number of times; it keeps the arguments alive.

        `config` is grid, block, stream (0 for the default one), dynamic shared bytes.
        """

    def call(self, op: Op, arguments: dict[str, Any]) -> Any:
        """Host side of an operation.

        Arrays are native arrays, or NumPy arrays within memory that is registered.
        """

    def close(self) -> None:
        """Give everything back; no PE uses the heap any more."""
