"""Host operations that the calling thread does itself; the others run as kernels (`hostcalls`).

Each operation is complete when its call returns. Writes to another PE's memory are noted in the
journal, by the effects of the row, with the line of the call.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numba import types

from gpushmem.artifacts.argument_packing import address_of
from gpushmem.backends.cpu.operations import atomics
from gpushmem.backends.cpu.operations.access import copy_or_stream
from gpushmem.backends.cpu.operations.nodes import Registered
from gpushmem.backends.cpu.sync.host_barrier import HostBarrier
from gpushmem.backends.cpu.sync.teams import Teams
from gpushmem.backends.cpu.sync.world import World
from gpushmem.backends.host.call_checks import (
    check_contiguous,
    check_pe,
    not_symmetric,
    unreachable,
)
from gpushmem.backends.host.host_kernels import (
    ask_smem,
    copy_from,
    copy_strided,
    copy_to,
    multiply_batched,
    multiply_scaled,
    nbytes_of,
)
from gpushmem.backends.operation_errors import BAD_SIGNAL_OP, EMPTY, UNALIGNED, error_of
from gpushmem.diagnosis.instrumentation import written
from gpushmem.diagnosis.journal import Journal, Place
from gpushmem.native.c_function import c_function
from gpushmem.native.internal import internal
from gpushmem.native.memory import full_fence
from gpushmem.ops import OPS, SIGNAL_ADD, SIGNAL_SET, Op

if TYPE_CHECKING:
    from gpushmem.backends.cpu.weak.memory import WeakMemory

__all__ = ["Inline"]

Array = np.ndarray[Any, Any]
SIGNAL_OPS = {SIGNAL_SET: OPS["atomic_set"], SIGNAL_ADD: OPS["atomic_add"]}


_stream = internal(copy_or_stream.py_func)


def _copy_past_caches(target: int, source: int, nbytes: int) -> None:
    _stream(target, source, nbytes, False)
    full_fence()


@cache
def _past_caches() -> Callable[[int, int, int], None]:
    code = c_function(types.void(*[types.intp] * 3), _copy_past_caches)
    return code.callable(None, *[ctypes.c_int64] * 3)


class Inline:
    """The calls of one PE's host; `calls` has one for the base name of each operation."""

    def __init__(
        self,
        world: World,
        barrier: HostBarrier,
        teams: Teams,
        journal: Journal,
        registered: Registered,
        weak: WeakMemory | None = None,
    ) -> None:
        self._world, self._teams, self._journal = world, teams, journal
        self._registered = registered
        plain: dict[str, Callable[..., Any]] = {
            "my_pe": lambda: world.job.my_pe,
            "n_pes": lambda: world.job.n_pes,
            "pe_accessible": lambda pe: 0 <= pe < world.job.n_pes,
            "p": self._p,
            "g": lambda src, pe: self._element("g", src, pe)[0],
            "put": partial(self._put, "put"),
            "get": self._get,
            "iput": self._iput,
            "iget": self._iget,
            "put_signal": self._put_signal,
            "signal_op": self._signal_op,
            "signal_fetch": self._signal_fetch,
            "fence": lambda: None,  # copies happen in program order, and stay so on this machine
            "flush": lambda: None,  # they are complete on return
            "quiet": lambda: None,
            "ask_smem": ask_smem,
            "gemm_batched": multiply_batched,
            "gemm_scaled": multiply_scaled,
            "barrier_all": partial(barrier.join, "barrier"),
            "sync_all": partial(barrier.join, "sync"),
            "peer_array": self._peer_array,
            "multicast_array": self._multicast_array,
            **{name: partial(self._atomic, OPS[name]) for name in atomics.ROWS},
            **teams.calls,
        }
        if weak is not None:
            plain = weak.inline(plain)
        self.calls = {
            name: self._noted(OPS[name], self._sending(OPS[name], call))
            for name, call in plain.items()
        }

    def _sending(self, op: Op, call: Callable[..., Any]) -> Callable[..., Any]:
        """The same call, which first checks that its local memory can be sent to other nodes."""
        if not op.local or self._world.job.n_nodes == 1:
            return call

        def checked(**arguments: Any) -> Any:
            for name in op.local:
                self._registered.check(op, name, np.asarray(arguments[name]), arguments["pe"])
            return call(**arguments)

        return checked

    def _noted(self, op: Op, call: Callable[..., Any]) -> Callable[..., Any]:
        """The same call, which also notes what its row writes."""
        effects = written(op)
        if not effects:
            return call

        def noted(place: Place | None = None, **arguments: Any) -> Any:
            result = call(**arguments)
            for effect in effects:
                start = address_of(arguments[effect.array]) - self._world.heap
                nbytes = nbytes_of(effect, arguments)
                self._journal.note(start, nbytes, arguments["pe"], place)
            return result

        return noted

    def queued(self, op: Op, arguments: dict[str, Any]) -> Callable[[], Any]:
        """The call, for a stream: what it writes is noted with the line that is executed now."""
        call = self.calls[op.base]
        if written(op):
            call = partial(call, place=self._journal.place())
        return partial(call, **arguments)

    # --- copies

    def _put(self, name: str, dst: Any, src: Any, pe: int) -> None:
        copy_to(name, self._remote(name, dst, pe), np.asarray(src), self._copy)

    def _get(self, dst: Any, src: Any, pe: int) -> None:
        copy_from("get", dst, self._remote("get", src, pe), self._copy)

    def _copy(self, dst: Array, src: Array) -> None:
        """Copy a vector; a large one as in kernels, past the caches."""
        if 2 * src.nbytes < self._world.native["cached"][0] or not dst.flags.writeable:
            np.copyto(dst, src)
        else:
            _past_caches()(address_of(dst), address_of(src), src.nbytes)

    def _iput(self, dst: Any, src: Any, pe: int, **counts: int) -> None:
        copy_strided("iput", self._remote("iput", dst, pe), np.asarray(src), **counts)

    def _iget(self, dst: Any, src: Any, pe: int, **counts: int) -> None:
        copy_strided("iget", dst, self._remote("iget", src, pe), **counts)

    def _p(self, dst: Any, value: Any, pe: int) -> None:
        self._element("p", dst, pe)[0] = value

    # --- atomics and signals

    def _atomic(self, op: Op, dst: Any, pe: int, **values: Any) -> Any:
        return atomics.host(op, self._element(op.name, dst, pe), values)

    def _put_signal(self, dst: Any, src: Any, signal: Any, value: int, op: int, pe: int) -> None:
        update = self._signalling("put_signal", signal, value, op, pe)
        self._put("put_signal", dst, src, pe)
        update()

    def _signal_op(self, signal: Any, value: int, op: int, pe: int) -> None:
        self._signalling("signal_op", signal, value, op, pe)()

    def _signalling(
        self, name: str, signal: Any, value: int, op: int, pe: int
    ) -> Callable[[], None]:
        """The function that updates a signal; raises now if that cannot be done."""
        if op not in SIGNAL_OPS:
            raise error_of(BAD_SIGNAL_OP, name, op)
        target = self._signal(name, signal, pe)
        return partial(atomics.host, SIGNAL_OPS[op], target, {"value": value})

    def _signal_fetch(self, signal: Any) -> Any:
        target = self._signal("signal_fetch", signal, self._world.job.my_pe)
        return atomics.host(OPS["atomic_fetch"], target, {})

    def _signal(self, name: str, signal: Any, pe: int) -> Array:
        """Element 0 of a signal on another PE."""
        target = self._element(name, signal, pe)
        if not target.flags.aligned:
            raise error_of(UNALIGNED, name, address_of(target), target.itemsize)
        return target

    # --- memory of other PEs

    def _peer_array(self, array: Any, pe: int, name: str = "peer_array") -> Array:
        self._remote(name, array, pe)
        if pe not in self._world.job.node:
            raise unreachable(name, pe, self._world.job.my_pe)
        return self._world.peer(array, pe)

    def _multicast_array(self, array: Any, team: int) -> list[Array]:
        members = self._teams.members(team)
        return [self._peer_array(array, pe, "multicast_array") for pe in members]

    def _element(self, name: str, array: Any, pe: int) -> Array:
        """The first element of `array` on another PE, as an array."""
        return self._remote(name, array, pe, first=True)

    def _remote(self, name: str, array: Any, pe: int, first: bool = False) -> Array:
        """The elements of `array` on another PE, or the first of them, or the reason why not."""
        check_pe(name, pe, self._world.job.n_pes)
        if not isinstance(array, np.ndarray) or not self._world.holds(array):
            raise not_symmetric(name, array)
        if first:
            index: Any = (..., *(slice(1),) * array.ndim)
            array = array[index]
            if not array.size:
                raise error_of(EMPTY, name)
        check_contiguous(name, "the remote array", array)
        return self._world.peer(array, pe).reshape(-1)
