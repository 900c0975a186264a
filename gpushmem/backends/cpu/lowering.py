"""The operations inside kernels: one device function per row of the operation table.

They are ordinary Python, compiled by the engine into the kernel that calls them. What
several operations need is in `access`; atomics are in a file of their own.

Operations complete at once: a put is a copy into the peer's segment, done when it returns.
Ordering is then a matter of the compiler and of the processor's store order (see
docs/memory-model.md): `fence` is a release fence, `quiet` a full one, signals are released and
acquired. Warp and block forms let the last thread to arrive act for all.
"""

from __future__ import annotations

from typing import Any

from numba import types
from numba.cuda.core.errors import NumbaTypeError

from gpushmem.backends.cpu import atomics, waits
from gpushmem.backends.cpu.access import (
    BAD_SIGNAL_OP,
    BAD_STRIDE,
    OUTSIDE,
    TOO_SMALL,
    address_of,
    as_world,
    copy_element,
    itemsize_of,
    load_element,
    nothing,
    remote,
    remote_element,
    size_of,
    store_element,
)
from gpushmem.backends.cpu.collective import ARRIVED, GENERATION
from gpushmem.ops import CMP_NE, OPS, SIGNAL_ADD, SIGNAL_SET
from gpushmem.ops.table import BLOCK, THREAD, WARP, Op
from gpushmem.simt.native import (
    atomic_add_word,
    copy_bytes,
    full_fence,
    intrinsic,
    load_acquire,
    release_fence,
    store_release,
)
from gpushmem.simt.primitives import (
    arrive,
    begin_wait,
    block_group,
    end_wait,
    fail_if,
    pause,
    release,
    text_word,
    user_word,
    warp_group,
)
from gpushmem.simt.target import bind, device

__all__ = ["BODIES", "install"]


def _arrays_checker(name: str) -> Any:
    @intrinsic
    def check(typingctx: Any, dst: Any, src: Any) -> Any:
        """Refuse, when the kernel is compiled, arrays that cannot be copied between."""
        for what, typ in (("dst", dst), ("src", src)):
            if not isinstance(typ, types.Array):
                raise NumbaTypeError(f"{name}: {what} must be an array, not {typ}")
            if typ.layout != "C":
                raise NumbaTypeError(
                    f"{name}: {what} is not contiguous ({typ}): give the array it is part of to "
                    "iput or iget, or copy it to an array that is"
                )
        if dst.dtype != src.dtype:
            raise NumbaTypeError(
                f"{name}: dst is an array of {dst.dtype}, src of {src.dtype}; "
                "they must have the same dtype"
            )
        return types.void(dst, src), nothing

    return check


@intrinsic
def check_op(typingctx: Any, signal: Any, value: Any) -> Any:
    """Refuse, when the kernel is compiled, a signal that is no uint64 array."""
    if not isinstance(signal, types.Array) or signal.dtype != types.uint64:
        raise NumbaTypeError(f"signal_op: signal must be an array of uint64, not {signal}")
    if not isinstance(value, types.Integer):
        raise NumbaTypeError(f"signal_op: value must be an integer, not {value}")
    return types.void(signal, value), nothing


check_put, check_get, check_iput, check_iget = (
    _arrays_checker(name) for name in ("put", "get", "iput", "iget")
)


# --- the operations in their plain form


def my_pe():
    return as_world(user_word()).my_pe


def n_pes():
    return as_world(user_word()).n_pes


def p(dst, value, pe):
    store_element(dst, remote_element(dst, pe), value)


def g(src, pe):
    return load_element(src, remote_element(src, pe))


def put(dst, src, pe):
    check_put(dst, src)
    n = size_of(src)
    fail_if(size_of(dst) < n, TOO_SMALL, size_of(dst), n, 0, 0)
    nbytes = n * itemsize_of(src)
    copy_bytes(remote(address_of(dst), nbytes, pe), address_of(src), nbytes)


def get(dst, src, pe):
    check_get(dst, src)
    n = size_of(dst)
    fail_if(size_of(src) < n, TOO_SMALL, size_of(dst), size_of(src), 0, 0)
    nbytes = n * itemsize_of(dst)
    copy_bytes(address_of(dst), remote(address_of(src), nbytes, pe), nbytes)


@device
def reach(stride, n):
    """Elements from the first to the last of `n` that lie `stride` apart."""
    return (n - 1) * stride + 1 if n > 0 else 0


@device
def check_strides(dst, src, dst_stride, src_stride, n):
    bad = dst_stride < 1 or src_stride < 1 or n < 0
    fail_if(bad, BAD_STRIDE, dst_stride, src_stride, n, 0)
    have, need = size_of(src), reach(src_stride, n)
    fail_if(need > have, OUTSIDE, need - 1, have, 0, 0)
    have, need = size_of(dst), reach(dst_stride, n)
    fail_if(need > have, OUTSIDE, need - 1, have, 0, 0)


@device
def copy_strided(array, target, target_stride, source, source_stride, n):
    step = itemsize_of(array)
    for i in range(n):
        copy_element(array, target + i * target_stride * step, source + i * source_stride * step)


def iput(dst, src, dst_stride, src_stride, nelems, pe):
    check_iput(dst, src)
    check_strides(dst, src, dst_stride, src_stride, nelems)
    target = remote(address_of(dst), reach(dst_stride, nelems) * itemsize_of(dst), pe)
    copy_strided(dst, target, dst_stride, address_of(src), src_stride, nelems)


def iget(dst, src, dst_stride, src_stride, nelems, pe):
    check_iget(dst, src)
    check_strides(dst, src, dst_stride, src_stride, nelems)
    source = remote(address_of(src), reach(src_stride, nelems) * itemsize_of(src), pe)
    copy_strided(dst, address_of(dst), dst_stride, source, src_stride, nelems)


def put_signal(dst, src, signal, value, op, pe):
    device_put(dst, src, pe)
    device_signal_op(signal, value, op, pe)


def signal_op(signal, value, op, pe):
    check_op(signal, value)
    address = remote_element(signal, pe)
    if op == SIGNAL_SET:
        store_release(address, value)
    elif op == SIGNAL_ADD:
        atomic_add_word(address, value)
    else:
        fail_if(True, BAD_SIGNAL_OP, op, 0, 0, 0)


def fence():
    release_fence()


def quiet():
    full_fence()


def barrier_all():
    # Central, as on the host (see `collective`): the increment publishes, the load receives.
    world = as_world(user_word())
    control = world.control
    generation = load_acquire(control + GENERATION)
    if atomic_add_word(control + ARRIVED, 1) == world.n_pes - 1:
        store_release(control + ARRIVED, 0)
        store_release(control + GENERATION, generation + 1)
    else:
        begin_wait(text_word("barrier_all"), control + GENERATION, CMP_NE, generation, 8)
        while load_acquire(control + GENERATION) == generation:
            pause()
        end_wait()


# Row of the table -> its plain form here. The other forms are made from it.
BODIES = {
    f.__name__: f
    for f in (
        my_pe, n_pes, p, g, put, get, iput, iget, put_signal, signal_op, fence, quiet, barrier_all,
        *atomics.BODIES,
    )
} | waits.BODIES  # fmt: skip

device_put, device_signal_op = device(put), device(signal_op)

GROUPS = {WARP: warp_group, BLOCK: block_group}
SCOPED = """
def {name}({params}):
    group = group_of()
    if arrive(group, text_word({name!r})):
        body({params})
        release(group)
"""


def lowering_of(op: Op) -> Any:
    """The device function for one row of the table."""
    body = BODIES[op.base]
    if op.scope == THREAD:
        return device(body)
    scope = {
        "group_of": GROUPS[op.scope], "arrive": arrive, "release": release,
        "text_word": text_word, "body": device(body), "__name__": __name__,
    }  # fmt: skip
    exec(SCOPED.format(name=op.name, params=", ".join(op.params)), scope)  # noqa: S102
    return device(scope[op.name])


_installed = False


def install() -> None:
    """Give every row of the operation table its meaning in kernels on this backend."""
    global _installed  # noqa: PLW0603
    if not _installed:
        for op in OPS.values():
            bind(op.function, lowering_of(op))
        _installed = True
