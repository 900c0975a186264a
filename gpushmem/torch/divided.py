"""Optimizers whose state is divided over the ranks: what those of `optim` have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from gpushmem.errors import ArgumentError
from gpushmem.memory.tensors import dtype_name
from gpushmem.torch.plans import here, plans_of

__all__ = ["DividedOptimizer"]


class DividedOptimizer(torch.optim.Optimizer):
    """An optimizer whose param groups have a plan each, by which their state is divided."""

    def __init__(
        self, params: Any, rules: dict[str, Any], bucket_cap_mb: float | None,
        overlap_param_gather: torch.nn.Module | None, group: Any,
    ) -> None:  # fmt: skip
        plans = plans_of("" if group is None else group.group_name)
        later = overlap_param_gather is not None
        self._turns = Turns(type(self).__name__, plans, bucket_cap_mb, later)
        self._flats: list[Flat] = []
        super().__init__(params, rules)
        if overlap_param_gather is not None:
            self._turns.gather_before(overlap_param_gather)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters with rules of their own."""
        super().add_param_group(param_group)
        turns, group = self._turns, self.param_groups[-1]
        self._flats.append(Flat(turns.name, group, turns.cap, self._plan))
        turns.add(self._flats[-1])

    def _plan(self, group: dict[str, Any], buckets: list[list[Tensor]], dtype: str) -> Any:
        """A plan for buckets of parameters, and where these begin in its arrays."""
        raise NotImplementedError

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Set all gradients to zero, where they are."""
        for flat in self._flats:
            flat.gather_gradients(flat.given)
            flat.gradients.zero_()

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """In this block `backward` adds up gradients, and begins no bucket."""
        before, self._turns.wait = self._turns.wait, True
        try:
            yield
        finally:
            self._turns.wait = before

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Do a step; on CPUs it is done on return, on GPUs it is on PyTorch's current stream."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._turns.end(self._flats)
        return loss

    def gather(self) -> None:
        """Get all parameters that `overlap_param_gather` has left to forward passes."""
        self._turns.gather_all()

    def state_dict(self) -> dict[str, Any]:
        """The rules, and the state of this rank's parts of each param group."""
        kept = {k: _tensors(flat.plan.state_dict()) for k, flat in enumerate(self._flats)}
        return super().state_dict() | {"state": kept}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from what `state_dict` returned on this rank, with its parameters."""
        super().load_state_dict(state_dict | {"state": {}})
        for k, (flat, group) in enumerate(zip(self._flats, self.param_groups, strict=True)):
            flat.group = group  # a new one
            flat.plan.load_state_dict(state_dict["state"][k])

    def free(self) -> None:
        """Give the memory of the plans back."""
        self._turns.gather_all()
        self._turns.forget()
        for flat in self._flats:
            flat.plan.free()


class Flat:
    """Parameters of a param group as one tensor, their gradients as another, and their plan."""

    def __init__(self, name: str, group: dict[str, Any], cap: float | None, plan_for: Any) -> None:
        self.group = group
        self.given = [each for each in reversed(group["params"]) if each.requires_grad]
        kinds = {(each.dtype, each.device) for each in self.given}
        if len(kinds) != 1:
            raise ArgumentError(
                f"{name}: a param group must have one dtype and device, not {kinds}"
            )
        dtype, device = kinds.pop()
        buckets = list(in_buckets(self.given, cap))
        self.plan, starts = plan_for(group, buckets, dtype_name(dtype))
        self.lr = group["lr"]
        whole, self.gradients = torch.zeros(2, self.plan.size, dtype=dtype, device=device)
        self.views = {}
        for each, at in zip(self.given, starts, strict=True):
            place = slice(at, at + each.numel())
            each.data = whole[place].view_as(each).copy_(each.data)
            self.views[each] = self.gradients[place].view_as(each)
        self.gather_gradients(self.given)
        self.sent = [self.plan.sendable(here().view(x)) for x in (self.gradients, whole)]
        self.whole = whole  # its memory is what is sent
        ends = accumulate(len(bucket) / len(self.given) for bucket in buckets)
        self.buckets = [Bucket(self, *each) for each in zip(buckets, ends, strict=True)]

    def gather_gradients(self, parameters: list[Tensor]) -> None:
        """Let gradients be views of the tensor, copying those that are not; zeros for none."""
        for each in parameters:
            view = self.views[each]
            if each.grad is None:
                view.zero_()
            elif each.grad is not view:
                view.copy_(each.grad)
            each.grad = view


@dataclass(eq=False)
class Bucket:
    """Parameters whose step begins together."""

    flat: Flat
    members: list[Tensor]
    end: float  # where in its param group, from 0 to 1
    missing: set[Tensor] = field(default_factory=set)  # whose gradients are not there
    there: Any = None  # on GPUs, an event: its parameters are


def in_buckets(parameters: list[Tensor], cap: float | None) -> Iterator[list[Tensor]]:
    """Parameters, one behind the other, in buckets: each is full when it has so many MiB."""
    bucket, nbytes = [], 0
    for each in parameters:
        bucket.append(each)
        nbytes += each.numel() * each.element_size()
        if cap is not None and nbytes >= cap * 2**20:
            yield bucket
            bucket, nbytes = [], 0
    if bucket:
        yield bucket


class Turns:
    """Whose gradients are there, and which bucket is the next to begin.

    Ranks may get gradients in different orders, and some not at all; they begin buckets in one. In
    the opposite one they gather parameters `later`: a layer that is about to compute has those of
    its bucket, and all behind that one, and the bucket before begins.
    """

    def __init__(self, name: str, plans: Any, cap: float | None, later: bool) -> None:
        self.name, self.plans, self.cap, self.later, self.wait = name, plans, cap, later, False
        self._order: list[Bucket] = []
        self._places: dict[Tensor, Bucket] = {}
        self._next = 0  # of the order, to begin
        self._left = self._there = 0  # from which on buckets are gathered, and there
        self._hooks: list[Any] = []
        self._streams: list[Any] = []  # the second one, on GPUs

    def add(self, flat: Flat) -> None:
        """Let the buckets of a param group begin among the others, by how far they are in it."""
        self.gather_all()
        self._places |= {each: bucket for bucket in flat.buckets for each in bucket.members}
        self._order = sorted([*self._order, *flat.buckets], key=lambda bucket: bucket.end)
        for bucket in flat.buckets if self.cap is not None else ():
            bucket.missing.update(bucket.members)
            for each in bucket.members:
                hook = each.register_post_accumulate_grad_hook(partial(self._ready, bucket))
                self._hooks.append(hook)

    def gather_before(self, module: torch.nn.Module) -> None:
        """Let layers of a module have what they need before they compute."""
        for layer in module.modules():
            self._hooks.append(layer.register_forward_pre_hook(self._before_layer))

    def _before_layer(self, layer: torch.nn.Module, given: Any) -> None:
        own = (self._places.get(each) for each in layer.parameters(recurse=False))
        needed = [self._order.index(bucket) for bucket in own if bucket is not None]
        if needed:
            self._need(min(needed))
            self._gather(min(needed) - 1)

    def gather_all(self) -> None:
        """Let all parameters be there."""
        if self._there:
            self._need(0)

    def _need(self, first: int) -> None:
        """Let what follows have the parameters of buckets from `first` on."""
        self._gather(first)
        if self._order[first].there is not None:
            torch.cuda.current_stream().wait_event(self._order[first].there)
        if first < self._there:
            self.plans.wait()
            self._there = first

    def _gather(self, first: int) -> None:
        """Begin to gather the buckets from `first` on that have not begun."""
        while self._left > max(first, 0):
            self._left -= 1
            bucket = self._order[self._left]
            with self._beside():
                self.plans.queue(bucket.flat.plan.gather, bucket.flat.sent[1])
            bucket.there = self._streams[0].record_event() if self._streams else None

    def forget(self) -> None:
        """Begin no more buckets."""
        while self._hooks:
            self._hooks.pop().remove()

    def _ready(self, bucket: Bucket, parameter: Tensor) -> None:
        """A gradient is there: begin the buckets whose turn it is."""
        if self.wait:
            return
        if parameter not in bucket.missing:
            raise ArgumentError(
                f"{self.name}: a gradient came twice before step(): let all calls of backward but "
                "the last one be in no_sync()"
            )
        bucket.missing.remove(parameter)
        self.gather_all()
        with self._beside():
            while self._next < len(self._order) and not self._order[self._next].missing:
                self._begin(self._order[self._next].flat.plan.start)

    def end(self, flats: list[Flat]) -> None:
        """Begin the rest, and end the step."""
        self.gather_all()
        with self._beside():
            rest = [bucket.flat for bucket in self._order[self._next :]]
            for k, flat in enumerate(rest):
                self._begin(flat.plan.start if flat in rest[k + 1 :] else flat.plan)
            for flat in flats:
                if flat not in rest:
                    self.plans.queue(flat.plan, *flat.sent)
        self._next, self._left = 0, len(self._order) if self.later else 0
        self._there = self._left
        if self.cap is not None:
            for bucket in self._order:
                bucket.missing.update(bucket.members)
        for stream in self._streams:
            torch.cuda.current_stream().wait_stream(stream)
        self.plans.wait()

    def _begin(self, call: Any) -> None:
        """Call a plan, or its `start`, for the next bucket."""
        bucket = self._order[self._next]
        flat, self._next = bucket.flat, self._next + 1
        flat.gather_gradients(bucket.members)
        if flat.group["lr"] != flat.lr:
            flat.plan.lr = flat.lr = flat.group["lr"]
        self.plans.queue(call, *flat.sent)

    @contextmanager
    def _beside(self) -> Iterator[None]:
        """On GPUs what is queued in this block is on a second stream, if anything overlaps."""
        if not here().runtime.backend.on_gpu or (self.cap is None and not self.later):
            yield
            return
        if not self._streams:
            self._streams.append(torch.cuda.Stream())
        self._streams[0].wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._streams[0]):
            yield


def _tensors(state: dict[str, Any]) -> dict[str, Any]:
    return {k: v if k == "step" else torch.from_numpy(v.copy()) for k, v in state.items()}
