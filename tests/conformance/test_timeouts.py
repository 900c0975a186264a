"""Waits with `timeout_ns`: every operation, in kernels, on the host and on streams."""

import os
import time

import numpy as np
import pytest
from numba import cuda
from numba.core.errors import TypingError
from numba.cuda.typing.typeof import Purpose, typeof

import gpushmem as shmem
from gpushmem.backends.cpu import lowering
from gpushmem.errors import ArgumentError
from gpushmem.simt.run.kernel import Kernel, running
from tests.conformance.test_ordering import in_pes
from tests.conformance.test_signals import compiled_calls
from tests.pes import BACKEND, compile_first

PES = [3, *(pytest.param(n, marks=pytest.mark.sweep) for n in (2, 8))]
MS = 1_000_000
LONG = 600_000 * MS
SLACK = 15.0  # seconds by which a wait may be late, on a busy machine
# What waits for `flags`, two words, to be `k` or more, a timeout by position or by name; and what
# it returns if that comes true of neither, of the second, or of both of them.
WAITS = {
    "signal_wait_until": ("flags[1:], GE, k, timeout", 0, 1, 1),
    "wait_until": ("flags, GE, k, timeout_ns=timeout", 0, 0, 1),
    "wait_until_all": ("flags, None, GE, k, timeout_ns=timeout", 0, 0, 1),
    "wait_until_any": ("flags, None, GE, k, timeout", -1, 1, 0),
    "wait_until_some": ("flags, indices, None, GE, k, timeout_ns=timeout", 0, 1, 2),
    "wait_until_all_vector": ("flags, None, GE, vector, timeout", 0, 0, 1),
    "wait_until_any_vector": ("flags, None, GE, vector, timeout_ns=timeout", -1, 1, 0),
    "wait_until_some_vector": ("flags, indices, None, GE, vector, timeout", 0, 1, 2),
}
STATES = ([0, 0], [0, 1], [1, 1])
COMPILED = {"shmem": shmem, "GE": shmem.CMP_GE}
TEXT = "def one(flags, indices, vector, k, timeout, *stream):\n    return shmem.{}({}{})"


def on_the_host(name, end=""):
    scope = dict(COMPILED)
    exec(TEXT.format(name, WAITS[name][0], end), scope)
    return scope["one"]


def in_a_kernel():
    """A kernel that does the wait numbered `which` and writes what it returns to `got`."""
    lines = ["def waiting(which, flags, indices, vector, k, timeout, got):"]
    for i, (name, (given, *_)) in enumerate(WAITS.items()):
        lines += [f"    if which == {i}:", f"        got[0] = shmem.{name}({given})"]
    scope = dict(COMPILED)
    exec("\n".join(lines), scope)
    return shmem.jit(scope["waiting"])


waiting = in_a_kernel()
host_waits = {name: on_the_host(name) for name in WAITS}
stream_waits = {name: on_the_host(name, ", stream=stream[0]") for name in WAITS}


def compile_waits(dtype="uint64"):
    flags, ints = np.zeros(2, dtype), np.zeros(2, int)
    compile_first(waiting, 0, flags, ints, flags, 1, 1, ints)
    compiled_calls(*(lambda w=w: w(flags, ints, flags, 1, 1) for w in host_waits.values()))


def kernel_wait(name, flags, indices, vector, k, timeout):
    got = np.full(1, -9)
    waiting[1, 1](list(WAITS).index(name), flags, indices, vector, k, timeout, got)
    return got[0]


def host_wait(name, *args):
    return host_waits[name](*args)


def timed(call, *args):
    """What a call returns, and how many seconds it takes."""
    began = time.monotonic()
    return call(*args), time.monotonic() - began


@pytest.mark.parametrize("wait", [kernel_wait, host_wait])
def test_a_wait_ends_when_it_is_true_or_late(run_pes, wait):
    """Neither, one or both of two words are there; and 0 ns, some, and many."""
    compile_waits()

    def body():
        flags, vector = shmem.zeros(2, "uint64"), np.ones(2, np.uint64)
        for name, (_, *returns) in WAITS.items():
            for state, wanted in zip(STATES, returns, strict=True):
                flags.copy_from(np.array(state))
                late = wanted == returns[0]
                for timeout in (0, 30 * MS) if late else (0, LONG):
                    indices = np.full(2, -9)
                    got, seconds = timed(wait, name, flags, indices, vector, 1, timeout)
                    either = "any" in name and state == [1, 1]
                    assert got in ([0, 1] if either else [wanted]), (name, state, timeout)
                    if late:
                        assert timeout / 1e9 <= seconds < timeout / 1e9 + SLACK, name
                        assert indices.tolist() == [-9, -9]
                    else:
                        assert seconds < SLACK, name
                    if wait is host_wait and returns[0] == 0 and "some" not in name:
                        assert type(got) is np.bool_

    in_pes(run_pes, 1, body)


def test_nothing_to_wait_for_is_told_at_once(run_pes):
    def body():
        flags, none = shmem.zeros(2, "uint64"), np.ones(2, np.int32)
        waits = (
            (shmem.wait_until_all, (flags, none), True), (shmem.wait_until_any, (flags, none), -1),
            (shmem.wait_until_some, (flags, np.zeros(2, int), none), 0),
        )  # fmt: skip
        for wait, args, wanted in waits:
            got, seconds = timed(wait, *args, shmem.CMP_EQ, 1, LONG)
            assert (got, seconds < SLACK + 10) == (wanted, True)  # with compiling

    in_pes(run_pes, 1, body)


def test_without_a_timeout_waits_return_what_they_did(run_pes):
    """None is no timeout, also when it is said; and the code of such a wait has no clock."""

    @shmem.jit
    def none(flags, got):
        got[0] = shmem.signal_wait_until(flags, shmem.CMP_EQ, 7, None)
        got[1] = shmem.signal_wait_until(flags, shmem.CMP_EQ, 7, timeout_ns=None)
        shmem.wait_until(flags, shmem.CMP_EQ, 7, None)
        shmem.wait_until_all(flags, None, shmem.CMP_EQ, 7, timeout_ns=None)
        got[2] = shmem.wait_until_any(flags, None, shmem.CMP_EQ, 7)

    @shmem.jit
    def some(flags, got):
        got[0] = shmem.wait_until(flags, shmem.CMP_EQ, 7, 0)

    def body():
        flags, got = shmem.full(1, 7, dtype="uint64"), np.zeros(3, int)
        none[1, 1](flags, got)
        assert got.tolist() == [7, 7, 0]
        value = shmem.signal_wait_until(flags, shmem.CMP_EQ, 7, timeout_ns=None)
        assert (value, type(value)) == (7, np.uint64)
        assert shmem.wait_until(flags, shmem.CMP_EQ, 7, None) is None
        assert shmem.wait_until(flags, shmem.CMP_EQ, 7, 0) is not None  # another kernel
        assert not shmem.wait_until(flags, shmem.CMP_EQ, 6, 0)

    in_pes(run_pes, 1, body)
    looks = os.environ.get("GPUSHMEM_MEMORY") == "weak" or "GPUSHMEM_CHECK" in os.environ
    if BACKEND == "cpu" and not looks:  # at the clock
        lowering.install()
        types = [typeof(a, Purpose.argument) for a in (np.zeros(1, np.uint64), np.zeros(1, int))]
        code = [Kernel(k.py_func).compile(tuple(types)).assembly() for k in (none, some)]
        assert ["clock_gettime" in text for text in code] == [False, True]


@pytest.mark.host_memory
@pytest.mark.parametrize("name", WAITS)
def test_a_stream_goes_on_when_the_wait_is_true_or_late(run_pes, name):
    """What follows on the stream is done after the time, or before it when the word comes."""

    @shmem.jit
    def mark(out):
        out[0] += 1

    out = np.zeros(1, int)
    compile_first(mark, out)
    flags, ints = np.zeros(2, np.uint64), np.zeros(2, int)
    compiled_calls(lambda: stream_waits[name](flags, ints, flags, 1, 1, None))

    def body():
        flags, stream = shmem.zeros(2, "uint64"), shmem.stream()
        indices, marked = np.full(2, -9), shmem.to_device(np.zeros(1, int))
        out = np.asarray(marked)

        def go(timeout, k):
            given = flags, indices, np.full(2, k, np.uint64), k, timeout, stream
            assert stream_waits[name](*given) is None
            mark[1, 1, stream](marked)
            if timeout == LONG:
                assert out[0] == 1
                for i in (1, 0):
                    shmem.signal_op(flags[i:], k, shmem.SIGNAL_SET, 0)
            stream.synchronize()

        _, seconds = timed(go, 50 * MS, 1)
        assert 0.05 <= seconds < 0.05 + SLACK
        assert out[0] == 1
        _, seconds = timed(go, LONG, 2)
        assert seconds < SLACK
        assert out[0] == 2

    in_pes(run_pes, 1, body)


@pytest.mark.host_memory
@pytest.mark.parametrize("n_pes", PES)
def test_another_pe_writes_while_the_wait_has_time(run_pes, n_pes):
    """On return the data put before is there: every wait, in kernels and on the host."""
    compile_waits()

    def body():
        me, k = shmem.my_pe(), 0
        data, flags = shmem.zeros(4, "int64"), shmem.zeros(2, "uint64")
        for name, (_, *returns) in WAITS.items():
            for wait in (kernel_wait, host_wait):
                k += 1
                if me == 0:
                    time.sleep(0.01 * (k % 3))
                    src = shmem.to_device(1000 * k + np.arange(4))
                    for pe in range(1, n_pes):
                        shmem.put(data, src, pe)
                        shmem.fence()
                        for i in range(2):
                            shmem.p(flags[i:], k, pe)
                else:
                    vector = np.full(2, k, np.uint64)
                    got, seconds = timed(wait, name, flags, np.zeros(2, int), vector, k, LONG)
                    assert np.asarray(data).tolist() == [1000 * k + i for i in range(4)], name
                    # Of several, one may be seen before the other is there, or any of them.
                    several = {"some": (1, 2), "any": (0, 1)}
                    answers = (several[kind] for kind in several if f"_{kind}" in name)
                    assert got in next(answers, (returns[2],)), name
                    assert seconds < 30
                shmem.barrier_all()

    in_pes(run_pes, n_pes, body)


def test_threads_of_a_block_wait_for_times_of_their_own(run_pes):
    """The shortest is over first; who has been written to returns in time; others stay."""
    times = [600 * MS, 300 * MS, 10 * MS, LONG]

    @shmem.jit
    def wait(flags, times, got, order, count):
        t = cuda.threadIdx.x
        got[t] = shmem.wait_until(flags[t:], shmem.CMP_EQ, 1, times[t])
        order[cuda.atomic.add(count, 0, 1)] = t
        if t == 0:
            shmem.p(flags[3:], 1, 0)

    def body():
        flags, got, order = shmem.zeros(4, "int64"), np.full(4, -9), np.full(4, -9)
        args = flags, np.array(times), got, order, np.zeros(1, int)
        _, seconds = timed(wait[1, 4], *args)
        assert got.tolist() == [0, 0, 0, 1]
        assert order.tolist() == [2, 1, 0, 3]
        assert 0.6 < seconds < 0.6 + SLACK

    longs = np.zeros(4, int)
    compile_first(wait, longs, longs, longs, longs, longs, threads=32)
    in_pes(run_pes, 1, body)


def test_one_thread_waits_while_its_block_is_at_a_barrier(run_pes):
    """Late, then in time, in turn; what it returned is what the block sees after the barrier."""
    rounds = 6

    @shmem.jit
    def wait(flag, got):
        t = cuda.threadIdx.x
        answer = cuda.shared.array(1, "int32")
        for k in range(rounds):
            if t == 5:
                if k % 2:
                    shmem.p(flag, k, 0)
                answer[0] = shmem.wait_until(flag, shmem.CMP_EQ, k, 3 * MS if k % 2 == 0 else LONG)
            cuda.syncthreads()
            got[k, t] = answer[0]
            cuda.syncthreads()

    def body():
        flag, got = shmem.full(1, -1, dtype="int64"), np.full((rounds, 32), -9)
        _, seconds = timed(wait[1, 32], flag, got)
        assert got.tolist() == [[k % 2] * 32 for k in range(rounds)]
        assert 0.003 * rounds / 2 <= seconds < SLACK

    compile_first(wait, np.zeros(1, int), np.zeros((1, 1), int), threads=32)
    in_pes(run_pes, 1, body)


@pytest.mark.cpu_backend
def test_no_time_is_a_turn_for_the_others(run_pes):
    """A wait of 0 ns lets the threads run that will make it true, and then sees it."""

    @shmem.jit
    def wait(flags, got):
        t = cuda.threadIdx.x
        if t == 0:
            got[0] = shmem.wait_until(flags, shmem.CMP_EQ, 1, 0)
            got[1] = shmem.wait_until_all(flags[1:2], None, shmem.CMP_EQ, 1, 0)
        else:
            shmem.p(flags, 1, 0)
            shmem.wait_until(flags[2:], shmem.CMP_EQ, 1, 0)  # gives thread 0 its turn
            shmem.p(flags[1:], 1, 0)

    def body():
        got = np.full(2, -9)
        wait[1, 2](shmem.zeros(3, "int64"), got)
        return got.tolist()

    compile_first(wait, np.zeros(1, int), np.zeros(1, int), threads=32)
    assert in_pes(run_pes, 1, body) == [[1, 1]]


@pytest.mark.parametrize("n_pes", PES)
def test_loops_around_short_waits_leave_others_the_core(run_pes, n_pes):
    """A word goes round all PEs, more than there are cores, each of which asks again and again."""
    rounds = 100

    @shmem.jit
    def go_round(word, late):
        me, n = shmem.my_pe(), shmem.n_pes()
        for k in range(1, rounds + 1):
            timeout, wanted = k % 4 * 500, (k - 1) * n + me
            while not shmem.wait_until(word, shmem.CMP_GE, wanted, timeout):
                timeout += 1  # other arguments each time: no loop that the engine finds
                late[0] += 1
            shmem.p(word, wanted + 1, (me + 1) % n)

    def body():
        word, late = shmem.zeros(1, "int64"), np.zeros(1, int)
        _, seconds = timed(go_round[1, 1], word, late)
        shmem.barrier_all()
        me = shmem.my_pe()
        assert word[0] == (rounds - 1 + (me == 0)) * n_pes + me
        assert late[0] > 0
        return seconds

    compile_first(go_round, np.zeros(1, int), np.zeros(1, int))
    assert max(in_pes(run_pes, n_pes, body)) < 20


def launched():
    """The launch that runs, or did."""
    while not (runs := running()):
        time.sleep(0.001)
    return runs.pop().launch


@pytest.mark.cpu_backend
def test_the_launch_counts_threads_that_wait_with_a_timeout(run_pes):
    """Also when the wait changes what it waits for, and when the launch fails."""

    @shmem.jit
    def wait(flags, fail):
        t = cuda.threadIdx.x
        if t < 2:
            shmem.wait_until(flags, shmem.CMP_EQ, 1, LONG)
        elif t == 2:
            shmem.wait_until_all(flags, None, shmem.CMP_EQ, 1, LONG)
        elif t == 3:
            shmem.wait_until_any(flags, None, shmem.CMP_EQ, 1)
        elif t == 4:
            shmem.wait_until(flags, shmem.CMP_EQ, 1, 0)
        elif t == 5:
            shmem.wait_until(flags[2:], shmem.CMP_EQ, 1)
            if fail:
                shmem.p(flags, 1, 99)

    def until(launch, count):
        began = time.monotonic()
        while launch["timed"][0] != count:
            assert time.monotonic() - began < 10, launch["timed"]
            time.sleep(0.001)

    def body():
        for fail in (False, True):
            flags = shmem.zeros(3, "int64")
            wait[1, 32](flags, fail)
            launch = launched()
            until(launch, 3)
            if fail:
                shmem.p(flags[2:], 1, 0)
                with pytest.raises(ArgumentError, match="no PE 99"):
                    shmem.synchronize()
            else:
                shmem.p(flags, 1, 0)
                until(launch, 1)
                shmem.p(flags[1:], 1, 0)
                shmem.p(flags[2:], 1, 0)
                shmem.synchronize()
            assert launch["timed"][0] == 0

    compile_first(wait, np.zeros(1, int), False, threads=32)
    in_pes(run_pes, 1, body)


def test_what_is_no_time_is_refused(run_pes):
    @shmem.jit
    def wait(flags, timeout, got):
        got[0] = shmem.wait_until(flags, shmem.CMP_EQ, 0, timeout)

    @shmem.jit
    def several(flags, timeout, got):
        got[0] = shmem.wait_until_any(flags, None, shmem.CMP_EQ, 0, timeout)

    def body():
        flags, got, stream = shmem.zeros(1, "int64"), np.zeros(1, int), shmem.stream()
        for kernel in (wait, several):
            for timeout in (-1, np.int8(-5)):  # though the condition holds
                with pytest.raises(ArgumentError, match=rf"0 or more nanoseconds, not {timeout}"):
                    kernel[1, 1](flags, timeout, got)
            for timeout in (0.5, True):
                with pytest.raises(TypingError, match="timeout_ns must be an integer of nano"):
                    kernel[1, 1](flags, timeout, got)
        got[:] = -9
        wait[1, 1](flags, np.uint64(2**64 - 1), got)
        assert got[0] == 1
        for timeout, said in ((-1, "0 or more nanoseconds, not -1"), (0.5, "an integer of nano"),
                              (True, "not True"), ("1", "not '1'")):  # fmt: skip
            for more in ({}, {"stream": stream}):
                with pytest.raises(ArgumentError, match=f"wait_until: timeout_ns must be .*{said}"):
                    shmem.wait_until(flags, shmem.CMP_EQ, 0, timeout_ns=timeout, **more)
        assert shmem.wait_until(flags, shmem.CMP_EQ, 0, timeout_ns=np.int16(3))
        assert shmem.wait_until(flags, shmem.CMP_EQ, 0, timeout_ns=2**70)

    in_pes(run_pes, 1, body)
