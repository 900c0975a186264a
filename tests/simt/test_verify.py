"""GPUSHMEM_VERIFY: launches run twice, and what differs is said."""

import numpy as np
import pytest
from numba import cuda, int64

import gpushmem as shmem
from gpushmem.artifacts.launch_shape import shape_of
from gpushmem.errors import KernelError
from gpushmem.simt.blocks import uniformity
from gpushmem.simt.run import verify
from gpushmem.simt.run.kernel import Kernel
from tests.simt.conftest import launch

RECORD = np.dtype([("a", "f4"), ("b", "i8")], align=True)


@pytest.fixture(autouse=True)
def verified(monkeypatch):
    monkeypatch.setenv("GPUSHMEM_VERIFY", "1")
    monkeypatch.setattr(verify, "counts", {"verified": 0, "passed over": 0})


def run(function, grid, block, *args):
    return launch(function, grid, block, *args, twice=False)


def mirror(several, scale, back, out, records):
    t = cuda.threadIdx.x
    s = cuda.shared.array(32, np.float64)
    s[t] = several[0][t] * scale.real
    if t == 0:
        print("printed once")
    cuda.syncthreads()
    back[t] = s[31 - t] + several[1][t, 0]
    out[0, t] = np.nan if t == 3 else s[t]
    records[t].b += 1


def test_a_launch_runs_twice_and_counts_once(capsys):
    a, b = np.arange(32.0), np.ones((32, 2), np.float32)
    back, out, records = np.zeros(64)[::-2], np.zeros((2, 32)), np.zeros(32, RECORD)
    assert run(mirror, 1, 32, (a, b[:, ::2]), 2 + 1j, back, out, records) == "lockstep"
    assert verify.counts == {"verified": 1, "passed over": 0}
    np.testing.assert_array_equal(back, 2 * a[::-1] + 1)
    np.testing.assert_array_equal(out[0], np.where(a == 3, np.nan, 2 * a))
    assert (records["b"] == 1).all()
    assert capsys.readouterr().out == "printed once\n"


def kept_on_the_stack(out):
    t = cuda.threadIdx.x
    a = cuda.local.array(3, int64)
    a[0] = t
    a[1] = 2 * t
    cuda.syncthreads()
    out[1, t] = a[t % 2]


def test_an_error_of_a_pass_is_reported_with_line_and_thread(monkeypatch):
    monkeypatch.setattr(uniformity.Analysis, "_varies_as_memory", lambda *_: False)
    out = np.zeros((2, 8), np.int64)
    kernel = Kernel(kept_on_the_stack)
    line = kept_on_the_stack.__code__.co_firstlineno
    with pytest.raises(KernelError) as error:
        kernel.prepare(shape_of(1, 8), (out,))()
    said = str(error.value)
    assert f"test_verify.py:{line}): out[1, 0] is 7 after the launch, and 0 if each" in said
    assert f"written last at test_verify.py:{line + 6} in kept_on_the_stack by block" in said
    assert "thread (0, 0, 0). Either threads race" in said
    assert out[1, 0] == 7  # what the program sees without GPUSHMEM_VERIFY


def racing(out):
    t = cuda.threadIdx.x
    out[0] = t
    cuda.syncthreads()
    if t == out[0]:
        out[1] = t
    cuda.syncthreads()
    if t != 5:
        out[0] = 64 - t


def test_threads_that_race_are_named():
    with pytest.raises(KernelError, match=r"out\[0\] is .* Either threads race, which `gpushmem"):
        run(racing, 1, 64, np.zeros(2))


def polling(flag, out):
    if cuda.threadIdx.x == 7:
        flag[0] = 1
    else:
        while flag[0] == 0:
            pass
    cuda.syncthreads()
    out[cuda.threadIdx.x] = 1


def never_waits(out):
    out[cuda.threadIdx.x] = 1


def test_what_others_may_have_a_part_in_is_not_verified():
    flag, out = np.zeros(1, np.int64), np.zeros(8)
    run(polling, 1, 8, flag, out)
    assert (out == 1).all()
    run(never_waits, 1, 8, out)
    assert verify.counts["verified"] == 0


def test_memory_that_other_pes_can_write_is_left_alone(run_pes):
    @shmem.jit
    def swapped(x, by):
        t = cuda.threadIdx.x
        before = x[t]
        cuda.syncthreads()
        x[7 - t] = before + by

    def body():
        shmem.init()
        symmetric, own = shmem.array(np.arange(8)), shmem.to_device(np.arange(8))
        for x in (symmetric, own):
            swapped[1, 8](x, 1)
            assert x.numpy().tolist() == [8, 7, 6, 5, 4, 3, 2, 1]
        return verify.counts

    assert run_pes(body, 1) == [{"verified": 2, "passed over": 0}]
    assert run_pes(body, 2) == [{"verified": 1, "passed over": 1}] * 2
