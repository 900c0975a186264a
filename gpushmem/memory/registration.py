"""Registered buffers: the user's existing memory as local memory of operations.

This module keeps the books only: address ranges, and which registrations are still valid. Making
the memory accessible to the device is the backend's task.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gpushmem.arguments import shown, taking
from gpushmem.backends.base import Backend
from gpushmem.errors import ArgumentError
from gpushmem.memory.array import DeviceArray, Lifetime, is_symmetric
from gpushmem.memory.tensors import in_gpu_memory, in_host_memory, layout_of, memory_of
from gpushmem.memory.validation import plain
from gpushmem.size import span

__all__ = ["Registrations"]

Memory = np.ndarray[Any, Any]

# Memory that cannot be registered, and the reason given in the error.
REFUSED: list[tuple[Callable[[Memory], bool], str]] = [
    (lambda memory: memory.dtype.hasobject, "it holds Python objects, not numbers"),
    (
        lambda memory: not memory.flags.c_contiguous,
        "it is not contiguous: register the array it is a view of, or a contiguous copy",
    ),
    (
        lambda memory: not memory.flags.writeable,
        "it is read-only: gpushmem.to_device makes a copy for the device",
    ),
]


class Registration(Lifetime):
    """A registered buffer and the native array on its memory."""

    def __init__(self, buffer: Any, memory: Memory, native: Any) -> None:
        self.buffer = buffer  # kept alive
        self.memory, self.native = memory, native

    def check(self) -> None:
        """Raise `ArgumentError` if the buffer is no longer registered."""
        if self.released_by is not None:
            raise ArgumentError(
                f"registered buffer of shape {self.memory.shape}, {self.memory.dtype}, was used "
                f"after {self.released_by}: register it again"
            )


class Registrations:
    """The registered buffers of this PE."""

    def __init__(self, backend: Backend, is_symmetric: Callable[[int, int], bool]) -> None:
        self._backend, self._is_symmetric = backend, is_symmetric
        self._live: list[Registration] = []

    def add(self, buffer: Any) -> DeviceArray:
        """Register `buffer`; return the array for kernels and operations, on the same memory."""
        if isinstance(buffer, DeviceArray) and is_symmetric(buffer):
            raise ArgumentError(
                f"register: a {type(buffer).__name__} is already device memory, and symmetric: use "
                "it directly"
            )
        memory = self.registrable("register", buffer)
        native = self._backend.register(buffer, memory, in_gpu_memory(buffer))
        made = Registration(buffer, memory, native)
        self._live.append(made)
        return DeviceArray(made.native, self._backend, made)

    def remove(self, buffer: Any) -> None:
        """End the registration of `buffer`: the argument of `add`, or its result."""
        memory = describe("unregister", buffer)
        for registration in self._live:
            if memory is not None and span(registration.memory) == span(memory):
                self._backend.synchronize()
                self._live.remove(registration)
                self._end(registration, "unregister")
                return
        raise ArgumentError(
            f"unregister: {_words(buffer, memory)} is not registered, as a whole; registered: "
            + (", ".join(_range(r.memory) for r in self._live) or "nothing")
        )

    def close(self) -> None:
        """End all registrations, for `finalize`."""
        while self._live:
            self._end(self._live.pop(), "finalize")

    def local(self, what: str, name: str, value: Any) -> Any:
        """Return `value` as the local array of operation `what`, if the device can access it."""
        if isinstance(value, DeviceArray):
            return value
        memory = describe(what, value)
        if in_gpu_memory(value):
            return value
        if memory is not None and any(_within(memory, r.memory) for r in self._live):
            return memory
        raise ArgumentError(
            f"{what}: {name} ({_words(value, memory)}) is ordinary host memory, which a GPU cannot "
            "access: pass gpushmem.register(it), the same memory, or gpushmem.to_device(it), a "
            "copy"
        )

    def shared(self, what: str, name: str, value: Any) -> DeviceArray:
        """Return the array for kernels on registered host memory `value`, or on a part of it."""
        memory = self.local(what, name, value)
        if not memory.flags.c_contiguous:
            raise ArgumentError(f"{what}: {name} ({_words(value, memory)}) is not contiguous")
        whole = next(r for r in self._live if _within(memory, r.memory))
        start = span(memory)[0] - span(whole.memory)[0]
        there = whole.native.reshape(-1).view(np.uint8)[start : start + memory.nbytes]
        native = there.view(memory.dtype).reshape(memory.shape)
        return DeviceArray(native, self._backend, whole)

    def registrable(self, what: str, buffer: Any) -> Memory:
        """Return the memory of `buffer` if it can be registered by function `what`."""
        memory = describe(what, buffer)
        if memory is None:
            raise ArgumentError(
                f"{what}: {type(buffer).__name__} is not an array: it has neither "
                "__array_interface__ nor __dlpack__; numpy.asarray(it) may share its memory"
            )
        for refused, why in REFUSED:
            if refused(memory):
                raise ArgumentError(f"{what}: {_words(buffer, memory)}: {why}")
        plain(what, memory.dtype)
        start, end = span(memory)
        if self._is_symmetric(start, end):
            raise ArgumentError(f"{what}: {_range(memory)}, or some of them, are symmetric already")
        for other in self._live:
            low, high = span(other.memory)
            if start < high and low < end:
                raise ArgumentError(
                    f"{what}: {_range(memory)} overlap {_range(other.memory)}, which are already "
                    "registered: unregister those first, or use slices of them"
                )
        return memory

    def _end(self, registration: Registration, why: str) -> None:
        registration.released_by = why
        self._backend.unregister(registration.native)


def describe(what: str, buffer: Any) -> Memory | None:
    """Return a NumPy array on the memory of `buffer`; None if it is not an array.

    For GPU memory only shape, dtype and address are valid: it must not be read.
    """
    if in_host_memory(buffer):
        return np.asarray(memory_of(what, buffer))
    with taking(f"{what}: {shown(buffer)}"):
        if in_gpu_memory(buffer):
            return layout_of(what, buffer)
        if isinstance(buffer, np.generic):  # a scalar: its array interface would be a copy
            return None
        if isinstance(buffer, DeviceArray) or hasattr(buffer, "__array_interface__"):
            return np.asarray(buffer)
        return _through_dlpack(what, buffer) if hasattr(buffer, "__dlpack__") else None


def _through_dlpack(what: str, buffer: Any) -> Memory:
    try:
        memory: Memory = np.from_dlpack(buffer)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise ArgumentError(
            f"{what}: NumPy cannot share the memory of this {type(buffer).__name__}: {error}"
        ) from error
    if not memory.flags.writeable and hasattr(buffer, "__array__"):
        # DLPack before 1.0 has no read-only flag; the array's own NumPy view has.
        own = np.asarray(buffer)
        memory = own if span(own) == span(memory) else memory
    return memory


def _within(memory: Memory, whole: Memory) -> bool:
    (start, end), (low, high) = span(memory), span(whole)
    return low <= start and end <= high


def _range(memory: Memory) -> str:
    start, end = span(memory)
    return f"{end - start} bytes at {start:#x} to {end:#x}"


def _words(value: Any, memory: Memory | None) -> str:
    kind = type(value).__name__
    return f"{kind} {memory.shape} {memory.dtype}" if memory is not None else kind
