"""AdamW whose state is divided over the ranks: gradients in, parameters out, in one kernel.

optimizer = ZeroAdamW(model.parameters(), lr=1e-3, clip=1.0)
loss = loss_of(model(x))  # of this rank's samples
optimizer.zero_grad()
loss.backward()
optimizer.step()          # averages gradients over the ranks, too: no DDP, no all-reduce
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gpushmem.errors import ArgumentError
from gpushmem.kernels import ZeroAdam
from gpushmem.memory.tensors import dtype_name
from gpushmem.torch.plans import here, plans_of

__all__ = ["ZeroAdamW"]


class ZeroAdamW(torch.optim.Optimizer):
    """`torch.optim.AdamW` for a process group: `gpushmem.kernels.ZeroAdam` for each param group.

    Parameters and gradients of a param group, of one dtype, become views of two tensors. `step`
    averages the gradients over the ranks of `group`, which are used up; afterwards all ranks have
    the same parameters, those before being the owner's where they differed. With `clip`, for one
    param group, gradients are scaled as by `clip_grad_norm_`; `norm` is what that returns.
    `state_dict` is of this rank's part: each rank saves its own. Making one, `step` and `free` are
    collective over the group; all ranks have the same parameters, in the same order.
    """

    def __init__(
        self, params: Any, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8, weight_decay: float = 1e-2, *, clip: float | None = None,
        group: Any = None,
    ) -> None:  # fmt: skip
        self._plans, self._clip = plans_of("" if group is None else group.group_name), clip
        self._flats: list[Flat] = []
        rules = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, rules)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters with rules of their own; raises `ArgumentError` if there is `clip`."""
        if self._clip is not None and self._flats:
            raise ArgumentError(
                "ZeroAdamW: clip is for the norm of one param group, and there are several"
            )
        super().add_param_group(param_group)
        self._flats.append(Flat(self.param_groups[-1], self._clip, self._plans))

    @property
    def norm(self) -> Tensor:
        """The norm of the gradients in the last step, if they are clipped: a tensor (1,)."""
        return torch.from_dlpack(self._flats[0].plan.norm)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Set all gradients to zero, where they are."""
        for flat in self._flats:
            flat.gather_gradients()
            flat.gradients.zero_()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Do a step; on CPUs it is done on return, on GPUs it is on PyTorch's current stream."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for flat, group in zip(self._flats, self.param_groups, strict=True):
            flat.gather_gradients()
            if group["lr"] != flat.lr:
                flat.plan.lr = flat.lr = group["lr"]
            self._plans.call(flat.plan, *flat.sent)
        return loss

    def state_dict(self) -> dict[str, Any]:
        """The rules, and the state of this rank's part of each param group."""
        kept = {k: _tensors(flat.plan.state_dict()) for k, flat in enumerate(self._flats)}
        return super().state_dict() | {"state": kept}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from what `state_dict` returned on this rank, with its parameters."""
        super().load_state_dict(state_dict | {"state": {}})
        for k, flat in enumerate(self._flats):
            flat.plan.load_state_dict(state_dict["state"][k])

    def free(self) -> None:
        """Give the memory of the plans back."""
        for flat in self._flats:
            flat.plan.free()


class Flat:
    """Parameters of a param group as one tensor, their gradients as another, and their plan."""

    def __init__(self, group: dict[str, Any], clip: float | None, plans: Any) -> None:
        self.given = [each for each in group["params"] if each.requires_grad]
        kinds = {(each.dtype, each.device) for each in self.given}
        if len(kinds) != 1:
            raise ArgumentError(
                f"ZeroAdamW: a param group must have one dtype and device, not {kinds}"
            )
        whole = torch.cat([each.detach().reshape(-1) for each in self.given])
        self.gradients = torch.zeros_like(whole)
        sizes = [each.numel() for each in self.given]
        for each, part in zip(self.given, whole.split(sizes), strict=True):
            each.data = part.view_as(each)
        parts = self.gradients.split(sizes)
        self.views = [p.view_as(each) for p, each in zip(parts, self.given, strict=True)]
        self.gather_gradients()
        rules = {name: group[name] for name in ("lr", "betas", "eps", "weight_decay")}
        options = {"size": whole.numel(), "dtype": dtype_name(whole.dtype), "clip": clip, **rules}
        self.plan, self.lr = plans.make(ZeroAdam, options), group["lr"]
        self.sent = [self.plan.sendable(here().view(x)) for x in (self.gradients, whole)]
        self.whole = whole  # its memory is what is sent

    def gather_gradients(self) -> None:
        """Let gradients be views of the tensor, copying those that are not; zeros for none."""
        for each, view in zip(self.given, self.views, strict=True):
            if each.grad is None:
                view.zero_()
            elif each.grad is not view:
                view.copy_(each.grad)
            each.grad = view


def _tensors(state: dict[str, Any]) -> dict[str, Any]:
    return {k: v if k == "step" else torch.from_numpy(v.copy()) for k, v in state.items()}
