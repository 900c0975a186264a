"""NVSHMEM's device code and the proxy together: operations to PEs of other nodes."""

import json

import pytest

from gpushmem.backends.nvshmem_cpu import ABOUT
from tests.conftest import ROOT

pytestmark = pytest.mark.skipif(ABOUT.missing() is not None, reason="needs NVSHMEM")

ALL_KINDS = """
import numpy as np
import gpushmem as shmem
from numba import cuda

N, ROUNDS = 1024, 20

@shmem.jit
def elements(dst, src, count, got, signal, pe):
    i = cuda.grid(1)
    shmem.p(dst[i:i + 1], src[i], pe)
    shmem.atomic_add(count[0:1], 1, pe)
    got[i] = shmem.atomic_fetch_inc(count[1:2], pe)
    shmem.quiet()
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        shmem.signal_op(signal, 1, shmem.SIGNAL_ADD, pe)
        shmem.signal_wait_until(signal, shmem.CMP_GE, cuda.gridDim.x)

@shmem.jit
def arrays(dst, src, back, one, pe):
    shmem.put_block(dst, src, pe)
    shmem.quiet()
    cuda.syncthreads()
    shmem.get_block(back, dst, pe)
    for i in range(cuda.threadIdx.x, src.size, cuda.blockDim.x):
        one[i] = shmem.g(src[i:i + 1], pe)

@shmem.jit
def ring(data, signal, rounds):
    me, n = shmem.my_pe(), shmem.n_pes()
    for r in range(1, rounds + 1):
        if me == 0:
            data[0] = r
        else:
            shmem.signal_wait_until(signal, shmem.CMP_GE, r)
            data[0] += 1
        shmem.put_signal(data, data, signal, r, shmem.SIGNAL_SET, (me + 1) % n)
        if me == 0:
            shmem.signal_wait_until(signal, shmem.CMP_GE, r)
            shmem.quiet()

with shmem.session(heap_size="4M") as world:
    me, n = world.my_pe, world.n_pes
    pe, before = (me + 1) % n, (me - 1) % n
    src = shmem.array(np.arange(N) + 10_000 * me)
    dst, got, back, one = (shmem.zeros(N, "int64") for _ in range(4))
    count, data = shmem.zeros(2, "int64"), shmem.zeros(1, "int64")
    signals = [shmem.zeros(1, "uint64") for _ in range(2)]
    elements[N // 64, 64](dst, src, count, got, signals[0], pe)
    shmem.barrier_all()
    assert np.array_equal(dst.numpy(), np.arange(N) + 10_000 * before), dst.numpy()
    assert count.numpy().tolist() == [N, N], count.numpy()
    assert sorted(got.numpy()) == list(range(N)), got.numpy()
    dst[:] = 0
    shmem.barrier_all()
    arrays[1, 64](dst, src, back, one, pe)
    shmem.barrier_all()
    assert np.array_equal(dst.numpy(), np.arange(N) + 10_000 * before), dst.numpy()
    assert np.array_equal(back.numpy(), np.arange(N) + 10_000 * me), back.numpy()
    assert np.array_equal(one.numpy(), np.arange(N) + 10_000 * pe), one.numpy()
    ring[1, 1](data, signals[1], ROUNDS)
    shmem.barrier_all()
    assert me > 0 or data.numpy()[0] == ROUNDS + n - 1, data.numpy()
"""

ORDER = """
import json
import gpushmem as shmem

@shmem.jit
def pingpong(data, src, signal, answer, old, rounds, fence):
    for r in range(1, rounds + 1):
        if shmem.my_pe() == 0:
            src[0] = r
            shmem.put_nbi(data, src, 1)
            if fence:
                shmem.fence()
            shmem.signal_op(signal, r, shmem.SIGNAL_SET, 1)
            shmem.signal_wait_until(answer, shmem.CMP_GE, r)
            shmem.quiet()
        else:
            shmem.signal_wait_until(signal, shmem.CMP_GE, r)
            old[0] += data[0] != r
            shmem.signal_op(answer, r, shmem.SIGNAL_SET, 0)

with shmem.session(heap_size="1M") as world:
    found = []
    for fence in (False, True):
        data, src, old = (shmem.zeros(1, "int64") for _ in range(3))
        signal, answer = (shmem.zeros(1, "uint64") for _ in range(2))
        pingpong[1, 1](data, src, signal, answer, old, 200, fence)
        shmem.barrier_all()
        found.append(int(old.numpy()[0]))
    if world.my_pe == 1:
        print(json.dumps(found))
"""

UNREGISTERED = """
import gpushmem as shmem

@shmem.jit
def send(dst, src):
    shmem.p(dst, 7, 1)
    shmem.put(dst[1:], src, 1)

with shmem.session(heap_size="1M") as world:
    dst, src = shmem.zeros(5, "int64"), shmem.device_array(4, "int64")
    shmem.register(src)
    send[1, 1](dst, src) if world.my_pe == 0 else None
    shmem.barrier_all()
    assert world.my_pe == 0 or dst.numpy()[0] == 7
    shmem.unregister(src)
    send[1, 1](dst, src) if world.my_pe == 0 else None
    shmem.barrier_all()
"""


STRIDED = """
import numpy as np
import gpushmem as shmem

@shmem.jit
def copies(dst, back, src, pe):
    shmem.iput(dst[0], src, 2, 3, 5, pe)
    shmem.iput_warp(dst[1], src, 2, 3, 5, pe)
    shmem.iput_block(dst[2], src, 2, 3, 5, pe)
    shmem.barrier_all_block()
    shmem.iget(back[0], dst, 1, 2, 15, pe)
    shmem.iget_warp(back[1], dst, 1, 2, 15, pe)
    shmem.iget_block(back[2], dst, 1, 2, 15, pe)

with shmem.session(heap_size="4M") as world:
    me, pe, k = world.my_pe, 1 - world.my_pe, np.arange(15)
    src = shmem.array(k + 50 * me)
    dst, back = shmem.full((3, 10), 99), shmem.zeros((3, 15), "int64")
    copies[1, 64](dst, back, src, pe)
    wanted = np.full((3, 10), 99)
    wanted[:, ::2] = 3 * k[:5] + 50 * pe
    assert np.array_equal(dst.numpy(), wanted), dst.numpy()
    mine = np.tile(3 * k[:5] + 50 * me, (3, 3))
    assert np.array_equal(back.numpy(), mine), back.numpy()
"""

MANY = """
import gpushmem as shmem

@shmem.jit
def add(x, pe, n):
    for _ in range(n):
        shmem.atomic_add(x, 1, pe)

with shmem.session(heap_size="4M"):
    x = shmem.zeros(1, "int64")
    add[1, 1](x, 1 - shmem.my_pe(), 20_000)
    shmem.barrier_all()
    assert x.numpy()[0] == 20_000, x.numpy()
"""

CUT_OFF = """
import gpushmem as shmem
from numba import cuda

@shmem.jit
def send(x):
    if cuda.threadIdx.x == 0:
        for i in range(1 << 60):
            shmem.p(x, i, 1)
    else:
        shmem.p(x, 1, 99)

with shmem.session(heap_size="4M") as world:
    x = shmem.zeros(64, "int64")
    if world.my_pe == 0:
        try:
            send[1, 2](x)
            shmem.synchronize()
        except shmem.ShmemError as error:
            print(error)
    shmem.barrier_all()
"""

WEAK = "--memory", "weak", "--seed", 3


def run(run_cli, tmp_path, text, *options, n=2, code=0):
    path = tmp_path / "program.py"
    path.write_text(text)
    nodes = "--backend", "nvshmem-cpu", "-n", n, "--nodes", 2
    return run_cli("run", *nodes, *options, path, code=code, timeout=300)


def test_all_kinds_of_operations(run_cli, tmp_path):
    run(run_cli, tmp_path, ALL_KINDS, *WEAK, n=4)


@pytest.mark.sweep
def test_strided_copies(run_cli, tmp_path):
    """NVSHMEM has none over a network: elements go one by one."""
    run(run_cli, tmp_path, STRIDED)


def test_the_stack_does_not_grow_with_the_number_of_requests(run_cli, tmp_path):
    run(run_cli, tmp_path, MANY)


def test_weak_memory_shows_what_a_fence_is_for(run_cli, tmp_path):
    done = run(run_cli, tmp_path, ORDER, *WEAK)
    without, with_fence = json.loads(done.stdout)
    assert without > 0
    assert with_fence == 0


def test_quiet_of_the_host_and_the_end_of_a_pe_wait_for_the_proxy(run_cli, tmp_path):
    text = (ROOT / "tests/weak/programs/sent_at_the_end.py").read_text()
    done = run(run_cli, tmp_path, text.replace("argv[1]", repr(str(tmp_path))), *WEAK)
    assert done.stdout.split() == ["old", "0"]


def test_memory_that_is_not_registered_is_refused(run_cli, tmp_path):
    done = run(run_cli, tmp_path, UNREGISTERED, code=1)
    assert "put: PE 1 is on another node, and src (32 bytes at" in done.stderr


@pytest.mark.sweep  # it waits for ten seconds without a move
def test_a_request_that_an_error_has_cut_off_is_a_deadlock(run_cli, tmp_path):
    done = run(run_cli, tmp_path, CUT_OFF, code=None)
    assert "there is no PE 99" in done.stdout
    assert done.returncode != 0
    assert "PEs 0, 1: host, in barrier_all, for" in done.stderr
