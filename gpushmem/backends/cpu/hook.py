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

from gpushmem.backends.cpu.access import as_world, reach
from gpushmem.diagnosis import recording
from gpushmem.ops import Op
from gpushmem.ops.row import Effect
from gpushmem.simt.base.native import i64, intrinsic
from gpushmem.simt.compiler.primitives import user_word
from gpushmem.simt.compiler.target import call_device, device

__all__ = ["OBSERVERS", "Call", "Observer", "is_observed", "observed"]


@device
def heap_offset(address):
    """How far from the start of this PE's segment an address is."""
    return address - as_world(user_word()).heap


@device
def journal():
    """Address of this PE's journal."""
    return as_world(user_word()).journal


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
        """The address of an array."""
        return self.builder.ptrtoint(self._array(name).data, i64)

    def offset(self, name: str) -> ir.Value:
        """Where a symmetric array is on the heap."""
        return self.run(heap_offset, self.address(name), returns=types.intp)

    def journal(self) -> ir.Value:
        """Where the journal is."""
        return self.run(journal, returns=types.intp)

    def nbytes(self, effect: Effect) -> ir.Value:
        """The bytes that an effect covers, from the array's address."""
        if effect.extent == "0":
            count = i64(1)
        elif effect.extent == "stride":
            words = [self.integer(f"{effect.array}_stride"), self.integer("nelems")]
            count = self.run(reach, *words, returns=types.intp)
        else:
            count = self._array(effect.extent).nitems
        return self.builder.mul(count, self._array(effect.array).itemsize)

    def run(self, function: Any, *words: ir.Value, returns: Any = types.void) -> ir.Value:
        """Call a device function of integers."""
        sig = returns(*[types.intp] * len(words))
        return call_device(self.builder, function, sig, words)

    def _array(self, name: str) -> Any:
        make = self.context.make_array(self.argtypes[name])
        return make(self.context, self.builder, self.values[name])


class Observer(NamedTuple):
    """An observer of operations: which rows it observes, and the code it adds to a call."""

    wants: Callable[[Op], bool]
    generate: Callable[[Call], None]


OBSERVERS = [Observer(recording.wants, recording.generate)]


def _wanting(op: Op) -> list[Observer]:
    return [observer for observer in OBSERVERS if observer.wants(op)]


def is_observed(op: Op) -> bool:
    """Whether a row has an observer."""
    return bool(_wanting(op))


def observed(op: Op, parameters: Iterable[str], inner: Any) -> Any:
    """`inner`, which takes a row's arguments as a tuple, after the code of the row's observers."""
    wanting, names = _wanting(op), tuple(parameters)
    if not wanting:
        return inner

    @intrinsic
    def observe(typingctx: Any, given: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            types_ = dict(zip(names, given, strict=True))
            values = dict(zip(names, cgutils.unpack_tuple(builder, args[0]), strict=True))
            for observer in wanting:
                observer.generate(Call(op, types_, values, context, builder))
            return context.get_dummy_value()

        return types.void(given), codegen

    @device
    def seen(given):
        observe(given)
        return inner(given)

    return seen
