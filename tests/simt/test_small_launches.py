"""Launches of numba.cuda that are packed in C, and copies that stay in native code."""

import threading

import numpy as np
import pytest
from numba import cuda, void
from numba.cuda import types

pytestmark = [
    pytest.mark.usefixtures("patched"),
    pytest.mark.filterwarnings("ignore::numba.cuda.core.errors.NumbaPerformanceWarning"),
]


def echo(out, x, y, z, truth, byte, word, single, double):
    out[0] = truth
    out[1] = byte
    out[2] = word
    out[3] = single
    out[4] = double
    out[5] = x.size + y.size
    out[6] = z[()]
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            out[7] += (i + 10 * j) * x[i, j]


SIGNATURE = void(
    types.float64[:], types.float64[:, :], types.float64[:],
    types.Array(types.float64, 0, "C"), types.boolean,
    types.int8, types.uint64, types.float32, types.float64,
)  # fmt: skip


@pytest.mark.parametrize("declared", [True, False])
def test_arguments_arrive_alike_however_they_are_packed(declared):
    kernel = cuda.jit(SIGNATURE)(echo) if declared else cuda.jit(echo)
    grid = np.arange(24.0).reshape(4, 6)
    numbers = True, np.int8(-3), np.uint64(2**64 - 1), np.float32(0.1), 1 / 3
    weights = np.add.outer(np.arange(2), 10 * np.arange(3))
    expected = [1, -3, 2.0**64, np.float32(0.1), 1 / 3, 6, 7.5]
    expected.append((weights * grid[1::2, ::2]).sum())
    on_host, on_device = np.zeros(8), cuda.to_device(np.zeros(8))
    x = cuda.to_device(grid)[1::2, ::2]
    nothing, single = cuda.to_device(np.zeros(0)), cuda.to_device(np.array(7.5))
    for out in (on_device, on_host):  # in C; by numba-cuda's rules
        kernel[1, 1](out, x, nothing, single, *numbers)
    np.testing.assert_array_equal(on_host, expected)
    np.testing.assert_array_equal(on_device.copy_to_host(), expected)


def test_an_array_of_other_dimensions_than_declared_is_refused():
    @cuda.jit(void(types.float64[:], types.float64[:]))
    def first(out, x):
        out[0] = x[0]

    out, square = cuda.to_device(np.zeros(1)), cuda.to_device(np.ones((2, 2)))
    with pytest.raises(TypeError, match=r"first is compiled for .* given arguments of \[1, 2\]"):
        first[1, 1](out, square)


def count_to(out, n, x):
    total = 0.0
    for k in range(n):
        total = total * 0.5 + x[k % x.size]
    out[0] = total


def test_memory_that_is_freed_is_there_until_queued_launches_are_done():
    kernel, stream, gate = cuda.jit(count_to), cuda.stream(), threading.Event()
    out, x = cuda.to_device(np.zeros(1)), cuda.to_device(np.ones(64))
    stream.add_callback(lambda stream, status, arg: gate.wait(20))
    kernel[1, 1, stream](out, 100, x)
    del x
    cuda.current_context().memory_manager.deallocations.clear()
    others = [np.full(128, 1000.0) for _ in range(100)]  # as many bytes as the engine had for `x`
    gate.set()
    assert out.copy_to_host(stream=stream)[0] == 2
    assert len(others) == 100


def test_copies_between_launches_of_a_stream_take_their_turn():
    kernel, stream = cuda.jit(count_to), cuda.stream()
    with cuda.pinned(source := np.full(1000, 3.0), seen := np.zeros(1)):
        out, x = cuda.to_device(np.zeros(1)), cuda.to_device(np.ones(1000))
        for value in (1.0, 3.0):
            kernel[1, 1, stream](out, 2_000_000, x)
            if value == 1.0:
                x.copy_to_device(source, stream=stream)
        out.copy_to_host(seen, stream=stream)
        stream.synchronize()
        assert seen[0] == 6
        kernel[1, 1, stream](out, 2_000_000, x)
        out.copy_to_device(np.array([5.0]), stream=stream)
        assert out.copy_to_host(stream=stream)[0] == 5


def test_the_versions_are_those_of_a_toolkit_and_its_driver():
    assert cuda.is_supported_version()
    assert cuda.runtime.get_version() == (12, 8)
    assert cuda.cudadrv.driver.driver.get_version() == (12, 8)
