"""The `cpu` backend: kernels run natively on this machine's cores, PEs share memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from gpushmem import code_store, settings
from gpushmem.arguments import integer
from gpushmem.artifacts.argument_packing import address_of
from gpushmem.artifacts.global_arrays import places
from gpushmem.artifacts.launch_shape import PRIORITIES, carveout, shape_of
from gpushmem.backends import page_sharing
from gpushmem.backends.base import Config, DeviceFunction, Shape
from gpushmem.backends.cpu import checked_process, lowering
from gpushmem.backends.cpu.host_checking import Recorder, recorder
from gpushmem.backends.cpu.host_operations import Inline
from gpushmem.backends.cpu.host_tracing import tracer
from gpushmem.backends.cpu.hostcalls import HostCalls
from gpushmem.backends.cpu.observers import observe_kernels
from gpushmem.backends.cpu.operations import hook
from gpushmem.backends.cpu.operations.access import NAMING, explain
from gpushmem.backends.cpu.operations.nodes import Registered
from gpushmem.backends.cpu.sync import host_barrier
from gpushmem.backends.cpu.sync.host_barrier import HostBarrier
from gpushmem.backends.cpu.sync.teams import Teams
from gpushmem.backends.cpu.sync.world import World
from gpushmem.backends.cpu.weak import weak_memory, weaken_kernels
from gpushmem.backends.host.call_arguments import checked
from gpushmem.backends.host.call_checks import check_buffer
from gpushmem.backends.host.event_readers import Readers
from gpushmem.backends.host.host_kernels import no_modules
from gpushmem.backends.operation_errors import ENDED, no_stream
from gpushmem.backends.properties import Tuning
from gpushmem.diagnosis.arrays import Arrays
from gpushmem.diagnosis.deadlock_detection import Late, Watch
from gpushmem.diagnosis.host_polling import Asking
from gpushmem.diagnosis.interrupts import Interrupts
from gpushmem.diagnosis.journal import Journal
from gpushmem.diagnosis.pe_state import Accountant
from gpushmem.errors import ArgumentError, ShmemError
from gpushmem.job.board import DEADLOCK, HANDLED
from gpushmem.job.forks import belongs
from gpushmem.job.job import Job, current
from gpushmem.ops import Op
from gpushmem.simt.embed import Embedder, adopt, embed, sharers
from gpushmem.simt.embed import warm_up as warm_up_engine
from gpushmem.simt.launch import (
    CANCELLED,
    Device,
    Graph,
    Kernel,
    KernelFailure,
    Running,
    Stream,
    captured,
)
from gpushmem.simt.observe import Work
from gpushmem.trace.counters import Stats

if TYPE_CHECKING:
    from gpushmem.backends.cpu.host_collectives import HostCollectives
    from gpushmem.backends.cpu.sync.messages import Mailbox

__all__ = ["CpuBackend", "warm_up"]

# jit options of numba.cuda that mean the same here, and those that mean nothing on a CPU.
OPTIONS = {"fastmath", "debug", "cache", "collective"}
adopt(DeviceFunction, lambda function: function.py_func)

CARVEOUT = "shared_memory_carveout"
IGNORED = {
    "opt", "lineinfo", "max_registers", "launch_bounds", "inline", "forceinline", "lto", CARVEOUT,
}  # fmt: skip


class CpuBackend:
    """One PE on the CPU; see `backends.base.Backend` for what each method promises."""

    name = "cpu"
    on_gpu = False
    gpu = 0, 0

    def __init__(self, heap_bytes: int) -> None:
        job = current()
        assert job is not None  # see `runtime`
        self.install(job.n_nodes)
        self.my_pe, self.n_pes = job.my_pe, job.n_pes
        code_store.speak(job.my_pe == 0)
        self.heap_bytes = heap_bytes
        self.world = World(job, heap_bytes, self._more_bytes(job))
        self._recorder, self._weak = recorder(self.world), weak_memory(self.world)
        self._tracer = tracer(self.world)
        self._readers = Readers((self._recorder, self._tracer))
        self._barrier = HostBarrier(self.world, self._weak.wait_idle if self._weak else None)
        self._device = belongs(Device())
        self._teams = self._make_teams()
        self._journal = Journal()
        self.world.native["journal"] = self._journal.address
        self._arrays, self._asking = Arrays(), Asking()
        self._accountant = Accountant(job, self._barrier, self._journal, self._arrays, self._asking)
        self._late: list[Late] = [] if self._weak is None else [self._weak]
        if self._tracer is not None:
            self._late.append(self._tracer)
        self._watch = Watch(job, self._accountant, self._asking, self._late)
        seen = self._recorder is not None or self._weak is not None
        self._in_python = self._run if seen else None  # runs launches, if somebody is to see them
        self._host_calls = HostCalls(
            self.world.native, self._ended_by, self._in_python, self._recorder
        )
        self._registered = Registered(self.world)
        self._inline = Inline(
            self.world, self._barrier, self._teams, self._journal, self._registered, self._weak
        )
        self.world.size_heap()
        self._watch.start()
        over = self.world.board.error()
        try:
            if over is not None:
                raise over  # the job is over for all PEs
            self.meet("init", heap_bytes)
            self.world.map_heap()
            self._arrays.heap = self.world.heap
            self._mapped()
            self._readers.mapped()
            if self._weak is not None:
                self._weak.mapped()
        except BaseException:
            self._watch.stop()
            raise
        self._interrupts = Interrupts(self._accountant, self.world.board)
        # The running kernel's name is written to the board, where it outlives this process.
        told = address_of(self.world.board.pes["kernel"][self.my_pe : self.my_pe + 1])
        embed(Embedder(self.world.native, self._explain, told))
        places.append(self._on_heap)
        sharers.append(self._shares)

    # --- what a backend on top of this one has of its own

    @staticmethod
    def install(n_nodes: int) -> None:
        """Give the operations their meaning in kernels."""
        observe_kernels()
        weaken_kernels()
        hook.separate(n_nodes > 1)
        lowering.install()

    def _more_bytes(self, job: Job) -> int:
        """Symmetric memory that it needs beside the heap."""
        return 0

    def _make_teams(self) -> Teams:
        return Teams(self.world, self._barrier)

    def _mapped(self) -> None:
        """All PEs' memory has been mapped."""

    def _quiet(self) -> None:
        """Wait until what has been called has been performed."""
        if self._weak is not None:
            self._weak.quiet()

    # --- meeting

    def meet(self, what: str, nbytes: int = -1) -> None:
        # A kernel of this PE may be in a barrier_all of its own; one PE must not be there twice.
        self.synchronize()
        self._quiet()
        with self._readers.meeting(what):
            self._barrier.meet(what, nbytes)
        if self._weak is not None:
            self._weak.check_ends(self.allocated())

    @property
    def allocated(self) -> Callable[[], Sequence[Any]]:
        return self._arrays.allocated

    @allocated.setter
    def allocated(self, value: Callable[[], Sequence[Any]]) -> None:
        self._arrays.allocated = value
        self._readers.look_at(value)

    @property
    def recorder(self) -> Recorder | None:
        """Who records what this PE does, for the checker."""
        return self._recorder

    # Imported where they are used: few programs do.

    def host_collectives(self, team: int) -> HostCollectives:
        from gpushmem.backends.cpu.host_collectives import HostCollectives  # noqa: PLC0415

        return belongs(HostCollectives(self.world, self._barrier, team, self._readers))

    def mailbox(self, team: int) -> Mailbox:
        from gpushmem.backends.cpu.sync.messages import Mailbox  # noqa: PLC0415

        return belongs(Mailbox(self.world, self._barrier, team))

    def forget_team(self, team: int) -> None:
        self._teams.forget(team)

    def handle_deadlock(self) -> None:
        """The program has caught the error of a deadlock, if there is one, and goes on."""
        self.world.board.handle(self.my_pe)

    def begin_anew(self) -> None:
        """Wait until all PEs have handled the deadlock that this one has, if there is one."""
        board, end = self.world.board, time.monotonic() + HANDLED
        while board.pes["handled"][self.my_pe] and board["verdict"] == DEADLOCK:
            if time.monotonic() > end:
                raise board.error() or ShmemError("the job is over")
            time.sleep(1e-3)

    def set_timeout(self, seconds: float | None) -> None:
        self.world.board["timeout"] = int((seconds or 0) * 1e9)

    def close(self) -> None:
        embed(None)
        places.remove(self._on_heap)
        sharers.remove(self._shares)
        if self._weak is not None:
            self._weak.close()
        self._watch.stop()
        self._readers.close()
        self._interrupts.restore()
        code_store.speak(True)
        self._teams.close()
        self.world.release_heap()

    # --- memory

    def symmetric(self, offset: int, shape: Shape, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        array = self.world.array(offset, shape, dtype, self.my_pe)
        self._journal.forget(offset, array.nbytes)
        self._readers.arrays()
        if self._weak is not None:
            self._weak.fresh(array, offset)
        return array

    def released(self, offset: int, nbytes: int) -> None:
        self._readers.released(offset)
        if self._weak is not None:
            self._weak.freed(offset, nbytes)

    def _on_heap(self, value: Any) -> np.ndarray[Any, Any] | None:
        """An array of NumPy's that a kernel names, if it is on the symmetric heap."""
        return value if type(value) is np.ndarray and self.world.holds(value) else None

    def _shares(self, start: int, end: int) -> bool:
        """Whether other PEs may write there."""
        return self.n_pes > 1 and self.world.locate(start, end) is not None

    def heap_offset(self, native: np.ndarray[Any, Any]) -> int:
        return address_of(native) - self.world.heap

    def device_array(self, shape: Shape, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        empty = np.empty if self._recorder is None else self._recorder.device_array
        array = empty(shape, dtype)
        if self._weak is not None:
            self._weak.poison(array)
        self._arrays.note(array, "device memory")
        return array

    def to_host(self, native: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        self.synchronize()
        self._readers.read(native)
        return np.array(native)

    def from_host(self, native: np.ndarray[Any, Any], values: Any) -> None:
        self.synchronize()
        self._readers.written(native, values)
        np.copyto(native, values, casting="unsafe")  # as assignment to a NumPy array does

    def lends(self, memory: np.ndarray[Any, Any]) -> bool:
        seen = self._recorder is None and self._weak is None  # who looks at device memory only
        return seen and memory.flags.c_contiguous and memory.flags.aligned

    def expose(self, native: np.ndarray[Any, Any]) -> None:
        self._readers.exposed(native)

    def register(
        self, buffer: Any, memory: np.ndarray[Any, Any], on_gpu: bool
    ) -> np.ndarray[Any, Any]:
        check_buffer(self.name, buffer, memory, on_gpu, self.world.holds)
        self._arrays.note(memory, "registered memory")
        self._registered.add(memory)
        return memory

    def unregister(self, native: np.ndarray[Any, Any]) -> None:
        self._registered.remove(native)

    def locate(self, start: int, end: int) -> tuple[int, bool] | None:
        return self.world.locate(start, end)

    def adopt(self, memory: np.ndarray[Any, Any], owner: Any) -> np.ndarray[Any, Any]:
        return memory

    def check_external(self, what: str, memory: np.ndarray[Any, Any], on_gpu: bool) -> None:
        page_sharing.check(what, self.name, memory, on_gpu)

    def claim(self, memory: np.ndarray[Any, Any], alloc: Callable[[int, int], int]) -> int:
        return alloc(memory.nbytes, page_sharing.PAGE)

    def attach(self, memory: np.ndarray[Any, Any], offset: int) -> np.ndarray[Any, Any]:
        native = self.symmetric(offset, memory.shape, memory.dtype)
        page_sharing.share(memory, native)
        self._readers.written(native, memory)
        self.expose(native)
        return native

    def detach(self, memory: np.ndarray[Any, Any], offset: int) -> None:
        page_sharing.separate(memory)

    # --- kernels

    def stream(self, priority: int, nonblocking: bool) -> Stream:
        integer("stream: priority", priority, *PRIORITIES)
        return self.follow(self._device.stream(blocking=not nonblocking))

    def follow(self, stream: Stream) -> Stream:
        """Take a stream, of a device that it shares, for one of its own."""
        if self._recorder is not None:
            stream.waited = partial(self._recorder.waited_for, self._number_of(stream))
        return stream

    def share(self, device: Device) -> None:
        """Take the streams of `numba.cuda` for its own: its device waits for them, too."""
        self._device = device

    def calls_late(self, late: Late) -> None:
        """Let the watch call it, several times a second."""
        self._late.append(late)

    def capture(self, stream: Any) -> AbstractContextManager[Graph]:
        return captured(self._stream(stream), self._stream)

    def synchronize(self) -> None:
        with self._readers.calling("synchronize"):
            self._device.synchronize()
        self._readers.synchronized()

    def stop(self, seconds: float) -> bool:
        return self._device.stop(seconds)

    def trace_range(self, name: str) -> AbstractContextManager[Any]:
        return self._readers.ranging(name)

    def stats(self) -> Stats | None:
        return None if self._tracer is None else self._tracer.stats()

    def settle(self, what: str) -> None:
        self.synchronize()
        self._quiet()  # others may wait for what this PE has sent
        self._barrier.settle(what)

    def kernel(self, py_func: Callable[..., Any], options: dict[str, Any]) -> Kernel:
        unknown = options.keys() - OPTIONS - IGNORED
        if unknown:
            known = ", ".join(sorted([*OPTIONS, *IGNORED, "device"]))
            raise ArgumentError(f"jit has no option {', '.join(sorted(unknown))}; it has {known}")
        carveout(options.get(CARVEOUT, -1))
        chosen = {"cache": True} | {k: v for k, v in options.items() if k in OPTIONS}
        return Kernel(py_func, **chosen)

    def prepare(self, kernel: Kernel, config: Config, args: tuple[Any, ...]) -> Callable[[], None]:
        stream = config.stream
        shape = shape_of(config.grid, config.block, config.dynamic_shared, config.cluster)
        if not kernel.options.get("debug"):
            with self._readers.preparing(kernel.name):
                prepare = partial(kernel.prepare, shape, args, self.world.native, self._error)
                launch = prepare(lasting=self._stream(stream).is_captured)
            if launch.entry.better:
                return _Improving(partial(self._submit, stream), launch, prepare)
            return partial(self._submit, stream, launch)

        def checked() -> None:
            world = self.world.checking([(a.offset, a.nbytes) for a in self.allocated()])
            self._submit(stream, kernel.prepare(shape, args, world, self._error))

        return checked

    def launch(self, kernel: Kernel, args: tuple[Any, ...], *config: Any) -> None:
        self.prepare(kernel, Config(*config), args)()

    def init_module(self, module: Any) -> None:
        raise no_modules(self.name)

    def qp_create(self, n: int) -> Sequence[int]:
        first = int(self.world.native["last_qp"][0]) + 1
        self.world.native["last_qp"] = first + n - 1
        return range(first, first + n)

    def _submit(self, stream: Any, launch: Running) -> None:
        """Queue a launch; synchronising raises its error, in terms of the operation that failed."""
        self._asking.forget()
        on = self._stream(stream)
        self._readers.launched(launch.name)
        if self._in_python is None:
            on.submit(launch)
        else:
            on.submit_by(partial(self._submit_seen, launch))

    def _submit_seen(self, launch: Running, on: Stream) -> None:
        number = 0
        if self._recorder is not None:
            number = self._recorder.submitted(launch, self._number_of(on))
        on.submit(partial(self._run, launch, number))

    def _run(self, launch: Running, number: int = 0) -> None:
        """Run a launch in the worker of its stream, and let who is to see it."""
        if self._weak is not None:
            with self._weak.running(launch):
                launch()
        elif self._recorder is not None:
            with self._recorder.running(launch, number):
                launch()

    def _ended_by(self, failure: KernelFailure) -> KernelFailure:
        """No thread of a launch that has failed is in a collective any more."""
        self._teams.failed(failure.launch)
        return failure

    def _error(self, failure: KernelFailure) -> ShmemError:
        return self._explain(self._ended_by(failure))

    def _explain(self, failure: KernelFailure, where: str = "") -> ShmemError:
        """The error of a launch that failed: the job's, if that ended the launch."""
        verdict = self.world.board.error() if failure.code in (CANCELLED, ENDED) else None
        if not where:
            label = "" if failure.code in NAMING else failure.label
            where = ": ".join(filter(None, (f"PE {self.my_pe}, {failure.where()}", label)))
        return verdict or explain(failure, where, self._arrays)

    def _stream(self, stream: Any) -> Stream:
        if isinstance(stream, Stream):
            return stream
        if stream is None or (isinstance(stream, int) and stream == 0):
            return self._device.default
        raise no_stream(stream)

    # --- host side of the operations

    def call(self, op: Op, arguments: dict[str, Any]) -> Any:
        if self._watch.over and op.hears:
            # A host that only polls would not notice it otherwise.
            raise self.world.board.error() or ShmemError(f"{op.name}: the job is over")
        if op.hears and self._device.failed:
            self._device.raise_error()  # it may be what this host waits for
        arguments = checked(op, arguments)
        answer = self._do(op, arguments)
        self._asking.note(op, arguments.get("pe"), answer)
        return answer

    def tuned(self, tuning: Tuning) -> Tuning:
        return tuning

    def wait_stream(self, stream: Any, other: Any) -> bool:
        later, earlier = self._stream(stream), self._stream(other)
        if later is earlier:
            return False
        later.wait_for(earlier, Stream.wait_now_for if self._recorder is None else self._wait_seen)
        return True

    def _wait_seen(self, later: Stream, earlier: Stream) -> None:
        """Let a stream wait for another, between two works of which the recorder knows."""
        number = self._mark(Work("stream"), earlier)
        later.wait_now_for(earlier)
        self._mark(Work("wait_stream", after=number), later)

    def _mark(self, work: Work, on: Stream) -> int:
        """Queue a work that does nothing but to be recorded; returns its number."""
        assert self._recorder is not None
        number, reached = self._recorder.queues(work, self._number_of(on))
        on.submit(reached)
        return number

    def on_stream(self, stream: Any, call: Callable[[int | None], object]) -> None:
        self._stream(stream).submit(partial(call, None))

    def is_capturing(self, stream: Any) -> bool:
        return self._stream(stream).is_captured

    def preload(self, op: Op, arguments: dict[str, Any]) -> None:
        arguments = checked(op, arguments)
        arguments.pop("stream", None)
        if op.base not in self._inline.calls:
            self._host_calls.prepare(op, arguments)

    def _do(self, op: Op, arguments: dict[str, Any]) -> Any:
        stream = arguments.pop("stream", None)
        if self._weak is not None and op.hears:
            self._weak.idle(waits=False)
        run = self._inline.calls.get(op.base)
        late = self._weak is not None and stream is not None and op.facts.orders
        if run is None or late:  # it waits, may be late, or is a collective
            return self._in_a_kernel(op, arguments, stream)
        if op.facts.meets:  # a kernel of this PE may be in a call of the same team
            if stream is not None:
                return self._in_a_kernel(op, arguments, stream)
            self.synchronize()
        if stream is None:
            run = partial(run, **arguments)
            return self._readers.call(op, arguments, run) if op.is_event else run()
        return self._stream(stream).submit_by(partial(self._submit_inline, op, arguments))

    def _submit_inline(self, op: Op, arguments: dict[str, Any], on: Stream) -> None:
        run = self._inline.queued(op, arguments)
        if op.is_event:
            run = self._readers.queued(op, arguments, run, self._number_of(on))
        on.submit(run)

    def _number_of(self, stream: Any) -> int:
        """The number by which the recorder knows a stream."""
        return 0 if stream is self._device.default else int(stream.number)

    def _in_a_kernel(self, op: Op, arguments: dict[str, Any], stream: Any) -> Any:
        if stream is not None:
            launch = self._host_calls.prepare(op, arguments)[0]
            launch.explain = self._error
            return self._submit(stream, launch)
        if op.facts.meets:
            self.synchronize()
        try:
            with self._readers.calling(op.name):
                return self._host_calls.run(op, arguments)
        except KernelFailure as failure:
            raise self._explain(failure, op.name) from None


class _Improving:
    """A launch to be made any number of times, of a kernel that has been compiled quickly.

    From the second time on it is prepared again, until there is optimised code of it.
    """

    def __init__(
        self, submit: Callable[[Running], None], launch: Running, prepare: Callable[[], Running]
    ) -> None:
        self._submit, self._launch, self._prepare = submit, launch, prepare
        self._made = False

    def __call__(self) -> None:
        if self._made and self._launch.entry.better:
            self._launch = self._prepare()
        self._made = True
        self._submit(self._launch)


def warm_up(n_pes: int | None) -> None:
    """Prepare what the PEs need, in the process they will be forked from."""
    CpuBackend.install(settings.get("GPUSHMEM_NODES"))
    prepare(n_pes)
    if settings.get("GPUSHMEM_CHECK"):
        checked_process.warm_up()


def prepare(n_pes: int | None) -> None:
    """Prepare the engine."""
    host_barrier.native()
    warm_up_engine(n_pes)
