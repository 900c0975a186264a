"""What only hardware can show: GPUSHMEM_BACKEND=nvshmem pytest -m gpu tests/gpu.

Each test is small, its data names its writer. One PE talks to itself; two do what NVSHMEM lets PEs
do that share a GPU, where they do (`tests/gpus.py`).
"""

import os
import subprocess
import sys
import time

import numpy as np
import pytest
from numba import cuda

import gpushmem as shmem
from gpushmem import runtime
from gpushmem.ops import OPS
from tests import gpus, pes
from tests.conftest import ROOT

pytestmark = [pytest.mark.gpu]

POISON = -7
PES = [1, 2]
THREADS = {"thread": 1, "warp": 32, "block": 128}
SUFFIX = {"thread": "", "warp": "_warp", "block": "_block"}
SIZES = [1, 3, 4097]


@pytest.fixture(autouse=True)
def on_a_gpu():
    """Skip where there is none, or nobody asked for it."""
    if pes.BACKEND != "nvshmem":
        pytest.skip("set GPUSHMEM_BACKEND=nvshmem to run the tests on a GPU")
    gpus.need()


def own(pe, n, dtype=np.int64):
    return ((1000 * pe + np.arange(n)) % 120).astype(dtype)


def job(body):
    """`body(me, n, *args)` between init and finalize; to be run in PEs."""

    def program(*args):
        shmem.init()
        result = body(shmem.my_pe(), shmem.n_pes(), *args)
        shmem.finalize()
        return result

    return program


def around(array, start, values):
    """The array as it is if nothing but `values` from `start` on was written over the poison."""
    want = np.full(array.shape, POISON, array.dtype)
    want[start : start + len(values)] = values
    return want


# --- moving data


@pytest.mark.parametrize("n_pes", PES)
@pytest.mark.parametrize("scope", THREADS)
@pytest.mark.parametrize("base", ["put", "put_nbi", "get", "get_nbi"])
def test_copies_in_kernels(run_pes, base, scope, n_pes):
    """Odd sizes, from odd places to odd places; nothing beside them."""
    move = OPS[base + SUFFIX[scope]].function
    putting = base.startswith("put")

    @shmem.jit
    def kernel(dst, src, d, s, n, pe):
        move(dst[d : d + n], src[s : s + n], pe)
        shmem.quiet()

    def body(me, n_pes):
        right, left = (me + 1) % n_pes, (me - 1) % n_pes
        for dtype in (np.int8, np.int16, np.int64):
            for n in SIZES:
                for d, s in ((0, 0), (1, 3), (5, 2)):
                    local = shmem.to_device(own(me if putting else 9, n + 8, dtype))
                    x = shmem.full(n + 8, POISON, dtype)
                    if putting:
                        kernel[1, THREADS[scope]](x, local, d, s, n, right)
                        shmem.barrier_all()
                        got, want = x.numpy(), own(left, n + 8, dtype)[s : s + n]
                    else:
                        x.copy_from(own(me, n + 8, dtype))
                        local.copy_from(POISON)
                        shmem.barrier_all()
                        kernel[1, THREADS[scope]](local, x, d, s, n, right)
                        got, want = local.numpy(), own(right, n + 8, dtype)[s : s + n]
                    assert (got == around(got, d, want)).all(), (dtype, n, d, s)
                    shmem.barrier_all()
                    shmem.free(x)

    run_pes(job(body), n_pes, timeout=120)


@pytest.mark.parametrize("n_pes", PES)
def test_single_elements(run_pes, n_pes):
    @shmem.jit
    def kernel(x, y, got, value, pe):
        shmem.p(x[1:], value, pe)
        got[0] = shmem.g(y[2:], pe)
        shmem.quiet()

    def body(me, n_pes):
        right, left = (me + 1) % n_pes, (me - 1) % n_pes
        for dtype in (np.int8, np.uint16, np.float32, np.float64, np.complex128):
            x, y = shmem.full(3, 7, dtype), shmem.array(own(me, 3, dtype))
            got = shmem.device_array(1, dtype)
            shmem.barrier_all()
            kernel[1, 1](x, y, got, dtype(me + 1), right)
            shmem.barrier_all()
            assert x.numpy().tolist() == [7, left + 1, 7]
            assert got[0] == own(right, 3, dtype)[2]

    run_pes(job(body), n_pes)


@pytest.mark.parametrize("n_pes", PES)
def test_strided_copies(run_pes, n_pes):
    @shmem.jit
    def kernel(x, y, local, pe):
        shmem.iput_block(x[1:], local, 3, 2, 5, pe)
        shmem.quiet()
        cuda.syncthreads()
        shmem.iget_warp(local[20:], y, 1, 4, 3, pe)

    def body(me, n_pes):
        right, left = (me + 1) % n_pes, (me - 1) % n_pes
        x, y = shmem.full(20, POISON), shmem.array(own(me, 20))
        local = shmem.to_device(own(me + 5, 30))
        shmem.barrier_all()
        kernel[1, 32](x, y, local, right)
        shmem.barrier_all()
        want = np.full(20, POISON)
        want[1:14:3] = own(left + 5, 30)[:10:2]
        assert (x.numpy() == want).all()
        want = own(me + 5, 30)
        want[20:23] = own(right, 20)[:12:4]
        assert (local.numpy() == want).all()

    run_pes(job(body), n_pes)


@pytest.mark.parametrize("n_pes", PES)
def test_copies_of_the_host(run_pes, n_pes):
    def body(me, n_pes):
        right, left = (me + 1) % n_pes, (me - 1) % n_pes
        host = own(me + 3, 9)
        registered = shmem.register(host)
        for stream in (None, 0, shmem.stream()):
            for n in (1, 3, 7):
                x, local = shmem.full(9, POISON), shmem.to_device(own(me, 9))
                shmem.put(x[1:], local[2 : 2 + n], right, stream=stream)
                shmem.barrier_all(stream=stream)
                assert (x.numpy() == around(x.numpy(), 1, own(left, 9)[2 : 2 + n])).all()
                shmem.barrier_all()
                shmem.put(x[1:], registered[2 : 2 + n], right, stream=stream)
                shmem.barrier_all(stream=stream)
                assert (x.numpy() == around(x.numpy(), 1, own(left + 3, 9)[2 : 2 + n])).all()
                shmem.barrier_all()
        shmem.p(x[8:], 5, right)
        shmem.barrier_all()
        assert shmem.g(x[8:], right) == x[8] == 5
        assert x[::-2].numpy().tolist() == x.numpy()[::-2].tolist()
        shmem.unregister(registered)

    run_pes(job(body), n_pes)


# --- atomics, signals


@pytest.mark.parametrize("n_pes", PES)
def test_atomics(run_pes, n_pes):
    @shmem.jit
    def kernel(x, olds, pe):
        i = cuda.grid(1)
        olds[i] = shmem.atomic_fetch_add(x, 1, pe)
        shmem.atomic_inc(x[1:], pe)
        shmem.atomic_or(x[2:], 1 << (i % 60), pe)
        shmem.atomic_add(x[3:], i, pe)

    def body(me, n_pes):
        x, olds = shmem.zeros(5, np.int64), shmem.device_array(256, np.int64)
        kernel[4, 64](x, olds, 0)
        shmem.quiet()
        shmem.barrier_all()
        if me == 0:
            assert x.numpy().tolist() == [
                256 * n_pes, 256 * n_pes, (1 << 60) - 1, n_pes * 255 * 128, 0,
            ]  # fmt: skip
        shmem.barrier_all()
        assert shmem.atomic_fetch(x, 0) == 256 * n_pes
        shmem.barrier_all()
        shmem.atomic_add(x[4:], 3, 0)
        shmem.barrier_all()
        assert shmem.atomic_compare_swap(x[4:], 3 * n_pes, 3 * n_pes, 0) == 3 * n_pes
        return olds.numpy().tolist()

    olds = run_pes(job(body), n_pes)
    handed_out = sorted(number for some in olds for number in some)
    assert handed_out == list(range(256 * n_pes))


@pytest.mark.parametrize("n_pes", PES)
@pytest.mark.parametrize("scope", THREADS)
def test_who_sees_the_signal_sees_the_data(run_pes, scope, n_pes):
    send = OPS["put_signal" + SUFFIX[scope]].function

    @shmem.jit
    def kernel(x, y, flag, got, k, pe):
        send(x, y, flag, k, shmem.SIGNAL_SET, pe)
        if cuda.threadIdx.x == 0:
            shmem.signal_wait_until(flag, shmem.CMP_EQ, k)
        cuda.syncthreads()
        for i in range(cuda.threadIdx.x, got.size, cuda.blockDim.x):
            got[i] = x[i]
        cuda.syncthreads()
        shmem.barrier_all_block()

    def body(me, n_pes):
        right, left = (me + 1) % n_pes, (me - 1) % n_pes
        x, flag = shmem.zeros(4097, np.int64), shmem.zeros(1, np.uint64)
        got = shmem.device_array(4097, np.int64)
        for k in range(1, 20):
            y = shmem.to_device(own(me, 4097) + k)
            kernel[1, THREADS[scope]](x, y, flag, got, k, right)
            assert (got.numpy() == own(left, 4097) + k).all()

    run_pes(job(body), n_pes)


def test_waits_end_in_time(run_pes):
    @shmem.jit
    def kernel(flag, got, timeout):
        got[0] = shmem.signal_wait_until(flag, shmem.CMP_EQ, 1, timeout)
        got[1] = shmem.wait_until_any(flag, None, shmem.CMP_EQ, 1, timeout)

    def body(me, n_pes):
        flag, got = shmem.zeros(1, np.uint64), shmem.to_device(np.full(2, POISON))
        kernel[1, 1](flag, got, 0)
        shmem.synchronize()
        began = time.monotonic()
        kernel[1, 1](flag, got, 50_000_000)
        assert got.numpy().tolist() == [0, -1]
        assert 0.09 < time.monotonic() - began < 1
        assert not shmem.signal_wait_until(flag, shmem.CMP_EQ, 1, timeout_ns=10**6)
        shmem.signal_op(flag, 1, shmem.SIGNAL_SET, me)
        shmem.quiet()
        kernel[1, 1](flag, got, 10**9)
        assert got.numpy().tolist() == [1, 0]

    run_pes(job(body), 1)


def test_a_host_gives_up(run_pes):
    @shmem.jit
    def forever(flag):
        shmem.signal_wait_until(flag, shmem.CMP_EQ, 1)

    def body():
        shmem.init()
        stream, flag = shmem.stream(), shmem.zeros(1, np.uint64)
        shmem.quiet()
        forever[1, 1, stream](flag)
        runtime.current().backend._device.late = lambda reason: None  # the job goes on
        shmem.set_timeout(0.5)
        with pytest.raises(shmem.WaitTimeout, match="synchronize has waited for"):
            stream.synchronize()
        shmem.signal_op(flag, 1, shmem.SIGNAL_SET, 0)  # beside the stream that is busy
        shmem.set_timeout(None)
        shmem.synchronize()
        shmem.finalize()

    run_pes(body, 1)


# --- meeting


@pytest.mark.parametrize("n_pes", PES)
def test_barriers_in_collective_kernels(run_pes, n_pes):
    @shmem.jit(collective=True)
    def kernel(x, wrong, n, me):
        for k in range(50):
            if cuda.grid(1) == 0:
                for pe in range(n):
                    shmem.p(x[me:], k, pe)
                shmem.barrier_all()
                for pe in range(n):
                    if x[pe] != k:
                        wrong[0] += 1
                shmem.barrier_all()

    def body(me, n_pes):
        x, wrong = shmem.full(n_pes, POISON), shmem.to_device(np.zeros(1, np.int64))
        kernel[2, 64](x, wrong, n_pes, me)
        assert wrong.numpy()[0] == 0

    run_pes(job(body), n_pes)


COLLECTIVES = [op for op in OPS.values() if op.params[:1] == ("team",) and "dst" in op.params]


@pytest.mark.parametrize("n_pes", PES)
@pytest.mark.parametrize("name", [op.name for op in COLLECTIVES])
def test_collectives(run_pes, name, n_pes):
    op = OPS[name]
    call, threads = op.function, THREADS[op.scope]
    more = {
        "broadcast": ", root", "alltoalls": ", 1, 1, 3", "reduce": ', "sum"',
        "reducescatter": ', "sum"',
    }.get(op.base, "")  # fmt: skip
    scope = {"call": call}
    exec(f"def kernel(dst, src, root):\n    call(0, dst, src{more})", scope)
    kernel = shmem.jit(scope["kernel"])

    def expected(base, parts, me, n):
        if base == "broadcast":
            return parts[n - 1]
        if base in ("fcollect", "collect"):
            return np.concatenate(parts)
        if base in ("alltoall", "alltoalls"):
            return np.concatenate([np.split(part, n)[me] for part in parts])
        total = np.sum(parts, axis=0)
        return total if base == "reduce" else np.split(total, n)[me]

    def body(me, n):
        for dtype in (np.int32, np.float64):
            parts = [own(pe, 3 * n, dtype) for pe in range(n)]
            src, dst = shmem.array(parts[me]), shmem.full(3 * n * n + 2, POISON, dtype)
            kernel[1, threads](dst[1:], src, n - 1)
            want = expected(op.base, parts, me, n)
            assert (dst.numpy() == around(dst.numpy(), 1, want)).all(), dtype
            assert (src.numpy() == parts[me]).all()
            shmem.barrier_all()

    run_pes(job(body), n_pes, timeout=120)


@pytest.mark.parametrize("n_pes", PES)
def test_collectives_of_the_host(run_pes, n_pes):
    def body(me, n):
        x, y = shmem.array(own(me, n)), shmem.full(n * n + 1, POISON)
        for stream in (None, shmem.stream()):
            y.copy_from(POISON)
            shmem.barrier_all()
            shmem.fcollect(shmem.TEAM_WORLD, y, x, stream=stream)
            want = np.concatenate([own(pe, n) for pe in range(n)])
            assert (y.numpy() == around(y.numpy(), 0, want)).all()
            shmem.broadcast(shmem.TEAM_WORLD, y[:0], x[:0], 0, stream=stream)  # nothing
            shmem.alltoall(shmem.TEAM_WORLD, y[:0], x[:0], stream=stream)
            for op in ("sum", "max", "prod"):
                shmem.reduce(shmem.TEAM_WORLD, y, x, op, stream=stream)
                ufunc = {"sum": np.add, "max": np.maximum, "prod": np.multiply}[op]
                want = ufunc.reduce([own(pe, n) for pe in range(n)])
                assert (y.numpy()[:n] == want).all()
        row, column = shmem.team_split_2d(shmem.TEAM_WORLD, 1)
        assert (row.n_pes, column.n_pes) == (1, n)
        shmem.barrier(column)
        column.destroy()
        row.destroy()

    run_pes(job(body), n_pes)


@pytest.mark.parametrize("n_pes", PES)
def test_multicast(run_pes, n_pes):
    """By the switch where there is one, else by a store to each."""

    @shmem.jit
    def kernel(x, value):
        shmem.multicast_array(x, shmem.TEAM_WORLD)[cuda.grid(1)] = value

    def body(me, n):
        x = shmem.full(40, POISON, np.float32)
        if me == n - 1:
            kernel[1, 32](x, np.float32(5))
            shmem.quiet()
        shmem.barrier_all()
        assert (x.numpy() == around(x.numpy(), 0, [5] * 32)).all()

    run_pes(job(body), n_pes)


@pytest.mark.parametrize("n_pes", PES)
def test_peer_arrays(run_pes, n_pes):
    @shmem.jit
    def kernel(x, pe):
        shmem.peer_array(x, pe)[1 + cuda.grid(1)] += 500

    def body(me, n):
        x = shmem.array(own(me, 40))
        shmem.barrier_all()
        kernel[1, 32](x, (me + 1) % n)
        shmem.barrier_all()
        want = own(me, 40)
        want[1:33] += 500
        assert (x.numpy() == want).all()
        assert (shmem.peer_array(x, (me + 1) % n).numpy()[:1] == own((me + 1) % n, 1)).all()
        shmem.barrier_all()

    run_pes(job(body), n_pes)


# --- streams, graphs, other libraries


def test_two_kernels_on_two_streams(run_pes):
    """One waits for the other: they run at the same time."""

    @shmem.jit
    def first(flag, got):
        shmem.signal_wait_until(flag, shmem.CMP_EQ, 1)
        got[0] = 1

    @shmem.jit
    def second(flag):
        shmem.signal_op(flag, 1, shmem.SIGNAL_SET, 0)

    def body(me, n):
        flag, got = shmem.zeros(1, np.uint64), shmem.to_device(np.zeros(1, np.int64))
        one, two = shmem.stream(), shmem.stream()
        flag.copy_from(1)
        first[1, 1, one](flag, got)  # both are loaded then: that may wait for all that runs
        second[1, 1, two](flag)
        shmem.synchronize()
        flag.copy_from(0)
        got.copy_from(0)
        first[1, 1, one](flag, got)
        second[1, 1, two](flag)
        shmem.synchronize()
        assert got.numpy()[0] == 1

    run_pes(job(body), 1)


def test_graphs_of_cuda_core(run_pes):
    @shmem.jit
    def kernel(x, y, pe):
        x[0] += 1
        shmem.p(y, x[0], pe)
        shmem.quiet()

    def body(me, n):
        from cuda.core import Device

        x, y, z = shmem.zeros(1), shmem.zeros(1), shmem.zeros(1)
        kernel[1, 1](x, y, 0)
        shmem.synchronize()
        builder = Device().create_graph_builder()
        builder.begin_building()
        kernel[1, 1, builder](x, y, 0)
        shmem.put(z, y, 0, stream=builder)
        graph, stream = builder.end_building().complete(), Device().create_stream()
        assert x[0] == 1
        for _ in range(5):
            graph.launch(stream)
        stream.sync()
        assert [x[0], y[0], z[0]] == [6, 6, 6]

    run_pes(job(body), 1)


def test_shared_memory_and_large_grids(run_pes):
    @shmem.jit
    def kernel(x):
        words = cuda.shared.array(0, np.int64)
        i = cuda.threadIdx.x
        for k in range(i, words.size, cuda.blockDim.x):
            words[k] = k
        cuda.syncthreads()
        if i == 0:
            cuda.atomic.add(x, 0, words[words.size - 1])

    def body(me, n):
        x = shmem.zeros(1, np.int64)
        kernel[1000, 128, 0, 128 << 10](x)
        assert x[0] == 1000 * ((128 << 7) - 1)

    run_pes(job(body), 1)


def test_torch(run_pes):
    pytest.importorskip("torch")

    @shmem.jit
    def kernel(x, tensor):
        i = cuda.grid(1)
        x[i] = tensor[i] + 1

    def body(me, n):
        import torch

        torch.cuda.set_device(me % torch.cuda.device_count())
        tensor = torch.arange(8.0, device="cuda", dtype=torch.float64)
        stream, x = torch.cuda.Stream(), shmem.full(8, POISON, np.float64)
        torch.cuda.synchronize()
        kernel[1, 8, stream](x, tensor)
        shmem.put(x[:2], tensor[4:6], me, stream=stream)
        stream.synchronize()
        assert x.numpy().tolist() == [4, 5, 3, 4, 5, 6, 7, 8]
        seen = torch.from_dlpack(x)
        seen += 100
        torch.cuda.synchronize()
        assert x.numpy()[7] == 108
        assert torch.as_tensor(x, device="cuda").data_ptr() == seen.data_ptr()
        registered = shmem.register(tensor)
        shmem.put(x, registered, me)
        assert x.numpy().tolist() == list(range(8))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            tensor *= 2
            kernel[1, 8, stream](x, tensor)
        graph.replay()
        graph.replay()
        torch.cuda.synchronize()
        assert x.numpy().tolist() == [4 * k + 1 for k in range(8)]

    run_pes(job(body), 1)


@pytest.mark.parametrize("n_pes", PES)
def test_a_pool_of_pytorch(run_pes, n_pes):
    pytest.importorskip("torch")

    def body(me, n):
        import torch

        import gpushmem.torch as symmetric

        torch.cuda.set_device(me % torch.cuda.device_count())
        with torch.cuda.use_mem_pool(symmetric.get_mem_pool()):
            source, there = torch.full((1000,), float(me), device="cuda"), torch.empty(1000).cuda()
            large = torch.full((5 << 20,), me, device="cuda", dtype=torch.uint8)
        assert shmem.heap_stats().used >= 7 << 20
        ordinary = torch.zeros(1000, device="cuda")
        torch.cuda.synchronize()
        shmem.barrier_all()  # all have filled theirs
        shmem.put(there, source, (me + 1) % n)
        shmem.put(large[7:9], large[:2], (me + 1) % n)
        shmem.barrier_all()
        assert (there == (me - 1) % n).all()
        assert large[5:11].tolist() == [me, me, (me - 1) % n, (me - 1) % n, me, me]
        with pytest.raises(shmem.SymmetryError):
            shmem.put(ordinary, source, me)
        assert symmetric.get_mem_pool() is symmetric.get_mem_pool()
        with (
            pytest.warns(UserWarning, match="segment of"),
            pytest.raises(torch.OutOfMemoryError),
            torch.cuda.use_mem_pool(symmetric.get_mem_pool()),
        ):
            torch.empty(1 << 40, device="cuda", dtype=torch.uint8)

    run_pes(job(body), n_pes)


# --- beginning and end, errors


def test_init_and_finalize_again(run_pes):
    @shmem.jit
    def kernel(x, y, pe):
        shmem.put(x, y, pe)
        shmem.collect(shmem.TEAM_SHARED, x[2:], y)

    def body():
        for k in range(3):
            shmem.init(heap_size=1 << 20)
            x, y = shmem.full(8, POISON), shmem.full(2, k)
            kernel[1, 1](x, y, 0)
            assert x.numpy()[:4].tolist() == [k] * 4
            shmem.finalize()

    run_pes(body, 1)


@gpus.without_mps
def test_a_kernel_that_fails(run_pes):
    @shmem.jit
    def kernel(x, i):
        x[i] = 1

    def body():
        shmem.init()
        kernel[1, 1](shmem.zeros(1), 1 << 40)
        with pytest.raises(shmem.KernelError, match="a kernel of this PE failed"):
            shmem.synchronize()
        os._exit(0)  # nothing can be done with this GPU any more in this process

    assert run_pes(body, 1) == [None]  # it returned nothing


SECOND = """
import sys, numpy as np, gpushmem as shmem
if {nothing}: sys.modules["gpushmem.backends.nvshmem.compile.compiler"] = None
@shmem.jit
def kernel(x):
    shmem.p(x, 5, 0)
    shmem.quiet()
shmem.init(heap_size="1M")
x = shmem.zeros(1)
kernel[1, 1](x)
assert x[0] == 5
shmem.finalize()
"""


def test_a_second_process_compiles_nothing(tmp_path):
    path = tmp_path / "second.py"
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {**os.environ, "GPUSHMEM_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": paths}
    for nothing in (False, True):
        path.write_text(SECOND.format(nothing=nothing))
        done = subprocess.run(
            [sys.executable, path],
            env=env,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr


@shmem.jit(shared_memory_carveout="MaxShared")
def count_blocks(x):
    if cuda.threadIdx.x == 0:
        x[cuda.blockIdx.x] += 1


def attributes_of_launches(me, n):
    x, stream = shmem.zeros(16, "int64"), shmem.stream(priority=-1)
    launches = (
        count_blocks.configure(16, 32, stream, cluster=8),
        count_blocks.configure(16, 32, stream, cluster=(2, 1, 1)),
        count_blocks.configure(16, 32, stream, programmatic_stream_serialization=True),
    )
    for launch in launches:
        try:
            launch(x)
        except shmem.ArgumentError as error:  # an older GPU
            return str(error)
        stream.synchronize()
    assert x.numpy().tolist() == [len(launches)] * 16
    return ""


def test_attributes_of_launches(run_pes):
    (refused,) = run_pes(job(attributes_of_launches), 1)
    if refused:
        assert "need compute capability 9.0" in refused
        pytest.skip(refused)
