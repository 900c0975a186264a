"""Layers whose weights are divided over a group of ranks, for models and checkpoints that exist.

Names, arguments and results are those of Megatron-Core (`tensor_parallel`): inputs are (sequence,
batch, hidden), or have any axes before the last; layers return their output and, with
`skip_bias_add`, the bias that was not added. With `sequence_parallel` activations between layers
are divided along the first axis. Weights are divided as there: a state dictionary of the plain
layer, `torch.nn.Linear`, `torch.nn.Embedding`, can be loaded, of which each rank takes its part.

Products that are followed or preceded by a collective are the operators of `torch.ops.gpushmem`,
forwards and backwards. See docs/torch.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from gpushmem.errors import ArgumentError
from gpushmem.torch.operators import gathered, scattered

__all__ = [
    "AllReduceRMSNorm", "ColumnParallelLinear", "MoELayer", "ParallelEmbeddingBag",
    "RowParallelLinear", "VocabParallelEmbedding",
]  # fmt: skip

ops = torch.ops.gpushmem
Init = Callable[[Tensor], Any]


class Divided(nn.Module):
    """What the layers have in common: a group, and parameters of which each rank has a part."""

    def __init__(self, group: Any) -> None:
        super().__init__()
        self.group = dist.group.WORLD if group is None else group
        self.rank, self.ranks = dist.get_rank(self.group), dist.get_world_size(self.group)
        self.name = self.group.group_name
        self.axes: dict[str, int] = {}  # along which a parameter is divided

    def part(self, what: str, size: int) -> int:
        """A rank's part of a size; raises `ArgumentError` if it cannot be divided evenly."""
        if size % self.ranks:
            raise ArgumentError(
                f"{type(self).__name__}: {what} is {size}, which cannot be divided among "
                f"{self.ranks} ranks"
            )
        return size // self.ranks

    def parameter(
        self, name: str, shape: tuple[int, ...], axis: int | None, init: Init, **kind: Any
    ) -> None:
        """Make a parameter: this rank's part along `axis` of one of this shape, set by `init`."""
        whole = torch.empty(shape, **kind)
        init(whole)
        if axis is not None:
            self.axes[name] = axis
            whole = self.mine(whole, axis)
        setattr(self, name, nn.Parameter(whole))

    def mine(self, whole: Tensor, axis: int) -> Tensor:
        """The part of a tensor that is this rank's."""
        return whole.chunk(self.ranks, axis)[self.rank].clone()

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *others: Any) -> None:
        """Take this rank's part of parameters that are whole."""
        for name, axis in self.axes.items():
            given, own = state.get(prefix + name), getattr(self, name)
            if given is not None and given.shape[axis] == own.shape[axis] * self.ranks:
                state = {**state, prefix + name: self.mine(given, axis)}
        super()._load_from_state_dict(state, prefix, *others)


def _uniform(fan_in: int) -> Init:
    """How `torch.nn.Linear` sets its weight and bias."""
    return lambda whole: nn.init.uniform_(whole, -(fan_in**-0.5), fan_in**-0.5)


# --- moves between ranks, with gradients


class Column(torch.autograd.Function):
    """x @ weight.T of an x that all ranks have, of whose gradient each has a summand."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, group: str) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.group = group
        return x @ weight.T

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        (grad,) = grads
        to_x = ops.gemm_all_reduce(grad, weight, ctx.group) if ctx.needs_input_grad[0] else None
        return to_x, grad.reshape(-1, grad.shape[-1]).T @ x.reshape(-1, x.shape[-1]), None


class _Gather(torch.autograd.Function):
    """All ranks' parts along the last axis; each rank's gradient is its part."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: Divided) -> Tensor:
        ctx.layer = layer
        parts = [torch.empty_like(x) for _ in range(layer.ranks)]
        dist.all_gather(parts, x.contiguous(), group=layer.group)
        return torch.cat(parts, -1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return ctx.layer.mine(grads[0], -1), None


class _Scatter(torch.autograd.Function):
    """A part for each rank along the last axis; the gradient is all ranks'."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: Divided) -> Tensor:
        ctx.layer = layer
        return layer.mine(x, -1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return _Gather.apply(grads[0], ctx.layer), None


class _SumScatter(torch.autograd.Function):
    """The sum over the ranks, of which each gets its part along the first axis."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: Divided) -> Tensor:
        ctx.layer = layer
        layer.part("a first axis", x.shape[0])
        return scattered(x, layer.name)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return gathered(grads[0], ctx.layer.name), None


# --- layers


class _Linear(Divided):
    """A linear layer whose weight (output_size, input_size) is divided along an axis."""

    axis: int

    def __init__(
        self, input_size: int, output_size: int, *, bias: bool = True, skip_bias_add: bool = False,
        sequence_parallel: bool = False, config: Any = None, init_method: Init | None = None,
        tp_group: Any = None, device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(tp_group)
        self.part(*(("output_size", output_size), ("input_size", input_size))[self.axis])
        self.skip_bias_add = skip_bias_add
        self.sequence_parallel = sequence_parallel or getattr(config, "sequence_parallel", False)
        kind, plain = {"device": device, "dtype": dtype}, _uniform(input_size)
        shape, init = (output_size, input_size), init_method or plain
        self.parameter("weight", shape, self.axis, init, **kind)
        if bias:
            init = nn.init.zeros_ if init_method else plain
            self.parameter("bias", shape[:1], None if self.axis else 0, init, **kind)
        else:
            self.register_parameter("bias", None)

    def with_bias(self, out: Tensor) -> tuple[Tensor, Tensor | None]:
        """The output with the bias, or both."""
        if self.bias is None or self.skip_bias_add:
            return out, self.bias
        return out + self.bias, None


class ColumnParallelLinear(_Linear):
    """A linear layer whose outputs are divided over the ranks of `tp_group`.

    The weight is (output_size / ranks, input_size). The input is the same on all ranks, or with
    `sequence_parallel` this rank's part of the sequence. The output is this rank's part along the
    last axis, for the whole sequence; with `gather_output` all of it.
    """

    axis = 0

    def __init__(
        self, input_size: int, output_size: int, *, gather_output: bool = False, **options: Any
    ) -> None:
        super().__init__(input_size, output_size, **options)
        self.gather_output = gather_output

    def forward(self, input_: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the output, and the bias if it was not added."""
        if self.sequence_parallel:
            out = ops.all_gather_gemm(input_, self.weight.T, self.name)
        else:
            out = Column.apply(input_, self.weight, self.name)
        out, bias = self.with_bias(out)
        return _Gather.apply(out, self) if self.gather_output else out, bias


class RowParallelLinear(_Linear):
    """A linear layer whose inputs are divided over the ranks of `tp_group`.

    The weight is (output_size, input_size / ranks), the bias whole. The input is this rank's part
    along the last axis; with `input_is_parallel=False` it is whole. The output is the same on all
    ranks, or with `sequence_parallel` this rank's part of the sequence.
    """

    axis = 1

    def __init__(
        self, input_size: int, output_size: int, *, input_is_parallel: bool = True, **options: Any
    ) -> None:
        super().__init__(input_size, output_size, **options)
        self.input_is_parallel = input_is_parallel

    def forward(self, input_: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the output, and the bias if it was not added."""
        if not self.input_is_parallel:
            input_ = _Scatter.apply(input_, self)
        operation = ops.gemm_reduce_scatter if self.sequence_parallel else ops.gemm_all_reduce
        return self.with_bias(operation(input_, self.weight.T, self.name))


class VocabParallelEmbedding(Divided):
    """An embedding whose vocabulary is divided over the ranks of `tp_group`.

    The weight is (num_embeddings / ranks, embedding_dim). The output is the same on all ranks, or
    with `reduce_scatter_embeddings` this rank's part of the first axis.
    """

    def __init__(
        self, num_embeddings: int, embedding_dim: int, *, init_method: Init = nn.init.normal_,
        reduce_scatter_embeddings: bool = False, config: Any = None, tp_group: Any = None,
        device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(tp_group)
        self.first = self.rank * self.part("num_embeddings", num_embeddings)
        self.reduce_scatter_embeddings = reduce_scatter_embeddings
        kind = {"device": device, "dtype": dtype}
        self.parameter("weight", (num_embeddings, embedding_dim), 0, init_method, **kind)

    def forward(self, input_: Tensor) -> Tensor:
        """Return the rows of the weight that the integers in `input_` name."""
        index = input_ - self.first
        others = (index < 0) | (index >= self.weight.shape[0])
        mine = F.embedding(index.masked_fill(others, 0), self.weight)
        mine = mine.masked_fill(others.unsqueeze(-1), 0)
        if self.reduce_scatter_embeddings:
            return _SumScatter.apply(mine, self)
        return ops.all_reduce(mine, self.name)


class ParallelEmbeddingBag(Divided):
    """A `torch.nn.EmbeddingBag` whose rows are divided over the ranks of `group`.

    The weight is (num_embeddings / ranks, embedding_dim); its gradient is the sum over the bags of
    all ranks, as many on each. `mode` is "sum" or "mean".
    """

    def __init__(
        self, num_embeddings: int, embedding_dim: int, *, mode: str = "mean",
        init_method: Init = nn.init.normal_, group: Any = None, device: Any = None,
        dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(group)
        self.part("num_embeddings", num_embeddings)
        self.cut = num_embeddings, embedding_dim, 1, mode, self.name
        kind = {"device": device, "dtype": dtype}
        self.parameter("weight", (num_embeddings, embedding_dim), 0, init_method, **kind)

    def forward(self, input_: Tensor) -> Tensor:
        """Return sums, or means, of the rows that this rank's bags (bags, numbers) name.

        -1 stands for none.
        """
        bags: Tensor = ops.embedding_bag(self.weight, input_, *self.cut)
        return bags


class AllReduceRMSNorm(nn.Module):
    """RMSNorm of a residual and a sum over the ranks, as follows a layer without its all-reduce.

    `norm(x, residual)` with x, this rank's summand, returns the normalised tensor and the new
    residual. The weight is whole, on all ranks.
    """

    def __init__(
        self, hidden_size: int, eps: float = 1e-6, *, tp_group: Any = None, device: Any = None,
        dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.name = (dist.group.WORLD if tp_group is None else tp_group).group_name
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(hidden_size, device=device, dtype=dtype))

    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """Return the normalised tensor, and residual + the sum of all x."""
        return ops.all_reduce_rms_norm(x, residual, self.weight, self.eps, self.name)


class MoELayer(Divided):
    """A mixture of experts, whole experts on each rank of `ep_group`; tokens differ on the ranks.

    Each token goes to the `top_k` experts that the router finds best, with its probabilities as
    weights, which are made to add up to 1; an expert is silu(x @ w1) @ w2, or relu. `w1` is
    (experts / ranks, hidden, ffn_hidden), `w2` (experts / ranks, ffn_hidden, hidden), the router
    whole. All of it is one kernel, `torch.ops.gpushmem.moe`, where that has the dtype and there is
    memory for it; its gradients, and other layers, exchange tokens by `all_to_all_single`. No token
    is dropped. The sum of the router's gradients over the ranks is left to whoever averages
    gradients.
    """

    def __init__(
        self, hidden_size: int, ffn_hidden_size: int, num_experts: int, top_k: int = 2, *,
        activation: str = "silu", init_method: Init | None = None, ep_group: Any = None,
        device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(ep_group)
        self.local = self.part("num_experts", num_experts)
        self.num_experts, self.top_k, self.activation = num_experts, top_k, activation
        self.router = nn.Linear(hidden_size, num_experts, bias=False, device=device, dtype=dtype)
        kind, wide = {"device": device, "dtype": dtype}, (hidden_size, ffn_hidden_size)
        init = init_method or _uniform(hidden_size)
        self.parameter("w1", (num_experts, *wide), 0, init, **kind)
        init = init_method or _uniform(ffn_hidden_size)
        self.parameter("w2", (num_experts, *wide[::-1]), 0, init, **kind)

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer of the tokens along the last axis of `x`."""
        rows = x.reshape(-1, x.shape[-1])
        weights, experts = self.router(rows).softmax(-1).topk(self.top_k, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        given = rows, experts, weights, self.w1, self.w2
        sizes = self.num_experts, self._most_tokens(len(rows))
        return ops.moe(*given, *sizes, self.activation, self.name).view_as(x)

    def _most_tokens(self, tokens: int) -> int:
        """The most tokens that a rank has, or some more: few numbers, for which plans are made."""
        most = torch.tensor(tokens)
        dist.all_reduce(most, dist.ReduceOp.MAX, group=self.group)
        return 1 << max(0, int(most) - 1).bit_length()
