"""Unmodified `numba.cuda` programs on the engine."""

import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from numba import cuda, float64
from numba.cuda.cudadrv.driver import CudaAPIError, device_memset

from gpushmem.artifacts.argument_packing import address_of
from gpushmem.simt.numba_cuda import patch_numba_cuda
from gpushmem.simt.numba_cuda.patch import _engine

pytestmark = [
    pytest.mark.usefixtures("patched"),
    pytest.mark.filterwarnings("ignore::numba.cuda.core.errors.NumbaPerformanceWarning"),
]


def test_arrays_go_to_the_device_and_back():
    @cuda.jit
    def double(x):
        i = cuda.grid(1)
        if i < x.size:
            x[i] *= 2

    host = np.arange(1000.0)
    device = cuda.to_device(host)
    double[4, 256](device)
    np.testing.assert_array_equal(host, np.arange(1000.0))  # the device has memory of its own
    np.testing.assert_array_equal(device.copy_to_host(), 2 * host)
    double[4, 256](host)  # a host array is copied in and out
    np.testing.assert_array_equal(host, 2 * np.arange(1000.0))
    view = device[10:20].copy_to_host()
    np.testing.assert_array_equal(view, 2 * np.arange(10.0, 20.0))


def test_an_error_with_debug_is_raised_at_the_launch_as_on_a_gpu():
    @cuda.jit(debug=True, opt=False)
    def fail(x):
        if cuda.grid(1) == 5:
            raise ValueError("five")

    with pytest.raises(
        ValueError, match=r"test_patch.py, line \d+, tid=\[0, 0, 1\] ctaid=\[0, 0, 1\]: five"
    ):
        fail[2, 4](np.zeros(1))


def test_without_debug_a_thread_that_raises_just_ends():
    @cuda.jit
    def fail(x):
        i = cuda.grid(1)
        if i == 5:
            raise ValueError
        x[i] = 1

    x = np.zeros(8)
    fail[1, 8](x)
    np.testing.assert_array_equal(x, [1, 1, 1, 1, 1, 0, 1, 1])


def test_launch_errors():
    @cuda.jit
    def nothing(x):
        pass

    from cuda.core._utils.cuda_utils import CUDAError

    device = cuda.device_array(1)
    with pytest.raises(
        CUDAError, match=r"CUDA_ERROR_INVALID_VALUE: .* is 2048; it must be 1 to 1024"
    ):
        nothing[1, 2048](device)
    with pytest.raises(CUDAError, match=r"shared memory"):
        nothing[1, 1, 0, 1 << 20](device)
    with pytest.raises(TypeError, match="argument"):
        nothing[1, 1](device, device)


def gate_on(stream):
    """A callback on `stream` that holds it until the event returned is set."""
    gate = threading.Event()
    stream.add_callback(lambda stream, status, arg: gate.wait(20))
    return gate


def test_launches_are_asynchronous_and_ordered_within_a_stream():
    @cuda.jit
    def step(x, k):
        x[0] = 10 * x[0] + k

    stream = cuda.stream()
    x = cuda.to_device(np.zeros(1))
    done = cuda.event()
    gate = gate_on(stream)
    for k in range(1, 5):
        step[1, 1, stream](x, k)
    done.record(stream)
    assert not done.query()
    gate.set()
    stream.synchronize()
    assert done.query()
    assert x.copy_to_host()[0] == 1234


def test_streams_are_independent_and_events_join_them():
    @cuda.jit
    def put(x, k):
        x[0] = k

    first, second, third = (cuda.stream() for _ in range(3))
    x, y = (cuda.to_device(np.zeros(1)) for _ in range(2))
    gate = gate_on(first)
    put[1, 1, first](x, 1)
    put[1, 1, second](y, 2)
    second.synchronize()  # does not wait for the first
    seen = np.zeros(1)
    y.copy_to_host(seen, stream=second)
    second.synchronize()
    assert seen[0] == 2
    event = cuda.event()
    event.record(first)
    event.wait(third)
    put[1, 1, third](x, 3)
    assert not event.query()
    gate.set()
    third.synchronize()
    assert x.copy_to_host()[0] == 3


def test_elapsed_time_is_the_time_between_two_events():
    stream = cuda.stream()
    start, end = cuda.event(), cuda.event()
    start.record(stream)
    stream.add_callback(lambda stream, status, arg: time.sleep(0.05))
    end.record(stream)
    end.synchronize()
    assert 50 <= start.elapsed_time(end) < 2000


def test_a_failing_kernel_is_heard_at_the_next_synchronisation():
    @cuda.jit
    def wrong(out):
        out[0] = cuda.ballot_sync(1, 1)

    stream = cuda.stream()
    device = cuda.device_array(1)
    wrong[1, 2, stream](device)
    with pytest.raises(CudaAPIError, match=r"LAUNCH_FAILED.*wrong.*test_patch.py:\d+"):
        stream.synchronize()
    stream.synchronize()  # once is enough


def test_pinned_mapped_and_managed_memory():
    @cuda.jit
    def double(x):
        x[cuda.grid(1)] *= 2

    pinned = cuda.pinned_array(16)
    pinned[:] = np.arange(16)
    stream = cuda.stream()
    device = cuda.to_device(pinned, stream=stream)
    double[1, 16, stream](device)
    device.copy_to_host(pinned, stream=stream)
    stream.synchronize()
    np.testing.assert_array_equal(pinned, 2 * np.arange(16))
    for array in (cuda.mapped_array(16), cuda.managed_array(16)):
        array[:] = np.arange(16)
        double[1, 16](array)
        cuda.synchronize()
        np.testing.assert_array_equal(array, 2 * np.arange(16))
        device_memset(array, 0, array.nbytes)  # synchronous
        assert not array.any()


def test_device_memory_comes_in_aligned_pieces_of_512_bytes():
    """As CUDA's does: numba-cuda's own tests write a little past the end of their arrays."""
    arrays = [cuda.device_array(1) for _ in range(100)]
    starts = np.sort([a.__cuda_array_interface__["data"][0] for a in arrays])
    assert np.diff(starts).min() >= 512
    assert not (starts % 256).any()
    engine = _engine[-1]
    for nbytes, piece in ((1, 512), (512, 512), (513, 1024)):
        start = int(engine.cuMemAlloc(nbytes))
        memory = engine._memory[start]
        assert start + piece <= address_of(memory) + memory.nbytes
        engine.cuMemFree(start)


def test_a_copy_of_pageable_memory_may_be_followed_by_a_change():
    stream = cuda.stream()
    gate = gate_on(stream)
    host = np.arange(4.0)
    device = cuda.to_device(host, stream=stream)
    host[:] = -1
    gate.set()
    np.testing.assert_array_equal(device.copy_to_host(stream=stream), np.arange(4.0))


def test_reduce_vectorize_and_guvectorize():
    total = cuda.reduce(lambda a, b: a + b)
    assert total(np.arange(10_000.0)) == np.arange(10_000.0).sum()

    @cuda.vectorize([float64(float64, float64)])
    def hypotenuse(a, b):
        return (a * a + b * b) ** 0.5

    a, b = np.arange(5000.0), np.ones(5000)
    np.testing.assert_allclose(hypotenuse(a, b), np.hypot(a, b))

    @cuda.guvectorize([(float64[:], float64[:])], "(n)->(n)")
    def running(x, out):
        s = 0.0
        for i in range(x.shape[0]):
            s += x[i]
            out[i] = s

    x = np.random.default_rng(1).random((20, 7))
    np.testing.assert_allclose(running(x), x.cumsum(1))


def test_what_was_there_before_is_there_after():
    from numba.cuda import dispatcher
    from numba.cuda.cudadrv import driver

    with patch_numba_cuda():
        inner = dispatcher._Kernel, driver._alloc_finalizer
        assert cuda.is_available()
    assert dispatcher._Kernel is inner[0]
    assert driver._alloc_finalizer is not inner[1]


def test_a_fork_is_refused():
    cuda.to_device(np.zeros(1))
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            cuda.to_device(np.zeros(1))
        except Exception as error:
            os.write(writer, str(error).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        assert "initialized before forking" in pipe.read()
    os.waitpid(child, 0)


def test_kernels_are_kept_on_disk(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        """
import numpy as np
from numba import cuda
from gpushmem.artifacts.argument_packing import address_of
from gpushmem.simt.numba_cuda import patch_numba_cuda
from gpushmem.simt.numba_cuda.patch import _engine

with patch_numba_cuda():
    @cuda.jit(cache=True)
    def scale(x, a):
        shared = cuda.shared.array(8, np.float64)
        t = cuda.threadIdx.x
        shared[t] = x[t]
        cuda.syncthreads()
        x[t] = a * shared[7 - t]
        if t == 0:
            print("thread", t, a)

    x = cuda.to_device(np.arange(8.0))
    scale[1, 8](x, 3)
    scale[1, 8](x, 0.5)
    cuda.synchronize()
    assert (x.copy_to_host() == 1.5 * np.arange(8)).all()
    stats = scale.stats
    print(sum(stats.cache_hits.values()), "hits,", sum(stats.cache_misses.values()), "misses")
"""
    )

    def run():
        env = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
        return subprocess.run(
            [sys.executable, "-W", "ignore", str(program)], env=env, check=True, text=True,
            capture_output=True, cwd=Path(__file__).parent.parent.parent,
        ).stdout  # fmt: skip

    printed = "thread 0 3\nthread 0 0.500000\n"
    assert run() == printed + "0 hits, 2 misses\n"
    assert run() == printed + "2 hits, 0 misses\n"


def test_threads_may_compile_at_once():
    @cuda.jit
    def add(x, k):
        shared = cuda.shared.array(8, np.float64)
        shared[cuda.threadIdx.x] = k
        cuda.syncthreads()
        cuda.atomic.add(x, cuda.grid(1) % 8, shared[7 - cuda.threadIdx.x])

    def use(number):
        x = np.zeros(8)
        add[2, 8](x, number)
        return x.sum()

    numbers = [kind(k) for k in range(4) for kind in (int, float, np.int8, np.uint16, np.float32)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(use, numbers)) == [16.0 * n for n in numbers]


def test_threads_may_launch_at_once():
    @cuda.jit
    def add(x, k):
        cuda.atomic.add(x, cuda.grid(1) % 8, k)

    x = cuda.to_device(np.zeros(8))
    add[1, 8](x, 0.0)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda k: add[4, 64](x, float(k)), range(20)))
    cuda.synchronize()
    np.testing.assert_array_equal(x.copy_to_host(), 32 * sum(range(20)))
