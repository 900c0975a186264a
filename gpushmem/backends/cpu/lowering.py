"""The operations inside kernels: one device function per row of the operation table.

They are ordinary Python, compiled by the engine into the kernel that calls them. A launch's
`user` word points to the `WORLD`, so `remote` is all of the addressing there is.

Operations complete at once: a put is a copy into the peer's segment, done when it returns.
Ordering is then a matter of the compiler and of the processor's store order (see
docs/memory-model.md): `fence` is a release fence, `quiet` a full one, signals are released and
acquired. Warp and block forms let the last thread to arrive act for all.

PE numbers, symmetry and sizes are checked on every call: a few compares beside a copy.
"""

from __future__ import annotations

from typing import Any

from numba import types
from numba.cuda.core.errors import NumbaTypeError

from gpushmem.backends.cpu.collective import ARRIVED, GENERATION
from gpushmem.backends.cpu.world import WORLD
from gpushmem.errors import ArgumentError, ShmemError, SymmetryError
from gpushmem.ops import CMP_EQ, CMP_GE, CMP_GT, CMP_LE, CMP_LT, CMP_NE, OPS, SIGNAL_ADD, SIGNAL_SET
from gpushmem.ops.table import BLOCK, THREAD, WARP, Op
from gpushmem.simt.layout import view
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
    poll,
    release,
    text_word,
    user_word,
    warp_group,
)
from gpushmem.simt.target import bind, device

__all__ = ["BODIES", "TRAPS", "install"]

as_world = view(WORLD)

BAD_PE, NOT_SYMMETRIC, TOO_SMALL, BAD_SIGNAL_OP, BAD_COMPARISON, EMPTY = range(2, 8)

# What the failure codes mean: exception class, and the message with the four numbers recorded.
TRAPS: dict[int, tuple[type[ShmemError], str]] = {
    BAD_PE: (ArgumentError, "there is no PE {0}: PEs are 0 to {1}"),
    NOT_SYMMETRIC: (
        SymmetryError,
        "a remote array of {1} bytes at {0:#x} is not on the symmetric heap ({2:#x} to {3:#x}): "
        "allocate it with gpushmem.empty or zeros",
    ),
    TOO_SMALL: (ArgumentError, "the target has {0} elements, the source {1}: pass a slice of it"),
    BAD_SIGNAL_OP: (
        ArgumentError,
        "there is no signal operation {0}: use SIGNAL_SET or SIGNAL_ADD",
    ),
    BAD_COMPARISON: (ArgumentError, "there is no comparison {0}: use CMP_EQ, NE, GT, LE, LT or GE"),
    EMPTY: (ArgumentError, "the array has no element 0"),
}


# --- addresses


@device
def remote(address, nbytes, pe):
    """Address on `pe` of the `nbytes` that are symmetric with those at `address`."""
    world = as_world(user_word())
    heap, end = world.heap, world.heap + world.heap_bytes
    fail_if(pe < 0 or pe >= world.n_pes, BAD_PE, pe, world.n_pes - 1, 0, 0)
    fail_if(address < heap or address + nbytes > end, NOT_SYMMETRIC, address, nbytes, heap, end)
    return address + (pe - world.my_pe) * world.stride


def _array_word(of_array: Any, result: Any = types.intp) -> Any:
    @intrinsic
    def word(typingctx: Any, array: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            return of_array(builder, context.make_array(array)(context, builder, args[0]))

        return result(array), codegen

    return word


address_of = _array_word(lambda b, a: b.ptrtoint(a.data, a.nitems.type))
size_of = _array_word(lambda b, a: a.nitems)
itemsize_of = _array_word(lambda b, a: a.itemsize)


def _arrays_checker(name: str) -> Any:
    @intrinsic
    def check(typingctx: Any, dst: Any, src: Any) -> Any:
        """Refuse, when the kernel is compiled, arrays that cannot be copied between."""
        for what, typ in (("dst", dst), ("src", src)):
            if not isinstance(typ, types.Array):
                raise NumbaTypeError(f"{name}: {what} must be an array, not {typ}")
            if typ.layout != "C":
                raise NumbaTypeError(
                    f"{name}: {what} is not contiguous ({typ}): copy it to an array that is"
                )
        if dst.dtype != src.dtype:
            raise NumbaTypeError(
                f"{name}: dst is an array of {dst.dtype}, src of {src.dtype}; "
                "they must have the same dtype"
            )
        return types.void(dst, src), _nothing

    return check


def _signal_checker(name: str) -> Any:
    @intrinsic
    def check(typingctx: Any, signal: Any, value: Any) -> Any:
        """Refuse, when the kernel is compiled, a signal that is no uint64 array."""
        if not isinstance(signal, types.Array) or signal.dtype != types.uint64:
            raise NumbaTypeError(f"{name}: signal must be an array of uint64, not {signal}")
        if not isinstance(value, types.Integer):
            raise NumbaTypeError(f"{name}: value must be an integer, not {value}")
        return types.void(signal, value), _nothing

    return check


check_put, check_get = _arrays_checker("put"), _arrays_checker("get")
check_op, check_fetch, check_wait = (
    _signal_checker(name) for name in ("signal_op", "signal_fetch", "signal_wait_until")
)


def _nothing(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    return context.get_dummy_value()


# --- elements


def _is_word(typ: Any) -> bool:
    return isinstance(typ, types.Integer | types.Float) and typ.bitwidth in (8, 16, 32, 64)


@intrinsic
def store_element(typingctx: Any, array: Any, address: Any, value: Any) -> Any:
    """Store one element of `array`'s dtype at `address`, in one piece if it is a number."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        _, address, value = args
        data = context.get_data_type(array.dtype)
        pointer = builder.inttoptr(address, data.as_pointer())
        if _is_word(array.dtype):
            builder.store_atomic(value, pointer, "monotonic", array.dtype.bitwidth // 8)
        else:
            context.pack_value(builder, array.dtype, value, pointer)
        return context.get_dummy_value()

    return types.void(array, types.intp, array.dtype), codegen


@intrinsic
def load_element(typingctx: Any, array: Any, address: Any) -> Any:
    """Load one element of `array`'s dtype from `address`, in one piece if it is a number."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        data = context.get_data_type(array.dtype)
        pointer = builder.inttoptr(args[1], data.as_pointer())
        if _is_word(array.dtype):
            return builder.load_atomic(pointer, "monotonic", array.dtype.bitwidth // 8)
        return context.unpack_value(builder, array.dtype, pointer)

    return array.dtype(array, types.intp), codegen


# --- the operations in their plain form


def my_pe():
    return as_world(user_word()).my_pe


def n_pes():
    return as_world(user_word()).n_pes


def p(dst, value, pe):
    fail_if(size_of(dst) < 1, EMPTY, 0, 0, 0, 0)
    store_element(dst, remote(address_of(dst), itemsize_of(dst), pe), value)


def g(src, pe):
    fail_if(size_of(src) < 1, EMPTY, 0, 0, 0, 0)
    return load_element(src, remote(address_of(src), itemsize_of(src), pe))


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


def put_signal(dst, src, signal, value, op, pe):
    device_put(dst, src, pe)
    device_signal_op(signal, value, op, pe)


def signal_op(signal, value, op, pe):
    check_op(signal, value)
    fail_if(size_of(signal) < 1, EMPTY, 0, 0, 0, 0)
    address = remote(address_of(signal), 8, pe)
    if op == SIGNAL_SET:
        store_release(address, value)
    elif op == SIGNAL_ADD:
        atomic_add_word(address, value)
    else:
        fail_if(True, BAD_SIGNAL_OP, op, 0, 0, 0)


def signal_fetch(signal):
    check_fetch(signal, 0)
    fail_if(size_of(signal) < 1, EMPTY, 0, 0, 0, 0)
    poll(text_word("signal_fetch"), address_of(signal))
    return types.uint64(load_acquire(address_of(signal)))


@device
def holds(seen, cmp, wanted):
    if cmp == CMP_EQ:
        return seen == wanted
    if cmp == CMP_NE:
        return seen != wanted
    if cmp == CMP_GT:
        return seen > wanted
    if cmp == CMP_LE:
        return seen <= wanted
    if cmp == CMP_LT:
        return seen < wanted
    fail_if(cmp != CMP_GE, BAD_COMPARISON, cmp, 0, 0, 0)
    return seen >= wanted


def signal_wait_until(signal, cmp, value):
    check_wait(signal, value)
    fail_if(size_of(signal) < 1, EMPTY, 0, 0, 0, 0)
    address, wanted = address_of(signal), types.uint64(value)
    seen = types.uint64(load_acquire(address))
    if not holds(seen, cmp, wanted):
        begin_wait(text_word("signal_wait_until"), address, cmp, value)
        while not holds(seen, cmp, wanted):
            pause()
            seen = types.uint64(load_acquire(address))
        end_wait()
    return seen


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
        begin_wait(text_word("barrier_all"), control + GENERATION, CMP_NE, generation)
        while load_acquire(control + GENERATION) == generation:
            pause()
        end_wait()


# Row of the table -> its plain form here. The other forms are made from it.
BODIES = {
    f.__name__: f
    for f in (
        my_pe, n_pes, p, g, put, get, put_signal, signal_op, signal_fetch, signal_wait_until,
        fence, quiet, barrier_all,
    )
}  # fmt: skip

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
