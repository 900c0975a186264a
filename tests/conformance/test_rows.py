"""`reduce_rows` and `copy` against NumPy: scopes, dtypes, places aligned in any way."""

import functools

import numpy as np
import pytest

import gpushmem as shmem
from gpushmem.errors import ArgumentError
from tests.conformance.test_multimem import combined, numbers_of
from tests.pes import BACKEND, compile_first

DTYPES = {
    "sum": ["float16", "bfloat16", "float32", "int64", "int8", "complex64"],
    "min": ["float16", "int32"], "max": ["float64", "uint16"], "and": ["int32"], "or": ["uint8"],
    "xor": ["uint64"],
}  # fmt: skip
CASES = [
    pytest.param(op, dtype, marks=[pytest.mark.sweep] * (k > 1), id=f"{op}-{dtype}")
    for op, dtypes in DTYPES.items()
    for k, dtype in enumerate(dtypes)
]
THREADS = 32, 70  # of a warp, and a block
# Rows, elements of a row, where rows and `dst` begin, and elements from one row to the next.
SHAPES = [
    (1, 1, 0, 0, 8), (2, 0, 0, 0, 8), (3, 7, 1, 1, 9), (4, 40, 3, 3, 48), (2, 129, 0, 1, 136),
    (5, 700, 8, 0, 720), (3, 701, 3, 3, 704), (8, 3000, 5, 5, 3008), (4, 3000, 0, 0, 3001),
]  # fmt: skip


@functools.cache
def kernels(op):
    scope = {"shmem": shmem}
    exec(
        f"""def rows(scope, dst, src):
    if scope == 0:
        shmem.reduce_rows_warp(dst, src, {op!r})
    else:
        shmem.reduce_rows_block(dst, src, {op!r})

def local(scope, dst, src):
    if scope == 0:
        shmem.reduce_local_warp(dst, src, {op!r})
    else:
        shmem.reduce_local_block(dst, src, {op!r})

def from_peer(dst, src, pe):
    shmem.reduce_rows_block(dst, shmem.peer_array(src, pe)[1:], {op!r})
""",
        scope,
    )
    return [shmem.jit(scope[name]) for name in ("rows", "local", "from_peer")]


@shmem.jit
def copies(scope, dst, src):
    if scope == 0:
        shmem.copy_warp(dst, src)
    else:
        shmem.copy_block(dst, src)


def data(dtype, rows, pitch):
    return np.stack([numbers_of(row, dtype, pitch) for row in range(rows)])


@pytest.mark.parametrize(("op", "dtype"), CASES)
def test_rows_are_combined_in_order(run_pes, op, dtype):
    rows, _, _ = kernels(op)
    two = np.zeros((1, 1), dtype)
    compile_first(rows, 0, two[0], two[:, ::2], threads=32)

    def body():
        shmem.init()
        for scope, threads in enumerate(THREADS):
            for n, size, first, at, pitch in SHAPES:
                src = shmem.array(data(dtype, n, pitch + first))
                dst = shmem.array(before := numbers_of(99, dtype, size + at + 3).copy())
                rows[1, threads](scope, dst[at:], src[:, first : first + size])
                whole = combined([*data(dtype, n, pitch + first)], op)
                before[at : at + size] = whole[first : first + size]
                np.testing.assert_array_equal(dst.numpy(), before, f"{scope} {n} {size} {first}")
                part = src[:, first : first + size]
                rows[1, threads](scope, part[n - 1], part)
                last = src.numpy()[n - 1][first : first + size]
                np.testing.assert_array_equal(last, before[at : at + size], "in place")
                shmem.free(dst)
                shmem.free(src)
        shmem.finalize()

    run_pes(body, 1)


@pytest.mark.parametrize(("op", "dtype"), [("sum", "float16"), ("max", "int32")])
def test_two_arrays_are_combined(run_pes, op, dtype):
    (_, local, _), one = kernels(op), np.zeros(1, dtype)
    compile_first(local, 0, one, one, threads=32)

    def body():
        shmem.init()
        for scope, threads in enumerate(THREADS):
            for _, size, first, at, _ in SHAPES:
                src = shmem.array(given := numbers_of(1, dtype, size + first))
                dst = shmem.array(before := numbers_of(2, dtype, size + at + 5).copy())
                local[1, threads](scope, dst[at:], src[first:])
                before[at : at + size] = combined([before[at : at + size], given[first:]], op)
                np.testing.assert_array_equal(dst.numpy(), before, f"{scope} {size} {first}")
                shmem.free(dst)
                shmem.free(src)
        shmem.finalize()

    run_pes(body, 1)


@pytest.mark.parametrize("dtype", ["int8", "float32", "complex64"])
def test_copies_are_exact_and_no_longer_than_the_source(run_pes, dtype):
    compile_first(copies, 0, np.zeros(1, dtype), np.zeros(1, dtype), threads=32)

    def body():
        shmem.init()
        for scope, threads in enumerate(THREADS):
            for _, size, first, at, _ in [*SHAPES, (1, 20_001, 3, 3, 0)]:
                src = shmem.array(numbers_of(1, dtype, size + first))
                dst = shmem.array(before := numbers_of(2, dtype, size + at + 5).copy())
                copies[1, threads](scope, dst[at:], src[first:])
                before[at : at + size] = numbers_of(1, dtype, size + first)[first:]
                np.testing.assert_array_equal(dst.numpy(), before, f"{scope} {size} {first}")
                shmem.free(dst)
                shmem.free(src)
        shmem.finalize()

    run_pes(body, 1)


def test_rows_of_another_pe(run_pes):
    _, _, from_peer = kernels("sum")
    compile_first(from_peer, np.zeros(1), np.zeros((1, 1)), 1, threads=32)

    def body():
        shmem.init()
        me, near = shmem.my_pe(), shmem.team_n_pes(shmem.TEAM_SHARED)
        pe = shmem.team_translate_pe(shmem.TEAM_SHARED, near - 1, shmem.TEAM_WORLD)
        src, dst = shmem.array(np.arange(120.0).reshape(3, 40) + me), shmem.device_array(40)
        shmem.barrier_all()
        from_peer[1, 32](dst, src, pe)
        np.testing.assert_array_equal(dst.numpy(), 120 + 2 * (np.arange(40) + pe))
        shmem.finalize()

    run_pes(body, 3)


@pytest.mark.skipif(BACKEND != "cpu", reason="others do not look at shapes")
def test_what_is_refused(run_pes):
    def body():
        shmem.init()
        x = shmem.zeros((4, 6), "int64")
        rows, _, _ = kernels("sum")
        for call, text in (
            (lambda: rows[1, 32](1, x[0][:5], x), "the target has 5 elements, the source 6"),
            (lambda: rows[1, 32](1, x[0], x[:0]), "it is empty"),
            (lambda: rows[1, 32](1, x[0], x[:, ::2]), "the elements of a row must be adjacent"),
            (lambda: copies[1, 32](1, x[0][:5], x[1]), "the target has 5 elements, the source 6"),
        ):
            with pytest.raises(ArgumentError, match=text):
                call()
                shmem.synchronize()
        shmem.finalize()

    run_pes(body, 1)
