"""LL and LL128 against NumPy: scopes, dtypes, sizes, places aligned in any way."""

import functools

import numpy as np
import pytest

import gpushmem as shmem
from gpushmem.errors import ArgumentError
from tests.conformance.test_multimem import combined, numbers_of
from tests.conformance.test_rows import CASES as OF_ROWS
from tests.conformance.test_rows import THREADS
from tests.pes import BACKEND, NODES, compile_first

pytestmark = pytest.mark.skipif(NODES > 1, reason="there are no units between nodes")
FEW = "sum-float16", "max-float64", "and-int32", "or-uint8"  # elements of each size
CASES = [
    pytest.param(*case.values, id=case.id, marks=[pytest.mark.sweep] * (case.id not in FEW))
    for case in OF_ROWS
]
PES = 3, *(pytest.param(n, marks=pytest.mark.sweep) for n in (1, 2, 5))
FORMS = {"ll": (4, 1, 1), "ll128": (240, 32, 16)}  # bytes of data, their words, and the alignment
FORM = [pytest.param(name, id=name) for name in FORMS]
# Elements; where the source, the target, and the units of a row begin; units from row to row. Of
# LL128 these are lines.
SHAPES = [
    (0, 0, 0, 0, 2), (1, 0, 0, 0, 2), (3, 1, 1, 1, 9), (7, 0, 0, 0, 16), (37, 3, 3, 0, 81),
    (129, 0, 1, 2, 264), (700, 8, 0, 0, 1400), (701, 0, 0, 1, 1410), (1411, 0, 0, 0, 1411),
]  # fmt: skip
UNTOUCHED = 0xABCD_0000_1234


def words_for(form, nbytes):
    data, words, _ = FORMS[form]
    return -(-nbytes // data) * words


@functools.cache
def kernel(form, op):
    scope = {"shmem": shmem}
    exec(
        f"""def exchange(scope, dst, units, begin, src, flag):
    me, n = shmem.my_pe(), shmem.n_pes()
    for k in range(n):
        if scope == 0:
            shmem.put_{form}_warp(units[me][begin:], src, flag, (me + k) % n)
        else:
            shmem.put_{form}_block(units[me][begin:], src, flag, (me + k) % n)
    if scope == 0:
        shmem.reduce_{form}_warp(dst, units[:, begin:], flag, {op!r})
    else:
        shmem.reduce_{form}_block(dst, units[:, begin:], flag, {op!r})
""",
        scope,
    )
    return shmem.jit(scope["exchange"])


@pytest.mark.parametrize("n_pes", PES)
@pytest.mark.parametrize(("op", "dtype"), CASES)
@pytest.mark.parametrize("form", FORM)
def test_what_all_have_sent_is_combined_in_order(run_pes, n_pes, form, op, dtype):
    exchange, align = kernel(form, op), FORMS[form][2]
    one, rows = np.zeros(1, dtype), np.zeros((1, 4), "uint64")
    compile_first(exchange, 0, one, rows, 0, one, 1, threads=32)

    def body():
        shmem.init()
        me, n, flag = shmem.my_pe(), shmem.n_pes(), 2**32 - 3
        size_of = np.dtype(dtype).itemsize
        for scope, threads in enumerate(THREADS):
            for size, first, at, begin, pitch in SHAPES:
                flag += 1  # its low 32 bits count: they go from the last number to 0
                need, begin = words_for(form, size * size_of), align * begin  # noqa: PLW2901
                pitch = max(align * pitch, begin + need) + align  # noqa: PLW2901
                units = shmem.full((n, pitch), UNTOUCHED, "uint64")
                src = shmem.array(numbers_of(me, dtype, size + first))
                dst = shmem.array(before := numbers_of(99, dtype, size + at + 3).copy())
                shmem.barrier_all()
                exchange[1, threads](scope, dst[at:][:size], units, begin, src[first:], flag)
                parts = [numbers_of(pe, dtype, size + first)[first:] for pe in range(n)]
                before[at : at + size] = combined(parts, op)
                np.testing.assert_array_equal(dst.numpy(), before, f"{scope} {size} {first}")
                shmem.barrier_all()
                there = units.numpy()
                words = there[:, begin : begin + need]
                flags = words >> 32 if form == "ll" else words[:, 15::16]
                assert (flags == flag % 2**32).all()
                assert (np.delete(there, range(begin, begin + need), 1) == UNTOUCHED).all()
                for array in (dst, src, units):
                    shmem.free(array)
        shmem.finalize()

    run_pes(body, n_pes)


def there_and_back(put, reduce):
    @shmem.jit
    def there_and_back(x, units, rounds, wrong):
        """What a PE receives it sends on: a box is used again when that has come round twice."""
        me, n = shmem.my_pe(), shmem.n_pes()
        for r in range(1, rounds):
            slot = r % units.shape[0]
            put(units[slot], x, r, (me + 1) % n)
            reduce(x, units[slot : slot + 1], r, "sum")
            for i in range(x.size):
                if x[i] != 1000 * ((me - r) % n) + i:
                    wrong[0] += 1

    return there_and_back


RINGS = {
    "ll": there_and_back(shmem.put_ll_block, shmem.reduce_ll_block),
    "ll128": there_and_back(shmem.put_ll128_block, shmem.reduce_ll128_block),
}


@pytest.mark.parametrize("n_pes", [3, pytest.param(9, marks=pytest.mark.sweep)])
@pytest.mark.parametrize("form", FORM)
def test_units_are_received_in_every_round(run_pes, n_pes, form):
    """In a ring, also of more PEs than cores."""

    def body():
        shmem.init()
        n, wrong = shmem.n_pes(), shmem.zeros(1, "int64")
        x = shmem.array(1000 * shmem.my_pe() + np.arange(145, dtype="int32"))
        units = shmem.zeros((2 * n, words_for(form, x.nbytes)), "uint64")
        RINGS[form][1, 32 if form == "ll128" and BACKEND != "cpu" else 1](x, units, 300, wrong)
        result = int(wrong.numpy()[0])
        shmem.finalize()
        return result

    assert run_pes(body, n_pes) == [0] * n_pes


@pytest.mark.skipif(BACKEND != "cpu", reason="others do not look at shapes")
def test_what_is_refused(run_pes):
    def body():
        shmem.init()
        x, units = shmem.zeros(6, "int32"), shmem.zeros((2, 6), "uint64")
        odd = shmem.zeros(64, "uint8")[4:60].view("uint64").reshape(1, 7)
        lines = shmem.zeros((1, 33), "uint64")
        for form, there, begin, text in (
            ("ll", units, 1, "put_ll_block: there are 5 units, and 6 are needed: one for each 4"),
            ("ll", odd, 0, "is not aligned to its 8 bytes"),
            ("ll", shmem.device_array((1, 6), "uint64"), 0, "is not on the symmetric heap"),
            ("ll128", lines, 1, "is not aligned to its 128 bytes"),
            ("ll128", lines, 16, "put_ll128_block: there are 17 units, and 32 are needed"),
        ):
            with pytest.raises((ArgumentError, shmem.SymmetryError), match=text):
                kernel(form, "sum")[1, 32](1, x, there, begin, x, 1)
                shmem.synchronize()
        shmem.finalize()

    run_pes(body, 1)
