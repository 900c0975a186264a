"""`@jit`: a Python function as a kernel, or as a device function called from kernels; launches."""

from __future__ import annotations

from collections.abc import Callable
from functools import update_wrapper
from typing import Any, Literal, TypeVar, overload

import numpy as np

from gpushmem import runtime
from gpushmem.arguments import public, shown
from gpushmem.backends.base import Backend, Config, DeviceFunction
from gpushmem.errors import ArgumentError, ShmemError
from gpushmem.memory.array import DeviceArray, SymmetricArray, unwrap
from gpushmem.memory.external_arrays import PLAIN
from gpushmem.memory.tensors import in_host_memory, memory_of

__all__ = ["Kernel", "Launch", "jit", "launch_hooks", "preload"]

Result = TypeVar("Result")
ARRAYS = DeviceArray, SymmetricArray
launch_hooks: list[Callable[[Kernel, tuple[Any, ...]], None]] = []  # called before each launch


class Kernel:
    """A kernel: `kernel[grid, block, stream, dynamic_shared_bytes](*args)` launches it.

    As in Numba, `stream` and `dynamic_shared_bytes` may be left out. `kernel[grid, block]` is a
    `Launch`, which can be kept, called again, and bound to arguments.

    The launch is asynchronous, in order with others on its stream (0: the default stream); an
    error in the kernel is raised by the next synchronisation; without a GPU already by operations
    of the host that return what others may have written, such as `signal_fetch`. NumPy arrays and
    PyTorch's tensors in host memory among the arguments are copied to the device and, when the
    kernel has ended, back; such a launch waits. Without a GPU the kernel may use their memory
    itself: if it fails, they have what it has written.

    `grid` and `block` are integers or tuples of up to three: blocks of a grid, threads of a block
    (1024 at most). Other arguments are `SymmetricArray`s, `DeviceArray`s, numbers, tuples of these,
    and None. The first launch with each combination of argument types compiles. Raises
    `ArgumentError` for an invalid configuration or argument, and Numba's `TypingError`, with the
    line, for a kernel that cannot be typed.
    """

    _defined = _launched = 0  # how many there are, and have been launched

    def __init__(self, py_func: Callable[..., Any], options: dict[str, Any]) -> None:
        self.py_func = py_func
        self.options = options
        self._what = f"kernel {py_func.__name__}"  # in messages
        self._prepared: dict[str, Any] = {}  # backend name -> its kernel, compiled per signature
        Kernel._defined += 1
        update_wrapper(self, py_func)

    def __getitem__(self, config: Any) -> Launch:
        if not isinstance(config, tuple) or not 2 <= len(config) <= 4:
            raise ArgumentError(
                f"kernel {self.py_func.__name__}: launch it as kernel[grid, block], "
                f"[grid, block, stream] or [grid, block, stream, dynamic_shared_bytes]; "
                f"got [{shown(config)}]"
            )
        return Launch(self, config)

    @public
    def configure(
        self,
        grid: Any,
        block: Any,
        stream: Any = 0,
        dynamic_shared_bytes: int = 0,
        *,
        cluster: Any = None,
        programmatic_stream_serialization: bool = False,
    ) -> Launch:
        """Return `kernel[grid, block, stream, dynamic_shared_bytes]` with further attributes.

        `cluster`, an integer or a tuple of up to three, makes thread block clusters of so many
        blocks, 8 at most; `grid` counts blocks, and must be divisible by it. With
        `programmatic_stream_serialization` the kernel may begin before the one before it on the
        stream has ended, and must then call `griddepcontrol.wait` before it uses what that
        writes (CUDA: programmatic dependent launch). The names are those of cuda.core's
        `LaunchConfig`, in which `grid` counts clusters. On GPUs both need compute capability 9.0,
        and the latter cuda-core 1.2. Without a GPU they are checked and have no effect. Raises
        `ArgumentError` at the launch. Numba: `Dispatcher.configure`; CUDA: cuLaunchKernelEx.
        """
        if not isinstance(programmatic_stream_serialization, bool):
            raise ArgumentError(
                f"kernel {self.py_func.__name__}: programmatic_stream_serialization must be True "
                f"or False, not {shown(programmatic_stream_serialization)}"
            )
        more = cluster, programmatic_stream_serialization
        return Launch(self, Config(grid, block, stream, dynamic_shared_bytes, *more))

    def __repr__(self) -> str:
        return f"<kernel {self.py_func.__name__}>"

    def _shown(self, call: Callable[..., Result], *args: Any) -> Result:
        """Call; raise errors that say all there is to say from here, as `errors.public`."""
        try:
            return call(*args)
        except _for_users() as error:
            raise error.with_traceback(None)  # noqa: B904

    def _taken(self, args: tuple[Any, ...]) -> tuple[Backend, tuple[Any, ...]]:
        """The backend; and the arguments, those in symmetric memory as arrays of gpushmem."""
        running = runtime.current(self._what)
        return running.backend, running.known(self._what, args)

    def _of(self, backend: Backend, native: tuple[Any, ...]) -> Any:
        """The backend's kernel, about to be launched with these arguments."""
        prepared = self._prepared.get(backend.name)
        if prepared is None:
            prepared = self._prepared[backend.name] = backend.kernel(self.py_func, self.options)
            Kernel._launched += 1
            if hasattr(prepared, "label") and Kernel._defined > 1:  # said while it is compiled
                prepared.label += f" ({Kernel._launched} of {Kernel._defined})"
        for hook in launch_hooks:
            hook(self, native)
        return prepared

    def _prepare(
        self, backend: Backend, config: tuple[Any, ...], native: tuple[Any, ...]
    ) -> Callable[[], None]:
        return backend.prepare(self._of(backend, native), Config(*config), native)

    def _launch(self, config: tuple[Any, ...], args: tuple[Any, ...]) -> None:
        running = runtime.current(self._what)
        backend = running.backend
        if PLAIN.issuperset(map(type, args)):  # quick, because most launches are such
            native = tuple([a.native() if type(a) in ARRAYS else a for a in args])
        else:
            args = running.known(self._what, args)
            if any(map(in_host_memory, args)):
                self._launch_with_host_memory(backend, config, args)
                return
            native = tuple(map(unwrap, args))
        prepared = self._prepared.get(backend.name)
        if prepared is None or launch_hooks:
            prepared = self._of(backend, native)
        backend.launch(prepared, native, *config)

    def _launch_with_host_memory(
        self, backend: Backend, config: tuple[Any, ...], args: tuple[Any, ...]
    ) -> None:
        host = {k: memory_of(self._what, a) for k, a in enumerate(args) if in_host_memory(a)}
        given = [host.get(k, unwrap(a)) for k, a in enumerate(args)]
        written = {k: a for k, a in host.items() if a.flags.writeable}  # such a launch waits
        lent = {k for k in written if backend.lends(given[k]) and _is_alone(given, k)}
        native = tuple(
            _copy_in(backend, a) if k in host and k not in lent else a for k, a in enumerate(given)
        )
        if lent:
            backend.synchronize()  # as copies do
        backend.launch(self._of(backend, native), native, *config)
        if lent:
            backend.synchronize()
        for k in written.keys() - lent:
            np.copyto(written[k], backend.to_host(native[k]))

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Refuse: a kernel needs a launch configuration."""
        name = self.py_func.__name__
        raise ArgumentError(f"kernel {name}: give a launch configuration: {name}[grid, block](...)")


class Launch:
    """A kernel with a launch configuration, `kernel[grid, block]`: call it to launch.

    `kernel` is the kernel, `config` the configuration as it was given.
    """

    __slots__ = ("config", "kernel")

    def __init__(self, kernel: Kernel, config: tuple[Any, ...]) -> None:
        self.kernel, self.config = kernel, config

    def __call__(self, *args: Any) -> None:
        """Launch the kernel with these arguments, asynchronously; see `Kernel`."""
        try:
            self.kernel._launch(self.config, args)
        except _for_users() as error:
            raise error.with_traceback(None)  # noqa: B904

    def bind(self, *args: Any) -> Callable[[], None]:
        """Prepare a launch with these arguments, which can then be made any number of times.

        Compiles the kernel, and raises what a launch would raise. Calling the result launches,
        asynchronously, at less than half the cost of a call with arguments. It keeps the arguments
        alive; arrays are read as they are at each launch, numbers as they were given. NumPy arrays
        and tensors in host memory are refused: they are copied at every launch.
        """
        kernel = self.kernel
        backend, args = kernel._taken(args)
        if any(map(in_host_memory, args)):
            raise ArgumentError(
                f"kernel {kernel.py_func.__name__}: bind takes arrays of the device, not of the "
                "host: pass what gpushmem.register or to_device returns"
            )
        native = tuple(map(unwrap, args))
        return kernel._shown(kernel._prepare, backend, self.config, native)

    def __repr__(self) -> str:
        config = ", ".join(map(shown, self.config))
        return f"<kernel {self.kernel.py_func.__name__}[{config}]>"


@public
def preload(call: Any, *args: Any, **kwargs: Any) -> None:
    """Compile and load what a call with these arguments needs, without calling; not collective.

    `call` is a launch, `kernel[grid, block]`, or a host operation, such as `gpushmem.atomic_add`;
    the arguments are those of a later call, or others of the same types. Nothing is launched,
    written or sent. On a GPU, loading code may wait for all kernels that run there (CUDA: lazy
    loading; NVSHMEM waits for the device, too): a first launch, or the first call of an operation
    that hosts run as a kernel, hangs if such a kernel waits for it. Preload it before, and it will
    not wait. A bound launch (`kernel[grid, block].bind`) is loaded, too. Raises what the call would
    raise for these arguments before it begins.
    """
    if isinstance(call, Launch):
        kernel, (backend, args) = call.kernel, call.kernel._taken(args)
        what = f"kernel {kernel.py_func.__name__}"
        native = (
            _copy_in(backend, memory_of(what, a)) if in_host_memory(a) else unwrap(a) for a in args
        )
        kernel._shown(kernel._prepare, backend, call.config, tuple(native))
        return
    runtime.preload(call, args, kwargs)


def _for_users() -> tuple[type[Exception], ...]:
    """Errors that say all there is to say."""
    from numba.core.errors import NumbaError  # noqa: PLC0415  (heavy: not before there is an error)

    return ShmemError, NumbaError


def _is_alone(given: list[Any], k: int) -> bool:
    """Whether one of the arguments is an array that shares no memory with the others."""
    others = [a for j, a in enumerate(given) if j != k]
    if any(isinstance(a, tuple) for a in others):
        return False
    return not any(isinstance(a, np.ndarray) and np.may_share_memory(given[k], a) for a in others)


def _copy_in(backend: Backend, array: np.ndarray[Any, Any]) -> Any:
    native = backend.device_array(array.shape, array.dtype)
    backend.from_host(native, array)
    return native


@overload
def jit(func: Callable[..., Any], *, device: Literal[False] = False, **options: Any) -> Kernel: ...
@overload
def jit(func: Callable[..., Any], *, device: Literal[True], **options: Any) -> DeviceFunction: ...
@overload
def jit(
    *, device: Literal[False] = False, **options: Any
) -> Callable[[Callable[..., Any]], Kernel]: ...
@overload
def jit(
    *, device: Literal[True], **options: Any
) -> Callable[[Callable[..., Any]], DeviceFunction]: ...
@overload
def jit(func: Any = None, *, device: bool, **options: Any) -> Any: ...
@public
def jit(func: Any = None, *, device: bool = False, **options: Any) -> Any:
    """Make a kernel of a Python function, or with `device=True` a function kernels can call.

    The function is written for `numba.cuda`. Options are those of `numba.cuda.jit`: `fastmath`
    and `debug` (index checks) count on every backend, others where they mean something, such as
    `shared_memory_carveout`: the percentage of a multiprocessor's L1 cache to be used as shared
    memory, "MaxShared" or "MaxL1", on GPUs. With
    `collective=True` all blocks of a launch run at the same time, which is needed if blocks wait
    for other blocks (NVSHMEM 3: nvshmemx_collective_launch): a grid that is too large for that
    raises `ArgumentError` at the launch; the message says how many blocks are possible. The kernel
    is compiled at the first launch with each combination of argument types; a kernel that cannot be
    typed raises Numba's error there. The code is kept on disk for later runs, unless `cache=False`
    says otherwise (on the cpu backend).
    """
    if func is None:
        return lambda f: jit(f, device=device, **options)
    if not callable(func) or not hasattr(func, "__name__"):
        raise ArgumentError(
            f"jit takes a function, not {shown(func)}: types are found at the first launch"
        )
    return DeviceFunction(func) if device else Kernel(func, options)
