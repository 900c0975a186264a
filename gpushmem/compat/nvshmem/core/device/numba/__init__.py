"""Functions of kernels, by the names of `nvshmem.core.device.numba`: bindings to operations.

Each takes arrays, and moves as many elements as the shorter one has.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from numba.cuda.extending import overload

from gpushmem.artifacts.compile_errors import Refused
from gpushmem.backends.cpu.operations.access import size_of
from gpushmem.compat.lowering import bound, first, fitted, name
from gpushmem.compat.nvshmem import bindings
from gpushmem.compat.nvshmem.bindings.device.numba import SCOPES, bodies
from gpushmem.ops import OPS
from gpushmem.simt.functions import inlined

SmemAmount = bindings.Smem_amount
__all__ = ["SmemAmount"]

_parameters_of: dict[str, str] = {}


def parameters_of(called: str) -> list[str]:
    """The names by which a kernel may give the arguments of a function."""
    if called not in _parameters_of:
        return list(OPS[called].params)
    return [each.partition("=")[0] for each in _parameters_of[called].split(", ")]


def _public(called: str, body: Callable[..., Any]) -> None:
    """A name that means a device function, with its parameters."""
    parameters = str(inspect.signature(body))[1:-1]
    _parameters_of[called] = parameters
    globals()[called] = bound(name(called, parameters, f"{called}({parameters}), in kernels"), body)
    __all__.append(called)


def _same(called: str) -> None:
    """A name that is an operation, argument by argument."""
    globals()[called] = OPS[called].function
    __all__.append(called)


def _put(op: Any) -> Callable[..., Any]:
    def put(dst, src, pe):
        n = fitted(size_of(dst), size_of(src), size_of(src))
        op(first(dst, n), first(src, n), pe)

    return put


def _get(op: Any) -> Callable[..., Any]:
    def get(dst, src, pe):
        n = fitted(size_of(dst), size_of(src), size_of(dst))
        op(first(dst, n), first(src, n), pe)

    return get


def _put_signal(op: Any) -> Callable[..., Any]:
    def put_signal(dst, src, signal_var, signal_val, signal_op, pe):
        n = fitted(size_of(dst), size_of(src), size_of(src))
        op(first(dst, n), first(src, n), signal_var, signal_val, signal_op, pe)

    return put_signal


MOVED = {"put": _put, "get": _get, "put_signal": _put_signal}
for _base, _body in MOVED.items():
    for _form in ("", "_nbi"):
        for _scope in SCOPES:
            _called = f"{_base}{_form}{_scope}"
            _public(_called, _body(OPS[_called].function))


def _p(op: Any) -> Callable[..., Any]:
    def p(dst, src, pe):
        op(first(dst, size_of(dst)), src, pe)

    return p


def _g(op: Any) -> Callable[..., Any]:
    def g(src, pe):
        return op(first(src, size_of(src)), pe)

    return g


_public("p", _p(OPS["p"].function))
_public("g", _g(OPS["g"].function))


# --- atomic operations: the same arguments, of which one may have another name


def _fetch(op: Any) -> Callable[..., Any]:
    def atomic_fetch(src, pe):
        return op(src, pe)

    return atomic_fetch


for _called, _op in OPS.items():
    if _called == "atomic_fetch":
        _public(_called, _fetch(_op.function))
    elif _called.startswith("atomic_"):
        _same(_called)


# --- numbers of PEs, meetings, signals, shared memory

for _called in ("my_pe", "n_pes", "give_smem", "release_smem"):
    _same(_called)
for _called in ("team_my_pe", "team_n_pes"):
    _same(_called)
for _called in ("barrier", "barrier_all", "sync", "sync_all"):
    for _scope in SCOPES:
        _same(f"{_called}{_scope}")


def _ask_smem(op: Any) -> Callable[..., Any]:
    def ask_smem(flag):
        return op(flag)

    return ask_smem


_public("ask_smem", _ask_smem(OPS["ask_smem"].function))


def _signal_op(op: Any) -> Callable[..., Any]:
    def signal_op(signal_var, signal_val, signal_op, pe):
        op(signal_var, signal_val, signal_op, pe)

    return signal_op


def _signal_wait(op: Any) -> Callable[..., Any]:
    def signal_wait(signal_var, signal_op, signal_val):
        return op(signal_var, signal_op, signal_val)

    return signal_wait


_public("signal_op", _signal_op(OPS["signal_op"].function))
_public("signal_wait", _signal_wait(OPS["signal_wait_until"].function))


# --- collectives


def _broadcast(op: Any) -> Callable[..., Any]:
    def broadcast(team, dst_array, src_array, root=0):
        n = fitted(size_of(dst_array), size_of(src_array), size_of(src_array))
        op(team, first(dst_array, n), first(src_array, n), root)

    return broadcast


def _fcollect(op: Any) -> Callable[..., Any]:
    def fcollect(team, dst_array, src_array):
        op(team, first(dst_array, size_of(dst_array)), first(src_array, size_of(src_array)))

    return fcollect


n_pes_of = OPS["team_n_pes"].function


def _alltoall(op: Any) -> Callable[..., Any]:
    def alltoall(team, dst_array, src_array):
        n = n_pes_of(team)
        whole = size_of(src_array) // n * n
        op(team, first(dst_array, size_of(dst_array)), first(src_array, whole))

    return alltoall


def _reduce(op: Any, which: str) -> Callable[..., Any]:
    def reduce(team, dst_array, src_array):
        n = fitted(size_of(dst_array), size_of(src_array), size_of(dst_array))
        op(team, first(dst_array, n), first(src_array, n), which)

    return reduce


def _reducescatter(op: Any, which: str) -> Callable[..., Any]:
    def reducescatter(team, dst_array, src_array):
        n = size_of(dst_array)
        whole = min(n * n_pes_of(team), size_of(src_array))
        op(team, first(dst_array, n), first(src_array, whole), which)

    return reducescatter


COLLECTIVES = {"broadcast": _broadcast, "fcollect": _fcollect, "alltoall": _alltoall}
for _scope in SCOPES:
    for _base, _body in COLLECTIVES.items():
        _called = f"{_base}{_scope}"
        _public(_called, _body(OPS[_called].function))


def _by_literal(called: str, made: Callable[[Any, str], Callable[..., Any]]) -> None:
    """A reduction, whose last argument is written in the call."""
    _parameters_of[called] = parameters = "team, dst_array, src_array, op"
    globals()[called] = function = name(called, parameters, f"{called}({parameters}), in kernels")
    __all__.append(called)

    @overload(function, prefer_literal=True)
    def chosen(team, dst_array, src_array, op):
        which = getattr(op, "literal_value", None)
        if not isinstance(which, str):
            raise Refused(f"{called}: op must be a text written in the call, not {op}")
        body = inlined(made(OPS[called].function, which))

        def impl(team, dst_array, src_array, op):
            body(team, dst_array, src_array)

        return impl


for _scope in SCOPES:
    _by_literal(f"reduce{_scope}", _reduce)
    _by_literal(f"reducescatter{_scope}", _reducescatter)


# --- other PEs' memory


def _array(called: str, parameters: str, made: Callable[..., Any]) -> None:
    """A function that returns an array, which functions of the engine cannot: put in its caller."""
    function = name(called, parameters, f"{called}({parameters}), in kernels")
    _parameters_of[called] = parameters
    overload(function, inline="always")(made)
    globals()[called] = function
    __all__.append(called)


peer_array, multicast_array = OPS["peer_array"].function, OPS["multicast_array"].function
_array("get_peer_array", "arr, pe", lambda arr, pe: lambda arr, pe: peer_array(arr, pe))  # noqa: PLW0108
_array(
    "get_multicast_array", "team, arr",
    lambda team, arr: lambda team, arr: multicast_array(arr, team),
)  # fmt: skip


# Not in `__all__`, as there: pointers to another PE's memory.
ptr = bound(name("ptr", "dest, pe", "ptr(dest, pe), in kernels"), bodies.ptr(peer_array))
mc_ptr = bound(name("mc_ptr", "team, ptr", "mc_ptr(team, ptr), in kernels"), bodies.mc_ptr())
