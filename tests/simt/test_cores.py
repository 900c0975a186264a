"""Kernels spread over several cores."""

import threading

import numpy as np
import pytest
from numba import cuda

from gpushmem.errors import ArgumentError, KernelError
from gpushmem.simt.run import cores
from tests.simt.conftest import launch, spread


@pytest.fixture
def shared_out():
    """Three threads, and no launch too small for them."""
    with spread(3):
        yield


@pytest.mark.usefixtures("shared_out")
@pytest.mark.parametrize("grid", [1, 2, 3, 17, 1000, (2, 40), (3, 2, 50), (70, 3, 2)])
@pytest.mark.parametrize("barrier", [False, True])
def test_every_block_runs_once(grid, barrier):
    def mark(out):
        shared = cuda.shared.array(8, np.int64)
        t = cuda.threadIdx.x
        b = cuda.blockIdx.x + cuda.gridDim.x * (cuda.blockIdx.y + cuda.gridDim.y * cuda.blockIdx.z)
        shared[t] = b
        if barrier:
            cuda.syncthreads()
        out[b, t] += 10 * shared[t] + t + 1

    blocks = int(np.prod(grid))
    out = np.zeros((blocks, 8), np.int64)
    assert launch(mark, grid, 8, out, twice=False) == ("lockstep" if barrier else "loops")
    wanted = 10 * np.arange(blocks)[:, None] + np.arange(1, 9)
    np.testing.assert_array_equal(out, wanted)


@pytest.mark.usefixtures("shared_out")
def test_atomics_count_across_cores():
    def count(x):
        cuda.atomic.add(x, cuda.grid(1) % 3, 1)

    x = np.zeros(3, np.int64)
    launch(count, 3000, 64, x)
    np.testing.assert_array_equal(x, 64000)


@pytest.mark.usefixtures("shared_out")
def test_a_failure_on_any_core_is_heard():
    def fail(x):
        if cuda.blockIdx.x == 900:
            raise ValueError("nine hundred")
        x[cuda.blockIdx.x] = 1

    with pytest.raises(KernelError, match=r"block \(900, 0, 0\).*nine hundred"):
        launch(fail, 1000, 2, np.zeros(1000))


@pytest.mark.usefixtures("shared_out")
def test_print_from_every_core(capfd):
    def show():
        if cuda.blockIdx.x % 100 == 0:
            print("block", cuda.blockIdx.x)

    launch(show, 1000, 1)
    lines = capfd.readouterr().out.splitlines()
    assert sorted(lines) == sorted(f"block {b}" for b in range(0, 1000, 100))


def test_parts_run_at_once():
    meeting = threading.Barrier(3, timeout=20)
    cores.run([meeting.wait] * 3)


def test_the_number_of_cores_is_checked(monkeypatch):
    monkeypatch.setenv(cores.VARIABLE, "many")
    with pytest.raises(ArgumentError, match="GPUSHMEM_THREADS: 'many'"):
        cores.usable_cores()
    monkeypatch.delenv(cores.VARIABLE)
    assert cores.usable_cores() == cores.available()
