"""Exchange without known sizes as operators of PyTorch: rows, and sorting (see `operators`).

How many rows come is known on the device alone: results have room for the most, zeros behind what
came, and beside them how many came from each rank. Nothing waits for that on the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gpushmem.kernels import AllGatherV, AllToAllV, SampleSort
from gpushmem.kernels.sample_sort import capacity_of
from gpushmem.memory.tensors import dtype_name
from gpushmem.torch.custom_operators import Operator
from gpushmem.torch.plans import group_size, plans_of

__all__ = ["OPERATORS"]


def rows_like(x: Tensor, rows: int, group: str) -> list[Tensor]:
    """Tensors for so many rows, and for how many come from each rank."""
    return [
        x.new_empty((rows, *x.shape[1:])),
        x.new_empty(group_size(group), dtype=torch.int64),
    ]


def exchange(
    kind: type[Any], x: Tensor, counts: Sequence[Tensor], most: int, group: str,
    out: Sequence[Tensor],
) -> None:  # fmt: skip
    """Set `out` to rows, and how many came; `counts` is what the plan takes, if anything."""
    plans, row = plans_of(group), tuple(x.shape[1:])
    plan = plans.get(kind, rows=most, row=row, dtype=dtype_name(x.dtype))
    out[0].zero_()
    counts = [each.to(torch.int64).contiguous() for each in counts]
    plans.call(plan, *plans.sendable(plan, x.contiguous()), *counts, out=out[0], received=out[1])


def run_to_all(x: Tensor, counts: Tensor, most: int, group: str, out: Sequence[Tensor]) -> None:
    exchange(AllToAllV, x, [counts], most, group, out)


def run_to_all_backward(
    grad: Tensor, counts: Tensor, rows: int, most: int, group: str, out: Sequence[Tensor]
) -> None:
    exchange(AllToAllV, grad, [counts], most, group, [out[0], torch.empty_like(counts)])


def to_all_backward(
    kept: Sequence[Tensor], others: Sequence[Any], grads: Sequence[Tensor]
) -> Sequence[Tensor | None]:
    received, like_x = kept
    to_x = torch.ops.gpushmem.all_to_all_v_backward(grads[0], received, len(like_x), *others[2:])
    return to_x, None, None, None


def run_gather(x: Tensor, most: int, group: str, out: Sequence[Tensor]) -> None:
    exchange(AllGatherV, x, [], most, group, out)


def gather_backward(
    kept: Sequence[Tensor], others: Sequence[Any], grads: Sequence[Tensor]
) -> Sequence[Tensor | None]:
    """Give this rank its rows, zeros for those that had no room."""
    (received, like_x), (grad, _) = kept, grads
    first = received[: plans_of(others[-1]).team.my_pe].sum().clamp(max=len(grad))
    mine = first + torch.arange(len(like_x), device=grad.device)
    more = grad.new_zeros((len(like_x), *grad.shape[1:]))
    return torch.cat([grad, more])[mine], None, None


def sorted_like(keys: Tensor, values: Tensor | None, most: int, group: str) -> list[Tensor]:
    """Tensors for what a rank gets of keys and values, and for how many come from each rank."""
    n = group_size(group)
    room = capacity_of(most, n)
    beside = keys.new_empty(0) if values is None else values.new_empty(room)
    return [keys.new_empty(room), beside, keys.new_empty(n, dtype=torch.int64)]


def run_sort(
    keys: Tensor, values: Tensor | None, most: int, group: str, out: Sequence[Tensor]
) -> None:
    plans, beside = plans_of(group), {}
    if values is not None:
        beside = {"values": values.contiguous(), "out_values": out[1].zero_()}
    plan = plans.get(
        SampleSort, size=most, dtype=dtype_name(keys.dtype),
        values=None if values is None else dtype_name(values.dtype),
    )  # fmt: skip
    plans.call(plan, keys.contiguous(), out=out[0].zero_(), received=out[2], **beside)


KEPT = lambda given, results: (results[1], given[0].new_empty((len(given[0]), 0)))  # noqa: E731
OPERATORS = (
    Operator(
        "all_to_all_v(Tensor x, Tensor input_split_sizes, int max_rows, str group_name) "
        "-> (Tensor, Tensor)",
        lambda x, counts, most, group: rows_like(x, most, group),
        run_to_all,
        KEPT,
        to_all_backward,
    ),
    Operator(
        "all_to_all_v_backward(Tensor grad, Tensor counts, int rows, int max_rows, "
        "str group_name) -> Tensor",
        lambda grad, counts, rows, most, group: rows_like(grad, rows, group)[:1],
        run_to_all_backward,
    ),
    Operator(
        "all_gather_v(Tensor x, int max_rows, str group_name) -> (Tensor, Tensor)",
        rows_like,
        run_gather,
        KEPT,
        gather_backward,
    ),
    Operator(
        "sample_sort(Tensor keys, Tensor? values, int max_keys, str group_name) "
        "-> (Tensor, Tensor, Tensor)",
        sorted_like,
        run_sort,
    ),
)
