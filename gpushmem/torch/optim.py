"""AdamW and Muon with their state divided over the ranks: gradients in, parameters out.

optimizer = ZeroAdamW(model.parameters(), lr=1e-3, clip=1.0, bucket_cap_mb=25)
loss = loss_of(model(x))  # of this rank's samples
optimizer.zero_grad()
loss.backward()           # begins buckets as their gradients are there
optimizer.step()          # averages gradients over the ranks, too: no DDP, no all-reduce
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from gpushmem.errors import ArgumentError
from gpushmem.kernels import ZeroAdam
from gpushmem.kernels import ZeroMuon as Muon
from gpushmem.kernels.buckets import aligned
from gpushmem.kernels.muon import COEFFICIENTS
from gpushmem.torch.divided import DividedOptimizer

__all__ = ["ZeroAdamW", "ZeroMuon"]


class ZeroAdamW(DividedOptimizer):
    """`torch.optim.AdamW` for a process group: `gpushmem.kernels.ZeroAdam` for each param group.

    Parameters and gradients of a param group, of one dtype, become views of two tensors. `step`
    averages the gradients over the ranks of `group`, which are used up; afterwards all ranks have
    the same parameters, those before being the owner's where they differed. With `clip`, for one
    param group, gradients are scaled as by `clip_grad_norm_`; `norm` is what that returns.
    `state_dict` is of this rank's parts: each rank saves its own. Making one, `step` and `free` are
    collective over the group; all ranks have the same parameters, in the same order.

    With `bucket_cap_mb`, as in `DistributedDataParallel`, parameters from the last one on are put
    into buckets of about so many MiB, and `backward` begins the step of a bucket as soon as all its
    gradients, and those of the buckets before, are there: in one order on all ranks, on GPUs on a
    second stream. Without `clip` its parameters change then, of which `backward` has no more need;
    with `clip` they do in `step`. So set rules before `backward`, and let all calls of it but the
    last one before `step` be in `no_sync`. On GPUs no other kernels that wait for PEs (tensor
    parallelism) may run in `backward` then: neither may find room on all of them.

    With `overlap_param_gather`, a module that has the parameters, `step` updates this rank's part
    of them alone; the others' come in the next forward pass, as Megatron-Core's option of this name
    and FSDP have it: each layer waits for its bucket, while that of the layers behind it is on its
    way. Before parameters are used in another way, as for a checkpoint, call `gather`.
    """

    def __init__(
        self, params: Any, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8, weight_decay: float = 1e-2, *, clip: float | None = None,
        bucket_cap_mb: float | None = None, overlap_param_gather: torch.nn.Module | None = None,
        group: Any = None,
    ) -> None:  # fmt: skip
        self._clip = clip
        rules = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, rules, bucket_cap_mb, overlap_param_gather, group)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters with rules of their own; raises `ArgumentError` if there is `clip`."""
        if self._clip is not None and self._flats:
            raise ArgumentError(
                "ZeroAdamW: clip is for the norm of one param group, and there are several"
            )
        super().add_param_group(param_group)

    def _plan(self, group: dict[str, Any], buckets: list[list[Tensor]], dtype: str) -> Any:
        sizes, starts, at = [], [], 0
        for bucket in buckets:
            begins = [0, *accumulate(each.numel() for each in bucket)]
            starts += [at + begin for begin in begins[:-1]]
            sizes.append(aligned(begins[-1]))
            at += sizes[-1]
        rules = {name: group[name] for name in ("lr", "betas", "eps", "weight_decay")}
        options = {"size": at, "dtype": dtype, "buckets": tuple(sizes), "clip": self._clip, **rules}
        options["overlap_param_gather"] = self._turns.later
        return self._turns.plans.make(ZeroAdam, options), starts

    @property
    def norm(self) -> Tensor:
        """The norm of the gradients in the last step, if they are clipped: a tensor (1,)."""
        return torch.from_dlpack(self._flats[0].plan.norm)


class ZeroMuon(DividedOptimizer):
    """`torch.optim.Muon` for a process group: `gpushmem.kernels.ZeroMuon` for each param group.

    Each matrix belongs to a rank, which has its momentum, and a float32 copy of it, and does what
    the others are then sent. Parameters have two axes; those of embeddings, and what is no matrix,
    are for `ZeroAdamW`. All else is as there; with `bucket_cap_mb` `backward` has gradients summed
    as they are there, and parameters change in `step`. Products are of `product_dtype`: PyTorch has
    bfloat16.
    """

    def __init__(
        self, params: Any, lr: float = 1e-3, weight_decay: float = 0.1, momentum: float = 0.95,
        nesterov: bool = True, ns_coefficients: tuple[float, float, float] = COEFFICIENTS,
        eps: float = 1e-7, ns_steps: int = 5, adjust_lr_fn: str | None = None, *,
        product_dtype: str = "bfloat16", bucket_cap_mb: float | None = None,
        overlap_param_gather: torch.nn.Module | None = None, group: Any = None,
    ) -> None:  # fmt: skip
        self._products = product_dtype
        rules = {
            "lr": lr, "weight_decay": weight_decay, "momentum": momentum, "nesterov": nesterov,
            "ns_coefficients": ns_coefficients, "eps": eps, "ns_steps": ns_steps,
            "adjust_lr_fn": adjust_lr_fn,
        }  # fmt: skip
        super().__init__(params, rules, bucket_cap_mb, overlap_param_gather, group)

    def _plan(self, group: dict[str, Any], buckets: list[list[Tensor]], dtype: str) -> Any:
        shapes = [tuple(each.shape) for bucket in buckets for each in bucket]
        options = {name.removeprefix("ns_"): group[name] for name in self.defaults}
        options |= {"shapes": shapes, "dtype": dtype, "buckets": tuple(map(len, buckets))}
        options |= {"product_dtype": self._products, "overlap_param_gather": self._turns.later}
        plan = self._turns.plans.make(Muon, options)
        return plan, plan.starts
