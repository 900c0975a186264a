"""Kernels: Python functions, compiled per signature and launched on a grid."""

from __future__ import annotations

import ctypes
import functools
import itertools
import math
import time
import weakref
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numba.core.errors import NumbaError
from numba.cuda import types
from numba.cuda.typing.typeof import Purpose, typeof

from gpushmem import code_store, settings
from gpushmem.artifacts.argument_packing import Packer, address_of, types_of
from gpushmem.artifacts.gpu_limits import MAX_STATIC_SHARED
from gpushmem.artifacts.gpu_model import modelled
from gpushmem.artifacts.launch_shape import LaunchShape
from gpushmem.errors import ArgumentError, KernelError
from gpushmem.native.structs import new
from gpushmem.progress import compiling
from gpushmem.simt.base import printing
from gpushmem.simt.base.layout import LAUNCH
from gpushmem.simt.compiler import observer
from gpushmem.simt.compiler.primitives import ASSERTED
from gpushmem.simt.compiler.target import exceptions
from gpushmem.simt.grid import entry as entries
from gpushmem.simt.grid import kernel_cache
from gpushmem.simt.run import cores, helper_threads, scheduler
from gpushmem.simt.run.queue import NAME_BYTES, SHARE, native, new_run
from gpushmem.waiting_threads import Parked

__all__ = [
    "MOST_FORMS", "Form", "Kernel", "KernelFailure", "Place", "Run", "Running", "Source",
    "form_hooks", "run_hooks", "running", "text_at",
]  # fmt: skip

MAX_RESIDENT_THREADS = scheduler.GUARDED  # unless the grid synchronises
STACK_BYTES = 256 * 1024  # address space, beside the kernel's local arrays
SAMPLE = 16  # the part of a grid that runs before it is shared among cores
PAGE = 4096
PATIENCE = 1.0  # seconds from compiling a kernel to optimising it, for a launch that comes then
LOOK = 0.05  # seconds from one look for optimised code to the next
MOST_FORMS = 256  # kept of a kernel
# Types of scalars whose Numba type does not depend on the value.
PLAIN = {bool, float, complex, np.bool_, *(np.dtype(c).type for c in "bBhHiIlLqQefdFD")}

Explain = Callable[["KernelFailure"], Exception]


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
        self.label = self.name = py_func.__name__  # it may be said which of several it is
        self.options = options
        self._entries: dict[tuple[Any, ...], entries.Entry] = {}
        self._quick: dict[str, _Quick] = {}  # by `better`
        self._forms: dict[tuple[Any, ...], tuple[Form, Packer]] = {}  # by `_kind`s, shape, user

    def compile(
        self, argtypes: tuple[Any, ...], block: str = entries.ROWS, full: bool = False
    ) -> entries.Entry:
        """Compile for Numba types `argtypes`, once; raises Numba's errors.

        A kernel that waits has code of its own for each kind of block: of one thread, of one row of
        threads, and of rows; one that has loops dealt out to the threads, for blocks of one. With
        `full` it is optimised at once, unless the user wants no kernel to be.
        """
        observer.compiled_with.add(observer.name())
        entry: entries.Entry | None = self._entries.get((argtypes, block))
        if entry is None or (full and entry.better):
            options, tier = self._options(block), settings.get("GPUSHMEM_TIER")
            tier = "full" if full and tier == "auto" else tier
            build = functools.partial(self._build, argtypes, options)
            if self.cache:
                entry = kernel_cache.compiled(self.py_func, argtypes, options, build, tier)
            else:
                entry = build(quick=tier == "fast")
            if entry.better:
                improve = functools.partial(kernel_cache.improve, entry.better, self.py_func)
                self._quick[entry.better] = _Quick(
                    functools.partial(improve, argtypes, options, build)
                )
            for each in (block, *entry.serves):
                self._entries[argtypes, each] = entry
        return entry

    def _options(self, block: str) -> dict[str, Any]:
        return {"lockstep": block != entries.ONE, "row": block == entries.ROW} | self.options

    def _build(
        self, argtypes: tuple[Any, ...], options: dict[str, Any], quick: bool = False
    ) -> entries.Entry:
        try:
            with compiling(f"kernel {self.label}", observer.name()):
                cres, entry = entries.build(self.py_func, argtypes, quick=quick, **options)
        except NumbaError as error:
            raise error.with_traceback(None) from None  # its message names the kernel's line
        if cres.signature.return_type not in (types.none, types.void):
            raise ArgumentError(f"kernel {self.name} returns a value; write it to an array instead")
        return entry

    def prepare(
        self,
        shape: LaunchShape,
        args: tuple[Any, ...],
        user: Any = None,
        explain: Explain | None = None,
        lasting: bool = False,
    ) -> Running:
        """Compile for these arguments and make a launch of them; nothing runs yet.

        `user` is an array whose address the embedder's operations find in the launch; `explain`
        gives the embedder's error for a failure. One that is `lasting` is made more often than it
        is prepared: it is optimised at once.
        """
        kinds = tuple(map(_kind, args))
        key = kinds, shape, id(user)
        known = None if None in kinds else self._forms.get(key)
        if known is None:
            expected = self.py_func.__code__.co_argcount
            if len(args) != expected:
                raise ArgumentError(
                    f"kernel {self.name} takes {expected} arguments, got {len(args)}"
                )
            argtypes = types_of(self.py_func, args, _argument)
            block = entries.kind_of_block(shape.block)
            build = functools.partial(self._build, argtypes, self._options(block))
            source = Source(self.py_func, argtypes, self.options, build)
            entry = self.compile(argtypes, block, lasting)
            form = Form(self.name, entry, shape, user, self.collective, source)
            known = form, Packer(argtypes)
            if None not in kinds:
                if len(self._forms) >= MOST_FORMS:
                    self._forms.clear()
                self._forms[key] = known
        form, pack = known
        if form.entry.better and (lasting or self._has_improved(form.entry)):
            self._forms.pop(key, None)
            return self.prepare(shape, args, user, explain, lasting)
        return form.launched(pack(args), args, explain)

    def _has_improved(self, entry: entries.Entry) -> bool:
        """Whether code that was compiled quickly is replaced by now; later launches see to it.

        It would be wasted on kernels that are launched once, and in jobs that have ended before;
        but not if an earlier job has left it like that.
        """
        quick, now = self._quick[entry.better], time.monotonic()
        if not quick.asked and (now > quick.began + PATIENCE or entry.overdue):
            quick.asked = True
            quick.improve()
        if not quick.asked or now < quick.looks_at:
            return False
        quick.looks_at = now + LOOK
        better = kernel_cache.improved(entry.better) if code_store.has(entry.better) else None
        if better is None:
            return False
        known, forms = list(self._entries.items()), list(self._forms.items())
        self._entries = {k: better if e is entry else e for k, e in known}
        self._forms = {k: f for k, f in forms if f[0].entry is not entry}
        return True


class _Quick:
    """A kernel that was compiled quickly, for some types."""

    def __init__(self, improve: Callable[[], None]) -> None:
        self.improve, self.asked = improve, False
        self.began, self.looks_at = time.monotonic(), 0.0  # `looks_at`: into the store


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


def resident_blocks(threads: int, shared: int = 0) -> int:
    """How many blocks of `threads` threads the modelled GPU holds at once."""
    gpu = modelled()
    return gpu.sms * gpu.blocks_per_sm(threads, shared)


def _check_fits(
    name: str, entry: entries.Entry, shape: LaunchShape, collective: bool, source: Source | None
) -> None:
    """Raise if the modelled GPU has no room for the launch."""
    if source is not None:
        code = source.py_func.__code__
        name = f"{name} ({Path(code.co_filename).name}:{code.co_firstlineno})"
    total, most = entry.shared_bytes + shape.dynamic_shared, modelled().limits.max_shared
    if entry.shared_bytes > MAX_STATIC_SHARED:
        raise ArgumentError(
            f"kernel {name} has {entry.shared_bytes} bytes of static shared memory; "
            f"{MAX_STATIC_SHARED} are possible: make arrays smaller, or use dynamic shared memory"
        )
    if total > most:
        raise ArgumentError(
            f"kernel {name} needs {total} bytes of shared memory per block "
            f"({entry.shared_bytes} static, {shape.dynamic_shared} dynamic); {most} are possible"
        )
    resident = resident_blocks(shape.threads, total)
    if (collective or entry.cooperative) and math.prod(shape.grid) > resident:
        does = "is launched collectively on a grid" if collective else "synchronises its grid"
        raise ArgumentError(
            f"kernel {name} {does} of {math.prod(shape.grid)} blocks of "
            f"{shape.threads} threads; at most {resident} fit the GPU "
            f"modelled, {modelled().name}, at once: launch fewer, and let each do more"
        )


class Form:
    """What launches of a kernel for the same types have in common; raises if it fits no GPU."""

    def __init__(
        self,
        name: str,
        entry: entries.Entry,
        shape: LaunchShape,
        user: np.ndarray[Any, Any] | None = None,
        collective: bool = False,
        source: Source | None = None,
    ) -> None:
        _check_fits(name, entry, shape, collective, source)
        self.meets = collective or entry.cooperative  # all blocks are resident at once
        self.name, self.entry, self.shape, self._user = name, entry, shape, user
        self.source = source
        self.others: dict[str, Form] = {}  # of the same launches, compiled in other ways
        self.launch = launch = new(LAUNCH)
        self.address = address_of(launch)
        launch["bdim"], launch["gdim"], launch["end"] = shape.block, shape.grid, shape.grid
        launch["dynamic_shared"] = shape.dynamic_shared
        launch["shared_bytes"] = entry.dynamic_start + shape.dynamic_shared
        launch["user"] = 0 if user is None else address_of(user)
        launch["flush"] = printing.install()
        launch["entry"] = ctypes.cast(entry.call, ctypes.c_void_p).value
        launch["axis"] = axis = shape.grid.index(max(shape.grid))
        # How long a block takes is known when some have run: the first few run alone.
        few = -(-shape.grid[axis] // SAMPLE)
        launch["alone"] = shape.grid[axis] if entry.observed else few
        launch["name"][0].view(np.uint8)[:] = _padded(name)
        for hook in form_hooks:
            hook(self)
        self._kind: type[Running] = Running
        if settings.get("GPUSHMEM_VERIFY"):
            from gpushmem.simt.run import verify  # noqa: PLC0415  (uses this module)

            self._kind = verify.Verified if verify.verifiable(self) else Running
        if entry.waits:
            pad = (shape.threads + 15) // 16 * 16
            launch["frame_bytes"] = entry.frame_bytes * pad
            launch["max_resident"] = self._resident()
            launch["slot_bytes"] = _slot_bytes(entry)
            for field, address in scheduler.addresses().items():
                launch[field] = address
            if math.prod(shape.grid) > 1 and not entry.observed and cores.usable_cores() > 1:
                launch["several"] = 1
                helper_threads.start(Place)

    def launched(self, packed: bytes, keep: Any, explain: Explain | None = None) -> Running:
        """A launch with these arguments."""
        return self._kind(self, packed, keep, explain)

    def _resident(self) -> int:
        """How many blocks may be resident."""
        resident = resident_blocks(self.shape.threads)
        if self.meets:
            return resident
        return min(resident, max(1, MAX_RESIDENT_THREADS // self.shape.threads))


def _padded(name: str) -> np.ndarray[Any, Any]:
    text = name.encode()[: NAME_BYTES - 1]
    return np.frombuffer(text.ljust(NAME_BYTES, b"\0"), np.uint8)


def _slot_bytes(entry: entries.Entry) -> int:
    """The size of a thread's slot in a pool of stacks."""
    slot = STACK_BYTES + entry.local_bytes + scheduler.FIBER_SLOT_BYTES
    # An odd number of pages spreads the slots over all sets of the second-level cache.
    return (-(-slot // PAGE) | 1) * PAGE


class Running:
    """A launch, ready to run, on a stream or by a call; any number of times, and at once.

    It keeps the arguments alive.
    """

    __slots__ = ("_keep", "_own", "args", "explain", "form", "observed", "places")

    def __init__(
        self,
        form: Form,
        packed: bytes,
        keep: Any = None,
        explain: Explain | None = None,
    ) -> None:
        memory = (ctypes.c_char * len(packed)).from_buffer_copy(packed)
        self.form, self.args, self.explain = form, ctypes.addressof(memory), explain
        self._keep = memory, keep  # arrays whose addresses the kernel gets
        self._own: np.ndarray[Any, Any] | None = None
        self.observed: tuple[int, int] | None = None  # the observer's, of the next run by a call
        self.places: np.ndarray[Any, Any] | None = None  # the observer's
        entry = form.entry
        if entry.observed:
            self.places = np.zeros(entry.observed * observer.PLACE_BYTES, np.uint8)
            self.launch["places"] = address_of(self.places)
            self.launch["local_bytes"] = entry.local_bytes

    name = property(lambda self: self.form.name)
    entry = property(lambda self: self.form.entry)
    shape = property(lambda self: self.form.shape)
    source = property(lambda self: self.form.source)
    meets = property(lambda self: self.form.meets)

    @property
    def launch(self) -> np.ndarray[Any, Any]:
        """The LAUNCH that runs begin with, to be changed before them; its own from now on."""
        if self._own is None:
            self._own = self.form.launch.copy()
        return self._own

    @property
    def begins_with(self) -> int:
        """Address of the LAUNCH that runs begin with."""
        return self.form.address if self._own is None else address_of(self._own)

    def __call__(self) -> None:
        """Run the grid on this thread; raises `KernelFailure`, or what explains it."""
        if self.observed is not None:
            self.launch["number"], self.launch["log"] = self.observed
        memory, calls = new_run(), native()
        address, place = address_of(memory), Place(memory)
        calls.begin(address, self.begins_with, self.args)
        try:
            moves = not self.entry.waits  # of itself; the scheduler shows whether fibers do
            with Parked(self.name, lambda: moves, place.current, worker=True):
                code = calls.perform(address)
            parts = self.complete(place.launch, code)
        finally:
            calls.end(address)
        for hook in run_hooks:
            hook(self, parts)

    def complete(self, launch: np.ndarray[Any, Any], code: int) -> int:
        """Do Python's part of a run, as `perform` and `drain` say; raises its failure.

        Returns on how many cores it ran.
        """
        parts = [launch]
        try:
            if code == SHARE:
                self._share(launch, parts)
        finally:
            for part in parts:
                printing.finish(part[0])
        failed = next((part for part in parts if part["failed"][0]), None)
        if failed is not None:
            failure = self.failure(failed[0], address_of(launch))
            error = failure if self.explain is None else self.explain(failure)
            raise error from failure.__cause__
        return len(parts) + int(launch["helped"][0])

    def _share(self, launch: np.ndarray[Any, Any], parts: list[np.ndarray[Any, Any]]) -> None:
        """Run the rest of a grid on several cores; each part has a LAUNCH, see `parts`."""
        axis = int(launch["axis"][0])
        alone, extent = int(launch["alone"][0]), self.shape.grid[axis]
        n = min(cores.usable_cores(), extent - alone)
        parts += [launch.copy() for _ in range(n - 1)]
        for k, part in enumerate(parts[1:], 1):
            part["part"] = k
            part["text"] = part["text_bytes"] = 0  # each prints into memory of its own
        cuts = [alone + (extent - alone) * k // n for k in range(n + 1)]
        cores.run(
            [
                functools.partial(self._run_part, part, axis, first, last)
                for part, (first, last) in zip(parts, itertools.pairwise(cuts), strict=True)
            ]
        )

    def _run_part(self, part: np.ndarray[Any, Any], axis: int, first: int, last: int) -> None:
        """Run the blocks from `first` to `last` on one axis of the grid."""
        part["begin"][0, axis], part["end"][0, axis] = first, last
        shared = np.empty(int(part["shared_bytes"][0]) + 256, np.uint8)
        part["shared"] = -(-address_of(shared) // 256) * 256
        self.entry.call(address_of(part))

    def failure(self, launch: Any, address: int) -> KernelFailure:
        """The exception that says how a run of this launch failed, which was at `address`."""
        code = int(launch["failed"])
        cause, location = _exception(int(launch["exception"])) if code == 1 else (None, None)
        site = _line(location) if location else text_at(int(launch["site"]))
        block, thread, values = (
            tuple(map(int, launch[field])) for field in ("failed_bid", "failed_tid", "values")
        )
        label = "" if location else text_at(int(launch["site"]), 1)
        failure = KernelFailure(
            self.name, code, site, block, thread, values, cause, location, label
        )
        failure.launch = address
        return failure


class Place:
    """Where launches run, one after the other: a RUN, which is `memory` or a part of it."""

    def __init__(self, memory: np.ndarray[Any, Any]) -> None:
        self._words = memory
        self.launch = memory["launch"]
        self._seen: Run | None = None
        key = id(self)
        _places[key] = weakref.ref(self, lambda _: _places.pop(key, None))

    def current(self) -> Run | None:
        """The run that is in progress; the same object as long as it is."""
        number, seen = int(self._words["current"][0]), self._seen
        if number == 0:
            return None
        if seen is None or seen.number != number:
            seen = self._seen = Run(self.launch, number)
        return seen


class Run:
    """A run of a launch, for reports; soon after its end `launch` is that of the next run."""

    def __init__(self, launch: np.ndarray[Any, Any], number: int) -> None:
        self.launch, self.number = launch, number
        self.name = launch["name"].tobytes().rstrip(b"\0").decode(errors="replace")
        self.blocks = math.prod(map(int, launch["gdim"][0]))
        self.fibers = bool(launch["slot_bytes"][0])
        self.lockstep = bool(launch["frame_bytes"][0])
        self.root = int(launch["root"][0])
        self.whole = self.root == address_of(launch)  # not what another core runs of it

    def cancel(self) -> None:
        """Ask it to stop when its threads have had a turn; one without fibers does not."""
        self.launch["cancel"] = 1


_places: dict[int, weakref.ref[Place]] = {}
form_hooks: list[Callable[[Form], None]] = []  # called with each that is made
# Called with a launch that has run, and the number of cores that it ran on.
run_hooks: list[Callable[[Running, int], None]] = []


def running() -> set[Run]:
    """The launches that are being run now, by all streams and calls."""
    places = [place for ref in list(_places.values()) if (place := ref()) is not None]
    return {run for place in places if (run := place.current()) is not None}


class KernelFailure(KernelError):
    """A failed launch, in numbers; an embedder has messages for its trap codes."""

    launch = 0  # address of the LAUNCH that failed

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
            where = f"{Path(text_at(file)).name}:{line} in {text_at(function)}"
            return f"assertion `{text_at(text)}` failed ({where})"
        return repr(self.__cause__) if self.__cause__ else f"trap {self.code} {self.values}"


def text_at(address: int, which: int = 0) -> str:
    """The text at an address, or the one that follows it."""
    if not address:
        return "" if which else "?"
    text = ctypes.string_at(address)
    return text_at(address + len(text) + 1, which - 1) if which else text.decode()


def _exception(status: int) -> tuple[BaseException | None, Any]:
    """The exception behind a function's status code, and (function, file, line) that raised it."""
    if status not in exceptions:
        return None, None
    kind, args, where = exceptions[status]
    return kind(*(args or ())), where


def _line(location: tuple[str, str, int]) -> str:
    function, file, line = location
    return f"{Path(file).name}:{line} in {function}"
