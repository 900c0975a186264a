"""Kernels on the nvshmem backend, all but run: compiled, kept, loaded, launched."""

import os
import re
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from gpushmem.kernels import Plan
from numba import cuda

import gpushmem as shmem
from gpushmem.cache_files import PRUNED
from gpushmem.errors import ArgumentError, KernelError, ShmemError, WaitTimeout
from tests.nvshmem import emulation, host
from tests.nvshmem.emulation import driver
from tests.nvshmem.test_launching import run

pytestmark = pytest.mark.skipif(emulation.missing() is not None, reason=str(emulation.missing()))

POISON = -7


@shmem.jit
def scalars(a, b, c, d, e, f, g, h):
    pass


@shmem.jit
def arrays(x, y, z):
    pass


@shmem.jit
def pair(both, n):
    pass


@shmem.jit
def one(x):
    x[0] = 1


@shmem.jit(collective=True)
def together(x):
    x[0] = 1  # nothing of NVSHMEM's, which takes seconds to link


@shmem.jit(collective=True)
def crowded(x, y):
    """It has 100 numbers in registers, if it can."""
    values = cuda.local.array(100, np.float32)
    for i in range(100):
        values[i] = x[i]
    cuda.syncthreads()
    for i in range(100):
        y[i] = values[99 - i]


@shmem.jit
def waiting(x):
    shmem.wait_until(x, shmem.CMP_EQ, 1)


def words(launch):
    return [launch.integer(i) for i in range(len(launch.params))]


def of_array(array):
    """The parameters that an array becomes."""
    address = array.__cuda_array_interface__["data"][0]
    whole = [0, 0, array.size, array.dtype.itemsize, address, *array.shape, *array.strides]
    return [word & 2**64 - 1 for word in whole]


def last():
    launch = driver.launches()[-1]
    driver.clear()
    return launch


# --- arguments


@host.in_pes(1)
def test_scalars(me, n):
    scalars[1, 1](
        np.int8(-3), np.uint16(65535), -5, True, 2.5, np.float32(1.5), np.float16(0.5), 1j
    )
    launch = last()
    assert launch.value(0, "i1") == -3
    assert launch.value(1, "u2") == 65535
    assert launch.value(2, "i8") == -5
    assert launch.value(3, "?")
    assert [launch.value(4, "f8"), launch.value(5, "f4"), launch.value(6, "f2")] == [2.5, 1.5, 0.5]
    assert [launch.value(7, "f8"), launch.value(8, "f8")] == [0, 1]
    assert len(launch.params) == 9
    scalars[1, 1](
        np.int16(-3), np.uint32(2**32 - 1), 2**63 - 1, np.False_, np.float64(-0.5), np.int32(-2),
        np.complex64(1 - 2j), shmem.TEAM_NODE,
    )  # fmt: skip
    launch = last()
    assert [launch.value(0, "i2"), launch.value(1, "u4")] == [-3, 2**32 - 1]
    assert [launch.value(2, "i8"), launch.value(3, "?")] == [2**63 - 1, False]
    assert [launch.value(4, "f8"), launch.value(5, "i4")] == [-0.5, -2]
    assert [launch.value(6, "f4"), launch.value(7, "f4"), launch.value(8, "i8")] == [1, -2, 2]
    with pytest.raises(ArgumentError, match=r"^kernel scalars takes 8 arguments, got 7$"):
        scalars[1, 1](1, 2, 3, 4, 5, 6, 7)
    with pytest.raises(ArgumentError, match="argument 1 is a record in the host's memory"):
        one[1, 1](np.zeros(1, [("a", "i4")])[0])
    assert driver.launches() == []


@host.in_pes(2)
def test_arrays(me, n):
    a = shmem.full((4, 3), POISON, np.float32)
    b = shmem.to_device(np.arange(24).reshape(2, 3, 4))
    c = shmem.full(8, 2 + 1j)
    peer = shmem.peer_array(c, n - 1)
    arrays[2, (4, 2)](a, b, c)
    assert words(last()) == of_array(a) + of_array(b) + of_array(c)
    arrays[2, (4, 2)](a[::2, 1:], b[:, ::-1], peer[1::3])
    launch = last()
    assert words(launch) == of_array(a[::2, 1:]) + of_array(b[:, ::-1]) + of_array(peer[1::3])
    assert (launch.grid, launch.block) == ((2, 1, 1), (4, 2, 1))
    pair[1, 1]((c, 5), np.int32(2))
    assert words(last()) == [*of_array(c), 5, 2]
    pair[1, 1]((c, c[2:]), np.int32(2))
    assert words(last()) == [*of_array(c), *of_array(c[2:]), 2]
    pair[1, 1]((1, 2, 3), np.int32(2))
    assert words(last()) == [1, 2, 3, 2]

    class Theirs:
        __cuda_array_interface__ = c[2:5].__cuda_array_interface__

    one[1, 1](Theirs())
    assert words(last()) == of_array(c[2:5])


@host.in_pes(1)
def test_numpy_arrays_are_copied_in_and_out(me, n):
    kept = np.arange(12, dtype=np.int64).reshape(3, 4)
    constant = kept.copy()
    constant.flags.writeable = False

    def kernel(launch):
        seen = driver.view(launch.integer(4), launch.integer(2), np.int64)
        received.append(seen.copy())
        seen[:] += 100

    received = []
    driver.on_launch(kernel)
    one[1, 1](kept[0])
    assert received[-1].tolist() == [0, 1, 2, 3]
    assert kept.tolist() == [[100, 101, 102, 103], [4, 5, 6, 7], [8, 9, 10, 11]]
    one[1, 1](kept[:, 1])
    assert received[-1].tolist() == [101, 5, 9]
    assert kept[:, 1].tolist() == [201, 105, 109]
    one[1, 1](constant)
    assert constant.tolist() == np.arange(12).reshape(3, 4).tolist()
    assert driver.failures == []


# --- streams, shapes


class Torch:
    """A stream as PyTorch has them."""

    def __init__(self, stream):
        self.stream, self.cuda_stream = stream, int(stream.handle)


@host.in_pes(2)
def test_streams_and_shapes(me, n):
    from cuda.core import Device

    x = shmem.zeros(4)
    theirs = Device().create_stream()
    ours = shmem.stream()
    default = []
    for stream in (0, None, Torch(Device().default_stream)):
        one[1, 1, stream](x)
        default.append(last().stream)
    assert len(set(default)) == 1
    for stream, handle in (
        (ours, ours.__cuda_stream__()[1]),
        (theirs, int(theirs.handle)),
        (Torch(theirs), int(theirs.handle)),
    ):
        one[1, 1, stream](x)
        launch = last()
        assert launch.stream == handle
        assert launch.device == me
        assert handle not in default
    ours.synchronize()
    shmem.synchronize()
    for wrong in ("a", 1.5, 12345, object()):
        with pytest.raises(ArgumentError, match=r"a stream is gpushmem.stream\(\), 0, or one of"):
            one[1, 1, wrong](x)
    for config, match in (
        ((0, 1), "grid dimension x is 0"),
        ((1, 1025), "block dimension x is 1025"),
        ((1, (1, 2, 65)), "block dimension z is 65"),
        ((1, 1, 0, -1), "dynamic shared memory must be 0"),
    ):
        with pytest.raises(ArgumentError, match=match):
            one[config](x)
    assert driver.launches() == []


@host.in_pes(1)
def test_dynamic_shared_memory(me, n):
    x = shmem.zeros(4)
    for nbytes in (64, 48 << 10, 100_000, 227 << 10, 64):
        one[1, 1, 0, nbytes](x)
        assert last().shared == nbytes
    with pytest.raises(
        ArgumentError, match=r"needs 232449 bytes of shared memory per block \(0 st"
    ):
        one[1, 1, 0, (227 << 10) + 1](x)


@host.job
def resident(me, n):
    x = shmem.zeros(4, np.int64)
    together[2, 32](x)
    assert last().cooperative
    waiting[2, 32](x)
    assert last().cooperative, "NVSHMEM's waits have to run all at once"
    one[10**6, 1024](x)
    assert not last().cooperative
    found = []
    for kernel in (together, waiting):
        with pytest.raises(ArgumentError) as error:
            kernel[1000, 1024](x)
        found.append(str(error.value))
        most = int(re.search(r"at most (\d+) fit", found[-1])[1])
        kernel[most, 1024](x)
        with pytest.raises(ArgumentError, match=f"of {most + 1} blocks"):
            kernel[most + 1, 1024](x)
    return found


@host.in_pes(1)
def test_large_blocks_have_as_many_registers_as_fit(me, n):
    """With all registers that the compiler would take, no block of 1024 threads would fit."""
    x, y = (shmem.zeros(100, np.float32) for _ in range(2))
    crowded[132, 512](x, y)
    crowded[132, 1024](x, y)
    assert [launch.block[0] for launch in driver.launches()] == [512, 1024]


def test_collective_launches():
    ((collective, waits),) = host.run(1, resident, limit=120)
    assert re.fullmatch(
        r"kernel together is launched collectively on a grid of 1000 blocks of 1024 threads; at "
        r"most (132|264) fit this GPU at once \([12] on each of 132 multiprocessors\): launch "
        r"fewer, and let each do more",
        collective,
    )
    assert "kernel waiting waits for others on a grid of 1000 blocks" in waits


def test_collective_launches_of_pes_that_share_a_gpu():
    shared, alone, _ = host.run(3, resident, EMULATION_DEVICES=2, limit=120)
    whole = int(re.search(r"at most (\d+) fit this GPU at once", alone[0])[1])
    assert f"at most {whole // 2} fit this GPU, which 2 PEs share, at once" in shared[0]
    assert shared[1] == alone[1]


@host.job
def tuned(me, n):
    return shmem.tuning()


def test_plans_are_for_the_multiprocessors_that_every_pe_has():
    """Two of the three PEs share a GPU: all PEs launch what fits half of one."""
    (alone,) = host.run(1, tuned)
    assert (alone.multiprocessors, alone.moving_blocks, alone.all_blocks(128)) == (132, 66, 264)
    found = host.run(3, tuned, EMULATION_DEVICES=2)
    assert [(t.multiprocessors, t.moving_blocks) for t in found] == [(66, 33)] * 3


def with_a_gpu_of_its_own():
    """As under `srun --gpus-per-task=1`: each process sees one GPU, and calls it number 0."""
    me, _ = host.meet()
    os.environ["CUDA_VISIBLE_DEVICES"] = str(me)
    shmem.init("nvshmem", heap_size=host.HEAP)
    found = resident.__wrapped__(me, 3)
    shmem.finalize()
    return found


def test_a_gpu_is_whole_for_a_pe_that_sees_no_other():
    (alone,) = host.run(1, resident, limit=120)
    for found in host.run(3, with_a_gpu_of_its_own, EMULATION_DEVICES=3, limit=120):
        assert found == alone


@host.in_pes(1, limit=120)
def test_attributes_of_launches(me, n):
    x = shmem.zeros(4)
    one[4, 32](x)
    launch = last()
    assert (launch.cluster, launch.dependent, launch.carveout) == ((0, 0, 0), False, -1)
    one.configure((4, 6), 32, cluster=(2, 3))(x)
    launch = last()
    assert (launch.grid, launch.cluster, launch.dependent) == ((4, 6, 1), (2, 3, 1), False)
    one.configure(4, 32, shmem.stream(), 64, programmatic_stream_serialization=True).bind(x)()
    launch = last()
    assert (launch.shared, launch.cluster, launch.dependent) == (64, (0, 0, 0), True)
    for percent in ("MaxShared", 30, "default"):
        shmem.jit(one.py_func, shared_memory_carveout=percent)[1, 1](x)
        assert last().carveout == {"MaxShared": 100, "default": -1}.get(percent, percent)
    one[1, 1](x)
    assert last().carveout == -1
    for cluster, match in (
        (3, "grid dimension x is 4, which is not divisible by the cluster's 3"),
        ((2, 2, 4), r"a cluster of 2 x 2 x 4 has 16 blocks; at most 8 are possible"),
    ):
        with pytest.raises(ArgumentError, match=match):
            one.configure(4, 32, cluster=cluster)(x)
    for value in ("much", 101):
        with pytest.raises(ArgumentError, match="shared_memory_carveout must be 0 to 100"):
            shmem.jit(one.py_func, shared_memory_carveout=value)[1, 1](x)
    assert driver.launches() == []

    most = {}
    for cluster in (None, 3):
        with pytest.raises(ArgumentError, match="launch fewer") as error:
            together.configure(3000, 1024, cluster=cluster)(x)
        most[cluster] = int(re.search(r"at most (\d+) fit", str(error.value))[1])
    together.configure(most[3], 1024, cluster=3)(x)
    launch = last()
    assert launch.cooperative
    assert launch.cluster == (3, 1, 1)
    assert most[3] < most[None], "clusters do not fill a GPC"


@host.in_pes(1)
def test_priorities_of_streams(me, n):
    from cuda.bindings import driver as cuda

    found = []
    for priority in (0, -1, -5):
        stream = shmem.stream(priority=priority)
        found.append(int(cuda.cuStreamGetPriority(stream.__cuda_stream__()[1])[1]))
    assert found == [0, -1, -5]
    for wrong in (1, -6):
        with pytest.raises(ArgumentError, match=f"stream: priority must be -5 to 0, not {wrong}"):
            shmem.stream(priority=wrong)
    with pytest.raises(ArgumentError, match="stream: priority must be an integer, not 'high'"):
        shmem.stream("high")


@host.job
def devices(me, n):
    one[1, 1](shmem.zeros(1))
    return last().device


@pytest.mark.parametrize("n_gpus", [1, 2, 3])
def test_a_pe_takes_the_gpu_of_its_number(n_gpus):
    assert host.run(3, devices, EMULATION_DEVICES=n_gpus) == [pe % n_gpus for pe in range(3)]


def test_visible_gpus_only():
    found = host.run(2, devices, EMULATION_DEVICES=3, CUDA_VISIBLE_DEVICES="2,1")
    assert found in ([2, 1], [0, 1])


def no_gpu():
    host.meet()
    with pytest.raises(shmem.BackendUnavailable, match="CUDA_VISIBLE_DEVICES hides all GPUs"):
        shmem.init("nvshmem")


def test_no_gpu():
    host.run(1, no_gpu, CUDA_VISIBLE_DEVICES="-1")


@host.in_pes(2)
def test_launches_in_a_graph(me, n):
    from cuda.core import Device

    x, y = shmem.zeros(4), shmem.full(4, 1000.0 * me)
    one[1, 1](x)  # loaded: that cannot be done in a capture
    driver.clear()
    builder = Device().create_graph_builder()
    builder.begin_building()
    one[3, 1, builder](x)
    shmem.put(x[1:2], y[:1], (me + 1) % n, stream=builder)
    graph = builder.end_building().complete()
    assert driver.launches() == []
    assert x.numpy().tolist() == [0, 0, 0, 0]
    shmem.barrier_all()
    stream = Device().create_stream()
    for _ in range(2):
        graph.launch(stream)
    found = driver.launches()
    assert [launch.grid for launch in found] == [(3, 1, 1)] * 2
    assert words(found[0]) == of_array(x)
    shmem.barrier_all()
    assert x.numpy().tolist() == [0, 1000 * ((me - 1) % n), 0, 0]


# --- waiting


def held():
    _, n = host.init()
    stream, x = shmem.stream(), shmem.zeros(4)
    launch = one[1, 1, stream].bind(x)  # to load it would wait
    driver.hold(stream)
    launch()
    assert driver.launches() == []
    shmem.set_timeout(0.2)
    for call in (
        shmem.synchronize, stream.synchronize, x.numpy, lambda: x.copy_from(1), lambda: x[0],
        shmem.barrier_all, lambda: shmem.zeros(1), lambda: shmem.free(x), x.__dlpack__,
        lambda: shmem.team_split_strided(shmem.TEAM_WORLD, 0, 1, n), shmem.finalize,
    ):  # fmt: skip
        began = time.monotonic()
        with pytest.raises(WaitTimeout, match=r"has waited for 0\.2 s .* timeout of 0\.2 s"):
            call()
        assert 0.2 <= time.monotonic() - began < 2


def test_hosts_do_not_wait_for_ever():
    host.run(1, held)


@host.in_pes(2)
def test_operations_beside_a_busy_stream(me, n):
    """Operations of the host are beside a stream that is busy."""
    stream, x = shmem.stream(), shmem.to_device(np.arange(3.0))
    y = shmem.full(3, POISON, np.float64)
    shmem.atomic_add(y, 0, me)
    launch = one[1, 1, stream].bind(x)
    driver.clear()
    driver.hold(stream)
    launch()
    shmem.set_timeout(2)
    shmem.put(y[1:], x[:2], (me + 1) % n)
    assert shmem.g(y[2:], (me + 1) % n) == 1
    shmem.p(y, 5, me)
    shmem.atomic_add(y, 0, me)
    shmem.quiet()
    assert len(driver.launches()) == 1
    driver.let_go(stream)
    assert len(driver.launches()) == 2
    shmem.synchronize()
    shmem.barrier_all()
    assert y.numpy().tolist() == [5, 0, 1]


@host.in_pes(1)
def test_ctrl_c(me, n):
    stream = shmem.stream()
    driver.hold(stream)
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        shmem.synchronize()
    assert time.monotonic() - began < 2
    driver.let_go(stream)


def told():
    host.init()
    found = shmem.runtime.current().backend._device.timeout
    shmem.set_timeout(None)
    shmem.finalize()
    return found


def test_the_timeout_of_the_environment():
    assert host.run(1, told, GPUSHMEM_TIMEOUT="2.5") == [2.5]
    assert host.run(1, told) == [None]


SLOW_KERNEL = """
import gpushmem as shmem
from tests.nvshmem.emulation import driver

shmem.init(heap_size="1M")
stream = shmem.stream()
if shmem.my_pe() == 1:
    driver.hold(stream)
shmem.barrier_all()
"""


@pytest.mark.sweep
def test_the_timeout_of_the_launcher_ends_the_job(tmp_path):
    path = tmp_path / "slow.py"
    path.write_text(SLOW_KERNEL)
    words = ("-m", "gpushmem", "run", "-n", 2, "--timeout", "0.5", path)
    _, err = run(sys.executable, *words, code=124)
    assert "PE 1: synchronize has waited for 0.5 s for this PE's GPU, longer than the" in err
    assert err.endswith("run the script on the cpu backend for a report; all PEs were ended\n")


DEAD_PE = """
import os, sys
import gpushmem as shmem
from gpushmem.backends.nvshmem import backend

backend.NOTICE, backend.LAST = 0.2, 0.6
shmem.init(heap_size="1M")
shmem.barrier_all()
if shmem.my_pe() == 1:
    os._exit(0)  # as one that mpirun does not see die
"""


def test_a_pe_ends_though_another_has_died(tmp_path):
    path = tmp_path / "dead.py"
    path.write_text(DEAD_PE)
    words = ("-m", "gpushmem", "run", "-n", 2, path)
    _, err = run(sys.executable, *words)
    assert "PE 0 waits for the other PEs to end, at most 0.6 s" in err
    assert "PE 0: the other PEs have not ended within 0.6 s; one may have died" in err


def failing():
    host.init()
    x = shmem.zeros(4)
    driver.on_launch(lambda launch: 1 / 0)
    one[1, 1](x)
    found = []
    for call in (shmem.synchronize, x.numpy, shmem.finalize):
        with pytest.raises(ShmemError) as error:
            call()
        found.append((type(error.value), str(error.value)))
    assert isinstance(driver.failures[0], ZeroDivisionError)
    return found


def test_a_kernel_that_fails():
    for kind, text in host.run(1, failing)[0]:
        assert kind is KernelError
        assert "a kernel of this PE failed (CUDA_ERROR_LAUNCH_FAILED" in text
        assert "debug=True" in text


def kinds_of_errors(*names):
    from cuda.bindings import driver as cuda

    from gpushmem.backends.nvshmem.gpu.driver_errors import check

    found = []
    for name in names:
        with pytest.raises(ShmemError, match=f"launch: .*{name}") as error:
            check((getattr(cuda.CUresult, f"CUDA_ERROR_{name}"),), "launch")
        found.append(type(error.value))
    return found


def test_errors_of_kernels_are_told_from_others():
    names = "MISALIGNED_ADDRESS", "LAUNCH_OUT_OF_RESOURCES"
    assert host.run(1, kinds_of_errors, *names) == [[KernelError, ShmemError]]


# --- what is kept on disk


@host.job
def launched(me, n, compiles):
    if not compiles:
        sys.modules["gpushmem.backends.nvshmem.compile.compiler"] = None
    began = time.monotonic()
    one[1, 1](shmem.zeros(2, np.int16))
    assert words(last())[2:4] == [2, 2]
    return time.monotonic() - began


def test_a_second_process_compiles_nothing(tmp_path):
    host.run(1, launched, True, GPUSHMEM_CACHE_DIR=tmp_path)
    assert len([f for f in tmp_path.iterdir() if f.suffix != ".lock" and f.name != PRUNED]) == 1
    host.run(2, launched, False, GPUSHMEM_CACHE_DIR=tmp_path)


@host.job
def counted(me, n, folder):
    from gpushmem.backends.nvshmem.compile import compiler

    compile_kernel = compiler.compile_kernel

    def noted(*args):
        Path(folder, f"compiled by {me}").touch()
        time.sleep(0.3)
        return compile_kernel(*args)

    compiler.compile_kernel = noted
    x = shmem.zeros(2, np.int8)
    shmem.barrier_all()
    one[1, 1](x)
    assert words(last())[2:4] == [2, 1]


def test_pes_that_need_the_same_kernel_compile_it_once(tmp_path):
    host.run(3, counted, str(tmp_path), GPUSHMEM_CACHE_DIR=tmp_path / "cache")
    assert len(list(tmp_path.glob("compiled by *"))) == 1


def test_a_broken_cache_only_costs_time(tmp_path):
    folder = tmp_path / "cache"
    host.run(1, launched, True, GPUSHMEM_CACHE_DIR=folder)
    (kept,) = [file for file in folder.iterdir() if len(file.name) == 64]
    whole = kept.read_bytes()
    for broken in (b"", b"[1]\n" + whole, whole[:-100]):
        kept.write_bytes(broken)
        host.run(1, launched, True, GPUSHMEM_CACHE_DIR=folder)
        assert kept.read_bytes() == whole, "it was made again"
    host.run(1, launched, False, GPUSHMEM_CACHE_DIR=folder)


def test_a_cache_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file" / "below", "/proc/nowhere"):
        host.run(1, launched, True, GPUSHMEM_CACHE_DIR=folder)


@host.job
def parts_of_warps(me, n):
    @shmem.jit
    def send(dst, src):
        shmem.put_block(dst, src, 0)

    x, y = shmem.zeros(8, np.int32), shmem.zeros(8, np.int32)
    if n == 1:  # near PEs are written by whoever is there
        send[1, 16](x, y)
        return
    with pytest.raises(ArgumentError, match="send calls operations of a warp or block in blocks o"):
        send[1, 48](x, y)
    send[1, 64](x, y)


@pytest.mark.sweep
@host.in_pes(1, limit=200)
def test_sums_by_less_than_a_warp_are_refused(me, n):
    @shmem.jit
    def add_up(dst, src):
        shmem.reduce_block(shmem.TEAM_WORLD, dst, src, "sum")

    x, y = shmem.zeros(8, np.int32), shmem.zeros(8, np.int32)
    with pytest.raises(
        ArgumentError, match=r"add_up calls reduce_block .* in blocks of 16 threads"
    ):
        add_up[1, 16](x, y)
    add_up[1, 48](x, y)


@pytest.mark.parametrize("n_pes", [1, 2])
def test_over_a_network_parts_of_warps_are_refused(n_pes):
    """There, all lanes of a warp take part."""
    host.run(n_pes, parts_of_warps, EMULATION_NODE_PES=1, EMULATION_DEVICES=n_pes, limit=120)


@host.in_pes(2)
def test_a_capture_is_a_graph_and_other_threads_wait_for_its_end(me, n):
    from gpushmem.runtime import current

    x, y, stream = shmem.zeros(4), shmem.full(4, 1000.0 * me), shmem.stream()
    beside, order = shmem.stream(), []
    one[1, 1](x)
    driver.clear()

    def wait():
        shmem.synchronize()
        order.append("other thread")

    with shmem.capture(stream) as graph:
        one[3, 1, stream](x)
        shmem.wait_stream(beside, stream)
        shmem.put(x[1:2], y[:1], (me + 1) % n, stream=beside)
        shmem.wait_stream(stream, beside)
        for refused in (shmem.synchronize, x.numpy, stream.synchronize, lambda: shmem.zeros(1)):
            with pytest.raises(ArgumentError, match="a stream is being captured"):
                refused()
        with pytest.raises(ArgumentError, match="before its capture has ended"):
            graph.launch()
        with pytest.raises(ArgumentError, match="captured already"), shmem.capture(stream):
            pass
        other = threading.Thread(target=wait)
        other.start()
        time.sleep(0.05)
        assert order == driver.launches() == []
    other.join()
    with pytest.raises(ArgumentError, match="the default stream cannot"), shmem.capture(0):
        pass
    with pytest.raises(ZeroDivisionError), shmem.capture(stream):
        one[3, 1, stream](x)
        1 / 0  # noqa: B018
    assert not shmem.is_capturing(stream)
    shmem.barrier_all()
    for on in (stream, 0):
        graph.launch(on)
    found = driver.launches()
    assert [(launch.grid, launch.replayed) for launch in found] == [((3, 1, 1), True)] * 2
    assert words(found[0]) == of_array(x)
    shmem.barrier_all()
    assert x.numpy().tolist() == [0, 1000 * ((me - 1) % n), 0, 0]
    shmem.gemm(y.reshape(2, 2), x.reshape(2, 2), x.reshape(2, 2), False, stream=stream)
    assert stream.workspace is None
    with shmem.capture(stream) as graph:  # its workspace goes with the stream
        shmem.gemm(y.reshape(2, 2), x.reshape(2, 2), x.reshape(2, 2), False, stream=stream)
    assert stream.workspace is not None
    assert not current("test").backend._host_calls._products._of_graphs


@shmem.jit
def step(x, number, team, epochs):
    x[0] = number


@host.in_pes(2)
def test_calls_of_plans_that_repeat_are_graphs(me, n):
    """The same launches as before; other arguments are no repetition."""

    class Steps(Plan):
        def __call__(self, x, y):
            self.repeat(self._queue, on, x, y)

        def _queue(self, x, y, stream):
            self.launch(step, stream, x, 0)
            self.launch(step, stream, y, 1)
            shmem.put(y, x, (self.my_pe + 1) % self.n_pes, stream=stream)

    on = shmem.stream()
    first, second, y = shmem.full(3, me + 10.0), shmem.full(3, me + 20.0), shmem.zeros(3)
    seen = []
    with Steps() as plan:
        for x in (first, first, first, second, first):
            driver.clear()
            plan(x, y)
            seen.append(driver.launches())
            shmem.barrier_all()
            assert (y.numpy() == x.numpy() + (1 - 2 * me)).all()
            shmem.barrier_all()
    replayed = [{launch.replayed for launch in found} for found in seen]
    assert replayed == [{False}, {False}, {True}, {False}, {True}]
    assert {x.stream for found in seen for x in found} == {on.__cuda_stream__()[1]}
    like = [[(x.grid, x.block, x.params) for x in found] for found in seen]
    assert like[0] == like[1] == like[2] == like[4]
    assert like[0] != like[3]


@host.in_pes(1)
def test_streams_are_ordered_with_the_default_one_unless_they_are_nonblocking(me, n):
    x = shmem.device_array(4, "int64")
    one[1, 1](x)
    for nonblocking in (False, True):
        stream = shmem.stream(nonblocking=nonblocking)
        driver.clear()
        driver.hold(0)
        one[1, 1](x)
        one[1, 1, stream](x)
        assert len(driver.launches()) == nonblocking
        driver.let_go(0)
        assert len(driver.launches()) == 2
