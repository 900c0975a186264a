"""A sample of the suite of every backend, with NVSHMEM's device code inside.

All of it: GPUSHMEM_BACKEND=nvshmem-cpu pytest -m gpu; with GPUSHMEM_NODES=2 PEs of two nodes,
with GPUSHMEM_MEMORY=weak late accesses.
"""

import os
import re
import subprocess
import sys

import pytest

from gpushmem.backends import selection
from gpushmem.backends.nvshmem import versions
from gpushmem.start.launch import local
from tests.conftest import ROOT

SAMPLE = [
    "tests/conformance/test_rma.py::test_all_dtypes_and_layouts[put-some-2]",
    "tests/conformance/test_ordering.py::test_who_sees_the_message_after_a_fence_sees_the_data",
    "tests/conformance/test_signals.py::test_the_host_tests_and_answers_with_numpy_scalars",
    "tests/check/test_corpus.py::test_the_bug_is_found_at_its_lines_and_nothing_else[fence_before_flag]",
    "tests/check/test_corpus.py::test_the_program_without_the_bug_is_accepted[fence_before_flag]",
]


def test_without_nvshmem_nothing_is_loaded_before_init_says_so(monkeypatch):
    monkeypatch.setattr(versions, "installed", lambda package: None)
    assert not local.preload("nvshmem-cpu")
    assert "nvshmem4py is not installed" in selection.unusable("nvshmem-cpu")


def test_pytorch_is_loaded_by_who_uses_it_only():
    loads = "from gpushmem.start.launch import local; assert local.preload('nvshmem-cpu', 2)"
    asks = "import sys; assert 'torch' not in sys.modules; import torch; torch.zeros(1)"
    pytest.importorskip("torch")
    subprocess.run([sys.executable, "-c", f"{loads}; {asks}"], cwd=ROOT, check=True)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("n_nodes", ["1", pytest.param("2", marks=pytest.mark.sweep)])
def test_a_sample_of_the_suite(n_nodes):
    """On several nodes: jobs of 2 and 3 PEs, of which each is a node, and one PE."""
    env = os.environ | {"GPUSHMEM_BACKEND": "nvshmem-cpu", "GPUSHMEM_NODES": n_nodes}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0",
               "-m", "gpu or not (slow or sweep)"]  # fmt: skip
    done = subprocess.run(
        [*command, *SAMPLE],
        env=env,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.match(r"\.{11,} ", done.stdout)  # none is skipped


@pytest.mark.parametrize(
    "options",
    [
        (),
        pytest.param(("--nodes", 2), marks=pytest.mark.sweep),
        ("--nodes", 2, "--memory", "weak"),
    ],
)
def test_an_example(run_cli, options):
    done = run_cli(
        "run", "--backend", "nvshmem-cpu", "-n", 4, *options, ROOT / "examples/ring.py",
        timeout=170, code=0,
    )  # fmt: skip
    assert done.stderr == ""
    assert done.stdout.count("\n") >= 1


TURNS = """
import gpushmem as shmem
from gpushmem.simt.compiler.target import made_of

@shmem.jit
def kernel(x):
    shmem.barrier_all()
    x[0] = shmem.my_pe() + 1

def body():
    with shmem.session():
        x = shmem.zeros(1)
        kernel[1, 1](x)
        shmem.barrier_all()
        return x.numpy()[0], len(made_of)

if __name__ == "__main__":
    for backend, n in ("nvshmem-cpu", 1), ("cpu", 0), ("nvshmem-cpu", 1):
        assert shmem.spawn(body, 2, backend=backend) == [(1, n), (2, n)]
    shmem.init(backend="cpu")
    kernel[1, 1](shmem.zeros(1))
    shmem.finalize()
    try:
        shmem.init(backend="nvshmem-cpu")
    except shmem.ShmemError as error:
        print(error)
"""


def test_backends_of_one_process_take_turns_until_one_has_compiled_a_kernel(tmp_path):
    path = tmp_path / "turns.py"
    path.write_text(TURNS)
    done = subprocess.run(
        [sys.executable, path], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith(
        "kernels have been compiled for backend cpu in this process, and cannot be used on backend "
        "nvshmem-cpu"
    ), done.stdout
