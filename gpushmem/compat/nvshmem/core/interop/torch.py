"""PyTorch tensors in symmetric memory, on the CPU, as `nvshmem.core.interop.torch` makes them."""

from __future__ import annotations

import math
import sys
from typing import Any

from gpushmem.compat.cuda_core import Buffer
from gpushmem.compat.nvshmem.core import memory, session
from gpushmem.compat.nvshmem.core.nvshmem_types import NvshmemInvalid
from gpushmem.compat.nvshmem.core.utils import dtype_of, get_size

__all__ = [
    "bytetensor", "free_tensor", "get_multicast_tensor", "get_peer_tensor",
    "register_external_tensor", "tensor", "tensor_get_buffer", "unregister_external_tensor",
]  # fmt: skip


def _torch() -> Any:
    try:
        import torch  # noqa: PLC0415
    except ImportError as error:
        raise ModuleNotFoundError(f"tensors need PyTorch: {error}") from None
    return torch


def is_tensor(value: Any) -> bool:
    """Whether it is a tensor of PyTorch's."""
    torch: Any = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _view(buffer: Buffer, dtype: Any, shape: Any) -> Any:
    torch = _torch()
    flat = torch.utils.dlpack.from_dlpack(buffer.memory())
    return flat.view(dtype)[: math.prod(shape)].view(tuple(shape))


def tensor(
    shape: Any, dtype: Any = None, release: bool = False, morder: str = "C",
    except_on_del: bool = True,
) -> Any:  # fmt: skip
    """Allocate a tensor in symmetric memory, on the CPU; collective. By default float32."""
    torch = _torch()
    if morder not in ("C", "F"):
        raise NvshmemInvalid(f"tensor: morder is C or F, not {morder!r}")
    dtype = torch.float32 if dtype is None else dtype
    shape = tuple(shape) if isinstance(shape, tuple | list | torch.Size) else (int(shape),)
    made = memory.allocated(shape if morder == "C" else shape[::-1], dtype_of(dtype))
    if morder == "C":
        return _view(made, dtype, shape)
    return _view(made, dtype, shape[::-1]).permute(*reversed(range(len(shape))))


def bytetensor(
    shape: Any, dtype: Any = None, release: bool = False, morder: str = "C",
    except_on_del: bool = True,
) -> Any:  # fmt: skip
    """Allocate bytes in symmetric memory: `shape` of them, as in nvshmem4py; collective."""
    return tensor(shape, _torch().uint8, release, morder, except_on_del)


def tensor_get_buffer(tensor: Any) -> tuple[Buffer, int, str]:
    """The buffer that begins where the tensor does, the bytes of the tensor, and its dtype."""
    session.backend("tensor_get_buffer")
    found = memory.known.get(int(tensor.data_ptr())) if is_tensor(tensor) else None
    if found is None:
        raise NvshmemInvalid(
            "the tensor does not begin where memory of nvshmem.core does: pass the whole tensor, "
            "or a part that begins with its first element"
        )
    return found, tensor.numel() * tensor.element_size(), str(tensor.dtype)


def get_peer_tensor(tensor: Any, peer_pe: int) -> Any:
    """The same tensor on another PE, for loads and stores."""
    peer = memory.get_peer_buffer(tensor_get_buffer(tensor)[0], peer_pe)
    return _view(peer, tensor.dtype, tensor.shape)


def get_multicast_tensor(team: int, tensor: Any) -> Any:
    """Raise `NvshmemError`, as on GPUs without an NVLink switch."""
    made = memory.get_multicast_buffer(team, tensor_get_buffer(tensor)[0])
    return _view(made, tensor.dtype, tensor.shape)


def free_tensor(tensor: Any) -> None:
    """Free what `tensor` has allocated; collective."""
    if session.present():
        memory.free(tensor_get_buffer(tensor)[0])


def register_external_tensor(tensor: Any) -> Any:
    """Make existing memory, whole pages, symmetric; collective. Returns the tensor to use."""
    size = get_size(tensor.shape, tensor.dtype)
    held = Buffer.from_handle(int(tensor.data_ptr()), size, owner=tensor)
    made = memory.register_external_buffer(held)
    return _view(made, tensor.dtype, tensor.shape)


def unregister_external_tensor(tensor: Any) -> None:
    """End what `register_external_tensor` began; collective."""
    memory.unregister_external_buffer(tensor_get_buffer(tensor)[0])
