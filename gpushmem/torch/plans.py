"""Plans for the operators of this package: made once for a group, sizes and dtype, and kept.

A plan's memory is symmetric. That of a plan for some of the PEs, which they make by themselves,
is part of an `Arena` that all PEs have made together, in `reserve`.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from gpushmem import runtime
from gpushmem.communicators import team_from
from gpushmem.errors import ArgumentError, HeapExhausted
from gpushmem.kernels import Arena, Plan
from gpushmem.memory.array import DeviceArray
from gpushmem.memory.validation import dtype_of
from gpushmem.ops.team import Team

__all__ = ["Plans", "group_of", "group_size", "name_of", "plans_of", "reserve"]

VIEWS = 1024  # of tensors, that are remembered
KEPT = 64  # plans of a group: the one that has not been used for longest goes
SHARE = 8  # of the heap, for plans of groups, is one part of so many

lock = threading.RLock()


class Plans:
    """The plans of a group of PEs. Its members ask for the same ones, in the same order."""

    def __init__(self, team: Team, group: Any) -> None:
        self.team, self.n_pes = team, team.n_pes
        self.of_all = self.n_pes == Team(0).n_pes
        self.group = group  # kept, since its name may be given to another one afterwards
        self._kept: OrderedDict[Any, Plan] = OrderedDict()
        self._too_large: set[Any] = set()
        self._sent: WeakKeyDictionary[Plan, dict[int, list[Tensor]]] = WeakKeyDictionary()

    def get(self, kind: type[Plan], **sizes: Any) -> Any:
        """The plan of this kind for these sizes. Where there is none it is made; collective then.

        Raises `HeapExhausted` if there is too little memory for this one alone.
        """
        key = kind, *sizes.values()
        found = self._kept.get(key)
        if found is None:
            while len(self._kept) >= KEPT:
                self._forget_oldest()
            self._kept[key] = found = self.make(kind, sizes)
        self._kept.move_to_end(key)
        return found

    def get_if_it_fits(self, kind: type[Plan], **sizes: Any) -> Any:
        """As `get`, or None if there is too little memory: that is tried once for these sizes."""
        key = kind, *sizes.values()
        if key in self._too_large:
            return None
        try:
            return self.get(kind, **sizes)
        except HeapExhausted:
            self._too_large.add(key)
            return None

    def make(self, kind: type[Plan], sizes: dict[str, Any]) -> Any:
        """A plan of one's own, which `get` does not return."""
        while True:
            try:
                with self._memory():
                    return kind(team=self.team, **sizes)
            except HeapExhausted:
                if not self._kept:
                    raise
            self._forget_oldest()

    def _memory(self) -> AbstractContextManager[None]:
        """Where plans that are made have their memory: all PEs can allocate on the heap."""
        if self.of_all:
            return nullcontext()
        arena = here().arena
        if arena is None:
            raise ArgumentError(
                f"torch.ops.gpushmem: a group of {self.n_pes} PEs has no memory for plans of its "
                "own: call gpushmem.torch.plans.reserve() on all PEs after init, or use "
                'init_process_group("gpushmem"), which does so'
            )
        return arena.plans()

    def free(self) -> None:
        """Give all plans back; collective over the group."""
        while self._kept:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        self._kept.popitem(last=False)[1].free()

    def sendable(self, plan: Plan, *tensors: Tensor) -> tuple[Tensor, ...]:
        """`tensors`; if the group spans machines copies, which the plan's kernels can send from.

        The next call for the plan overwrites them. What they are copied to is registered until the
        plan is freed, and replaced where more elements come.
        """
        if plan.reachable:
            return tensors
        rooms = self._sent.setdefault(plan, {})
        return tuple(
            self._room(rooms.setdefault(k, []), plan, x)[: x.numel()].view(x.shape).copy_(x)
            for k, x in enumerate(tensors)
        )

    def _room(self, made: list[Tensor], plan: Plan, x: Tensor) -> Tensor:
        if not made or made[-1].dtype != x.dtype or made[-1].numel() < x.numel():
            size = 1 << max(x.numel() - 1, 0).bit_length()
            made.append(torch.empty(size, dtype=x.dtype, device=x.device))
            plan.sendable(here().view(made[-1]))
        return made[-1]

    def call(self, plan: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        """Call a plan, or a method of one, with tensors.

        It is on PyTorch's current stream; on CPUs it has ended on return.
        """
        self.queue(plan, *args, **kwargs)
        self.wait()

    def queue(self, plan: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        """As `call`, and on CPUs, too, it may go on after the return, until `wait`."""
        view = here().view
        tensors = {name: view(x) for name, x in kwargs.items()}
        if here().runtime.backend.on_gpu:
            tensors["stream"] = torch.cuda.current_stream()
        plan(*map(view, args), **tensors)

    def wait(self) -> None:
        """On CPUs wait for what was queued."""
        if not here().runtime.backend.on_gpu:
            runtime.synchronize()


class Views:
    """Tensors' memory, as kernels take it.

    The same object for the same memory: steps of a program find most tensors where they were in the
    step before, and a plan's launch with the same objects is prepared once. Views keep no memory
    alive; they are used while their tensor is.
    """

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self._known: dict[Any, DeviceArray] = {}

    def __call__(self, value: Any) -> Any:
        """A tensor's view; other values as they are."""
        if not isinstance(value, Tensor):
            return value
        if value.is_cuda != self._backend.on_gpu:
            raise ArgumentError(
                f"torch.ops.gpushmem: a tensor on {value.device}, and gpushmem's backend is "
                f"{self._backend.name}: it takes those on "
                f"{'cuda' if self._backend.on_gpu else 'cpu'}"
            )
        if value.is_cuda:
            return value.detach()
        key = value.data_ptr(), value.shape, value.stride(), value.dtype
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= VIEWS:
                self._known.clear()
            found = self._known[key] = DeviceArray(_at(*key), self._backend)
        return found


@dataclass
class _Memory:
    """What NumPy makes an array of, without an owner."""

    __array_interface__: dict[str, Any]


def _at(address: int, shape: Any, strides: Any, dtype: Any) -> np.ndarray[Any, Any]:
    """An array at an address; strides in elements."""
    kind = dtype_of("torch.ops.gpushmem", dtype)
    if 0 in shape:
        return np.empty(tuple(shape), kind)
    bits = f"|u{kind.itemsize}" if kind.itemsize == 1 else f"<u{kind.itemsize}"
    described = {
        "version": 3, "data": (address, False), "shape": tuple(shape),
        "strides": tuple(kind.itemsize * each for each in strides),
    }  # fmt: skip
    if kind.isbuiltin == 1:
        return np.asarray(_Memory({**described, "typestr": kind.str}))
    return np.asarray(_Memory({**described, "typestr": bits})).view(kind)


# --- of a runtime


class Here:
    """What there is between `init` and `finalize`: memory for plans, and the plans of groups."""

    def __init__(self, of: runtime.Runtime) -> None:
        self.runtime = of
        self.view = Views(of.backend)
        self.arena: Arena | None = None
        self.plans: dict[str, Plans] = {}  # by the name of the group


_here: list[Here] = []  # the last one


def here() -> Here:
    """The one of the runtime that is running."""
    running = runtime.current("torch.ops.gpushmem")
    if not _here or _here[0].runtime is not running:
        _here[:] = [Here(running)]
    return _here[0]


def reserve(nbytes: int | None = None) -> None:
    """Set symmetric memory aside for plans of groups. Collective over all PEs.

    `nbytes` on each PE, by default an eighth of the heap. The backend "gpushmem" of
    `torch.distributed` does this by itself; others who use operators in groups of some PEs call it
    once after `init`. Another call ends all plans, and sets other memory aside.
    """
    with lock:
        before = here()
        for plans in before.plans.values():
            if plans.of_all:
                plans.free()
        before.plans.clear()
        if before.arena is not None:
            before.arena.free()
        before.arena = None
        share = runtime.heap_stats().total // SHARE
        before.arena = Arena(share if nbytes is None else nbytes)


# --- groups


def group_of(name: str) -> Any:
    """The process group of this name, or None for all PEs, whose name is empty."""
    return dist.distributed_c10d._resolve_process_group(name) if name else None


def name_of(name: str) -> str:
    """The name by which PyTorch knows a group; that of all PEs may be left empty."""
    return name or str(dist.group.WORLD.group_name)


def group_size(name: str) -> int:
    """How many PEs a group has."""
    group = group_of(name)
    return Team(0).n_pes if group is None else int(group.size())


def plans_of(name: str) -> Plans:
    """The plans of the process group of this name."""
    group, plans = group_of(name), here().plans
    found = plans.get(name)
    if found is None or found.group is not group:
        plans[name] = found = Plans(_team_of(group), group)
    return found


def _team_of(group: Any) -> Team:
    if group is None:
        return Team(0)
    own: Team | None = getattr(group, "team", None)  # of gpushmem's groups
    return team_from(group) if own is None else own
