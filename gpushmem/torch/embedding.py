"""Sums of rows of a table that is cut among ranks as operators of PyTorch (see `operators`).

A rank's part of the table, and of its gradient, are the `rows` and `columns` of `EmbeddingBags`.
For gradients each rank gets the numbers of all ranks' bags, and of their gradients its columns; a
row's are added up by PyTorch, as those of `torch.nn.EmbeddingBag` are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gpushmem.errors import ArgumentError
from gpushmem.kernels import AllGather, AllToAll, EmbeddingBags
from gpushmem.kernels.parts import share_of
from gpushmem.memory.tensors import dtype_name
from gpushmem.torch.custom_operators import Operator
from gpushmem.torch.plans import plans_of

__all__ = ["OPERATORS"]

CUT = "int num_embeddings, int embedding_dim, int column_parts, str mode, str group_name"
MODES = "sum", "mean"
NARROW = torch.float16, torch.bfloat16  # whose gradients are added up in float32


def result_like(weight: Tensor, numbers: Tensor, rows: int, dim: int, *others: Any) -> list[Tensor]:
    """A tensor for the results."""
    if numbers.ndim != 2 or weight.ndim != 2 or others[1] not in MODES:
        raise ArgumentError(
            f"torch.ops.gpushmem.embedding_bag: weight has shape {tuple(weight.shape)}, input "
            f"{tuple(numbers.shape)}, mode is {others[1]!r}: they are (rows, columns), this rank's "
            f"part, and (bags, numbers), -1 for none; there is {' and '.join(MODES)}"
        )
    return [weight.new_empty(numbers.shape[0], dim)]


def plan_for(numbers: Tensor, dtype: Any, cut: Sequence[Any]) -> Any:
    """The plans of the group, and the one for such bags."""
    rows, dim, parts, mode, group = cut
    plans, (bags, most) = plans_of(group), numbers.shape
    return plans, plans.get(
        EmbeddingBags, rows=rows, dim=dim, bags=bags, most=most, dtype=dtype_name(dtype),
        column_parts=parts, mean=mode == "mean",
    )  # fmt: skip


def run(weight: Tensor, numbers: Tensor, *cut: Any, out: Sequence[Tensor]) -> None:
    plans, plan = plan_for(numbers, weight.dtype, cut)
    numbers = numbers.to(torch.int32).contiguous()
    plans.call(plan, weight.contiguous(), *plans.sendable(plan, numbers), out=out[0])


def of_my_columns(grad: Tensor, plans: Any, plan: EmbeddingBags) -> Tensor:
    """Of the gradients of all ranks' results those columns that this rank has: (bags, columns)."""
    n, parts, width = plans.n_pes, plan.column_parts, -(-plan.dim // plan.column_parts)
    sent = grad.new_zeros(n, plan.bags, width)
    for part in range(parts):
        first, last = share_of(plan.dim, parts, part)
        sent[part::parts, :, : last - first] = grad[:, first:last]
    come = torch.empty_like(sent)
    exchange = plans.get(AllToAll, size=plan.bags * width, dtype=dtype_name(grad.dtype))
    plans.call(exchange, *plans.sendable(exchange, sent.view(-1)), out=come.view(-1))
    return come.view(-1, width)[:, : len(plan.columns)]


def run_backward(
    grad: Tensor, numbers: Tensor, rows: int, columns: int, *cut: Any, out: Sequence[Tensor]
) -> None:
    """A row behind the last one stands for those of others."""
    plans, plan = plan_for(numbers, grad.dtype, cut)
    if plan.mean:
        grad = grad / (numbers >= 0).sum(1, keepdim=True).clamp(min=1)
    mine, numbers = of_my_columns(grad, plans, plan), numbers.to(torch.int32).contiguous()
    every = numbers.new_empty(plans.n_pes, *numbers.shape)
    gather = plans.get(AllGather, size=numbers.numel(), dtype="int32")
    plans.call(gather, *plans.sendable(gather, numbers.view(-1)), out=every.view(-1))
    local = every.view(-1).long() - plan.rows.start
    local.masked_fill_((local < 0) | (local >= rows), rows)
    bag_of = torch.arange(len(mine), device=local.device).repeat_interleave(plan.most)
    made = torch.ops.aten._embedding_bag_dense_backward(
        mine.float() if grad.dtype in NARROW else mine, local, bag_of, bag_of, bag_of, rows + 1,
        False, MODES.index("sum"), None, rows,
    )  # fmt: skip
    out[0].copy_(made[:rows])


def gradients(
    kept: Sequence[Tensor], others: Sequence[Any], grads: Sequence[Tensor]
) -> Sequence[Tensor | None]:
    numbers, like = kept
    rows, _, columns = like.shape
    made = torch.ops.gpushmem.embedding_bag_backward(grads[0], numbers, rows, columns, *others[2:])
    return made, *[None] * 6


OPERATORS = (
    Operator(
        f"embedding_bag(Tensor weight, Tensor input, {CUT}) -> Tensor",
        result_like,
        run,
        lambda given, results: (
            given[1], given[0].new_empty(given[0].shape[0], 0, given[0].shape[1])
        ),
        gradients,
    ),
    Operator(
        f"embedding_bag_backward(Tensor grad, Tensor input, int rows, int columns, {CUT}) "
        "-> Tensor",
        lambda grad, numbers, rows, columns, *others: [grad.new_empty(rows, columns)],
        run_backward,
    ),
)  # fmt: skip
