"""Run unmodified `numba.cuda` programs on the CPU engine: `with patch_numba_cuda(): ...`.

numba-cuda's dispatchers, device arrays, streams, events, ufuncs and reductions are used unchanged.
The patch replaces what is below them: the driver (`driver.Driver`), the target's contexts
(`target`), and the class of compiled kernels (`SimtKernel`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import cached_property, partial
from pathlib import Path
from pickle import PicklingError
from typing import Any

import numpy as np
from cuda.core._utils.cuda_utils import CUDAError
from numba.cuda import compiler, dispatcher, types, typing
from numba.cuda.core import config
from numba.cuda.core.compiler_lock import global_compiler_lock
from numba.cuda.cudadrv import devicearray, devices, nvvm, runtime
from numba.cuda.cudadrv import driver as cuda_driver
from numba.cuda.descriptor import cuda_target
from numba.cuda.dispatcher import _Kernel
from numba.cuda.memory_management.nrt import rtsys

from gpushmem import settings
from gpushmem.artifacts.argument_packing import address_of, as_numpy, pack_scalars
from gpushmem.artifacts.gpu_limits import MAX_STATIC_SHARED, MAX_THREADS
from gpushmem.artifacts.launch_shape import LaunchShape, shape_of
from gpushmem.errors import ArgumentError, BackendUnavailable
from gpushmem.simt.base.embedder import Embedder, embedder_of
from gpushmem.simt.compiler.target import SimtCallConv, _compile_cuda, replaced, simt_target
from gpushmem.simt.grid import entry as entries
from gpushmem.simt.grid import kernel_cache
from gpushmem.simt.intrinsics import nrt
from gpushmem.simt.numba_cuda import mlir
from gpushmem.simt.numba_cuda.driver import TOOLKIT, CoreDevice, Driver, fail
from gpushmem.simt.numba_cuda.fast_launch import NOT_QUICK, PLACES, nbytes_of, packers_of
from gpushmem.simt.run.kernel import (
    MOST_FORMS,
    Form,
    KernelFailure,
    Source,
    form_hooks,
)

__all__ = ["engine", "finish", "patch_numba_cuda"]

OF_THE_CODE = "max_registers", "opt"  # options that mean something on a GPU only
_engine: list[Driver] = []  # the innermost patch


def engine() -> Driver:
    """The driver that `numba.cuda` uses, inside the `with` block."""
    return _engine[-1]


class Function:
    """The properties of a loaded kernel that numba-cuda's occupancy functions read."""

    def __init__(self, kernel: SimtKernel) -> None:
        self.kernel, self.name, self.handle = self, kernel.entry_name, kernel
        self.attributes = self
        self.max_threads_per_block = kernel.max_threads_per_block


class Library:
    """The place of a kernel's code library. What only people read of it is compiled for them."""

    def __init__(self, kernel: SimtKernel) -> None:
        self._kernel = kernel

    def get_cufunc(self) -> Function:
        return Function(self._kernel)

    def get_asm_str(self, cc: Any = None) -> str:
        """Give this machine's assembly language."""
        return self._kernel.made[1].assembly()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kernel.made[0].library, name)


class SimtKernel(_Kernel):
    """A kernel compiled for one signature, as numba-cuda's dispatcher handles it."""

    source: Source | None
    call_helper, target_context = None, simt_target.target_context
    _build: Any  # compiles it; None of a kernel from Numba's own cache
    asks_for_shared_memory = False  # at the driver, if the launch needs more than a block has

    @global_compiler_lock
    def __init__(
        self,
        py_func: Any,
        argtypes: Any,
        link: Any = None,
        debug: bool = False,
        lineinfo: bool = False,
        fastmath: bool = False,
        forceinline: bool = False,
        extensions: Any = None,
        device: bool = False,
        launch_bounds: Any = None,
        shared_memory_carveout: Any = None,
        **others: Any,
    ) -> None:
        if device:
            raise RuntimeError("Cannot compile a device function as a kernel")
        if link:
            raise BackendUnavailable(
                f"kernel {py_func.__name__} links {link}: the CPU engine has no compiler for "
                "CUDA C++ or PTX"
            )
        if isinstance(launch_bounds, tuple) and len(launch_bounds) > 3:
            raise ValueError(
                f"Got {len(launch_bounds)} launch bounds: {launch_bounds}. "
                "A maximum of three are supported"
            )
        options = {"debug": debug, "fastmath": fastmath, "forceinline": forceinline}
        # Programs ask it for LLVM code and assembly: there is one of each.
        tier = "fast" if settings.get("GPUSHMEM_TIER") == "fast" else "full"
        how = {"report": debug, "quick": tier == "fast"}
        self._build = partial(entries.build, py_func, argtypes, types.void, **how, **options)
        key = {"numba.cuda": True} | options
        self.entry = kernel_cache.compiled(py_func, argtypes, key, lambda **_: self.made[1], tier)
        if self.entry.launch_config_sensitive:  # there is one for each configuration
            self.entry = self.made[1]
        options |= {"lineinfo": lineinfo, "launch_bounds": launch_bounds}
        options |= {k: v for k, v in others.items() if k in OF_THE_CODE}
        self.source = Source(py_func, argtypes, options, lambda: self._build()[1])
        self.objectmode, self.entry_point = False, None
        self.py_func, self.argtypes, self.debug, self.lineinfo = py_func, argtypes, debug, lineinfo
        self.extensions, self.launch_bounds = extensions or [], launch_bounds
        if shared_memory_carveout is not None:
            shared_memory_carveout = self._parse_carveout(shared_memory_carveout)
        self.shared_memory_carveout = shared_memory_carveout
        self.launch_config_sensitive = self.entry.launch_config_sensitive
        self.signature = typing.signature(types.void, *argtypes)
        self._codelibrary = Library(self)
        self._referenced_environments: list[Any] = []
        self.lifted: list[Any] = []
        self.entry_name, self.name = self.entry.body, py_func.__name__
        self.cooperative = self.entry.cooperative

    @cached_property
    def made(self) -> tuple[Any, entries.Entry]:
        """Numba's compile result and the entry; of a kernel from disk they are made when needed."""
        if self._build is None:
            raise RuntimeError(
                f"kernel {self.name} came from Numba's cache on disk (cache=True): there is "
                "no LLVM code or assembly of it. Compile it without the cache"
            )
        result: tuple[Any, entries.Entry] = self._build()
        return result

    @property
    def _type_annotation(self) -> Any:
        return None if self._build is None else self.made[0].type_annotation

    def _reduce_states(self) -> dict[str, Any]:
        if not self.entry.cacheable:
            raise PicklingError(
                f"kernel {self.name} refers to global device arrays. Pass the array(s) as arguments"
            )
        state = super()._reduce_states()
        del state["codelibrary"]
        return {**state, "kernel": self.name, "entry": entries.freeze(self.entry)}

    @classmethod
    def _rebuild(cls, kernel: str, entry: dict[str, Any], **state: Any) -> SimtKernel:
        made = cls.__new__(cls)
        state["entry_name"] = state.pop("name")
        made.__dict__.update(state, objectmode=False, entry_point=None, launch_bounds=None)
        made.name, made.entry = kernel, entries.thaw(entry)
        made._codelibrary, made.source, made._build = Library(made), None, None
        return made

    def bind(self) -> None:
        """Nothing to do: there is nothing to load."""

    regs_per_thread = property(lambda self: 32)
    const_mem_size = property(lambda self: self.entry.const_bytes)
    shared_mem_per_block = property(lambda self: self.entry.shared_bytes)
    local_mem_per_thread = property(lambda self: self.entry.local_bytes)

    @property
    def max_threads_per_block(self) -> int:
        bounds = self.launch_bounds
        return (bounds[0] if isinstance(bounds, tuple) else bounds) or MAX_THREADS

    def launch(
        self, args: Any, griddim: Any, blockdim: Any, stream: Any = 0, sharedmem: int = 0
    ) -> None:
        """Queue a launch; with `debug=True` wait for it, and raise what a thread raised."""
        after: list[Any] = []
        packed = self._packed_quickly(args)
        if packed is None:
            packed = self._packed(args, stream, after)
        try:
            form, explain = self._form(shape_of(griddim, blockdim, sharedmem))
        except ArgumentError as error:
            raise CUDAError(f"CUDA_ERROR_INVALID_VALUE: {error}") from error
        engine = _engine[-1]
        engine.launch(stream, form.launched(packed, after, explain))
        if self.debug:
            try:
                engine.synchronize(stream)
            except KernelFailure as failure:
                self._raise(failure)
        for write_back in after:
            write_back()

    def _packed_quickly(self, args: tuple[Any, ...]) -> bytes | None:
        """The arguments as bytes, if all are device arrays and plain numbers."""
        if self._packers is None:
            return None
        try:
            packed = b"".join([pack(arg) for pack, arg in zip(self._packers, args, strict=True)])
        except NOT_QUICK:
            return None
        return packed if len(packed) == self._nbytes else None

    def _packed(self, args: tuple[Any, ...], stream: Any, after: list[Any]) -> bytes:
        """The arguments as bytes, by numba-cuda's rules; `after` gets what follows the launch."""
        if len(args) != len(self.argument_types):
            raise TypeError(
                f"kernel {self.name} takes {len(self.argument_types)} arguments, got {len(args)}"
            )
        scalars: list[Any] = []
        for typ, value in zip(self.argument_types, args, strict=True):
            self._prepare_args(typ, value, stream, after, scalars)
        packed = pack_scalars(scalars)
        if len(packed) != self._nbytes and not self.extensions:
            given = [getattr(arg, "ndim", 0) for arg in args]
            raise TypeError(
                f"kernel {self.name} is compiled for arguments of types {self.argument_types}; it "
                f"was given arguments of {given} dimensions"
            )
        return packed

    @cached_property
    def _packers(self) -> Any:
        return None if self.extensions else packers_of(self.argument_types)

    @cached_property
    def _nbytes(self) -> int:
        return sum(map(nbytes_of, self.argument_types))

    def _form(self, shape: LaunchShape) -> tuple[Form, Any]:
        """What launches of this shape have in common, and what explains their failures."""
        embedder = embedder_of(self.name) if self.entry.embedded else None
        key = shape, embedder, *form_hooks
        known = self._forms.get(key)
        if known is None:
            limit = self.max_threads_per_block
            if shape.threads > limit:
                raise ArgumentError(f"{shape.threads} threads; launch_bounds allows {limit}")
            static = self.entry.shared_bytes
            too_much = static <= MAX_STATIC_SHARED < static + shape.dynamic_shared
            if too_much and not self.asks_for_shared_memory:
                raise ArgumentError(
                    f"kernel {self.name} is launched with {shape.dynamic_shared} bytes of dynamic "
                    f"shared memory and has {static} of static; together {MAX_STATIC_SHARED} are "
                    "possible: GPUs give more to programs that ask the driver for it, which "
                    "numba.cuda does not"
                )
            user = None if embedder is None else embedder.user
            explain = None if embedder is None else partial(_explained, embedder)
            if len(self._forms) >= MOST_FORMS:
                self._forms.clear()
            form = Form(self.name, self.entry, shape, user, source=self.source)
            known = self._forms[key] = form, explain
        return known

    @cached_property
    def _forms(self) -> dict[Any, tuple[Form, Any]]:
        return {}

    def _raise(self, failure: KernelFailure) -> None:
        if failure.__cause__ is None:
            raise fail("LAUNCH_FAILED", str(failure)) from failure
        where = ""
        if failure.location:
            function, file, line = failure.location
            where = f"In function {function!r}, file {Path(file).resolve()}, line {line}, "
        tid, bid = list(failure.thread)[::-1], list(failure.block)[::-1]
        prefix = f"{where}tid={tid} ctaid={bid}"
        args = failure.__cause__.args
        raise type(failure.__cause__)(f"{prefix}: {args[0]}" if args else prefix, *args[1:])


def _explained(embedder: Embedder, failure: KernelFailure) -> Exception:
    # An exception of the kernel is raised by Numba.
    return failure if failure.__cause__ is not None else embedder.explain(failure)


# --- arrays as kernel arguments


class View:
    """An array in device memory, as numba-cuda passes it to a kernel: laid out as `array`."""

    def __init__(self, ptr: int, array: np.ndarray[Any, Any], owner: Any) -> None:
        self.ptr, self.shape, self.dtype, self.size = ptr, array.shape, array.dtype, array.size
        self.owner = owner
        flags = array.flags
        self._layout = devicearray._StridedLayoutShim(
            strides_in_bytes=array.strides,
            is_contiguous_c=flags.c_contiguous,
            is_contiguous_f=flags.f_contiguous,
            is_contiguous_any=flags.forc,
        )


def _view(array: np.ndarray[Any, Any], owner: Any = None) -> View:
    return View(address_of(array), array, (array, owner))


def _host_view(obj: Any, *, stream_ptr: Any = 0) -> View:
    return _view(np.asanyarray(obj))


def _device_view(
    obj: Any, stream: Any = 0, copy: bool = True, user_explicit: bool = False
) -> tuple[Any, bool]:
    """An argument as a `View`, and whether it is a copy of host memory.

    Raises what a GPU does at the first access if its elements are not aligned.
    """
    view, copied = _view_of(obj, stream, copy, user_explicit)
    unit = view.dtype.alignment
    if unit > 1:
        steps = () if view._layout.is_contiguous_any else view._layout.strides_in_bytes
        for what, number in (("address", view.ptr or 0), *(("stride", step) for step in steps)):
            if number % unit:
                raise fail(
                    "MISALIGNED_ADDRESS",
                    f"the {what} of an array of {view.dtype}, {number}, is no multiple of {unit}: "
                    f"take views at multiples of {unit} bytes, or copy the array",
                )
    return view, copied


def _view_of(obj: Any, stream: Any, copy: bool, user_explicit: bool) -> tuple[Any, bool]:
    if isinstance(obj, View):
        return obj, False
    if cuda_driver.is_device_memory(obj):
        return obj._strided_memory_view_shim, False
    interface = getattr(obj, "__cuda_array_interface__", None)
    if interface is not None:
        producer = interface.get("stream")
        if producer is not None and config.CUDA_ARRAY_INTERFACE_SYNC:
            devices.get_context().create_external_stream(producer).synchronize()
        return _view(as_numpy(obj), obj), False
    array = np.asanyarray(obj)
    if hasattr(obj, "__dlpack__") and not isinstance(obj, np.ndarray | np.generic):
        return _view(array, obj), False
    if not array.flags.forc:  # the copy back would not fit
        raise ValueError(devicearray.errmsg_contiguous_buffer)
    warns = config.CUDA_WARN_ON_IMPLICIT_COPY and not config.DISABLE_PERFORMANCE_WARNINGS
    if copy and warns and isinstance(obj, np.ndarray) and not user_explicit:
        message = "Host array used in CUDA kernel will incur copy overhead to/from device."
        devicearray.warn(devicearray.NumbaPerformanceWarning(message))
    context = devices.get_context()
    memory = context.memalloc(max(array.nbytes, 1))
    view = View(int(memory.device_pointer), array, memory)
    if copy:
        _engine[-1].cuMemcpyHtoDAsync(view.ptr, address_of(array), array.nbytes, stream)
    return view, True


# --- the patch


@contextlib.contextmanager
def patch_numba_cuda(interpret: bool | None = None) -> Iterator[None]:
    """Make `numba.cuda` use this machine's CPU as its device, inside the `with` block.

    The same for `numba_cuda_mlir.cuda`, if the program has imported it or does so inside.
    Kernels may be decorated before. Leaving it waits for all work; arrays and streams made
    inside must not be used afterwards. Not for use by several threads at once.

    With `interpret`, by default what GPUSHMEM_SIM_INTERPRET says, kernels are not compiled: they
    run as plain Python, a thread at a time, so that debuggers stop in them. A launch has run when
    it returns, and raises what a thread raises.
    """
    engine = Driver()
    cuda_driver._logger = cuda_driver.make_logger()  # permanently: finalizers may run later
    real = cuda_driver.driver
    methods = {name: getattr(engine, name) for name in dir(engine) if name.startswith("cu")}
    fresh_runtime = devices._Runtime()
    places: dict[tuple[Any, str], Any] = {
        **{(real, name): method for name, method in methods.items()},
        (real, "is_initialized"): True,
        (real, "initialization_error"): None,
        (real, "devices"): type(real.devices)(),
        (devices, "_runtime"): fresh_runtime,
        (devices, "gpus"): fresh_runtime.gpus,
        (cuda_driver, "ExperimentalDevice"): CoreDevice,
        (cuda_target, "_typingctx"): simt_target.typing_context,
        (cuda_target, "_targetctx"): simt_target.target_context,
        (compiler, "CUDACallConv"): SimtCallConv,
        (dispatcher, "_Kernel"): SimtKernel,
        (dispatcher, "compile_cuda"): _compile_cuda,
        (devicearray, "_to_strided_memory_view"): _device_view,
        (devicearray, "_make_strided_memory_view"): _host_view,
        (rtsys, "get_allocation_stats"): nrt.allocation_stats,
        **{(rtsys, f"memsys_{verb}_stats"): _always_on for verb in ("enable", "disable")},
        (nvvm, "is_available"): lambda: True,
        (runtime, "_get_nvrtc_version"): lambda: TOOLKIT,
        (cuda_driver, "load_module_image"): _no_module,
        **{(cuda_driver, name): make for name, make in _finalizers(engine).items()},
        **PLACES,
    }
    if settings.get("GPUSHMEM_SIM_INTERPRET") if interpret is None else interpret:
        places |= _interpreting(engine)
    _engine.append(engine)
    with replaced(places), mlir.patched():
        ends = True
        try:
            yield
            engine.cuCtxSynchronize()
        except GeneratorExit:  # the process ends inside the block: modules are empty by now
            ends = False
            raise
        finally:
            if ends:
                engine.end()
                _engine.pop()


def finish() -> None:
    """Wait for all work, inside the `with` block; raises the error of a launch that failed."""
    try:
        _engine[-1].cuCtxSynchronize()
    finally:
        _engine[-1].end()


def _interpreting(engine: Driver) -> dict[tuple[Any, str], Any]:
    """What is replaced where kernels are interpreted."""
    from gpushmem.simt.numba_cuda import interpreted  # noqa: PLC0415  (few programs need it)

    kernel = type("InterpretedKernel", (interpreted.InterpretedKernel,), {"engine": engine})
    return {
        (dispatcher, "_Kernel"): kernel,
        (dispatcher, "compile_cuda"): interpreted.declared,
        (dispatcher.CUDACache, "load_overload"): lambda *args: None,
        (dispatcher.CUDACache, "save_overload"): lambda *args: None,
    }


def _no_module(*_: Any) -> Any:
    """Refuse to load code: without a driver, cuda.core fails the first time and then hangs."""
    raise fail(
        "NOT_SUPPORTED",
        "a module of PTX or of a GPU's machine code cannot be loaded on the CPU engine; write the "
        "kernel in Python, or give a device function as LLVM bitcode (cuda.declare_device)",
    )


def _always_on(stream: Any = None) -> None:
    """Allocations in kernels are always counted."""


def _finalizers(engine: Driver) -> dict[str, Any]:
    """numba-cuda's finalizers, for objects that may outlive the patch."""

    def of_memory(manager: Any, pointer: Any, key: Any, size: int) -> Any:
        def finalize() -> None:
            manager.allocations.pop(key, None)
            manager.deallocations.add_item(engine.cuMemFree, pointer, size)

        return finalize

    def of_host_memory(manager: Any, pointer: Any, key: Any, size: int, mapped: bool) -> Any:
        def finalize() -> None:
            manager.allocations.pop(key, None)
            manager.deallocations.add_item(engine.cuMemFreeHost, pointer, size if mapped else 0)

        return finalize

    def of_pin(manager: Any, pointer: Any, key: Any, mapped: bool) -> Any:
        def finalize() -> None:
            manager.allocations.pop(key, None)
            engine.cuMemHostUnregister(pointer)

        return finalize

    return {
        "_alloc_finalizer": of_memory,
        "_hostalloc_finalizer": of_host_memory,
        "_pin_finalizer": of_pin,
        "_event_finalizer": lambda queue, handle: (
            lambda: queue.add_item(engine.cuEventDestroy, int(handle))
        ),
        "_stream_finalizer": lambda queue, handle: (
            lambda: queue.add_item(engine.cuStreamDestroy, handle)
        ),
    }
