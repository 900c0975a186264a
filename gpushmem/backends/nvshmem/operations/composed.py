"""Operations that NVSHMEM lacks, or lacks in that form, written in Python on top of its own."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import cuda
from numba.cuda import cgutils, types

from gpushmem.backends.codegen import contiguous, with_signature
from gpushmem.backends.nvshmem.operations import gemm, ll, ll128, multicast
from gpushmem.backends.nvshmem.operations.device_calls import Value, call, data_of, intrinsic
from gpushmem.backends.nvshmem.operations.vectors import (
    SHARES,
    TOGETHER,
    copying,
    copying_rows,
    weighing,
)
from gpushmem.ops import (
    CMP_EQ,
    CMP_GE,
    CMP_GT,
    CMP_LT,
    CMP_NE,
    OPS,
    SMEM_BARRIERS_ONLY,
    SMEM_BYTES,
    SMEM_MINIMUM,
)
from gpushmem.ops.roles import Timeout
from gpushmem.ops.row import THREAD, Op

__all__ = ["CLOCK", "body_of", "nanoseconds", "parameters_of"]

Core = dict[str, Any]  # name of a row -> its intrinsic
Given = dict[str, Any]  # parameter -> type of the argument


CLOCK = "mov.u64 $0, %globaltimer;"


@intrinsic
def nanoseconds(typingctx: Any) -> Any:
    """The GPU's clock, which advances in steps of up to a microsecond."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.IntType(64), [])
        read = ir.InlineAsm(kind, CLOCK, "=l", side_effect=True)
        return builder.call(read, [])

    return types.int64(), codegen


@intrinsic
def counts(typingctx: Any, status: Any, index: Any) -> Any:
    """Whether `status`, an array or None, lets element `index` count."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        if isinstance(status, types.NoneType):
            return cgutils.true_bit
        array = context.make_array(status)(context, builder, args[0])
        found = builder.load(builder.gep(array.data, [args[1]]))
        return builder.icmp_signed("==", found, found.type(0))

    return types.boolean(status, types.intp), codegen


@intrinsic
def workspace(typingctx: Any, first: Any, count: Any) -> Any:
    """Words `first` to `first + count` of the symmetric memory that every PE has for `collect`."""
    result = types.Array(types.int64, 1, "C")

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        base = call(context, builder, "gpushmem_words", [])
        start = builder.add(base, builder.mul(args[0], args[0].type(8)))
        return contiguous(context, builder, result, start, args[1:])

    return result(types.intp, types.intp), codegen


@intrinsic
def is_mapped(typingctx: Any, array: Any, pe: Any) -> Any:
    """Whether loads and stores reach a symmetric array on `pe`."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        values = [Value(array, args[0]), Value(types.intp, args[1])]
        address = call(context, builder, "gpushmem_ptr", values)
        return builder.icmp_unsigned("!=", address, address.type(0))

    return types.boolean(array, types.intp), codegen


@intrinsic
def element(typingctx: Any, array: Any, index: Any) -> Any:
    """One element of a contiguous array, counted row by row, as an array."""
    result = types.Array(array.dtype, 1, "C")

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        start = builder.gep(data_of(context, builder, Value(array, args[0])), args[1:])
        return contiguous(context, builder, result, start, [args[1].type(1)])

    return result(array, types.intp), codegen


# --- waits: without a timeout NVSHMEM's own, otherwise tests until the time is over

# What a test answers if no element compares; these may also have no element to wait for.
ANSWERS = {"any": -1, "some": 0}
STATUS, TIMEOUT = -4, -1  # positions in the arguments of a wait


@cuda.jit(device=True)
def none_counts(given):
    for i in range(given[0].size):  # noqa: SIM110  (Numba has no `all` of generators)
        if counts(given[STATUS], i):
            return False
    return True


@cuda.jit(device=True)
def never(given):
    return False


def _wait(op: Op, core: Core, given: Given) -> Callable[..., Any]:
    timeout = given["timeout_ns"]
    if timeout is None or isinstance(timeout, types.NoneType | types.Omitted):
        forever = _for_signal(core) if op.base == "signal_wait_until" else _forever(core[op.name])
        return with_signature(op.base, parameters_of(op), forever)
    family = op.base.removesuffix("_vector").rpartition("_")[2]
    test = "test" if op.base == "signal_wait_until" else op.base.replace("wait_until", "test")
    hopeless = none_counts if family in ANSWERS else never
    body = _timed(core[test], ANSWERS.get(family, False), hopeless)
    return with_signature(op.base, parameters_of(op), body)


def _forever(wait: Any) -> Any:
    @cuda.jit(device=True)
    def forever(given):
        return wait(*given[:TIMEOUT])

    return forever


def _for_signal(core: Core) -> Any:
    """NVSHMEM's own loads the word again after its fence: that may be of a later signal."""
    look, acquire = core["signal_fetch"], _acquiring(core)

    @cuda.jit(device=True)
    def for_signal(given):
        signal, cmp, wanted = given[0], given[1], np.uint64(given[2])
        found = look(signal)
        while not compares(found, cmp, wanted):
            found = look(signal)
        acquire(signal)
        return found

    return for_signal


@cuda.jit(device=True)
def compares(found, cmp, wanted):
    if cmp == CMP_EQ:
        return found == wanted
    if cmp == CMP_NE:
        return found != wanted
    if cmp == CMP_GT:
        return found > wanted
    if cmp == CMP_GE:
        return found >= wanted
    if cmp == CMP_LT:
        return found < wanted
    return found <= wanted


def _acquiring(core: Core) -> Any:
    """What follows a load of a signal that has come: a fence, and the network's writes."""
    wait = core["signal_wait_until"]

    @cuda.jit(device=True)
    def acquire(signal):
        wait(signal, CMP_GE, 0)  # which ends at once

    return acquire


def _signal_fetch(op: Op, core: Core, given: Given) -> Callable[..., Any]:
    look, acquire = core["signal_fetch"], _acquiring(core)

    def signal_fetch(signal):
        found = look(signal)
        acquire(signal)
        return found

    return signal_fetch


def _timed(test: Any, nothing: int, hopeless: Any) -> Any:
    @cuda.jit(device=True)
    def timed(given):
        began = nanoseconds()
        while True:
            late = nanoseconds() - began >= given[TIMEOUT]
            answer = test(*given[:TIMEOUT])
            if answer != nothing:
                return answer
            if late or hopeless(given):
                return nothing

    return timed


# --- strided copies


# NVSHMEM has strided copies for mapped PEs only: between others elements go one by one.


def _iput(op: Op, core: Core, given: Given) -> Callable[..., Any]:
    near, p, share, together = core[op.name], core["p"], SHARES[op.scope], TOGETHER[op.scope]

    def iput(dst, src, dst_stride, src_stride, nelems, pe):
        if is_mapped(dst, pe):
            near(dst, src, dst_stride, src_stride, nelems, pe)
            return
        first, step = share()
        for i in range(first, nelems, step):
            p(element(dst, i * dst_stride), element(src, i * src_stride)[0], pe)
        together()

    return iput


def _iget(op: Op, core: Core, given: Given) -> Callable[..., Any]:
    near, g, share, together = core[op.name], core["g"], SHARES[op.scope], TOGETHER[op.scope]

    def iget(dst, src, dst_stride, src_stride, nelems, pe):
        if is_mapped(src, pe):
            near(dst, src, dst_stride, src_stride, nelems, pe)
            return
        first, step = share()
        for i in range(first, nelems, step):
            element(dst, i * dst_stride)[0] = g(element(src, i * src_stride), pe)
        together()

    return iget


def _put_signal(op: Op, core: Core, given: Given) -> Callable[..., Any]:
    """Over InfiniBand NVSHMEM's, of one thread, sends 0 bytes, which mlx5 takes for 2 GiB."""
    send, tell = core[op.name], core[op.base.replace("put_signal", "signal_op")]

    @cuda.jit(device=True)
    def put_signal(given):
        if given[1].size == 0:
            tell(*given[2:])
        else:
            send(*given)

    @cuda.jit(device=True)
    def of_a_group(given):
        send(*given)

    made = put_signal if op.scope == THREAD else of_a_group
    return with_signature(op.base, parameters_of(op), made)


# --- collectives. Everywhere member `(me + k) % n` comes k-th, so not all send to one at once.


def _broadcast(op: Op, core: Core, given: Given) -> Callable[..., Any]:
    with_root = core[op.name]

    def broadcast(team, dst, src, root=0):
        return with_root(team, dst, src, root)

    return broadcast


def _pe_accessible(op: Op, core: Core, given: Given) -> Callable[..., Any]:
    """NVSHMEM starts no job in which a PE cannot reach another."""
    n_pes = core["n_pes"]

    def pe_accessible(pe):
        return 0 <= pe < n_pes()

    return pe_accessible


def _collect(op: Op, core: Core, given: Given) -> Callable[..., Any]:
    """Each PE tells the others how much it sends; when all have told, all have room for it."""
    team_n_pes, team_my_pe, translate, n_pes = (core[name] for name in ASKING)
    fcollect, put, barrier = (core[name + op.form] for name in ("fcollect", "put", "barrier"))
    together = TOGETHER[op.scope]

    def collect(team, dst, src):
        n, me = team_n_pes(team), team_my_pe(team)
        row = team * (n_pes() + 1)
        counts, mine = workspace(row, n), workspace(row + n_pes(), 1)
        mine[0] = src.size
        together()
        fcollect(team, counts, mine)
        first = 0
        for k in range(me):
            first += counts[k]
        for k in range(n):
            put(dst[first : first + src.size], src, translate(team, (me + k) % n, 0))
        barrier(team)

    return collect


def _alltoalls(op: Op, core: Core, given: Given) -> Callable[..., Any]:
    team_n_pes, team_my_pe, translate, _ = (core[name] for name in ASKING)
    sync, barrier = (core[name + op.form] for name in ("sync", "barrier"))
    iput = cuda.jit(device=True)(_iput(OPS[f"iput{op.form}"], core, given))

    def alltoalls(team, dst, src, dst_stride, src_stride, nelems):
        n, me = team_n_pes(team), team_my_pe(team)
        sync(team)
        for k in range(n):
            member = (me + k) % n
            place, part = dst[me * nelems * dst_stride :], src[member * nelems * src_stride :]
            iput(place, part, dst_stride, src_stride, nelems, translate(team, member, 0))
        barrier(team)

    return alltoalls


def _multicast(op: Op, core: Core, given: Given) -> Callable[..., Any]:
    def multicast_array(array, team):
        return multicast.make(array, team)

    return multicast_array


def _copy(op: Op, core: Core, given: Given) -> Callable[..., Any]:
    copies = copying(op.scope)

    def copy(dst, src):
        copies(dst, src)

    return copy


def _put_ll(op: Op, core: Core, given: Given) -> Callable[..., Any]:
    puts = {"put_ll": ll, "put_ll128": ll128}[op.base].putting(op.scope)

    def put_ll(dst, src, flag, pe):
        puts(dst, src, flag, pe)

    return put_ll


def _copy_rows(op: Op, core: Core, given: Given) -> Callable[..., Any]:
    copies = copying_rows(op.scope)

    def copy_rows(dst, src, index):
        copies(dst, src, index)

    return copy_rows


def _sum_rows(op: Op, core: Core, given: Given) -> Callable[..., Any]:
    weigh = weighing(op.scope, given["dst"].dtype)

    def sum_rows(dst, src, index, weights):
        weigh(dst, src, index, weights)

    return sum_rows


def _ask_smem(op: Op, core: Core, given: Given) -> Callable[..., Any]:
    recommended, minimum, barriers_only = SMEM_BYTES

    def ask_smem(amount):
        if amount == SMEM_MINIMUM:
            return minimum
        return barriers_only if amount == SMEM_BARRIERS_ONLY else recommended

    return ask_smem


# --- all of them

CHOICES = {
    "ask_smem": _ask_smem,
    "broadcast": _broadcast,
    "collect": _collect,
    "put_signal": _put_signal,
    "qp_put_signal": _put_signal,
    "signal_fetch": _signal_fetch,
    "alltoalls": _alltoalls,
    "iput": _iput,
    "iget": _iget,
    "pe_accessible": _pe_accessible,
    "multicast_array": _multicast,
    "copy": _copy,
    "put_ll": _put_ll,
    "put_ll128": _put_ll,
    "copy_rows": _copy_rows,
    "sum_rows": _sum_rows,
    "gemm": gemm.choose,
}
ASKING = ("team_n_pes", "team_my_pe", "team_translate_pe", "n_pes")


def parameters_of(op: Op) -> list[inspect.Parameter]:
    """The parameters of the operation in kernels: without `stream`."""
    parameters = inspect.signature(op.function).parameters.values()
    return [parameter for parameter in parameters if parameter.name in op.params]


def body_of(op: Op, core: Core) -> Callable[..., Any]:
    """The function that Numba calls with the types of a call, for the function to compile."""
    choice = CHOICES.get(op.base, _wait if op.named(Timeout) else None)

    def choose(given: tuple[Any, ...]) -> Callable[..., Any]:
        if choice is None:
            raise LookupError(
                f"{op.base} has no lowering: add NVSHMEM's function to CALLS in "
                "backends/nvshmem/operations/lowering.py, or a closure to CHOICES in "
                "backends/nvshmem/operations/composed.py"
            )
        return choice(op, core, dict(zip(op.params, given, strict=True)))

    return with_signature(op.base, parameters_of(op), choose)
