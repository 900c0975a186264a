"""The collectives of a group of vLLM's workers, on CPUs."""

from __future__ import annotations

import logging
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator
from vllm.logger import init_logger

from gpushmem import settings

__all__ = ["GpushmemCommunicator"]

log = init_logger("vllm.gpushmem")
REDUCED = torch.float16, torch.bfloat16, torch.float32, torch.float64


class GpushmemCommunicator(CpuCommunicator):  # type: ignore[misc]
    """vLLM's communicator for CPUs whose collectives all are gpushmem's.

    `all_reduce` is `torch.ops.gpushmem.all_reduce_`, which has no Python under the call; where
    `GPUSHMEM_TORCH_FUSE=1`, compiled graphs have PyTorch's, for the pass that puts it together with
    products and norms. Those for parts of different lengths are here, which vLLM's own does not
    have: data parallelism with expert parallelism needs them.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.is_ep_communicator:  # of a model with experts
            from gpushmem.integrations.vllm import experts  # noqa: PLC0415  (heavy)

            if self.use_all2all:
                self.all2all_manager = experts.AllToAll(self.cpu_group)
        self._name = self.device_group.group_name
        self._fuses = settings.get("GPUSHMEM_TORCH_FUSE") == "1"
        if self._fuses:  # say what is fused where vLLM says things
            fusion = logging.getLogger("gpushmem.torch")
            fusion.handlers, fusion.level = logging.getLogger("vllm").handlers, logging.INFO
        log.info(
            "gpushmem carries the collectives of %s: rank %d of %d",
            self.unique_name, self.rank_in_group, self.world_size,
        )  # fmt: skip

    def _all_group_ranks_share_shm_group_name(self) -> bool:
        return False  # or vLLM's own shared memory would carry them

    def all_reduce(self, input_: Tensor) -> Tensor:
        """Make `input_` the sum of all ranks' and return it."""
        if input_.dtype in REDUCED and input_.is_contiguous() and not self._fuses:
            torch.ops.gpushmem.all_reduce_(input_, self._name)
            return input_
        return super().all_reduce(input_)

    def all_gatherv(
        self, input_: Tensor | list[Tensor], dim: int = 0, sizes: list[int] | None = None
    ) -> Tensor | list[Tensor]:
        """Return all ranks' rows, of which each has `sizes[rank]`, or as many as this one."""
        if isinstance(input_, list):
            return [self._all_rows(each, dim, sizes) for each in input_]
        return self._all_rows(input_, dim, sizes)

    def _all_rows(self, x: Tensor, dim: int, sizes: list[int] | None) -> Tensor:
        rows = x.movedim(dim, 0).contiguous()
        sizes = sizes or [len(rows)] * self.world_size
        out = rows.new_empty(sum(sizes), *rows.shape[1:])
        dist.all_gather(list(out.split(sizes)), rows, group=self.device_group)
        return out.movedim(0, dim)

    def reduce_scatterv(
        self, input_: Tensor, dim: int = -1, sizes: list[int] | None = None
    ) -> Tensor:
        """Return this rank's `sizes[rank]` rows of the sum, or its equal part."""
        rows = input_.movedim(dim, 0).contiguous()
        if sizes is None:
            sizes = [len(rows) // self.world_size] * self.world_size
        mine = sizes[self.rank_in_group]
        parts = rows.new_empty(self.world_size, mine, *rows.shape[1:])
        dist.all_to_all_single(
            parts.flatten(0, 1), rows, [mine] * self.world_size, sizes, group=self.device_group
        )
        return parts.sum(0).movedim(0, dim).contiguous()
