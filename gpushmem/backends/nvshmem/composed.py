"""Operations that NVSHMEM has not, or not in that form, in Python on top of those it has."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import cuda
from numba.cuda import cgutils, types

from gpushmem.backends.code import contiguous
from gpushmem.backends.nvshmem import gemm, multicast
from gpushmem.backends.nvshmem.native import call, intrinsic
from gpushmem.ops.row import BLOCK, THREAD, WARP, Op

__all__ = ["body_of"]

Core = dict[str, Any]  # name of a row -> its intrinsic


@intrinsic
def nanoseconds(typingctx: Any) -> Any:
    """What the GPU's clock shows. It goes on in steps of up to a microsecond."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.IntType(64), [])
        read = ir.InlineAsm(kind, "mov.u64 $0, %globaltimer;", "=l", side_effect=True)
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
    """Words `first` to `first + count` of what every PE has for `collect`: symmetric memory."""
    result = types.Array(types.int64, 1, "C")

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        base = call(context, builder, "gpushmem_words", [])
        start = builder.add(base, builder.mul(args[0], args[0].type(8)))
        return contiguous(context, builder, result, start, args[1:])

    return result(types.intp, types.intp), codegen


# --- waits: without a timeout NVSHMEM's own, else tests until the clock says so

FOREVER = """
def {name}({params}, timeout_ns=None):
    return wait({params})
"""
TIMED = """
def {name}({params}, timeout_ns=None):
    began = nanoseconds()
    while True:
        late = nanoseconds() - began >= timeout_ns
        answer = test({params})
        if answer != {nothing}:
            return answer
        if late or {hopeless}:
            return {nothing}
"""
# What a test answers if nothing compares; for these there may be nothing to wait for.
ANSWERS = {"any": "-1", "some": "0"}
HOPELESS = "none_counts(status, ivars.size)"


@cuda.jit(device=True)
def none_counts(status, n):
    for i in range(n):  # noqa: SIM110  (Numba has no `all` of generators)
        if counts(status, i):
            return False
    return True


def _wait(op: Op, core: Core, given: dict[str, Any]) -> Callable[..., Any]:
    timeout = given["timeout_ns"]
    params = ", ".join(op.params[:-1])
    if timeout is None or isinstance(timeout, types.NoneType | types.Omitted):
        return _made(op, FOREVER.format(name=op.name, params=params), wait=core[op.name])
    family = op.base.removesuffix("_vector").rpartition("_")[2]
    tests = "test" if op.base == "signal_wait_until" else op.base.replace("wait_until", "test")
    text = TIMED.format(
        name=op.name, params=params, nothing=ANSWERS.get(family, "False"),
        hopeless=HOPELESS if family in ANSWERS else "False",
    )  # fmt: skip
    return _made(op, text, test=core[tests], nanoseconds=nanoseconds, none_counts=none_counts)


# --- collectives. Everywhere member `(me + k) % n` comes k-th, so not all send to one at once.

BROADCAST = """
def broadcast(team, dst, src, root=0):
    return native(team, dst, src, root)
"""
# Each PE tells the others how much it sends; when all have told, all have room for it.
COLLECT = """
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
        pe = team_translate_pe(team, (me + k) % n, 0)
        put(dst[first : first + src.size], src, pe)
    barrier(team)
"""
ALLTOALLS = """
def alltoalls(team, dst, src, dst_stride, src_stride, nelems):
    n, me = team_n_pes(team), team_my_pe(team)
    sync(team)
    for k in range(n):
        member = (me + k) % n
        pe = team_translate_pe(team, member, 0)
        place, part = dst[me * nelems * dst_stride :], src[member * nelems * src_stride :]
        iput(place, part, dst_stride, src_stride, nelems, pe)
    barrier(team)
"""


@cuda.jit(device=True)
def alone():
    pass


@cuda.jit(device=True)
def in_warp():
    cuda.syncwarp()


@cuda.jit(device=True)
def in_block():
    cuda.syncthreads()


TOGETHER = {THREAD: alone, WARP: in_warp, BLOCK: in_block}


def _collective(text: str, *scoped: str) -> Callable[..., Callable[..., Any]]:
    def choose(op: Op, core: Core, given: dict[str, Any]) -> Callable[..., Any]:
        used = {name: core[name + op.form] for name in scoped} | {n: core[n] for n in ASKING}
        together = TOGETHER[op.scope]
        native = core.get(op.name)
        return _made(op, text, native=native, together=together, workspace=workspace, **used)

    return choose


# NVSHMEM starts no job in which a PE cannot reach another.
PE_ACCESSIBLE = """
def pe_accessible(pe):
    return 0 <= pe < n_pes()
"""


def _pe_accessible(op: Op, core: Core, given: dict[str, Any]) -> Callable[..., Any]:
    return _made(op, PE_ACCESSIBLE, n_pes=core["n_pes"])


MULTICAST = """
def multicast_array(array, team):
    return make_multicast(array, team)
"""


def _multicast(op: Op, core: Core, given: dict[str, Any]) -> Callable[..., Any]:
    return _made(op, MULTICAST, make_multicast=multicast.make)


# --- all of them

CHOICES = {
    "broadcast": _collective(BROADCAST),
    "collect": _collective(COLLECT, "fcollect", "put", "barrier"),
    "alltoalls": _collective(ALLTOALLS, "iput", "sync", "barrier"),
    "pe_accessible": _pe_accessible,
    "multicast_array": _multicast,
    "gemm": gemm.choose,
}
ASKING = ("team_n_pes", "team_my_pe", "team_translate_pe", "n_pes")
FACTORY = """
def {name}({signature}):
    return choose(dict({given}))
"""


def _made(op: Op, text: str, **scope: Any) -> Callable[..., Any]:
    """The function whose source is `text`."""
    exec(text, scope)  # noqa: S102
    made: Callable[..., Any] = scope[op.base]
    return made


def body_of(op: Op, core: Core) -> Callable[..., Any]:
    """What Numba asks, with the types of a call, for the function to be compiled for it."""
    choice = CHOICES.get(op.base, _wait)
    parameters = inspect.signature(op.function).parameters.values()
    mine = [p.replace(annotation=p.empty) for p in parameters if p.name in op.params]
    text = FACTORY.format(
        name=op.base, signature=", ".join(map(str, mine)),
        given=", ".join(f"{name}={name}" for name in op.params),
    )  # fmt: skip
    return _made(op, text, choose=lambda given: choice(op, core, given))
