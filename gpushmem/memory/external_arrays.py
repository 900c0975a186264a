"""Arrays of other libraries in symmetric memory: made there, and recognised by their addresses.

An array of NumPy, PyTorch or CuPy that shares a symmetric array's memory, or a part of it, is taken
wherever a gpushmem array is; so is a user's buffer that is symmetric memory (`Attachment`). PyTorch
and CuPy are never imported here: whoever passes something of them has imported them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from gpushmem.arguments import shown, taking
from gpushmem.backends.base import Backend
from gpushmem.errors import ArgumentError, ArgumentTypeError, SymmetryError
from gpushmem.memory.array import Allocation, DeviceArray, SymmetricArray
from gpushmem.memory.registration import Memory, describe
from gpushmem.memory.stats import Allocated
from gpushmem.memory.tensors import in_gpu_memory, in_host_memory, is_tensor
from gpushmem.memory.validation import CODES
from gpushmem.ops.team import Team
from gpushmem.size import span

__all__ = ["PLAIN", "Attachment", "Known", "Library", "library_of", "whose"]


# Types of values that are no arrays of other libraries.
PLAIN = frozenset({
    DeviceArray, SymmetricArray, int, float, complex, bool, str, type(None), Team,
    *(np.dtype(c).type for c in CODES),
})  # fmt: skip


class Attachment(Allocation):
    """A user's buffer as symmetric memory; `unregister_symmetric` ends it."""

    def __init__(
        self, made: Allocated, end: Callable[[Any], None], buffer: Any, memory: Memory
    ) -> None:
        super().__init__(made, end)
        self.buffer, self.memory = buffer, memory  # the former is kept alive
        self.native: Any = None

    def part(self, memory: Memory) -> Any:
        """The native array on the same elements as `memory`, a part of the buffer on the host."""
        start = memory.__array_interface__["data"][0] - span(self.memory)[0]
        whole = self.native.reshape(-1).view(np.uint8)
        return np.ndarray(memory.shape, memory.dtype, whole.data, start, memory.strides)


class Known:
    """Recognises symmetric memory. `allocations` are those of the heap, by offset."""

    def __init__(self, backend: Backend, allocations: dict[int, Allocation]) -> None:
        self._backend, self._allocations = backend, allocations
        self.buffers: list[Attachment] = []  # kept also when the session ends with an error

    def __call__(self, what: str, value: Any) -> Any:
        """Return `value` as an array of gpushmem if its memory is symmetric, else unchanged.

        Raises `SymmetryError` if it was symmetric and has been freed.
        """
        if isinstance(value, tuple):
            if PLAIN.issuperset(map(type, value)):  # quick, because each launch does this
                return value
            return tuple(self(what, item) for item in value)
        if type(value) in PLAIN:
            return value
        with taking(what):
            is_array = in_host_memory(value) or in_gpu_memory(value)
        memory = describe(what, value) if is_array else None
        if memory is None:
            return value
        start, end = span(memory)
        found = self._backend.locate(start, end)
        if found is None:
            return self._part_of_buffer(memory, start, end, value)
        offset, is_own = found
        allocation = self._holding(offset, offset + end - start)
        if allocation is None:
            raise SymmetryError(
                f"{what}: {shown(value)} is symmetric memory at offset {offset:#x} that was freed"
            )
        kind = SymmetricArray if is_own else DeviceArray
        return kind(self._backend.adopt(memory, value), self._backend, allocation)

    def _holding(self, low: int, high: int) -> Allocation | None:
        # A search takes long where there are many, and nearly always this is it.
        exact = self._allocations.get(low)
        candidates = list(self._allocations.values()) if exact is None else [exact]
        for found in candidates:
            if found.made.offset <= low and high <= found.made.offset + found.made.nbytes:
                return found
        return None

    def _part_of_buffer(self, memory: Memory, start: int, end: int, value: Any) -> Any:
        for found in self.buffers:
            low, high = span(found.memory)
            if low <= start and end <= high and in_host_memory(value):
                return SymmetricArray(found.part(memory), self._backend, found)
        return value

    def overlaps(self, start: int, end: int) -> bool:
        """Whether some bytes are of a buffer that is symmetric memory."""
        return any(
            low < end and start < high for low, high in (span(b.memory) for b in self.buffers)
        )


# --- arrays of another library, made in symmetric memory


class Library(NamedTuple):
    """A library of arrays, for `like=`."""

    name: str
    owns: Callable[[Any], bool]  # whether an array is its own
    unreachable: Callable[[bool], str | None]  # why it cannot share memory, of a GPU or not
    has: Callable[[np.dtype[Any]], bool]  # whether it has a dtype

    def check(self, what: str, on_gpu: bool, dtype: np.dtype[Any], nbytes: int) -> None:
        """Raise `ArgumentError` if it cannot have such an array on the same memory."""
        why = self.unreachable(on_gpu)
        if why is None and not self.has(dtype):
            why = f"it has no dtype {dtype}"
        if why is None and not nbytes and self.name != "numpy":
            why = "its arrays without elements have no address, by which they are recognised"
        if why is not None:
            raise ArgumentError(f"{what}: like={self.name} is not possible: {why}")

    def share(self, array: DeviceArray) -> Any:
        """Return the library's array on the memory of `array`."""
        if self.name == "numpy":
            return np.asarray(array)
        library: Any = sys.modules[self.name]
        return library.from_dlpack(array)


def _numpy_lacks(on_gpu: bool) -> str | None:
    return "the host cannot access a GPU's memory; numpy() copies" if on_gpu else None


def _cupy_lacks(on_gpu: bool) -> str | None:
    return None if on_gpu else "CuPy's arrays are in a GPU's memory, and this backend has none"


def _torch_lacks(on_gpu: bool) -> str | None:
    torch = sys.modules["torch"]
    missing = on_gpu and torch.version.cuda is None
    return f"PyTorch {torch.__version__} was built without CUDA" if missing else None


def _is_cupys(array: Any) -> bool:
    return type(array).__module__.partition(".")[0] == "cupy"


LIBRARIES = {
    "numpy": Library(
        "numpy", lambda array: isinstance(array, np.ndarray), _numpy_lacks, lambda dtype: True
    ),
    "torch": Library(
        "torch", is_tensor, _torch_lacks, lambda dtype: hasattr(sys.modules["torch"], dtype.name)
    ),
    "cupy": Library("cupy", _is_cupys, _cupy_lacks, lambda dtype: dtype.kind in "?biufc"),
}


def library_of(what: str, like: Any) -> Library | None:
    """Return the library that `like` is, or is an array of; None for gpushmem itself."""
    if like is None or isinstance(like, DeviceArray):
        return None
    found = LIBRARIES.get(like.__name__) if isinstance(like, ModuleType) else whose(like)
    if found is None:
        raise ArgumentTypeError(
            f"{what}: like must be {', '.join(LIBRARIES)}, or an array of one of these, not "
            f"{shown(like)}"
        )
    return found


def whose(array: Any) -> Library | None:
    """Return the library that an array is of; None for gpushmem itself, and any other."""
    return next((library for library in LIBRARIES.values() if library.owns(array)), None)
