"""The `cpu` backend: kernels run natively on this machine's cores, PEs share memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from gpushmem import disk
from gpushmem.arguments import shown
from gpushmem.artifacts.arguments import address_of
from gpushmem.artifacts.shape import shape_of
from gpushmem.backends.base import DeviceFunction, Shape
from gpushmem.backends.cpu import atomics, lowering, meeting
from gpushmem.backends.cpu.access import (
    BAD_SIGNAL_OP,
    EMPTY,
    ENDED,
    NAMING,
    UNALIGNED,
    error_of,
    explain,
)
from gpushmem.backends.cpu.account import Accountant
from gpushmem.backends.cpu.arrays import Arrays
from gpushmem.backends.cpu.asking import Asking
from gpushmem.backends.cpu.hostcalls import HostCalls
from gpushmem.backends.cpu.journal import Journal
from gpushmem.backends.cpu.meeting import Meeting
from gpushmem.backends.cpu.signals import Signals
from gpushmem.backends.cpu.teams import Teams
from gpushmem.backends.cpu.watch import Watch
from gpushmem.backends.cpu.world import World
from gpushmem.backends.given import checked
from gpushmem.backends.hostcalls import (
    check_contiguous,
    check_copy,
    check_pe,
    check_strided,
    fitting,
    not_symmetric,
)
from gpushmem.errors import ArgumentError, ArgumentTypeError, ShmemError
from gpushmem.job.job import current
from gpushmem.job.store import Store
from gpushmem.ops import SIGNAL_ADD, SIGNAL_SET, Op
from gpushmem.simt.base.embedding import Embedder, embed
from gpushmem.simt.compiler.target import adopt, simt_target
from gpushmem.simt.grid import entry, sharing
from gpushmem.simt.run import cores, scheduler
from gpushmem.simt.run.kernel import Kernel, KernelFailure, Running
from gpushmem.simt.run.scheduler import CANCELLED
from gpushmem.simt.run.stream import Device, Stream

__all__ = ["CpuBackend", "warm_up"]

# jit options of numba.cuda that mean the same here, and those that mean nothing on a CPU.
OPTIONS = {"fastmath", "debug", "cache", "collective"}
adopt(DeviceFunction, lambda function: function.py_func)

IGNORED = {"opt", "lineinfo", "max_registers", "launch_bounds", "inline", "forceinline", "lto"}


# So begin the operations that read what others write.
READS = ("signal_fetch", "atomic_fetch", "atomic_swap", "atomic_compare_swap", "test", "g", "iget")
# The host's calls of these wait for all streams; on a stream they are kernels as others are.
MEETINGS = ("barrier_all", "sync_all")
SIGNAL_OPS = {SIGNAL_SET: "atomic_set", SIGNAL_ADD: "atomic_add"}


class CpuBackend:
    """One PE on the CPU; see `backends.base.Backend` for what each method promises."""

    name = "cpu"

    def __init__(self, heap_bytes: int) -> None:
        lowering.install()
        job = current()
        assert job is not None  # see `runtime`
        self.my_pe, self.n_pes = job.my_pe, job.n_pes
        if job.n_pes > 1:
            store = Store(job.code_fd)
            sharing.use(store)
            disk.speak_for(store.first)
        self.heap_bytes = heap_bytes
        self.world = World(job, heap_bytes)
        self._meeting = Meeting(self.world)
        self._device = Device()
        self._teams = Teams(self.world, self._meeting)
        self._journal = Journal()
        self.world.native["journal"] = self._journal.address
        self._arrays, self._asking = Arrays(self.world), Asking()
        self._accountant = Accountant(
            self.world, self._meeting, self._journal, self._arrays, self._asking
        )
        self._watch = Watch(job, self._accountant, self._asking)
        self._host_calls = HostCalls(self.world.native, self._teams.run)
        self.world.size_heap()
        self._watch.start()
        over = self.world.board.error()
        try:
            if over is not None:
                raise over  # the job is over, for all PEs: they must not meet in parts
            self.meet("init", heap_bytes)
            self.world.map_heap()
        except BaseException:
            self._watch.stop()
            raise
        self._signals = Signals(self._accountant, self.world.board)
        self._runs = self.world.board.pes["kernel"][self.my_pe : self.my_pe + 1]
        embed(Embedder(self.world.native, self._explain, self._tell))

    # --- meeting

    def meet(self, what: str, nbytes: int = -1) -> None:
        # A kernel of this PE may be in a barrier_all of its own; one PE must not be there twice.
        self.synchronize()
        self._meeting.meet(what, nbytes)

    @property
    def allocated(self) -> Callable[[], Sequence[Any]]:
        return self._arrays.allocated

    @allocated.setter
    def allocated(self, value: Callable[[], Sequence[Any]]) -> None:
        self._arrays.allocated = value

    def forget(self, offset: int, nbytes: int) -> None:
        self._journal.forget(offset, nbytes)

    def set_timeout(self, seconds: float | None) -> None:
        self.world.board["timeout"] = int((seconds or 0) * 1e9)

    def close(self) -> None:
        embed(None)
        self._watch.stop()
        self._signals.restore()
        sharing.use(None)
        disk.speak_for(None)
        self._teams.close()
        self.world.release_heap()

    # --- memory

    def symmetric(self, offset: int, shape: Shape, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        return self.world.array(offset, shape, dtype, self.my_pe)

    def heap_offset(self, native: np.ndarray[Any, Any]) -> int:
        return address_of(native) - self.world.heap

    def device_array(self, shape: Shape, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        array = np.empty(shape, dtype)
        self._arrays.note(array, "device memory")
        return array

    def to_host(self, native: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        self.synchronize()
        return np.array(native)

    def from_host(self, native: np.ndarray[Any, Any], values: Any) -> None:
        self.synchronize()
        np.copyto(native, values, casting="unsafe")  # as assignment to a NumPy array does

    def host_view(self, native: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return native

    def register(self, buffer: Any, memory: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        if hasattr(buffer, "__cuda_array_interface__"):
            raise ArgumentError(
                f"register: this {type(buffer).__name__} is in a GPU's memory, which the cpu "
                "backend does not reach: register a copy in host memory"
            )
        if self.world.holds(memory):
            raise ArgumentError(
                f"register: these {memory.nbytes} bytes are on the symmetric heap already: pass "
                "the symmetric array itself"
            )
        self._arrays.note(memory, "registered memory")
        return memory

    def unregister(self, native: np.ndarray[Any, Any]) -> None:
        """Kernels reach all memory of the process: nothing was done for it."""

    # --- kernels

    def stream(self) -> Stream:
        return self._device.stream()

    def synchronize(self) -> None:
        self._device.synchronize()

    def stop(self, seconds: float) -> bool:
        return self._device.stop(seconds)

    def settle(self, what: str) -> None:
        self.synchronize()
        self._meeting.settle(what)

    def kernel(self, py_func: Callable[..., Any], options: dict[str, Any]) -> Kernel:
        unknown = options.keys() - OPTIONS - IGNORED
        if unknown:
            known = ", ".join(sorted([*OPTIONS, *IGNORED, "device"]))
            raise ArgumentError(f"jit has no option {', '.join(sorted(unknown))}; it has {known}")
        return Kernel(
            py_func, **{"cache": True} | {k: v for k, v in options.items() if k in OPTIONS}
        )

    def prepare(
        self, kernel: Kernel, config: tuple[Any, ...], args: tuple[Any, ...]
    ) -> Callable[[], None]:
        grid, block, stream, dynamic_shared = (*config, 0, 0)[:4]
        shape = shape_of(grid, block, dynamic_shared)
        if not kernel.options.get("debug"):
            launch = kernel.prepare(shape, args, self.world.native)
            return partial(self._submit, stream, launch)

        def checked() -> None:
            world = self.world.checking([(a.offset, a.nbytes) for a in self.allocated()])
            self._submit(stream, kernel.prepare(shape, args, world))

        return checked

    def _submit(self, stream: Any, launch: Running) -> None:
        """Run a launch in its turn; whoever synchronises gets its error in the user's words."""
        self._asking.forget()

        def run() -> None:
            try:
                self._teams.run(launch)
            except KernelFailure as failure:
                raise self._explain(failure) from failure.__cause__

        self._stream(stream).submit(run)

    def _tell(self, kernel: str) -> None:
        """Leave on the board which kernel runs: it can be read when this process has died."""
        self._runs[0] = kernel.encode()

    def _explain(self, failure: KernelFailure, where: str = "") -> ShmemError:
        """The error of a launch that failed: what has become of the job, if it was that."""
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
        raise ArgumentTypeError(
            f"a stream comes from gpushmem.stream(), or is 0; got {shown(stream)}"
        )

    # --- host side of the operations

    def call(self, op: Op, arguments: dict[str, Any]) -> Any:
        if self._watch.over and op.base.startswith(READS):
            # A host that polls would not hear of it otherwise.
            raise self.world.board.error() or ShmemError(f"{op.name}: the job is over")
        arguments = checked(op, arguments)
        answer = self._do(op, arguments)
        self._asking.note(op, arguments.get("pe"), answer)
        return answer

    def _do(self, op: Op, arguments: dict[str, Any]) -> Any:
        stream = arguments.pop("stream", None)
        run = self._host_side(op)
        if run is None or (op.base in MEETINGS and stream is not None):
            return self._in_a_kernel(op, arguments, stream)
        if not op.kernel:  # collective over a team, in which a kernel of this PE may be, too
            self.synchronize()
        if stream is None:
            return run(**arguments)
        return self._stream(stream).submit(lambda: run(**arguments))

    def _host_side(self, op: Op) -> Callable[..., Any] | None:
        """What runs on the calling thread; None for what waits or works on a team's data."""
        if op.name.startswith("atomic_"):
            return partial(self._atomic, op.name)
        return getattr(self, f"_{op.name}", None) or getattr(self._teams, op.name, None)

    def _in_a_kernel(self, op: Op, arguments: dict[str, Any], stream: Any) -> Any:
        if stream is not None:
            return self._submit(stream, self._host_calls.prepare(op, arguments)[0])
        if op.params[:1] == ("team",):
            self.synchronize()
        try:
            return self._host_calls.run(op, arguments)
        except KernelFailure as failure:
            raise self._explain(failure, op.name) from None

    def _atomic(self, name: str, dst: Any, pe: int, **values: Any) -> Any:
        target = self._remote(name, dst, pe, first=True)
        if name != "atomic_fetch":
            self._note(dst, target.itemsize, pe)
        return atomics.host(name, target, values)

    def _note(self, dst: Any, nbytes: int, pe: int) -> None:
        self._journal.note(self.heap_offset(dst), nbytes, pe)

    def _my_pe(self) -> int:
        return self.my_pe

    def _n_pes(self) -> int:
        return self.n_pes

    def _put(self, dst: Any, src: Any, pe: int, name: str = "put") -> None:
        src = np.asarray(src)
        target = self._remote(name, dst, pe)
        check_copy(name, target, src, "target", target.size, src.size)
        check_contiguous(name, "src", src)
        self._note(dst, src.nbytes, pe)
        target[: src.size] = src.reshape(-1)

    def _get(self, dst: Any, src: Any, pe: int) -> None:
        source = self._remote("get", src, pe)
        check_copy("get", dst, source, "source", source.size, dst.size)
        check_contiguous("get", "dst", dst)
        dst.reshape(-1)[:] = source[: dst.size]

    def _iput(self, dst: Any, src: Any, pe: int, **counts: int) -> None:
        _copy_strided("iput", self._remote("iput", dst, pe), np.asarray(src), **counts)

    def _iget(self, dst: Any, src: Any, pe: int, **counts: int) -> None:
        _copy_strided("iget", dst, self._remote("iget", src, pe), **counts)

    def _p(self, dst: Any, value: Any, pe: int) -> None:
        target = self._remote("p", dst, pe, first=True)
        self._note(dst, target.itemsize, pe)
        target[0] = value

    def _g(self, src: Any, pe: int) -> Any:
        return self._remote("g", src, pe, first=True)[0]

    def _fence(self) -> None:
        """Host copies happen in program order, and stay so on this machine's processors."""

    def _quiet(self) -> None:
        """Host operations are complete when they return."""

    def _put_signal(self, dst: Any, src: Any, signal: Any, value: int, op: int, pe: int) -> None:
        update = self._signalling("put_signal", signal, value, op, pe)
        self._put(dst, src, pe, "put_signal")
        update()

    def _signal_op(self, signal: Any, value: int, op: int, pe: int) -> None:
        self._signalling("signal_op", signal, value, op, pe)()

    def _signalling(
        self, name: str, signal: Any, value: int, op: int, pe: int
    ) -> Callable[[], None]:
        """What updates a signal; what cannot be done is refused now."""
        if op not in SIGNAL_OPS:
            raise error_of(BAD_SIGNAL_OP, name, op)
        target = self._signal(name, signal, pe)
        values = {"value": fitting(name, value, target.dtype)}
        self._note(signal, 8, pe)
        return partial(atomics.host, SIGNAL_OPS[op], target, values)

    def _signal_fetch(self, signal: Any) -> Any:
        return atomics.host("atomic_fetch", self._signal("signal_fetch", signal, self.my_pe), {})

    def _signal(self, name: str, signal: Any, pe: int) -> np.ndarray[Any, Any]:
        """Element 0 of a signal on another PE."""
        target = self._remote(name, signal, pe, first=True)
        if target.dtype != np.uint64:
            raise ArgumentError(f"{name}: signal must be an array of uint64, not {target.dtype}")
        if not target.flags.aligned:
            raise error_of(UNALIGNED, name, address_of(target), target.itemsize)
        return target

    def _barrier_all(self) -> None:
        self.synchronize()
        self._meeting.join("barrier")

    def _sync_all(self) -> None:
        self.synchronize()
        self._meeting.join("sync")

    def _peer_array(self, array: Any, pe: int) -> np.ndarray[Any, Any]:
        self._remote("peer_array", array, pe)
        return self.world.peer(array, pe)

    def _multicast_array(self, array: Any, team: int) -> list[np.ndarray[Any, Any]]:
        return [self._peer_array(array, pe) for pe in self._teams.members(team)]

    def _remote(self, name: str, array: Any, pe: int, first: bool = False) -> np.ndarray[Any, Any]:
        """The elements of `array` on another PE, or the first of them, or the reason why not."""
        check_pe(name, pe, self.n_pes)
        if not isinstance(array, np.ndarray) or not self.world.holds(array):
            raise not_symmetric(name, array)
        if first:
            array = array[(slice(1),) * array.ndim]
            if not array.size:
                raise error_of(EMPTY, name)
        check_contiguous(name, "the remote array", array)
        return self.world.peer(array, pe).reshape(-1)


def _copy_strided(
    name: str, dst: Any, src: Any, dst_stride: int, src_stride: int, nelems: int
) -> None:
    check_strided(name, dst, src, dst_stride, src_stride, nelems)
    target, source = (
        array.reshape(-1)[: (nelems - 1) * stride + 1 if nelems else 0 : stride]
        for array, stride in ((dst, dst_stride), (src, src_stride))
    )
    target[:] = source


def warm_up(n_pes: int | None) -> None:
    """Make what the PEs need, in the process they will be forked from."""
    lowering.install()
    scheduler.addresses()
    meeting.native()
    entry.warm_up()
    sharing.machine()
    if n_pes is None or n_pes > cores.available():
        # What compiling needs. Where each PE has a core, those that compile make it as fast.
        simt_target.typing_context.refresh()
        simt_target.target_context.refresh()
