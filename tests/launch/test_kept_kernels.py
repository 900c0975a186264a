"""What one run has compiled the next finds on disk; and only if it is the same."""

import subprocess
import sys

import numpy as np
import pytest

import gpushmem as shmem
from gpushmem import code_store
from gpushmem.artifacts.numba_extensions import extensions
from gpushmem.backends.cpu.hostcalls import HostCalls
from tests.conftest import PLAIN, ROOT
from tests.launch.test_compile_once import Builds, run


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A folder for compiled code of each test's own, for what earlier tests have left in none."""
    monkeypatch.setenv("GPUSHMEM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(HostCalls, "_kernels", {})
    monkeypatch.setattr(code_store, "_objects", {})
    return tmp_path / "cache"


@pytest.fixture
def builds_of(run_pes):
    """`builds_of(*kernels)`: the names of those that a job of 1 PE compiles; each adds 1."""

    def builds_of(*kernels, extend=lambda: None):
        def body():
            extend()
            builds = Builds()
            shmem.init()
            a = shmem.zeros(1, np.int64)
            for kernel in kernels:
                run(kernel, a)
            assert a[0] == len(kernels)
            return list(builds)

        return run_pes(body, 1)[0]

    return builds_of


@shmem.jit
def add(a):
    a[0] += 1


@shmem.jit(cache=False)
def add_uncached(a):
    a[0] += 1


def test_a_second_job_compiles_nothing(run_pes):
    @shmem.jit
    def right(a):
        shmem.p(a, shmem.my_pe(), (shmem.my_pe() + 1) % shmem.n_pes())
        shmem.barrier_all()

    def body():
        builds, before = Builds(), extensions()
        shmem.init()
        a, flag = shmem.zeros(1, np.int64), shmem.ones(1, np.uint64)
        run(right, a)
        shmem.signal_wait_until(flag, shmem.CMP_EQ, 1)
        shmem.barrier_all()
        assert extensions() == before  # what compiling has registered is none
        return list(builds), int(a[0])

    first, *others = (run_pes(body, n) for n in (3, 3, 1))
    names = [name for builds, _ in first for name in builds]
    assert sorted(names) == ["right", "signal_wait_until on the host"]
    assert [value for _, value in first] == [2, 0, 1]
    assert others == [[([], value) for value in (2, 0, 1)], [([], 0)]]


def test_what_is_kept_and_what_is_not(builds_of, monkeypatch):
    source = "import gpushmem\n@gpushmem.jit\ndef typed(a):\n    a[0] += 1\n"
    exec(source, names := {"__name__": "__main__"})  # as in a session, without a file
    typed = names["typed"]

    kernels = (add, add_uncached, typed)
    assert builds_of(*kernels) == ["add", "add_uncached", "typed"]
    assert builds_of(*kernels) == ["add_uncached"]
    monkeypatch.setenv("GPUSHMEM_CACHE", "0")
    assert builds_of(*kernels) == ["add", "add_uncached", "typed"]


def test_with_a_users_extensions_of_numba_nothing_is_kept(builds_of):
    def extend():
        from numba.cuda import extending

        extending.overload(lambda: None)(lambda: lambda: None)

    assert builds_of(add, extend=extend) == ["add"]
    assert builds_of(add, extend=extend) == ["add"]
    assert builds_of(add) == ["add"]
    assert builds_of(add) == []


def test_another_compiler_or_processor_takes_nothing_over(builds_of, monkeypatch):
    assert builds_of(add) == ["add"]
    monkeypatch.setenv("NUMBA_CPU_NAME", "generic")
    assert builds_of(add) == ["add"]
    assert builds_of(add) == []


PROGRAM = """
import gpushmem as shmem
import helper

@shmem.jit
def kernel(a):
    a[0] = helper.device(helper.FACTOR)

shmem.init(heap_size="1M")
a = shmem.zeros(1, "i8")
kernel[1, 1](a)
print(a.numpy()[0])
"""


def test_a_change_in_another_file_is_seen(tmp_path, folder):
    (tmp_path / "program.py").write_text(PROGRAM)

    def result(added, factor):
        (tmp_path / "helper.py").write_text(
            f"import gpushmem as shmem\nfrom below import below\nFACTOR = {factor}\n"
            "@shmem.jit(device=True)\ndef device(x):\n    return below(x)\n"
        )
        (tmp_path / "below.py").write_text(
            "import gpushmem as shmem\n"
            f"@shmem.jit(device=True)\ndef below(x):\n    return x + {added}\n"
        )
        command = [sys.executable, "-B", str(tmp_path / "program.py")]
        env = {**PLAIN, "PYTHONPATH": str(ROOT), "GPUSHMEM_CACHE_DIR": str(folder)}
        return subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout

    assert [result(1, 2), result(5, 2), result(5, 7)] == ["3\n", "7\n", "12\n"]
    before = len(list(folder.iterdir()))
    assert result(5, 7) == "12\n"
    assert len(list(folder.iterdir())) == before
