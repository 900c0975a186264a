"""What NVSHMEM's C functions do in kernels: the operation, on arrays made of their pointers.

Each takes an operation and `at`, which makes an array of a pointer and a number of elements, and
returns a device function with the C function's arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba.cuda import types

from gpushmem.compat.lowering import address, pointed, pointer
from gpushmem.compat.nvshmem.bindings import Qp_handle_index
from gpushmem.ops import OPS, QP_ANY
from gpushmem.simt.functions import inlined

Body = Callable[..., Any]
words, numbers = pointed(types.uint64), pointed(types.int32)
anything = pointed(types.uint8, any=True)
n_pes_of = OPS["team_n_pes"].function
ANY = int(Qp_handle_index.QP_ANY)


@inlined
def _number_of(qp):
    """A queue pair's number, by that of C."""
    return QP_ANY if qp == ANY else qp


def on_qp(op: Any) -> Any:
    """An operation whose last argument is a queue pair, as C numbers them."""

    @inlined
    def on_qp(*args):
        return op(*args[:-1], _number_of(args[-1]))

    return on_qp


def p(op: Any, at: Any) -> Body:
    def p(dest, value, pe, *qp):
        op(at(dest, 1), value, pe, *qp)

    return p


def g(op: Any, at: Any) -> Body:
    def g(source, pe, *qp):
        return op(at(source, 1), pe, *qp)

    return g


def copy(op: Any, at: Any) -> Body:
    def copy(dest, source, nelems, pe, *qp):
        op(at(dest, nelems), at(source, nelems), pe, *qp)

    return copy


def put_signal(op: Any, at: Any) -> Body:
    def put_signal(dest, source, nelems, sig_addr, signal, sig_op, pe, *qp):
        op(at(dest, nelems), at(source, nelems), words(sig_addr, 1), signal, sig_op, pe, *qp)

    return put_signal


def strided(op: Any, at: Any) -> Body:
    def strided(dest, source, dst, sst, nelems, pe):
        count = max(types.intp(nelems) - 1, 0)
        target, origin = at(dest, count * dst + 1), at(source, count * sst + 1)
        op(target, origin, dst, sst, nelems, pe)

    return strided


def broadcast(op: Any, at: Any) -> Body:
    def broadcast(team, dest, source, nelems, root):
        op(team, at(dest, nelems), at(source, nelems), root)
        return 0

    return broadcast


def fcollect(op: Any, at: Any) -> Body:
    def fcollect(team, dest, source, nelems):
        op(team, at(dest, n_pes_of(team) * nelems), at(source, nelems))
        return 0

    return fcollect


def alltoall(op: Any, at: Any) -> Body:
    def alltoall(team, dest, source, nelems):
        n = n_pes_of(team) * nelems
        op(team, at(dest, n), at(source, n))
        return 0

    return alltoall


def reducing(coll: str, which: str) -> Callable[[Any, Any], Body]:
    def made(op: Any, at: Any) -> Body:
        def reduce(team, dest, source, nreduce):
            op(team, at(dest, nreduce), at(source, nreduce), which)
            return 0

        def reducescatter(team, dest, source, nreduce):
            op(team, at(dest, nreduce), at(source, n_pes_of(team) * nreduce), which)
            return 0

        return reduce if coll == "reduce" else reducescatter

    return made


# --- atomic operations, signals and waits


def atomic(op: Any, at: Any) -> Body:
    def atomic(dest, value, pe):
        return op(at(dest, 1), value, pe)

    return atomic


def atomic_compare_swap(op: Any, at: Any) -> Body:
    def atomic_compare_swap(dest, cond, value, pe):
        return op(at(dest, 1), cond, value, pe)

    return atomic_compare_swap


def signal_op(op: Any) -> Body:
    def signal_op(sig_addr, signal, sig_op, pe, *qp):
        op(words(sig_addr, 1), signal, sig_op, pe, *qp)

    return signal_op


def signal_fetch(op: Any) -> Body:
    def signal_fetch(sig_addr):
        return op(words(sig_addr, 1))

    return signal_fetch


def signal_wait_until(op: Any) -> Body:
    def signal_wait_until(sig_addr, cmp, cmp_val):
        return op(words(sig_addr, 1), cmp, cmp_val)

    return signal_wait_until


def wait_until(op: Any, at: Any) -> Body:
    def wait_until(ivar, cmp, cmp_value):
        op(at(ivar, 1), cmp, cmp_value)

    return wait_until


def test(op: Any, at: Any) -> Body:
    def test(ivar, cmp, cmp_value):
        return types.int32(op(at(ivar, 1), cmp, cmp_value))

    return test


def several(called: str) -> Callable[[Any, Any], Body]:
    """Waits for, and tests of, all or any elements."""
    many = called.endswith("_vector")

    def made(op: Any, at: Any) -> Body:
        want = at if many else _only

        def several(ivars, nelems, status, cmp, cmp_value):
            if address(status) == 0:
                return op(at(ivars, nelems), None, cmp, want(cmp_value, nelems))
            given = numbers(status, nelems)
            return op(at(ivars, nelems), given, cmp, want(cmp_value, nelems))

        return several

    return made


def some(called: str) -> Callable[[Any, Any], Body]:
    """The same of some, whose indices are written."""
    many = called.endswith("_vector")

    def made(op: Any, at: Any) -> Body:
        want = at if many else _only

        def some(ivars, nelems, indices, status, cmp, cmp_value):
            found = words(indices, nelems)
            if address(status) == 0:
                return op(at(ivars, nelems), found, None, cmp, want(cmp_value, nelems))
            given = numbers(status, nelems)
            return op(at(ivars, nelems), found, given, cmp, want(cmp_value, nelems))

        return some

    return made


@inlined
def _only(cmp_value, nelems):
    return cmp_value


# --- numbers of PEs, meetings, order, shared memory


def same(op: Any, names: str) -> Body:
    """The operation itself, by C's names of its arguments: kernels may use them as keywords."""
    body = BY_NUMBER[len(names.split())](op)
    body.__code__ = body.__code__.replace(co_varnames=tuple(names.split()))
    return body


BY_NUMBER: dict[int, Callable[[Any], Any]] = {
    0: lambda op: lambda: op(),  # noqa: PLW0108
    1: lambda op: lambda a: op(a),  # noqa: PLW0108
    3: lambda op: lambda a, b, c: op(a, b, c),  # noqa: PLW0108
}


def meeting(op: Any, called: str) -> Body:
    def of_all():
        op()

    def of_team(team):
        op(team)
        return 0

    return of_all if called.endswith("_all") else of_team


def on_qps(op: Any) -> Body:
    def on_qps(pe, qp_index, num_qps):
        op(pe, numbers(qp_index, num_qps))

    return on_qps


def give_smem(op: Any) -> Body:
    def give_smem(smem, nbytes):
        op(anything(smem, nbytes))

    return give_smem


def mc_ptr() -> Body:
    """A null pointer, as where there is no NVLink switch."""

    def mc_ptr(team, ptr):
        return pointer(0)

    return mc_ptr


def ptr(op: Any) -> Body:
    """The address of symmetric memory on another PE."""

    def ptr(dest, pe):
        return pointer(address(op(anything(dest, 1), pe)))

    return ptr
