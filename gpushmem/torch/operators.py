"""Plans as operators of PyTorch: `torch.ops.gpushmem`, registered when this module is imported.

    all_reduce(x, group)                                    the sum of all x
    all_reduce_rms_norm(x, residual, weight, eps, group)    RMSNorm(r) * weight and r, where
                                                            r = residual + the sum of all x
    all_gather_gemm(a, b, group)                            all rows of a, times b
    all_gather_gemm_gathered(a, b, group)                   the same, and all rows of a
    gemm_all_reduce(a, b, group)                            the sum of all a @ b
    gemm_reduce_scatter(a, b, group)                        this rank's rows of that sum
    moe(x, experts, weights, w1, w2, num_experts, max_tokens, activation, group)
                                                            a layer with a mixture of experts
    all_to_all_v(x, input_split_sizes, max_rows, group)     rows that ranks have for this one, and
                                                            how many came from each
    all_gather_v(x, max_rows, group)                        all ranks' rows, and the same
    sample_sort(keys, values, max_keys, group)              this rank's part of all keys in order,
                                                            their values, and the same; no gradients
    halo_exchange(x, width, dim, periodic, group)           x between its neighbours' edges
    halo_accumulate(x, width, dim, periodic, group)         its transpose: what was added to copies
                                                            of edges, added to these
    ring_attention(q, k, v, cu_seqlens, causal, window, scale, zigzag, group)
                                                            attention to all ranks' tokens, and lse
    ulysses_split(qkv, kv_heads, cos, sin, group)           q, k, v: my heads of all ranks' tokens
    ulysses_join(x, group)                                  all heads of my tokens
    flash_decode(q, cache, tables, lengths, scale, apart, split_heads, group)
                                                            attention of a few queries to keys that
                                                            are cut among the ranks; no gradients
    embedding_bag(weight, input, num_embeddings, embedding_dim, column_parts, mode, group)
                                                            sums of rows of a table that is cut

`group` is the name of a process group (`group.group_name`), or "" for all PEs. Each operator has an
out form, `torch.ops.gpushmem.all_reduce.out(..., out=)`. Factors `a` may have several axes before
the last one; rows are gathered and scattered along the first. A call is collective over the group:
its ranks make the same calls with the same sizes in the same order. On CPUs it is done when it
returns, on GPUs it is on PyTorch's current stream.
dtypes are those of the plan; see docs/kernels.md. To `moe` ranks may bring different numbers of
tokens, up to `max_tokens`; where the kernel has no such dtype, or too little symmetric memory, they
are exchanged by `all_to_all_single`. `all_to_all_v` is that function with sizes on the device, and
only those of what is sent: the first rows of its result are what came, in the order of the ranks,
the others up to `max_rows`, the same on all ranks, are zeros. `halo_exchange` takes parts of
different lengths along `dim`.

Gradients: what all ranks get alike is one tensor of which each has a copy, so its gradient, too, is
the same on all of them. These are the rules of Megatron-LM and of DTensor. Gradients of `w1` and
`w2`, the experts of this rank, are sums over the tokens of all ranks (`moe_backward`, which has to
be called by all of them); those of `x` and `weights` are of this rank's tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gpushmem.errors import ArgumentError
from gpushmem.kernels import (
    AllGatherGemm,
    AllReduce,
    AllReduceRMSNorm,
    FlashDecode,
    GemmAllReduce,
    GemmReduceScatter,
    HaloExchange,
    MoE,
)
from gpushmem.memory.tensors import dtype_name
from gpushmem.torch import attention, direct, embedding, exchange
from gpushmem.torch import experts as by_all_to_all
from gpushmem.torch.custom_operators import Operator, register
from gpushmem.torch.plans import Plans, group_size, name_of, plans_of, reserve

__all__ = ["OPERATORS", "Operator", "gathered", "reserve", "scattered"]

# --- shapes and layouts


def rows_of(a: Tensor) -> Tensor:
    """A factor with its rows along one axis, without gaps."""
    return a.reshape(-1, a.shape[-1]).contiguous()


def factor(b: Tensor) -> Tensor:
    """A second factor in a layout that kernels take: contiguous, or the transpose of such one."""
    return b if b.is_contiguous() or b.T.is_contiguous() else b.contiguous()


def check_factors(name: str, a: Tensor, b: Tensor) -> None:
    """Raise `ArgumentError` if a @ b cannot be."""
    if a.ndim < 2 or b.ndim != 2 or a.shape[-1] != b.shape[0] or a.dtype != b.dtype:
        raise ArgumentError(
            f"torch.ops.gpushmem.{name}: a has shape {tuple(a.shape)} and {a.dtype}, b "
            f"{tuple(b.shape)} and {b.dtype}: a @ b must be possible, and b have two axes"
        )


def product_like(name: str, a: Tensor, b: Tensor, times: int = 1, parts: int = 1) -> Tensor:
    """A tensor for `a @ b` with so many times the rows, divided into so many parts."""
    check_factors(name, a, b)
    rows = a.shape[0] * times
    if rows % parts:
        raise ArgumentError(
            f"torch.ops.gpushmem.{name}: a first axis of {a.shape[0]} cannot be divided among "
            f"{parts} ranks"
        )
    return a.new_empty((rows // parts, *a.shape[1:-1], b.shape[1]))


def sizes(a: Tensor, b: Tensor, parts: int = 1) -> dict[str, Any]:
    """What plans for products are made for."""
    m, k = rows_of(a).shape
    return {"m": m // parts, "n": b.shape[1], "k": k, "dtype": dtype_name(a.dtype)}


def flat(out: Tensor) -> Tensor:
    """A result with its rows along one axis, the same memory."""
    return out.view(-1, out.shape[-1])


# --- all-reduce


def run_all_reduce(x: Tensor, group: str, out: Sequence[Tensor]) -> None:
    out[0].copy_(x)
    plans, total = plans_of(group), out[0].view(-1)
    plan = plans.get(AllReduce, size=x.numel(), dtype=dtype_name(x.dtype))
    (made,) = plans.sendable(plan, total)
    plans.call(plan, made)
    if made is not total:
        total.copy_(made)


def run_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, group: str, out: Sequence[Tensor]
) -> None:
    normed, total = out
    total.copy_(residual)
    plans, scratch = plans_of(group), flat(x.clone(memory_format=torch.contiguous_format))
    tokens, hidden = scratch.shape
    plan = plans.get(
        AllReduceRMSNorm, tokens=tokens, hidden=hidden, dtype=dtype_name(x.dtype), eps=eps
    )
    plans.call(
        plan, *plans.sendable(plan, scratch), flat(total), weight.contiguous(), out=flat(normed)
    )


def norm_backward(
    kept: Sequence[Tensor], others: Sequence[Any], grads: Sequence[Tensor]
) -> Sequence[Tensor | None]:
    total, weight = kept
    _, _, _, eps, _ = others
    of_out, of_total = grads
    wide = total.float() if total.dtype in (torch.float16, torch.bfloat16) else total
    factor = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    normed = wide * factor
    of_normed = of_out * weight
    to_total = factor * (of_normed - normed * (of_normed * normed).mean(-1, keepdim=True))
    to_total = to_total.to(total.dtype) + of_total
    of_weight = (of_out * normed).reshape(-1, weight.shape[0]).sum(0).to(weight.dtype)
    return to_total, to_total, of_weight, None, None


# --- products


def run_gather(a: Tensor, b: Tensor, group: str, out: Sequence[Tensor]) -> None:
    plans = plans_of(group)
    plan = plans.get(AllGatherGemm, **sizes(a, b))
    whole = {"gathered": flat(out[1])} if len(out) > 1 else {}
    plans.call(plan, *plans.sendable(plan, rows_of(a)), factor(b), out=flat(out[0]), **whole)


def run_gemm_all_reduce(a: Tensor, b: Tensor, group: str, out: Sequence[Tensor]) -> None:
    plans = plans_of(group)
    plans.call(plans.get(GemmAllReduce, **sizes(a, b)), rows_of(a), factor(b), out=flat(out[0]))


def run_gemm_scatter(a: Tensor, b: Tensor, group: str, out: Sequence[Tensor]) -> None:
    plans = plans_of(group)
    plan = plans.get(GemmReduceScatter, **sizes(a, b, plans.n_pes))
    plans.call(plan, rows_of(a), factor(b), out=flat(out[0]))


def product(a: Tensor, b: Tensor) -> Tensor:
    """The gradient of a second factor: from all rows, `a` transposed times `b`."""
    return a.reshape(-1, a.shape[-1]).T @ b.reshape(-1, b.shape[-1])


def gathered(a: Tensor, group: str) -> Tensor:
    """All ranks' rows, in a form that is seen through by `torch.compile`."""
    ops, size = torch.ops._c10d_functional, group_size(group)
    return ops.wait_tensor(ops.all_gather_into_tensor(a.contiguous(), size, name_of(group)))


def scattered(x: Tensor, group: str) -> Tensor:
    """The rows of the sum of all that are this rank's, in such a form."""
    ops, size = torch.ops._c10d_functional, group_size(group)
    made = ops.reduce_scatter_tensor(x.contiguous(), "sum", size, name_of(group))
    return ops.wait_tensor(made)


def gather_backward(
    kept: Sequence[Tensor], others: Sequence[Any], grads: Sequence[Tensor]
) -> Sequence[Tensor | None]:
    """Of both forms: the one that returns all rows has kept them."""
    a, b = kept
    group = others[-1]
    to_a = torch.ops.gpushmem.gemm_reduce_scatter(grads[0], b.T, group)
    if len(grads) == 1:
        return to_a, product(gathered(a, group), grads[0]), None
    return to_a + scattered(grads[1], group), product(a, grads[0]), None


def all_reduce_backward(
    kept: Sequence[Tensor], others: Sequence[Any], grads: Sequence[Tensor]
) -> Sequence[Tensor | None]:
    a, b = kept
    return grads[0] @ b.T, product(a, grads[0]), None


def scatter_backward(
    kept: Sequence[Tensor], others: Sequence[Any], grads: Sequence[Tensor]
) -> Sequence[Tensor | None]:
    a, b = kept
    to_a, whole = torch.ops.gpushmem.all_gather_gemm_gathered(grads[0], b.T, others[-1])
    return to_a, product(a, whole), None


# --- experts

# dtypes of the kernel, and those in which it takes weights.
WEIGHTS = {
    torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.float32: torch.float32,
    torch.float64: torch.float64,
}  # fmt: skip


def run_moe(
    x: Tensor, experts: Tensor, weights: Tensor, w1: Tensor, w2: Tensor, num_experts: int,
    max_tokens: int, activation: str, group: str, out: Sequence[Tensor],
) -> None:  # fmt: skip
    plan = None
    if x.dtype in WEIGHTS:
        plans = plans_of(group)
        plan = plans.get_if_it_fits(
            MoE, tokens=max_tokens, hidden=x.shape[1], inner=w1.shape[2], experts=num_experts,
            top_k=experts.shape[1], dtype=dtype_name(x.dtype), activation=activation,
        )  # fmt: skip
    if plan is None:
        out[0].copy_(
            by_all_to_all.layer(x, experts, weights, w1, w2, num_experts, activation, group)
        )
        return
    given = x, experts.to(torch.int32), weights.to(WEIGHTS[x.dtype]), w1, w2
    x, *others = (each.contiguous() for each in given)
    plans.call(plan, *plans.sendable(plan, x), *others, out=out[0])


def moe_backward(
    kept: Sequence[Tensor], others: Sequence[Any], grads: Sequence[Tensor]
) -> Sequence[Tensor | None]:
    num_experts, _, *rest = others[5:]
    to_x, to_weights, to_w1, to_w2 = torch.ops.gpushmem.moe_backward(
        grads[0], *kept, num_experts, *rest
    )
    return to_x, None, to_weights, to_w1, to_w2, None, None, None, None


def run_moe_backward(*args: Any, out: Sequence[Tensor]) -> None:
    for one, made in zip(out, by_all_to_all.gradients(*args), strict=True):
        one.copy_(made)


# --- halos


def halo_like(name: str, x: Tensor, width: int, dim: int, more: int) -> Tensor:
    """A tensor for x with so many more rows along `dim`."""
    rows = min(x.size(dim), x.size(dim) + more)
    if width < 1 or rows < width:
        raise ArgumentError(
            f"torch.ops.gpushmem.{name}: a part has {rows} rows along dim {dim}, a halo {width}: "
            "halos have 1 row or more, and parts as many as a halo"
        )
    shape = list(x.shape)
    shape[dim] += more
    return x.new_empty(shape)


def halo_plan(x: Tensor, width: int, dim: int, periodic: bool, plans: Plans) -> HaloExchange:
    """The plan for parts of any length along `dim`."""
    axis, shape = dim % x.ndim, list(x.shape)
    shape[axis] = width
    return plans.get(
        HaloExchange, shape=tuple(shape), width=width, dtype=dtype_name(x.dtype), axis=axis,
        periodic=periodic,
    )  # fmt: skip


def run_halo(
    x: Tensor, width: int, dim: int, periodic: bool, group: str, out: Sequence[Tensor]
) -> None:
    plans = plans_of(group)
    plans.call(halo_plan(x, width, dim, periodic, plans), x.contiguous(), out=out[0])


def run_halo_accumulate(
    x: Tensor, width: int, dim: int, periodic: bool, group: str, out: Sequence[Tensor]
) -> None:
    plans = plans_of(group)
    plan = halo_plan(x, width, dim, periodic, plans)
    plans.call(plan.accumulate, x.contiguous(), out=out[0])


# --- decoding


def decoded_like(q: Tensor, cache: Tensor, split_heads: bool, group: str) -> Tensor:
    """A tensor for the results: of all heads, or of a rank's."""
    parts, kv_heads = group_size(group) if split_heads else 1, cache.shape[-2]
    if kv_heads % parts:
        raise ArgumentError(
            f"torch.ops.gpushmem.flash_decode: {kv_heads} heads of keys cannot be divided among "
            f"{parts} ranks"
        )
    return q.new_empty((*q.shape[:2], q.shape[2] // parts, q.shape[3]))


def run_decode(
    q: Tensor, cache: Tensor, tables: Tensor, lengths: Tensor, scale: float, apart: bool,
    split_heads: bool, group: str, out: Sequence[Tensor],
) -> None:  # fmt: skip
    plans = plans_of(group)
    pages, (page_size, kv_heads) = cache.shape[1 if apart else 0], cache.shape[2:4]
    plan = plans.get(
        FlashDecode, batch=q.shape[0], queries=q.shape[1], heads=q.shape[2], kv_heads=kv_heads,
        head_dim=q.shape[3], pages=pages, page_size=page_size, most_pages=tables.shape[1],
        dtype=dtype_name(q.dtype), apart=apart, split_heads=split_heads, scale=scale,
    )  # fmt: skip
    tables, lengths = (x.to(torch.int32).contiguous() for x in (tables, lengths))
    plans.call(plan, q.contiguous(), cache, tables, lengths, out=out[0])


HALO = "(Tensor x, int width, int dim, bool periodic, str group_name) -> Tensor"
PRODUCT = "(Tensor a, Tensor b, str group_name)"
FACTORS = lambda given, results: given[:2]  # noqa: E731
OPERATORS = (
    Operator(
        "all_reduce(Tensor x, str group_name) -> Tensor",
        lambda x, group: [torch.empty_like(x, memory_format=torch.contiguous_format)],
        run_all_reduce,
        lambda given, results: (),
        lambda kept, others, grads: (grads[0], None),
    ),
    Operator(
        "all_reduce_rms_norm(Tensor x, Tensor residual, Tensor weight, float eps, str group_name) "
        "-> (Tensor, Tensor)",
        lambda x, residual, *others: [x.new_empty(x.shape), x.new_empty(x.shape)],
        run_norm,
        lambda given, results: (results[1], given[2]),
        norm_backward,
    ),
    Operator(
        f"all_gather_gemm{PRODUCT} -> Tensor",
        lambda a, b, group: [product_like("all_gather_gemm", a, b, group_size(group))],
        run_gather,
        FACTORS,
        gather_backward,
    ),
    Operator(
        f"all_gather_gemm_gathered{PRODUCT} -> (Tensor, Tensor)",
        lambda a, b, group: [
            product_like("all_gather_gemm_gathered", a, b, group_size(group)),
            a.new_empty((a.shape[0] * group_size(group), *a.shape[1:])),
        ],
        run_gather,
        lambda given, results: (results[1], given[1]),
        gather_backward,
    ),
    Operator(
        f"gemm_all_reduce{PRODUCT} -> Tensor",
        lambda a, b, group: [product_like("gemm_all_reduce", a, b)],
        run_gemm_all_reduce,
        FACTORS,
        all_reduce_backward,
    ),
    Operator(
        f"gemm_reduce_scatter{PRODUCT} -> Tensor",
        lambda a, b, group: [
            product_like("gemm_reduce_scatter", a, b, parts=group_size(group))
        ],
        run_gemm_scatter,
        FACTORS,
        scatter_backward,
    ),
    Operator(
        "moe(Tensor x, Tensor experts, Tensor weights, Tensor w1, Tensor w2, int num_experts, "
        "int max_tokens, str activation, str group_name) -> Tensor",
        lambda x, *others: [x.new_empty(x.shape)],
        run_moe,
        lambda given, results: given[:5],
        moe_backward,
    ),
    Operator(
        "moe_backward(Tensor grad, Tensor x, Tensor experts, Tensor weights, Tensor w1, Tensor w2, "
        "int num_experts, str activation, str group_name) -> (Tensor, Tensor, Tensor, Tensor)",
        lambda grad, x, experts, *others: [t.new_empty(t.shape) for t in (x, *others[:3])],
        run_moe_backward,
    ),
    Operator(
        f"halo_exchange{HALO}",
        lambda x, width, dim, *_: [halo_like("halo_exchange", x, width, dim, 2 * width)],
        run_halo,
        lambda given, results: (),
        lambda kept, others, grads: (
            torch.ops.gpushmem.halo_accumulate(grads[0], *others[1:]), *[None] * 4,
        ),
    ),
    Operator(
        f"halo_accumulate{HALO}",
        lambda x, width, dim, *_: [halo_like("halo_accumulate", x, width, dim, -2 * width)],
        run_halo_accumulate,
        lambda given, results: (),
        lambda kept, others, grads: (
            torch.ops.gpushmem.halo_exchange(grads[0], *others[1:]), *[None] * 4,
        ),
    ),
    *attention.OPERATORS,
    *embedding.OPERATORS,
    *exchange.OPERATORS,
    Operator(
        "flash_decode(Tensor q, Tensor cache, Tensor tables, Tensor lengths, float scale, "
        "bool apart, bool split_heads, str group_name) -> Tensor",
        lambda q, cache, tables, lengths, scale, apart, split_heads, group: [
            decoded_like(q, cache, split_heads, group)
        ],
        run_decode,
    ),
)  # fmt: skip


for each in OPERATORS:
    register(each)
direct.register()
