"""Products and collectives of a compiled graph, put together: a pass of `torch.compile`.

What it looks for in a graph, and what comes in the place of it:

    all_gather, then a @ b           all_gather_gemm; all_gather_gemm_gathered, if the rows of all
                                     are used elsewhere, too
    a @ b, then reduce_scatter       gemm_reduce_scatter
    all_reduce, + residual, RMSNorm  all_reduce_rms_norm, in graphs for inference: a gradient needs
                                     what that does not return
    a @ b, then all_reduce           gemm_all_reduce

Sums only, of the dtypes of the plans, in process groups of gpushmem's; on CPUs only where there is
enough to compute. A product may have a bias (`addmm`). What is added before a sum over the ranks
may differ between them, so it gets a sum of its own, of one row. Rows may be gathered and scattered
along any axis but the last: PyTorch gathers along the first one and moves the parts (`split`,
`cat`), and so does this. All ranks compile the same program, so all make the same calls.

After `torch._inductor.fx_passes.micro_pipeline_tp`, PyTorch's own for symmetric memory on GPUs.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._inductor.custom_graph_pass import (  # type: ignore[import-not-found]
    CustomGraphPass,
    get_custom_graph_passes,
    get_hash_for_files,
)
from torch.fx import Graph, Node, map_arg  # type: ignore[import-not-found]

import gpushmem.torch.operators  # noqa: F401  (the operators)
from gpushmem import runtime, settings
from gpushmem.torch.group import ProcessGroup
from gpushmem.torch.plans import group_of

__all__ = ["Fusion", "install"]

log = logging.getLogger("gpushmem.torch")
aten, c10d, ours = torch.ops.aten, torch.ops._c10d_functional, torch.ops.gpushmem
WAIT = c10d.wait_tensor.default
VIEWS = (
    aten.permute.default, aten.t.default, aten.transpose.int, aten.reshape.default,
    aten.view.default,
)  # fmt: skip
RESHAPES = aten.reshape.default, aten.view.default
SPLIT, MUL = aten.split.Tensor, aten.mul.Tensor
ADDS = aten.add.Scalar, aten.add.Tensor
# On CPUs a kernel's launch costs a tenth of a millisecond: bench/torch_operators.py.
MULTIPLICATIONS, NUMBERS = 1 << 27, 1 << 18  # in products, in what is normalised, to be worth it
DTYPES = torch.float16, torch.float32, torch.float64


class Fusion(CustomGraphPass):
    """The pass; `torch._inductor` calls it with each graph."""

    def __call__(self, graph: Graph) -> None:
        """Change a graph that has been traced, before code is made of it."""
        if not wanted():
            return
        made: dict[Node, str] = {}  # by what waited for the collective
        for replace in (fuse_norm, fuse_reduction, fuse_gather):
            for wait in list(graph.find_nodes(op="call_function", target=WAIT)):
                name = None if wait in made else replace(wait)
                if name is not None:
                    made[wait] = name
        if made:  # PyTorch never takes a wait for dead
            graph.eliminate_dead_code(lambda node: node.is_impure() and node not in made)
            graph.lint()
        names = ", ".join(made.values()) or "nothing"
        log.info("fused in a graph of %d nodes: %s", len(graph.nodes), names)

    def uuid(self) -> Any:
        """What PyTorch's cache of compiled graphs distinguishes."""
        return get_hash_for_files((__file__,)), wanted(), settings.get("GPUSHMEM_TORCH_FUSE")


def install(config: Any) -> None:
    """Add the pass to the configuration of `torch._inductor`, behind the user's own."""
    before = list(get_custom_graph_passes(config.post_grad_custom_pre_pass))
    if not any(isinstance(each, Fusion) for each in before):
        config.post_grad_custom_pre_pass = [*before, Fusion()]


def wanted() -> bool:
    """Whether products should be fused: by the setting, or if kernels have as many cores."""
    asked = settings.get("GPUSHMEM_TORCH_FUSE")
    if asked == "auto":
        return on_gpu() or torch.get_num_threads() <= runtime.tuning().blocks
    return bool(asked == "1")


def on_gpu() -> bool:
    """Whether kernels run on a GPU."""
    return runtime.current("torch.compile").backend.on_gpu


def worth(work: Any, enough: int) -> bool:
    """Whether there is enough to do for an operator to be faster; sizes may not be known."""
    return (
        on_gpu() or settings.get("GPUSHMEM_TORCH_FUSE") == "1" or not isinstance(work, int)
        or work >= enough
    )  # fmt: skip


# --- graphs


class Collective(NamedTuple):
    """A collective of a graph, with the wait for it."""

    wait: Node
    call: Node
    given: Node
    group: str


def value(node: Node) -> Tensor:
    """What PyTorch knows of a node's tensor."""
    return node.meta["val"]


def shape(node: Node) -> tuple[Any, ...]:
    """The shape of a node's tensor."""
    return tuple(value(node).shape)


def collective(wait: Node, target: Any, *, op: str | None = "sum") -> Collective | None:
    """The collective of this kind that a node waits for, if it can be replaced."""
    call = wait.args[0]
    if not isinstance(call, Node) or call.target != target or len(call.users) != 1:
        return None
    given, group = call.args[0], call.args[-1]
    if op is not None and call.args[1] != op:
        return None
    if not isinstance(group_of(group), ProcessGroup) or value(given).dtype not in DTYPES:
        return None
    return Collective(wait, call, given, group)


def only(node: Any, *targets: Any) -> bool:
    """Whether this is a call of one of these, with one user."""
    return isinstance(node, Node) and node.target in targets and len(node.users) == 1


class Product(NamedTuple):
    """`a @ b`, plus a row `bias`, if that is not None."""

    node: Node
    a: Node
    b: Node
    bias: Node | None = None


def product_at(node: Node) -> Product | None:
    """The product that a node is, if it is worth it."""
    if node.target == aten.mm.default:
        (a, b), bias = node.args, None
    elif node.target == aten.addmm.default and not node.kwargs and len(shape(node.args[0])) == 1:
        bias, a, b = node.args
    else:
        return None
    much = worth(prod(shape(node)) * shape(b)[0], MULTIPLICATIONS)
    return Product(node, a, b, bias) if much else None


def product_below(node: Node) -> Product | None:
    """The product that a node is, or is another shape of; nobody else uses it."""
    if only(node, *RESHAPES) and shape(node)[-1:] == shape(node.args[0])[-1:]:
        node = node.args[0]
    return product_at(node) if len(node.users) == 1 else None


def call(before: Node, target: Any, *args: Any) -> Node:
    """A new call in the graph, before this node."""
    with before.graph.inserting_before(before):
        made = before.graph.call_function(target, args)
    made.meta["val"] = target(*map_arg(args, value))
    return made


def reshaped(before: Node, node: Node, sizes: Sequence[Any]) -> Node:
    """A node's tensor in another shape."""
    same = shape(node) == tuple(sizes)
    return node if same else call(before, aten.reshape.default, node, list(sizes))


def moved(before: Node, node: Node, parts: int, of: int, to: int) -> Node:
    """A tensor cut along axis `of` into so many parts, which are joined along axis `to`."""
    if of == to:
        return node
    cut = call(before, SPLIT, node, shape(node)[of] // parts, of)
    pieces = [call(before, operator.getitem, cut, k) for k in range(parts)]
    return call(before, aten.cat.default, pieces, to)


class Moved(NamedTuple):
    """`cat(split(node, size, of), to)`, of all parts in their order, used by nobody else."""

    cut: Node
    joined: Node
    parts: int
    of: int
    to: int


def split_and_joined(joined: Any) -> Moved | None:
    """What moves the parts of a tensor from one axis to another, if this node does."""
    if not isinstance(joined, Node) or joined.target != aten.cat.default:
        return None
    pieces, to = joined.args[0], (*joined.args[1:], 0)[0]
    cuts = {piece.args[0] for piece in pieces if only(piece, operator.getitem)}
    if len(cuts) != 1:
        return None
    (cut,) = cuts
    in_order = [piece.args[1] for piece in pieces] == list(range(len(pieces)))
    if cut.target != SPLIT or not in_order or len(cut.users) != len(pieces):
        return None
    return Moved(cut, joined, len(pieces), (*cut.args[2:], 0)[0], to)


# --- sums


def fuse_reduction(wait: Node) -> str | None:
    """A product that is summed up over the ranks."""
    found = collective(wait, c10d.all_reduce.default)
    if found is not None:
        return _fuse_all_reduce(found)
    found = collective(wait, c10d.reduce_scatter_tensor.default)
    return None if found is None else _fuse_reduce_scatter(found)


def _fuse_all_reduce(found: Collective) -> str | None:
    below = product_below(found.given)
    if below is None:
        return None
    made = call(found.wait, ours.gemm_all_reduce.default, below.a, below.b, found.group)
    _replace_sum(found, made, below.bias)
    return "gemm_all_reduce"


def _replace_sum(found: Collective, made: Node, bias: Node | None) -> None:
    """Put a sum of products in the place of a collective; what was added is summed up, too."""
    if bias is not None:
        summed = call(found.wait, c10d.all_reduce.default, bias, "sum", found.group)
        made = call(found.wait, aten.add.Tensor, made, call(found.wait, WAIT, summed))
    found.wait.replace_all_uses_with(reshaped(found.wait, made, shape(found.wait)))


def _fuse_reduce_scatter(found: Collective) -> str | None:
    at, parts, node = 0, found.call.args[2], found.given
    turned = split_and_joined(node) if len(node.users) == 1 else None
    if turned is not None and turned.to == 0 and turned.parts == parts:
        node, at = turned.cut.args[0], turned.of
    below = product_below(node)
    if below is None or not 0 <= at < len(shape(node)) - 1 or shape(node)[at] % parts:
        return None
    wide = reshaped(found.wait, below.a, (*shape(node)[:-1], shape(below.a)[-1]))
    rows = moved(found.wait, wide, parts, at, 0)
    made = call(found.wait, ours.gemm_reduce_scatter.default, rows, below.b, found.group)
    _replace_sum(found, made, below.bias)
    return "gemm_reduce_scatter"


# --- rows of all ranks


def fuse_gather(wait: Node) -> str | None:
    """Rows that are gathered and multiplied."""
    found = collective(wait, c10d.all_gather_into_tensor.default, op=None)
    if found is None or len(shape(wait)) < 2:
        return None
    chain, at, parts = [wait], 0, found.call.args[1]  # from the gathered rows to the factor
    for cut in wait.users:
        joined = next(iter(next(iter(cut.users)).users), None) if cut.target == SPLIT else None
        turned = split_and_joined(joined)
        if turned is None or turned.of != 0 or turned.parts != parts:
            continue
        if turned.to < len(shape(wait)) - 1:
            chain, at = [wait, cut, turned.joined], turned.to
    for user in chain[-1].users:
        if user.target in RESHAPES and shape(user)[-1] == shape(wait)[-1]:
            chain.append(user)
            break
    factor = chain[-1]
    for user in factor.users:
        made = product_at(user)
        if made is not None and made.a is factor:
            return _fuse_gather(found, chain, at, made)
    return None


def _fuse_gather(found: Collective, chain: list[Node], at: int, product: Product) -> str | None:
    """Replace a product; `chain` are the nodes from the gathered rows to its first factor."""
    wait, parts, b, node = found.wait, found.call.args[1], product.b, product.node
    alone = all(len(link.users) == (parts if link.target == SPLIT else 1) for link in chain)
    before = node if alone else wait
    if not alone and not hoisted(b, before):
        return None
    if alone:
        result = call(before, ours.all_gather_gemm.default, found.given, b, found.group)
    else:
        both = call(before, ours.all_gather_gemm_gathered.default, found.given, b, found.group)
        result = call(before, operator.getitem, both, 0)
        wait.replace_all_uses_with(call(before, operator.getitem, both, 1))
    made = reshaped(node, moved(node, result, parts, 0, at), shape(node))
    if product.bias is not None:
        made = call(node, aten.add.Tensor, made, product.bias)
    node.replace_all_uses_with(made)
    return "all_gather_gemm" if alone else "all_gather_gemm_gathered"


def hoisted(node: Node, before: Node) -> bool:
    """Whether a node is before another one, perhaps since views have been moved there."""
    if node < before:
        return True
    if node.target not in VIEWS or not hoisted(node.args[0], before):
        return False
    before.prepend(node)
    return True


# --- all-reduce, residual, RMSNorm


def fuse_norm(wait: Node) -> str | None:
    """A sum over the ranks that is added to a residual and normalised."""
    found = collective(wait, c10d.all_reduce.default)
    if found is None or len(wait.users) != 1:
        return None
    (total,) = wait.users
    normed = _normed(total) if total.target == aten.add.Tensor and not total.kwargs else None
    if normed is None:
        return None
    scaled, weight, eps = normed
    residual = next((x for x in total.args if x is not wait), None)
    if not isinstance(residual, Node) or shape(residual) != shape(wait):
        return None
    if {value(residual).dtype, value(weight).dtype} != {value(wait).dtype}:
        return None
    if not worth(prod(shape(wait)), NUMBERS):
        return None
    if not hoisted(weight, total):
        return None
    operation, args = ours.all_reduce_rms_norm.default, (residual, weight, eps, found.group)
    both = call(total, operation, found.given, *args)
    scaled.replace_all_uses_with(call(total, operator.getitem, both, 0))
    total.replace_all_uses_with(call(total, operator.getitem, both, 1))
    return "all_reduce_rms_norm"


def _normed(total: Node) -> tuple[Node, Node, float] | None:
    """For `total * rsqrt(mean(total ** 2, -1) + eps) * weight`: this node, weight and eps."""
    for power in total.users:
        mean = _user(power) if power.target == aten.pow.Tensor_Scalar else None
        plus = _user(mean) if mean is not None and mean.target == aten.mean.dim else None
        root = _user(plus) if plus is not None and plus.target in ADDS else None
        scaled = _user(root) if root is not None and root.target == aten.rsqrt.default else None
        weighted = _user(scaled) if _is_product(scaled, total, root) else None
        if mean is None or plus is None or weighted is None or weighted.target != MUL:
            continue
        weight, axes = next((x for x in weighted.args if x is not scaled), None), mean.args[1]
        last = len(shape(total)) - 1
        right = power.args[1] == 2 and axes in ([last], [-1]) and mean.args[2:] == (True,)
        if right and isinstance(weight, Node) and shape(weight) == shape(total)[-1:]:
            eps = plus.args[1]
            return (weighted, weight, eps) if isinstance(eps, float) else None
    return None


def _user(node: Node) -> Node | None:
    """A node's user, if it has one alone."""
    return next(iter(node.users)) if len(node.users) == 1 else None


def _is_product(node: Node | None, a: Node, b: Node | None) -> bool:
    return node is not None and node.target == MUL and {*node.args} == {a, b}
