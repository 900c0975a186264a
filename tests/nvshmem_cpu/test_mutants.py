"""Weak memory shows what is broken in NVSHMEM: mutants of bench/nvshmem_mutations.py."""

import importlib

import pytest

from gpushmem.backends.nvshmem_cpu import ABOUT
from tests.conftest import ROOT

pytestmark = [
    pytest.mark.skipif(ABOUT.missing() is not None, reason="needs NVSHMEM"),
    pytest.mark.sweep,  # each kernel is compiled
    pytest.mark.timeout(300),
]

# A function, and which mutant of it; the last fence of the text is the function's own.
SHOWN_BY = {
    ("nvshmem_put64_signal", "fence", -1): ("put_signal", 1, 1),
    ("nvshmem_put64_signal", "store", 0): ("put_signal", 1, 1),
    ("nvshmem_signal_wait_until", "fence", -1): ("put_signal", 1, 1),
    ("nvshmem_quiet", "fence", -1): ("quiet", 1, 1),
}  # (way, seed, number of nodes)


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "bench")
    return importlib.import_module("nvshmem_mutations")


@pytest.mark.parametrize("mutant", SHOWN_BY, ids=lambda mutant: " ".join(map(str, mutant)))
def test_old_data_are_seen(bench, mutant):
    assert bench.run(*SHOWN_BY[mutant]) == ""
    assert bench.run(*SHOWN_BY[mutant], mutant) == bench.OLD
