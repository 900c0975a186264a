"""Kernels on this PE's GPU: compiled or found on disk, loaded, launched."""

from __future__ import annotations

import math
from collections.abc import Callable
from hashlib import blake2b
from operator import floordiv
from typing import Any, NamedTuple

import numpy as np
from cuda.bindings import driver
from cuda.core import LaunchConfig, ObjectCode, launch
from numba.cuda import types
from numba.cuda.typing.typeof import Purpose, typeof

from gpushmem.arguments import taking
from gpushmem.artifacts.argument_packing import pack, parameters, types_of, words_of
from gpushmem.artifacts.compiler_choice import MLIR
from gpushmem.artifacts.gpu_limits import MOST_REGISTERS, most_registers
from gpushmem.artifacts.launch_shape import CLUSTERS, LaunchShape, carveout
from gpushmem.backends.nvshmem.compile import aot
from gpushmem.backends.nvshmem.compile.options import code_options
from gpushmem.backends.nvshmem.gpu.arrays import GpuArray, at
from gpushmem.backends.nvshmem.gpu.device import Device
from gpushmem.backends.nvshmem.gpu.driver_errors import check
from gpushmem.backends.nvshmem.gpu.modules import init_module
from gpushmem.backends.nvshmem.trace import instrumentation
from gpushmem.backends.nvshmem.trace.host_tracing import Untraced
from gpushmem.errors import ArgumentError
from gpushmem.ops.team import Team

__all__ = ["Kernel", "Loader"]

PDL = "programmatic_stream_serialization"
LANES = 32  # threads of a warp
PLAIN_SHARED = 48 << 10  # bytes of shared memory that a block can have by default
WORKSPACE = "gpushmem_workspace"  # see `device_calls.EXTRA`
MOST_READY = 256  # combinations of types and shapes that a kernel remembers
# What cuda.core passes as `pack` does, and has one Numba type; an `int`, if it fits 64 bits.
SCALARS = frozenset({bool, int, float, Team, *(np.dtype(c).type for c in "?bBhHiIlLefd")})


class Loaded:
    """A kernel's machine code on the GPU.

    To load code may wait for all that runs on the GPU, so that is done here, not at a launch; and
    NVSHMEM waits when it is told of code.
    """

    def __init__(
        self,
        code: bytes,
        about: dict[str, Any],
        device: Device,
        workspace: int,
        carveout: int = -1,
        trace: int = 0,
    ) -> None:
        self._object = ObjectCode.from_cubin(code)
        self.kernel = self._object.get_kernel(about["entry"])
        self.cooperative, self.sums = about["cooperative"], about["sums"]
        self.mlir = about["compiler"] == MLIR
        self.groups = about["groups"]  # it calls operations of a warp or block
        kernel, what = driver.CUkernel(int(self.kernel.handle)), "loading a kernel"
        check(driver.cuFuncLoad(check(driver.cuKernelGetFunction(kernel), what)), what)
        which = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
        if carveout != -1:  # which is the driver's default
            check(driver.cuKernelSetAttribute(which, carveout, kernel, device.number), what)
        self.shared = self.kernel.attributes.shared_size_bytes
        self._dynamic_shared = PLAIN_SHARED - self.shared  # what a launch may ask for
        if about["shims"]:
            init_module(self._object, device)
        if about["workspace"]:
            self._tell(WORKSPACE, workspace, device)
        if about["trace"]:
            self._tell(instrumentation.GLOBAL, trace, device)

    def allow_shared(self, nbytes: int, device: Device) -> None:
        """Allow launches `nbytes` of dynamic shared memory; the caller has checked the limit."""
        if nbytes > self._dynamic_shared:
            which = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            kernel = driver.CUkernel(int(self.kernel.handle))
            check(driver.cuKernelSetAttribute(which, nbytes, kernel, device.number), "launch")
            self._dynamic_shared = nbytes

    def _tell(self, name: str, value: int, device: Device) -> None:
        """Set a global variable of the code."""
        library = driver.CUlibrary(int(self._object.handle))
        address, _ = check(driver.cuLibraryGetGlobal(library, name.encode()), name)
        device.write(at(int(address), (1,), np.dtype(np.uint64)), value)


class Loader:
    """Makes kernels ready for one GPU.

    Code stays loaded to the end of the process: NVSHMEM keeps the address of its state in all code
    that it was told of, and writes there; and to unload would wait for all kernels. What is defined
    again, as by a function that is called again, is found here.
    """

    # By code, workspace, carve-out, and trace.
    _loaded: dict[tuple[bytes, int, int, int], Loaded] = {}

    def __init__(
        self, device: Device, workspace: int, sharing: int, far: bool, tracer: Untraced
    ) -> None:
        self.device, self.workspace, self.tracer = device, workspace, tracer
        self.sharing = sharing  # PEs that use this GPU
        self.far = far  # some PEs are behind a network
        major, minor = device.cuda.compute_capability
        self.arch = f"sm_{major}{minor}" + ("a" if major >= 9 else "")

    def load(
        self, py_func: Callable[..., Any], argtypes: tuple[Any, ...], options: dict[str, Any],
        registers: int = MOST_REGISTERS, carveout: int = -1, traced: bool = False,
    ) -> Loaded:  # fmt: skip
        """The kernel for arguments of these types; raises Numba's errors.

        A kernel that would need more `registers` than these is compiled again, with no more: else
        blocks of the size in question could not be launched.
        """
        trace = self.tracer.address if traced else 0
        found = aot.artifact(py_func, argtypes, options, self.arch, traced=bool(trace))
        if found.about["needs"]["registers"] > registers:
            fewer = options | {"max_registers": registers}
            found = aot.artifact(py_func, argtypes, fewer, self.arch, traced=bool(trace))
        workspace = self.workspace if found.about["workspace"] else 0
        key = blake2b(found.code).digest(), workspace, carveout, trace
        if key not in self._loaded:
            with self.device.loading(f"`{py_func.__name__}`"):
                self._loaded[key] = Loaded(
                    found.code, found.about, self.device, workspace, carveout, trace
                )
        if trace:
            self.tracer.loaded(found.about["trace"])
        return self._loaded[key]

    def check_shared(self, name: str, loaded: Loaded, shape: LaunchShape) -> None:
        """Raise if a block needs more shared memory than this GPU has for one."""
        limit = self.device.cuda.properties.max_shared_memory_per_block_optin
        total = loaded.shared + shape.dynamic_shared
        if total > limit:
            raise ArgumentError(
                f"kernel {name} needs {total} bytes of shared memory per block "
                f"({loaded.shared} static, {shape.dynamic_shared} dynamic); {limit} are possible"
            )
        loaded.allow_shared(shape.dynamic_shared, self.device)

    def check_attributes(self, name: str, shape: LaunchShape) -> None:
        """Raise if this GPU has no clusters or dependent launches, one of which is asked for."""
        major, minor = self.device.cuda.compute_capability
        if (major, minor) < CLUSTERS:
            what = "clusters" if shape.cluster else PDL
            raise ArgumentError(
                f"kernel {name}: {what} need compute capability {CLUSTERS[0]}.{CLUSTERS[1]}; this "
                f"GPU has {major}.{minor}"
            )

    def check_warps(self, name: str, loaded: Loaded, threads: int) -> None:
        """Raise if NVSHMEM needs whole warps for what a kernel calls; it would not say so."""
        cure = "launch blocks of a multiple of 32 threads, or call the operations of one thread"
        if loaded.sums and threads < LANES:
            raise ArgumentError(
                f"kernel {name} calls reduce_block or reducescatter_block in blocks of {threads} "
                f"threads: NVSHMEM sums by whole warps, and wrongly in blocks of fewer: {cure}"
            )
        if loaded.groups and self.far:
            raise ArgumentError(
                f"kernel {name} calls operations of a warp or block in blocks of {threads} "
                f"threads; NVSHMEM needs whole warps where PEs are behind a network: {cure}"
            )

    def check_resident(
        self, name: str, loaded: Loaded, shape: LaunchShape, config: LaunchConfig, stream: Any,
        collective: bool,
    ) -> None:  # fmt: skip
        """Raise unless all blocks of the grid can run at once."""
        sharing = self.sharing if collective else 1
        properties, occupancy = self.device.cuda.properties, loaded.kernel.occupancy
        per_sm = occupancy.max_active_blocks_per_multiprocessor(shape.threads, shape.dynamic_shared)
        blocks, limit = math.prod(shape.grid), per_sm * properties.multiprocessor_count
        if shape.cluster:
            clusters = occupancy.max_active_clusters(config, stream=stream)
            limit = min(limit, clusters * math.prod(shape.cluster))
        if blocks * sharing > limit:
            does = "is launched collectively" if collective else "waits for others"
            shared = f", which {sharing} PEs share," if sharing > 1 else ""
            raise ArgumentError(
                f"kernel {name} {does} on a grid of {blocks} blocks of {shape.threads} threads; at "
                f"most {limit // sharing} fit this GPU{shared} at once ({per_sm} on each of "
                f"{properties.multiprocessor_count} multiprocessors): launch fewer, and let each "
                "do more"
            )


class Ready(NamedTuple):
    """What launches of a shape, with arguments of the same types, have in common."""

    kernel: Any
    config: LaunchConfig
    mlir: bool


def _type_of(value: Any) -> Any:
    """The Numba type of an argument; GpuArrays keep theirs from launch to launch."""
    return value.type if isinstance(value, GpuArray) else typeof(value, Purpose.argument)


def _is_plain(value: Any) -> bool:
    """Whether an argument's type can be told from its `kind`, or from its class."""
    kind = type(value)
    return kind is GpuArray or (kind in SCALARS and (kind is not int or -(2**63) <= value < 2**63))


class Kernel:
    """A Python function as a kernel, loaded once for each combination of argument types.

    It is `traced` where the job is.
    """

    def __init__(
        self, py_func: Callable[..., Any], options: dict[str, Any], traced: bool = False
    ) -> None:
        self.traced = traced
        self.py_func, self.name = py_func, py_func.__name__
        self.options = code_options(options)
        self.carveout = carveout(options.get("shared_memory_carveout", -1))
        self.collective = bool(options.get("collective"))
        self._loaded: dict[tuple[Any, ...], Loaded] = {}
        self._ready: dict[tuple[Any, ...], Ready] = {}

    def again(
        self, loader: Loader, shape: LaunchShape, stream: Any, args: tuple[Any, ...],
        dependent: bool = False,
    ) -> bool:  # fmt: skip
        """Launch, if such a launch has been prepared before; whether it has.

        A stream other than the default one brings its context (CUDA: cuLaunchKernelEx).
        """
        key: list[Any] = [loader, shape, dependent]
        words: list[Any] = []
        for a in args:  # in one loop, since each launch does this
            if type(a) is GpuArray:
                key.append(a.kind)
                words += a.words
            else:
                key.append(type(a))
                words.append(a)
        ready = self._ready.get(tuple(key))
        if ready is None:
            return False
        kernel, config, mlir = ready
        if mlir:
            words = [w for a in args for w in (a.parameters if type(a) is GpuArray else (a,))]
        if config.is_cooperative:
            loader.device.enter()  # cuda.core asks for the occupancy in it
        try:
            launch(stream, config, kernel, *words)
        except OverflowError:  # an integer that has another type
            return False
        return True

    def prepare(
        self, loader: Loader, shape: LaunchShape, stream: Any, args: tuple[Any, ...],
        dependent: bool = False,
    ) -> Callable[[], None]:  # fmt: skip
        """Make a launch with these arguments, which it keeps alive; it returns at once."""
        expected = self.py_func.__code__.co_argcount
        if len(args) != expected:
            raise ArgumentError(f"kernel {self.name} takes {expected} arguments, got {len(args)}")
        argtypes = types_of(self.py_func, args, _type_of)
        registers = most_registers(shape.threads)
        key = (loader, registers, *argtypes)
        loaded = self._loaded.get(key)
        if loaded is None:
            self._check_types(argtypes)
            loaded = loader.load(
                self.py_func, argtypes, self.options, registers, self.carveout, self.traced
            )
            self._loaded[key] = loaded
        if shape.threads % LANES:
            loader.check_warps(self.name, loaded, shape.threads)
        if shape.dynamic_shared:
            loader.check_shared(self.name, loaded, shape)
        if shape.cluster or dependent:
            loader.check_attributes(self.name, shape)
        config = self._config(shape, self.collective or loaded.cooperative, dependent)
        if config.is_cooperative:
            loader.check_resident(self.name, loaded, shape, config, stream, self.collective)
        if all(map(_is_plain, args)):
            if len(self._ready) >= MOST_READY:
                self._ready.clear()
            kinds = (a.kind if isinstance(a, GpuArray) else type(a) for a in args)
            like_it = loader, shape, dependent, *kinds
            self._ready[like_it] = Ready(loaded.kernel, config, loaded.mlir)
        values = tuple(a.layout if isinstance(a, GpuArray) else a for a in args)
        words = parameters(argtypes, values) if loaded.mlir else words_of(pack(argtypes, values))

        def go() -> None:
            launch(stream, config, loaded.kernel, *words)

        vars(go)["keeps"] = args
        return go

    def _config(self, shape: LaunchShape, cooperative: bool, dependent: bool) -> LaunchConfig:
        """The launch's configuration; in cuda.core's the grid counts clusters, if there are any."""
        cluster = shape.cluster
        grid = tuple(map(floordiv, shape.grid, cluster)) if cluster else shape.grid
        more = {PDL: True} if dependent else {}  # which cuda-core has from 1.2 on
        with taking(f"kernel {self.name}"):
            return LaunchConfig(
                grid=grid, cluster=cluster, block=shape.block, shmem_size=shape.dynamic_shared,
                is_cooperative=cooperative, **more,
            )  # fmt: skip

    def _check_types(self, argtypes: tuple[Any, ...]) -> None:
        for number, typ in enumerate(argtypes, 1):
            if isinstance(typ, types.Record):
                raise ArgumentError(
                    f"kernel {self.name}: argument {number} is a record in the host's memory, "
                    "which a GPU does not reach: pass an array with one element"
                )
