"""PEs of the nvshmem backend from their start to `finalize`, with NVSHMEM's stand-in for one."""

import re
import subprocess
import sys

import pytest

from tests.bootstrap.launchers import ENV, mpirun, need_mpi4py
from tests.bootstrap.processes import clean, free_port
from tests.conftest import ROOT
from tests.nvshmem import emulation

pytestmark = pytest.mark.skipif(emulation.missing() is not None, reason=str(emulation.missing()))

# Goes round a ring, before and after a second init; then says who it is.
SCRIPT = """
import os, sys
import numpy as np
import gpushmem as shmem
from gpushmem.job import ranks

{before}
def ring():
    shmem.init()
    me, n = shmem.my_pe(), shmem.n_pes()
    x = shmem.zeros(4, "int64")
    shmem.put(x, shmem.to_device(np.full(4, 1000 + me)), (me + 1) % n)
    shmem.barrier_all()
    assert (x.numpy() == 1000 + (me - 1) % n).all()
    shmem.free(x)
    {fails}
    shmem.finalize()
    return me, n, ranks.current().local_pe, os.environ["NVSHMEM_SYMMETRIC_SIZE"]

if __name__ == "__main__":
    assert ring() == ring()
    sys.stdout.write(f"{{ring()}} {{os.environ.get('NVSHMEM_REMOTE_TRANSPORT')}}\\n")
"""
TWO_MACHINES = """
from gpushmem.start.bootstrap import machines
rank = int(os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ.get("GPUSHMEM_PE") or 0)
machines.identity = lambda: b'["h%d", ""]' % (rank // 2)
"""
GPU = {"GPUSHMEM_BACKEND": "nvshmem", "GPUSHMEM_HEAP_SIZE": "1M", "GPUSHMEM_VERBOSE": "1"}
SIZE = (1 << 20) + (64 << 20)


@pytest.fixture
def script(tmp_path):
    """Write the script, with what comes before and what fails in it; return its path."""

    def write(before="", fails=""):
        path = tmp_path / "ring_of_pes.py"
        path.write_text(SCRIPT.format(before=before, fails=fails))
        return path

    return write


def run(*words, code=0, **env):
    """Run a command with the emulation; return what it printed."""
    emulated = emulation.environment()
    done = subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, timeout=120, check=False,
        env=clean(emulated) | ENV | {"PYTHONPATH": emulated["PYTHONPATH"]} | GPU | env, cwd=ROOT,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout, done.stderr


def test_gpushmem_run(script):
    words = ("run", "-n", 3, "--heap-size", "1M", "--transport", "p2p", script())
    out, err = run(sys.executable, "-m", "gpushmem", *words)
    told = [f"({pe}, 3, {pe}, '{SIZE}') none" for pe in range(3)]
    assert sorted(out.splitlines()) == told
    assert re.search(r"3 PEs on this machine, started by gpushmem .*backend nvshmem, heap 1 M", err)


FROM_DISK = """
import sys
import gpushmem as shmem

@shmem.jit
def kernel(x):
    x[0] = 1

shmem.init()
kernel[1, 32](shmem.zeros(4))
shmem.finalize()
unused = (
    "torch", "nvshmem.core", "nvshmem.bindings.device.numba",
    "gpushmem.backends.nvshmem.compile.compiler",
)
print([name for name in unused if name in sys.modules])
"""


def test_a_kernel_from_disk_imports_nothing_that_compiles(tmp_path):
    """Nor nvshmem.core, which imports PyTorch where it is installed: a second."""
    path = tmp_path / "from_disk.py"
    path.write_text(FROM_DISK)
    for _ in range(2):
        out, _ = run(sys.executable, path)
    assert out == "[]\n"


@pytest.mark.sweep
def test_a_pe_that_fails_ends_those_that_wait_for_it(script):
    path = script(fails="if me == 1: raise ValueError('no good')\n    shmem.barrier_all()")
    _, err = run(sys.executable, "-m", "gpushmem", "run", "-n", 3, path, code=1)
    assert "gpushmem: PE 1 failed:\nTraceback" in err
    assert err.endswith("PE 1 of 3 ended with exit code 1; the other 2 PEs were ended\n")


@pytest.mark.sweep
def test_settings_that_contradict(script):
    words = ("run", "-n", 2, "--transport", "ibrc", script())
    _, err = run(sys.executable, "-m", "gpushmem", *words, code=1, NVSHMEM_REMOTE_TRANSPORT="ucx")
    assert "ArgumentError: NVSHMEM_REMOTE_TRANSPORT=ucx is set, and GPUSHMEM_TRANSPORT=ibrc" in err


@pytest.mark.sweep
def test_spawn(script):
    code = (
        f"import sys; sys.path.insert(0, {str(script().parent)!r})\n"
        "import gpushmem, ring_of_pes\nprint(gpushmem.spawn(ring_of_pes.ring, 2))\n"
        "print(gpushmem.spawn(lambda: ring_of_pes.ring()[0], 2, backend='nvshmem'))\n"
    )
    out, _ = run(sys.executable, "-c", code)
    told = [(pe, 2, pe, str(SIZE)) for pe in range(2)]
    assert out == f"{told}\n[0, 1]\n"


@pytest.mark.sweep
def test_mpirun_on_two_machines(script):
    need_mpi4py()
    out, err = run(*mpirun(), 3, sys.executable, script(TWO_MACHINES))
    told = [f"({pe}, 3, {pe % 2}, '{SIZE}') None" for pe in range(3)]
    assert sorted(out.splitlines()) == told
    assert "3 PEs, 2 of them on this machine, found through mpi" in err


@pytest.mark.sweep
def test_tcp(script):
    path, port = script(TWO_MACHINES), free_port()
    env = {"GPUSHMEM_BOOTSTRAP": f"tcp://localhost:{port}", "GPUSHMEM_JOB_KEY": "a secret"}
    code = (
        "import os, subprocess, sys\n"
        "pes = [subprocess.Popen([sys.executable, sys.argv[1]], env={**os.environ, "
        "'GPUSHMEM_PE': str(k)}) for k in range(3)]\nsys.exit(max(pe.wait() for pe in pes))"
    )
    out, _ = run(sys.executable, "-c", code, path, GPUSHMEM_N_PES="3", **env)
    assert sorted(out.splitlines()) == [f"({k}, 3, {k % 2}, '{SIZE}') None" for k in range(3)]
