"""Calls of a warp or a block: comparing the threads' arguments, and messages for differences.

The engine compares numbers (`simt.groups`). This module makes them of an operation's arguments,
together with the arguments' names, which the messages use.
"""

from __future__ import annotations

import ctypes
import random
import zlib
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from gpushmem.native.memory import i64, intrinsic
from gpushmem.ops import OPS
from gpushmem.ops.row import BLOCK
from gpushmem.simt.thread import unpacked

__all__ = ["apart", "digest_of", "given", "left", "not_now", "twice", "unlike", "words_of"]

Words = list[tuple[str, ir.Value]]


def _words(context: Any, builder: Any, label: Any, sig: Any, given: Any) -> tuple[int, Words]:
    """A number for the operation and its arguments' types; named numbers for the arguments."""
    name, which, parameters = label.literal_value.split(":")
    kinds, words = [name, which], []
    for parameter, typ, value in zip(
        parameters.split(), sig.types, cgutils.unpack_tuple(builder, given), strict=True
    ):
        if isinstance(typ, types.Array):
            kinds.append(f"{typ.dtype} {typ.ndim}")
            words += _of_array(context, builder, parameter, typ, value)
        elif isinstance(typ, types.Integer | types.Boolean):
            words.append((parameter, context.cast(builder, value, typ, types.intp)))
        elif isinstance(typ, types.Float):
            wide = context.cast(builder, value, typ, types.float64)
            words.append((parameter, builder.bitcast(wide, i64)))
    return zlib.crc32(repr(kinds).encode()), words


def _of_array(context: Any, builder: Any, name: str, typ: Any, value: Any) -> Words:
    array = context.make_array(typ)(context, builder, value)
    words = [(f"{name}.place", builder.ptrtoint(array.data, i64)), (f"{name}.size", array.nitems)]
    if typ.ndim > 1 or typ.layout != "C":
        for part in (array.shape, array.strides):
            words += [(f"{name}.shape", side) for side in cgutils.unpack_tuple(builder, part)]
    return words


# Factors of a digest, odd and the same everywhere.
_random = random.Random(16)  # noqa: S311
FACTORS = [_random.getrandbits(64) | 1 for _ in range(64)]


@intrinsic(prefer_literal=True)
def digest_of(typingctx: Any, label: Any, given: Any) -> Any:
    """A digest, not 0, of the arguments `given`; `label` names the operation and its parameters."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        kind, words = _words(context, builder, sig.args[0], sig.args[1], args[1])
        total = i64(kind)
        for factor, (_, word) in zip(FACTORS, words, strict=False):
            total = builder.add(total, builder.mul(word, i64(factor)))
        return builder.or_(builder.shl(total, i64(1)), i64(1))

    return types.intp(label, given), codegen


@intrinsic(prefer_literal=True)
def words_of(typingctx: Any, label: Any, given: Any) -> Any:
    """Address, on the stack, of the numbers that `digest_of` combines; see `groups.begin_call`."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        kind, words = _words(context, builder, sig.args[0], sig.args[1], args[1])
        names = context.insert_const_string(builder.module, "|".join(name for name, _ in words))
        head = [i64(kind), builder.ptrtoint(names, i64), i64(len(words))]
        place = cgutils.alloca_once(builder, ir.ArrayType(i64, len(head) + len(words)))
        for k, word in enumerate([*head, *(word for _, word in words)]):
            builder.store(word, builder.gep(place, [i64(0), i64(k)]))
        return builder.ptrtoint(place, i64)

    return types.intp(label, given), codegen


# --- messages


def _text(address: int) -> str:
    return ctypes.string_at(address).decode()


def _rule(name: str) -> str:
    """The rule for calls of an operation in a scope."""
    op = OPS[name]
    one = name.removesuffix(f"_{op.scope}")
    instead = f", or use `{one}` in one thread" if one in OPS and one != name else ""
    return (
        f"Every thread of the {op.scope} must call {name}, with the same arguments: call it in "
        f"all threads{instead}"
    )


def apart(ours: int, theirs: int, site: int, thread: int, *_: int) -> str:
    """The error when a thread is in another call than its group."""
    mine, other = _text(ours), _text(theirs)
    both = "; their dtypes, or their `op`, differ" if mine == other else ""
    scoped = mine if mine in OPS else other
    return (
        f"{mine}, while thread {unpacked(thread)} is in {other}, {_text(site)}{both}. "
        f"{_rule(scoped)}"
    )


def unlike(
    ours: int, _: int, site: int, thread: int, names: int, k: int, theirs: int, mine: int
) -> str:
    """The error when two threads make one call with different arguments."""
    name, _dot, what = _text(names).split("|")[k].partition(".")
    other, more = f"of thread {unpacked(thread)}, {_text(site)}", mine - theirs
    text = {
        "": f"its {name} is {mine}, that {other}, is {theirs}",
        "place": f"its {name} begins {abs(more)} bytes {'after' if more > 0 else 'before'} that "
        f"{other}",
        "size": f"its {name} has {mine} elements, that {other}, has {theirs}",
        "shape": f"its {name} has another shape, or other strides, than that {other}",
    }[what]
    return f"{_text(ours)}: {text}. {_rule(_text(ours))}"


def left(what: int, gone: int, size: int, *_: int) -> str:
    """The error when threads of a group have returned from the kernel."""
    name = _text(what)
    scope = OPS[name].scope
    return (
        f"{name}: {gone} of the {size} threads of the {scope} have returned from the kernel. "
        f"{_rule(name)}"
    )


def given(site: int, *_: int) -> str:
    """The error when a block gives memory that it has not taken back."""
    return f"the block has given memory before, {_text(site)}: call release_smem between the two"


def not_now(site: int, *_: int) -> str:
    """The error when a block is in a collective while NVSHMEM has memory of it."""
    return (
        f"the block has given memory, {_text(site)}, which NVSHMEM's collectives let several "
        "warps use at once: call release_smem before"
    )


def twice(what: int, site: int, thread: int, block: int, team: int, *_: int) -> str:
    """The error when two threads of one PE are in collectives of a team at the same time."""
    name = _text(what)
    op = OPS[name]
    together = f", or all threads of one block {op.base}_block" if op.scope != BLOCK else ""
    return (
        f"{name}, while thread {unpacked(thread)} of block {unpacked(block)} is in a collective "
        f"of the same team, {team}, {_text(site)}. A collective is one call per PE: let one "
        f"{op.scope} call {name}{together}"
    )
