"""The trace of kernels that run on a GPU: GPUSHMEM_BACKEND=nvshmem pytest -m gpu tests/gpu."""

import os
import subprocess
import sys

import numpy as np
import pytest

from gpushmem.trace import load
from gpushmem.trace.analysis import Analysis
from gpushmem.trace.ring import BLOCK, KERNEL, LAUNCH
from tests import gpus, pes
from tests.conftest import ROOT

pytestmark = [pytest.mark.gpu]

SLACK = 100_000  # nanoseconds by which the clocks of host and GPU may seem to differ
TIMEOUT = 50_000_000
SCRIPT = f"""
import gpushmem as shmem
from numba import cuda

@shmem.jit
def shift(dst, src, signal, round):
    right = (shmem.my_pe() + 1) % shmem.n_pes()
    shmem.put_signal_block(dst, src, signal, round, shmem.SIGNAL_SET, right)
    if cuda.threadIdx.x == 0:
        shmem.signal_wait_until(signal, shmem.CMP_GE, round)
    cuda.syncthreads()

@shmem.jit
def in_vain(signal):
    shmem.signal_wait_until(signal, shmem.CMP_GE, 1000, {TIMEOUT})

@shmem.jit
def many(x):
    if cuda.grid(1) == 5:
        return
    x[cuda.grid(1)] = 1

shmem.init(heap_size="16M")
src, dst = shmem.full(1000, 1, dtype="float32"), shmem.empty(1000, dtype="float32")
signal = shmem.zeros(1, dtype="uint64")
for k in range(1, 21):
    shift[1, 64](dst, src, signal, k)
    shmem.synchronize()
in_vain[1, 1](signal)
many[100, 10](dst)
shmem.finalize()
"""


@pytest.fixture(autouse=True)
def on_a_gpu():
    """Skip where there is none, or nobody asked for it."""
    if pes.BACKEND != "nvshmem":
        pytest.skip("set GPUSHMEM_BACKEND=nvshmem to run the tests on a GPU")
    gpus.need()


def test_a_ring_of_one(tmp_path):
    """Events, their order, and the scale of their times."""
    (tmp_path / "ring.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "gpushmem", "run", "--backend", "nvshmem", "--trace", "out"]
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {**os.environ, "PYTHONPATH": paths}
    subprocess.run([*command, "ring.py"], cwd=tmp_path, check=True, timeout=300, env=env)
    trace = load(tmp_path / "out")
    events, analysis = trace.events, Analysis(trace)
    labels = np.array([trace.label(event) for event in events])
    assert not trace.lost
    kernels = events[events["kind"] == KERNEL]
    assert [trace.label(k) for k in kernels] == ["shift"] * 20 + ["in_vain", "many"]
    assert kernels["at"].tolist() == [1] * 21 + [100]
    assert kernels["nbytes"].tolist() == [64] * 20 + [1, 10]
    launches = events[events["kind"] == LAUNCH]
    assert (launches["began"] <= kernels["began"] + SLACK).all()
    assert (np.diff(kernels["began"]) > 0).all()
    blocks = events[events["kind"] == BLOCK]
    assert len(blocks) == 21  # those of `many` wait for nothing
    assert (blocks["began"] <= blocks["ended"]).all()

    puts = np.flatnonzero(labels == "put_signal_block")
    assert events["nbytes"][puts].tolist() == [4000, 8] * 20
    assert {trace.site(0, site) for site in events["site"][puts]} == {"ring.py:8 in shift"}
    waits = np.flatnonzero(labels == "signal_wait_until")
    *rounds, vain = waits.tolist()
    assert events["value"][rounds].tolist() == list(range(1, 21))
    for wait in rounds:
        by = events[analysis.released[wait]]
        assert by["value"] == events["value"][wait]
        assert by["began"] <= events["ended"][wait]
    of_kernel = dict(zip(kernels["number"].tolist(), kernels, strict=True))
    for event in events[[*puts, *waits]]:
        kernel = of_kernel[int(event["launch"])]
        assert kernel["began"] <= event["began"] <= event["ended"] <= kernel["ended"]

    took = int(events["ended"][vain] - events["began"][vain])
    assert TIMEOUT <= took < TIMEOUT + 5_000_000
    synchronizes = events[labels == "synchronize"]
    first = synchronizes["ended"][synchronizes["ended"] > kernels["ended"][0] - SLACK]
    assert first[0] < kernels["began"][1] + SLACK
