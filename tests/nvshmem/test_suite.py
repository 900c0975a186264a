"""The tests of all backends on the nvshmem backend, as on a GPU: what of them needs no kernel."""

import re
import subprocess
import sys

import pytest

from tests.conftest import ROOT
from tests.nvshmem import emulation

pytestmark = pytest.mark.skipif(emulation.missing() is not None, reason=str(emulation.missing()))


def run(*words, **env):
    """Run pytest with the backend nvshmem on the emulated driver; return the lines it prints."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-m", "gpu", "-rs", *words], cwd=ROOT, check=False,
        env=emulation.environment(GPUSHMEM_BACKEND="nvshmem", **env), text=True,
        capture_output=True, timeout=150,
    )  # fmt: skip
    assert done.returncode in (0, 5), done.stdout + done.stderr
    return done.stdout


def test_what_runs_on_gpus():
    out = run("--collect-only", "-q")
    chosen = dict(re.findall(r"tests/(\S+): (\d+)", out))
    assert {name.partition("/")[0] for name in chosen} >= {
        "conformance", "ops", "memory", "kernels", "test_examples.py", "gpu"
    }  # fmt: skip
    assert "conformance/test_debug.py" not in chosen, "which is of the cpu backend's checks"


def test_a_test_in_pes_and_one_in_this_process():
    tests = "stats_of_a_heap_in_use or views_refuse or test_each_init_starts_afresh"
    out = run("tests/memory/test_stats.py", "tests/conformance/test_teams.py", "-k", tests)
    assert re.search(r"2 passed, 1 skipped", out), out
    assert "needs 3 PEs; GPUSHMEM_TEST_PES allows 1, 2, 4" in out


@pytest.mark.sweep
def test_hosts_of_more_pes():
    paths = "tests/memory/test_stats.py", "tests/memory/test_heap.py"
    out = run(*paths, "tests/conformance/test_teams.py", "-k", "memory",
              GPUSHMEM_TEST_PES="1,2,3")  # fmt: skip
    assert re.search(r"6\d passed", out), out


@pytest.mark.sweep
@pytest.mark.parametrize(("tries", "said"), [("", "1 skipped"), ("1", "1 passed")])
def test_waits_of_pes_that_share_a_gpu(tries, said):
    """A kernel that waits is not launched there, unless one asks for it."""
    out = run(
        "tests/nvshmem/test_suite.py", "-k", "waiting_kernel", EMULATION_DEVICES=1,
        EMULATION_MPS=0, GPUSHMEM_TEST_WAITS=tries,
    )  # fmt: skip
    assert said in out
    assert tries or "PEs share a GPU without MPS, and may not wait for each other in kernels" in out


@pytest.mark.gpu
def test_a_waiting_kernel(run_pes):
    """What the test above runs."""
    import gpushmem as shmem

    @shmem.jit
    def waits(x):
        shmem.wait_until(x, shmem.CMP_EQ, 0)

    def body():
        shmem.init()
        waits[1, 1](shmem.zeros(1, "int64"))
        shmem.finalize()

    run_pes(body, 2)
