"""Arrays in symmetric memory, as `nvshmem.core.interop.cupy` makes them of CuPy's type."""

from __future__ import annotations

from functools import partialmethod
from types import SimpleNamespace
from typing import Any

import numpy as np

from gpushmem.artifacts.argument_packing import address_of
from gpushmem.compat import cuda_core
from gpushmem.compat.cuda_core import Buffer
from gpushmem.compat.nvshmem.core import memory, session
from gpushmem.compat.nvshmem.core.nvshmem_types import NvshmemInvalid
from gpushmem.compat.nvshmem.core.utils import dtype_of
from gpushmem.errors import ArgumentError
from gpushmem.memory.array import DeviceArray

__all__ = [
    "array", "array_get_buffer", "bytearray", "free_array", "get_multicast_array",
    "get_peer_array", "register_external_array", "unregister_external_array",
]  # fmt: skip


class ndarray(DeviceArray):
    """An array in symmetric memory, with what programs use of CuPy's.

    It is one of gpushmem's, so it computes like NumPy's, after this PE's streams; kernels of
    `numba.cuda` take it without a copy.
    """

    @property
    def _numba_type_(self) -> Any:
        from numba.cuda.typing.typeof import typeof  # noqa: PLC0415

        return typeof(self.native())

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {**self.native().__array_interface__, "version": 3, "stream": None}

    @property
    def data(self) -> Any:
        """CuPy's pointer: `data.ptr` is the address."""
        return SimpleNamespace(ptr=address_of(self.native()))

    @property
    def device(self) -> Any:
        """The device that has it; `device.id` is its number."""
        return SimpleNamespace(id=cuda_core.Device().device_id)

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return self.dtype.itemsize

    def get(self, stream: Any = None, order: str = "C", out: Any = None) -> np.ndarray[Any, Any]:
        """A copy in the host's memory, in `out` if that is given."""
        values = np.asarray(self.numpy(), order=order)  # type: ignore[call-overload]
        if out is None:
            return values
        if (out.shape, out.dtype) != (self.shape, self.dtype):
            raise NvshmemInvalid(
                f"get: out has shape {out.shape} and dtype {out.dtype}, the array {self.shape} and "
                f"{self.dtype}"
            )
        out[...] = values
        return out

    def set(self, arr: Any, stream: Any = None) -> None:
        """Copy an array of the host's to it."""
        self.copy_from(arr)

    def fill(self, value: Any) -> None:
        """Write a value to all elements."""
        self.copy_from(value)

    def _shared(self, name: str, *args: Any, **options: Any) -> Any:
        """What a method of NumPy's makes of the same memory; raises if it makes a copy."""
        native = self.native()
        made = getattr(native, name)(*args, **options)
        if made.size and not np.may_share_memory(made, native):
            raise ArgumentError(
                f"{name}: an array of shape {self.shape} and strides {self.strides} needs a copy: "
                "numpy() makes one"
            )
        return self._view(made)

    ravel, squeeze = partialmethod(_shared, "ravel"), partialmethod(_shared, "squeeze")
    swapaxes, transpose = partialmethod(_shared, "swapaxes"), partialmethod(_shared, "transpose")

    @property
    def mT(self) -> Any:  # noqa: N802  (NumPy's name)
        """View with the last two axes exchanged."""
        return self.swapaxes(-1, -2)

    @property
    def real(self) -> Any:
        """View of the real parts."""
        return self._view(self.native().real)

    @property
    def imag(self) -> Any:
        """View of the imaginary parts; of real numbers, zeros that cannot be written."""
        return self._view(self.native().imag) if self.dtype.kind == "c" else self.numpy().imag

    def __getattr__(self, name: str) -> Any:
        """What else NumPy's arrays have: `sum`, `mean`, `astype`; of a copy."""
        if name.startswith("_") or name in NOT_OF_A_COPY or not hasattr(np.ndarray, name):
            raise AttributeError(f"an array of nvshmem.core has no {name} on the CPU")
        return getattr(self.numpy(), name)


# What changes a NumPy array, shows a part of it, or tells of its memory.
NOT_OF_A_COPY = {
    "ctypes", "base", "flags", "setflags", "sort", "partition", "put", "resize", "setfield",
    "getfield", "itemset", "flat", "byteswap", "diagonal",
}  # fmt: skip


def seen(native: DeviceArray) -> ndarray:
    """An array of gpushmem, as programs of nvshmem4py see it."""
    return ndarray(native.native(), native._backend, native._lifetime)


def is_array(value: Any) -> bool:
    """Whether it is an array in symmetric memory."""
    return isinstance(value, ndarray)


def array(
    shape: Any, dtype: Any = "float32", release: bool = False, morder: str = "C",
    except_on_del: bool = True,
) -> ndarray:  # fmt: skip
    """Allocate an array in symmetric memory; collective."""
    if morder not in ("C", "F"):
        raise NvshmemInvalid(f"array: morder is C or F, not {morder!r}")
    shape = tuple(shape) if np.iterable(shape) else (int(shape),)
    made: Any = memory.allocated(shape if morder == "C" else shape[::-1], dtype_of(dtype)).owner
    return seen(made if morder == "C" else made.T)


def bytearray(  # noqa: A001  (nvshmem4py's name)
    shape: Any, dtype: Any = "float32", release: bool = False, device_id: Any = None,
    morder: str = "C", except_on_del: bool = True,
) -> ndarray:  # fmt: skip
    """Allocate bytes in symmetric memory: `shape` of them, as in nvshmem4py; collective."""
    return array(shape, "int8", release, morder, except_on_del)


def array_get_buffer(array: ndarray) -> tuple[Buffer, int, str]:
    """The buffer that begins where the array does, the bytes of the array, and its dtype."""
    session.backend("array_get_buffer")
    found = memory.known.get(address_of(array.native())) if is_array(array) else None
    if found is None:
        raise NvshmemInvalid(
            f"{array!r} does not begin where memory of nvshmem.core does: pass the whole array, or "
            "a part that begins with its first element"
        )
    return found, array.nbytes, str(array.dtype)


def get_peer_array(array: ndarray, peer_pe: int | None = None) -> ndarray:
    """The same array on another PE, for loads and stores."""
    found, _, _ = array_get_buffer(array)
    peer = memory.get_peer_buffer(found, _pe(peer_pe))
    return seen(memory.words(peer, array.dtype)[: array.size].reshape(array.shape))


def _pe(pe: int | None) -> int:
    if pe is None:
        raise NvshmemInvalid("give the number of the peer's PE")
    return int(pe)


def get_multicast_array(team: int, array: ndarray) -> ndarray:
    """Raise `NvshmemError`, as on GPUs without an NVLink switch."""
    made = memory.get_multicast_buffer(team, array_get_buffer(array)[0])
    return seen(memory.words(made, array.dtype).reshape(array.shape))


def free_array(array: ndarray) -> None:
    """Free what `array` has allocated; collective."""
    if session.present():
        memory.free(array_get_buffer(array)[0])


def register_external_array(array: Any) -> ndarray:
    """Make existing memory, whole pages, symmetric; collective. Returns the array to use."""
    native = np.asarray(array)
    held = Buffer.from_handle(address_of(native), native.nbytes, owner=array)
    made = memory.register_external_buffer(held)
    return seen(memory.words(made, native.dtype).reshape(native.shape))


def unregister_external_array(array: ndarray) -> None:
    """End what `register_external_array` began; collective."""
    memory.unregister_external_buffer(array_get_buffer(array)[0])
