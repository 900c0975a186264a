"""The runtime of a process: its backend and heap, and everything between `init` and `finalize`."""

from __future__ import annotations

import atexit
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, ContextDecorator, nullcontext, suppress
from functools import partial
from inspect import signature
from numbers import Real
from types import TracebackType
from typing import Any, overload

import numpy as np

from gpushmem import settings
from gpushmem.arguments import integer, public, shown, taking
from gpushmem.backends import registry, selection
from gpushmem.backends.base import GAP
from gpushmem.backends.properties import Tuning
from gpushmem.background import children_of_users
from gpushmem.errors import (
    ArgumentError,
    ArgumentTypeError,
    BackendUnavailable,
    HeapExhausted,
    NotInitializedError,
    ShmemError,
)
from gpushmem.job import forks
from gpushmem.job.exit_notice import failed, interrupted, note_exceptions, tell_the_others
from gpushmem.job.job import Job
from gpushmem.job.job import current as current_job
from gpushmem.job.ranks import Peers
from gpushmem.memory.array import (
    Allocation,
    DeviceArray,
    MulticastArray,
    SymmetricArray,
    on_host,
    peer_view,
    reject_view,
    unwrap,
)
from gpushmem.memory.external_arrays import Attachment, Known, library_of, whose
from gpushmem.memory.heap import Heap
from gpushmem.memory.registration import Registrations
from gpushmem.memory.stats import Allocated, HeapStats, holders, leak_report
from gpushmem.memory.tensors import in_gpu_memory, in_host_memory, memory_of
from gpushmem.memory.validation import dtype_of, nbytes_of, plain, shape_of
from gpushmem.ops import OPS, TEAM_WORLD, Op, host
from gpushmem.ops.roles import MulticastView, View
from gpushmem.ops.team import Team
from gpushmem.size import format_size, parse_size
from gpushmem.source_lines import user_line
from gpushmem.start import bootstrap as bootstraps
from gpushmem.start.bootstrap.existing_groups import Given, given
from gpushmem.trace.counters import Stats


def _has_gaps() -> bool:
    """Whether memory is left unused behind each array, to see what goes past its end."""
    return settings.is_set("GPUSHMEM_CHECK") or settings.memory_is_weak()


def _meet(backend: str, name: str | None, asked: Given | None) -> Job | Peers:
    """Find the other PEs, through the group `asked` if there is one."""
    channel = None if asked is None or asked.size == 1 else asked.channel()
    name = "local" if asked is not None and channel is None else name
    if registry.about(backend).shares_memory:
        job = bootstraps.join(name, channel)
        tell_the_others(job)
        return job
    found = bootstraps.find_peers(name, channel)
    note_exceptions()
    return found


class Runtime:
    """The state of a PE between `init` and `finalize`."""

    def __init__(self, backend: Any) -> None:
        self.backend = backend
        self.heap = Heap(backend.heap_bytes, gap=GAP if _has_gaps() else 0)
        self.allocations: dict[int, Allocation] = {}
        self.known = Known(backend, self.allocations)
        self.registrations = Registrations(backend, self.known.overlaps)
        self.at_end: list[Callable[[], None]] = []  # what `close` calls first
        backend.allocated = lambda: sorted(a.made for a in list(self.allocations.values()))

    def allocate(
        self, what: str, shape: Any, dtype: Any, fill: Callable[[Any], None] | None, like: Any
    ) -> Any:
        """Collective: agree on the size, allocate and fill; returns when all PEs have filled."""
        shape, dtype = shape_of(what, shape), dtype_of(what, dtype)
        nbytes, library = nbytes_of(what, shape, dtype), library_of(what, like)
        if library is not None:
            library.check(what, self.backend.on_gpu, dtype, nbytes)
        self.backend.meet(what, nbytes)
        offset = self._block(what, nbytes)
        made = Allocated(offset, nbytes, shape, dtype, user_line())
        allocation = self.allocations[offset] = Allocation(made, self.free)
        try:
            array = SymmetricArray(
                self.backend.symmetric(offset, shape, dtype), self.backend, allocation
            )
            if fill is not None:
                fill(array)
        except BaseException:  # for example a fill value that does not fit the dtype
            self._forget(allocation, "a failed allocation")
            raise
        if fill is not None:
            self.backend.meet(f"{what} (filled)")
        return array if library is None else library.share(array)

    def _block(self, what: str, nbytes: int, alignment: int = 1) -> int:
        try:
            return self.heap.alloc(nbytes, alignment)
        except HeapExhausted as error:
            raise HeapExhausted(f"{what}: {error}{holders(self.stats().allocations)}") from None

    def attach(self, buffer: Any) -> SymmetricArray:
        """Collective: make a user's buffer symmetric memory."""
        what = "register_symmetric"
        memory = self.registrations.registrable(what, buffer)
        if self.known(what, buffer) is not buffer or isinstance(buffer, DeviceArray):
            raise ArgumentError(
                f"{what}: {shown(buffer)} is device memory of gpushmem's: use empty"
            )
        self.backend.check_external(what, memory, in_gpu_memory(buffer))
        self.backend.meet(what, memory.nbytes)
        offset = self.backend.claim(memory, partial(self._block, what))
        made = Allocated(offset, memory.nbytes, memory.shape, memory.dtype, user_line())
        attachment = Attachment(made, self.detach, buffer, memory)
        self.allocations[offset] = attachment
        try:
            attachment.native = self.backend.attach(memory, offset)
        except BaseException:
            self._forget(attachment, "a failed registration")
            raise
        self.known.buffers.append(attachment)
        self.backend.meet(f"{what} (done)")
        return SymmetricArray(attachment.native, self.backend, attachment)

    def detach(self, array: Any) -> None:
        """Collective: wait until every PE is done with a buffer, then end what `attach` began."""
        what = "unregister_symmetric"
        array = self.known(what, array)
        attachment = array.allocation if isinstance(array, SymmetricArray) else None
        if not isinstance(attachment, Attachment):
            raise ArgumentError(f"{what}: {shown(array)} is not registered by register_symmetric")
        made = reject_view(array, what).allocation.made
        self.backend.meet(f"{what} at {made.offset:#x}", made.nbytes)
        self._end_attachment(attachment, what)

    def _end_attachment(self, attachment: Attachment, why: str) -> None:
        self.backend.detach(attachment.memory, attachment.made.offset)
        self.known.buffers.remove(attachment)
        self._forget(attachment, why)

    def _forget(self, allocation: Allocation, why: str) -> None:
        made = allocation.made
        if self.heap.holds(made.offset):
            self.heap.free(made.offset)
        self.allocations.pop(made.offset).released_by = why
        self.backend.released(made.offset, made.nbytes)

    def free(self, array: Any) -> None:
        """Collective: wait until every PE is done with the array, then release its memory."""
        array = reject_view(self.known("free", array), "free")
        if isinstance(array.allocation, Attachment):
            raise ArgumentError("free: this is a registered buffer: use unregister_symmetric")
        made = array.allocation.made
        self.backend.meet(f"free at {made.offset:#x}", made.nbytes)
        self._forget(array.allocation, "free")

    def stats(self) -> HeapStats:
        """Return the current state of the heap."""
        heap, made = self.heap, sorted(a.made for a in list(self.allocations.values()))
        return HeapStats(heap.total, heap.used, heap.peak, heap.largest_free, tuple(made))

    def close(self) -> None:
        """Collective: end the runtime. Arrays that are still referenced raise when used."""
        for each in self.at_end:
            each()
        try:
            self.backend.settle("finalize")
            self.backend.meet("finalize")
        finally:
            self.registrations.close()
            for attachment in list(self.known.buffers):
                self._end_attachment(attachment, "finalize")
            self.forget_arrays("finalize")
            self.backend.close()
            self.backend.allocated = list  # drop the reference to this runtime

    def forget_arrays(self, why: str) -> None:
        """Make the symmetric arrays unusable."""
        while self.allocations:  # break the reference cycle with the runtime
            self.allocations.popitem()[1].released_by = why


_runtime: Runtime | None = None
_abandoned: Runtime | None = None  # by a session that ended with an error: see `_abandon`
_given: Given | None = None  # the first that `init` got, as the job stays the same
PATIENCE = 5.0  # seconds for launches to end after an error
MOST_QPS = 1 << 16


def current(what: str = "this") -> Runtime:
    """Return the current runtime; raises `NotInitializedError` naming the caller, `what`."""
    if _runtime is None:
        forks.check(what)
        raise NotInitializedError(f"{what}: call gpushmem.init() first")
    return _runtime


def given_ranks() -> Given | None:
    """Return the communicator or process group whose ranks are the PEs, if `init` was given one."""
    return _given


@public
def is_initialized() -> bool:
    """Whether `init` has been called, and `finalize` has not been called since."""
    return _runtime is not None


@public
def init(
    backend: str | None = None,
    *,
    heap_size: str | int | None = None,
    bootstrap: str | None = None,
    comm: Any = None,
    process_group: Any = None,
) -> None:
    """Connect this PE to the others; collective over the job.

    `backend` is "cpu", "nvshmem" or "null" (one PE and no kernels); default: `--backend` of
    `gpushmem run`, else GPUSHMEM_BACKEND, else "nvshmem" if there are an NVIDIA GPU and nvshmem4py,
    else "cpu". All PEs must use the same
    backend. `heap_size` is the size of each PE's symmetric heap, in bytes or as "256M"; default:
    `--heap-size` of `gpushmem run`, else GPUSHMEM_HEAP_SIZE, else 1 GiB. On the cpu backend, heap
    memory is committed only when it is written.

    `bootstrap` selects how the PEs find each other: "mpi" (mpirun), "torch" (torchrun), "slurm"
    (srun), "local" (this process is the only PE), "tcp://host:port", or "auto" to detect the
    launcher; default: GPUSHMEM_BOOTSTRAP, else "auto". Ignored in PEs started by `gpushmem run`,
    and after the first `init` of a process.

    `comm` is a communicator of mpi4py, such as `MPI.COMM_WORLD` or a part of it, `process_group` a
    process group of `torch.distributed`, of any backend. Its ranks become the PEs, in its order,
    which find each other through it; only they call, and processes outside of it may have a job of
    their own. Where the job was there before, the ranks must be its PEs, else `ArgumentError`.

    Raises `BootstrapError` if PEs do not arrive within GPUSHMEM_BOOTSTRAP_TIMEOUT seconds, naming
    them, or if the requested bootstrap is unavailable here; `BackendUnavailable` if a requirement
    of the backend is missing, naming it, or if PEs of the cpu backend are on several machines.

    A second call without `finalize` in between raises `ArgumentError`. After `finalize`, `init` may
    be called again; the job stays the same. NVSHMEM 3: nvshmem_init.
    """
    global _runtime, _given  # noqa: PLW0603
    if _runtime is not None:
        raise ArgumentError("init: already initialised; call gpushmem.finalize() first")
    if not forks.may_begin():
        forks.check("init")
    if _abandoned is not None:
        raise ShmemError(
            f"init: an error has ended the session of PE {_abandoned.backend.my_pe} of "
            f"{_abandoned.backend.n_pes}, which no longer takes part in the job: start another"
        )
    for what, value in (("backend", backend), ("bootstrap", bootstrap)):
        if value is not None and not isinstance(value, str):
            raise ArgumentTypeError(f"init: {what} must be a name, not {shown(value)}")
    name, _ = selection.choose(backend)
    heap_size = None if heap_size is None else _heap_bytes(heap_size)
    made, asked = _backend_class(name), given(comm, process_group)
    pes = _meet(name, bootstrap, asked)
    if asked is not None:
        _check_given(asked, pes)
        _given = _given or asked
    heap_bytes = _heap_bytes(heap_size, pes.heap_size)
    if pes.my_pe == 0:
        bootstraps.note(_found(pes, name, heap_bytes))
    forks.note(pes.my_pe, pes.n_pes, pes.n_pes == 1 and not _launched(pes))
    _runtime = Runtime(forks.belongs(made(heap_bytes)))
    host.call = _host_call
    atexit.unregister(_at_exit)
    atexit.register(_at_exit)


def _launched(pes: Job | Peers) -> bool:
    """Whether a launcher of ours has started the PEs."""
    return isinstance(pes, Job) and bool(pes.board["launcher"])


def _check_given(asked: Given, pes: Job | Peers) -> None:
    """Raise unless the ranks of a communicator or process group are the PEs."""
    if (asked.rank, asked.size) != (pes.my_pe, pes.n_pes):
        raise ArgumentError(
            f"init: this is rank {asked.rank} of {asked.size} in the {asked.what}, and PE "
            f"{pes.my_pe} of {pes.n_pes} in the job: ranks and PEs must be the same. A job begins "
            "with `gpushmem run` or the first init of a process, and stays the same"
        )
    if _given is not None and not asked.same(_given):
        raise ArgumentError(
            f"init: this {asked.what} has the size of the first one, {asked.size}, but other "
            "ranks, or in another order: the job stays the same after the first init of a process"
        )


@public
def finalize() -> None:
    """End the runtime of this PE; collective. Waits for its streams; arrays become unusable.

    Unregisters registered buffers. `init` may be called again. Does nothing if `init` has not been
    called. If symmetric arrays were never freed, PE 0 lists them at the end in a `ResourceWarning`,
    with the lines that allocated them; Python shows the warning with `-X dev` or `-W
    default::ResourceWarning`.

    Raises what failed in this PE's launches, `CollectiveMismatch` when another PE is in another
    call or has ended without this one, and `PeerFailed`, `Deadlock` or `WaitTimeout` when the job
    is over; the runtime of this PE has ended then, too.

    A program may end without calling it: at exit a PE then waits for its launches, whose errors
    count as the program's, but not for other PEs. Either all PEs call it or none: those that do
    wait for all others. NVSHMEM 3: nvshmem_finalize.
    """
    _end()


def _end(report: bool = True) -> None:
    """`finalize`, in a function that is `public`: the warning is for the line that calls that."""
    global _runtime
    if _runtime is not None:
        runtime, _runtime, host.call = _runtime, None, None
        left = runtime.stats().allocations
        runtime.close()
        if report and left and runtime.backend.my_pe == 0:  # the same on every PE: report once
            warnings.warn(leak_report(left), ResourceWarning, stacklevel=4)


@public
def session(
    backend: str | None = None,
    *,
    heap_size: str | int | None = None,
    bootstrap: str | None = None,
    comm: Any = None,
    process_group: Any = None,
) -> AbstractContextManager[Team]:
    """`init` at the beginning of a `with` block, `finalize` at its end. Yields `TEAM_WORLD`.

    The arguments are those of `init`: `with shmem.session(heap_size="4G") as world:`, and then
    `world.my_pe` and `world.n_pes`. Both ends of the block are collective.

    When an exception leaves the block, other than that of `sys.exit()`, the PE does not wait for
    the others, which may be anywhere: its runtime ends at once, arrays become unusable, and the
    exception goes on. If it ends the process, the other PEs are ended, or their waits raise
    `PeerFailed`. A program that catches it cannot call `init` again, unless its PE is the job's
    only one; the launches of that PE are cancelled.
    """
    return _Session(
        backend=backend, heap_size=heap_size, bootstrap=bootstrap, comm=comm,
        process_group=process_group,
    )  # fmt: skip


class _Session(AbstractContextManager[Team]):
    """What `session` returns."""

    def __init__(self, **asked: Any) -> None:
        self._asked = asked

    def __enter__(self) -> Team:
        init(**self._asked)
        return TEAM_WORLD

    @public
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None or (isinstance(error, SystemExit) and not error.code):
            _end()
        else:
            _abandon()


def _abandon() -> None:
    """End the runtime after an error, without waiting for the other PEs, which may be anywhere.

    Where there are others the backend lives as long as the process: they may be using this PE's
    memory, and its launches are to hear of the job's end.
    """
    global _runtime, _abandoned
    if _runtime is None:  # the block has called `finalize`
        return
    if _runtime.backend.n_pes == 1 and _runtime.backend.stop(PATIENCE):
        with suppress(ShmemError):  # the block's error is the one to be seen
            _end(report=False)
        return
    _abandoned, _runtime, host.call = _runtime, None, None
    _abandoned.forget_arrays("an error ended its session")


def _at_exit() -> None:
    """Wait for launches the script left running, so that their errors are not lost."""
    if _runtime is not None and failed():  # the other PEs may be waiting for this one
        if interrupted():
            _runtime.backend.stop(PATIENCE)  # that launches were cancelled is no news
        else:
            _runtime.backend.synchronize()
    else:
        settle()


def settle() -> None:
    """Wait for outstanding work at the end of a script that has not called `finalize`."""
    if _runtime is not None:
        _runtime.backend.settle("the end of the script")
    if _abandoned is not None:
        _abandoned.backend.synchronize()


def _in_a_child() -> None:
    """The runtime is the parent's."""
    global _runtime, _abandoned, _given  # noqa: PLW0603
    _runtime = _abandoned = _given = None  # `host.call` asks for it


children_of_users(_in_a_child)


def _known(op: Op, arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a host operation, those in symmetric memory as arrays of gpushmem."""
    known = current(op.name).known
    return {name: known(op.name, value) for name, value in arguments.items()}


def _native(op: Op, known: dict[str, Any]) -> dict[str, Any]:
    """The arguments, as `_known` gives them, as backends take them."""
    local = current(op.name).registrations.local
    given = known | {name: local(op.name, name, known[name]) for name in op.local}
    return {name: memory_of(op.name, unwrap(value)) for name, value in given.items()}


def preload(call: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Let the backend compile and load what a call of an operation needs: see `kernel.preload`."""
    op = OPS.get(getattr(call, "__name__", ""))
    if op is None or call is not op.function or not op.host:
        raise ArgumentError(
            "preload takes kernel[grid, block] or a host operation, and the arguments of a call; "
            f"got {shown(call)}"
        )
    try:
        bound = signature(op.function).bind(*args, **kwargs)
    except TypeError as error:
        raise ArgumentTypeError(f"preload: {op.name}: {error}") from None
    bound.apply_defaults()
    current("preload").backend.preload(op, _native(op, _known(op, bound.arguments)))


def _host_call(op: Op, arguments: dict[str, Any]) -> Any:
    backend, known = current(op.name).backend, _known(op, arguments)
    result, view = backend.call(op, _native(op, known)), VIEWS.get(op.returns)
    if view is None:
        return result
    seen, library = view(result, backend, known["array"]), whose(arguments["array"])
    return library.share(seen) if library and isinstance(seen, DeviceArray) else seen


# Operations that return native arrays, on another PE's copy of their argument `array`.
VIEWS: dict[type, Callable[..., Any]] = {View: peer_view, MulticastView: MulticastArray}


def _backend_class(name: str) -> Any:
    why = selection.unusable(name)
    if why is not None:
        raise BackendUnavailable(why)
    return registry.load(registry.about(name).backend)


def _found(pes: Job | Peers, backend: str, heap_bytes: int) -> str:
    """Describe the job in one line, for verbose output."""
    here = "" if pes.n_local == pes.n_pes else f", {pes.n_local} of them"
    who = "1 PE" if pes.n_pes == 1 else f"{pes.n_pes} PEs{here} on this machine"
    return f"{who}, {pes.bootstrap}; backend {backend}, heap {format_size(heap_bytes)}"


def _heap_bytes(*asked: str | int | None) -> int:
    for size in asked:
        if size is not None:
            with taking("init: heap_size"):
                return parse_size(size)
    return int(settings.get("GPUSHMEM_HEAP_SIZE"))


# --- what the PE does


@public
def stats() -> Stats:
    """Return how often this PE has called each operation, the bytes and the time, and more.

    Only where a job counts that: run it with `gpushmem run --stats`, or set GPUSHMEM_STATS to a
    folder; else it raises `ShmemError`, as it does on GPUs, whose kernels are not counted. The
    counters go on: `spent = stats() - before` is what a part of the program did. What kernels did
    that still run is counted in part. Counting takes some 30 ns a call. Not collective.
    """
    found = current("stats").backend.stats()
    if found is None:
        raise ShmemError(
            "stats: nothing is counted in this job: run it with `gpushmem run --stats`, or set "
            "GPUSHMEM_STATS to a folder, on a backend without a GPU"
        )
    return found


@public
def trace_range(name: str) -> AbstractContextManager[None]:
    """Name what the host does in a `with` block, or in a function that this decorates.

    `gpushmem run --trace` records when the block began and ended; on GPUs it is an NVTX range, for
    Nsight Systems, if `nvtx` is installed. It says nothing of kernels, which may run later: name
    ranges of theirs with `trace_range_start`. Ranges may nest. Where neither looks, and outside of
    `init` and `finalize`, it does nothing. Not collective. PyTorch: `torch.cuda.nvtx.range`; NVTX:
    nvtxRangePushA.
    """
    if not isinstance(name, str):
        raise ArgumentTypeError(f"trace_range: name must be a text, not {shown(name)}")
    return _Range(name)


class _Range(ContextDecorator):
    """What `trace_range` returns; of a function that it decorates, each call has its own."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._inside: list[AbstractContextManager[None]] = []

    def _recreate_cm(self) -> _Range:
        return _Range(self._name)

    def __enter__(self) -> None:
        inside = nullcontext() if _runtime is None else _runtime.backend.trace_range(self._name)
        inside.__enter__()
        self._inside.append(inside)

    def __exit__(self, *error: Any) -> None:
        self._inside.pop().__exit__(*error)


# --- symmetric arrays


@overload
def empty(shape: Any, dtype: Any = ..., *, like: None = None) -> SymmetricArray: ...
@overload
def empty(shape: Any, dtype: Any = ..., *, like: Any) -> Any: ...
@public
def empty(shape: Any, dtype: Any = np.float64, *, like: Any = None) -> Any:
    """Allocate a symmetric array, contents undefined. Collective over all PEs.

    `shape` (an integer or a tuple) and `dtype` are as in NumPy. Every PE must request the same
    number of bytes, else every PE raises `CollectiveMismatch` listing the requests. Heap memory is
    allocated in multiples of 256 bytes. Waits for this PE's streams. On return every PE has
    allocated the array, at the same offset. Raises `HeapExhausted` if no free block is large
    enough, naming the lines that hold most of the heap. OpenSHMEM 1.5: shmem_malloc.

    `like` is None for a `SymmetricArray`, or the library whose array is to be returned, `torch`,
    `numpy` (without a GPU) or `cupy` (with one), or an array of it. Such an array, and slices of
    it, are taken wherever symmetric arrays are: in kernels, operations and `free`. It uses the
    memory without waiting for kernels. Raises `ArgumentError` if the library has no arrays of this
    dtype or in this memory.
    """
    return current("empty").allocate("empty", shape, dtype, None, like)


@overload
def zeros(shape: Any, dtype: Any = ..., *, like: None = None) -> SymmetricArray: ...
@overload
def zeros(shape: Any, dtype: Any = ..., *, like: Any) -> Any: ...
@public
def zeros(shape: Any, dtype: Any = np.float64, *, like: Any = None) -> Any:
    """Allocate a symmetric array of zeros, complete on all PEs on return; otherwise as `empty`."""
    return _filled("zeros", shape, 0, dtype, like)


@overload
def ones(shape: Any, dtype: Any = ..., *, like: None = None) -> SymmetricArray: ...
@overload
def ones(shape: Any, dtype: Any = ..., *, like: Any) -> Any: ...
@public
def ones(shape: Any, dtype: Any = np.float64, *, like: Any = None) -> Any:
    """Allocate a symmetric array of ones, complete on all PEs on return; otherwise as `empty`."""
    return _filled("ones", shape, 1, dtype, like)


@overload
def full(shape: Any, fill_value: Any, dtype: Any = ..., *, like: None = None) -> SymmetricArray: ...
@overload
def full(shape: Any, fill_value: Any, dtype: Any = ..., *, like: Any) -> Any: ...
@public
def full(shape: Any, fill_value: Any, dtype: Any = None, *, like: Any = None) -> Any:
    """Allocate a symmetric array filled with `fill_value`, which may differ between PEs.

    `dtype` defaults to that of `fill_value`, as in NumPy. Otherwise as `empty`. On return the array
    is filled on every PE.
    """
    return _filled("full", shape, fill_value, dtype, like)


def _filled(what: str, shape: Any, value: Any, dtype: Any, like: Any) -> Any:
    runtime, shape = current(what), shape_of(what, shape)
    value = on_host(f"{what}: fill_value", value)
    dtype = dtype_of(what, value.dtype if dtype is None else dtype)
    nbytes_of(what, shape, dtype)
    with taking(f"{what}: fill_value"):  # fail before anything is allocated
        np.broadcast_to(value, shape)
        value = value.astype(dtype)
    return runtime.allocate(what, shape, dtype, lambda array: array.copy_from(value), like)


@overload
def array(values: Any, dtype: Any = ..., *, like: None = None) -> SymmetricArray: ...
@overload
def array(values: Any, dtype: Any = ..., *, like: Any) -> Any: ...
@public
def array(values: Any, dtype: Any = None, *, like: Any = None) -> Any:
    """Allocate a symmetric array with this PE's `values` in it; otherwise as `empty`.

    `values` is anything `numpy.asarray` accepts, or a PyTorch tensor. Every PE must pass the same
    number of bytes.
    """
    runtime, values = current("array"), _numbers("array", values, dtype)
    return runtime.allocate(
        "array", values.shape, values.dtype, lambda array: array.copy_from(values), like
    )


def _numbers(what: str, values: Any, dtype: Any = None) -> np.ndarray[Any, Any]:
    values = on_host(what, values)
    dtype = plain(what, values.dtype) if dtype is None else dtype_of(what, dtype)
    with taking(what):
        return values.astype(dtype, copy=False)


@public
def alloc_bytes(nbytes: int) -> SymmetricArray:
    """Allocate `nbytes` bytes of symmetric memory as an array of uint8; otherwise as `empty`.

    `alloc_bytes(n).view(dtype)` gives it another dtype. OpenSHMEM 1.5: shmem_malloc; NVSHMEM 3:
    nvshmem_malloc.
    """
    nbytes = integer("alloc_bytes: nbytes", nbytes)
    if nbytes < 0:
        raise ArgumentError(f"alloc_bytes: cannot allocate {nbytes} bytes: give 0 or more")
    array: SymmetricArray = current("alloc_bytes").allocate(
        "alloc_bytes", nbytes, np.uint8, None, None
    )
    return array


@public
def free(array: Any) -> None:
    """Release the memory of a symmetric array. Collective; waits for this PE's streams.

    `array` is the result of an allocation, or a view that starts at the same address, one of
    another library too (`like=`). Using it, or a view of it, afterwards raises `SymmetryError`, and
    so does freeing it twice; other libraries use their views without asking. OpenSHMEM 1.5:
    shmem_free.
    """
    current("free").free(array)


@public
def register_symmetric(buffer: Any) -> SymmetricArray:
    """Make existing memory symmetric: a target of other PEs. Collective over all PEs.

    `buffer` is an array as for `register`, contiguous and writable. Every PE must pass the same
    number of bytes, else every PE raises `CollectiveMismatch`. Returns a symmetric array of the
    buffer's shape and dtype on the same memory, with its contents: what either is given, the other
    has. On return this holds on every PE. Waits for this PE's streams.

    Without a GPU `buffer` is in host memory, starts at a page and consists of whole pages, as
    `numpy.frombuffer(mmap.mmap(-1, n * mmap.PAGESIZE), dtype)` does, and takes as much of the heap.
    On a GPU it is the beginning of an allocation of CUDA's virtual memory management, on this PE's
    GPU, of the handle type of NVSHMEM's heap, and at least as long as the buffer in whole granules
    of that heap; it takes nothing of the heap. Others raise `ArgumentError`, and so do buffers of
    which a part is registered or symmetric already.

    The array keeps `buffer` alive until `unregister_symmetric`, which `finalize` does for all. A
    forked child shares the memory. NVSHMEM 3: nvshmemx_buffer_register_symmetric.
    """
    return current("register_symmetric").attach(buffer)


@public
def unregister_symmetric(array: Any) -> None:
    """End a registration of `register_symmetric`. Collective; waits for this PE's streams.

    `array` is the argument or the result of it. On return the buffer is ordinary memory again, with
    its contents, and private to this process; using the symmetric array, or a view of it, raises
    `SymmetryError`. As for `free`, what PEs have sent to it must have arrived before they call.
    Raises `ArgumentError` for anything else. NVSHMEM 3: nvshmemx_buffer_unregister_symmetric.
    """
    current("unregister_symmetric").detach(array)


@public
def heap_stats() -> HeapStats:
    """Return the current usage of this PE's symmetric heap, with the line of each allocation.

    Not collective; equal on all PEs that have made the same collective calls. `print` it for a
    table.
    """
    return current("heap_stats").stats()


# --- ordinary device memory, streams


@public
def device_array(shape: Any, dtype: Any = np.float64) -> DeviceArray:
    """Allocate an array in this PE's ordinary device memory, contents undefined. Not collective.

    `shape` and `dtype` are as in NumPy. The array can be the local argument of operations, not the
    remote one; in operations to PEs on other machines only while it is registered. Its memory is
    released with the last reference. Raises `ArgumentError` for an invalid shape.
    """
    return _on_device("device_array", shape_of("device_array", shape), dtype)


def _on_device(what: str, shape: tuple[int, ...], dtype: Any) -> DeviceArray:
    backend, dtype = current(what).backend, dtype_of(what, dtype)
    nbytes = nbytes_of(what, shape, dtype)
    try:
        return DeviceArray(backend.device_array(shape, dtype), backend)
    except MemoryError:
        raise HeapExhausted(
            f"{what}: cannot allocate {nbytes} bytes ({format_size(nbytes)}) of device memory"
        ) from None


@public
def to_device(values: Any) -> DeviceArray:
    """Copy an array to this PE's ordinary device memory. Not collective.

    `values` is anything `numpy.asarray` accepts, or a PyTorch tensor. On return the copy is
    complete and `values` may be reused. The result is an array as from `device_array`.
    """
    current("to_device")
    values = _numbers("to_device", values)
    array = _on_device("to_device", values.shape, values.dtype)
    array.copy_from(values)
    return array


@public
def qp_create(n: int) -> DeviceArray:
    """Make `n` queue pairs for kernels; return their numbers, an int32 array of device memory.

    Collective over all PEs, with the same `n`; waits for this PE's streams. Every queue pair
    connects this PE with all others. `qp_put(dst, src, pe, qps[i])` and the like use one;
    `qp_quiet(pe, qps)` and `qp_fence(pe, qps)` take the array or a slice of it. The numbers are
    this PE's own: another PE may have others. Where the network has no queue pairs to give, or
    there is none, all are QP_DEFAULT, and NVSHMEM warns. Queue pairs last until the end of the
    process. NVSHMEM 3: nvshmemx_qp_create.
    """
    count = integer("qp_create: n", n, 1, MOST_QPS)
    backend = current("qp_create").backend
    backend.meet(f"qp_create({count})")
    return to_device(np.array(backend.qp_create(count), np.int32))


@public
def register(array: Any) -> DeviceArray:
    """Make existing memory usable as a local source or destination; not collective.

    `array` is a NumPy array, a PyTorch CPU tensor, or another object with `__array_interface__` or
    `__dlpack__` in host memory, or with `__cuda_array_interface__` on a GPU backend; or a device
    array, which operations to PEs on other machines need to be registered. It must be contiguous
    and writable. Returns an array on the same memory, without a copy, for kernels and operations;
    it keeps `array` alive. Host operations then also accept `array` itself and slices of it. The
    memory is not symmetric, so it cannot be remote. Raises `ArgumentError` for other arrays, and if
    part of the memory is already registered. NVSHMEM 3: nvshmemx_buffer_register.
    """
    return current("register").registrations.add(array)


@public
def on_device(array: Any, what: str = "on_device", name: str = "array") -> Any:
    """Return the array in the form that kernels accept, on the same memory; not collective.

    A device array, or another with `__cuda_array_interface__`, is returned as it is; for an array
    in host memory that is registered, or a part of one, a device array is returned. Raises
    `ArgumentError` for others, naming the function `what` and the argument `name`.
    """
    runtime = current(what)
    array = runtime.known(f"{what}: {name}", array)
    if isinstance(array, DeviceArray):
        return array
    if in_host_memory(array):
        return runtime.registrations.shared(what, name, array)
    if in_gpu_memory(array):
        return array
    raise ArgumentError(f"{what}: {name} must be a device array, not {shown(array)}")


@public
def unregister(array: Any) -> None:
    """End a registration; not collective. Waits for this PE's streams.

    `array` is the argument or the result of `register`. Using the result, or a view of it,
    afterwards raises `ArgumentError`, and so does passing an array that is not registered as a
    whole. NVSHMEM 3: nvshmemx_buffer_unregister.
    """
    current("unregister").registrations.remove(array)


@public
def stream(priority: int = 0, *, nonblocking: bool = False) -> Any:
    """Create a stream: work submitted to it runs in order, concurrently with other streams.

    On a GPU blocks of a stream with a lower number as `priority` are started before waiting blocks
    of others; the range, -5 to 0 on current GPUs, is that of CUDA's cuCtxGetStreamPriorityRange.
    Without a GPU it has no effect. Raises `ArgumentError` for a number outside of it.

    Pass it to launches, `kernel[grid, block, stream](...)`, and to operations, `stream=`, which
    then return immediately, without a result. `s.synchronize()` waits for the stream and raises the
    error of a kernel that failed; `synchronize()` and `a.numpy()`, which wait for all streams, do
    the same. Work submitted after a launch that failed, on the same stream, is skipped. Launches
    without a stream use the default stream (0). It waits for all other streams, and they wait for
    it, as in CUDA, but for those made with `nonblocking` (cudaStreamNonBlocking). Not collective; a
    stream is released with the last reference.
    """
    priority = integer("stream: priority", priority)
    return current("stream").backend.stream(priority, bool(nonblocking))


@public
def wait_stream(stream: Any, other: Any) -> bool:
    """Let what is queued on `stream` from now on wait for what is queued on `other` so far.

    Both are anything that launches take as a stream. Returns whether they are two streams; if they
    are one, as two wrappers of it are, nothing is done. The host does not wait. If `other` is being
    captured for a graph, `stream` joins the capture, until it ends; on GPUs it has to be waited for
    again before that. A captured stream does not wait for one that is not: what comes before the
    graph's launches is for who launches it. Not collective. PyTorch: `Stream.wait_stream`; CUDA:
    cudaEventRecord, cudaStreamWaitEvent.
    """
    return bool(current("wait_stream").backend.wait_stream(stream, other))


@public
def on_stream(stream: Any, call: Callable[[int | None], object]) -> None:
    """Let another library do something in a stream's order: `on_stream(stream, call)`.

    On a GPU `call(handle)` is called now, with the handle of the CUDA stream, 0 for the default
    one, and queues its work there: `torch.cuda.ExternalStream(handle)`, `cupy.cuda.ExternalStream`.
    Without a GPU `call(None)` is called when its turn comes, on another thread; what it raises is
    raised by whatever waits for the stream, and what follows is skipped, as after a launch that
    failed. It must not wait for streams. Captured for a graph it is called at each launch of that.
    `--check` does not see what it reads and writes. Not collective. CUDA: cudaLaunchHostFunc, for
    CPUs.
    """
    if not callable(call):
        raise ArgumentError(f"on_stream: call is {shown(call)}, and must be a function")
    current("on_stream").backend.on_stream(stream, call)


@public
def is_capturing(stream: Any) -> bool:
    """Whether a stream is being captured: what is queued on it does not run now.

    Not collective. CuPy: `Stream.is_capturing`; CUDA: cudaStreamIsCapturing.
    """
    return bool(current("is_capturing").backend.is_capturing(stream))


@public
def capture(stream: Any) -> AbstractContextManager[Any]:
    """Make a graph of what is queued on a stream: `with shmem.capture(stream) as graph:`.

    Within the block, launches and operations with this stream, of any thread, do not run: they are
    kept, with their arguments. Then `graph.launch(stream=0)` queues all of them, in this order, on
    any stream, any number of times, asynchronously; a launch in a graph costs a small part of one
    by itself. Arrays are read as they are when it runs, numbers as they were given. A launch that
    fails takes the rest of the graph and of the queue with it. `stream` comes from `stream()`; the
    default stream cannot be captured. Whatever waits for this PE's streams raises `ArgumentError`
    in the thread that captures: `synchronize`, `a.numpy()`, collective calls, launches with NumPy
    arrays. Not collective.

    On GPUs it is a CUDA graph. Load its kernels before (launch or `preload` them once), and keep
    the arrays alive as long as it is launched; a thread that waits for all streams waits until
    other threads' captures end. Streams that are captured by `torch.cuda.graph` or cuda.core's
    `GraphBuilder` take launches and operations, too. PyTorch: `torch.cuda.graph`,
    `CUDAGraph.replay`; CUDA: cudaStreamBeginCapture, cudaGraphLaunch.
    """
    return current("capture").backend.capture(stream)


@public
def init_module(module: Any) -> None:
    """Let kernels of another compiler call NVSHMEM's device functions; not collective.

    `module` is code that is loaded on this PE's GPU, compiled with NVSHMEM's headers or linked with
    its device library: an `ObjectCode` or `Kernel` of cuda.core, a `CUlibrary`, `CUmodule`,
    `CUkernel` or `CUfunction` of cuda.bindings, or a kernel that Triton has loaded. NVSHMEM writes
    its state there. On return its kernels may be launched, by whatever launches them, and use
    symmetric arrays, whose addresses are in `a.__cuda_array_interface__`, for other PEs' copies in
    that of `peer_array(a, pe)`. Kernels of `jit` need no such call.

    The code must stay loaded to the end of the process, also after `finalize`: NVSHMEM keeps
    writing there. `module` is kept alive; do not unload it. Call it for each PE and module, before
    the first launch. It may wait for all kernels of this GPU, as `preload` does. Raises
    `ArgumentError` for code in which NVSHMEM does not find its own, and `BackendUnavailable` on
    backends other than "nvshmem". NVSHMEM 3: nvshmemx_cumodule_init, nvshmemx_culibrary_init.
    """
    current("init_module").backend.init_module(module)


@public
def tuning() -> Tuning:
    """How kernels that communicate are best launched on the backend in use: blocks, threads, sizes.

    Not collective; the same on all PEs.
    """
    backend = current("tuning").backend
    about = registry.about(backend.name)
    found = (settings.get("GPUSHMEM_CHECK") and about.recorded) or about.tuning
    if backend.on_gpu:
        found = found.on_gpus(*backend.gpu)
    job = current_job()
    found = current("tuning").backend.tuned(found)
    return found if job is None or job.n_nodes == 1 else found.over_a_network()


@public
def set_timeout(seconds: float | None) -> None:
    """End the job, with a report, when a host has waited in one call for more than `seconds`.

    Not collective: it applies to all PEs from now on; None turns it off. It covers every host call
    that waits for other PEs or for kernels; a kernel that never ends is detected by the host that
    waits for it. Every PE then raises `WaitTimeout`. Default: `--timeout` of `gpushmem run`, else
    GPUSHMEM_TIMEOUT, else no timeout. Raises `ArgumentError` unless `seconds` is above 0.
    """
    runtime = current("set_timeout")
    if seconds is not None and not (isinstance(seconds, Real) and 0 < seconds < 1e9):
        raise ArgumentError(
            f"set_timeout: give a number of seconds above 0, or None, not {shown(seconds)}"
        )
    runtime.backend.set_timeout(seconds)


@public
def synchronize() -> None:
    """Wait for all this PE's streams; raises the error of a kernel that failed.

    Not collective, and says nothing about other PEs: data that kernels put has arrived after
    `quiet` or a barrier. For a kernel that failed it raises `KernelError`, or the error of the
    operation that failed (`ArgumentError`, `SymmetryError` and so on), once; `Deadlock`,
    `WaitTimeout` or `PeerFailed` if the job is over. Ctrl-C ends the wait and cancels launches that
    wait.
    """
    current("synchronize").backend.synchronize()
