"""Expert parallelism of vLLM's workers on CPUs: tokens go to the ranks that have their experts.

vLLM's own way on CPUs gives all tokens to all ranks, and its kernel takes the numbers of all
experts for those of a rank's own, so it reads beyond them. Here a token goes once to each rank that
has one of its experts, and that rank's kernel gets the numbers of its own, with weights of 0 for
the others'.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from vllm.config import get_current_vllm_config
from vllm.distributed import get_ep_group
from vllm.distributed.device_communicators.all2all import AgRsAll2AllManager
from vllm.logger import init_logger
from vllm.model_executor.layers.fused_moe.expert_map_manager import determine_expert_map
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import (
    UnquantizedFusedMoEMethod,
)

__all__ = ["AllToAll", "OwnNumbers"]


log = init_logger("vllm.gpushmem")


class Way(NamedTuple):
    """Where rows came from, for the way back."""

    group: Any
    rows: Tensor  # of this rank's tokens, as they were sent
    sent: list[int]
    came: list[int]
    tokens: int


class AllToAll(AgRsAll2AllManager):  # type: ignore[misc]
    """vLLM's `dispatch` and `combine`, between ranks with different tokens.

    Without expert parallelism, when each rank has a part of each expert, all have to see all
    tokens, as with the class it is derived from.
    """

    def __init__(self, cpu_group: Any) -> None:
        super().__init__(cpu_group)
        config = get_current_vllm_config()
        number = config.model_config.get_num_experts() if self.use_ep else 0
        self._owner = torch.full((number,), -1)
        self._local = torch.zeros(number, dtype=torch.long)
        strategy = config.parallel_config.expert_placement_strategy
        for rank in range(self.world_size if self.use_ep else 0):
            has = determine_expert_map(self.world_size, rank, number, strategy)[1]
            mine = torch.arange(number) if has is None else (has >= 0).nonzero().flatten()
            self._owner[mine] = rank
            self._local[mine] = torch.arange(len(mine))
        self._way: Way | None = None
        if self.use_ep:
            log.info("gpushmem carries tokens to %d experts on %d ranks", number, self.world_size)

    def dispatch(
        self, hidden_states: Tensor, topk_weights: Tensor, topk_ids: Tensor,
        is_sequence_parallel: bool = False, extra_tensors: list[Tensor] | None = None,
    ) -> Any:  # fmt: skip
        """Return rows for this rank's experts, their weights, and the experts' numbers here."""
        given = hidden_states, topk_weights, topk_ids
        if not self.use_ep:
            return super().dispatch(*given, is_sequence_parallel, extra_tensors)
        group = self._get_comm_group(is_sequence_parallel)
        everyone = get_ep_group().ranks
        owner = self._owner[topk_ids.long()]
        wanted = [
            (owner == everyone.index(rank)).any(1).nonzero().flatten() for rank in group.ranks
        ]
        sent, rows = [len(each) for each in wanted], torch.cat(wanted)
        came = _counts(sent, group)
        self._way = Way(group, rows, sent, came, len(hidden_states))
        moved = [_exchange(x[rows], sent, came, group) for x in (*given, *(extra_tensors or []))]
        if not sum(came):  # the kernel wants a row
            moved = [x.new_zeros(1, *x.shape[1:]) for x in moved]
        hidden, weights, ids, *extra = moved
        mine = self._owner[ids.long()] == self.rank
        weights = torch.where(mine, weights, 0)
        ids = torch.where(mine, self._local[ids.long()], 0).to(topk_ids.dtype)
        return (hidden, weights, ids) if extra_tensors is None else (hidden, weights, ids, extra)

    def combine(self, hidden_states: Tensor, is_sequence_parallel: bool = False) -> Tensor:
        """Return, for this rank's tokens, the sums of what their experts made of them."""
        way, self._way = self._way, None
        if way is None:
            return super().combine(hidden_states, is_sequence_parallel)
        back = _exchange(hidden_states[: sum(way.came)], way.came, way.sent, way.group)
        out = back.new_zeros(way.tokens, *back.shape[1:])
        return out.index_add_(0, way.rows, back)

    def allocate_combine_input(self, *args: Any, **kwargs: Any) -> None:
        """Nothing: `combine` takes rows from anywhere."""


def _counts(sent: list[int], group: Any) -> list[int]:
    came = torch.empty(len(sent), dtype=torch.int64)
    dist.all_to_all_single(came, torch.tensor(sent), group=group.device_group)
    return came.tolist()


def _exchange(rows: Tensor, sent: list[int], came: list[int], group: Any) -> Tensor:
    out = rows.new_empty(sum(came), *rows.shape[1:])
    dist.all_to_all_single(out, rows.contiguous(), came, sent, group=group.device_group)
    return out


@UnquantizedFusedMoEMethod.register_oot
class OwnNumbers(UnquantizedFusedMoEMethod):  # type: ignore[misc]
    """vLLM's method, with the numbers of a rank's own experts in the place of all experts'."""

    def apply(
        self, layer: Any, x: Tensor, topk_weights: Tensor, topk_ids: Tensor, *others: Any,
        **named: Any,
    ) -> Tensor:  # fmt: skip
        """Return what this rank's experts make of tokens that all ranks have."""
        has = layer.expert_map
        if has is not None and not self.moe.moe_parallel_config.use_all2all_kernels:
            number = has[topk_ids.long()]
            topk_weights = torch.where(number >= 0, topk_weights, 0)
            topk_ids = number.clamp(min=0).to(topk_ids.dtype)
        return super().apply(layer, x, topk_weights, topk_ids, *others, **named)
