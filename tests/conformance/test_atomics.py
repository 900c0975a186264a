"""Atomic operations: every row of the table, every dtype, all PEs at once, kernels and hosts."""

from functools import reduce

import numpy as np
import pytest
from numba import cuda
from numba.core.errors import TypingError

import gpushmem as shmem
from gpushmem.errors import ArgumentError
from gpushmem.ops import OPS
from tests.pes import compile_first, repeated

PES = [3, 8, *(pytest.param(n, marks=pytest.mark.sweep) for n in (2, 4))]
SOME_PES = [2, *(pytest.param(n, marks=pytest.mark.sweep) for n in (4, 8))]
BITS = ["int32", "int64", "uint32", "uint64"]
NUMBERS = [*BITS, "float32", "float64"]
START = 1 << 20
ADDING = ("add", "fetch_add", "inc", "fetch_inc")
FOLDS = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "add": np.add}


def dtypes(op):
    return NUMBERS if op in ("fetch", "set", "swap", "add", "fetch_add") else BITS


OPERATIONS = [name.removeprefix("atomic_") for name in OPS if name.startswith("atomic_")]
SOME = ("int32", "uint64", "float32")  # of each size and kind
# Operations that return nothing and those that fetch share their code: one of each size and kind.
OFTEN = {
    **dict.fromkeys(("and", "fetch_or", "xor", "inc"), ("int32",)),
    **dict.fromkeys(("fetch_and", "or", "fetch_xor", "fetch_inc"), ("uint64",)),
    "fetch_add": ("int32", "float32"), "set": ("uint64", "float32"), "fetch": ("int32", "float32"),
}  # fmt: skip
ROWS = [
    pytest.param(op, dtype, marks=[pytest.mark.sweep] * (dtype not in OFTEN.get(op, SOME)))
    for op in OPERATIONS
    if op != "compare_swap"
    for dtype in dtypes(op)
]


def call_of(op, where):
    """Source of a call of the operation on element 3 of `dst` on PE `target`."""
    value = "" if op in ("fetch", "inc", "fetch_inc") else "value, "
    return f"{where}atomic_{op}(dst[3:], {value}target)"


def kernel_of(op):
    """A kernel in which every thread applies the operation with its own value, once."""
    scope = {"shmem": shmem, "cuda": cuda}
    returns = op.startswith("fetch") or op == "swap"
    exec(
        f"""def kernel(dst, values, old, target):
    i = cuda.grid(1)
    value = values[i]
    {"old[i] = " if returns else ""}{call_of(op, "shmem.")}
""",
        scope,
    )
    return shmem.jit(scope["kernel"])


def values_of(op, pe, n, dtype):
    """Different for all threads of all PEs, and small enough for sums to be exact in float32."""
    numbers = pe * n + np.arange(n)
    if op.endswith(("and", "or", "xor")):  # one bit each
        numbers = 1 << (numbers % 20)
        numbers = ~numbers if op.endswith("and") else numbers
    return numbers.astype(dtype)


def expected(op, values, dtype):
    """What is in the element when all have applied the operation; or the values it may have."""
    start = np.asarray(START, dtype)
    fold = FOLDS.get(op.removeprefix("fetch_"))
    with np.errstate(over="ignore"):
        if fold is not None:
            return [reduce(fold, values, start)]
    if op.endswith("inc"):
        return [start + values.size]
    return [start] if op == "fetch" else list(values)


@pytest.mark.parametrize(("op", "dtype"), ROWS)
def test_all_pes_at_once(run_pes, op, dtype):
    """Threads of every PE and every host change one element of PE 1; nothing is lost."""
    n, n_pes = repeated(64, 16), 3
    kernel = kernel_of(op)
    on_host = compile(call_of(op, "shmem."), "host", "eval")

    def body():
        shmem.init()
        me = shmem.my_pe()
        dst = shmem.full(5, START, dtype=dtype)
        values = values_of(op, me, n, dtype)
        old = np.zeros(n, dtype)
        kernel[2, n // 4](dst, shmem.to_device(values[: n // 2]), old[: n // 2], 1)
        for i in range(n // 2, n):
            result = eval(on_host, {"shmem": shmem, "dst": dst, "value": values[i], "target": 1})
            if op.startswith("fetch") or op == "swap":
                assert result.dtype == dtype
                old[i] = result
            else:
                assert result is None
        shmem.barrier_all()
        result = dst.numpy()
        shmem.finalize()
        return result, old

    like = np.zeros(1, dtype)
    compile_first(kernel, like, like, like, 1, threads=n // 4)
    results = run_pes(body, n_pes)
    values = np.concatenate([values_of(op, pe, n, dtype) for pe in range(n_pes)])
    for pe in (0, 2):
        np.testing.assert_array_equal(results[pe][0], np.full(5, START, dtype))
    after, olds = results[1][0], np.concatenate([old for _, old in results])
    np.testing.assert_array_equal(np.delete(after, 3), np.full(4, START, dtype))
    assert after[3] in expected(op, values, dtype)
    if op in ("fetch_add", "fetch_inc"):  # as if one after the other: what each saw is a prefix sum
        steps = values if op == "fetch_add" else np.ones_like(values)
        ends = olds + steps
        order = np.lexsort((ends, olds))
        np.testing.assert_array_equal(olds[order][1:], ends[order][:-1])
        assert olds[order][0] == START
    if op == "swap":  # each value came out once, but for the last, and the start came out
        assert sorted([*olds, after[3]]) == sorted([*values, np.asarray(START, dtype)])


@pytest.mark.parametrize("n_pes", SOME_PES)
@pytest.mark.parametrize(("op", "dtype"), [row for row in ROWS if row.values[0] in ADDING])
def test_no_addition_is_lost(run_pes, op, dtype, n_pes):
    rounds = repeated(300_000)
    scope = {"shmem": shmem}
    exec(
        f"""def kernel(dst, value, target):
    shmem.barrier_all()
    for _ in range({rounds}):
        {call_of(op, "shmem.")}
""",
        scope,
    )
    kernel = shmem.jit(scope["kernel"])

    def body():
        shmem.init()
        dst = shmem.zeros(4, dtype)
        kernel[1, 1](dst, 1, shmem.n_pes() - 1)
        shmem.barrier_all()
        result = dst.numpy()[3]
        shmem.finalize()
        return result

    compile_first(kernel, np.zeros(1, dtype), 1, 1)
    assert run_pes(body, n_pes)[-1] == n_pes * rounds


@pytest.mark.parametrize(
    ("dtype", "n_pes"),
    [
        pytest.param(dtype, n, marks=[pytest.mark.sweep] * (n != 3 and (dtype, n) != ("int32", 8)))
        for dtype in BITS
        for n in (2, 3, 4, 8)
    ],
)
def test_a_lock_of_compare_and_swap_lets_in_one_at_a_time(run_pes, n_pes, dtype):
    rounds = repeated(100, 10)

    @shmem.jit
    def work(lock, total, wrong):
        me = shmem.my_pe() + 1
        for _ in range(rounds):
            while shmem.atomic_compare_swap(lock, 0, me, 0) != 0:
                pass
            seen = shmem.g(total, 0)
            shmem.p(total, seen + 1, 0)
            shmem.quiet()
            if shmem.atomic_swap(lock, 0, 0) != me:
                wrong[0] += 1

    def body():
        shmem.init()
        lock, total = shmem.zeros(1, dtype), shmem.zeros(1, "int64")
        wrong = np.zeros(1, np.int64)
        work[1, 2](lock, total, wrong)
        shmem.barrier_all()
        result = int(total.numpy()[0]), int(wrong[0])
        shmem.finalize()
        return result

    assert run_pes(body, n_pes)[0] == (2 * n_pes * rounds, 0)


def test_kernels_hosts_and_cuda_atomics_agree(run_pes):
    """The three ways to add to one's own memory are atomic with each other."""

    @shmem.jit
    def both(x, n):
        for _ in range(n):
            shmem.atomic_add(x, 1, shmem.my_pe())
            cuda.atomic.add(x, 0, 1)

    adding = repeated(100, 2)

    def body():
        shmem.init()
        x = shmem.zeros(1, "int64")
        both[4, 64](x, adding)
        for _ in range(10 * adding):
            shmem.atomic_inc(x, shmem.my_pe())
        shmem.barrier_all()
        total = int(x.numpy()[0])
        shmem.finalize()
        return total

    assert run_pes(body, 2) == [(4 * 64 * 2 + 10) * adding] * 2


@pytest.mark.cpu_backend
@pytest.mark.gpushmem_check(False)  # reports it: PTX promises it for the threads of one GPU only
@pytest.mark.parametrize(
    "dtype",
    [pytest.param(each, marks=[pytest.mark.sweep] * (each not in SOME)) for each in NUMBERS],
)
def test_cuda_atomics_are_atomic_between_pes(run_pes, dtype):
    """A PE adds to its own element with `cuda.atomic` while its neighbour adds from outside."""
    rounds = repeated(300_000)

    @shmem.jit
    def both(x):
        right = (shmem.my_pe() + 1) % shmem.n_pes()
        shmem.barrier_all()
        for _ in range(rounds):
            cuda.atomic.add(x, 0, 1)
            shmem.atomic_add(x, 1, right)

    def body():
        shmem.init()
        x = shmem.zeros(1, dtype)
        both[1, 1](x)
        shmem.barrier_all()
        total = int(x.numpy()[0])
        shmem.finalize()
        return total

    assert run_pes(body, 2) == [2 * rounds] * 2


@pytest.mark.checked
def test_what_cannot_be_done_is_refused(run_pes):
    @shmem.jit
    def flip(x):
        shmem.atomic_xor(x, 1, 0)

    @shmem.jit
    def far(x):
        shmem.atomic_add(x, 1, 7)

    def body():
        shmem.init()
        floats, ints, bytes_ = (shmem.zeros(4, dtype) for dtype in ("float64", "int32", "int8"))
        message = "atomic_xor: dst must be an array of int32, int64, uint32, uint64, not"
        for array in (floats, bytes_):
            with pytest.raises(ArgumentError, match=message):
                shmem.atomic_xor(array, 1, 0)
            with pytest.raises(TypingError, match=message):
                flip[1, 1](array)
        with pytest.raises(ArgumentError, match="there is no PE 7: PEs are 0 to 0"):
            shmem.atomic_add(ints, 1, 7)
        far[1, 1](ints)
        with pytest.raises(
            ArgumentError, match="in far: atomic_add: there is no PE 7: PEs are 0 to 0"
        ):
            shmem.synchronize()
        with pytest.raises(ArgumentError, match="has no element 0"):
            shmem.atomic_add(ints[4:], 1, 0)
        assert ints.numpy()[0] == 0
        shmem.finalize()

    run_pes(body, 1)
