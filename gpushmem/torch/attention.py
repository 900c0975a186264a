"""Attention over the tokens of all ranks as operators of PyTorch (see `operators`).

Tensors are (tokens, heads, size), or (batch, tokens, heads, size): a batch is more heads. A rank's
tokens are those at `gpushmem.kernels.attention_parts.positions` of the whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gpushmem.errors import ArgumentError
from gpushmem.kernels import RingAttention, RingAttentionBackward, Ulysses
from gpushmem.memory.tensors import dtype_name
from gpushmem.torch.custom_operators import Operator
from gpushmem.torch.plans import group_size, plans_of

__all__ = ["OPERATORS"]


def by_tokens(x: Tensor) -> Tensor:
    """As (tokens, batch heads, size), contiguous."""
    return (x if x.ndim == 3 else x.transpose(0, 1).flatten(1, 2)).contiguous()


def set_by_tokens(out: Tensor, x: Tensor) -> None:
    """The reverse of `by_tokens`."""
    out.copy_(x if out.ndim == 3 else x.unflatten(1, (out.shape[0], -1)).transpose(0, 1))


# --- ring attention

MASK = "Tensor? cu_seqlens, bool causal, int? window, float? scale, bool zigzag, str group_name"


def results_like(q: Tensor, k: Tensor, v: Tensor, *others: Any) -> list[Tensor]:
    """Tensors for out and lse."""
    fits = k.shape == v.shape and k.shape[:-2] == q.shape[:-2] and k.shape[-1] == q.shape[-1]
    if q.ndim not in {3, 4} or not fits or q.shape[-2] % k.shape[-2]:
        raise ArgumentError(
            f"torch.ops.gpushmem.ring_attention: q, k and v have shapes "
            f"{tuple(q.shape)}, {tuple(k.shape)}, {tuple(v.shape)}: they are (tokens, heads, size) "
            "or (batch, tokens, heads, size), and heads of q a multiple of those of k and v"
        )
    lse = (*q.shape[:-3], q.shape[-2], q.shape[-3])
    return [q.new_empty(q.shape), q.new_empty(lse, dtype=torch.float32)]


def plan_for(kind: Any, mask: Sequence[Any], q: Tensor, k: Tensor) -> Any:
    """The plans of the group, and the one for tensors by tokens."""
    _, causal, window, scale, zigzag, group = mask
    plans, (tokens, heads, size) = plans_of(group), q.shape
    return plans, plans.get(
        kind, tokens=tokens, heads=heads, kv_heads=k.shape[1], head_dim=size,
        dtype=dtype_name(q.dtype), causal=causal, window=window, scale=scale, zigzag=zigzag,
    )  # fmt: skip


def run_ring(q: Tensor, k: Tensor, v: Tensor, *mask: Any, out: Sequence[Tensor]) -> None:
    q, k, v = (by_tokens(x) for x in (q, k, v))
    made, lse = torch.empty_like(q), out[1].view(-1, out[1].shape[-1])
    plans, plan = plan_for(RingAttention, mask, q, k)
    plans.call(plan, q, *plans.sendable(plan, k, v), out=made, lse=lse, cu_seqlens=mask[0])
    set_by_tokens(out[0], made)


def run_ring_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, result: Tensor, lse: Tensor, *mask: Any,
    out: Sequence[Tensor],
) -> None:  # fmt: skip
    grad, q, k, v, result = (by_tokens(x) for x in (grad, q, k, v, result))
    made = [torch.empty_like(x) for x in (q, k, v)]
    plans, plan = plan_for(RingAttentionBackward, mask, q, k)
    sums = lse.contiguous().view(-1, lse.shape[-1])
    grads = dict(zip(("dq", "dk", "dv"), made, strict=True))
    k, v = plans.sendable(plan, k, v)
    plans.call(plan, grad, q, k, v, result, sums, **grads, cu_seqlens=mask[0])
    for one, each in zip(out, made, strict=True):
        set_by_tokens(one, each)


def ring_gradients(
    kept: Sequence[Tensor], others: Sequence[Any], grads: Sequence[Tensor]
) -> Sequence[Tensor | None]:
    """lse, the second result, is for merging: it passes no gradients on."""
    *tensors, cu_seqlens = kept
    made = torch.ops.gpushmem.ring_attention_backward(grads[0], *tensors, cu_seqlens, *others[4:])
    return *made, *[None] * 6


# --- heads for tokens

ANGLES = "Tensor? cos, Tensor? sin, str group_name"


def split_like(qkv: Tensor, shared: int, *others: Any) -> list[Tensor]:
    """Tensors for q, k, v: all tokens, this rank's heads."""
    tokens, all_heads, size = qkv.shape
    ranks, heads = group_size(others[-1]), all_heads - 2 * shared
    if heads % ranks or shared % ranks:
        raise ArgumentError(
            f"torch.ops.gpushmem.ulysses_split: {heads} heads of queries and {shared} of keys "
            f"cannot be divided among {ranks} ranks"
        )
    return [
        qkv.new_empty(ranks * tokens, of // ranks, size) for of in (heads, shared, shared)
    ]  # fmt: skip


def joined_like(*args: Any) -> list[Tensor]:
    """A tensor for this rank's tokens, all heads of all parts."""
    parts, ranks = [x for x in args if isinstance(x, Tensor) and x.ndim == 3], group_size(args[-1])
    tokens, _, size = parts[0].shape
    heads = ranks * sum(part.shape[1] for part in parts)
    return [parts[0].new_empty(tokens // ranks, heads, size)]


def plan_of_parts(parts: Sequence[Tensor], group: str) -> Any:
    """The plans of a group, and the one for such parts."""
    plans, (tokens, _, size) = plans_of(group), parts[0].shape
    return plans, plans.get(
        Ulysses, tokens=tokens // plans.n_pes, heads=tuple(plans.n_pes * x.shape[1] for x in parts),
        head_dim=size, dtype=dtype_name(parts[0].dtype),
    )  # fmt: skip


def to_heads(x: Tensor, angles: Sequence[Any], out: Sequence[Tensor]) -> None:
    cos, sin, group = angles
    plans, plan = plan_of_parts(out, group)
    plans.call(plan.to_heads, *plans.sendable(plan, x.contiguous()), *out, cos=cos, sin=sin)


def to_tokens(parts: Sequence[Tensor], angles: Sequence[Any], out: Tensor) -> None:
    cos, sin, group = angles
    plans, plan = plan_of_parts(parts, group)
    sent = plans.sendable(plan, *(x.contiguous() for x in parts))
    plans.call(plan.to_tokens, *sent, out=out, cos=cos, sin=sin)


def run_split(qkv: Tensor, shared: int, *angles: Any, out: Sequence[Tensor]) -> None:
    to_heads(qkv, angles, out)


def run_split_backward(
    q: Tensor, k: Tensor, v: Tensor, *angles: Any, out: Sequence[Tensor]
) -> None:
    to_tokens((q, k, v), angles, out[0])


def run_join(x: Tensor, group: str, out: Sequence[Tensor]) -> None:
    to_tokens((x,), (None, None, group), out[0])


def run_join_backward(x: Tensor, group: str, out: Sequence[Tensor]) -> None:
    to_heads(x, (None, None, group), out)


def like_heads(x: Tensor, group: str) -> list[Tensor]:
    """A tensor for all tokens of this rank's heads."""
    tokens, heads, size = x.shape
    return [x.new_empty(tokens * group_size(group), heads // group_size(group), size)]


OPERATORS = (
    Operator(
        f"ring_attention(Tensor q, Tensor k, Tensor v, {MASK}) -> (Tensor, Tensor)",
        results_like,
        run_ring,
        lambda given, results: (*given[:3], *results, given[3]),
        ring_gradients,
    ),
    Operator(
        "ring_attention_backward(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor result, "
        f"Tensor lse, {MASK}) -> (Tensor, Tensor, Tensor)",
        lambda grad, *others: [x.new_empty(x.shape) for x in others[:3]],
        run_ring_backward,
    ),
    Operator(
        f"ulysses_split(Tensor qkv, int kv_heads, {ANGLES}) -> (Tensor, Tensor, Tensor)",
        split_like,
        run_split,
        lambda given, results: given[2:4],
        lambda kept, others, grads: (
            torch.ops.gpushmem.ulysses_split_backward(*grads, *kept, others[-1]), *[None] * 4,
        ),
    ),
    Operator(
        f"ulysses_split_backward(Tensor q, Tensor k, Tensor v, {ANGLES}) -> Tensor",
        joined_like,
        run_split_backward,
    ),
    Operator(
        "ulysses_join(Tensor x, str group_name) -> Tensor",
        joined_like,
        run_join,
        lambda given, results: (),
        lambda kept, others, grads: (
            torch.ops.gpushmem.ulysses_join_backward(grads[0], others[-1]), None,
        ),
    ),
    Operator(
        "ulysses_join_backward(Tensor x, str group_name) -> Tensor",
        like_heads,
        run_join_backward,
    ),
)  # fmt: skip
