"""The one place that every operation passes when it is lowered.

An observer gets the row, the types and the values of the arguments, and the builder of the code
that a call runs first; the line of the kernel is `site_word()`. It adds code that runs in every
call. Rows without observers cost nothing: their code is that of the operation alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from llvmlite import ir
from numba import types
from numba.core import cgutils

from gpushmem.backends.codegen import words_for
from gpushmem.backends.cpu.operations import nodes
from gpushmem.backends.cpu.operations.access import as_world, reach
from gpushmem.diagnosis import instrumentation
from gpushmem.errors import ShmemError
from gpushmem.native.memory import i64, intrinsic
from gpushmem.ops import Op
from gpushmem.ops.row import WORDS, Effect
from gpushmem.simt.functions import call_device, device, made_of
from gpushmem.simt.observe import compiled_with, observe
from gpushmem.simt.thread import user_word

__all__ = [
    "OBSERVERS", "Call", "Observer", "generate", "generate_after", "group_called",
    "group_calls", "has_paused", "is_event",
    "is_followed", "is_observed", "is_separated", "is_traced",
    "observed", "observers_of", "refuse_change", "separate", "take_over", "trace", "watch",
    "will_pause",
]  # fmt: skip


@device
def heap_offset(address):
    """How far from the start of this PE's segment an address is."""
    return address - as_world(user_word()).heap


@device
def owner(address):
    """The other PE whose segment an address is in; -1: none."""
    world = as_world(user_word())
    pe = (address - world.heap + world.my_pe * world.stride) // world.stride
    return pe if 0 <= pe < world.n_pes and pe != world.my_pe else -1


@device
def offset_there(address):
    """How far from the start of that segment it is; -1: in no other's."""
    world, pe = as_world(user_word()), owner(address)
    return -1 if pe < 0 else address - world.heap - (pe - world.my_pe) * world.stride


@device
def journal():
    """Address of this PE's journal."""
    return as_world(user_word()).journal


@device
def trace():
    """Address of this PE's ring of events."""
    return as_world(user_word()).trace


class Call(NamedTuple):
    """One call of an operation in a kernel, as it is compiled."""

    op: Op
    argtypes: dict[str, Any]  # parameter -> Numba type
    values: dict[str, ir.Value]
    context: Any
    builder: ir.IRBuilder

    def integer(self, name: str) -> ir.Value:
        """An argument as an int64."""
        return self.context.cast(self.builder, self.values[name], self.argtypes[name], types.intp)

    def address(self, name: str) -> ir.Value:
        """The address of an array, or of the element of its `Place`."""
        start = self.builder.ptrtoint(self._array(name).data, i64)
        if name not in self.op.places:
            return start
        place = self.integer(self.op.places[name])
        return self.builder.add(start, self.builder.mul(place, self.itemsize(name)))

    def offset(self, name: str) -> ir.Value:
        """Where a symmetric array is on the heap."""
        return self.run(heap_offset, self.address(name), returns=types.intp)

    def place(self, name: str) -> list[ir.Value]:
        """The other PE in whose memory an array is, and where there; -1: in no other's."""
        address = self.address(name)
        return [self.run(f, address, returns=types.intp) for f in (owner, offset_there)]

    def journal(self) -> ir.Value:
        """Where the journal is."""
        return self.run(journal, returns=types.intp)

    def trace(self) -> ir.Value:
        """Where the ring of events is."""
        return self.run(trace, returns=types.intp)

    def nbytes(self, effect: Effect) -> ir.Value:
        """The bytes that an effect covers, from the array's address."""
        if effect.extent == "0":
            count = i64(1)
        elif effect.extent == "parts":
            count = self._array(effect.array).nitems
        elif effect.extent == "stride":
            words = [self.integer(f"{effect.array}_stride"), self.integer("nelems")]
            count = self.run(reach, *words, returns=types.intp)
        elif effect.kind in WORDS:
            count = self.units(effect)
        elif effect.extent not in self.op.arrays:
            count = self.integer(effect.extent)
        else:
            count = self._array(effect.extent).nitems
        return self.builder.mul(count, self._array(effect.array).itemsize)

    def stride(self, effect: Effect) -> ir.Value:
        """Bytes from one element to the next of those that an effect covers."""
        stride = i64(1)
        if effect.extent in ("stride", "parts") and f"{effect.array}_stride" in self.values:
            stride = self.integer(f"{effect.array}_stride")
        return self.builder.mul(stride, self.itemsize(effect.array))

    def count(self, name: str) -> ir.Value:
        """How many elements an array has."""
        return self._array(name).nitems

    def units(self, effect: Effect) -> ir.Value:
        """How many words of data and flags an effect covers, of each row of a matrix."""
        nbytes = self.builder.mul(self.count(effect.extent), self.itemsize(effect.extent))
        return words_for(self.builder, nbytes, effect.kind)

    def itemsize(self, name: str) -> ir.Value:
        """Bytes of an element of an array."""
        return self._array(name).itemsize

    def rows(self, effect: Effect) -> tuple[ir.Value, ir.Value, ir.Value, ir.Value] | None:
        """Of a matrix: how many rows, bytes from one to the next, columns, bytes between those."""
        array = self._array(effect.array)
        units = effect.kind in WORDS
        if self.argtypes[effect.array].ndim != 2 or (effect.extent != effect.array and not units):
            return None
        shape, strides = (
            cgutils.unpack_tuple(self.builder, part) for part in (array.shape, array.strides)
        )
        columns = self.units(effect) if units else shape[1]
        return shape[0], strides[0], columns, strides[1]

    def run(self, function: Any, *words: ir.Value, returns: Any = types.void) -> ir.Value:
        """Call a device function of integers."""
        sig = returns(*[types.intp] * len(words))
        return call_device(self.builder, function, sig, words)

    def _array(self, name: str) -> Any:
        make = self.context.make_array(self.argtypes[name])
        return make(self.context, self.builder, self.values[name])


class Observer(NamedTuple):
    """An observer of operations: which rows it observes, and the code it adds to a call.

    `after` is the code that follows the operation; it gets the result as an int64, its kind (0 for
    a number, 1 for a truth value, 2 for what cannot be one), and the int64 that `generate` has
    returned, which one observer of a row may. `group_calls` and
    `group_called(op)` are device functions that each thread calls before and after a call of its
    warp or block.
    """

    wants: Callable[[Op], bool]
    generate: Callable[[Call], ir.Value | None]
    after: Callable[[Call, ir.Value, int, ir.Value], None] | None = None
    group_calls: Any = None
    group_called: Callable[[Op], Any] | None = None
    name: str = ""  # kernels that are observed have it in their key
    pauses: tuple[Any, Any] | None = None  # device functions: before and after a call pauses


OBSERVERS = [Observer(instrumentation.wants, instrumentation.generate)]


def refuse_change(name: str, who: str, on: bool) -> None:
    """Raise if kernels have been compiled with the observer of this name, and are not to be now.

    Or the other way round: what they call stays as it is.
    """
    if compiled_with and on != any(name in each for each in compiled_with):
        raise ShmemError(
            f"kernels have been compiled with{'out' * on} {who} in this process, and cannot be "
            f"used with{'out' * (not on)} it: launch kernels only in PEs (spawn, run_pes)"
        )


_whose: list[str] = []  # operations kernels are compiled with: a backend's; what is in `made_of`


def take_over(backend: str, *made: str) -> bool:
    """Let kernels that are compiled from now on have a backend's operations; False if they do.

    `made` goes into `made_of`, until another backend takes over. Raises `ShmemError` if kernels
    have been compiled with those of another: these stay as they are.
    """
    if _whose[:1] == [backend]:
        return False
    if _whose and compiled_with:
        raise ShmemError(
            f"kernels have been compiled for backend {_whose[0]} in this process, and cannot be "
            f"used on backend {backend}: launch kernels only in PEs (spawn, run_pes)"
        )
    for mark in _whose[1:]:
        made_of.remove(mark)
    made_of.extend(made)
    _whose[:] = [backend, *made]
    return True


def _at_pause(which: int) -> Any:
    @intrinsic
    def told(typingctx: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            for observer in OBSERVERS:
                if observer.pauses is not None:
                    call_device(builder, observer.pauses[which], types.void(), [])
            return context.get_dummy_value()

        return types.void(), codegen

    return told


# What an operation that waits, or polls, calls around each pause.
will_pause, has_paused = _at_pause(0), _at_pause(1)


_of_accesses: list[Any] = []  # those who observe loads, stores and barriers; the last one does


def watch(of_operations: Observer, of_accesses: Any, on: bool) -> None:
    """Add an observer of operations, and one of loads, stores and barriers, or take them away."""
    if on == (of_operations in OBSERVERS):
        return
    (OBSERVERS.append if on else OBSERVERS.remove)(of_operations)
    if of_accesses is None:
        return
    (_of_accesses.append if on else _of_accesses.remove)(of_accesses)
    _observe()


def _observe() -> None:
    seen = _of_accesses[-1] if _of_accesses else None
    observe(nodes.guarded(seen) if is_separated() else seen)


def group_calls(op: Op) -> Any:
    """What each thread does before a call of its warp or block; None if nothing."""
    return next((o.group_calls for o in observers_of(op) if o.group_calls is not None), None)


def separate(on: bool) -> None:
    """Let kernels compiled from now on keep to what PEs on several nodes can do, or not."""
    if on and not is_separated():
        OBSERVERS.insert(0, SEPARATOR)  # before others look at what may be null
    elif is_separated() and not on:
        OBSERVERS.remove(SEPARATOR)
    _observe()


def is_separated() -> bool:
    """Whether they do."""
    return SEPARATOR in OBSERVERS


def group_called(op: Op) -> Any:
    """What each thread does after it."""
    return next((o.group_called(op) for o in observers_of(op) if o.group_called is not None), None)


SEPARATOR = Observer(nodes.wants, nodes.generate)


def is_traced() -> bool:
    """Whether kernels are compiled for a trace."""
    return any(observer.name == "trace" for observer in OBSERVERS)


def is_event(op: Op) -> bool:
    """What most observers want: see `Op.is_event`."""
    return op.is_event


def observers_of(op: Op) -> list[Observer]:
    """The observers of a row."""
    return [observer for observer in OBSERVERS if observer.wants(op)]


def is_observed(op: Op) -> bool:
    """Whether a row has an observer."""
    return bool(observers_of(op))


def is_followed(op: Op) -> bool:
    """Whether an observer of a row adds code after it."""
    return any(observer.after for observer in observers_of(op))


def observed(op: Op, parameters: Iterable[str], inner: Any) -> Any:
    """`inner`, which takes a row's arguments as a tuple, after the code of the row's observers."""
    wanting, names = observers_of(op), tuple(parameters)
    if not wanting:
        return inner

    def call_of(given: Any, context: Any, builder: Any, args: Any) -> Call:
        types_ = dict(zip(names, given, strict=True))
        values = dict(zip(names, cgutils.unpack_tuple(builder, args[0]), strict=True))
        return Call(op, types_, values, context, builder)

    @intrinsic
    def before(typingctx: Any, given: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            return generate(call_of(given, context, builder, args))

        return types.intp(given), codegen

    @intrinsic
    def after(typingctx: Any, given: Any, result: Any, token: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            generate_after(call_of(given, context, builder, args), result, *args[1:])
            return context.get_dummy_value()

        return types.void(given, result, types.intp), codegen

    @device
    def seen(given):
        before(given)
        return inner(given)

    @device
    def seen_after(given):
        token = before(given)
        result = inner(given)
        after(given, result, token)
        return result

    return seen_after if is_followed(op) else seen


def generate(call: Call) -> ir.Value:
    """Generate what observers add before an operation; returns what one of them has for `after`."""
    tokens = [observer.generate(call) for observer in observers_of(call.op)]
    return next((token for token in tokens if token is not None), i64(0))


def generate_after(call: Call, kind_of_result: Any, result: ir.Value, token: ir.Value) -> None:
    """Generate what they add after it; its result has a type of Numba's."""
    number, kind = i64(0), 2
    if isinstance(kind_of_result, types.Integer | types.Boolean):
        kind = int(isinstance(kind_of_result, types.Boolean))
        number = call.context.cast(call.builder, result, kind_of_result, types.intp)
    for observer in observers_of(call.op):
        if observer.after is not None:
            observer.after(call, number, kind, token)
