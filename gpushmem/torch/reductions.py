"""The reductions of PyTorch's process groups, as sums and the like of ours."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from gpushmem.torch.call_forms import CallError, flat

__all__ = ["OF_TRUTH", "Reduction", "divide", "reduction_of"]

# Of truth values, as NCCL has them.
OF_TRUTH = {"sum": "or", "max": "or", "prod": "and", "min": "and"}
FLOATS = torch.float16, torch.bfloat16, torch.float32, torch.float64


class Reduction(NamedTuple):
    """What a call does with the members' tensors."""

    op: str
    divisor: int = 0  # of the result; 0: none
    factor: float | None = None  # of each member's tensors, before


SUM = Reduction("sum")
KNOWN = {
    dist.ReduceOp.SUM: SUM, dist.ReduceOp.PRODUCT: Reduction("prod"),
    dist.ReduceOp.MIN: Reduction("min"), dist.ReduceOp.MAX: Reduction("max"),
    dist.ReduceOp.BAND: Reduction("and"), dist.ReduceOp.BOR: Reduction("or"),
    dist.ReduceOp.BXOR: Reduction("xor"),
}  # fmt: skip


def reduction_of(what: str, opts: Any, tensors: Sequence[Any], n: int) -> Reduction:
    """The reduction that a call of `n` members asks for; `tensors` are of the dtypes it has."""
    if opts is None:
        return SUM
    asked = opts.reduceOp.op
    found = KNOWN.get(asked)
    if found is not None:
        return found
    if asked == dist.ReduceOp.PREMUL_SUM:
        return Reduction("sum", factor=_factor(what, opts.reduceOp, tensors))
    if asked != dist.ReduceOp.AVG:
        raise dist.DistBackendError(f"{what}: gpushmem has no reduction {asked}")
    for tensor in flat(tensors):
        if not _is_divisible(tensor.dtype):
            raise CallError(
                f"{what}: op is AVG, and PyTorch does not divide {tensor.dtype}: use SUM"
            )
    return Reduction("sum", divisor=n)


def _factor(what: str, op: Any, tensors: Sequence[Any]) -> float:
    """The factor of PREMUL_SUM: a number, or a tensor of one element."""
    for tensor in flat(tensors):
        if tensor.dtype not in FLOATS:
            raise CallError(
                f"{what}: op is PREMUL_SUM, for float16, bfloat16, float32 and float64, and a "
                f"tensor is of {tensor.dtype}: use SUM, and multiply before"
            )
    _, factor = op.__getstate__()
    return float(factor)


def divide(tensor: Tensor, by: int) -> None:
    """Divide a tensor in place; integers towards zero."""
    whole = not (tensor.is_floating_point() or tensor.is_complex())
    tensor.div_(by, rounding_mode="trunc" if whole else None)


@cache
def _is_divisible(dtype: torch.dtype) -> bool:
    """Whether PyTorch can divide tensors of a dtype."""
    try:
        divide(torch.zeros(1, dtype=dtype), 1)
    except RuntimeError:  # NotImplementedError is one
        return False
    return True
