"""Pipeline parallelism: a module's stages on ranks that follow each other, trained by a schedule.

pipeline = Pipeline(stage, shape=(8, 128, 512), microbatches=16, schedule="1f1b")
loss = pipeline.step(x, target, loss_fn)  # rank 0 gives x, the last one target
optimizer.step()                          # gradients are those of the whole batch
optimizer.zero_grad()
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from gpushmem.errors import ArgumentError
from gpushmem.kernels import PipelineExchange, Schedule
from gpushmem.kernels import schedule as schedule_of
from gpushmem.kernels.pipeline_schedules import ENDS, FORWARD, WEIGHTS
from gpushmem.memory.tensors import dtype_name
from gpushmem.torch.plans import here, plans_of

__all__ = ["Pipeline"]


class Pipeline:
    """The stages of this rank in a pipeline over the ranks of `group`: `step` trains them.

    `stages` is this rank's module, or a list of them, its chunks, with the schedule "interleaved":
    chunk c of rank s of p is stage c p + s. Between stages travel activations, and gradients, of
    `shape`, those of one of the `microbatches`, and `dtype`. `schedule` is "gpipe", "1f1b",
    "interleaved", "zero_bubble", or a `gpushmem.kernels.Schedule`; `window` is how many items a
    rank is ahead of its neighbour at most. With "zero_bubble" the gradients of weights of
    `nn.Linear` are computed later than those of inputs; hooks of these parameters are not called.
    Making one, `step` and `free` are collective over the group.
    """

    def __init__(
        self, stages: nn.Module | Sequence[nn.Module], *, shape: Sequence[int], microbatches: int,
        dtype: torch.dtype = torch.float32, schedule: str | Schedule = "1f1b",
        window: int | None = None, group: Any = None,
    ) -> None:  # fmt: skip
        self.stages = [stages] if isinstance(stages, nn.Module) else list(stages)
        self._plans = plans_of("" if group is None else group.group_name)
        team = self._plans.team
        if isinstance(schedule, str):
            schedule = schedule_of(schedule, team.n_pes, microbatches, len(self.stages))
        sizes = schedule.stages, schedule.microbatches, schedule.chunks
        if sizes != (team.n_pes, microbatches, len(self.stages)):
            raise ArgumentError(
                f"Pipeline: the schedule is for {sizes} ranks, microbatches and chunks; there are "
                f"{(team.n_pes, microbatches, len(self.stages))}"
            )
        self.schedule, self.microbatches = schedule, microbatches
        self.window = max(2, schedule.window) if window is None else window
        schedule.times(window=max(1, self.window))
        ring = len(self.stages) > 1
        options = {
            "shape": tuple(shape), "dtype": dtype_name(dtype), "window": self.window, "ring": ring
        }  # fmt: skip
        self.plan = self._plans.make(PipelineExchange, options)
        self.first, self.last = team.my_pe == 0, team.my_pe == team.n_pes - 1
        self._table = schedule.table[team.my_pe].tolist()
        self._new = partial(
            torch.empty, tuple(shape), dtype=dtype,
            device="cuda" if here().runtime.backend.on_gpu else "cpu",
        )  # fmt: skip
        self._outgoing = self._new()
        self._sent = self.plan.sendable(here().view(self._outgoing))
        self._later: list[Callable[[], None]] = []  # of the forward that is made
        if (schedule.table[..., 0] == WEIGHTS).any():
            for layer in (each for stage in self.stages for each in stage.modules()):
                if type(layer) is nn.Linear:
                    layer.forward = partial(self._linear, layer)  # type: ignore[method-assign]

    def step(
        self, x: Any = None, target: Any = None, loss_fn: Callable[[Any, Any], Tensor] | None = None
    ) -> Tensor | None:
        """Run a batch forward and backward, and add up gradients; return the mean loss, or None.

        `x`, on the first rank, and `target` and `loss_fn`, on the last, are of the whole batch, a
        multiple of `microbatches` along the first axis. `loss_fn(output, target)` is called for
        each microbatch, and gradients are those of the mean of what it returns. The last rank
        returns it, without a graph.
        """
        self._x = self._divided("x", x) if self.first else ()
        self._target = self._divided("target", target) if self.last else ()
        if self.last and loss_fn is None:
            raise ArgumentError("Pipeline: the last rank needs loss_fn")
        self._loss_fn: Any = loss_fn
        self._losses: list[Tensor] = []
        self._alive: dict[Any, tuple[Any, Tensor, list[Callable[[], None]]]] = {}
        for action, m, c in self._table:
            if action == FORWARD:
                self._forward(m, c)
            elif action != WEIGHTS:
                self._backward(m, c)
            if action in ENDS:
                for add in self._alive.pop((m, c))[2]:
                    add()
        return torch.stack(self._losses).sum() if self.last else None

    def _divided(self, what: str, batch: Any) -> Any:
        size = 0 if batch is None else batch.shape[0]
        if not size or size % self.microbatches:
            raise ArgumentError(
                f"Pipeline: {what} has {size} along its first axis, not a multiple of "
                f"{self.microbatches} microbatches"
            )
        return batch.chunk(self.microbatches)

    def _forward(self, m: int, c: int) -> None:
        if self.first and c == 0:
            given = self._x[m]
        else:
            given = self._receive(self.plan.recv_forward).requires_grad_()
        self._later = []
        with torch.enable_grad():
            made = self.stages[c](given)
            if self._ends(c):
                made = self._loss_fn(made, self._target[m]) / self.microbatches
                self._losses.append(made.detach())
        if not self._ends(c):
            self._send(self.plan.send_forward, made)
        self._alive[m, c] = given, made, self._later

    def _backward(self, m: int, c: int) -> None:
        given, made, later = self._alive[m, c]
        grad = None if self._ends(c) else self._receive(self.plan.recv_backward)
        if made.requires_grad:  # or all that is before is frozen
            made.backward(grad)
        if not (self.first and c == 0):
            self._send(self.plan.send_backward, given.grad)
        self._alive[m, c] = None, made.detach(), later

    def _ends(self, c: int) -> bool:
        return self.last and c == len(self.stages) - 1

    def _send(self, call: Callable[..., None], x: Tensor) -> None:
        """Send from the plan's own tensor, which is registered where that must be."""
        if x.shape != self._outgoing.shape:
            raise ArgumentError(
                f"Pipeline: a stage gives {tuple(x.shape)}; what travels between stages has shape "
                f"{tuple(self._outgoing.shape)}"
            )
        self._outgoing.copy_(x.detach())
        self._plans.call(call, self._sent)

    def _receive(self, call: Callable[..., None]) -> Tensor:
        made = self._new()
        self._plans.call(call, out=made)
        return made

    def _linear(self, layer: nn.Linear, x: Tensor) -> Tensor:
        made: Tensor = Later.apply(x, layer.weight, layer.bias, layer, self._later)
        return made

    def free(self) -> None:
        """Give the memory back, and layers their own `forward`."""
        self.plan.free()
        for layer in (each for stage in self.stages for each in stage.modules()):
            if isinstance(vars(layer).get("forward"), partial):
                del layer.forward


class Later(torch.autograd.Function):
    """A linear layer whose weights' gradients are computed when a list is gone through."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Any, layer: Any, later: Any) -> Tensor:
        """As `F.linear`."""
        ctx.save_for_backward(x, weight)
        ctx.layer, ctx.later = layer, later
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # type: ignore[override]
        """Give the gradient of x, and list what adds those of the weights."""
        x, weight = ctx.saved_tensors
        ctx.later.append(partial(add_gradients, ctx.layer, x.detach(), grad))
        to_x = grad @ weight if ctx.needs_input_grad[0] else None
        return to_x, None, None, None, None


@torch.no_grad()
def add_gradients(layer: nn.Linear, x: Tensor, grad: Tensor) -> None:
    """Add the gradients of a linear layer's parameters to those they have."""
    rows, given = grad.reshape(-1, grad.shape[-1]), x.reshape(-1, x.shape[-1])
    for parameter in (layer.weight, layer.bias):
        if parameter is not None and parameter.requires_grad:
            more = rows.T @ given if parameter is layer.weight else rows.sum(0)
            parameter.grad = more if parameter.grad is None else parameter.grad.add_(more)
