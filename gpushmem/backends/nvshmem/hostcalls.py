"""Host calls of operations on GPUs.

Operations that NVSHMEM can queue on a stream have a method of their name here; the others run as
kernels of one block, so that host and kernels share one implementation. Without `stream=` an
operation runs on a stream of its own, and is complete when the call returns; with `stream=` it is
queued there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from cuda.core import Stream as CudaStream
from numba.core.errors import NumbaError
from nvshmem import bindings

from gpushmem.artifacts.launch_shape import shape_of
from gpushmem.backends.host import call_checks, host_kernels
from gpushmem.backends.nvshmem.gpu import cublaslt
from gpushmem.backends.nvshmem.gpu.arrays import GpuArray, at
from gpushmem.backends.nvshmem.gpu.device import Device
from gpushmem.backends.nvshmem.kernels import Kernel, Loader
from gpushmem.errors import ArgumentError, BackendUnavailable, ShmemError
from gpushmem.ops import OPS, Op
from gpushmem.ops.roles import Value, Wanted

__all__ = ["HostCalls"]

ONE, BLOCK = shape_of(1, 1), shape_of(1, 256)
ROOM = 65536  # bytes for copies of the host's arrays, at first
SCRATCH, RESULT = 4096, 3840  # bytes of scratch memory; from RESULT on it holds results
COPIED = ("indices", "status", "value", "cond")  # arguments that may be the host's arrays
# dtype -> its name in NVSHMEM's functions on streams.
CTYPES = {
    "int8": "int8", "int16": "int16", "int32": "int32", "int64": "int64", "uint8": "uint8",
    "uint16": "uint16", "uint32": "uint32", "uint64": "uint64", "float16": "half",
    "bfloat16": "bfloat16", "float32": "float", "float64": "double",
}  # fmt: skip
REDUCED = ("sum", "min", "max")  # on streams; the other reductions are kernels
# NVSHMEM launches as many threads as there are elements for these: CUDA refuses none, and NVSHMEM
# then ends the process. As kernels they meet, as they do if a PE calls them in one.
BY_SIZE = ("broadcast", "alltoall", "reducescatter")
UNITS = {8: "uint64", 4: "uint32", 2: "uint16", 1: "uint8"}
Symmetric = Callable[[str, Any], None]


class HostCalls:
    """Runs operations for the host of one PE."""

    _kernels: dict[tuple[Any, ...], Kernel] = {}  # compiled code outlives `finalize`

    def __init__(
        self, device: Device, loader: Loader, n_pes: int, scratch: int, symmetric: Symmetric
    ) -> None:
        self._device, self._loader, self._n_pes = device, loader, n_pes
        self._symmetric = symmetric  # raises unless an array is on the symmetric heap
        self._scratch = at(scratch, (SCRATCH,), np.dtype(np.uint8))
        self._room = device.array((ROOM,), np.dtype(np.uint8))
        self._products = cublaslt.Products(device)
        # By base name: what NVSHMEM, or cuBLASLt, queues on a stream.
        self._queued: dict[str, Callable[..., Any]] = {
            "put": self._put,
            "get": self._get,
            "put_signal": self._put_signal,
            "signal_op": self._signal_op,
            "signal_wait_until": self._signal_wait_until,
            "p": self._p,
            "g": self._g,
            "flush": self._flush,
            "quiet": self._quiet,
            "barrier": self._barrier,
            "barrier_all": self._barrier_all,
            "sync": self._sync,
            "sync_all": self._sync_all,
            "broadcast": self._broadcast,
            "fcollect": self._fcollect,
            "alltoall": self._alltoall,
            "reduce": self._reduce,
            "reducescatter": self._reducescatter,
            "gemm": self._products.multiply,
            "gemm_batched": self._products.multiply,
            "gemm_scaled": self._products.multiply,
        }

    def run(self, op: Op, arguments: dict[str, Any], stream: Any) -> Any:
        """Run the operation: on `stream`, or, if that is None, until it is complete."""
        host = _of_the_host(arguments)
        given, cuda = self._given(op, arguments, stream)
        direct = self._direct(op, given, stream)
        if direct is not None:
            result = direct(int(cuda.handle), **given)
        else:
            go, result = self._in_a_kernel(op, given, cuda)
            go()
        if stream is not None and not host:
            return None
        self._device.wait(cuda, op.name)
        if "indices" in host:
            host["indices"][...] = self._device.read(given["indices"])
        return result() if result is not None and stream is None else None

    def preload(self, op: Op, arguments: dict[str, Any], stream: Any) -> None:
        """Load the kernel that `run` would launch for such arguments, if it would."""
        given, cuda = self._given(op, arguments, stream)
        if self._direct(op, given, stream) is None:
            self._in_a_kernel(op, given, cuda)

    def _given(
        self, op: Op, arguments: dict[str, Any], stream: Any
    ) -> tuple[dict[str, Any], CudaStream]:
        """The arguments as kernels take them, checked; and the stream to use."""
        copies = self._copies(_of_the_host(arguments))
        arguments = {name: as_gpu(value) for name, value in arguments.items()}
        given = host_kernels.kernel_arguments(op, arguments) | copies
        call_checks.check(op, given, self._n_pes, self._symmetric, _members)
        return given, self._device.stream_of(self._device.own if stream is None else stream)

    def _copies(self, host: dict[str, Any]) -> dict[str, GpuArray]:
        """Copies of host arrays in GPU memory, which is kept."""
        at_byte, copies = 0, {}
        needed = sum(-(-array.nbytes // 16) * 16 for array in host.values())
        if needed > self._room.size:
            self._room = self._device.array((2 * needed,), np.dtype(np.uint8))
        for name, array in host.items():
            part = self._room[at_byte : at_byte + array.nbytes]
            copies[name] = part.view(array.dtype).reshape(array.shape)
            self._device.write(copies[name], array)
            at_byte += -(-array.nbytes // 16) * 16
        return copies

    def _direct(self, op: Op, given: dict[str, Any], stream: Any) -> Callable[..., Any] | None:
        """The function that queues the operation on a stream, if a library has one."""
        # A value used later is a kernel's argument: scratch memory may be overwritten until then.
        if "timeout_ns" in given or (op.base == "p" and stream is not None):
            return None
        reduces = op.base in ("reduce", "reducescatter")
        if reduces and (given["op"] not in REDUCED or given["src"].dtype.name not in CTYPES):
            return None
        if op.base == "gemm":
            empty = not (given["a"].size and given["b"].size)
            return None if empty or cublaslt.library() is None else self._queued["gemm"]
        if op.base in ("gemm_batched", "gemm_scaled") and cublaslt.library() is None:
            raise BackendUnavailable(
                f"{op.name}: on GPUs cuBLASLt does it, which is missing: pip install nvidia-cublas"
            )
        if op.base in BY_SIZE and not given["src"].size:
            return None
        return self._queued.get(op.base)

    # --- on streams, by NVSHMEM

    def _put(self, stream: int, dst: Any, src: Any, pe: int) -> None:
        bindings.putmem_on_stream(dst.address, src.address, src.nbytes, pe, stream)

    def _get(self, stream: int, dst: Any, src: Any, pe: int) -> None:
        bindings.getmem_on_stream(dst.address, src.address, dst.nbytes, pe, stream)

    def _put_signal(
        self, stream: int, dst: Any, src: Any, signal: Any, value: int, op: int, pe: int
    ) -> None:
        bindings.putmem_signal_on_stream(
            dst.address, src.address, src.nbytes, signal.address, value, op, pe, stream
        )

    def _signal_op(self, stream: int, signal: Any, value: int, op: int, pe: int) -> None:
        bindings.signal_op_on_stream(signal.address, value, op, pe, stream)

    def _signal_wait_until(
        self, stream: int, signal: Any, cmp: int, value: int
    ) -> Callable[[], Any]:
        bindings.signal_wait_until_on_stream(signal.address, cmp, value, stream)
        return lambda: self._device.read(signal.reshape(-1)[:1])[0]

    def _p(self, stream: int, dst: Any, value: Any, pe: int) -> None:
        element = self._element("p", dst.dtype)
        self._device.wait(self._device.own.cuda, "p")  # the scratch memory is free again
        self._device.write(element, _as_element(value, dst.dtype))
        bindings.putmem_on_stream(dst.address, element.address, element.nbytes, pe, stream)

    def _g(self, stream: int, src: Any, pe: int) -> Callable[[], Any]:
        element = self._element("g", src.dtype)
        bindings.getmem_on_stream(element.address, src.address, element.nbytes, pe, stream)
        return lambda: self._device.read(element)[0]

    def _element(self, name: str, dtype: Any) -> GpuArray:
        """Scratch memory for one element."""
        if dtype.itemsize > RESULT:
            raise ArgumentError(
                f"{name}: an element of {dtype.itemsize} bytes is more than the {RESULT} possible: "
                "use put or get"
            )
        return self._scratch[: dtype.itemsize].view(dtype)

    def _result(self, dtype: Any, waited_for: bool) -> GpuArray:
        """Memory for what a kernel returns; results of asynchronous calls use a separate slot."""
        start = RESULT if waited_for else RESULT + 64
        return self._scratch[start : start + dtype.itemsize].view(dtype)

    def _flush(self, stream: int) -> None:
        bindings.flush_on_stream(stream)

    def _quiet(self, stream: int) -> None:
        bindings.quiet_on_stream(stream)

    _fence = _quiet  # NVSHMEM has no fence on streams; a quiet does more

    def _barrier(self, stream: int, team: int) -> None:
        bindings.barrier_on_stream(int(team), stream)

    def _barrier_all(self, stream: int) -> None:
        bindings.barrier_all_on_stream(stream)

    def _sync(self, stream: int, team: int) -> None:
        bindings.team_sync_on_stream(int(team), stream)

    def _sync_all(self, stream: int) -> None:
        bindings.sync_all_on_stream(stream)

    def _broadcast(self, stream: int, team: int, dst: Any, src: Any, root: int) -> None:
        function, n = _moving("broadcast", src)
        function(int(team), dst.address, src.address, n, root, stream)

    def _fcollect(self, stream: int, team: int, dst: Any, src: Any) -> None:
        function, n = _moving("fcollect", src)
        function(int(team), dst.address, src.address, n, stream)

    def _alltoall(self, stream: int, team: int, dst: Any, src: Any) -> None:
        function, n = _moving("alltoall", src)
        part = n // _members(team)
        function(int(team), dst.address, src.address, part, stream)

    def _reduce(self, stream: int, team: int, dst: Any, src: Any, op: str) -> None:
        function = getattr(bindings, f"{CTYPES[src.dtype.name]}_{op}_reduce_on_stream")
        function(int(team), dst.address, src.address, src.size, stream)

    def _reducescatter(self, stream: int, team: int, dst: Any, src: Any, op: str) -> None:
        part = src.size // _members(team)
        function = getattr(bindings, f"{CTYPES[src.dtype.name]}_{op}_reducescatter_on_stream")
        function(int(team), dst.address, src.address, part, stream)

    # --- as kernels

    def _in_a_kernel(
        self, op: Op, given: dict[str, Any], stream: Any
    ) -> tuple[Callable[[], None], Callable[[], Any]]:
        """A launch that does the operation, and what returns its result when that is over."""
        dtype = host_kernels.result_dtype(op, given)
        waited_for = stream is self._device.own.cuda
        result = self._result(np.dtype(dtype or "int64"), waited_for)
        awaited = next(iter(given.values()), None)
        if isinstance(awaited, GpuArray):
            for name in op.named(Value) + op.named(Wanted):
                if not isinstance(given[name], GpuArray):
                    given[name] = _as_element(given[name], awaited.dtype)[0]
        reduction, others = host_kernels.split_reduction(op, given)
        # A block is faster than a thread, and some reductions NVSHMEM has for blocks only.
        row = OPS.get(f"{op.base}_block", op)
        shape = BLOCK if row is not op else ONE
        try:
            kernel = self._kernel(row, tuple(others), reduction, dtype is not None)
            go = kernel.prepare(self._loader, shape, stream, (result, *others.values()))
        except ShmemError:
            raise
        except (NumbaError, ValueError) as error:
            raise host_kernels.not_compiled(op, given, error) from None
        return go, lambda: self._device.read(result)[0] if dtype is not None else None

    def _kernel(
        self, op: Op, params: tuple[str, ...], reduction: str | None, returns: bool
    ) -> Kernel:
        key = (op.name, len(params), reduction)
        if key not in self._kernels:
            self._kernels[key] = Kernel(
                host_kernels.host_kernel(op, params, reduction, returns), {}
            )
        return self._kernels[key]


def _members(team: int) -> int:
    """How many PEs a team has."""
    return int(bindings.team_n_pes(int(team)))


def _of_the_host(arguments: dict[str, Any]) -> dict[str, Any]:
    """Those of the arguments that are the host's arrays, and may be."""
    return {k: v for k, v in arguments.items() if k in COPIED and isinstance(v, np.ndarray)}


def _moving(name: str, src: Any) -> tuple[Callable[..., Any], int]:
    """The function of a collective that moves `src`, and the number of units to move."""
    width = next(w for w in UNITS if src.dtype.itemsize % w == 0)
    return getattr(bindings, f"{UNITS[width]}_{name}_on_stream"), src.nbytes // width


def as_gpu(value: Any) -> Any:
    """Convert arrays of other libraries, and registered NumPy arrays, to GpuArrays."""
    if isinstance(value, np.ndarray):
        return GpuArray(value)
    if not isinstance(value, GpuArray) and hasattr(value, "__cuda_array_interface__"):
        from gpushmem.artifacts.argument_packing import as_numpy  # noqa: PLC0415

        return GpuArray(as_numpy(value), value)
    return value


def _as_element(value: Any, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """An array of one element, converted as by NumPy's assignment."""
    element = np.empty(1, dtype)
    element[0] = value
    return element
