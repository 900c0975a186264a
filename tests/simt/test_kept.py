"""Device functions that are kept in the store, for other kernels and processes."""

import re
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from numba import cuda
from numba.cuda import types

import gpushmem as shmem
from gpushmem import code_store
from gpushmem.simt.compiler import cached_functions, target
from gpushmem.simt.compiler.cached_functions import KeptDispatcher
from gpushmem.simt.grid import entry

pytestmark = pytest.mark.cpu_backend


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch, tmp_path):
    """What other runs have compiled is not to be found."""
    monkeypatch.setenv("GPUSHMEM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(code_store, "_objects", {})


def compiled_here(do):
    """The names of the functions that this process compiles while `do()` runs."""
    names = []

    def compiling(py_func, *args, **options):
        names.append(py_func.__name__)
        return compile_function(py_func, *args, **options)

    compile_function = target.compile_function
    for module in (target, cached_functions, entry):
        module.compile_function = compiling
    do()
    shmem.synchronize()
    return names


def one_after_the_other(*calls):
    """Let PE k do `calls[k]`, PE 0 first; returns what its call returns."""
    for pe, call in enumerate(calls):
        if pe == shmem.my_pe():
            result = call()
        shmem.barrier_all()
    return result


def test_another_kernel_of_another_process_compiles_itself_alone(run_pes):
    """With arrays that no other test has: the tests' own process may have compiled the rest."""

    @shmem.jit
    def first(a, signal):
        shmem.put_signal_warp(a, a, signal, 1, shmem.SIGNAL_SET, 0)
        cuda.syncthreads()

    @shmem.jit
    def second(a, signal):
        cuda.syncthreads()
        shmem.put_signal_warp(a, a, signal, 2, shmem.SIGNAL_ADD, 1)  # other numbers

    def body():
        shmem.init()
        a, signal = shmem.zeros((2, 1, 2, 1), "complex64"), shmem.zeros(1, "uint64")
        names = one_after_the_other(
            lambda: compiled_here(lambda: first[1, 32](a, signal)),
            lambda: compiled_here(lambda: second[1, 32](a, signal)),
        )
        shmem.finalize()
        return names

    with_the_operation, itself = run_pes(body, 2)
    assert {"first", "put_signal_warp", "put"} <= {*with_the_operation}
    assert {*itself} == {"second"}  # twice: first as loops between barriers


def test_functions_of_two_processes_do_not_mix(run_pes):
    """Of one name and one number, as these are: the second has what the first would have had."""

    def adding(k):
        def inner(x):
            return x + k

        inner = target.device(inner)

        def function(x):
            return inner(x)

        return KeptDispatcher(function, f"adding {k}")

    def body():
        shmem.init()
        functions = adding(1), adding(100)
        mine, other = functions if shmem.my_pe() == 0 else functions[::-1]

        @shmem.jit(cache=False)
        def alone(x):
            x[0] = mine(x[0])

        @shmem.jit(cache=False)
        def both(x):
            x[0] = mine(x[0])
            x[1] = other(x[1])

        x = shmem.zeros(2, "int64")
        alone[1, 1](x)
        shmem.barrier_all()
        names = compiled_here(lambda: both[1, 1](x))
        result = x.numpy().tolist(), {*names}
        shmem.finalize()
        return result

    assert run_pes(body, 2) == [([2, 100], {"both"}), ([200, 1], {"both"})]


def test_their_shared_arrays_are_apart(run_pes):
    def having(value):
        def function(x, writes):
            here = cuda.shared.array(1, np.int64)
            if writes:
                here[0] = value
            else:
                x[0] = here[0]

        return KeptDispatcher(function, f"having {value}")

    def body():
        shmem.init()
        functions = having(1), having(2)
        mine, other = functions if shmem.my_pe() == 0 else functions[::-1]

        @shmem.jit(cache=False)
        def alone(x, writes):
            mine(x, writes)

        @shmem.jit(cache=False)
        def both(x, writes, reads):
            mine(x, writes)
            other(x, writes)
            mine(x, reads)
            other(x[1:], reads)

        x = shmem.zeros(2, "int64")
        alone[1, 1](x, True)
        shmem.barrier_all()
        names = compiled_here(lambda: both[1, 1](x, True, False))
        result = x.numpy().tolist(), {*names}
        shmem.finalize()
        return result

    assert run_pes(body, 2) == [([1, 2], {"both"}), ([2, 1], {"both"})]


def test_a_kernel_has_one_copy_of_what_its_operations_share(alone):
    def kernel(x):
        shmem.barrier_all()
        shmem.fcollect(shmem.TEAM_WORLD, x, x)
        shmem.sync_all()

    _, built = entry.build(kernel, (types.Array(types.int64, 1, "C"),))
    for shared in ("await_member", "begin_wait", r"failure\.4"):
        assert len(re.findall(rf"^\S*{shared}\S*:$", built.assembly(), re.MULTILINE)) == 1


def test_code_that_is_made_twice_has_one_name():
    def function(x):
        return x + 1

    made = [target.compile_function(function, (types.int64,)) for _ in range(2)]
    assert len({each.fndesc.llvm_func_name for each in made}) == 2
    assert len({cached_functions._merged(each, "0" * 64).name for each in made}) == 1


def test_who_fails_is_known_though_failures_are_recorded_elsewhere(alone):
    """The numbers of thread and block are passed on, also where they are in registers."""

    def kernel(x):
        i = cuda.grid(1)
        shmem.p(x[i:], i, 0)

    x = shmem.zeros(70, "int64")
    with pytest.raises(shmem.errors.ArgumentError, match=r"block \(2, 0, 0\), thread \(6, 0, 0\)"):
        shmem.jit(kernel)[3, 32](x)
        shmem.synchronize()


def test_threads_may_look_at_a_device_function_at_the_same_time():
    """Numba makes something of it at the first look, and every look waits for that."""
    functions = [target.SimtDispatcher(lambda x: x) for _ in range(50)]
    with ThreadPoolExecutor(4) as threads:
        seen = [*threads.map(lambda _: [each.overloads for each in functions], range(4))]
    assert seen == [[{}] * len(functions)] * 4


def test_quick_code_begins_with_what_has_been_reduced():
    """Optimised code does not: LLVM's optimiser makes the better of what Numba has written."""

    def total(n):
        found = 0
        for k in range(n):
            found += k
        return found

    made = KeptDispatcher(total, "total").compile_device((types.int64,))
    quick, optimised = (str(made.library.linked(quick=quick)) for quick in (True, False))
    assert optimised.count(" = alloca ") > 2 * quick.count(" = alloca ")
    assert len(optimised) > 2 * len(quick)
