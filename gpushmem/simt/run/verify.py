"""GPUSHMEM_VERIFY=1: each launch runs twice, and both runs must leave the same in memory.

How the engine runs the threads of a block in step, in loops and in vectors, is decided by its own
passes (`simt/blocks`). An error of theirs would be a wrong result without a word. So a launch runs
as it always does; then its arrays are as they were, and it runs again, with each thread by itself,
for which those passes do nothing. Where the arrays differ, a third run, also with each thread by
itself, sees who writes the first element that does.

Verified are launches that have the arrays of their arguments to themselves: not those whose kernel
calls operations of PEs, names arrays of this process, polls memory, or gets memory that others may
write to meanwhile (`sharers`). Threads that race may differ with each run, too.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numba.cuda import types
from numba.cuda.np import numpy_support

from gpushmem.artifacts.argument_packing import address_of
from gpushmem.errors import KernelError
from gpushmem.native.memory import set_word, word_at
from gpushmem.native.structs import view
from gpushmem.simt.base import printing
from gpushmem.simt.base.layout import LAUNCH, THREAD
from gpushmem.simt.compiler import observer
from gpushmem.simt.compiler.cached_functions import kept
from gpushmem.simt.compiler.primitives import launch_word, site_word, thread_word
from gpushmem.simt.grid import entry as entries
from gpushmem.simt.run.kernel import Form, Kernel, Running, text_at

__all__ = ["Verified", "counts", "sharers", "verifiable"]

# Each says whether somebody else may write to the bytes from one address to another.
sharers: list[Callable[[int, int], bool]] = []
counts = {"verified": 0, "passed over": 0}  # launches of kernels that could be verified
OPTIONS = ("debug", "fastmath", "forceinline")
_one_at_a_time = threading.RLock()


def verifiable(form: Form) -> bool:
    """Whether launches can be verified, and are run in another way than thread by thread."""
    entry = form.entry
    alone = entry.kind == "loops" and entries.ONE in entry.serves  # nothing was made of the block
    known = form.source is not None and entry.cacheable and not entry.embedded
    return known and not entry.observed and not alone and entry.kind != "fibers"


class Verified(Running):
    """A launch that runs twice."""

    __slots__ = ("_packed", "_polled")

    def __init__(self, form: Form, packed: bytes, *rest: Any) -> None:
        super().__init__(form, packed, *rest)
        self._packed = packed

    def complete(self, launch: np.ndarray[Any, Any], code: int) -> int:
        """See `Running`; notes whether threads have polled."""
        self._polled = bool(launch["polls"][0])
        return super().complete(launch, code)

    def __call__(self) -> None:
        """Run the grid on this thread, twice; raises `KernelError` if the runs differ."""
        arrays = list(_arrays(self.source.argtypes, self._packed, self._names()))
        memory = None if None in arrays else _Memory([a for a in arrays if a is not None])
        if memory is None or memory.is_shared():
            counts["passed over"] += 1
            super().__call__()
            return
        with _one_at_a_time:
            before = memory.copies()
            super().__call__()
            if self._polled:
                counts["passed over"] += 1
                return
            after = memory.copies()
            try:
                memory.put(before)
                _by_threads(self)()
                differs = memory.first_difference(after)
                if differs is not None:
                    report = self._report(differs, before, memory)
            finally:
                memory.put(after)
        counts["verified"] += 1
        if differs is not None:
            raise KernelError(report)

    def _names(self) -> list[str]:
        return list(self.source.py_func.__code__.co_varnames)

    def _report(self, differs: Difference, before: Copies, memory: _Memory) -> str:
        memory.put(before)
        seen = np.zeros(3, np.int64)
        seen[0] = differs.address
        again = _by_threads(self, OBSERVER)
        again.launch["log"] = address_of(seen)
        again()
        where = "by no thread" if not seen[1] else self._where(int(seen[1]) - 1, int(seen[2]))
        code = self.source.py_func.__code__
        return (
            f"kernel {self.name} ({code.co_filename}:{code.co_firstlineno}): {differs.element} is "
            f"{differs.usual} after the launch, and {differs.alone} if each thread runs by itself, "
            f"written last {where}. Either threads race, which `gpushmem run --check` finds, or "
            "the engine is wrong: please report the kernel (GPUSHMEM_VERIFY)"
        )

    def _where(self, thread: int, site: int) -> str:
        block, number = divmod(thread, self.shape.threads)
        bid, tid = (
            tuple(map(int, np.unravel_index(k, extents, "F")))
            for k, extents in ((block, self.shape.grid), (number, self.shape.block))
        )
        return f"at {text_at(site)} by block {bid}, thread {tid}"


class _Silent(Running):
    """A launch whose text is not printed, as it has been before."""

    __slots__ = ()

    def complete(self, launch: np.ndarray[Any, Any], code: int) -> int:
        launch["text_bytes"] = 0
        return super().complete(launch, code)


def _by_threads(run: Verified, seen: observer.Observer | None = None) -> Running:
    """The same launch with each thread by itself, perhaps observed."""
    with observer.seen_by(seen):
        form = _form(run.form, seen)
    return _Silent(form, run._packed, run._keep, run.explain)


def _form(form: Form, seen: observer.Observer | None) -> Form:
    key = "observed" if seen else "by threads"
    if key not in form.others:
        assert form.source is not None  # see `verifiable`
        options = {k: v for k, v in form.source.options.items() if k in OPTIONS}
        kernel = Kernel(form.source.py_func, cache=True, lockstep=False, **options)
        entry = kernel.compile(form.source.argtypes, entries.ONE)
        made = form.others[key] = Form(form.name, entry, form.shape, collective=form.meets)
        made.launch["flush"] = printing.dropping()
    return form.others[key]


# --- who writes an element


as_launch, as_thread = view(LAUNCH), view(THREAD)


@kept
def access(place, address, nbytes, how, value):  # type: ignore[no-untyped-def]
    seen = as_launch(launch_word()).log  # the address that is asked for, then who writes there
    if seen != 0 and how & 3 != observer.LOAD and address <= word_at(seen) < address + nbytes:
        set_word(seen + 8, as_thread(thread_word()).number + 1)
        set_word(seen + 16, site_word())


@kept
def nothing():  # type: ignore[no-untyped-def]
    pass


@kept
def no_matter(which):  # type: ignore[no-untyped-def]
    pass


OBSERVER = observer.Observer(
    "verify", access=access, fences=no_matter, block_met=nothing, warp_meets=no_matter,
    warp_met=no_matter, grid_meets=nothing, grid_met=nothing,
)  # fmt: skip


# --- memory


class Difference(NamedTuple):
    """The first element that differs."""

    element: str
    address: int
    usual: Any
    alone: Any


class _Array(NamedTuple):
    name: str
    values: np.ndarray[Any, Any]
    start: int  # addresses
    end: int


def _arrays(argtypes: Any, packed: bytes, names: list[str]) -> Iterator[_Array | None]:
    """The arrays of packed arguments; None for what may be an address of memory of any size."""
    words = memoryview(packed).cast("q").tolist()
    for typ, name in zip(argtypes, names, strict=False):
        yield from _arrays_of(typ, name, words)


def _arrays_of(typ: Any, name: str, words: list[int]) -> Iterator[_Array | None]:
    if isinstance(typ, types.Array):
        n = typ.ndim
        (_, _, _, itemsize, data), extents, strides = words[:5], words[5 : 5 + n], words[5 + n :]
        del words[: 5 + 2 * n]
        yield _array(name, data, extents, strides[:n], _dtype(typ, itemsize))
    elif isinstance(typ, types.BaseTuple):
        for k, inner in enumerate(typ.types):
            yield from _arrays_of(inner, f"{name}[{k}]", words)
    elif isinstance(typ, types.Record):
        yield _array(name, words.pop(0), [1], [typ.size], np.dtype((np.void, typ.size)))
    elif isinstance(typ, types.CPointer):
        yield None
    else:
        del words[: 2 if isinstance(typ, types.Complex) else 1]


def _dtype(typ: Any, itemsize: int) -> np.dtype[Any]:
    try:
        dtype = np.dtype(numpy_support.as_dtype(typ.dtype))
    except NotImplementedError:  # a type of NVIDIA's own
        dtype = np.dtype((np.void, itemsize))
    return dtype if dtype.itemsize == itemsize else np.dtype((np.void, itemsize))


def _array(
    name: str, data: int, extents: list[int], strides: list[int], dtype: np.dtype[Any]
) -> _Array:
    steps = [(n - 1) * stride for n, stride in zip(extents, strides, strict=True)]
    empty = 0 in extents
    low = 0 if empty else sum(step for step in steps if step < 0)
    high = 0 if empty else dtype.itemsize + sum(step for step in steps if step > 0)
    memory: Any = (ctypes.c_char * (high - low)).from_address(data + low)
    values: np.ndarray[Any, Any] = np.ndarray(extents, dtype, memory, -low, strides)
    return _Array(name, values, data + low, data + high)


Copies = list[np.ndarray[Any, Any]]


class _Memory:
    """The arrays of a launch; they may overlap."""

    def __init__(self, arrays: list[_Array]) -> None:
        self.arrays = arrays

    def is_shared(self) -> bool:
        """Whether somebody else may write to it."""
        return any(test(a.start, a.end) for a in self.arrays for test in sharers)

    def copies(self) -> Copies:
        """All elements, as they are now."""
        return [array.values.copy() for array in self.arrays]

    def put(self, copies: Copies) -> None:
        """Write to the arrays that differ: some may be memory that cannot be written."""
        for array, copy in zip(self.arrays, copies, strict=True):
            if array.values.tobytes() != copy.tobytes():
                array.values[...] = copy

    def first_difference(self, after: Copies) -> Difference | None:
        """Where memory is not as it was `after` the usual run; NaN is NaN."""
        for array, usual in zip(self.arrays, after, strict=True):
            values = array.values
            differs = np.flatnonzero(~_equal(usual, values))
            if len(differs):
                index = tuple(map(int, np.unravel_index(differs[0], usual.shape)))
                offset = sum(i * stride for i, stride in zip(index, values.strides, strict=True))
                element = f"{array.name}[{', '.join(map(str, index))}]"
                return Difference(element, address_of(values) + offset, usual[index], values[index])
        return None


def _equal(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> Any:
    same = one == other
    if one.dtype.kind in "fc":
        same = same | (np.isnan(one) & np.isnan(other))
    return np.broadcast_to(same, one.shape).reshape(-1)
