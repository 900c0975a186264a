"""Kernels: Python functions, compiled per signature and launched on a grid."""

from __future__ import annotations

import ctypes
import functools
import itertools
import math
import time
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numba.core.errors import NumbaError
from numba.cuda import types
from numba.cuda.typing.typeof import Purpose, typeof

from gpushmem.artifacts.arguments import address_of, pack, types_of
from gpushmem.artifacts.shape import LaunchShape
from gpushmem.errors import ArgumentError, KernelError
from gpushmem.simt.base import embedding, printing
from gpushmem.simt.base.gpu_model import MAX_SHARED, SM_BLOCKS, SM_COUNT, SM_THREADS
from gpushmem.simt.base.layout import LAUNCH, POOL, new
from gpushmem.simt.base.parking import Parked
from gpushmem.simt.compiler import observer
from gpushmem.simt.compiler.primitives import ASSERTED
from gpushmem.simt.compiler.target import exceptions
from gpushmem.simt.grid import entry as entries
from gpushmem.simt.grid import sharing
from gpushmem.simt.run import cores, scheduler

__all__ = ["Kernel", "Running", "Source", "run_hooks"]

MAX_RESIDENT_THREADS = scheduler.GUARDED  # unless the grid synchronises
STACK_BYTES = 256 * 1024  # address space, beside the kernel's local arrays
SAMPLE = 16  # the part of a grid that runs before it is shared among cores
WORTH_SHARING = 300e-6  # seconds of work from which on a second core pays
PAGE = 4096
# Types of scalars whose Numba type does not depend on the value.
PLAIN = {bool, float, complex, np.bool_, *(np.dtype(c).type for c in "bBhHiIqQefdFD")}


class Source(NamedTuple):
    """What the code of a launch was compiled from."""

    py_func: Callable[..., Any]
    argtypes: tuple[Any, ...]
    options: dict[str, Any]  # of `jit`
    compile_again: Callable[[], entries.Entry]  # without the store


class Kernel:
    """A Python function as a kernel; `prepare` gives a launch that can be run on any thread."""

    def __init__(
        self,
        py_func: Callable[..., Any],
        cache: bool = False,
        collective: bool = False,
        **options: Any,
    ) -> None:
        self.py_func = py_func
        self.collective = collective  # all blocks of a launch are to be resident at once
        self.cache = cache  # its code is in the store, for other processes and later runs
        self.name = py_func.__name__
        self.options = options
        self._entries: dict[tuple[Any, ...], entries.Entry] = {}
        # By the `_kind`s of the arguments, and whether blocks have several threads.
        self._known: dict[tuple[Any, ...], tuple[Source, entries.Entry]] = {}

    def compile(self, argtypes: tuple[Any, ...], several: bool = True) -> entries.Entry:
        """Compile for Numba types `argtypes`, once; raises Numba's errors.

        A kernel that waits has other code for blocks of `several` threads than for blocks of one.
        """
        observer.compiled_with.add(observer.name())
        key = argtypes, several
        entry: entries.Entry | None = self._entries.get(key)
        if entry is None:
            options = self._options(several)
            build = functools.partial(self._build, argtypes, options)
            if self.cache:
                entry = sharing.compiled(self.py_func, argtypes, options, build)
            else:
                entry = build()
        self._entries[key] = entry
        if not entry.waits:
            self._entries[argtypes, not several] = entry
        return entry

    def _options(self, several: bool) -> dict[str, Any]:
        return {"lockstep": several} | self.options

    def _build(self, argtypes: tuple[Any, ...], options: dict[str, Any]) -> entries.Entry:
        try:
            cres, entry = entries.build(self.py_func, argtypes, **options)
        except NumbaError as error:
            raise error.with_traceback(None) from None  # its message names the kernel's line
        if cres.signature.return_type not in (types.none, types.void):
            raise ArgumentError(f"kernel {self.name} returns a value; write it to an array instead")
        return entry

    def prepare(self, shape: LaunchShape, args: tuple[Any, ...], user: Any = None) -> Running:
        """Compile for these arguments and make a launch of them; nothing runs yet.

        `user` is an array whose address the embedder's operations find in the launch.
        """
        expected = self.py_func.__code__.co_argcount
        if len(args) != expected:
            raise ArgumentError(f"kernel {self.name} takes {expected} arguments, got {len(args)}")
        several = shape.threads > 1
        kinds = several, *map(_kind, args)
        known = None if None in kinds else self._known.get(kinds)
        if known is None:
            argtypes = types_of(self.py_func, args, _argument)
            build = functools.partial(self._build, argtypes, self._options(several))
            source = Source(self.py_func, argtypes, self.options, build)
            known = source, self.compile(argtypes, several)
            if None not in kinds:
                self._known[kinds] = known
        source, entry = known
        packed = pack(source.argtypes, args)
        return Running(self.name, entry, shape, packed, user, args, self.collective, source)


def _argument(value: Any) -> Any:
    return typeof(value, Purpose.argument)


def _kind(value: Any) -> Any:
    """A key that determines an argument's Numba type, at a tenth of the cost; None: unknown."""
    if type(value) is np.ndarray:
        return value.dtype, value.ndim, value.flags.num
    if type(value) in PLAIN:
        return type(value)
    if isinstance(value, int) and not isinstance(value, Enum):
        return type(value), -(2**63) <= value < 2**63
    return None


def resident_blocks(threads: int) -> int:
    """How many blocks of `threads` threads the modelled GPU holds at once."""
    return SM_COUNT * min(SM_BLOCKS, SM_THREADS // threads)


def _check_fits(name: str, entry: entries.Entry, shape: LaunchShape, collective: bool) -> None:
    """Raise if the modelled GPU has no room for the launch."""
    total = entry.shared_bytes + shape.dynamic_shared
    if total > MAX_SHARED:
        raise ArgumentError(
            f"kernel {name} needs {total} bytes of shared memory per block "
            f"({entry.shared_bytes} static, {shape.dynamic_shared} dynamic); "
            f"{MAX_SHARED} are possible"
        )
    if (collective or entry.cooperative) and math.prod(shape.grid) > resident_blocks(shape.threads):
        does = "is launched collectively on a grid" if collective else "synchronises its grid"
        raise ArgumentError(
            f"kernel {name} {does} of {math.prod(shape.grid)} blocks of "
            f"{shape.threads} threads; at most {resident_blocks(shape.threads)} fit the GPU "
            "modelled at once: launch fewer, and let each do more"
        )


class Running:
    """One launch, from its preparation until it has ended."""

    def __init__(
        self,
        name: str,
        entry: entries.Entry,
        shape: LaunchShape,
        packed: np.ndarray[Any, Any],
        user: np.ndarray[Any, Any] | None = None,
        keep: Any = None,
        collective: bool = False,
        source: Source | None = None,
    ) -> None:
        _check_fits(name, entry, shape, collective)
        self.meets = collective or entry.cooperative  # all blocks are resident at once
        self.name, self.entry, self.shape, self.source = name, entry, shape, source
        self._keep = packed, keep, user  # arrays whose addresses the kernel gets
        self.blocks = math.prod(shape.grid)
        self.launch = launch = new(LAUNCH)
        self.parts = [launch]
        launch["bdim"], launch["gdim"] = shape.block, shape.grid
        launch["dynamic_shared"] = shape.dynamic_shared
        launch["shared_bytes"] = entry.dynamic_start + shape.dynamic_shared
        launch["user"] = 0 if user is None else address_of(user)
        launch["args"] = address_of(packed)
        launch["flush"] = printing.install()
        self.places: np.ndarray[Any, Any] | None = None  # the observer's
        if entry.observed:
            self.places = np.zeros(entry.observed * observer.PLACE_BYTES, np.uint8)
            launch["places"] = address_of(self.places)
            launch["local_bytes"] = entry.local_bytes
        if entry.waits:
            pad = (shape.threads + 15) // 16 * 16
            launch["frame_bytes"] = entry.frame_bytes * pad
            launch["max_resident"] = self._resident()
            for field, address in scheduler.addresses().items():
                launch[field] = address
        self._bytes = launch.view(np.uint8)
        self.observed: tuple[int, int] | None = (
            None  # the observer's `number` and `log` of the next run
        )
        self._fresh: np.ndarray[Any, Any] | None = None  # the bytes as they are before a run

    def __call__(self) -> None:
        """Run the grid; raises `KernelError` if a thread failed. Can be called again then."""
        if self._fresh is None:
            self._fresh = self._bytes.copy()
        else:
            self._bytes[:] = self._fresh
            self.parts = [self.launch]
        if self.observed is not None:
            self.launch["number"], self.launch["log"] = self.observed
        running.add(self)
        embedding.tell(self.name)
        try:
            (self._run_fibers if self.entry.waits else self._run_loops)()
        finally:
            running.discard(self)
            embedding.tell(next((launch.name for launch in list(running)), ""))
            for part in self.parts:
                printing.finish(part[0])
        failed = next((part for part in self.parts if part["failed"][0]), None)
        if failed is not None:
            raise self.failure(failed[0])
        for hook in run_hooks:
            hook(self)

    def _run_loops(self) -> None:
        """Run the grid, on several cores if that pays.

        How long a block takes is known when some have run: the first few run alone.
        """
        axis = self.shape.grid.index(max(self.shape.grid))
        extent = self.shape.grid[axis]
        n = cores.threads()
        alone = extent if n == 1 or extent == 1 else -(-extent // SAMPLE)
        began = time.perf_counter()
        self._run_part(self.launch, axis, 0, alone)
        if alone == extent:
            return
        rest = (time.perf_counter() - began) * (extent - alone) / alone
        n = min(n, extent - alone) if rest > WORTH_SHARING else 1
        cuts = [alone + (extent - alone) * k // n for k in range(n + 1)]
        shares = [self.launch, *(self.launch.copy() for _ in range(n - 1))]
        for k, share in enumerate(shares[1:], 1):
            share["part"] = k
            share["text"] = share["text_bytes"] = 0  # each prints into memory of its own
        self.parts = shares
        cores.run(
            [
                functools.partial(self._run_part, part, axis, first, last)
                for part, (first, last) in zip(shares, itertools.pairwise(cuts), strict=True)
            ]
        )

    def _run_part(self, part: np.ndarray[Any, Any], axis: int, first: int, last: int) -> None:
        """Run the blocks from `first` to `last` on one axis of the grid."""
        if part["failed"][0]:
            return
        part["begin"], part["end"] = 0, self.shape.grid
        part["begin"][0, axis], part["end"][0, axis] = first, last
        shared = np.empty(int(part["shared_bytes"][0]) + 256, np.uint8)
        part["shared"] = -(-address_of(shared) // 256) * 256
        self.entry.call(address_of(part))

    def _resident(self) -> int:
        """How many blocks may be resident."""
        resident = resident_blocks(self.shape.threads)
        if self.meets:
            return resident
        return min(resident, max(1, MAX_RESIDENT_THREADS // self.shape.threads))

    def _run_fibers(self) -> None:
        with _borrowed_pool(self.entry.local_bytes) as pool:
            self.launch["pool"] = address_of(pool)
            with Parked(self.name, lambda: False, self, worker=True):
                self.entry.call(address_of(self.launch))

    def cancel(self) -> None:
        """Ask the launch to stop when its threads have had a turn; one without fibers does not."""
        self.launch["cancel"] = 1

    def failure(self, launch: Any) -> Exception:
        """The exception that says how this launch failed."""
        code = int(launch["failed"])
        cause, location = _exception(int(launch["exception"])) if code == 1 else (None, None)
        site = _line(location) if location else _text(int(launch["site"]))
        block, thread, values = (
            tuple(map(int, launch[field])) for field in ("failed_bid", "failed_tid", "values")
        )
        label = "" if location else _text(int(launch["site"]), 1)
        return KernelFailure(self.name, code, site, block, thread, values, cause, location, label)


# Launches being run now, for reports of waits (`waits`).
running: set[Running] = set()
run_hooks: list[Callable[[Running], None]] = []  # called when a launch has run


class KernelFailure(KernelError):
    """A failed launch, in numbers; an embedder has messages for its trap codes."""

    def __init__(
        self,
        kernel: str,
        code: int,
        site: str,
        block: tuple[int, ...],
        thread: tuple[int, ...],
        values: tuple[int, ...],
        cause: BaseException | None,
        location: Any = None,
        label: str = "",
    ) -> None:
        self.label = label  # name of the operation that the line calls: see `target`
        self.location = location  # of the cause: function, file, line
        self.kernel, self.code, self.site = kernel, code, site
        self.block, self.thread, self.values = block, thread, values
        self.__cause__ = cause
        super().__init__(f"{self.where()}: {self.what()}")

    def where(self) -> str:
        """Which thread of which kernel failed, and at which line."""
        return f"kernel {self.kernel}, block {self.block}, thread {self.thread}, {self.site}"

    def what(self) -> str:
        if self.code == scheduler.CANCELLED:
            return "the launch was cancelled"
        if self.code == scheduler.NO_MEMORY:
            return "no memory for the stacks of the kernel's threads: launch smaller blocks"
        if self.code == ASSERTED:
            text, file, line, function = self.values[:4]
            where = f"{Path(_text(file)).name}:{line} in {_text(function)}"
            return f"assertion `{_text(text)}` failed ({where})"
        return repr(self.__cause__) if self.__cause__ else f"trap {self.code} {self.values}"


def _text(address: int, which: int = 0) -> str:
    """The text at an address, or the one that follows it."""
    if not address:
        return "" if which else "?"
    text = ctypes.string_at(address)
    return _text(address + len(text) + 1, which - 1) if which else text.decode()


def _exception(status: int) -> tuple[BaseException | None, Any]:
    """The exception behind a function's status code, and (function, file, line) that raised it."""
    if status not in exceptions:
        return None, None
    kind, args, where = exceptions[status]
    return kind(*(args or ())), where


def _line(location: tuple[str, str, int]) -> str:
    function, file, line = location
    return f"{Path(file).name}:{line} in {function}"


class _borrowed_pool:
    """Stacks for one launch, kept for the next one with the same needs."""

    _idle: dict[int, list[Any]] = {}

    def __init__(self, local_bytes: int) -> None:
        slot = STACK_BYTES + local_bytes + scheduler.FIBER_SLOT_BYTES
        # An odd number of pages spreads the slots over all sets of the second-level cache.
        self.slot_bytes = (-(-slot // PAGE) | 1) * PAGE

    def __enter__(self) -> Any:
        try:
            self.pool = self._idle[self.slot_bytes].pop()
        except (KeyError, IndexError):
            self.pool = new(POOL)
            self.pool["slot_bytes"] = self.slot_bytes
        return self.pool

    def __exit__(self, *exc: object) -> None:
        self._idle.setdefault(self.slot_bytes, []).append(self.pool)
