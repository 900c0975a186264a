"""The operations in kernels: one device function per row of the operation table.

They are ordinary Python, compiled by the engine into the kernel that calls them. Shared helpers are
in `access`; atomics are in a file of their own.

Operations are complete when they return: a put is a copy into the peer's segment. Ordering then
depends on the compiler and the processor's store order (see docs/memory-model.md): `fence` is a
release fence, `quiet` a full one, signals are released and acquired. In warp and block forms the
last thread to arrive acts for all.
"""

from __future__ import annotations

import inspect
from functools import cache, partial
from typing import Any

from numba import types
from numba.cuda.cudadrv.driver import driver
from numba.extending import _Intrinsic as Intrinsic

from gpushmem.backends import argument_types
from gpushmem.backends.codegen import array_moved, with_signature
from gpushmem.backends.cpu.operations import (
    async_copies,
    atomics,
    collectives,
    combining,
    ll,
    mbarriers,
    smem,
    trace_ranges,
    vectors,
    waits,
)
from gpushmem.backends.cpu.operations.access import (
    address_of,
    aligned,
    as_world,
    check_pe,
    check_qp_of_operation,
    check_qps,
    check_strides,
    copy_one,
    copy_strided,
    itemsize_of,
    load_element,
    reach,
    remote,
    remote_element,
    size_of,
    store_element,
)
from gpushmem.backends.cpu.operations.blas import gemm
from gpushmem.backends.cpu.operations.collective_lock import one_at_a_time
from gpushmem.backends.cpu.operations.convergence import digest_of, words_of
from gpushmem.backends.cpu.operations.hook import (
    group_called,
    group_calls,
    is_observed,
    is_separated,
    observed,
    observers_of,
    take_over,
)
from gpushmem.backends.cpu.operations.multicast import multicast_array, multimem_store
from gpushmem.backends.cpu.operations.nodes import near_address
from gpushmem.backends.cpu.operations.weighing import copy_rows, sum_rows
from gpushmem.backends.cpu.weak import body_of as weak_body
from gpushmem.backends.cpu.weak import by_any_thread
from gpushmem.backends.operation_calls import Operation
from gpushmem.backends.operation_errors import BAD_SIGNAL_OP, TOO_SMALL
from gpushmem.native.memory import (
    atomic_add_word,
    full_fence,
    intrinsic,
    release_fence,
    store_release,
)
from gpushmem.ops import OPS, SIGNAL_ADD, SIGNAL_SET
from gpushmem.ops.row import BLOCK, THREAD, WARP, Op
from gpushmem.simt.embed import bind
from gpushmem.simt.functions import ITSELF, KeptDispatcher, Warps, call_device, device
from gpushmem.simt.thread import (
    arrive_in_call,
    arrive_in_step,
    begin_call,
    block_group,
    fail_if,
    mark_of,
    release,
    text_word,
    user_word,
    warp_group,
)
from gpushmem.source_lines import is_users

__all__ = ["BODIES", "install"]


# --- the operations in their plain form


def my_pe():
    return as_world(user_word()).my_pe


def n_pes():
    return as_world(user_word()).n_pes


def pe_accessible(pe):
    return 0 <= pe < as_world(user_word()).n_pes


def p(dst, value, pe):
    target = remote_element(dst, pe)
    store_element(dst, target, value)


def g(src, pe):
    return load_element(src, remote_element(src, pe))


def put(dst, src, pe):
    n = size_of(src)
    fail_if(size_of(dst) < n, TOO_SMALL, size_of(dst), n, address_of(dst), address_of(src))
    nbytes = n * itemsize_of(src)
    copy_one(remote(address_of(dst), nbytes, pe), address_of(src), nbytes)


def get(dst, src, pe):
    n = size_of(dst)
    have = size_of(src)
    fail_if(have < n, TOO_SMALL, n, have, address_of(dst), address_of(src))
    nbytes = n * itemsize_of(dst)
    copy_one(address_of(dst), remote(address_of(src), nbytes, pe), nbytes)


def iput(dst, src, dst_stride, src_stride, nelems, pe):
    check_strides(dst, src, dst_stride, src_stride, nelems)
    nbytes = reach(dst_stride, nelems) * itemsize_of(dst)
    target = remote(address_of(dst), nbytes, pe)
    copy_strided(dst, target, dst_stride, address_of(src), src_stride, nelems)


def iget(dst, src, dst_stride, src_stride, nelems, pe):
    check_strides(dst, src, dst_stride, src_stride, nelems)
    source = remote(address_of(src), reach(src_stride, nelems) * itemsize_of(src), pe)
    copy_strided(dst, address_of(dst), dst_stride, source, src_stride, nelems)


def put_signal(dst, src, signal, value, op, pe):
    device_put(dst, src, pe)
    device_signal_op(signal, value, op, pe)


def signal_op(signal, value, op, pe):
    address = aligned(remote_element(signal, pe), itemsize_of(signal))
    if op == SIGNAL_SET:
        store_release(address, value)
    elif op == SIGNAL_ADD:
        atomic_add_word(address, value)
    else:
        fail_if(True, BAD_SIGNAL_OP, op, 0, 0, 0)


def qp_fence(pe, qps):
    check_pe(pe)
    check_qps(address_of(qps), size_of(qps))
    release_fence()


def qp_quiet(pe, qps):
    check_pe(pe)
    check_qps(address_of(qps), size_of(qps))
    full_fence()


def fence():
    release_fence()


def flush():
    pass  # a copy has read its source when it returns


def quiet():
    full_fence()


@device
def peer_address(array, pe):
    return remote(address_of(array), size_of(array) * itemsize_of(array), pe)


@intrinsic
def peer_array(typingctx: Any, array: Any, pe: Any) -> Any:
    """Not a device function: these cannot return an array that they create."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        find = near_address if is_separated() else peer_address
        address = call_device(builder, find, types.intp(array, types.intp), args)
        return array_moved(context, builder, array, args[0], address)

    return array(array, types.intp), codegen


# Row of the table -> its plain form here. The other forms are made from it.
BODIES = {
    f.__name__: f
    for f in (
        my_pe, n_pes, pe_accessible, p, g, put, get, iput, iget, put_signal, signal_op, fence,
        flush, quiet, qp_fence, qp_quiet, multicast_array, multimem_store, combining.copy,
        gemm, copy_rows, sum_rows,
    )
} | atomics.BODIES | waits.BODIES | collectives.BODIES | smem.BODIES | vectors.BODIES | {
    **ll.BODIES, **async_copies.BODIES, **mbarriers.BODIES, "peer_array": peer_array
}  # fmt: skip

# Of these there is one for each value of `op`.
REDUCING = collectives.REDUCING | combining.REDUCING | ll.REDUCING

device_put, device_signal_op = device(put), device(signal_op)

GROUPS = {WARP: warp_group, BLOCK: block_group}


def _in_scope(op: Op, body: Any, which: str = "") -> Any:
    """The device function of a row: its observers' code, then `body`, once in the row's scope."""
    if isinstance(body, Intrinsic):
        return body
    parameters = inspect.signature(body).parameters
    observing = [observer.generate for observer in observers_of(op)]
    # What others observe is not in the package's source, which the store's key has.
    ours = not any(is_users(generate.__module__) for generate in observing)
    label = " ".join(["cpu", op.name, which, *(generate.__module__ for generate in observing)])
    # A wait is over for all threads that wait for the same at once.
    waits_alike = op.plain in waits.BODIES or op.facts.orders == "phase"
    together: Any = ITSELF if waits_alike else None

    def made(function: Any, label: str = label) -> Any:
        return KeptDispatcher(function, label, together) if ours else device(function)

    if op.scope == THREAD and not op.facts.meets and not is_observed(op):
        return made(body)
    inner = one_at_a_time(op, body) if op.facts.meets else _taking_a_tuple(body)
    inner = observed(op, parameters, inner)
    if op.scope != THREAD:
        words = f"{op.name}:{which}:{' '.join(parameters)}"
        if is_plain(op, body) and op.scope == BLOCK:
            together = made(with_signature(op.name, parameters.values(), inner), f"{label} for all")
        elif is_plain(op, body) and not op.facts.meets and op.plain not in waits.BODIES:
            each = _in_step(words, inner)
            each = made(with_signature(op.name, parameters.values(), each), f"{label} in step")
            together = Warps(each)
        inner = _once(op, words, inner)
    return made(with_signature(op.name, parameters.values(), inner))


def _on_qp(op: Op, body: Any) -> Any:
    """The body of an operation that takes a queue pair, too, which makes no difference to it."""
    call = _taking_a_tuple(body)

    @device
    def on_qp(given):
        check_qp_of_operation(given[-1])
        return call(given[:-1])

    return with_signature(op.base, op.params, on_qp)


def _taking_a_tuple(body: Any) -> Any:
    body = device(body)

    @device
    def call(given):
        return body(*given)

    return call


def _once(op: Op, label: str, body: Any) -> Any:
    """All threads of the scope call with the same arguments; the last one calls `body` for all."""
    group_of, name = GROUPS[op.scope], op.name
    first, last = by_any_thread(op, body) or (nothing_yet, for_all(body))

    @device
    def call(given):
        group, what = group_of(), text_word(name)
        first(group, given)
        mark = digest_of(label, given)
        if mark_of(group) != mark:
            begin_call(group, what, mark, words_of(label, given))
        if arrive_in_call(group, what):
            last(group, given)
            release(group)

    @device
    def observed_(given):
        calls()
        call(given)
        called()

    before, after = group_calls(op), group_called(op)
    if before is None and after is None:
        return call
    calls, called = before or nothing_more, after or nothing_more
    return observed_


def _in_step(label: str, body: Any) -> Any:
    """The same by all threads of a block in step, one by one: each warp's last calls `body`."""

    @device
    def call(given):
        what = arrive_in_step(digest_of(label, given))
        if what > 0:
            body(given)
        return 1 if what < 0 else 0

    return call


def is_plain(op: Op, body: Any) -> bool:
    """Whether a call by all threads of a scope is one by any of them, and nothing more."""
    followed = group_calls(op) is not None or group_called(op) is not None
    return by_any_thread(op, body) is None and not followed


@device
def nothing_more():
    pass


@device
def nothing_yet(group, given):
    pass


def for_all(body: Any) -> Any:
    """What the last thread to arrive does for its group."""

    @device
    def act(group, given):
        body(given)

    return act


def _chosen(row: Op, bodies: dict[str, Any]) -> Any:
    """An operation whose last argument, the literal `op`, selects one of `bodies`."""

    @cache
    def meant(value: str) -> Any:
        return _in_scope(row, bodies[value], value)

    def choose(typingctx: Any, *given: Any) -> Any:
        value = argument_types.literal_reduction(row, given[-1])
        types_ = tuple(map(types.unliteral, given[:-1]))
        meant(value).compile_device(types_)  # so that its errors are found here

        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            return call_device(builder, meant(value), types.void(*types_), args[:-1])

        return types.void(*types_, given[-1]), codegen

    definition = with_signature(row.name, ["typingctx", *row.params], lambda given: choose(*given))
    return intrinsic(definition, prefer_literal=True)


def lowering_of(op: Op) -> Any:
    """The meaning of a row of the table in kernels."""
    if op.base in trace_ranges.MEANINGS:
        return trace_ranges.MEANINGS[op.base](op)
    late = weak_body(op)
    if op.base in REDUCING:
        return _chosen(op, late or REDUCING[op.base])
    body = late or BODIES.get(op.plain)
    if body is None:
        raise LookupError(
            f"{op.base} has no lowering: add it to BODIES in backends/cpu/lowering.py"
        )
    if "qp" in op.params and "qp" not in inspect.signature(body).parameters:
        body = _on_qp(op, body)
    return _in_scope(op, body)


# numba.cuda.jit looks for a GPU before it looks at the kernel.
INSTEAD = """

Kernels of numba.cuda.jit need a GPU. On gpushmem's cpu backend decorate them with gpushmem.jit
instead, or run them with gpushmem.simt.numba_cuda (docs/numba-cuda.md)"""


def install() -> None:
    """Give every row of the operation table its meaning in kernels on this backend."""
    if take_over("cpu"):
        for function, operation in _operations().items():
            bind(function, operation)


@cache
def _operations() -> dict[Any, Operation]:
    """The operation of each function of the table."""
    if driver.initialization_error is not None:  # numba-cuda's error for its own kernels
        driver.initialization_error += INSTEAD
    made = {}
    for op in OPS.values():
        if op.kernel:
            # Waits let others run themselves.
            polls = (op.hears and op.name not in waits.BODIES) or op.base == "load_vector"
            made[op.function] = operation = Operation(op, partial(lowering_of, op), polls=polls)
            if op.base in REDUCING or op.base in trace_ranges.MEANINGS:
                _ = operation.meaning  # Numba must know intrinsics before it compiles
    return made
