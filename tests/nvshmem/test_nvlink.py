"""Which links GPUs have, with a driver's library that is made up."""

import sys
from types import SimpleNamespace

import cuda.bindings
import pytest

from gpushmem.backends.nvshmem.gpu import nvlink


def library(gpus, linked, calls):
    """NVML, by what it says of pairs of GPUs."""
    return SimpleNamespace(
        init_v2=lambda: calls.append("init"), shutdown=lambda: calls.append("shutdown"),
        GpuP2PCapsIndex=SimpleNamespace(P2P_CAPS_INDEX_NVLINK=2),
        GpuP2PStatus=SimpleNamespace(P2P_STATUS_OK=0),
        device_get_count_v2=lambda: gpus, device_get_handle_by_index_v2=lambda k: 100 + k,
        device_get_p2p_status=lambda a, b, what: 5 * ((a - 100, b - 100, what) not in linked),
    )  # fmt: skip


PAIRS = {(0, 1, 2), (0, 2, 2), (1, 2, 2)}


@pytest.mark.parametrize(
    ("gpus", "linked", "said"),
    [(1, set(), True), (3, PAIRS, True), (3, PAIRS - {(0, 2, 2)}, False), (2, {(0, 1, 4)}, False)],
)
def test_all_pairs_count(monkeypatch, gpus, linked, said):
    made = library(gpus, linked, calls := [])
    monkeypatch.setitem(sys.modules, "cuda.bindings.nvml", made)
    monkeypatch.setattr(cuda.bindings, "nvml", made, raising=False)
    assert nvlink.all_linked() is said
    assert calls == ["init", "shutdown"]


def test_without_a_driver_none_is_known(monkeypatch):
    monkeypatch.setitem(sys.modules, "cuda.bindings.nvml", None)
    monkeypatch.delattr(cuda.bindings, "nvml", raising=False)
    assert nvlink.all_linked() is False
