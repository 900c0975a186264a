"""Tensors in symmetric memory, made with PyTorch's names and keywords.

They are those of `gpushmem.zeros(..., like=torch)`: every operation and kernel takes them, slices
of them too, as docs/arrays.md says. All calls but `peer` are collective over all PEs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gpushmem import runtime
from gpushmem.arguments import public, shown
from gpushmem.errors import ArgumentError, ArgumentTypeError
from gpushmem.ops.memory import peer_array

__all__ = [
    "empty", "empty_like", "free", "full", "full_like", "ones", "ones_like", "peer", "tensor",
    "zeros", "zeros_like",
]  # fmt: skip


@public
def empty(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Make a tensor in symmetric memory, contents undefined. Collective over all PEs.

    `size` is as in `torch.empty`, integers or one sequence, `dtype` by default PyTorch's default
    dtype, `requires_grad` as there. The tensor is contiguous, and in the memory of the backend: on
    the CPU, or with NVSHMEM on this PE's GPU; `ArgumentError` for another `device`. Every PE
    asks for the same number of bytes, as for `gpushmem.empty`. `free` releases the memory; garbage
    collection does not. A tensor that requires its gradient is an ordinary leaf: operations and
    kernels take its `detach()`.
    """
    made = _checked("empty", dtype or torch.get_default_dtype(), device, requires_grad)
    return _leaf(runtime.empty(_shape("empty", size), made, like=torch), requires_grad)


@public
def zeros(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Make a tensor of zeros, complete on all PEs on return; otherwise as `empty`."""
    made = _checked("zeros", dtype or torch.get_default_dtype(), device, requires_grad)
    return _leaf(runtime.zeros(_shape("zeros", size), made, like=torch), requires_grad)


@public
def ones(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Make a tensor of ones, complete on all PEs on return; otherwise as `empty`."""
    made = _checked("ones", dtype or torch.get_default_dtype(), device, requires_grad)
    return _leaf(runtime.ones(_shape("ones", size), made, like=torch), requires_grad)


@public
def full(
    size: Any, fill_value: Any, *, dtype: Any = None, device: Any = None,
    requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """Make a tensor filled with `fill_value`, which may differ between PEs; else as `empty`.

    `dtype` is by default that of `torch.full`: int64 for an integer.
    """
    made = dtype or torch.full((), fill_value).dtype
    made = _checked("full", made, device, requires_grad)
    return _leaf(runtime.full(size, fill_value, made, like=torch), requires_grad)


@public
def tensor(
    data: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """Make a tensor with this PE's `data` in it, as `torch.tensor` does; otherwise as `empty`."""
    given = torch.as_tensor(data, dtype=dtype).detach()
    _checked("tensor", given.dtype, device, requires_grad)
    return _leaf(runtime.array(given.cpu(), like=torch), requires_grad)


@public
def empty_like(input: Tensor, **options: Any) -> Tensor:
    """As `empty`, of the shape of `input`, any tensor, and by default of its dtype."""
    options = _like("empty_like", input, options)
    return empty(input.shape, **options)


@public
def zeros_like(input: Tensor, **options: Any) -> Tensor:
    """As `zeros`, of the shape of `input`, any tensor, and by default of its dtype."""
    options = _like("zeros_like", input, options)
    return zeros(input.shape, **options)


@public
def ones_like(input: Tensor, **options: Any) -> Tensor:
    """As `ones`, of the shape of `input`, any tensor, and by default of its dtype."""
    options = _like("ones_like", input, options)
    return ones(input.shape, **options)


@public
def full_like(input: Tensor, fill_value: Any, **options: Any) -> Tensor:
    """As `full`, of the shape of `input`, any tensor, and by default of its dtype."""
    options = _like("full_like", input, options)
    return full(input.shape, fill_value, **options)


@public
def peer(tensor: Tensor, pe: int) -> Tensor:
    """Return PE `pe`'s copy of a tensor in symmetric memory, or of a part of it; not collective.

    It is a tensor on that PE's memory, for loads and stores, without a gradient. Otherwise as
    `gpushmem.peer_array`: the PE must be in TEAM_SHARED.
    """
    view: Tensor = peer_array(_tensor("peer", tensor).detach(), pe)
    return view


@public
def free(tensor: Tensor) -> None:
    """Release the memory of a tensor that a function of this module has made; as `gpushmem.free`.

    Collective over all PEs. Do not use the tensor, or views of it, afterwards.
    """
    runtime.free(_tensor("free", tensor).detach())


def _shape(what: str, size: tuple[Any, ...]) -> Any:
    if not size:
        raise ArgumentTypeError(f"{what}: give a size; () is that of a tensor of one element")
    return size[0] if len(size) == 1 and not isinstance(size[0], int) else size


def _like(what: str, input: Any, options: dict[str, Any]) -> dict[str, Any]:
    return {**options, "dtype": options.get("dtype") or _tensor(what, input).dtype}


def _leaf(made: Tensor, requires_grad: bool) -> Tensor:
    return made.requires_grad_() if requires_grad else made


def _tensor(what: str, value: Any) -> Any:
    if not isinstance(value, Tensor):
        raise ArgumentTypeError(f"{what} takes a tensor of PyTorch, not {shown(value)}")
    return value


def _checked(what: str, dtype: Any, device: Any, requires_grad: bool) -> Any:
    """Return the dtype; refuse, before anything is allocated, what the tensor cannot be."""
    if not isinstance(dtype, torch.dtype):
        raise ArgumentTypeError(f"{what}: dtype must be one of PyTorch's, not {shown(dtype)}")
    if requires_grad and not (dtype.is_floating_point or dtype.is_complex):
        raise ArgumentError(f"{what}: a tensor of {dtype} has no gradient: use a floating dtype")
    here = "cuda" if runtime.current(what).backend.on_gpu else "cpu"
    if device is not None and torch.device(device).type != here:
        raise ArgumentError(
            f"{what}: symmetric memory of the backend {runtime.current(what).backend.name} is on "
            f"{here}, not on {device}: leave device out"
        )
    return dtype
