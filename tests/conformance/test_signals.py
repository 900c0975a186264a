"""put_signal, signal_op, signal_fetch, signal_wait_until; and what the host waits and tests for."""

import os
import re
import signal as signals
import threading

import numpy as np
import pytest
from numba import cuda
from numba.core.errors import TypingError

import gpushmem as shmem
from gpushmem.errors import ArgumentError, SymmetryError
from gpushmem.ops import OPS, host
from tests.conformance.test_ordering import in_pes
from tests.conformance.test_rma import DTYPES, PAIR, THREADS, numbers, same
from tests.pes import compile_first, repeated, to_send

PES = [3, *(pytest.param(n, marks=pytest.mark.sweep) for n in (2, 4, 8))]
MOSTLY_3 = [3, *(pytest.param(n, marks=pytest.mark.sweep) for n in (2, 4, 8))]
FORMS = [name for name, op in OPS.items() if op.base == "put_signal"]
FEW = ["uint8", "complex128"]
# As copies see sizes only, which test_rma tests, few; of the nbi forms the smallest.
OFTEN = {form: FEW[:1] if OPS[form].nbi else FEW for form in FORMS}
OFTEN["put_signal"] = ["float8_e4m3fn", "bfloat16", "int64", PAIR]
CASES = [
    pytest.param(form, dtype, marks=[pytest.mark.sweep] * (dtype not in OFTEN[form]))
    for form in FORMS for dtype in DTYPES
]  # fmt: skip
# First element of dst and src, number of elements.
PLACES = [(0, 0, 64), (3, 5, 1), (1, 2, 33), (7, 0, 7), (4, 4, 0), (64, 64, 0), (0, 1, 63)]


def compiled_calls(*calls):
    """Compile for what these calls on the host wait or test for before PEs are forked."""
    from gpushmem.backends.cpu.hostcalls import HostCalls

    def prepare(op, arguments):
        arguments.pop("stream", None)
        if op.name != "signal_fetch":  # which needs no kernel
            HostCalls(np.zeros(1)).prepare(op, arguments)
        return 1

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host, "call", prepare)
        for call in calls:
            call()


@pytest.mark.parametrize(("form", "dtype"), CASES, ids=str)
@pytest.mark.parametrize("n_pes", MOSTLY_3)
def test_data_and_signal_go_to_the_right_place(run_pes, form, dtype, n_pes):
    """Every form and dtype, all sizes, set and added to: what changes is what should, no more."""
    put_signal = OPS[form].function

    @shmem.jit
    def send(dst, src, signal, d, s, n, value, op, awaited, got):
        right = (shmem.my_pe() + 1) % shmem.n_pes()
        put_signal(dst[d : d + n], src[s : s + n], signal[1:], value, op, right)
        shmem.quiet()
        seen = shmem.signal_wait_until(signal[1:], shmem.CMP_EQ, awaited)
        if cuda.threadIdx.x == 0:
            got[0] = seen

    words = np.zeros(3, np.uint64)
    some = numbers(0, dtype)
    rest, threads = (0, 0, 0, words[0], 0, words[0], words), THREADS[OPS[form].scope]
    compile_first(send, some, some, words, *rest, threads=threads)
    compiled_calls(lambda: shmem.signal_wait_until(words, shmem.CMP_EQ, words[0]))

    def body():
        me = shmem.my_pe()
        left, right = (me - 1) % n_pes, (me + 1) % n_pes
        src, signal = to_send(numbers(100 + me, dtype)), shmem.zeros(3, "uint64")
        got = shmem.to_device(np.zeros(1, np.uint64))
        before, after, total = numbers(me, dtype), numbers(100 + left, dtype), 0
        dst = shmem.array(before)
        for k, (d, s, n) in enumerate(PLACES):
            for on_host in (False, True) if form == "put_signal" else (False,):
                dst.copy_from(before)
                shmem.barrier_all()
                value = np.uint64((2**63 if k % 3 else 0) + 10 * k + on_host + 1)
                op = shmem.SIGNAL_ADD if k % 2 else shmem.SIGNAL_SET
                total = (total + int(value)) % 2**64 if k % 2 else int(value)
                awaited = np.uint64(total)
                if on_host:
                    args = dst[d : d + n], src[s : s + n], signal[1:], value, op, right
                    assert put_signal(*args) is None
                    result = shmem.signal_wait_until(signal[1:], shmem.CMP_EQ, awaited)
                else:
                    args = dst, src, signal, d, s, n, value, op, awaited, got
                    send[1, THREADS[OPS[form].scope]](*args)
                    result = got.numpy()[0]
                assert result == awaited
                expected = before.copy()
                expected[d : d + n] = after[s : s + n]
                assert same(dst.numpy(), expected), (d, s, n, on_host)
                assert signal.numpy().tolist() == [0, total, 0]
                shmem.barrier_all()

    in_pes(run_pes, n_pes, body)


@pytest.mark.host_memory
def test_megabytes_arrive_before_their_signal(run_pes):
    """The last bytes of a long copy are there when its signal is, in kernels and from the host."""
    n, rounds = (1 << 21) + 1, 20

    @shmem.jit
    def exchange(dst, src, signal, wrong):
        other = 1 - shmem.my_pe()
        for k in range(1, rounds + 1):
            for i in range(0, n, 1024):
                src[i] = k
            src[n - 1] = k
            shmem.put_signal(dst, src, signal, k, shmem.SIGNAL_SET, other)
            shmem.signal_wait_until(signal, shmem.CMP_GE, k)
            if dst[n - 1] != k:
                wrong[0] += 1
            for i in range(0, n, 1024):
                if dst[i] != k:
                    wrong[0] += 1
            shmem.barrier_all()

    def body():
        dst, src = shmem.zeros(n, "int32"), shmem.zeros(n, "int32")
        signal, wrong = shmem.zeros(2, "uint64"), shmem.to_device(np.zeros(1, np.int64))
        exchange[1, 1](dst, src, signal, wrong)
        shmem.synchronize()
        me = shmem.my_pe()
        for k in range(1, rounds + 1):
            if k % 2 == me:
                src.copy_from(k + 1000)
                shmem.put_signal(dst, src, signal[1:], k, shmem.SIGNAL_SET, 1 - me)
            else:  # and looks at once
                shmem.signal_wait_until(signal[1:], shmem.CMP_GE, k)
                assert np.asarray(dst)[-1] == k + 1000
                assert (np.asarray(dst) == k + 1000).all()
            shmem.barrier_all()
        return int(wrong.numpy()[0])

    assert in_pes(run_pes, 2, body) == [0, 0]


@shmem.jit
def take_as_they_come(data, src, signals, status, indices, wrong, taken):
    """All send to all; what has been signalled is looked at: by `_any`, by `_some`, by `_all`."""
    me, n = shmem.my_pe(), shmem.n_pes()
    for k in range(1, 4):
        for i in range(src.size):
            src[i] = 10_000 * k + 1000 * me + i
        for j in range(n):
            to = (me + j) % n
            shmem.put_signal(data[me], src, signals[me:], k, shmem.SIGNAL_SET, to)
        for pe in range(n):
            status[pe], indices[pe] = 0, pe
        left = n
        while left > 0:
            found = 1
            if k == 1:
                indices[0] = shmem.wait_until_any(signals, status, shmem.CMP_EQ, k)
            elif k == 2:
                found = shmem.wait_until_some(signals, indices, status, shmem.CMP_EQ, k)
            else:
                shmem.wait_until_all(signals, status, shmem.CMP_EQ, k)
                found = n
            for j in range(found):
                pe = indices[j]
                status[pe] = 1
                taken[k - 1, pe] += 1
                for i in range(src.size - 1, -1, -1):
                    wrong[k - 1] += data[pe, i] != 10_000 * k + 1000 * pe + i
            left -= found
        shmem.barrier_all()


@pytest.mark.parametrize("n_pes", [1, 2, 3])
def test_one_call_waits_for_several_signals(run_pes, n_pes):
    """After it, the data put before each signal that was found is there."""

    def body():
        data, signals = shmem.full((n_pes, 300), -7, dtype="int64"), shmem.zeros(n_pes, "uint64")
        src, status = shmem.empty(300, "int64"), shmem.device_array(n_pes, "int32")
        indices, wrong = shmem.device_array(n_pes, "int64"), np.zeros(3, np.int64)
        taken = np.zeros((3, n_pes), np.int64)
        take_as_they_come[1, 1](data, src, signals, status, indices, wrong, taken)
        shmem.synchronize()
        return wrong.tolist(), taken.tolist()

    assert in_pes(run_pes, n_pes, body) == [([0] * 3, [[1] * n_pes] * 3)] * n_pes


@pytest.mark.parametrize("n_pes", PES)
def test_kernels_and_hosts_of_all_pes_add_to_one_signal(run_pes, n_pes):
    """Nothing is lost, and the sum wraps around at 2**64."""
    rounds, start = repeated(20_000, 200), 2**64 - 1000

    @shmem.jit
    def add(signal, value):
        for _ in range(rounds):
            shmem.signal_op(signal, value, shmem.SIGNAL_ADD, 0)

    def body():
        signal = shmem.full(1, start, dtype="uint64")
        stream = shmem.stream()
        add[2, 1](signal, 3)
        for _ in range(rounds // 20):
            shmem.signal_op(signal, 5, shmem.SIGNAL_ADD, 0)
            shmem.signal_op(signal, 5, shmem.SIGNAL_ADD, 0, stream=stream)
        shmem.barrier_all()
        return int(signal.numpy()[0])

    total = start + n_pes * (2 * rounds * 3 + rounds // 20 * 2 * 5)
    assert in_pes(run_pes, n_pes, body)[0] == total % 2**64


@pytest.mark.parametrize("high", [0, 2**63 - 3, 2**64 - 7])
def test_signals_are_compared_as_unsigned_at_both_ends(run_pes, high):
    """In kernels and on the host; where a condition holds already, the wait returns what it saw."""
    compare = {"EQ": "__eq__", "NE": "__ne__", "GT": "__gt__", "LE": "__le__", "LT": "__lt__",
               "GE": "__ge__"}  # fmt: skip

    @shmem.jit
    def wait(signal, cmp, value, got):
        got[0] = shmem.signal_wait_until(signal, cmp, value)
        got[1] = shmem.signal_fetch(signal)

    def body():
        signal = shmem.zeros(1, "uint64")
        for seen in (high, high + 5):
            for value in (0, high + 1, high + 5, 2**63, 2**64 - 1):
                shmem.signal_op(signal, seen, shmem.SIGNAL_SET, 0)
                shmem.quiet()
                for name, method in compare.items():
                    cmp = getattr(shmem, f"CMP_{name}")
                    holds = getattr(seen, method)(value)
                    assert shmem.test(signal, cmp, value) == holds
                    if holds:
                        got = np.zeros(2, np.uint64)
                        wait[1, 1](signal, cmp, np.uint64(value), got)
                        assert got.tolist() == [seen, seen]
                        assert shmem.signal_wait_until(signal, cmp, value) == seen
        fetched = shmem.signal_fetch(signal)
        assert (fetched, type(fetched)) == (high + 5, np.uint64)

    in_pes(run_pes, 1, body)


# --- the host waits


def until(test):
    while not test():
        pass


# What waits on the host for flags[0] or both to be `k` or more; what it returns, and of what type.
STATUS, LAST = np.array([0, 1], np.int32), np.array([1, 0], np.int32)
WAITS = {
    "signal_wait_until": (lambda f, k, i: shmem.signal_wait_until(f, shmem.CMP_GE, k), "k"),
    "wait_until": (lambda f, k, i: shmem.wait_until(f, shmem.CMP_GE, k), None),
    "wait_until_all": (lambda f, k, i: shmem.wait_until_all(f, None, shmem.CMP_GE, k), None),
    "wait_until_any": (lambda f, k, i: shmem.wait_until_any(f, LAST, shmem.CMP_GE, k), 1),
    "wait_until_some": (lambda f, k, i: shmem.wait_until_some(f, i, STATUS, shmem.CMP_GE, k), 1),
    "wait_until_all_vector": (
        lambda f, k, i: shmem.wait_until_all_vector(f, None, shmem.CMP_EQ, vector(f, k)), None),
    "wait_until_any_vector": (
        lambda f, k, i: shmem.wait_until_any_vector(f, STATUS, shmem.CMP_EQ, vector(f, k)), 0),
    "wait_until_some_vector": (
        lambda f, k, i: shmem.wait_until_some_vector(f, i, LAST, shmem.CMP_GE, vector(f, k)), 1),
    "test": (lambda f, k, i: until(lambda: shmem.test(f, shmem.CMP_GE, k)), None),
    "test_all": (lambda f, k, i: until(lambda: shmem.test_all(f, None, shmem.CMP_GE, k)), None),
    "test_any": (
        lambda f, k, i: until(lambda: shmem.test_any(f, None, shmem.CMP_GE, k) >= 0), None),
    "test_some": (
        lambda f, k, i: until(lambda: shmem.test_some(f, i, None, shmem.CMP_GE, k)), None),
    "test_all_vector": (
        lambda f, k, i: until(lambda: shmem.test_all_vector(f, None, shmem.CMP_GE, vector(f, k))),
        None),
    "signal_fetch": (lambda f, k, i: until(lambda: shmem.signal_fetch(f) >= k), None),
}  # fmt: skip


def vector(flags, k):
    return np.full(flags.size, k, flags.dtype)


@shmem.jit
def late(data, src, flags, k, how, spins):
    """After a while put data and then write the flags, to all PEs but this one."""
    state = k
    for _ in range(spins):
        state = state * 6364136223846793005 + 1442695040888963407
    for i in range(src.size):
        src[i] = 1000 * k + i + (state & 0)
    for j in range(1, shmem.n_pes()):
        pe = (shmem.my_pe() + j) % shmem.n_pes()
        shmem.put(data, src, pe)
        shmem.fence()
        for i in range(2):
            if how == 0:
                shmem.p(flags[i:], k, pe)
            elif how == 1:
                shmem.atomic_set(flags[i:], k, pe)
            else:
                shmem.atomic_inc(flags[i:], pe)


# Of another dtype than signals' a sample: a wait and a test, for one element and for several.
FEW_WAITS = ["wait_until", "wait_until_some_vector", "test", "test_some"]
DTYPE_CASES = [("uint64", [*WAITS]), ("int32", FEW_WAITS)] + [
    pytest.param(dtype, [n for n in WAITS if not n.startswith("signal")], marks=pytest.mark.sweep)
    for dtype in ("int32", "int64", "uint32")
]


@pytest.mark.host_memory
@pytest.mark.parametrize("n_pes", MOSTLY_3)
@pytest.mark.parametrize(("dtype", "names"), DTYPE_CASES)
def test_the_host_waits_for_what_a_kernel_of_another_pe_writes(run_pes, dtype, names, n_pes):
    """Each operation that waits or tests comes back when it should, and then the data is there."""
    longs, flag = np.zeros(8, np.int64), np.zeros(2, dtype)
    compile_first(late, longs, longs, flag, 1, 0, 1)
    compiled_calls(*(lambda w=WAITS[name][0]: w(flag, 1, longs[:2]) for name in names))

    def body():
        me = shmem.my_pe()
        data, src, flags = shmem.zeros(8, "int64"), shmem.zeros(8, "int64"), shmem.zeros(2, dtype)
        indices = np.full(2, -1)
        k = 0
        for name in names:
            wait, result = WAITS[name]
            for how in range(3):
                k += 1
                if me == 0:
                    late[1, 1](data, src, flags, k, how, 10_000 * (k % 4))
                else:
                    got = wait(flags, k, indices)
                    # Not numpy(), which waits for this PE's kernels.
                    assert np.asarray(data).tolist() == [1000 * k + i for i in range(8)], name
                    assert got == (k if result == "k" else result), name
                    kind = {"k": np.uint64, None: type(None)}.get(result, np.int64)
                    assert type(got) is kind, name
                shmem.barrier_all()
        assert shmem.test_some(flags, indices, None, shmem.CMP_GE, k) == 2 * (me > 0)
        return indices.tolist()

    results = in_pes(run_pes, n_pes, body)
    assert results[1:] == [[0, 1]] * (n_pes - 1)  # as test_some has written them


def test_the_host_tests_and_answers_with_numpy_scalars(run_pes):
    def body():
        x = shmem.array(np.array([3, 5, 3], np.uint64))
        indices, other = np.full(3, -1, np.int64), np.array([3, 3, 3], np.uint64)
        answers = [
            shmem.test(x, shmem.CMP_EQ, 3), shmem.test(x, shmem.CMP_LT, 3),
            shmem.test_all(x, None, shmem.CMP_EQ, 3), shmem.test_any(x, None, shmem.CMP_GT, 3),
            shmem.test_any(x, None, shmem.CMP_GT, 5),
            shmem.test_some(x, indices, None, shmem.CMP_EQ, 3),
            shmem.test_some_vector(x, indices, None, shmem.CMP_NE, other),
            shmem.test_all_vector(x, np.array([0, 1, 0], np.int32), shmem.CMP_EQ, other),
            shmem.test_any_vector(x, None, shmem.CMP_NE, other),
            shmem.wait_until_any(x, np.ones(3, np.int32), shmem.CMP_EQ, 3),
            shmem.wait_until_some(x, indices, np.ones(3, np.int32), shmem.CMP_EQ, 3),
            shmem.wait_until_all(x[3:], None, shmem.CMP_EQ, 3),
        ]  # fmt: skip
        return [(type(a).__name__, a if a is None else a.item()) for a in answers], indices.tolist()

    answers, indices = in_pes(run_pes, 1, body)[0]
    assert answers == [
        ("bool", True), ("bool", False), ("bool", False), ("int64", 1), ("int64", -1),
        ("int64", 2), ("int64", 1), ("bool", True), ("int64", 1), ("int64", -1), ("int64", 0),
        ("NoneType", None),
    ]  # fmt: skip
    assert indices == [1, 2, -1]


# --- with stream=: in the stream's order

ON_STREAM = {
    "signal_wait_until": lambda f, i, s: shmem.signal_wait_until(f, shmem.CMP_GE, 1, stream=s),
    "wait_until": lambda f, i, s: shmem.wait_until(f, shmem.CMP_GE, 1, stream=s),
    "wait_until_all": lambda f, i, s: shmem.wait_until_all(f, None, shmem.CMP_GE, 1, stream=s),
    "wait_until_any": lambda f, i, s: shmem.wait_until_any(f, None, shmem.CMP_GE, 1, stream=s),
    "wait_until_some": lambda f, i, s: shmem.wait_until_some(
        f, i, None, shmem.CMP_GE, 1, stream=s),
    "wait_until_all_vector": lambda f, i, s: shmem.wait_until_all_vector(
        f, None, shmem.CMP_GE, vector(f, 1), stream=s),
    "wait_until_any_vector": lambda f, i, s: shmem.wait_until_any_vector(
        f, None, shmem.CMP_GE, vector(f, 1), stream=s),
    "wait_until_some_vector": lambda f, i, s: shmem.wait_until_some_vector(
        f, i, None, shmem.CMP_GE, vector(f, 1), stream=s),
}  # fmt: skip


@pytest.mark.host_memory
def test_on_a_stream_a_wait_holds_up_what_comes_after_it_there(run_pes):
    """The call returns at once; the kernel behind it runs when the wait is over, and sees all."""

    @shmem.jit
    def copy(out, data):
        out[0] = data[0]

    longs = np.zeros(1, np.int64)
    compile_first(copy, longs, longs)
    flags, indices = np.zeros(2, np.uint64), np.zeros(2, int)
    compiled_calls(*(lambda w=wait: w(flags, indices, None) for wait in ON_STREAM.values()))

    def body():
        other, seven = 1 - shmem.my_pe(), shmem.to_device(np.array([7]))
        ready = shmem.zeros(1, "uint64")  # not a barrier, which would wait for the streams
        for k, wait in enumerate(ON_STREAM.values()):
            data, flags = shmem.zeros(1, "int64"), shmem.zeros(2, "uint64")
            out, stream = shmem.to_device(np.zeros(1, np.int64)), shmem.stream()
            indices = np.zeros(2, int)
            assert wait(flags, indices, stream) is None
            copy[1, 1, stream](out, data)
            for _ in range(50):  # another operation, meanwhile
                assert not shmem.test(flags, shmem.CMP_NE, 0)
            assert np.asarray(out).tolist() == [0]
            shmem.signal_op(ready, k + 1, shmem.SIGNAL_SET, other)
            shmem.signal_wait_until(ready, shmem.CMP_GE, k + 1)
            shmem.put(data, seven, other)
            shmem.fence()
            shmem.p(flags[1:], 1, other)
            shmem.signal_op(flags, 1, shmem.SIGNAL_SET, other)
            stream.synchronize()
            assert np.asarray(out).tolist() == [7]
            shmem.barrier_all()
            shmem.free(flags)
            shmem.free(data)

    in_pes(run_pes, 2, body)


@pytest.mark.host_memory
def test_on_a_stream_signals_go_out_after_the_kernel_before_them(run_pes):
    """`put_signal` and `signal_op` read and write in their turn, and the next kernel after them."""

    @shmem.jit
    def fill(src, k, spins):
        state = k
        for _ in range(spins):
            state = state * 6364136223846793005 + 1442695040888963407
        for i in range(src.size):
            src[i] = 10 * k + i + (state & 0)

    def body():
        other, stream = 1 - shmem.my_pe(), shmem.stream()
        dst, src, signal = (
            shmem.zeros(5, "int64"),
            shmem.zeros(5, "int64"),
            shmem.zeros(2, "uint64"),
        )
        for k in range(1, 31):
            fill[1, 1, stream](src, k, 200_000)
            if k % 2:
                shmem.put_signal(dst, src, signal, k, shmem.SIGNAL_SET, other, stream=stream)
            else:
                shmem.put(dst, src, other, stream=stream)
                shmem.fence(stream=stream)
                shmem.signal_op(signal, 1, shmem.SIGNAL_ADD, other, stream=stream)
            fill[1, 1, stream](src, -k, 0)
            shmem.signal_wait_until(signal, shmem.CMP_GE, k)
            assert np.asarray(dst).tolist() == [10 * k + i for i in range(5)]
            shmem.barrier_all()

    in_pes(run_pes, 2, body)


# --- what is refused


def refusals(word, ints, floats, small, far, src):
    """Host calls that cannot be done, with what is said."""
    bytes_ = word.view("uint8")
    odd = bytes_[1:9].view("uint64")
    add, cmp = shmem.SIGNAL_ADD, shmem.CMP_EQ
    unaligned = "not aligned to its 8 bytes"
    not_symmetric = "not on the symmetric heap.*allocate it with gpushmem.empty or zeros"
    return [
        (lambda: shmem.signal_op(word, 1, 3, 0), "signal_op: there is no signal operation 3"),
        (lambda: shmem.signal_op(word, 1, None, 0), "signal_op: there is no signal operation None"),
        (lambda: shmem.put_signal(ints, src, word, 1, 3, 0),
         "put_signal: there is no signal operation 3: use SIGNAL_SET or SIGNAL_ADD"),
        (lambda: shmem.signal_op(ints, 1, add, 0),
         "signal_op: signal must be an array of uint64, not an array of int64"),
        (lambda: shmem.signal_op(floats, 1, add, 0),
         "signal_op: signal must be an array of uint64, not an array of float64"),
        (lambda: shmem.put_signal(ints, src, small, 1, add, 0),
         "put_signal: signal must be an array of uint64, not an array of int16"),
        (lambda: shmem.signal_fetch(ints), "signal_fetch: signal must be an array of uint64"),
        (lambda: shmem.signal_wait_until(ints, cmp, 0), "signal must be an array of uint64"),
        (lambda: shmem.signal_op(word, 0.5, add, 0), "value must be an integer, not 0.5"),
        (lambda: shmem.signal_op(word, -1, add, 0), "value -1 is outside of the range of uint64"),
        (lambda: shmem.signal_op(word, 2**64, add, 0), "outside of the range of uint64"),
        (lambda: shmem.signal_wait_until(word, cmp, 2**64), "outside of the range of uint64"),
        (lambda: shmem.wait_until(small, cmp, 1 << 15), "32768 is outside of the range"),
        (lambda: shmem.test_any(small, None, cmp, -40000), "test_any: value -40000 is outside"),
        (lambda: shmem.wait_until(small, cmp, 0.5), "value must be an integer, not 0.5"),
        (lambda: shmem.signal_wait_until(word, 9, 0), "signal_wait_until: there is no comp"),
        (lambda: shmem.test_some(small, np.zeros(4, int), None, -1, 0), "no comparison -1"),
        (lambda: shmem.wait_until(floats, cmp, 0), "ivar must be an array of int16"),
        (lambda: shmem.wait_until_any(small, np.zeros(3, np.int32), cmp, 0),
         "4 elements are to be compared, but status, indices or value has 3"),
        (lambda: shmem.wait_until_all_vector(small, None, cmp, 3), "value must be an array of int"),
        (lambda: shmem.wait_until_all(small[::2], None, cmp, 3), "ivars is not contiguous"),
        (lambda: shmem.wait_until([0], cmp, 0), "ivar must be an array"),
        (lambda: shmem.signal_op(word[1:1], 1, add, 0), "signal_op: the array has no element 0"),
        (lambda: shmem.signal_wait_until(word[:0], cmp, 1), "the array has no element 0"),
        (lambda: shmem.signal_op(word, 1, add, 1), "signal_op: there is no PE 1: PEs are 0 to 0"),
        (lambda: shmem.signal_op(word, 1, add, None), "there is no PE None"),
        (lambda: shmem.put_signal(ints, src[:, 1], word, 1, add, 0), "put_signal: src is not cont"),
        (lambda: shmem.put_signal(ints[1:], src, word, 1, add, 0),
         "put_signal: the target has 3 elements, (4 are|the source 4)"),
        (lambda: shmem.put_signal(floats, src, word, 1, add, 0), "dst is an array of float64, src"),
        (lambda: shmem.signal_op(odd, 1, add, 0), f"signal_op.*{unaligned}"),
        (lambda: shmem.signal_fetch(odd), f"signal_fetch.*{unaligned}"),
        (lambda: shmem.signal_wait_until(odd, cmp, 0), f"signal_wait_until.*{unaligned}"),
        (lambda: shmem.test_all(odd, None, cmp, 0), f"test_all.*{unaligned}"),
        (lambda: shmem.signal_op(far, 1, add, 0), f"signal_op.*{not_symmetric}"),
        (lambda: shmem.put_signal(ints, src, far, 1, add, 0), f"put_signal.*{not_symmetric}"),
        (lambda: shmem.signal_fetch(far), f"signal_fetch.*{not_symmetric}"),
        (lambda: shmem.signal_wait_until(far, cmp, 0), f"signal_wait_until.*{not_symmetric}"),
        (lambda: shmem.wait_until_some(far, np.zeros(1, int), None, cmp, 0),
         f"wait_until_some.*{not_symmetric}"),
        (lambda: shmem.test(far, cmp, 0), f"test.*{not_symmetric}"),
    ]  # fmt: skip


def test_what_the_host_cannot_do_is_refused_before_anything_is_done(run_pes):
    def body():
        word, ints, floats = shmem.zeros(2, "uint64"), shmem.zeros(4, "int64"), shmem.zeros(4)
        small, far = shmem.zeros(4, "int16"), shmem.to_device(np.zeros(1, np.uint64))
        src = shmem.to_device(np.ones((2, 2), np.int64))
        for call, message in refusals(word, ints, floats, small, far, src):
            kind = SymmetryError if "symmetric" in message else ArgumentError
            with pytest.raises(kind, match=message):
                call()
        assert not word.numpy().any()
        assert not ints.numpy().any()
        # On a stream what is wrong with the memory is found when it is the call's turn.
        shmem.signal_op(word, 1, 3, 0, stream=shmem.stream())
        with pytest.raises(ArgumentError, match="signal_op: there is no signal operation 3"):
            shmem.synchronize()
        shmem.wait_until(small[4:], shmem.CMP_EQ, 0, stream=shmem.stream())
        with pytest.raises(ArgumentError, match=r"kernel wait_until.*array has no element 0"):
            shmem.synchronize()
        with pytest.raises(TypeError, match="unexpected keyword argument 'stream'"):
            shmem.signal_fetch(word, stream=shmem.stream())

    in_pes(run_pes, 1, body)


@pytest.mark.checked
def test_what_kernels_cannot_do_is_refused(run_pes):
    @shmem.jit
    def update(signal, value, op):
        shmem.signal_op(signal, value, op, 0)

    @shmem.jit
    def send(dst, src, signal, op):
        shmem.put_signal(dst, src, signal, 1, op, 0)

    @shmem.jit
    def wait(signal, value):
        shmem.signal_wait_until(signal, shmem.CMP_GE, value)

    @shmem.jit
    def fetch(signal, out):
        out[0] = shmem.signal_fetch(signal)

    def body():
        word, ints = shmem.zeros(2, "uint64"), shmem.zeros(4, "int64")
        far, src = shmem.to_device(np.zeros(1, np.uint64)), shmem.to_device(np.ones(4, np.int64))
        odd = word.view("uint8")[1:9].view("uint64")
        for bad, message in (
            (lambda: update[1, 1](ints, 1, 9), "signal_op: signal must be an array of uint64, not"),
            (
                lambda: update[1, 1](word, 0.5, 9),
                "signal_op: value must be an integer, not float64",
            ),
            (lambda: send[1, 1](ints, word, word, 9), "dst is an array of int64, src of uint64"),
            (lambda: wait[1, 1](ints, 1), "signal must be an array of uint64"),
            (lambda: wait[1, 1](word, 0.5), "value must be an integer, not float64"),
            (lambda: fetch[1, 1](ints, ints), "signal_fetch: signal must be an array of uint64"),
        ):
            with pytest.raises(TypingError, match=message):
                bad()
        for bad, kind, message in (
            (lambda: update[1, 1](word, 1, 3), ArgumentError, "no signal operation 3: use SIGNAL"),
            (lambda: send[1, 1](ints, src, word, 3), ArgumentError, "no signal operation 3"),
            (lambda: update[1, 1](odd, 1, 9), ArgumentError, "not aligned to its 8 bytes"),
            (lambda: send[1, 1](ints, src, odd, 9), ArgumentError, "not aligned to its 8 bytes"),
            (lambda: wait[1, 1](odd, 0), ArgumentError, "not aligned to its 8 bytes"),
            (lambda: fetch[1, 1](odd, src), ArgumentError, "not aligned to its 8 bytes"),
            (lambda: update[1, 1](far, 1, 9), SymmetryError, "not on the symmetric heap"),
            (lambda: wait[1, 1](far, 0), SymmetryError, "not on the symmetric heap"),
            (lambda: update[1, 1](word[2:], 1, 9), ArgumentError, "the array has no element 0"),
        ):  # fmt: skip
            bad()
            with pytest.raises(kind, match=message):
                shmem.synchronize()
        assert not word.numpy().any()

    in_pes(run_pes, 1, body)


# --- waits that do not end


@pytest.mark.reports
def test_a_report_says_what_each_host_waits_for(run_pes):
    """In the call itself and on a stream: operation, array, condition, value."""

    def body():
        shmem.init()
        word = shmem.full(1, 2**63 + 1, dtype="uint64")
        ints = shmem.full(3, -7, dtype="int16")
        me = shmem.my_pe()
        if me == 0:
            shmem.wait_until(ints[1:], shmem.CMP_GT, -5)
        elif me == 1:
            shmem.signal_wait_until(word, shmem.CMP_EQ, 2**64 - 1, stream=shmem.stream())
            shmem.synchronize()
        else:
            shmem.wait_until_any(ints, None, shmem.CMP_EQ, 3)

    with pytest.raises(shmem.ShmemError, match="deadlock: no PE can go on") as failure:
        run_pes(body, 3)
    said = str(failure.value)
    assert re.search(r"PE 0: host, in wait_until: ints\[1\] > -5, sees -7, for \d", said)
    wanted, seen = 2**64 - 1, 2**63 + 1
    assert re.search(rf"PE 1: host, in signal_wait_until: word\[0\] == {wanted}, sees {seen}", said)
    assert re.search(r"PE 2: host, in wait_until_any: ints\[0\] == 3, sees -7", said)


@pytest.mark.reports
def test_after_ctrl_c_in_a_wait_the_next_call_works(run_pes):
    """The wait ends with KeyboardInterrupt, who waited for what is printed, the rest goes on."""

    def body():
        word = shmem.zeros(1, "uint64")
        for _ in range(2):
            threading.Timer(0.3, lambda: os.kill(os.getpid(), signals.SIGINT)).start()
            with pytest.raises(KeyboardInterrupt):
                shmem.signal_wait_until(word, shmem.CMP_EQ, 1)
            assert shmem.test(word, shmem.CMP_EQ, 0)
        shmem.signal_op(word, 1, shmem.SIGNAL_SET, 0)
        assert shmem.signal_wait_until(word, shmem.CMP_EQ, 1) == 1

    in_pes(run_pes, 1, body)


@pytest.mark.cpu_backend
def test_threads_of_a_host_wait_beside_each_other(run_pes):
    """A wait in one thread keeps neither another thread's waits nor its tests from being done."""

    def body():
        word, seen = shmem.zeros(3, "uint64"), []

        def wait(i):
            seen.append(shmem.signal_wait_until(word[i:], shmem.CMP_NE, 0))
            if i:
                shmem.signal_op(word[i - 1 :], int(seen[-1]) + 1, shmem.SIGNAL_SET, 0)

        threads = [threading.Thread(target=wait, args=(i,), daemon=True) for i in range(3)]
        for thread in threads:
            thread.start()
        assert not shmem.test_any(word, None, shmem.CMP_NE, 0) >= 0
        shmem.signal_op(word[2:], 5, shmem.SIGNAL_SET, 0)
        for thread in threads:
            thread.join(20)
        assert seen == [5, 6, 7]

    in_pes(run_pes, 1, body)
