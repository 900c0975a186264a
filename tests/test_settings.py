"""Environment variables: one table, read in one place, and refused by name."""

import os

import pytest
from hypothesis import example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from gpushmem import settings
from gpushmem.backends.nvshmem import transport
from gpushmem.backends.registry import BACKENDS
from gpushmem.errors import ArgumentError
from gpushmem.settings import SETTINGS

# What each variable takes, and what it does not.
GOOD = {
    "GPUSHMEM_BACKEND": ("cpu", "cpu"),
    "GPUSHMEM_SIM": ("1", True),
    "GPUSHMEM_SIM_GPU": ("T4", "t4"),
    "GPUSHMEM_SIM_DEVICES": ("4", 4),
    "GPUSHMEM_AS_NVSHMEM": ("Strict", "strict"),
    "GPUSHMEM_HEAP_SIZE": ("1.5M", 3 << 19),
    "GPUSHMEM_THREADS": (" 3 ", 3),
    "GPUSHMEM_CPU": ("X86-64-V2", "x86-64-v2"),
    "GPUSHMEM_TIER": ("Fast", "fast"),
    "GPUSHMEM_VERIFY": ("on", True),
    "GPUSHMEM_NODES": ("2", 2),
    "GPUSHMEM_TORCH_FUSE": ("1", "1"),
    "GPUSHMEM_MAX_TEAMS": ("12", 12),
    "GPUSHMEM_BOOTSTRAP": ("mpi", "mpi"),
    "GPUSHMEM_BOOTSTRAP_TIMEOUT": ("2.5", 2.5),
    "GPUSHMEM_PE": ("0", 0),
    "GPUSHMEM_N_PES": ("8", 8),
    "GPUSHMEM_JOB_KEY": ("key", "key"),
    "GPUSHMEM_PROGRESS": ("off", False),
    "GPUSHMEM_VERBOSE": ("On", True),
    "GPUSHMEM_SIM_INTERPRET": ("on", True),
    "GPUSHMEM_TIMEOUT": ("1e3", 1000.0),
    "GPUSHMEM_CHECK": ("/logs", "/logs"),
    "GPUSHMEM_TRACE": ("/logs", "/logs"),
    "GPUSHMEM_STATS": ("/counters", "/counters"),
    "GPUSHMEM_TRACE_EVENTS": ("4096", 4096),
    "GPUSHMEM_DEADLOCK": ("no", False),
    "GPUSHMEM_MEMORY": ("Weak", "weak"),
    "GPUSHMEM_SEED": ("7", 7),
    "GPUSHMEM_CUBLASDX": ("no", False),
    "GPUSHMEM_COMPILER": ("Numba-CUDA-MLIR", "numba-cuda-mlir"),
    "GPUSHMEM_NOTICE": ("5", 5.0),
    "GPUSHMEM_TRANSPORT": ("IBGDA", "ibgda"),
    "GPUSHMEM_CACHE_DIR": ("/a b", "/a b"),
    "GPUSHMEM_CACHE": ("off", False),
    "GPUSHMEM_CACHE_SIZE": ("2M", 2 << 20),
    "GPUSHMEM_HCA": ("^mlx5_0:1,mlx5_1", "^mlx5_0:1,mlx5_1"),
    "GPUSHMEM_NIC_MAP": ("mlx5_0:1:2,mlx5_1:1:2", "mlx5_0:1:2,mlx5_1:1:2"),
}
BAD = {
    "GPUSHMEM_SIM": ("2", "cuda"),
    "GPUSHMEM_SIM_GPU": ("gtx", ""),
    "GPUSHMEM_SIM_DEVICES": ("0", "all"),
    "GPUSHMEM_AS_NVSHMEM": ("2", "yes"),
    "GPUSHMEM_HEAP_SIZE": ("lots", "0", "-1G", "1.5", " ", "9" * 40),
    "GPUSHMEM_THREADS": ("0", "two", "1.0", "-1", "9" * 40, "\u0663"),
    "GPUSHMEM_CPU": ("x86-64", "haswell"),
    "GPUSHMEM_TIER": ("quick", "1"),
    "GPUSHMEM_VERIFY": ("2", "twice"),
    "GPUSHMEM_NODES": ("0", "two"),
    "GPUSHMEM_TORCH_FUSE": ("yes", "2"),
    "GPUSHMEM_MAX_TEAMS": ("0", "x"),
    "GPUSHMEM_BOOTSTRAP_TIMEOUT": ("0", "nan", "inf", "soon"),
    "GPUSHMEM_PE": ("-1", "x"),
    "GPUSHMEM_N_PES": ("0", "x"),
    "GPUSHMEM_PROGRESS": ("2", "bar"),
    "GPUSHMEM_VERBOSE": ("2", "maybe"),
    "GPUSHMEM_TIMEOUT": ("0", "-1", "1e99"),
    "GPUSHMEM_DEADLOCK": ("2", ""),
    "GPUSHMEM_TRACE_EVENTS": ("0", "32", "1000", "1e6", "-64", "many"),
    "GPUSHMEM_CUBLASDX": ("2", ""),
    "GPUSHMEM_COMPILER": ("numba", "nvcc"),
    "GPUSHMEM_CACHE": ("2", ""),
    "GPUSHMEM_CACHE_SIZE": ("0", "much"),
    "GPUSHMEM_NOTICE": ("x",),
    "GPUSHMEM_TRANSPORT": ("carrier pigeon",),
    "GPUSHMEM_HCA": ("mlx5_0:1;mlx5_1:1", ",", "mlx5_0:x"),
    "GPUSHMEM_NIC_MAP": ("mlx5_0:1", "mlx5_0:1:2,"),
}
# What a process can have in its environment: no NUL, bytes that are no UTF-8 as surrogates.
TEXTS = st.binary(max_size=40).map(lambda data: os.fsdecode(data.replace(b"\0", b"")))


def test_every_setting_has_a_meaning_and_a_default_that_can_be_read():
    assert set(GOOD) == set(SETTINGS)
    for name, setting in SETTINGS.items():
        assert setting.name == name
        assert len(setting.meaning) > 10
        settings.get(name, {})


@pytest.mark.parametrize("name", SETTINGS)
def test_values(name, monkeypatch):
    text, value = GOOD[name]
    monkeypatch.setenv(name, text)
    assert settings.get(name) == value
    assert settings.is_set(name)
    for bad in filter(None, BAD.get(name, ())):
        monkeypatch.setenv(name, bad)
        with pytest.raises(ArgumentError, match=f"^environment variable {name}: ") as caught:
            settings.check()
        assert settings.reason(name) == str(caught.value)
    monkeypatch.setenv(name, "")
    assert not settings.is_set(name)
    settings.check()


@pytest.mark.parametrize("name", SETTINGS)
@given(text=TEXTS)
@example("1e400")
@example("1_0")
@example("\u00b2")
@example("1" * 5000)
@hypothesis_settings(max_examples=60, deadline=None)
def test_any_text_is_a_value_or_an_error_that_names_the_variable(name, text):
    reason = settings.reason(name, {name: text})  # every other exception fails the test
    if reason is not None:
        assert reason.startswith(f"environment variable {name}: ")
        assert reason.isprintable()


def test_the_backends_named_are_those_there_are():
    assert SETTINGS["GPUSHMEM_BACKEND"].meaning.endswith(": " + ", ".join(BACKENDS))
    assert tuple(transport.TRANSPORTS) == settings.TRANSPORTS
