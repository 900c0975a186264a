"""The interface of a backend.

The runtime, the arrays and `jit` use backends through it only: one symmetric segment per PE, device
memory, streams, kernels, and the host side of the operations. `null` is the smallest
implementation. A backend is a package with an `ABOUT` (`properties`) and a row of `registry`.
A *native array* is any object that the backend's kernels take as an array and Python can slice. It
supports DLPack, and `__array_interface__` for host memory or `__cuda_array_interface__` for GPU
memory: other libraries share memory through these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import update_wrapper
from typing import Any, NamedTuple, Protocol

import numpy as np

from gpushmem.backends.properties import Tuning
from gpushmem.ops import Op

__all__ = ["GAP", "Backend", "Config", "DeviceFunction", "Shape"]

GAP = 256  # bytes between symmetric arrays, where what goes past their ends is to be seen

Shape = tuple[int, ...]


class Config(NamedTuple):
    """A launch configuration, as it was given."""

    grid: Any
    block: Any
    stream: Any = 0
    dynamic_shared: Any = 0  # bytes
    cluster: Any = None
    programmatic_stream_serialization: bool = False


class DeviceFunction:
    """A function for kernels to call; outside kernels it runs as plain Python."""

    def __init__(self, py_func: Callable[..., Any]) -> None:
        self.py_func = py_func
        update_wrapper(self, py_func)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the Python function, on the host."""
        return self.py_func(*args, **kwargs)


class Backend(Protocol):
    """One PE's connection to the machine, from `init` to `finalize`.

    It is made with the size of the heap in bytes, when the PEs have found each other: they are
    `job.current()` or `peers.current()`, as `About.shares_memory` says.
    """

    name: str  # in the registry
    on_gpu: bool  # whether its memory is a GPU's
    my_pe: int
    n_pes: int
    heap_bytes: int
    gpu: tuple[int, int]  # multiprocessors that each PE has, at least, major capability; or zeros
    allocated: Callable[[], Sequence[Any]]  # set by the runtime: `memory.stats.Allocated`, sorted

    def meet(self, what: str, nbytes: int = -1) -> None:
        """Wait until every PE is in this collective call with the same `what` and `nbytes`.

        Waits for this PE's streams first, and raises the error of a kernel that failed. Raises
        `CollectiveMismatch` on every PE when they are not in the same call.
        """

    def set_timeout(self, seconds: float | None) -> None:
        """End the job when a host has waited so many seconds in one call; None: never."""

    def symmetric(self, offset: int, shape: Shape, dtype: np.dtype[Any]) -> Any:
        """Native array at `offset` in this PE's symmetric segment, just allocated."""

    def released(self, offset: int, nbytes: int) -> None:
        """The memory of a symmetric array has been freed."""

    def heap_offset(self, native: Any) -> int:
        """Offset in the segment of a native array made by `symmetric`, or of a view of one."""

    def device_array(self, shape: Shape, dtype: np.dtype[Any]) -> Any:
        """Native array in ordinary device memory, contents undefined."""

    def to_host(self, native: Any) -> np.ndarray[Any, Any]:
        """Copy of a native array in host memory; waits for this PE's streams first."""

    def from_host(self, native: Any, values: Any) -> None:
        """Write `values`, broadcast, to a native array; waits for this PE's streams first."""

    def lends(self, memory: np.ndarray[Any, Any]) -> bool:
        """Whether kernels can use a writeable host array itself, if they are waited for."""

    def expose(self, native: Any) -> None:
        """The program has got the memory of a native array, and may use it from now on, unseen."""

    def register(self, buffer: Any, memory: np.ndarray[Any, Any], on_gpu: bool) -> Any:
        """Native array on the user's memory; raises `ArgumentError` if the device cannot use it.

        `memory` describes it, C-contiguous and writable: shape, dtype, address; it can be read
        unless it is in a GPU's memory, `on_gpu`. `buffer` is the user's object.
        """

    def unregister(self, native: Any) -> None:
        """Undo `register`. No stream of this PE uses the memory any more."""

    def locate(self, start: int, end: int) -> tuple[int, bool] | None:
        """Offset of addresses in a segment, and whether it is this PE's; None: in no segment."""

    def adopt(self, memory: np.ndarray[Any, Any], owner: Any) -> Any:
        """Native array on memory in a segment, of `owner`, which another library made."""

    # A user's buffer becomes symmetric: the PEs meet between `check_external` and `claim`.

    def check_external(self, what: str, memory: np.ndarray[Any, Any], on_gpu: bool) -> None:
        """Raise `ArgumentError` if a buffer, as for `register`, cannot be symmetric memory."""

    def claim(self, memory: np.ndarray[Any, Any], alloc: Callable[[int, int], int]) -> int:
        """Find the offset for a buffer: from `alloc(nbytes, alignment)`, or outside of the heap."""

    def attach(self, memory: np.ndarray[Any, Any], offset: int) -> Any:
        """Native array on the buffer's memory at `offset`, from `claim`, with its contents."""

    def detach(self, memory: np.ndarray[Any, Any], offset: int) -> None:
        """Undo `attach`: the buffer is ordinary memory again, with its contents."""

    def stream(self, priority: int, nonblocking: bool) -> Any:
        """Make a stream: an object with `synchronize()`, which launches and operations take.

        The default stream is ordered with it unless it is `nonblocking`.
        Raises `ArgumentError` for a priority that there is not.
        """

    def tuned(self, tuning: Tuning) -> Tuning:
        """How to launch on this machine, which may lack what `tuning` takes for granted."""

    def wait_stream(self, stream: Any, other: Any) -> bool:
        """Order `stream` after `other`, whatever launches take as one; False: they are the same."""

    def on_stream(self, stream: Any, call: Callable[[int | None], object]) -> None:
        """Call it in a stream's order, or now with the stream's handle, to queue what it does."""

    def is_capturing(self, stream: Any) -> bool:
        """Whether what is queued on a stream now is for a graph."""

    def capture(self, stream: Any) -> AbstractContextManager[Any]:
        """Capture a stream, for a `with` block; gives the graph, with `launch(stream=0)`."""

    def synchronize(self) -> None:
        """Wait for all streams of this PE; raises the error of a kernel that failed."""

    def stop(self, seconds: float) -> bool:
        """Cancel this PE's launches, if possible; returns whether all end within `seconds`."""

    def trace_range(self, name: str) -> AbstractContextManager[Any]:
        """Name, for a `with` block, what the host does in it: in traces and profiles."""

    def stats(self) -> Any:
        """The counters of what this PE does (`trace.counters.Stats`); None if there are none."""

    def settle(self, what: str) -> None:
        """`synchronize`, and compare the last collective calls of all PEs.

        Called at the end of a script or of the runtime; `what` names it.
        """

    def kernel(self, py_func: Callable[..., Any], options: dict[str, Any]) -> Any:
        """The object that `prepare` launches for a Python function; nothing is compiled yet.

        Raises `ArgumentError` for options of `jit` that are not known.
        """

    def prepare(self, kernel: Any, config: Config, args: tuple[Any, ...]) -> Callable[[], None]:
        """Make a launch, to be called any number of times; it keeps the arguments alive.

        A backend without kernels raises `ShmemError`.
        """

    def launch(self, kernel: Any, args: tuple[Any, ...], *config: Any) -> None:
        """`prepare` a launch with `Config(*config)`, and make it."""

    def init_module(self, module: Any) -> None:
        """Let code of another compiler, loaded on the GPU, call NVSHMEM's device functions.

        A backend without such code raises `hostcalls.no_modules`.
        """

    def qp_create(self, n: int) -> Sequence[int]:
        """The numbers of new queue pairs; all PEs are in this call with the same `n`."""

    def call(self, op: Op, arguments: dict[str, Any]) -> Any:
        """Host side of an operation; its `arguments`, by name, are not checked yet.

        Arrays are native arrays, or NumPy arrays within memory that is registered. With a `stream`
        among the arguments it takes its turn there, and returns nothing.
        """

    def preload(self, op: Op, arguments: dict[str, Any]) -> None:
        """Compile and load what `call` needs with arguments of these types, and call nothing."""

    def close(self) -> None:
        """Give everything back; no PE uses the heap any more."""
