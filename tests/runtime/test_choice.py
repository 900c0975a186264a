"""Which backend is taken: what is asked for, else what this machine has."""

import subprocess
import sys

import pytest

import gpushmem as shmem
from gpushmem.backends import selection
from gpushmem.backends.nvshmem import versions
from gpushmem.errors import BackendUnavailable
from tests.conftest import PLAIN

FITTING = {"nvshmem4py-cu13": "0.4.1", "numba-cuda": "0.30.4", "cuda-core": "1.2.2"}


@pytest.fixture
def machine(monkeypatch):
    """Have a GPU and a driver, or what is said of them, and packages."""

    def put(gpu=None, driver=None, **packages):
        monkeypatch.delenv("GPUSHMEM_BACKEND", raising=False)
        there = FITTING | {name.replace("_", "-"): v for name, v in packages.items()}
        monkeypatch.setattr(versions, "_no_gpu", lambda: gpu or driver)
        monkeypatch.setattr(versions, "_no_driver", lambda: driver)
        monkeypatch.setattr(versions, "installed", there.get)

    return put


def test_a_gpu_is_used_where_there_is_one(machine):
    machine()
    assert selection.choose() == ("nvshmem", "there are an NVIDIA GPU and nvshmem4py")
    assert selection.unusable("nvshmem") is None


def test_what_is_asked_for_comes_first(machine, monkeypatch):
    machine()
    monkeypatch.setenv("GPUSHMEM_BACKEND", "cpu")
    assert selection.choose() == ("cpu", "GPUSHMEM_BACKEND is set")
    assert selection.choose("nvshmem") == ("nvshmem", "it was asked for")
    with pytest.raises(BackendUnavailable, match=r"^there is no backend 'abacus' in this version"):
        selection.choose("abacus")


# What is installed, or None for a package that is not; what is said of it.
LACKING = [
    ({"driver": "there is no driver"}, "there is no driver"),
    (
        {"nvshmem4py_cu13": None},
        "nvshmem4py is not installed (needed: nvshmem4py-cu13 or nvshmem4py-cu12>=0.4,<0.5): "
        'pip install "gpushmem[nvshmem]"',
    ),
    ({"nvshmem4py_cu13": "0.5.0"}, "nvshmem4py-cu13 0.5.0 is installed (needed: "),
    ({"nvshmem4py_cu13": "0.3.1"}, "nvshmem4py-cu13 0.3.1 is installed (needed: "),
    ({"numba_cuda": "0.31.0"}, "numba-cuda 0.31.0 is installed (needed: numba-cuda>=0.30,<0.31)"),
    ({"cuda_core": "0.4.2"}, "cuda-core 0.4.2 is installed (needed: cuda-core>=1.0)"),
]


@pytest.mark.parametrize(("there", "said"), LACKING)
def test_what_is_missing_is_said_in_a_line(machine, there, said):
    machine(**there)
    name, why = selection.choose()
    assert name == "cpu"
    assert said.split(": pip")[0] in why
    line = selection.unusable("nvshmem")
    assert line.startswith(f"backend nvshmem cannot be used here: {said}")
    with pytest.raises(BackendUnavailable) as caught:
        shmem.init(backend="nvshmem")
    assert str(caught.value) == line


def test_a_driver_without_a_gpu_is_used_if_asked_for(machine):
    machine(gpu="there is no NVIDIA GPU")
    assert selection.choose() == ("cpu", "nvshmem cannot be used: there is no NVIDIA GPU")
    assert selection.unusable("nvshmem") is None


@pytest.mark.parametrize("version", ["0.4", "0.4.1", "0.4.9", "0.4.1.post1", "0.4.10rc1"])
def test_versions_that_fit(machine, version):
    machine(nvshmem4py_cu13=None, nvshmem4py_cu12=version)
    assert versions.missing() is None


def test_hidden_gpus_are_none(monkeypatch):
    for text in ("", "-1"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", text)
        assert "CUDA_VISIBLE_DEVICES hides all GPUs" in versions.missing()


def test_choosing_loads_nothing():
    code = (
        "import sys\nfrom gpushmem.backends import selection\nselection.choose()\n"
        "selection.unusable('nvshmem')\n"
        "print([m for m in ('nvshmem', 'numba', 'numpy', 'cuda') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=PLAIN
    )
    assert done.stdout == "[]\n"
