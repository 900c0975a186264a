"""`multimem_reduce` in kernels: NVLink's switch loads from all PEs of a team and combines.

And `reduce_rows` and `reduce_local`, which do the same with memory of one PE, without the switch;
`multimem_store`, in `multicast`, is made in the same way.

`multimem.ld_reduce` (PTX ISA 8.1, sm_90) takes words of 4 or 8 bytes: numbers of that size, or two
floats of 16 bits, and of float32 and floats of 16 bits also packs of 16 bytes. Here it is a relaxed
access of the system's scope: what the caller's earlier wait or barrier made visible is loaded, and
it stays behind that. Integers of 64 bits are added without a sign, which gives the same bits.
Without the instruction, or a multicast address, the PEs' elements are loaded one by one.

Floats of 16 bits have no instruction for one element: it is taken from the aligned pair that it is
in. The pair's other half may be of another array, and is not used.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from llvmlite import ir
from numba import cuda
from numba.cuda import cgutils, types

from gpushmem.backends.argument_types import literal_reduction
from gpushmem.backends.codegen import with_signature
from gpushmem.backends.nvshmem.operations import ll, ll128
from gpushmem.backends.nvshmem.operations.device_calls import intrinsic
from gpushmem.backends.nvshmem.operations.multicast import (
    has_multimem,
    on_all,
    peer_array,
    storing,
    team_n_pes,
)
from gpushmem.backends.nvshmem.operations.multicast import team_translate_pe as translate
from gpushmem.backends.nvshmem.operations.vectors import (
    DEEP,
    PACK,
    SHARES,
    TOGETHER,
    address_of,
    combining,
    flat,
    words_in,
)
from gpushmem.backends.reductions import SMALL
from gpushmem.ops.roles import Reduction
from gpushmem.ops.row import Op

__all__ = ["NAMES", "TEXTS", "definition"]

INSTRUCTION = "multimem.ld_reduce.relaxed.sys.global.{} {}, [{}];"
INTEGERS = types.int32, types.uint32, types.int64, types.uint64


class Kind(NamedTuple):
    """How the instruction combines elements of a dtype: `.op.type`, and the bits of a word.

    `pack` is how it combines words of 16 bytes, "" if it does not.
    """

    word: str
    bits: int
    pack: str = ""


def _kinds() -> dict[tuple[str, Any], Kind]:
    found = {("sum", types.float64): Kind("add.f64", 64)}
    found["sum", types.float32] = Kind("add.f32", 32, "add.v4.f32")
    for dtype, name in zip(SMALL, ("f16x2", "bf16x2"), strict=True):
        for op, how in (("sum", "add.acc::f32"), ("min", "min"), ("max", "max")):
            found[op, dtype] = Kind(f"{how}.{name}", 32, f"{how}.v4.{name}")
    for dtype in INTEGERS:
        bits, sign = dtype.bitwidth, "s" if dtype.signed else "u"
        found["sum", dtype] = Kind(f"add.u{bits}", bits)
        for op in ("min", "max"):
            found[op, dtype] = Kind(f"{op}.{sign}{bits}", bits)
        for op in ("and", "or", "xor"):
            found[op, dtype] = Kind(f"{op}.b{bits}", bits)
    return found


KINDS = _kinds()  # (reduction, dtype) -> how


def _word_text(kind: Kind) -> str:
    return INSTRUCTION.format(kind.word, "$0", "$1")


def _pack_text(kind: Kind) -> str:
    return INSTRUCTION.format(kind.pack, "{$0, $1, $2, $3}", "$4")


# All instructions, each with the LLVM type of what it gives.
FOUR = ir.LiteralStructType([ir.IntType(32)] * 4)
TEXTS = {_word_text(kind): ir.IntType(kind.bits) for kind in KINDS.values()} | {
    _pack_text(kind): FOUR for kind in KINDS.values() if kind.pack
}
REGISTERS = {ir.IntType(32): "=r", ir.IntType(64): "=l", FOUR: "=r,=r,=r,=r"}


def _load(builder: Any, text: str, address: Any) -> Any:
    """One instruction, which stays behind the accesses to memory before it."""
    found = TEXTS[text]
    kind, constraints = ir.FunctionType(found, [address.type]), f"{REGISTERS[found]},l,~{{memory}}"
    return builder.call(ir.InlineAsm(kind, text, constraints, side_effect=True), [address])


@cache
def loading(text: str, dtype: Any) -> Any:
    """The intrinsic `(address) -> element`: combined by an instruction for words."""
    small, bits = dtype in SMALL, TEXTS[text].width

    def load(typingctx: Any, address: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            place = args[0]
            at = builder.and_(place, place.type(-4)) if small else place
            word = _load(builder, text, at)
            if small:
                shift = builder.shl(builder.and_(place, place.type(2)), place.type(3))
                word = builder.lshr(word, builder.trunc(shift, word.type))
                word = builder.trunc(word, ir.IntType(bits // 2))
            slot = cgutils.alloca_once(builder, context.get_data_type(dtype))
            builder.store(word, builder.bitcast(slot, word.type.as_pointer()))
            return context.unpack_value(builder, dtype, slot)

        return dtype(types.intp), codegen

    return intrinsic(load)


@cache
def copying(text: str, count: int) -> Any:
    """The intrinsic `(target, address, far)`: store packs that instructions have combined.

    So many, each `far` bytes from the one before; all are in flight before the first is stored.
    """

    def copy(typingctx: Any, target: Any, address: Any, far: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            target, address, far = args
            steps = [builder.mul(far, far.type(k)) for k in range(count)]
            packs = [_load(builder, text, builder.add(address, step)) for step in steps]
            for pack, step in zip(packs, steps, strict=True):
                four: Any = ir.VectorType(ir.IntType(32), 4)(ir.Undefined)
                for k in range(4):
                    word = builder.extract_value(pack, k)
                    four = builder.insert_element(four, word, ir.IntType(32)(k))
                pointer = builder.inttoptr(builder.add(target, step), four.type.as_pointer())
                builder.store(four, pointer, align=PACK)
            return context.get_dummy_value()

        return types.void(types.intp, types.intp, types.intp), codegen

    return intrinsic(copy)


def _at_member(src, team, k):
    return address_of(peer_array(src, translate(team, k, 0)))


def _at_row(src, pitch, k):
    return address_of(src) + k * pitch


def _at_once(kind: Kind, dtype: Any, share: Any, one_by_one: Any) -> Any:
    """The function that lets the switch combine elements, if there is a multicast address."""
    load, itemsize = loading(_word_text(kind), dtype), dtype.bitwidth // 8
    one: Any = copying(_pack_text(kind), 1) if kind.pack else None
    several: Any = copying(_pack_text(kind), DEEP) if kind.pack else None

    @cuda.jit(device=True)
    def elements(dst, address, head, tail):
        """Those before `head`, and from `tail` on."""
        first, step = share()
        for k in range(first, head + dst.size - tail, step):
            i = k if k < head else k - head + tail
            dst[i] = load(address + itemsize * i)

    @cuda.jit(device=True)
    def packs(dst, address):
        """Whole packs, where the two are aligned alike: the elements around are left."""
        target, (first, step) = address_of(dst), share()
        if (address - target) % PACK != 0:
            return 0, 0
        head, n, tail = words_in(address, dst.size, itemsize)
        k, far = first, PACK * step
        while k + (DEEP - 1) * step < n:
            at = itemsize * head + PACK * k
            several(target + at, address + at, far)
            k += DEEP * step
        while k < n:
            at = itemsize * head + PACK * k
            one(target + at, address + at, far)
            k += step
        return head, tail

    @cuda.jit(device=True)
    def none(dst, address):
        return 0, 0

    in_packs = packs if kind.pack else none

    @cuda.jit(device=True)
    def at_once(dst, src, team):
        address = on_all(src, team)
        if address != 0:
            head, tail = in_packs(dst, address)
            elements(dst, address, head, tail)
        else:
            one_by_one(dst, src, team)

    return at_once


@cache
def _reducing(scope: str, op: str, dtype: Any, has_instruction: bool) -> Any:
    """The device function `(dst, src, team)` for a scope's threads."""
    share, together = SHARES[scope], TOGETHER[scope]
    combined = combining(op, dtype, share, _at_member)

    @cuda.jit(device=True)
    def chosen(dst, src, team):
        combined(dst, src, team, team_n_pes(team))

    if has_instruction and (op, dtype) in KINDS:
        chosen = _at_once(KINDS[op, dtype], dtype, share, chosen)

    @cuda.jit(device=True)
    def reducing(dst, src, team):
        source = flat(src)
        chosen(flat(dst)[: source.size], source, team)
        together()

    return reducing


@cache
def _rows(scope: str, op: str, dtype: Any) -> Any:
    """The device function `(dst, src, pitch, n)` for a scope's threads: of `n` rows of `src`."""
    combined, together = combining(op, dtype, SHARES[scope], _at_row), TOGETHER[scope]

    @cuda.jit(device=True)
    def reducing(dst, src, pitch, n):
        combined(dst, src, pitch, n)
        together()

    return reducing


@cache
def _reducing_rows(scope: str, op: str, dtype: Any, has_instruction: bool) -> Any:
    """The device function `(dst, src)` for a scope's threads."""
    rows = _rows(scope, op, dtype)

    @cuda.jit(device=True)
    def reducing(dst, src):
        rows(flat(dst)[: src.shape[1]], src, src.strides[0], src.shape[0])

    return reducing


@cache
def _reducing_local(scope: str, op: str, dtype: Any, has_instruction: bool) -> Any:
    """The device function `(dst, src)` for a scope's threads: two rows, wherever they are."""
    rows = _rows(scope, op, dtype)

    @cuda.jit(device=True)
    def reducing(dst, src):
        source = flat(src)
        target = flat(dst)[: source.size]
        rows(target, target, address_of(source) - address_of(target), 2)

    return reducing


MAKES = {
    "multimem_reduce": _reducing,
    "reduce_rows": _reducing_rows,
    "reduce_local": _reducing_local,
    "multimem_store": storing,
    "reduce_ll": ll.reducing,
    "reduce_ll128": ll128.reducing,
}
NAMES = tuple(MAKES)


def definition(row: Op) -> Callable[..., Any]:
    """The definition of the operation's intrinsic; if it combines, its last argument says how."""
    combines = row.named(Reduction)

    def define(typingctx: Any, *given: Any) -> Any:
        op = literal_reduction(row, given[-1]) if combines else ""
        taken = tuple(map(types.unliteral, given[: len(given) - len(combines)]))

        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            # Chosen here: what is typed is typed once for all architectures.
            function = MAKES[row.base](row.scope, op, given[0].dtype, has_multimem())
            callee = typingctx.resolve_value_type(function)
            made = context.get_function(callee, callee.get_call_type(typingctx, taken, {}))
            made(builder, args[: len(taken)])
            context.add_linking_libs(getattr(made, "libs", ()))
            return context.get_dummy_value()

        return types.void(*taken, *given[len(taken) :]), codegen

    return with_signature(row.name, ["typingctx", *row.params], lambda given: define(*given))
