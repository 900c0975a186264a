"""What the stub of the CUDA driver tells to tests: launches, and the bytes of device memory."""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from tests.nvshmem.emulation.build import load


class _Launch(ctypes.Structure):
    """`struct launch` of launch.h; the bytes of the parameters follow it."""

    _fields_ = [
        ("name", ctypes.c_char_p),
        ("offsets", ctypes.POINTER(ctypes.c_uint16)),
        ("sizes", ctypes.POINTER(ctypes.c_uint16)),
        ("stream", ctypes.c_uint64),
        ("library", ctypes.c_uint64),
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("cluster", ctypes.c_uint32 * 3),
        ("dynamic_shared", ctypes.c_uint32),
        ("cooperative", ctypes.c_uint32),
        ("dependent", ctypes.c_uint32),
        ("n_params", ctypes.c_uint32),
        ("n_bytes", ctypes.c_uint32),
        ("carveout", ctypes.c_int32),
        ("device", ctypes.c_int32),
        ("replayed", ctypes.c_int32),
    ]


@dataclass(frozen=True)
class Launch:
    """One launch. `params` are the bytes of each parameter, in the sizes that the cubin says."""

    name: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]  # zeros: there are none
    shared: int
    cooperative: bool
    dependent: bool  # programmatic stream serialization
    carveout: int  # of the kernel, in percent
    stream: int
    device: int
    library: int
    replayed: bool
    params: list[bytes] = field(repr=False)

    def integer(self, i: int) -> int:
        """Return parameter `i` as an unsigned number: a pointer, a size."""
        return int.from_bytes(self.params[i], "little")

    def value(self, i: int, dtype):
        """Return parameter `i` as a scalar of `dtype`."""
        return np.frombuffer(self.params[i], dtype)[0]


def _read(pointer) -> Launch:
    raw = pointer.contents
    end = _Launch.replayed.offset + _Launch.replayed.size
    data = ctypes.string_at(ctypes.addressof(raw) + end, raw.n_bytes)
    at = [(raw.offsets[i], raw.sizes[i]) for i in range(raw.n_params)]
    return Launch(
        raw.name.decode(), tuple(raw.grid), tuple(raw.block), tuple(raw.cluster),
        raw.dynamic_shared, bool(raw.cooperative), bool(raw.dependent), raw.carveout, raw.stream,
        raw.device, raw.library, bool(raw.replayed),
        [data[offset : offset + size] for offset, size in at],
    )  # fmt: skip


def function(name: str, result, *arguments):
    """Return the stub's function `emulation_<name>`."""
    found = getattr(load(), f"emulation_{name}")
    found.restype, found.argtypes = result, arguments
    return found


def launches() -> list[Launch]:
    """Return the launches of this process since `clear`, in the order in which they ran."""
    one = function("launch", ctypes.POINTER(_Launch), ctypes.c_int)
    return [_read(one(i)) for i in range(function("launch_count", ctypes.c_int)())]


def clear() -> None:
    """Forget the launches, the callback, and what it raised."""
    function("clear_launches", None)()
    on_launch(None)
    failures.clear()


_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Launch))
_installed = []
failures: list[BaseException] = []


def on_launch(kernel: Callable[[Launch], object] | None) -> None:
    """Call `kernel(launch)` at each launch from now on: it may do what the kernel would have done.

    What it raises lands in `failures`, and the launch fails as a kernel that faults does: the
    launch itself returns success, every later call CUDA_ERROR_LAUNCH_FAILED.
    """

    def call(pointer):
        try:
            kernel(_read(pointer))
        except BaseException as error:
            failures.append(error)
            return 1
        return 0

    # One that runs may set another: keep them all.
    _installed.append(_CALLBACK(call) if kernel else _CALLBACK(0))
    function("set_callback", None, _CALLBACK)(_installed[-1])


def hold(stream) -> None:
    """Let a stream, or its handle, put its work off from now on: it is never done.

    The default stream is 0. What waits for it fails, with a text: see `waits`.
    """
    function("hold", ctypes.c_int, ctypes.c_size_t, ctypes.c_int)(_handle(stream), 1)


def let_go(stream) -> None:
    """Let a stream that was held do what it has put off, and all that follows at once."""
    result = function("hold", ctypes.c_int, ctypes.c_size_t, ctypes.c_int)(_handle(stream), 0)
    assert result == 0, f"CUresult {result}"


def waits() -> list[str]:
    """Return what would have waited for a held stream, a text each, since `forget_waits`."""
    text, found = function("wait_text", ctypes.c_char_p, ctypes.c_uint), []
    while (one := text(len(found))) is not None:
        found.append(one.decode())
    return found


def forget_waits() -> list[str]:
    """Return `waits()`, and forget them: a PE that ends with some has failed (pes.py)."""
    found = waits()
    function("clear_waits", None)()
    return found


def wait_for_device(call: str) -> str | None:
    """Return the text if `call`, which waits for all streams of the device, would not return."""
    if function("device_wait", ctypes.c_int, ctypes.c_char_p)(call.encode()):
        return waits()[-1]
    return None


def _handle(stream) -> int:
    return int(stream.__cuda_stream__()[1] if hasattr(stream, "__cuda_stream__") else stream)


def host_address(address: int, n: int) -> int:
    """Return where the host finds the `n` bytes at an address that a device may use.

    Raises ValueError where it may not: freed, never allocated, pageable, or shorter than `n`.
    """
    found = function("host", ctypes.c_size_t, ctypes.c_size_t, ctypes.c_size_t)(int(address), n)
    if not found:
        raise ValueError(f"no device may use the {n} bytes at {int(address):#x}")
    return found


def view(address: int, shape, dtype) -> np.ndarray:
    """Return device memory as an array, for a test or a kernel's stand-in to read and write.

    The address itself is of no use to the host, as with a GPU: to follow it is a segmentation
    fault.
    """
    dtype = np.dtype(dtype)
    shape = (shape,) if np.isscalar(shape) else tuple(shape)
    n = int(np.prod(shape)) * dtype.itemsize
    if not n:
        return np.empty(shape, dtype)
    raw = (ctypes.c_char * n).from_address(host_address(address, n))
    return np.frombuffer(raw, dtype).reshape(shape)


def memory_used(device: int = 0) -> int:
    """Return the bytes of a device's memory in use, by CUDA and NVSHMEM."""
    return function("used", ctypes.c_size_t, ctypes.c_int)(device)


def device_count() -> int:
    """Return how many devices there are, visible or not."""
    return function("devices", ctypes.c_int)()
