"""Jobs that start NVSHMEM at the same time take turns where MPS is."""

import time

import pytest

pytest.importorskip("nvshmem")

from gpushmem.backends.nvshmem import mps


def seconds_of_a_turn():
    began = time.monotonic()
    with mps.turn():
        return time.monotonic() - began


def test_a_job_waits_for_another_but_not_for_ever(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    monkeypatch.setattr(mps, "LONGEST", 0.2)
    with mps.turn():
        assert seconds_of_a_turn() >= 0.2
    monkeypatch.setattr(mps, "LONGEST", 60)
    assert seconds_of_a_turn() < 10


def test_without_mps_nobody_waits(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path / "none"))
    with mps.turn():
        assert seconds_of_a_turn() < 10
