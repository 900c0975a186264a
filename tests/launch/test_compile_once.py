"""Kernels of a job are compiled by one PE, and mean on the others what they mean there."""

import contextlib
import io
import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from numba import cuda

import gpushmem as shmem
from gpushmem import code_store
from gpushmem.artifacts.launch_shape import shape_of
from gpushmem.backends.cpu.hostcalls import HostCalls
from gpushmem.simt.grid import entry as entries
from gpushmem.simt.grid import kernel_cache
from gpushmem.simt.run.kernel import Kernel
from gpushmem.simt.run.waits import waits


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch, tmp_path):
    """What other runs have compiled is not to be found."""
    monkeypatch.setenv("GPUSHMEM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(code_store, "_objects", {})


class Builds(list):
    """The names of the kernels that this PE compiles from now on."""

    def __init__(self):
        build = entries.build

        def counting(py_func, *args, **options):
            self.append(py_func.__name__)
            return build(py_func, *args, **options)

        entries.build = counting


def run(kernel, *args, grid=1, block=1):
    kernel[grid, block](*args)
    shmem.synchronize()


def first_on_pe_0(function):
    """Run `function` on PE 0, and when it has ended on the others; return its value here."""
    value = function() if shmem.my_pe() == 0 else None
    shmem.barrier_all()
    return value if shmem.my_pe() == 0 else function()


def test_a_kernel_is_compiled_once(run_pes):
    @shmem.jit
    def right(a):
        shmem.p(a, shmem.my_pe(), (shmem.my_pe() + 1) % shmem.n_pes())

    def body():
        builds = Builds()
        shmem.init()
        a = shmem.zeros(1, np.int64)
        run(right, a)
        shmem.barrier_all()
        return list(builds), a[0]

    done = run_pes(body, 4)
    assert [name for builds, _ in done for name in builds] == ["right"]
    assert [value for _, value in done] == [3, 0, 1, 2]


def test_what_differs_is_compiled_apart(run_pes):
    def adding(n):
        @shmem.jit
        def add(a, x):
            a[0] += n * x

        return add

    def body():
        builds = Builds()
        shmem.init()
        values = []
        for n, dtype, x in (
            (1, "i8", 2),
            (10, "i8", 2),
            (10, "f8", 2),
            (10, "f8", 2.5),
            (1, "i8", 2),
        ):
            a = shmem.ones(1, dtype)
            run(adding(n), a, x)
            values.append(a[0])
        return len(builds), values

    done = run_pes(body, 2)
    assert sum(builds for builds, _ in done) == 4
    assert [values for _, values in done] == [[3, 21, 21, 26, 3]] * 2


RANK = -1


@shmem.jit(device=True)
def rank():
    return RANK


def test_a_global_that_differs_between_pes_is_each_pes_own(run_pes):
    @shmem.jit
    def kernel(a):
        a[0] = rank()

    def body():
        global RANK  # noqa: PLW0603
        builds = Builds()
        shmem.init()
        RANK = shmem.my_pe() // 2
        a = shmem.zeros(1, np.int64)
        run(kernel, a)
        return len(builds), a[0]

    done = run_pes(body, 4)
    assert [value for _, value in done] == [0, 0, 1, 1]
    assert [done[0][0] + done[1][0], done[2][0] + done[3][0]] == [1, 1]


def test_operations_of_the_host_are_compiled_once(run_pes, monkeypatch):
    monkeypatch.setattr(HostCalls, "_kernels", {})  # what other tests have left in this process

    def body():
        builds = Builds()
        shmem.init()
        signal_ = shmem.ones(1, np.uint64)
        assert shmem.signal_wait_until(signal_, shmem.CMP_GE, 1) == 1
        shmem.barrier_all()
        return list(builds)

    done = run_pes(body, 3)
    assert [name for builds in done for name in builds] == ["signal_wait_until on the host"]


def test_a_kernel_made_again_is_not_compiled_again(run_pes):
    def body():
        builds, thaw, taken_over = Builds(), kernel_cache.thaw, []
        kernel_cache.thaw = lambda frozen: taken_over.append(1) or thaw(frozen)
        shmem.init()
        a = shmem.zeros(1, np.int64)
        for _ in range(5):

            @shmem.jit
            def add(a):
                a[0] += 1

            run(add, a)
        return len(builds), len(taken_over), a[0]

    assert sorted(run_pes(body, 2)) == [(0, 1, 5), (1, 0, 5)]


def test_every_kind_of_kernel_can_be_taken_over(run_pes):
    @shmem.jit
    def loops(a):
        print("thread", cuda.threadIdx.x, "of", shmem.my_pe())
        a[cuda.threadIdx.x] = cuda.threadIdx.x

    @shmem.jit
    def meets(a):
        shared = cuda.shared.array(4, np.int64)
        shared[cuda.threadIdx.x] = cuda.threadIdx.x
        cuda.syncthreads()
        a[cuda.threadIdx.x] = shared[3 - cuda.threadIdx.x]

    @shmem.jit
    def waits(a):
        if cuda.threadIdx.x == 0:
            shmem.wait_until(a[3:], shmem.CMP_EQ, 77)
        else:
            shmem.p(a[3:], 77, shmem.my_pe())
        cuda.syncthreads()
        a[cuda.threadIdx.x] = 5

    def body():
        builds = Builds()
        shmem.init()
        a = shmem.zeros(4, np.int64)
        text = io.StringIO()

        def each():
            values = []
            for kernel in (loops, meets, waits):
                run(kernel, a, block=4)
                values.append(a.numpy().tolist())
            return values

        with contextlib.redirect_stdout(text):
            values = first_on_pe_0(each)
        return list(builds), values, text.getvalue()

    builds, values, texts = zip(*run_pes(body, 2), strict=True)
    assert list(builds) == [["loops", "meets", "waits"], []]
    assert list(values) == [[[0, 1, 2, 3], [3, 2, 1, 0], [5, 5, 5, 5]]] * 2
    for pe, text in enumerate(texts):
        assert text == "".join(f"thread {k} of {pe}\n" for k in range(4))


def failure_of(kernel, *args):
    try:
        run(kernel, *args)
    except Exception as error:
        return f"{error} <- {error.__cause__!r}"


def line_of(function, marker):
    """The first line from a function's start, in this file, that ends with the comment `marker`."""
    start = getattr(function, "py_func", function).__code__.co_firstlineno
    lines = Path(__file__).read_text().splitlines()
    return next(k for k, line in enumerate(lines, 1) if k > start and line.endswith(f"# {marker}"))


@shmem.jit(device=True)
def checked(a, k):
    if a[k] == 13:
        raise KeyError("thirteen", 13)  # device
    return k


def test_failures_say_the_same_where_a_kernel_was_taken_over(run_pes):
    @shmem.jit
    def raises(a):
        a[1] = 13
        raise ValueError("too bad")  # raises

    @shmem.jit
    def calls(a):
        checked(a, 1)

    @shmem.jit(debug=True)
    def outside(a, k):
        a[k] = 1  # outside

    @shmem.jit
    def nobody(a):
        shmem.p(a, 1, 99)  # nobody

    def body():
        builds = Builds()
        shmem.init()
        a = shmem.zeros(4, np.int64)
        cases = ((raises, a), (calls, a), (outside, a, 9), (nobody, a))
        said = first_on_pe_0(lambda: [failure_of(*case) for case in cases])
        return list(builds), said

    (built, said), (taken_over, others) = run_pes(body, 2)
    assert (built, taken_over) == (["raises", "calls", "outside", "nobody"], [])
    assert [text.replace("PE 0", "PE 1") for text in said] == others
    wanted = ("ValueError('too bad')", "KeyError('thirteen', 13)", "IndexError", "no PE 99")
    places = ((raises, "raises"), (checked, "device"), (outside, "outside"), (nobody, "nobody"))
    for text, what, place in zip(others, wanted, places, strict=True):
        assert what in text
        assert f"test_compile_once.py:{line_of(*place)}" in text


def test_an_exception_of_ones_own_is_raised_by_every_pe(run_pes):
    def body():
        class Mine(Exception):
            pass

        @shmem.jit
        def raises(a):
            raise Mine("a text")

        @shmem.jit
        def harmless(a):
            a[0] = 1

        builds = Builds()
        shmem.init()
        a = shmem.zeros(1)
        said = first_on_pe_0(lambda: (failure_of(raises, a), failure_of(harmless, a)))
        return list(builds), "Mine('a text')" in said[0], said[1]

    done = run_pes(body, 2)  # the class cannot be pickled
    assert done == [(["raises", "harmless"], True, None), (["raises"], True, None)]


def test_one_waits_in_a_kernel_taken_over_at_the_line_it_says(run_pes):
    @shmem.jit
    def waiting(a):
        shmem.wait_until(a, shmem.CMP_EQ, 1)  # waiting

    def body():
        builds = Builds()
        shmem.init()
        a = shmem.zeros(1, np.int64)

        def wait():
            a[0] = 0
            waiting[1, 1](a)
            while not (found := waits()):
                time.sleep(0.01)
            shmem.p(a, 1, shmem.my_pe())
            shmem.synchronize()
            return found[0].what, found[0].site

        return list(builds), first_on_pe_0(wait), list(builds)

    done = run_pes(body, 2)
    site = f"test_compile_once.py:{line_of(waiting, 'waiting')} in waiting"
    assert [d[1] for d in done] == [("wait_until", site)] * 2
    assert [d[2] for d in done] == [["waiting"], []]


def test_what_does_not_compile_fails_on_every_pe(run_pes):
    @shmem.jit
    def wrong(a):
        a[0] = a.no_such_attribute

    def body():
        shmem.init()
        a = shmem.zeros(1)
        return first_on_pe_0(lambda: failure_of(wrong, a))

    for said in run_pes(body, 2):
        assert "no_such_attribute" in said


def test_threads_of_one_pe_compile_once(run_pes):
    @shmem.jit
    def add(a):
        cuda.atomic.add(a, 0, 1)

    def body():
        builds = Builds()
        shmem.init()
        a = shmem.zeros(1, np.int64)
        threads = [threading.Thread(target=add[1, 1], args=(a,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        shmem.synchronize()
        return len(builds), a[0]

    done = run_pes(body, 2)
    assert sum(builds for builds, _ in done) == 1
    assert [value for _, value in done] == [4, 4]


@pytest.mark.parametrize(
    ("setting", "value"), [("GPUSHMEM_CACHE_DIR", "/proc/nowhere"), ("GPUSHMEM_CACHE", "0")]
)
def test_without_a_store_that_works_every_pe_compiles(run_pes, monkeypatch, setting, value):
    @shmem.jit
    def one(a):
        a[0] = 1

    def body():
        builds = Builds()
        monkeypatch.setenv(setting, value)
        shmem.init()
        a = shmem.zeros(1, np.int64)
        run(one, a)
        return len(builds), a[0]

    assert run_pes(body, 2) == [(1, 1)] * 2


def test_a_pe_that_dies_while_it_compiles_holds_up_nobody():
    def kernel(a):
        a[0] = 7

    a = np.zeros(1, np.int64)
    begun, begins = os.pipe()

    def launch():
        Kernel(kernel, cache=True).prepare(shape_of(1, 1), (a,))()

    def slowly(*args, **options):
        os.write(begins, b"1")
        time.sleep(60)

    pid = os.fork()
    if pid == 0:
        entries.build = slowly
        launch()
        os._exit(1)
    try:
        assert os.read(begun, 1)
        threading.Timer(0.2, lambda: os.kill(pid, signal.SIGKILL)).start()
        began = time.monotonic()
        launch()
        assert 0.1 < time.monotonic() - began < 20
        assert a[0] == 7
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        for each in (begun, begins):
            os.close(each)
