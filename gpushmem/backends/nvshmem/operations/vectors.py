"""What the threads of a scope do together with words of 16 bytes: copy, and combine several places.

A thread has four to eight loads in flight (`DEEP` words, of two places at a time; eight to copy):
that is what a multiprocessor needs to keep HBM or NVLink busy. Where the places are not aligned
alike, and at the ends, elements go one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba import cuda
from numba.cuda import cgutils, types

from gpushmem.backends.codegen import contiguous
from gpushmem.backends.nvshmem.operations.device_calls import Value, data_of, intrinsic
from gpushmem.backends.reductions import COMBINE, SMALL
from gpushmem.ops.row import BLOCK, THREAD, WARP

__all__ = [
    "DEEP", "I32", "PACK", "SHARES", "TOGETHER", "Word", "adding", "address_of", "closing",
    "combining", "copying", "copying_rows", "elements_of", "flat", "has_packs", "load", "moving",
    "opening", "store", "weighing", "widened", "words_in",
]  # fmt: skip

PACK = 16  # bytes
DEEP = 4  # words that a thread combines at a time, each in all places
I32 = ir.IntType(32)
WORDS = ir.VectorType(I32, 4)


# --- the threads of a scope


@cuda.jit(device=True)
def for_thread():
    pass


@cuda.jit(device=True)
def for_warp():
    cuda.syncwarp()


@cuda.jit(device=True)
def for_block():
    cuda.syncthreads()


# Scope -> synchronises its threads.
TOGETHER = {THREAD: for_thread, WARP: for_warp, BLOCK: for_block}


@cuda.jit(device=True)
def in_block():
    """The thread's number in its block, and the threads of the block."""
    at, size = cuda.threadIdx, cuda.blockDim
    return at.x + size.x * (at.y + size.y * at.z), size.x * size.y * size.z


@cuda.jit(device=True)
def in_warp():
    thread, n = in_block()
    return thread % 32, min(32, n - thread // 32 * 32)


@cuda.jit(device=True)
def only():
    return 0, 1


# Scope -> the thread's number, and that of threads.
SHARES = {THREAD: only, WARP: in_warp, BLOCK: in_block}


# --- memory


@intrinsic
def address_of(typingctx: Any, array: Any) -> Any:
    """Where element 0 is."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.ptrtoint(data_of(context, builder, Value(array, args[0])), ir.IntType(64))

    return types.intp(array), codegen


@intrinsic
def flat(typingctx: Any, array: Any) -> Any:
    """A contiguous array as one of one axis."""
    result = types.Array(array.dtype, 1, "C")

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        given = context.make_array(array)(context, builder, args[0])
        return contiguous(context, builder, result, given.data, [given.nitems])

    return result(array), codegen


def widened(dtype: Any) -> Any:
    """As what elements are combined."""
    return types.float32 if dtype in SMALL else dtype


def has_packs(dtype: Any) -> bool:
    """Whether words of elements can be combined."""
    return isinstance(dtype, types.Integer | types.Float) or dtype in SMALL


# Words are taken apart and put together by shifts: memory on the stack would split their accesses.


def _bits_of(builder: Any, word: Any, bits: int) -> list[Any]:
    """The elements of a word, as integers of so many bits."""
    kind, found = ir.IntType(bits), []
    if bits >= WORDS.element.width:
        word = builder.bitcast(word, ir.VectorType(kind, PACK * 8 // bits))
        return [builder.extract_element(word, I32(k)) for k in range(word.type.count)]
    for k in range(WORDS.count):
        part = builder.extract_element(word, I32(k))
        found += [
            builder.trunc(builder.lshr(part, I32(shift)), kind)
            for shift in range(0, WORDS.element.width, bits)
        ]
    return found


def _word_of(builder: Any, elements: list[Any]) -> Any:
    """The word of some integers."""
    bits = elements[0].type.width
    if bits >= WORDS.element.width:
        word: Any = ir.VectorType(elements[0].type, len(elements))(ir.Undefined)
        for k, element in enumerate(elements):
            word = builder.insert_element(word, element, I32(k))
        return builder.bitcast(word, WORDS)
    word, each = WORDS(ir.Undefined), WORDS.element.width // bits
    for k in range(WORDS.count):
        part = I32(0)
        for j, element in enumerate(elements[k * each : (k + 1) * each]):
            part = builder.or_(part, builder.shl(builder.zext(element, I32), I32(j * bits)))
        word = builder.insert_element(word, part, I32(k))
    return word


Word = types.UniTuple(types.uint32, WORDS.count)


@intrinsic
def load(typingctx: Any, address: Any) -> Any:
    """The word at an address. It is taken apart later: loads stay together, and in flight."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        word = builder.load(builder.inttoptr(args[0], WORDS.as_pointer()))
        word.align = PACK
        return cgutils.pack_array(builder, _bits_of(builder, word, I32.width))

    return Word(types.intp), codegen


@intrinsic
def store(typingctx: Any, address: Any, word: Any) -> Any:
    """Set the word at an address."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        made = _word_of(builder, cgutils.unpack_tuple(builder, args[1]))
        builder.store(made, builder.inttoptr(args[0], WORDS.as_pointer()), align=PACK)
        return context.get_dummy_value()

    return types.void(types.intp, Word), codegen


@cache
def opening(dtype: Any) -> Any:
    """The intrinsic `(word) -> tuple`: its elements, widened."""

    def opened(typingctx: Any, word: Any) -> Any:
        result = types.UniTuple(widened(dtype), PACK * 8 // dtype.bitwidth)

        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            word = _word_of(builder, cgutils.unpack_tuple(builder, args[0]))
            elements = []
            for bits in _bits_of(builder, word, dtype.bitwidth):
                slot = cgutils.alloca_once(builder, context.get_data_type(dtype))
                builder.store(bits, builder.bitcast(slot, bits.type.as_pointer()))
                element = context.unpack_value(builder, dtype, slot)
                elements.append(context.cast(builder, element, dtype, result.dtype))
            return cgutils.pack_array(builder, elements)

        return result(Word), codegen

    return intrinsic(opened)


@cache
def closing(dtype: Any) -> Any:
    """The intrinsic `(tuple) -> word`: of elements that have been widened."""

    def closed(typingctx: Any, elements: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            kind, narrow = ir.IntType(dtype.bitwidth), []
            for wide in cgutils.unpack_tuple(builder, args[0]):
                slot = cgutils.alloca_once(builder, context.get_data_type(dtype))
                element = context.cast(builder, wide, elements.dtype, dtype)
                context.pack_value(builder, dtype, element, slot)
                narrow.append(builder.load(builder.bitcast(slot, kind.as_pointer())))
            word = _word_of(builder, narrow)
            return cgutils.pack_array(builder, _bits_of(builder, word, I32.width))

        return Word(elements), codegen

    return intrinsic(closed)


@intrinsic
def element_at(typingctx: Any, like: Any, address: Any) -> Any:
    """The element of an array's dtype at an address, widened."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        place = builder.inttoptr(args[1], context.get_data_type(like.dtype).as_pointer())
        element = context.unpack_value(builder, like.dtype, place)
        return context.cast(builder, element, like.dtype, sig.return_type)

    return widened(like.dtype)(like, types.intp), codegen


@cuda.jit(device=True)
def words_in(address, count, size):
    """Where the whole words are of so many elements of `size` bytes, from an address on.

    How many elements are before them, how many words, and how many elements up to their end.
    """
    head = min(count, (PACK - address % PACK) % PACK // size)
    words = (count - head) * size // PACK
    return head, words, head + words * PACK // size


# --- copies


def moving(share: Any, store: Any) -> Any:
    """The device function `(target, source, n)`: `store(address, word)` each of `n` words."""

    @cuda.jit(device=True)
    def packs(target, source, n):
        first, step = share()
        k, far = first, PACK * step
        while k + 7 * step < n:
            at, to = source + PACK * k, target + PACK * k
            a, b, c, d = load(at), load(at + far), load(at + 2 * far), load(at + 3 * far)
            at += 4 * far
            e, f, g, h = load(at), load(at + far), load(at + 2 * far), load(at + 3 * far)
            store(to, a)
            store(to + far, b)
            store(to + 2 * far, c)
            store(to + 3 * far, d)
            to += 4 * far
            store(to, e)
            store(to + far, f)
            store(to + 2 * far, g)
            store(to + 3 * far, h)
            k += 8 * step
        while k < n:
            store(target + PACK * k, load(source + PACK * k))
            k += step

    return packs


@cache
def elements_of(share: Any) -> Any:
    """The device function `(dst, src, head, tail)`: copy those before `head` and from `tail` on."""

    @cuda.jit(device=True)
    def elements(dst, src, head, tail):
        first, step = share()
        for k in range(first, head + src.size - tail, step):
            i = k if k < head else k - head + tail
            dst[i] = src[i]

    return elements


@cache
def copying(scope: str) -> Any:
    """The device function `(dst, src)` that copies all of `src`, for contiguous arrays."""
    share, together = SHARES[scope], TOGETHER[scope]
    packs, elements = moving(share, store), elements_of(share)

    @cuda.jit(device=True)
    def copy(dst, src):
        to, given = flat(dst), flat(src)
        target, source, size = address_of(to), address_of(given), given.itemsize
        head, tail = 0, 0
        if (target - source) % PACK == 0 and PACK % size == 0:
            head, n, tail = words_in(target, given.size, size)
            packs(target + head * size, source + head * size, n)
        elements(to, given, head, tail)
        together()

    return copy


@cache
def copying_rows(scope: str) -> Any:
    """The device function `(dst, src, index)` of `copy_rows`: warps have rows of their own."""
    together, copy, alone = TOGETHER[scope], copying(WARP), scope == WARP

    @cuda.jit(device=True)
    def copy_rows(dst, src, index):
        thread, n = in_block()
        warp, warps = (0, 1) if alone else (thread // 32, (n + 31) // 32)
        for k in range(warp, index.size, warps):
            if index[k] >= 0:
                copy(dst[k], src[index[k]])
        together()

    return copy_rows


# --- several places, combined


def adding(op: str, dtype: Any) -> Any:
    """The device function that combines the elements of a tuple with those of a word."""
    scope = {"combine": cuda.jit(device=True)(COMBINE[op]), "opened": opening(dtype)}
    elements = " ".join(f"combine(a[{k}], b[{k}])," for k in range(PACK * 8 // dtype.bitwidth))
    exec(f"def add(a, word):\n    b = opened(word)\n    return ({elements})", scope)  # noqa: S102
    return cuda.jit(device=True)(scope["add"])


def _in_packs(op: str, dtype: Any, share: Any, place: Any) -> Any:
    """The device function that combines `n` words `at` bytes from `place(src, which, k)` on."""
    opened, closed, add = opening(dtype), closing(dtype), adding(op, dtype)

    @cuda.jit(device=True)
    def packs(target, src, which, places, at, n):
        first, step = share()
        j, far = first, PACK * step
        while j + (DEEP - 1) * step < n:
            here = at + PACK * j
            p = place(src, which, 0) + here
            a0, b0, c0, d0 = load(p), load(p + far), load(p + 2 * far), load(p + 3 * far)
            a, b, c, d = opened(a0), opened(b0), opened(c0), opened(d0)
            k = 1
            while k + 1 < places:
                p, q = place(src, which, k) + here, place(src, which, k + 1) + here
                a1, b1, c1, d1 = load(p), load(p + far), load(p + 2 * far), load(p + 3 * far)
                a2, b2, c2, d2 = load(q), load(q + far), load(q + 2 * far), load(q + 3 * far)
                a, b, c, d = add(a, a1), add(b, b1), add(c, c1), add(d, d1)
                a, b, c, d = add(a, a2), add(b, b2), add(c, c2), add(d, d2)
                k += 2
            if k < places:
                p = place(src, which, k) + here
                a1, b1, c1, d1 = load(p), load(p + far), load(p + 2 * far), load(p + 3 * far)
                a, b, c, d = add(a, a1), add(b, b1), add(c, c1), add(d, d1)
            to = target + here
            store(to, closed(a))
            store(to + far, closed(b))
            store(to + 2 * far, closed(c))
            store(to + 3 * far, closed(d))
            j += DEEP * step
        while j < n:
            here = at + PACK * j
            a = opened(load(place(src, which, 0) + here))
            for k in range(1, places):
                a = add(a, load(place(src, which, k) + here))
            store(target + here, closed(a))
            j += step

    return packs


def combining(op: str, dtype: Any, share: Any, place: Callable[..., Any]) -> Any:
    """The device function `(dst, src, which, places)`: element by element, in order, to `dst`.

    Of places `k` below `places`, at the addresses `place(src, which, k)`, each as far from the one
    before, modulo PACK. All of `dst` is written.
    """
    place = cuda.jit(device=True)(place)
    combine, size = cuda.jit(device=True)(COMBINE[op]), dtype.bitwidth // 8

    @cuda.jit(device=True)
    def elements(dst, src, which, places, head, tail):
        """Those before `head`, and from `tail` on."""
        first, step = share()
        for j in range(first, head + dst.size - tail, step):
            i = j if j < head else j - head + tail
            total = element_at(dst, place(src, which, 0) + size * i)
            for k in range(1, places):
                total = combine(total, element_at(dst, place(src, which, k) + size * i))
            dst[i] = total

    if not has_packs(dtype):

        @cuda.jit(device=True)
        def one_by_one(dst, src, which, places):
            elements(dst, src, which, places, 0, 0)

        return one_by_one

    packs = _in_packs(op, dtype, share, place)

    @cuda.jit(device=True)
    def combined(dst, src, which, places):
        target, head, tail = address_of(dst), 0, 0
        last = place(src, which, min(places - 1, 1))
        if (place(src, which, 0) - target) % PACK == 0 and (last - target) % PACK == 0:
            head, n, tail = words_in(target, dst.size, size)
            packs(target, src, which, places, head * size, n)
        elements(dst, src, which, places, head, tail)

    return combined


# --- rows, weighed


def _weighing(dtype: Any) -> tuple[Any, Any]:
    """Device functions of tuples: of one number, and to add a word's elements, weighed, to one."""
    count = range(PACK * 8 // dtype.bitwidth)
    scope = {"opened": opening(dtype)}
    same = "w, " * len(count)
    exec(f"def several(w):\n    return ({same})", scope)  # noqa: S102
    sums = " ".join(f"a[{k}] + w * b[{k}]," for k in count)
    exec(f"def add(a, word, w):\n    b = opened(word)\n    return ({sums})", scope)  # noqa: S102
    return cuda.jit(device=True)(scope["several"]), cuda.jit(device=True)(scope["add"])


@cuda.jit(device=True)
def following(index, k):
    """The first place from `k` on that has the number of a row."""
    while k < index.size and index[k] < 0:
        k += 1
    return k


@cache
def weighing(scope: str, dtype: Any) -> Any:
    """The device function `(dst, src, index, weights)` of `sum_rows` for a scope's threads."""
    share, together, wide = SHARES[scope], TOGETHER[scope], widened(dtype)
    (several, add), closed, size = _weighing(dtype), closing(dtype), dtype.bitwidth // 8
    number = {types.float32: np.float32, types.float64: np.float64}[wide]

    @cuda.jit(device=True)
    def packs(target, base, pitch, index, weights, n):
        """Of `n` words from `base` of row 0 on; up to eight loads are in flight."""
        first, step = share()
        far, last = PACK * step, n - 1
        for j in range(first, n, DEEP * step):
            # Words behind the last are the last once more, and are not stored.
            o1, o2, o3 = (
                PACK * (min(j + step, last) - j),
                PACK * (min(j + 2 * step, last) - j),
                PACK * (min(j + 3 * step, last) - j),
            )
            here = base + PACK * j
            a = b = c = d = several(number(0))
            k = following(index, 0)
            while k < index.size:
                m = following(index, k + 1)
                p, w = here + index[k] * pitch, number(weights[k])
                a0, b0, c0, d0 = load(p), load(p + o1), load(p + o2), load(p + o3)
                if m < index.size:
                    q, v = here + index[m] * pitch, number(weights[m])
                    a1, b1, c1, d1 = load(q), load(q + o1), load(q + o2), load(q + o3)
                    a, b, c, d = add(a, a0, w), add(b, b0, w), add(c, c0, w), add(d, d0, w)
                    a, b, c, d = add(a, a1, v), add(b, b1, v), add(c, c1, v), add(d, d1, v)
                    m = following(index, m + 1)
                else:
                    a, b, c, d = add(a, a0, w), add(b, b0, w), add(c, c0, w), add(d, d0, w)
                k = m
            to = target + PACK * j
            store(to, closed(a))
            if j + step < n:
                store(to + far, closed(b))
            if j + 2 * step < n:
                store(to + 2 * far, closed(c))
            if j + 3 * step < n:
                store(to + 3 * far, closed(d))

    @cuda.jit(device=True)
    def sum_rows(dst, src, index, weights):
        out, base, pitch = flat(dst)[: src.shape[1]], address_of(src), src.strides[0]
        target, head, tail = address_of(out), 0, 0
        if (base - target) % PACK == 0 and pitch % PACK == 0:
            head, n, tail = words_in(target, out.size, size)
            packs(target + head * size, base + head * size, pitch, index, weights, n)
        first, step = share()
        for j in range(first, head + out.size - tail, step):
            i, total = j if j < head else j - head + tail, number(0)
            for k in range(index.size):
                if index[k] >= 0:
                    element = element_at(out, base + index[k] * pitch + size * i)
                    total += number(weights[k]) * element
            out[i] = total
        together()

    return sum_rows
