"""A mixture of experts in PyTorch's terms: the gradients of its kernel, and the layer without it.

Rows of (token, choice) pairs travel to the ranks of their experts and back by `all_to_all_single`.
Nothing of the forward pass is kept for the backward one but its arguments: the experts' inner
numbers are computed anew, where the tokens and their gradients arrive together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from gpushmem.errors import ArgumentError
from gpushmem.torch.plans import group_of, group_size

__all__ = ["gradients", "layer"]


class Activation(NamedTuple):
    """An activation, and its backward pass: from the gradient of its result, and its argument."""

    forward: Callable[[Tensor], Tensor]
    backward: Callable[[Tensor, Tensor], Tensor]


aten = torch.ops.aten
ACTIVATIONS = {
    "relu": Activation(F.relu, lambda grad, x: aten.threshold_backward(grad, x, 0)),
    "silu": Activation(F.silu, aten.silu_backward),
}


def activation_of(name: str) -> Activation:
    """The activation of this name."""
    if name not in ACTIVATIONS:
        raise ArgumentError(
            f"torch.ops.gpushmem.moe: there is no activation {name!r}; "
            f"there is {', '.join(ACTIVATIONS)}"
        )
    return ACTIVATIONS[name]


class Exchange:
    """Where the rows of pairs go, as all ranks have chosen; making one is collective.

    Pairs that name no expert stay. `order` are the pairs in the order in which they are sent,
    `tokens` theirs, `counts` how many rows each expert of this rank gets.
    """

    def __init__(self, experts: Tensor, num_experts: int, group_name: str) -> None:
        self.group, ranks = group_of(group_name), group_size(group_name)
        share = -(-num_experts // ranks)
        chosen = experts.reshape(-1).long()
        none = (chosen < 0) | (chosen >= num_experts)
        chosen = chosen.masked_fill(none, ranks * share)  # behind all others
        to = chosen.bincount(minlength=ranks * share + 1)[:-1].view(ranks, share)
        come = torch.empty_like(to)
        dist.all_to_all_single(come, to, group=self.group)
        self.sent, self.received = to.sum(1).tolist(), come.sum(1).tolist()
        self.counts: list[int] = come.sum(0).tolist()
        self.order = chosen.argsort(stable=True)[: sum(self.sent)]
        self.tokens = self.order // experts.shape[1]
        # From each rank come the rows for the first expert, then those for the second.
        local = torch.arange(share, device=to.device).repeat(ranks)
        self._by_expert = local.repeat_interleave(come.view(-1)).argsort(stable=True)
        self._pairs = chosen.numel()

    def there(self, rows: Tensor) -> Tensor:
        """Send rows in `order`; returned are those that came, by expert."""
        return self._moved(rows, self.sent, self.received)[self._by_expert]

    def back(self, rows: Tensor) -> Tensor:
        """Return rows by expert to where they came from: a row for each pair, or zeros."""
        inbox = torch.empty_like(rows)
        inbox[self._by_expert] = rows
        pairs = rows.new_zeros(self._pairs, rows.shape[1])
        pairs[self.order] = self._moved(inbox, self.received, self.sent)
        return pairs

    def _moved(self, rows: Tensor, to: list[int], come: list[int]) -> Tensor:
        out = rows.new_empty(sum(come), rows.shape[1])
        dist.all_to_all_single(out, rows.contiguous(), come, to, group=self.group)
        return out


def layer(
    x: Tensor, experts: Tensor, weights: Tensor, w1: Tensor, w2: Tensor, num_experts: int,
    activation: str, group_name: str,
) -> Tensor:  # fmt: skip
    """What `torch.ops.gpushmem.moe` returns, of any dtype and size."""
    act = activation_of(activation).forward
    exchange = Exchange(experts, num_experts, group_name)
    inbox = exchange.there(x[exchange.tokens])
    outbox = torch.empty_like(inbox)
    parts = inbox.split(exchange.counts), outbox.split(exchange.counts), w1, w2
    for rows, out, a, b in zip(*parts, strict=False):
        out[:] = act(rows @ a) @ b
    back = exchange.back(outbox).view(*experts.shape, x.shape[1])
    return (back * weights.unsqueeze(-1)).sum(1).to(x.dtype)


def gradients(
    grad: Tensor, x: Tensor, experts: Tensor, weights: Tensor, w1: Tensor, w2: Tensor,
    num_experts: int, activation: str, group_name: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of x, weights, w1 and w2; of these the sum over the tokens of all ranks.

    A pair takes along its token, the gradient of the token's result, and its weight; what comes
    back is the gradient of the token, and that of the weight.
    """
    act = activation_of(activation)
    exchange, hidden = Exchange(experts, num_experts, group_name), x.shape[1]
    weight = weights.reshape(-1, 1).to(x.dtype)[exchange.order]
    inbox = exchange.there(torch.cat([x[exchange.tokens], grad[exchange.tokens], weight], 1))
    outbox = inbox.new_empty(len(inbox), hidden + 1)
    to_w1, to_w2 = torch.empty_like(w1), torch.empty_like(w2)
    parts = inbox.split(exchange.counts), outbox.split(exchange.counts), w1, w2, to_w1, to_w2
    for each, out, a, b, to_a, to_b in zip(*parts, strict=False):
        rows, to_result, weight = each.split([hidden, hidden, 1], 1)
        inner = rows @ a
        active, to_active = act.forward(inner), to_result @ b.T
        to_inner = act.backward(weight * to_active, inner)
        torch.mm(to_inner, a.T, out=out[:, :hidden])
        out[:, hidden] = (to_active * active).sum(1)
        torch.mm(rows.T, to_inner, out=to_a)
        torch.mm((weight * active).T, to_result, out=to_b)
    back = exchange.back(outbox).view(*experts.shape, hidden + 1)
    return back[..., :hidden].sum(1), back[..., hidden].to(weights.dtype), to_w1, to_w2
