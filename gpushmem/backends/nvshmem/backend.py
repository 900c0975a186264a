"""The `nvshmem` backend: a PE is a process with a GPU, NVSHMEM moves the data."""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from cuda.bindings import driver
from cuda.pathfinder import load_nvidia_dynamic_lib
from nvshmem import bindings

from gpushmem import code_store, settings
from gpushmem.artifacts.launch_shape import shape_of
from gpushmem.backends.base import Config, Shape
from gpushmem.backends.host.call_arguments import checked
from gpushmem.backends.host.call_checks import (
    check_contiguous,
    check_not_on_heap,
    check_pe,
    not_symmetric,
    unreachable,
)
from gpushmem.backends.host.host_kernels import ask_smem
from gpushmem.backends.nvshmem import mps, transport
from gpushmem.backends.nvshmem.external_buffers import check_external
from gpushmem.backends.nvshmem.gpu import cublaslt, modules, nvlink
from gpushmem.backends.nvshmem.gpu.arrays import GpuArray, at
from gpushmem.backends.nvshmem.gpu.device import NOTICE, Device, Stream, say
from gpushmem.backends.nvshmem.gpu.driver_errors import check
from gpushmem.backends.nvshmem.gpu.graph import Graph, captured
from gpushmem.backends.nvshmem.gpu.memory import Registered
from gpushmem.backends.nvshmem.hostcalls import COPIED, SCRATCH, HostCalls, as_gpu
from gpushmem.backends.nvshmem.kernels import Kernel, Loader
from gpushmem.backends.nvshmem.teams import Teams
from gpushmem.backends.nvshmem.trace.host_tracing import tracer
from gpushmem.backends.nvshmem.trace.nvtx import named
from gpushmem.backends.operation_errors import different_calls
from gpushmem.backends.properties import Tuning
from gpushmem.errors import (
    ArgumentError,
    BackendUnavailable,
    HeapExhausted,
    ShmemError,
)
from gpushmem.job import exit_notice, ranks
from gpushmem.job import job as jobs
from gpushmem.job.board import TIMEOUT
from gpushmem.ops import TEAM_SHARED, Op
from gpushmem.ops.roles import Members, TeamHandle
from gpushmem.size import span

__all__ = ["NvshmemBackend"]

LINKED = 7  # the bit that says so, beside the major compute capability
ALIGNMENT = 512  # bytes; of the heap, as that of an allocation
# A PE's message in a meeting: the number of bytes, and the name of the call, cut to fit.
SAYING = np.dtype([("nbytes", "i8"), ("what", "S120")])
LAST = 600.0  # seconds at exit until a PE ends without the others
SILENT = (
    ". PEs share a GPU here: if the first PE of the machine ended with exit code 255, "
    "`nvidia-cuda-mps-control` has not answered NVSHMEM; start again, or fewer jobs at once"
)
HOST_REGISTER = driver.CU_MEMHOSTREGISTER_PORTABLE | driver.CU_MEMHOSTREGISTER_DEVICEMAP


class Nvshmem:
    """NVSHMEM in this process: started once, and kept through later `finalize` and `init`."""

    def __init__(self, heap_bytes: int) -> None:
        there = ranks.current()
        assert there is not None  # see `runtime`
        self.peers = there
        transport.apply(heap_bytes)
        n_gpus = Device.count()
        self.device = Device(there.local_pe % n_gpus)
        load_nvidia_dynamic_lib("nvshmem_host")  # where `bindings` find it
        unique_id = bindings.uniqueid()
        if there.my_pe == 0:
            bindings.get_uniqueid(unique_id.ptr)
        mine = unique_id._data.tobytes() + heap_bytes.to_bytes(8, "little")
        shared = there.broadcast(mine if there.my_pe == 0 else None)
        heap_of_0 = int.from_bytes(shared[-8:], "little")
        if heap_of_0 != heap_bytes:
            sizes = {0: heap_of_0, there.my_pe: heap_bytes}
            raise different_calls({pe: _sized("init", nbytes) for pe, nbytes in sizes.items()})
        unique_id._data.view(np.uint8)[:] = np.frombuffer(shared[:-8], np.uint8)
        sharing = there.n_local > n_gpus
        try:
            with mps.turn() if sharing and there.local_pe == 0 else nullcontext():
                about = bindings.InitAttr()
                who = there.my_pe, there.n_pes, unique_id.ptr
                bindings.set_attr_uniqueid_args(*who, about.ptr)
                bindings.hostlib_init_attr(bindings.Flags.INIT_WITH_UNIQUEID, about.ptr)
        except Exception as error:
            raise BackendUnavailable(
                f"PE {there.my_pe} of {there.n_pes}: NVSHMEM cannot be brought up: {error}. "
                f"NVSHMEM_DEBUG=INFO says more, and so may `gpushmem doctor`{SILENT * sharing}"
            ) from error
        there.close()
        # Whether network adapters are between some PEs: then they must know what is sent from.
        self.far = int(bindings.team_n_pes(int(TEAM_SHARED))) < there.n_pes
        if self.far:
            self.device.memory = Registered(_register)
        atexit.register(self._end)

    def _end(self) -> None:
        """End NVSHMEM at exit, unless the process failed: it would wait for the others.

        It would also wait for ever for one that has died, in C: so another thread does it.
        """
        if exit_notice.failed():
            return
        ended = threading.Thread(target=self._finalize, daemon=True)
        ended.start()
        longest = self.device.timeout or LAST
        ended.join(min(NOTICE, longest))
        if ended.is_alive():
            say(f"PE {self.peers.my_pe} waits for the other PEs to end, at most {longest:g} s")
            ended.join(max(0.0, longest - NOTICE))
        if ended.is_alive():
            say(
                f"PE {self.peers.my_pe}: the other PEs have not ended within {longest:g} s; one "
                "may have died. This process ends without NVSHMEM's finalize"
            )
            sys.stdout.flush()
            os._exit(0)  # a return might wait for NVSHMEM's threads; this PE has not failed

    def _finalize(self) -> None:
        with suppress(Exception):  # the process ends; there is nothing left to do
            self.device.enter()
            bindings.hostlib_finalize()


_nvshmem: Nvshmem | None = None


def _bring_up(heap_bytes: int) -> Nvshmem:
    global _nvshmem  # noqa: PLW0603
    if _nvshmem is None:
        _nvshmem = Nvshmem(heap_bytes)
    return _nvshmem


class NvshmemBackend:
    """One PE on a GPU; see `backends.base.Backend` for what each method promises."""

    name = "nvshmem"
    on_gpu = True
    gpu = 0, 0
    allocated: Callable[[], Sequence[Any]]

    def __init__(self, heap_bytes: int) -> None:
        library = _bring_up(heap_bytes)
        self.my_pe, self.n_pes = library.peers.my_pe, library.peers.n_pes
        self._taken: list[int] = []  # of NVSHMEM's memory
        self._device = library.device
        # Several PEs share a GPU, and no MPS lets them run at the same time.
        self.limited = bindings.init_status() == bindings.Init_status.STATUS_LIMITED_MPG
        self._device.timeout = _timeout()
        self._device.late = _end_job
        self.heap_bytes = heap_bytes
        code_store.speak(self.my_pe == 0)
        self._tracer = tracer(self._device, self.my_pe, self.n_pes)
        self._layout()
        self.meet("init", heap_bytes)
        self._take_heap()
        self._far = library.far
        # Of the user's memory: address -> end, and whether it is a GPU's.
        self._registered: dict[int, tuple[int, bool]] = {}
        self._external: dict[int, int] = {}  # address -> bytes, of the user's symmetric memory
        loader = Loader(self._device, self._words, self._sharing(), library.far, self._tracer)
        self._loader = loader
        self._teams = Teams(self.synchronize)
        # Operations that are neither queued by NVSHMEM nor run as kernels.
        self._answers: dict[str, Callable[..., Any]] = {
            "my_pe": lambda: self.my_pe,
            "n_pes": lambda: self.n_pes,
            "pe_accessible": lambda pe: 0 <= pe < self.n_pes,
            "ask_smem": ask_smem,
            "peer_array": self._peer_array,
            "multicast_array": self._multicast_array,
            **self._teams.calls,
        }
        self._host_calls = HostCalls(
            self._device, loader, self.n_pes, self._scratch, self._check_symmetric
        )
        self._tracer.began(self._heap, heap_bytes, self._clock, self._teams.returned)

    def _clock(self) -> int:
        """What the GPU's clock shows."""
        from gpushmem.backends.nvshmem import clock  # noqa: PLC0415  (imports what compiles)

        return clock.read(self._device, self._loader)

    def _layout(self) -> None:
        """Reserve the symmetric memory that gpushmem itself needs."""
        say = 2 * SAYING.itemsize * (self.n_pes + 1)
        words = 8 * (self.n_pes + 1) * Teams.limit()
        base = self._symmetric_memory(say + words + SCRATCH)
        self._said, self._round = at(base, (2, self.n_pes + 1), SAYING), 0
        self._words = base + say
        self._scratch = self._words + words

    def _symmetric_memory(self, nbytes: int) -> int:
        """Allocate symmetric memory and return its address; collective."""
        start = int(bindings.malloc(nbytes + ALIGNMENT))
        if not start:
            raise HeapExhausted(
                f"init: NVSHMEM cannot allocate {nbytes} bytes for a symmetric heap of "
                f"{self.heap_bytes} on GPU {self._device.number}: ask for less (heap_size=, "
                "GPUSHMEM_HEAP_SIZE), or see who else uses its memory (nvidia-smi)"
            )
        self._taken.append(start)
        return -(-start // ALIGNMENT) * ALIGNMENT

    def _take_heap(self) -> None:
        try:
            self._heap = self._symmetric_memory(self.heap_bytes)
        except HeapExhausted:  # on all PEs
            self._give_back()
            raise

    def _give_back(self) -> None:
        while self._taken:
            bindings.free(self._taken.pop())

    # --- meeting

    def meet(self, what: str, nbytes: int = -1) -> None:
        with self._tracer.calling("synchronize"):
            self._device.synchronize(what)
        with self._tracer.meeting(what), named(what):
            said = self._exchange(what, (nbytes, what.encode()[:120]))
        if (said != said[self.my_pe]).any():
            calls = enumerate(said.tolist())
            raise different_calls({pe: _sized(what.decode(), n) for pe, (n, what) in calls})

    def _sharing(self) -> int:
        """The number of PEs that use this PE's GPU, whatever the processes call it.

        Sets `gpu`, and whether NVLink links all.
        """
        self._device.synchronize("init")
        cuda = self._device.cuda
        about = nvlink.all_linked() << LINKED | cuda.compute_capability[0]
        mine = cuda.properties.multiprocessor_count << 8 | about
        said = self._exchange("init", (mine, cuda.uuid.encode()))
        gpus = said["what"].tolist()
        parts = (int(n >> 8) // gpus.count(gpu) for n, gpu in said.tolist())
        self.gpu = max(1, min(parts)), int((said["nbytes"] & (1 << LINKED) - 1).min())
        self._linked = bool((said["nbytes"] >> LINKED & 1).all())
        return gpus.count(gpus[self.my_pe])

    def _exchange(self, what: str, mine_: tuple[int, bytes]) -> np.ndarray[Any, Any]:
        """What each PE says; collective. This PE's streams are done."""
        self._round ^= 1  # others may be one meeting ahead
        mine, all_ = self._said[self._round, self.n_pes :], self._said[self._round, : self.n_pes]
        self._device.write(mine, np.array([mine_], SAYING))
        stream = int(self._device.own.cuda.handle)
        if self.limited:
            for pe in range(self.n_pes):
                there = all_[self.my_pe :].address
                bindings.putmem_on_stream(there, mine.address, SAYING.itemsize, pe, stream)
            bindings.barrier_all_on_stream(stream)
        else:
            n = SAYING.itemsize // 8
            bindings.uint64_fcollect_on_stream(0, all_.address, mine.address, n, stream)
        self._device.wait(self._device.own.cuda, what)
        return self._device.read(all_)

    def set_timeout(self, seconds: float | None) -> None:
        self._device.timeout = seconds

    def close(self) -> None:
        self._device.synchronize("finalize")
        self._teams.close()
        bindings.barrier_all()
        self._tracer.close()
        self._give_back()
        code_store.speak(True)

    # --- memory

    def symmetric(self, offset: int, shape: Shape, dtype: np.dtype[Any]) -> GpuArray:
        self._tracer.allocated = self.allocated
        self._tracer.arrays()
        return at(self._heap + offset, shape, dtype)

    def released(self, offset: int, nbytes: int) -> None:
        self._tracer.released(offset)

    def heap_offset(self, native: GpuArray) -> int:
        return native.address - self._heap

    def device_array(self, shape: Shape, dtype: np.dtype[Any]) -> GpuArray:
        return self._device.array(shape, dtype)

    def to_host(self, native: GpuArray) -> np.ndarray[Any, Any]:
        self.synchronize()
        return self._device.read(native)

    def from_host(self, native: GpuArray, values: Any) -> None:
        self.synchronize()
        self._device.write(native, values)

    def lends(self, memory: np.ndarray[Any, Any]) -> bool:
        return False

    def expose(self, native: GpuArray) -> None:
        """Nothing to do: nobody looks."""

    def register(self, buffer: Any, memory: np.ndarray[Any, Any], on_gpu: bool) -> GpuArray:
        check_not_on_heap(memory, self._holds)
        array = GpuArray(memory.view(), buffer)  # whoever has `memory` may set its shape
        if not on_gpu:
            status = driver.cuMemHostRegister(array.address, max(1, memory.nbytes), HOST_REGISTER)
            check(status, f"register: {memory.nbytes} bytes of host memory")
        try:
            if not self._device.memory.holds(*span(memory)):
                _register(array.address, memory.nbytes)
        except ArgumentError:
            if not on_gpu:
                driver.cuMemHostUnregister(array.address)
            raise
        self._registered[array.address] = span(memory)[1], on_gpu
        return array

    def unregister(self, native: GpuArray) -> None:
        _, on_gpu = self._registered.pop(native.address)
        if not self._device.memory.holds(*span(native.layout)):
            _library().nvshmemx_buffer_unregister(native.address)
        if not on_gpu:
            check(driver.cuMemHostUnregister(native.address), "unregister")

    def locate(self, start: int, end: int) -> tuple[int, bool] | None:
        # Other PEs' memory is GPU memory like any: nothing has to be known of it.
        return (start - self._heap, True) if self._held(start, end) else None

    def adopt(self, memory: np.ndarray[Any, Any], owner: Any) -> GpuArray:
        return GpuArray(memory, owner)

    def check_external(self, what: str, memory: np.ndarray[Any, Any], on_gpu: bool) -> None:
        check_external(what, memory, on_gpu, self._heap, self._device.number)

    def claim(self, memory: np.ndarray[Any, Any], alloc: Callable[[int, int], int]) -> int:
        address = int(bindings.buffer_register_symmetric(span(memory)[0], memory.nbytes, 0))
        if not address:
            raise ShmemError(
                f"register_symmetric: NVSHMEM cannot map {memory.nbytes} bytes, and has ended its "
                "heap; NVSHMEM_DEBUG=INFO says more. The job cannot go on"
            )
        self._external[address] = memory.nbytes
        return address - self._heap

    def attach(self, memory: np.ndarray[Any, Any], offset: int) -> GpuArray:
        return self.symmetric(offset, memory.shape, memory.dtype)

    def detach(self, memory: np.ndarray[Any, Any], offset: int) -> None:
        address = self._heap + offset
        bindings.buffer_unregister_symmetric(address, self._external.pop(address))

    def _check_symmetric(self, name: str, array: Any) -> None:
        if not isinstance(array, GpuArray) or not self._holds(array.layout):
            raise not_symmetric(name, array)

    def _holds(self, memory: np.ndarray[Any, Any]) -> bool:
        return self._held(*span(memory))

    def _held(self, low: int, high: int) -> bool:
        blocks = ((self._heap, self.heap_bytes), *self._external.items())
        return any(start <= low and high <= start + size for start, size in blocks)

    # --- kernels

    def stream(self, priority: int, nonblocking: bool) -> Stream:
        return self._device.new_stream(priority, nonblocking)

    def tuned(self, tuning: Tuning) -> Tuning:
        if not cublaslt.library():
            tuning = replace(tuning, kernel_products=None)
        return tuning if self._linked else replace(tuning, ll128_bytes=0)

    def wait_stream(self, stream: Any, other: Any) -> bool:
        return self._device.wait_stream(stream, other)

    def on_stream(self, stream: Any, call: Callable[[int | None], object]) -> None:
        call(0 if stream in (0, None) else int(self._device.stream_of(stream).handle))

    def is_capturing(self, stream: Any) -> bool:
        return self._device.is_captured(self._device.stream_of(stream))

    def capture(self, stream: Any) -> AbstractContextManager[Graph]:
        return captured(self._device, stream)

    def synchronize(self) -> None:
        with self._tracer.calling("synchronize"):
            self._device.synchronize()
        self._tracer.idle()

    def stop(self, seconds: float) -> bool:
        return self._device.stop(seconds)

    def trace_range(self, name: str) -> AbstractContextManager[Any]:
        ranges = ExitStack()
        for each in (named(name), self._tracer.ranging(name)):
            ranges.enter_context(each)
        return ranges

    def stats(self) -> None:
        """It counts nothing."""

    def settle(self, what: str) -> None:
        self.synchronize()  # NVSHMEM compares nothing

    def kernel(self, py_func: Callable[..., Any], options: dict[str, Any]) -> Kernel:
        return Kernel(py_func, options, traced=True)

    def prepare(self, kernel: Kernel, config: Config, args: tuple[Any, ...]) -> Callable[[], None]:
        shape = shape_of(config.grid, config.block, config.dynamic_shared, config.cluster)
        dependent = config.programmatic_stream_serialization
        cuda, native = self._device.stream_of(config.stream), tuple(map(as_gpu, args))
        with self._tracer.preparing(kernel.name):
            go = kernel.prepare(self._loader, shape, cuda, native, dependent)

        def launch() -> None:
            self._tracer.launched(kernel.name)
            go()

        return launch if self._tracer.address else go

    def launch(
        self, kernel: Kernel, args: tuple[Any, ...], grid: Any, block: Any, stream: Any = 0,
        dynamic_shared: Any = 0, cluster: Any = None, dependent: bool = False,
    ) -> None:  # fmt: skip
        if not self._tracer.address:
            shape = shape_of(grid, block, dynamic_shared, cluster)
            cuda = stream.cuda if type(stream) is Stream else self._device.stream_of(stream)
            if kernel.again(self._loader, shape, cuda, args, dependent):
                return
        config = Config(grid, block, stream, dynamic_shared, cluster, dependent)
        self.prepare(kernel, config, args)()

    def init_module(self, module: Any) -> None:
        modules.init_module(module, self._device)

    def qp_create(self, n: int) -> Sequence[int]:
        made = ctypes.POINTER(ctypes.c_int32)()
        if _library().nvshmemx_qp_create(n, ctypes.byref(made)):
            raise ShmemError(
                f"qp_create: NVSHMEM cannot make {n} queue pairs; NVSHMEM_DEBUG=INFO says more"
            )
        return made[:n]

    # --- host side of the operations

    def preload(self, op: Op, arguments: dict[str, Any]) -> None:
        native = {name: _as_native(value) for name, value in arguments.items()}
        arguments = checked(op, native, COPIED)
        stream = arguments.pop("stream", None)
        if op.name not in self._answers:
            self._host_calls.preload(op, arguments, stream)

    def call(self, op: Op, arguments: dict[str, Any]) -> Any:
        native = {name: _as_native(value) for name, value in arguments.items()}
        arguments = checked(op, native, COPIED)
        stream = arguments.pop("stream", None)
        if self.limited and _needs_all_at_once(op):
            raise ShmemError(
                f"{op.name}: PEs share a GPU without MPS, or with more than 100 % of its threads: "
                "NVSHMEM then lets hosts only put, get and meet in barrier_all and sync_all. Start "
                "a PE for each GPU, or MPS (nvidia-cuda-mps-control -d) with "
                "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
            )
        if self._far:
            self._check_sendable(op, arguments)
        answer = self._answers.get(op.name)
        if answer is not None and not op.facts.meets:
            return answer(**arguments)
        if answer is not None:
            run = partial(answer, **arguments)
        else:
            run = partial(self._host_calls.run, op, arguments, stream)
            if op.facts.meets and "team" in arguments:
                self._teams.check(arguments["team"], op.name)
            if op.facts.meets and stream is None:
                self.synchronize()
        return self._tracer.call(op, arguments, run)

    def _check_sendable(self, op: Op, arguments: dict[str, Any]) -> None:
        """Raise if an operation is to a PE behind a network that does not know its local memory."""
        pe = arguments.get("pe")
        if pe is None or not op.local or self._teams.is_near(pe):
            return
        for name in op.local:
            array = as_gpu(arguments[name])
            low, high = span(array.layout)
            known = self._device.memory.holds(low, high) or self._holds(array.layout)
            mine = any(at <= low and high <= end for at, (end, _) in self._registered.items())
            if not (known or mine):
                raise ArgumentError(
                    f"{op.name}: PE {pe} is on another machine, and {name} is device memory of "
                    "another library, which no network adapter reaches: pass "
                    "gpushmem.register(it), the same memory"
                )

    def _peer_array(self, array: Any, pe: int, name: str = "peer_array") -> GpuArray:
        check_pe(name, pe, self.n_pes)
        self._check_symmetric(name, array)
        check_contiguous(name, "the remote array", array.layout)
        address = int(bindings.ptr(array.address, pe))
        if not address:
            raise unreachable(name, pe, self.my_pe)
        return at(address, array.shape, array.dtype)

    def _multicast_array(self, array: Any, team: int) -> list[GpuArray]:
        members = self._teams.members(team)
        return [self._peer_array(array, pe, "multicast_array") for pe in members]


def _as_native(value: Any) -> Any:
    """Convert arrays of other libraries to GpuArrays; NumPy's may be in host memory, and stay."""
    return value if isinstance(value, np.ndarray) else as_gpu(value)


def _needs_all_at_once(op: Op) -> bool:
    """Whether NVSHMEM requires the PEs of a GPU to run at the same time, or else exits."""
    teams = op.named(TeamHandle) + op.named(Members)
    on_a_team = op.facts.meets and bool(teams) and op.base != "team_destroy"
    return on_a_team or op.base == "signal_wait_until"


def _timeout() -> float | None:
    """The longest wait of hosts, in seconds, as set by the launcher."""
    job = jobs.current()
    if job is None:
        return settings.get("GPUSHMEM_TIMEOUT")
    return job.board["timeout"] / 1e9 or None


def _end_job(reason: str) -> None:
    """Tell gpushmem's launcher, if there is one, that a host has waited too long."""
    job = jobs.current()
    if job is not None:
        job.board.claim(TIMEOUT, job.my_pe, f"PE {job.my_pe}: {reason}")


def _sized(what: str, nbytes: int) -> str:
    """A call as messages name it."""
    return f"{what} of {nbytes} bytes" if nbytes >= 0 else what


def _register(address: int, nbytes: int) -> None:
    """Tell NVSHMEM of local memory; raises `ArgumentError`."""
    if _library().nvshmemx_buffer_register(address, nbytes):
        raise ArgumentError(f"register: NVSHMEM cannot register {nbytes} bytes at {address:#x}")


def _library() -> Any:
    """NVSHMEM's host library, for the functions that nvshmem4py lacks."""
    library = ctypes.CDLL(load_nvidia_dynamic_lib("nvshmem_host").abs_path)
    library.nvshmemx_buffer_register.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    library.nvshmemx_buffer_unregister.argtypes = [ctypes.c_void_p]
    library.nvshmemx_qp_create.argtypes = [ctypes.c_int, ctypes.c_void_p]
    return library
