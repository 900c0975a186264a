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
    pytest.param(op, dtype, marks=[pytest.mark.sweep] * (k > (op == "sum")), id=f"{op}-{dtype}")
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


@shmem.jit
def gathered(scope, dst, src, index, pe):
    if scope == 0:
        shmem.copy_rows_warp(dst, src, index)
    else:
        shmem.copy_rows_block(shmem.peer_array(dst, pe), src, index)


@pytest.mark.parametrize("dtype", ["int8", "float32"])
def test_rows_are_copied_to_a_peer(run_pes, dtype):
    x = np.zeros((1, 1), dtype)
    compile_first(gathered, 0, x, x[:, ::2], np.zeros(1, "i4"), 1, threads=32)

    def body():
        shmem.init()
        me, near = shmem.my_pe(), shmem.team_n_pes(shmem.TEAM_SHARED)
        to = [*range(near)][(shmem.team_my_pe(shmem.TEAM_SHARED) + 1) % near]
        pe = shmem.team_translate_pe(shmem.TEAM_SHARED, to, shmem.TEAM_WORLD)
        for scope, threads in enumerate(THREADS):
            for numbers in [*INDICES, [3, 2, 1, 0] * 5]:
                for size, first, at in ((1, 0, 0), (40, 3, 1), (701, 3, 0), (64, 0, 0)):
                    n = len(numbers)
                    src = shmem.array(data(dtype, 4, 720))
                    dst = shmem.array(before := numbers_of(9, dtype, 20 * 720 + 1).copy())
                    rows = dst[at : at + n * size].reshape(n, size)
                    shmem.barrier_all()
                    index = shmem.to_device(np.array(numbers, "i4"))
                    gathered[1, threads](scope, rows, src[:, first : first + size], index, pe)
                    shmem.barrier_all()
                    expected = before[at : at + n * size].reshape(n, size)
                    for k, row in enumerate(numbers):
                        if row >= 0:
                            expected[k] = data(dtype, 4, 720)[row, first : first + size]
                    np.testing.assert_array_equal(dst.numpy(), before, f"{size} {numbers} {me}")
                    shmem.free(dst)
                    shmem.free(src)
        shmem.finalize()

    run_pes(body, 3)


@pytest.mark.skipif(BACKEND != "cpu", reason="others do not look at shapes")
def test_what_is_refused(run_pes):
    def body():
        shmem.init()
        x = shmem.zeros((4, 6), "int64")
        y, wide = (shmem.zeros(6, "f4"), shmem.zeros((4, 6), "f4")), shmem.zeros(4, "f4")
        index = shmem.array(np.array([4, -1, 0, 1], "i4"))
        rows, _, _ = kernels("sum")
        for call, text in (
            (lambda: rows[1, 32](1, x[0][:5], x), "the target has 5 elements, the source 6"),
            (lambda: rows[1, 32](1, x[0], x[:0]), "it is empty"),
            (lambda: rows[1, 32](1, x[0], x[:, ::2]), "the elements of a row must be adjacent"),
            (lambda: gathered[1, 32](0, y[1], y[1], index, 0), "src has no row 4"),
            (lambda: gathered[1, 32](0, y[1], y[1], index[1:], 0), "dst has 4 rows of 6, index 3"),
            (lambda: weighed[1, 32](1, *y, index, wide), "src has no row 4: its rows are 0 to 3"),
            (lambda: weighed[1, 32](1, *y, index[1:], wide[:2]), "3 elements, weights 2"),
            (lambda: weighed[1, 32](1, y[1][0][:5], y[1], index, wide), "the target has 5 elem"),
            (lambda: copies[1, 32](1, x[0][:5], x[1]), "the target has 5 elements, the source 6"),
        ):
            with pytest.raises(ArgumentError, match=text):
                call()
                shmem.synchronize()
        shmem.finalize()

    run_pes(body, 1)


@shmem.jit
def weighed(scope, dst, src, index, weights):
    if scope == 0:
        shmem.sum_rows_warp(dst, src, index, weights)
    else:
        shmem.sum_rows_block(dst, src, index, weights)


INDICES = [2, -1, 0, 2, -1], [], [-1], [1], [-1, 0, -1, 3], [0, 1, 2, 3, 0, -1, 3]


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
def test_rows_are_weighed_and_summed(run_pes, dtype):
    wide = "float64" if dtype == "float64" else "float32"
    x, index = np.zeros((1, 1), dtype), np.zeros(1, "i4")
    compile_first(weighed, 0, x[0], x[:, ::2], index, np.zeros(1, wide), threads=32)

    def body():
        shmem.init()
        for scope, threads in enumerate(THREADS):
            for _, size, first, at, pitch in SHAPES:
                rows = (7 * np.arange(4)[:, None] + np.arange(pitch + first)) % 50.0
                rows = rows.astype(dtype)  # products and sums are exact, or are rounded at the end
                src, part = shmem.array(rows), rows[:, first : first + size].astype(wide)
                for numbers in INDICES:
                    weights = np.arange(5, len(numbers) + 5).astype(wide) / 4
                    total = np.zeros(size, wide)
                    for k, row in enumerate(numbers):
                        total += weights[k] * part[row] if row >= 0 else 0
                    dst = shmem.array(before := numbers_of(99, dtype, size + at + 3).copy())
                    given = [shmem.to_device(np.array(numbers, "i4")), shmem.to_device(weights)]
                    weighed[1, threads](scope, dst[at:], src[:, first : first + size], *given)
                    before[at : at + size] = total
                    np.testing.assert_array_equal(dst.numpy(), before, f"{size} {numbers}")
                    shmem.free(dst)
                shmem.free(src)
        shmem.finalize()

    run_pes(body, 1)
