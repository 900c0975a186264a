"""Puts, gets and signals of the host, on streams. Sizes are those of whole buffers, as there."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpushmem import settings
from gpushmem.compat.cuda_core import Buffer
from gpushmem.compat.nvshmem.bindings import Cmp_type, Signal_op
from gpushmem.compat.nvshmem.core import memory, session
from gpushmem.compat.nvshmem.core.interop import cupy as arrays
from gpushmem.compat.nvshmem.core.interop import torch as tensors
from gpushmem.compat.nvshmem.core.nvshmem_types import NvshmemInvalid
from gpushmem.memory.array import DeviceArray

__all__ = [
    "SignalOp", "flush", "get", "get_nbi", "put", "put_nbi", "put_signal", "put_signal_nbi",
    "quiet", "signal_fetch", "signal_op", "signal_wait",
]  # fmt: skip

SignalOp = Signal_op


def buffer_of(what: str, value: Any) -> Buffer:
    """The buffer that begins where an array or a tensor does, or the part that a buffer names."""
    if arrays.is_array(value):
        return arrays.array_get_buffer(value)[0]
    if tensors.is_tensor(value):
        return tensors.tensor_get_buffer(value)[0]
    return memory.part(what, value)


def _bytes(what: str, value: Any, local: bool) -> DeviceArray:
    """Its bytes, as an array of gpushmem; on the local side of any memory."""
    if local and isinstance(value, Buffer) and memory.holding(value) is None:
        return memory.ordinary(value)
    return memory.words(buffer_of(what, value), np.uint8)


def fitted(what: str, dst: DeviceArray, src: DeviceArray, target: str) -> tuple[Any, Any]:
    """Both, as long as the shorter one; says so if the source is the longer one.

    `target` is what the sizes of the two decide about: an operation puts, or gets.
    """
    n = min(dst.size, src.size)
    have, want = (dst.size, src.size) if target == "put" else (src.size, dst.size)
    if have < want:
        kind = "bytes" if dst.dtype.itemsize == 1 else "elements"
        text = (
            f"{what}: dst has {dst.size} {kind}, src {src.size}: {n} are copied, as in nvshmem4py, "
            f"and the other {want - n} are {'lost' if target == 'put' else 'not written'}"
        )
        if settings.get("GPUSHMEM_AS_NVSHMEM") == session.STRICT:
            raise NvshmemInvalid(f"{text}; with --strict that is an error")
        session.warn(text)
    return dst[:n], src[:n]


def _copy(name: str, dst: Any, src: Any, pe: int, stream: Any, *signal: Any) -> None:
    on = session.on(name, stream)
    target = "get" if name.startswith("get") else "put"
    two = _bytes(name, dst, target == "get"), _bytes(name, src, target == "put")
    pair = fitted(name, *two, target)
    session.call(name.removesuffix("_nbi"), *pair, *signal, pe, stream=on)


def _signal(what: str, value: Any) -> Any:
    if not isinstance(value, Buffer):
        raise NvshmemInvalid(
            f"{what}: signal_var must be a Buffer, as in nvshmem4py: array_get_buffer(array)[0] is "
            "one"
        )
    found = memory.part(what, value)
    if found.size < np.dtype(np.uint64).itemsize:
        raise NvshmemInvalid(f"{what}: a signal has 8 bytes, this buffer {found.size}")
    return memory.words(found, np.uint64)


def put(dst: Any, src: Any, remote_pe: int = -1, stream: Any = None) -> None:
    """Copy a buffer to another PE."""
    _copy("put", dst, src, remote_pe, stream)


def put_nbi(dst: Any, src: Any, remote_pe: int = -1, stream: Any = None) -> None:
    """Copy a buffer to another PE; the source is in use until `flush`."""
    _copy("put_nbi", dst, src, remote_pe, stream)


def get(dst: Any, src: Any, remote_pe: int = -1, stream: Any = None) -> None:
    """Copy a buffer from another PE."""
    _copy("get", dst, src, remote_pe, stream)


def get_nbi(dst: Any, src: Any, remote_pe: int = -1, stream: Any = None) -> None:
    """Copy a buffer from another PE; complete after `quiet`."""
    _copy("get_nbi", dst, src, remote_pe, stream)


def put_signal(
    dst: Any, src: Any, signal_var: Any, signal_val: int, signal_op: int, remote_pe: int = -1,
    stream: Any = None,
) -> None:  # fmt: skip
    """Copy a buffer to another PE, then update a signal there."""
    signal = _signal("put_signal", signal_var), signal_val, int(signal_op)
    _copy("put_signal", dst, src, remote_pe, stream, *signal)


def put_signal_nbi(
    dst: Any, src: Any, signal_var: Any, signal_val: int, signal_op: int, remote_pe: int = -1,
    stream: Any = None,
) -> None:  # fmt: skip
    """The same; the source is in use until `quiet`."""
    signal = _signal("put_signal_nbi", signal_var), signal_val, int(signal_op)
    _copy("put_signal_nbi", dst, src, remote_pe, stream, *signal)


def signal_op(
    signal_var: Any, signal_val: int, signal_op: int, remote_pe: int = -1, stream: Any = None
) -> None:
    """Update a signal on another PE."""
    on, signal = session.on("signal_op", stream), _signal("signal_op", signal_var)
    session.call("signal_op", signal, signal_val, int(signal_op), remote_pe, stream=on)


def signal_wait(signal_var: Any, signal_val: int, signal_op: Cmp_type, stream: Any = None) -> None:
    """Let the stream wait for a signal; `signal_op` is a comparison."""
    on, signal = session.on("signal_wait", stream), _signal("signal_wait", signal_var)
    session.call("signal_wait_until", signal, int(signal_op), signal_val, stream=on)


def signal_fetch(signal_var: Any) -> int:
    """The value of a signal, at once."""
    return int(session.call("signal_fetch", _signal("signal_fetch", signal_var)))


def quiet(stream: Any = None) -> None:
    """Complete what was queued on the stream before."""
    session.call("quiet", stream=session.on("quiet", stream))


def flush(stream: Any = None) -> None:
    """Let sources of `put_nbi` that was queued before be used again."""
    session.call("flush", stream=session.on("flush", stream))
