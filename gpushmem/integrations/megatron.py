"""Megatron-Core with its communication inside gpushmem's kernels.

    spec = get_gpt_decoder_block_spec(config, use_transformer_engine=False)
    model = GPTModel(config, with_gpushmem(spec, config), ...)

Modules are subclasses of Megatron-Core's own: weights, their initialisation and checkpoints are
those of the plain ones. In their place are

    ColumnParallelLinear   all-gather and product, backwards product and reduce-scatter, or all-
                           reduce, in one operator each
    RowParallelLinear      product and reduce-scatter, or all-reduce
    MoELayer               tokens go to their experts and back by `ExpertParallel`
    ContextParallelAttention    `ring_attention`: context parallelism without Transformer Engine
    Norm                   PyTorch's norms, also with sequence parallelism

What an operator does not do (one rank, experts' own layers, gradients that are added to
`main_grad` in the product) is left to the class above. See docs/integrations.md.
"""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from megatron.core import tensor_parallel
from megatron.core.models.backends import LocalSpecProvider
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer.dot_product_attention import DotProductAttention
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.moe import moe_layer
from megatron.core.transformer.moe.moe_utils import get_default_pg_collection
from megatron.core.transformer.moe.token_dispatcher import MoETokenDispatcher
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.torch_norm import WrappedTorchNorm
from torch import Tensor

import gpushmem.torch.operators  # noqa: F401 - there are torch.ops.gpushmem
from gpushmem.errors import ArgumentError
from gpushmem.kernels import ExpertParallel
from gpushmem.torch.modules import Column
from gpushmem.torch.plans import plans_of

__all__ = [
    "ColumnParallelLinear", "ContextParallelAttention", "ExpertParallelDispatcher",
    "GpushmemSpecProvider", "MoELayer", "Norm", "RowParallelLinear", "modules", "with_gpushmem",
]  # fmt: skip

ops = torch.ops.gpushmem


# --- linear layers


class ColumnParallelLinear(tensor_parallel.ColumnParallelLinear):
    """Megatron-Core's, whose product and collective are one operator."""

    def _forward_impl(self, input: Tensor, weight: Tensor, **how: Any) -> Tensor:
        gathers, reduces = how["sequence_parallel"], how["allreduce_dgrad"]
        if how["gradient_accumulation_fusion"] or not (gathers or reduces):
            return super()._forward_impl(input=input, weight=weight, **how)
        name = self.tp_group.group_name
        if gathers:
            out = ops.all_gather_gemm(input, weight.T, name)
        else:
            out = Column.apply(input, weight, name)
        return out if how["bias"] is None else out + how["bias"]


class RowParallelLinear(tensor_parallel.RowParallelLinear):
    """Megatron-Core's, whose product and collective are one operator."""

    def forward(self, input_: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the output, and the bias if it was not added."""
        divided = self.input_is_parallel and self.tp_group.size() > 1
        if not divided or self.explicit_expert_comm or self.gradient_accumulation_fusion:
            return super().forward(input_)
        operation = ops.gemm_reduce_scatter if self.sequence_parallel else ops.gemm_all_reduce
        out = operation(input_, self.weight.T, self.tp_group.group_name)
        if self.skip_bias_add or self.bias is None:
            return out, self.bias
        return out + self.bias, None


# --- norms


class Norm:
    """`WrappedTorchNorm`, which refuses sequence parallelism: its parameters are marked for it.

    Megatron-Core then sums their gradients over the ranks among which the sequence is divided.
    """

    def __new__(cls, config: Any, hidden_size: int, eps: float = 1e-5, **others: Any) -> Any:
        """Make a norm of torch.nn."""
        plain = copy.copy(config)
        plain.sequence_parallel = False
        norm = WrappedTorchNorm(plain, hidden_size, eps, **others)
        for parameter in norm.parameters():
            parameter.sequence_parallel = config.sequence_parallel
        return norm


# --- context parallelism


class ContextParallelAttention(MegatronModule):
    """Attention to the tokens of all ranks of the context parallel group, by `ring_attention`.

    A rank has the first and last parts of the sequence that `get_batch_on_this_cp_rank` gives it.
    Masks are causal, or none; there is no dropout, no window, and no packed sequences. Heads may be
    divided by tensor parallelism, too. Raises `ArgumentError`.
    """

    def __init__(
        self, config: Any, layer_number: int, attn_mask_type: Any, attention_type: str,
        attention_dropout: float | None = None, softmax_scale: float | None = None,
        cp_comm_type: str | None = None, pg_collection: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(config=config)
        rate = config.attention_dropout if attention_dropout is None else attention_dropout
        for what, there_is in {
            "attention_dropout": rate, "window_size": config.window_size,
            f"softmax_type={config.softmax_type!r}": config.softmax_type != "vanilla",
        }.items():  # fmt: skip
            if there_is:
                raise ArgumentError(f"ContextParallelAttention: there is no {what}")
        if pg_collection is None:
            pg_collection = ProcessGroupCollection.use_mpu_process_groups(required_pgs=["cp"])
        self.group, self.mask, self.scale = pg_collection.cp, attn_mask_type, softmax_scale

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
        attn_mask_type: Any = None, attention_bias: Tensor | None = None,
        packed_seq_params: Any = None,
    ) -> Tensor:  # fmt: skip
        """Return (sequence, batch, heads * size) of (sequence, batch, heads, size).

        `attention_mask` is not read: the mask's type says what it is.
        """
        kind = self.mask if attn_mask_type is None else attn_mask_type
        if attention_bias is not None or packed_seq_params is not None:
            raise ArgumentError("ContextParallelAttention: there is no bias, nor packed sequences")
        if kind not in {AttnMaskType.causal, AttnMaskType.no_mask}:
            raise ArgumentError(f"ContextParallelAttention: there is no mask {kind.name}")
        q, k, v = (each.transpose(0, 1) for each in (query, key, value))
        causal, name = kind == AttnMaskType.causal, self.group.group_name
        out, _ = ops.ring_attention(q, k, v, None, causal, None, self.scale, True, name)
        return out.transpose(0, 1).flatten(2)


# --- experts


class _Exchange:
    """Rows to their experts and back, by the plan that all layers of a size share."""

    def __init__(self, group: Any, experts: Tensor, num_experts: int, x: Tensor) -> None:
        self.plans, self.experts = plans_of(group.group_name), experts
        tokens, top_k = experts.shape
        self.plan = self.plans.get(
            ExpertParallel, tokens=1 << max(0, tokens - 1).bit_length(), hidden=x.shape[1],
            experts=num_experts, top_k=top_k, form="throughput",
            dtype=str(x.dtype).removeprefix("torch."),
        )  # fmt: skip
        kind = torch.float64 if x.dtype == torch.float64 else torch.float32
        self.ones = torch.ones(tokens, top_k, dtype=kind, device=x.device)

    def there(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The rows for this rank's experts, in their order, and how many each has."""
        sent = self.plans.sendable(self.plan, x.contiguous())
        self.plans.call(self.plan.dispatch, *sent, self.experts)
        counts = torch.from_dlpack(self.plan.received.counts).sum(1)
        rows = torch.from_dlpack(self.plan.received.rows)
        return rows[: int(counts.sum())].clone(), counts

    def back(self, y: Tensor) -> Tensor:
        """For each token of this rank the sum of its rows."""
        rows = self.plan.received.rows
        torch.from_dlpack(rows)[: len(y)] = y
        out = y.new_empty(len(self.experts), y.shape[1])
        self.plans.call(self.plan.combine, rows, self.ones, out=out)
        return out


class _There(torch.autograd.Function):
    """Each is the other's transpose, with the same tokens for the same experts."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, exchange: _Exchange) -> tuple[Tensor, Tensor]:
        ctx.exchange = exchange
        rows, counts = exchange.there(x)
        ctx.mark_non_differentiable(counts)
        return rows, counts

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return ctx.exchange.back(grads[0]), None


class _Back(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor, exchange: _Exchange) -> Tensor:
        ctx.exchange = exchange
        return exchange.back(y)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return ctx.exchange.there(grads[0])[0], None


class ExpertParallelDispatcher(MoETokenDispatcher):
    """Tokens to the ranks of their experts by one kernel, and the sums of results by another.

    Nothing is exchanged before; a token goes to a rank once, whichever of its experts are there,
    and its probabilities behind it, in its dtype. All ranks have as many tokens, rounded up to a
    power of two. Dispatch and combine take turns, so only one microbatch may be under way.
    """

    def __init__(self, config: Any, pg_collection: Any) -> None:
        super().__init__(config, pg_collection)
        self.num_experts, self.top_k = config.num_moe_experts, config.moe_router_topk

    def dispatch_preprocess(
        self, hidden_states: Tensor, routing_map: Tensor, probs: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Take the experts of each token from the map (tokens, experts)."""
        self.shape = hidden_states.shape
        chosen, experts = routing_map.int().topk(self.top_k, dim=1)
        self.experts = experts.masked_fill(chosen == 0, -1).int()
        return hidden_states.reshape(-1, self.shape[-1]), probs

    def token_dispatch(self, hidden_states: Tensor, probs: Tensor) -> tuple[Tensor, Tensor]:
        """Send tokens, and the probabilities of all experts behind them."""
        x = torch.cat([hidden_states, probs.to(hidden_states.dtype)], 1)
        self.exchange = _Exchange(self.ep_group, self.experts, self.num_experts, x)
        self.probs_dtype = probs.dtype
        return _There.apply(x, self.exchange)

    def dispatch_postprocess(
        self, hidden_states: Tensor, probs: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return rows by expert, how many each expert has, and the probability of each row."""
        counts, first = probs, self.exchange.plan.first_expert
        mine = torch.arange(first, first + len(counts), device=counts.device)
        rows, behind = hidden_states.split([self.shape[-1], self.num_experts], 1)
        of_row = behind.gather(1, mine.repeat_interleave(counts.long()).unsqueeze(1)).squeeze(1)
        return rows, counts, of_row.to(self.probs_dtype)

    def combine_preprocess(self, hidden_states: Tensor) -> Tensor:
        """Return rows as wide as those that came."""
        return F.pad(hidden_states, (0, self.num_experts))

    def token_combine(self, hidden_states: Tensor) -> Tensor:
        """Return the sum of each token's results."""
        return _Back.apply(hidden_states, self.exchange)

    def combine_postprocess(self, hidden_states: Tensor) -> Tensor:
        """Return it in the shape of the layer's input."""
        return hidden_states[:, : self.shape[-1]].reshape(self.shape)


class MoELayer(moe_layer.MoELayer):
    """Megatron-Core's; the dispatcher "alltoall" becomes `ExpertParallelDispatcher`, if it can."""

    def __init__(
        self, config: Any, submodules: Any = None, layer_number: int | None = None,
        pg_collection: Any = None,
    ) -> None:  # fmt: skip
        groups = get_default_pg_collection() if pg_collection is None else pg_collection
        super().__init__(config, submodules, layer_number, groups)
        left = (
            config.moe_token_dispatcher_type != "alltoall",  # noqa: S105
            config.moe_shared_expert_overlap,
            config.moe_pad_expert_input_to_capacity, config.moe_router_padding_for_quantization,
            groups.expt_tp.size() > 1, groups.ep.size() == 1,
        )  # fmt: skip
        if not any(left):
            self.token_dispatcher = ExpertParallelDispatcher(config, groups)


# --- in place of Megatron-Core's


def modules(config: Any) -> dict[type, type]:
    """Which module takes the place of which of Megatron-Core's."""
    table: dict[type, type] = {
        tensor_parallel.ColumnParallelLinear: ColumnParallelLinear,
        tensor_parallel.RowParallelLinear: RowParallelLinear,
        moe_layer.MoELayer: MoELayer,
        WrappedTorchNorm: Norm,
    }
    if config.context_parallel_size > 1:
        table[DotProductAttention] = ContextParallelAttention
    return table


def with_gpushmem(spec: Any, config: Any) -> Any:
    """The same spec with gpushmem's modules in the place of Megatron-Core's own.

    `spec` is what functions such as `get_gpt_decoder_block_spec` return for no Transformer Engine;
    it is not changed.
    """
    table = modules(config)

    def changed(part: Any) -> Any:
        if isinstance(part, type):
            return table.get(part, part)
        if isinstance(part, (list, tuple)):
            return type(part)(map(changed, part))
        if not dataclasses.is_dataclass(part):
            return part
        spec: Any = part
        names = [each.name for each in dataclasses.fields(spec)]
        if isinstance(spec, ModuleSpec):
            names = ["module", "submodules"]
        return dataclasses.replace(spec, **{each: changed(getattr(spec, each)) for each in names})

    return changed(spec)


class GpushmemSpecProvider(LocalSpecProvider):
    """Megatron-Core's provider for specs without Transformer Engine, with gpushmem's modules."""

    def __init__(self, config: Any) -> None:
        self.modules = modules(config)

    def column_parallel_linear(self) -> type:
        """Return the linear layer whose outputs are divided."""
        return ColumnParallelLinear

    def row_parallel_linear(self) -> type:
        """Return the linear layer whose inputs are divided."""
        return RowParallelLinear

    def layer_norm(self, rms_norm: bool = False, for_qk: bool = False) -> type:
        """Return the norm: Apex's if there is one."""
        norm = super().layer_norm(rms_norm, for_qk)
        return self.modules.get(norm, norm)

    def core_attention(self) -> type:
        """Return what attends: over the ranks, if the sequence is divided."""
        return self.modules.get(DotProductAttention, DotProductAttention)
