"""What the checker is told of torch.distributed: which tensors a call uses, until it is waited for.

A call that goes on is recorded as a launch of one thread, for which the host waits in `wait`. What
PyTorch's operators do meanwhile with the same memory is recorded as done by the host; what they do
with other tensors is not, and neither is what NumPy does, or compiled code.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from threading import get_ident
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from gpushmem.simt.observe import LOAD, STORE
from gpushmem.torch.call_forms import flat

__all__ = ["Flight", "InFlight", "in_flight"]


class Flight:
    """A call that goes on."""

    # What has come: a message of one PE, to one, with the row of the team, and the tag.
    receives: Callable[[], tuple[int, int, int, int]] | None = None

    def __init__(
        self, all_of: InFlight, what: str, reads: list[Tensor], writes: list[Tensor], stream: int
    ) -> None:
        self._all, self._recorder = all_of, all_of.recorder
        self._over = self._waited = self._left = False
        self._filler = 0  # the thread in which this package fills its tensors
        only_read = [tensor for tensor in reads if not any(tensor is other for other in writes)]
        uses = [*_uses(only_read, writes)]
        self._arrays = [(_array(tensor), how) for tensor, how in uses]
        self._tensors = [weakref.ref(tensor) for tensor, _ in uses]
        self.number, self._site = self._recorder.begins(
            what, [array for array, _ in self._arrays], stream
        )

    def meets(self, start: int, end: int) -> bool:
        """Whether it uses memory between two addresses, by a tensor that there still is."""
        return self._filler != get_ident() and any(
            tensor() is not None and _start(array) < end and start < _start(array) + array.nbytes
            for tensor, (array, _) in zip(self._tensors, self._arrays, strict=True)
        )

    @contextmanager
    def filling(self) -> Iterator[None]:
        """Inside, this package fills the tensors: that is no use of the program's."""
        self._filler = get_ident()
        yield
        self._filler = 0

    def over(self) -> None:
        """It is over."""
        received = None if self.receives is None else self.receives()
        self._recorder.ends(self.number, self._site, self._arrays, received)
        self._over = True
        if self._left:
            self._recorder.returned(self.number)

    def waited(self) -> None:
        """The host has waited for it."""
        if not self._waited:
            self._waited = True
            self._all.flights.remove(self)
            self._recorder.returned(self.number)

    def leave(self) -> None:
        """The host has its future, and may wait in ways that are not seen: all is in order then."""
        self._left = True
        if self._over:
            self.waited()
        elif not self._waited:
            self._waited = True
            self._all.flights.remove(self)


class InFlight(TorchDispatchMode):  # type: ignore[misc]
    """The calls that go on. It sees what operators of PyTorch do in this thread."""

    def __init__(self, recorder: Any) -> None:
        super().__init__()
        self.recorder, self.flights = recorder, []

    flights: list[Flight]

    @classmethod
    def is_infra_mode(cls) -> bool:
        """Whether PyTorch ignores it where it decides what to compile."""
        return True

    def begin(
        self, what: str, reads: Sequence[Any], writes: Sequence[Any], stream: int = -1
    ) -> Flight:
        """A call begins that goes on; those of one stream come one after the other."""
        self.flights.append(Flight(self, what, flat(reads), flat(writes), stream))
        return self.flights[-1]

    def used(self, reads: list[Any], writes: list[Any]) -> None:
        """The host uses tensors now."""
        for tensor, how in _uses(reads, writes) if self.flights else ():
            array = _array(tensor)
            start = _start(array)
            if any(flight.meets(start, start + array.nbytes) for flight in self.flights):
                self.recorder.uses(array, how)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.flights and "c10d" not in func.namespace:  # those call the group, or wait
            self.used(*_of_call(func, args, kwargs))
        return func(*args, **kwargs)


@cache
def in_flight(recorder: Any) -> InFlight:
    """Those of this PE, for its recorder."""
    mode = InFlight(recorder)
    mode.__enter__()  # for as long as this process lives
    return mode


@cache
def _roles(func: Any) -> list[tuple[int, str, bool]]:
    """The arguments that an operator reads or writes: place, name, and whether it writes them."""
    arguments = enumerate(func._schema.arguments)
    return [
        (k, a.name, bool(a.alias_info))
        for k, a in arguments
        if a.alias_info is None or a.alias_info.is_write
    ]


def _of_call(func: Any, args: Any, kwargs: Any) -> tuple[list[Any], list[Any]]:
    """What a call of an operator reads, and what it writes."""
    found: tuple[list[Any], list[Any]] = [], []
    for k, name, writes in _roles(func):
        given = args[k] if k < len(args) else kwargs.get(name)
        found[writes].extend(given if isinstance(given, list | tuple) else [given])
    return found


def _uses(reads: Sequence[Any], writes: Sequence[Any]) -> Iterator[tuple[Tensor, int]]:
    """The tensors in plain memory, each with what is done to it."""
    for tensors, how in ((reads, LOAD), (writes, STORE)):
        for tensor in tensors:
            plain = type(tensor) in (Tensor, torch.nn.Parameter)
            if plain and tensor.is_cpu and tensor.layout is torch.strided and tensor.nbytes:
                yield tensor, how


def _array(tensor: Tensor) -> np.ndarray[Any, Any]:
    """The memory of a tensor."""
    item, steps = tensor.element_size(), tensor.stride()
    nbytes = item * (1 + sum((n - 1) * step for n, step in zip(tensor.shape, steps, strict=True)))
    memory = (ctypes.c_char * nbytes).from_address(tensor.data_ptr())
    return np.ndarray(tensor.shape, f"V{item}", memory, strides=[item * step for step in steps])


def _start(array: np.ndarray[Any, Any]) -> int:
    return int(array.ctypes.data)
