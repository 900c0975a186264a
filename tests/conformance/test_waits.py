"""wait_until and test, with all, any, some and vectors: every row, dtype and comparison."""

import operator
import re

import numpy as np
import pytest
from numba import cuda
from numba.core.errors import TypingError

import gpushmem as shmem
from gpushmem.errors import ArgumentError, SymmetryError
from tests.pes import compile_first, options, sendable

PES = [3, *(pytest.param(n, marks=pytest.mark.sweep) for n in (2, 4, 8))]
DTYPES = ["int16", "int32", "int64", "uint16", "uint32", "uint64"]
COMPARE = {"EQ": operator.eq, "NE": operator.ne, "GT": operator.gt, "LE": operator.le,
           "LT": operator.lt, "GE": operator.ge}  # fmt: skip
FAMILIES = ("all", "any", "some")


def both_forms(verb, family):
    name = f"{verb}_{family}"
    return getattr(shmem, name), getattr(shmem, name + "_vector")


@pytest.mark.parametrize(
    "dtype",
    [
        pytest.param(dtype, marks=[pytest.mark.sweep] * (dtype not in ("int16", "uint32", "int64")))
        for dtype in DTYPES
    ],
)
def test_every_comparison_of_every_dtype(run_pes, dtype):
    """The tests of one element and of several, against NumPy, around the ends of the range."""
    limits = np.iinfo(dtype)
    near = [int(limits.min), int(limits.min) + 1, 0, 1, 7, int(limits.max) - 1, int(limits.max)]
    values = np.array(sorted(set(near)), dtype)
    n = len(values)

    @shmem.jit
    def look(x, cmp, value, vector, one, every, index, count, indices):
        one[0] = shmem.test(x[2:], cmp, value)
        every[0] = shmem.test_all(x, None, cmp, value)
        every[1] = shmem.test_all_vector(x, None, cmp, vector)
        index[0] = shmem.test_any(x, None, cmp, value)
        index[1] = shmem.test_any_vector(x, None, cmp, vector)
        count[0] = shmem.test_some(x, indices[0], None, cmp, value)
        count[1] = shmem.test_some_vector(x, indices[1], None, cmp, vector)

    def body():
        shmem.init()
        x = shmem.array(values)
        vector = np.roll(values, 1)
        for name, compare in COMPARE.items():
            for value in values:
                one, every = np.zeros(1, bool), np.zeros(2, bool)
                index, count, indices = np.zeros(2, int), np.zeros(2, int), np.zeros((2, n), int)
                cmp = getattr(shmem, f"CMP_{name}")
                look[1, 1](x, cmp, value, vector, one, every, index, count, indices)
                assert one[0] == compare(values[2], value)
                for k, other in enumerate((value, vector)):
                    hits = np.flatnonzero(compare(values, other))
                    assert every[k] == (len(hits) == n)
                    assert index[k] in (hits if len(hits) else [-1])
                    assert indices[k][: count[k]].tolist() == hits.tolist()
        shmem.finalize()

    run_pes(body, 1)


def test_any_of_several_is_not_always_the_first(run_pes):
    @shmem.jit
    def look(x, waited, tested):
        for i in range(waited.size):
            waited[i] = shmem.wait_until_any(x, None, shmem.CMP_EQ, 1)
        for i in range(tested.size):
            tested[i] = shmem.test_any(x, None, shmem.CMP_EQ, 1)

    def body():
        shmem.init()
        found = np.full((2, 99), -9)
        look[1, 1](shmem.ones(3, "int32"), *found)
        shmem.finalize()
        return [{*map(int, row)} for row in found]

    assert run_pes(body, 1) == [[{0, 1, 2}, {0, 1, 2}]]


def test_what_is_excluded_does_not_count(run_pes):
    @shmem.jit
    def look(x, status, got, indices):
        got[0] = shmem.test_all(x, status, shmem.CMP_EQ, 1)
        got[1] = shmem.test_any(x, status, shmem.CMP_EQ, 1)
        got[2] = shmem.test_some(x, indices, status, shmem.CMP_EQ, 1)
        if got[0]:
            shmem.wait_until_all(x, status, shmem.CMP_EQ, 1)
            got[3] = shmem.wait_until_any(x, status, shmem.CMP_EQ, 1)
            got[4] = shmem.wait_until_some(x, indices, status, shmem.CMP_EQ, 1)

    def body():
        shmem.init()
        x = shmem.array(np.array([0, 1, 0, 1]))
        answers = []
        for status in ([1, 0, 1, 0], [1, 1, 1, 1], [0, 1, 0, 1], [1, 0, 0, 0]):
            got, indices = np.full(5, -9), np.full(4, -9)
            look[1, 1](x, np.array(status, np.int32), got, indices)
            answers.append((got.tolist(), indices.tolist()))
        shmem.finalize()
        return answers

    assert run_pes(body, 1)[0] == [
        ([1, 1, 2, 1, 2], [1, 3, -9, -9]),
        ([1, -1, 0, -1, 0], [-9, -9, -9, -9]),
        ([0, -1, 0, -9, -9], [-9, -9, -9, -9]),
        ([0, 1, 2, -9, -9], [1, 3, -9, -9]),
    ]


@shmem.jit(device=True)
def one_by_one(flags, seen, k):
    for _ in range(flags.size):
        i = shmem.wait_until_any(flags, seen, shmem.CMP_GE, k)
        seen[i] = 1


@shmem.jit(device=True)
def some_by_some(flags, indices, seen, k):
    left = flags.size
    while left > 0:
        found = shmem.wait_until_some(flags, indices, seen, shmem.CMP_GE, k)
        for j in range(found):
            seen[indices[j]] = 1
        left -= found


EACH_SIZE = ("int16", "uint32", "int64")  # how numbers are compared is another test's part


@pytest.mark.parametrize("n_pes", PES)
@pytest.mark.parametrize(
    "dtype",
    [pytest.param(each, marks=[pytest.mark.sweep] * (each not in EACH_SIZE)) for each in DTYPES],
)
def test_waiting_for_all_pes_and_seeing_what_they_sent(run_pes, n_pes, dtype):
    """Every PE puts data to every other, then a flag, with all ways of waiting in turn."""
    rounds, n = 30, 50

    @shmem.jit
    def exchange(data, src, flags, indices, seen, wrong):
        me, n_pes = shmem.my_pe(), shmem.n_pes()
        for k in range(1, rounds + 1):
            for i in range(n):
                src[i] = 1000 * k + me
            for pe in range(n_pes):
                shmem.put(data[k % 2, me], src, pe)
            shmem.fence()
            for pe in range(n_pes):
                shmem.p(flags[me:], k, pe)
            for i in range(n_pes):
                seen[i] = 0
            if k % 3 == 0:
                shmem.wait_until_all(flags, None, shmem.CMP_GE, k)
            elif k % 3 == 1:
                one_by_one(flags, seen, k)
            else:
                some_by_some(flags, indices, seen, k)
            for i in range(n_pes * n):
                if data[k % 2, i // n, i % n] != 1000 * k + i // n:
                    wrong[0] += 1
            # Nobody overwrites these data before all are here in the round after next.
            shmem.barrier_all()

    def body():
        shmem.init()
        data = shmem.zeros((2, n_pes, n), "int64")
        flags, src = shmem.zeros(n_pes, dtype), sendable(shmem.device_array(n, "int64"))
        indices, seen, wrong = np.zeros(n_pes, int), np.zeros(n_pes, np.int32), np.zeros(1, int)
        exchange[1, 1](data, src, flags, indices, seen, wrong)
        shmem.barrier_all()
        shmem.finalize()
        return int(wrong[0])

    flags, ints = np.zeros(n_pes, dtype), np.zeros(1, int)
    compile_first(
        exchange, np.zeros((2, n_pes, n), int), ints, flags, ints, np.zeros(1, np.int32), ints
    )
    assert run_pes(body, n_pes) == [0] * n_pes


def test_threads_wait_for_each_other(run_pes):
    """One thread of a block writes what others wait for or test in a loop."""

    @shmem.jit
    def relay(x, order):
        t = cuda.threadIdx.x
        if t % 2:
            shmem.wait_until(x[t:], shmem.CMP_NE, 0)
        elif t:
            while not shmem.test(x[t:], shmem.CMP_NE, 0):
                pass
        order[t] = t
        if t + 1 < x.size:
            shmem.p(x[t + 1 :], 1, shmem.my_pe())

    def body():
        shmem.init()
        x, order = shmem.zeros(64, "int32"), np.zeros(64, int)
        relay[1, 64](x, order)
        shmem.finalize()
        return order.tolist()

    assert run_pes(body, 1)[0] == list(range(64))


@pytest.mark.reports
@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("shmem.wait_until(x[1:], shmem.CMP_GT, -5)",
         r"wait_until: x\[1\] > -5, sees -7"),
        ("shmem.wait_until_all(x, None, shmem.CMP_EQ, -7)",
         r"wait_until_all: x\[0\] == -7, sees 0"),
        ("shmem.wait_until_any(x, None, shmem.CMP_EQ, 3)",
         r"wait_until_any: x\[0\] == 3, sees 0"),
    ],
)  # fmt: skip
def test_a_wait_that_does_not_end_says_what_it_sees(run_pes, call, said):
    scope = {"shmem": shmem}
    exec(f"def waiting(x):\n    {call}", scope)
    kernel = shmem.jit(scope["waiting"])

    def body():
        shmem.init()
        x = shmem.array(np.array([0, -7], np.int16))
        kernel[1, 1](x)
        shmem.synchronize()

    with pytest.raises(shmem.ShmemError, match="deadlock: no PE can go on") as failure:
        run_pes(body, 1)
    assert re.search(rf"PE 0: kernel waiting, .*\n +{said}\n", str(failure.value))


@pytest.mark.checked
def test_what_cannot_be_waited_for_is_refused(run_pes):
    @shmem.jit
    def one(x, value):
        shmem.wait_until(x, shmem.CMP_EQ, value)

    @shmem.jit
    def several(x, status):
        shmem.wait_until_all(x, status, shmem.CMP_EQ, 0)

    @shmem.jit
    def compare(x, cmp):
        shmem.test(x, cmp, 0)

    def body():
        shmem.init()
        x = shmem.zeros(4, "int32")
        for bad, message in (
            (lambda: one[1, 1](shmem.zeros(1, "float32"), 0), "ivar must be an array of int16"),
            (lambda: one[1, 1](shmem.zeros(1, "int8"), 0), "not an array of int8"),
            (lambda: one[1, 1](x, 0.5), "value must be an integer"),
            (lambda: several[1, 1](x, np.zeros(4)), "status must be an array of integers"),
        ):
            with pytest.raises(TypingError, match=message):
                bad()
        for bad, kind, message in (
            (lambda: one[1, 1](x[4:], 0), ArgumentError, "no element 0"),
            (lambda: one[1, 1](shmem.to_device([0]), 0), SymmetryError, "not on the symmetric"),
            (lambda: several[1, 1](x, np.zeros(3, np.int32)), ArgumentError,
             "4 elements are to be compared, but status, indices or value has 3 elements"),
            (lambda: compare[1, 1](x, 17), ArgumentError, "no comparison 17"),
        ):  # fmt: skip
            with pytest.raises(kind, match=message):
                bad()
                shmem.synchronize()
        shmem.finalize()

    run_pes(body, 1)


POLLING = """
from numba import cuda
import gpushmem as shmem

@shmem.jit(collective=True)
def kernel(flag, out):
    if cuda.grid(1) == 0:
        while {}:
            pass
        out[0] = 1
    elif cuda.grid(1) == cuda.gridsize(1) - 1:
        shmem.atomic_set(flag, 1, 0)

shmem.init()
for shape in (1, 2), (3, 1):
    flag, out = shmem.zeros(1, "uint64"), shmem.zeros(1)
    kernel[shape](flag, out)
    print(out.numpy()[0])
"""


@pytest.mark.cpu_backend
@pytest.mark.parametrize(
    "loop",
    [
        "shmem.g(flag, 0) == 0", "shmem.atomic_fetch(flag, 0) == 0",
        "shmem.atomic_compare_swap(flag, 1, 2, 0) != 1", "not shmem.test(flag, shmem.CMP_EQ, 1)",
        "shmem.signal_fetch(flag) == 0",
    ],
)  # fmt: skip
def test_a_loop_that_polls_lets_other_threads_run(run_cli, tmp_path, loop):
    path = tmp_path / "polling.py"
    path.write_text(POLLING.format(loop))
    done = run_cli("run", "--backend", "cpu", "-n", 1, *options(1), path, timeout=60, code=0)
    assert done.stdout.split() == ["1.0", "1.0"]
