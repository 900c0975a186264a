"""The interface's methods: memory, streams without concurrency, and operations by a table.

Every call, also on a stream, is complete when it returns, so there are no waits.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from gpushmem.arguments import integer
from gpushmem.artifacts.launch_shape import PRIORITIES
from gpushmem.backends import page_sharing
from gpushmem.backends.base import Config, Shape
from gpushmem.backends.host import call_checks
from gpushmem.backends.host.call_arguments import checked
from gpushmem.backends.host.call_checks import check_buffer
from gpushmem.backends.host.host_kernels import no_modules
from gpushmem.backends.null.operations import OPERATIONS, Here
from gpushmem.backends.null.teams import Teams
from gpushmem.backends.operation_errors import no_stream
from gpushmem.backends.properties import Tuning
from gpushmem.errors import (
    BackendUnavailable,
    HeapExhausted,
    ShmemError,
)
from gpushmem.job import ranks
from gpushmem.ops import QP_DEFAULT, Op
from gpushmem.size import format_size

__all__ = ["NullBackend", "Stream"]

Array = np.ndarray[Any, Any]


class Stream:
    """A stream on which everything is done at once."""

    def synchronize(self) -> None:
        """Nothing to wait for."""


class NullBackend:
    """The only PE of a job; see `backends.base.Backend` for what each method promises."""

    name = "null"
    my_pe, n_pes = 0, 1
    on_gpu = False
    gpu = 0, 0

    def __init__(self, heap_bytes: int) -> None:
        found = ranks.current()
        if found is not None and found.n_pes > 1:
            raise BackendUnavailable(
                f"backend null has one PE, and this job has {found.n_pes}: use the backend cpu"
            )
        self.heap_bytes = heap_bytes
        self.allocated: Callable[[], Sequence[Any]] = list
        self._here = Here(_zeroed(heap_bytes), Teams())

    # --- meeting

    def meet(self, what: str, nbytes: int = -1) -> None:
        """The only PE is always in the same call as all others."""

    def set_timeout(self, seconds: float | None) -> None:
        """No call waits for another PE, or for a kernel."""

    def synchronize(self) -> None:
        """Nothing runs beside the host."""

    def stop(self, seconds: float) -> bool:
        """There are no launches."""
        return True

    def trace_range(self, name: str) -> AbstractContextManager[Any]:
        return nullcontext()

    def stats(self) -> None:
        """It counts nothing."""

    def settle(self, what: str) -> None:
        """The only PE has called the same as all others."""

    def close(self) -> None:
        """Nothing to do: the heap is freed with the last array that refers to it."""

    # --- memory

    def symmetric(self, offset: int, shape: Shape, dtype: np.dtype[Any]) -> Array:
        return np.ndarray(shape, dtype, buffer=self._here.heap.data, offset=offset)

    def released(self, offset: int, nbytes: int) -> None:
        """Nothing to do."""

    def heap_offset(self, native: Array) -> int:
        return self._here.offset(native)

    def device_array(self, shape: Shape, dtype: np.dtype[Any]) -> Array:
        return np.empty(shape, dtype)

    def to_host(self, native: Array) -> Array:
        return np.array(native)

    def from_host(self, native: Array, values: Any) -> None:
        np.copyto(native, values, casting="unsafe")  # as assignment to a NumPy array does

    def lends(self, memory: Array) -> bool:
        return False

    def expose(self, native: Array) -> None:
        """Nothing to do: nobody looks."""

    def register(self, buffer: Any, memory: Array, on_gpu: bool) -> Array:
        check_buffer(self.name, buffer, memory, on_gpu, self._here.holds)
        return memory

    def unregister(self, native: Array) -> None:
        """Nothing to do."""

    def locate(self, start: int, end: int) -> tuple[int, bool] | None:
        return self._here.locate(start, end)

    def adopt(self, memory: Array, owner: Any) -> Array:
        return memory

    def check_external(self, what: str, memory: Array, on_gpu: bool) -> None:
        page_sharing.check(what, self.name, memory, on_gpu)

    def claim(self, memory: Array, alloc: Callable[[int, int], int]) -> int:
        return alloc(memory.nbytes, page_sharing.PAGE)

    def attach(self, memory: Array, offset: int) -> Array:
        native = self.symmetric(offset, memory.shape, memory.dtype)
        page_sharing.share(memory, native)
        return native

    def detach(self, memory: Array, offset: int) -> None:
        page_sharing.separate(memory)

    # --- kernels: none

    def stream(self, priority: int, nonblocking: bool) -> Stream:
        integer("stream: priority", priority, *PRIORITIES)
        return Stream()

    def tuned(self, tuning: Tuning) -> Tuning:
        return tuning

    def wait_stream(self, stream: Any, other: Any) -> bool:
        return (stream or None) is not (other or None)  # nothing is ever queued

    def on_stream(self, stream: Any, call: Callable[[int | None], object]) -> None:
        call(None)

    def is_capturing(self, stream: Any) -> bool:
        return False

    def capture(self, stream: Any) -> AbstractContextManager[Any]:
        raise ShmemError("capture: the null backend queues nothing: use the backend cpu")

    def kernel(self, py_func: Callable[..., Any], options: dict[str, Any]) -> Callable[..., Any]:
        return py_func

    def prepare(
        self, kernel: Callable[..., Any], config: Config, args: tuple[Any, ...]
    ) -> Callable[[], None]:
        raise ShmemError(
            f"kernel {kernel.__name__}: the null backend runs no kernels: use the backend cpu "
            "(GPUSHMEM_BACKEND=cpu), or nvshmem on a GPU"
        )

    def launch(self, kernel: Callable[..., Any], args: tuple[Any, ...], *config: Any) -> None:
        self.prepare(kernel, Config(*config), args)

    def init_module(self, module: Any) -> None:
        raise no_modules(self.name)

    def qp_create(self, n: int) -> Sequence[int]:
        return [QP_DEFAULT] * n

    # --- host side of the operations

    def preload(self, op: Op, arguments: dict[str, Any]) -> None:
        checked(op, arguments)  # there is nothing to compile

    def call(self, op: Op, arguments: dict[str, Any]) -> Any:
        given = checked(op, arguments)
        stream = given.pop("stream", None)
        default = isinstance(stream, int) and stream == 0
        if not default and not isinstance(stream, Stream | None):
            raise no_stream(stream)
        if op.base not in OPERATIONS:
            raise LookupError(
                f"{op.base} has no host side: add it to OPERATIONS in backends/null/operations.py"
            )
        if op.facts.meets and "team" in given:
            self._here.teams.check(given["team"], op.name)
        if op.arrays:
            call_checks.check(op, given, 1, self._here.check, lambda team: 1)
        result = OPERATIONS[op.base](self._here, **given)
        return result if stream is None else None


def _zeroed(nbytes: int) -> Array:
    """Memory that is used up only as it is written, from the start of a page."""
    try:
        return np.frombuffer(mmap.mmap(-1, nbytes), np.uint8)
    except (OSError, OverflowError) as error:
        raise HeapExhausted(
            f"init: there is no memory for a symmetric heap of {format_size(nbytes)} ({error}): "
            "ask for less (heap_size=, GPUSHMEM_HEAP_SIZE)"
        ) from error
