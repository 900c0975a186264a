"""A KV cache of tensors whose pages travel from ranks that prefill to ranks that decode.

    kv = KVTransfer(layers=32, pages=..., page_size=16, kv_heads=8, head_dim=128,
                    dtype=torch.bfloat16, prefill=(0, 1), decode=(2, 3), prefill_tp=2, decode_tp=2)
    kv.start(request, pages, to=0)    # on ranks that prefill; on those that decode kv.receive(...)
    kv.send(request, layer)           # kv.wait(request, layer)
    kv.cache[layer]                   # a tensor: prefill writes it, attention reads it
    kv.finished(request)

The names that other systems have for these steps are in docs/kernels.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gpushmem import runtime
from gpushmem.kernels import KVTransfer as Transfer
from gpushmem.memory.tensors import dtype_name
from gpushmem.torch.plans import here, plans_of

__all__ = ["KVTransfer"]


class KVTransfer:
    """`gpushmem.kernels.KVTransfer` with tensors: in a process group, on PyTorch's current stream.

    Arguments and steps are those of that class, with `group`, the name of a process group, or "",
    in the place of `team`. `cache` has a tensor for each layer, in the memory of the plan: on CPUs
    `wait` waits, so attention may read it at once. Making one and `free` are collective over all
    ranks.
    """

    def __init__(self, *, dtype: torch.dtype, group: str = "", **sizes: Any) -> None:
        team = plans_of(group).team
        self.plan = Transfer(team=team, dtype=dtype_name(dtype), **sizes)
        self.cache = [torch.from_dlpack(layer) for layer in self.plan.cache]
        self._on_gpu = here().runtime.backend.on_gpu

    def start(self, request: int, pages: Sequence[int] | Tensor, *, to: int = 0) -> None:
        """Say which pages `request` has here, on a rank that prefills for instance `to`."""
        self.plan.start(request, self._pages(pages), to=to, **self._stream())

    def send(
        self, request: int, layer: int | None = None, *, first: int = 0, last: int | None = None,
        cache: Tensor | None = None,
    ) -> None:  # fmt: skip
        """Send a layer of `request`, or all, or some of its pages; of `cache`, if it is given."""
        view = here().view(cache)
        self.plan.send(request, layer, first=first, last=last, cache=view, **self._stream())

    def receive(self, request: int, pages: Sequence[int] | Tensor, *, source: int = 0) -> None:
        """Let instance `source` write `request` to `pages` of `cache`, on a rank that decodes."""
        self.plan.receive(request, self._pages(pages), source=source, **self._stream())

    def refuse(self, request: int, *, source: int = 0) -> None:
        """Tell instance `source` that there is no room for `request`."""
        self.plan.refuse(request, source=source, **self._stream())

    def wait(self, request: int, layer: int | None = None) -> None:
        """Let what follows wait until `layer` of `request`, or all, are in its pages; once each."""
        self.plan.wait(request, layer, **self._stream())
        if not self._on_gpu:
            runtime.synchronize()

    def arrived(self, request: int, layer: int) -> bool:
        """Whether `wait` for this layer would not wait; does not wait itself."""
        return self.plan.arrived(request, layer)

    def finished(self, request: int) -> bool:
        """Whether `request` is over here; raises `TransferFailed` if that is without its pages."""
        return self.plan.finished(request)

    def abort(self, request: int) -> None:
        """Give `request` up; it is over when `finished` raises."""
        self.plan.abort(request, **self._stream())

    def free(self) -> None:
        """Give the memory back; `cache` may not be used any more."""
        self.cache = []
        self.plan.free()

    def _stream(self) -> dict[str, Any]:
        return {"stream": torch.cuda.current_stream()} if self._on_gpu else {}

    def _pages(self, pages: Sequence[int] | Tensor) -> Any:
        if isinstance(pages, Tensor) and pages.is_cuda:
            return pages
        return pages.tolist() if isinstance(pages, Tensor) else pages
