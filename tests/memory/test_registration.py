"""The user's own buffers as local memory: registered they are taken, plain they are refused."""

import gc
import weakref

import ml_dtypes
import numpy as np
import pytest

import gpushmem as shmem
from gpushmem.errors import ArgumentError, NotInitializedError


@shmem.jit
def send(dst, src, pe):
    shmem.put(dst, src, pe)


@shmem.jit
def negate(x):
    for i in range(x.size):
        x[i] = -x[i]


# --- memory that is taken


def numpy_buffer(values):
    return values.copy()


def torch_buffer(values):
    return pytest.importorskip("torch").from_numpy(values.copy())


@pytest.mark.parametrize("buffer", [numpy_buffer, torch_buffer])
def test_registered_buffers_are_sources_and_destinations(run_pes, buffer):
    if buffer is torch_buffer:
        pytest.importorskip("torch")

    def body():
        shmem.init()
        me, n = shmem.my_pe(), shmem.n_pes()
        right, left = (me + 1) % n, (me - 1) % n
        remote = shmem.full(6, -1, dtype="int64")
        out, back = buffer(1000 * me + np.arange(4)), buffer(np.full(6, -2))
        source, target = shmem.register(out), shmem.register(back)
        assert isinstance(source, shmem.DeviceArray)
        shmem.put(remote[1:], source[1:], right)
        shmem.iput(remote, source, 4, 1, 2, right)  # elements 0 and 1 to 0 and 4
        shmem.barrier_all()
        assert remote.numpy().tolist() == [
            1000 * left, 1000 * left + 1, 1000 * left + 2, 1000 * left + 3, 1000 * left + 1, -1,
        ]  # fmt: skip
        shmem.get(target[:5], remote, left)
        shmem.iget(target[5:], remote[3:], 1, 1, 1, left)
        there = 1000 * ((me - 2) % n)
        assert back.tolist() == [there, there + 1, there + 2, there + 3, there + 1, there + 3]
        shmem.barrier_all()
        negate[1, 1](source)
        send[1, 1](remote, source, right)
        shmem.barrier_all()
        assert out.tolist() == [-(1000 * me + k) for k in range(4)]
        assert remote.numpy()[:4].tolist() == [-(1000 * left + k) for k in range(4)]
        shmem.finalize()

    run_pes(body, 3)


@pytest.mark.parametrize("buffer", [numpy_buffer, torch_buffer])
def test_the_buffer_itself_is_taken_while_it_is_registered(alone, buffer):
    a = shmem.zeros(4, "int64")
    b = buffer(np.arange(10))
    handle = shmem.register(b)
    shmem.put(a, b[2:6], 0)
    assert a.numpy().tolist() == [2, 3, 4, 5]
    shmem.get(b[6:], a, 0)
    assert b.tolist() == [0, 1, 2, 3, 4, 5, 2, 3, 4, 5]
    shmem.unregister(handle)
    with pytest.raises(ArgumentError, match=r"put: src .* is ordinary host memory"):
        shmem.put(a, b[2:6], 0)


class SpeaksOldDlpack:
    """As PyTorch before DLPack 1.0: nothing says whether the memory may be written."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, stream=None):
        return self.array.__dlpack__(stream=stream)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __array__(self, dtype=None, copy=None):
        return self.array


class SpeaksArrayInterface:
    def __init__(self, array):
        self.array = array
        self.__array_interface__ = array.__array_interface__


@pytest.mark.parametrize("kind", [SpeaksOldDlpack, SpeaksArrayInterface])
def test_other_libraries_arrays(alone, kind):
    memory = np.arange(5.0)
    handle = shmem.register(kind(memory))
    negate[1, 1](handle)
    shmem.synchronize()
    assert memory.tolist() == [0, -1, -2, -3, -4]


def test_a_registered_buffer_is_kept_alive(alone):
    class Buffer(np.ndarray):
        """One that can be watched."""

    buffer = np.arange(4.0).view(Buffer)
    watched = weakref.ref(buffer)
    handle = shmem.register(buffer)
    del buffer
    gc.collect()
    assert watched() is not None
    assert handle.numpy().tolist() == [0, 1, 2, 3]
    shmem.unregister(handle)
    del handle
    gc.collect()
    assert watched() is None


# --- what cannot be registered


class OnAGpu:
    __cuda_array_interface__ = {
        "shape": (4,), "typestr": "<f4", "data": (0x7F0000000000, False), "strides": None,
        "version": 3,
    }  # fmt: skip


def read_only():
    array = np.zeros(4)
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("buffer", "message"),
    [
        (
            np.zeros((4, 4))[:, 1],
            r"register: ndarray \(4,\) float64: it is not contiguous: register",
        ),
        (np.zeros((4, 4)).T[:2], "not contiguous"),
        (read_only(), r"read-only: gpushmem.to_device makes a copy"),
        (np.array([{}]), "holds Python objects"),
        ([1, 2], "register: list is not an array"),
        (np.float64(3), "register: float64 is not an array"),
        (b"abc", "register: bytes is not an array.* numpy.asarray"),
        pytest.param(
            OnAGpu(),
            "this OnAGpu is in a GPU's memory, which the cpu backend does not reach",
            marks=pytest.mark.cpu_backend,
        ),
    ],
)
def test_what_cannot_be_registered(alone, buffer, message):
    with pytest.raises(ArgumentError, match=message):
        shmem.register(buffer)


@pytest.mark.host_memory
def test_our_own_memory_needs_no_registration(alone):
    a = shmem.zeros(4)
    with pytest.raises(ArgumentError, match="a SymmetricArray is already device memory"):
        shmem.register(a)
    with pytest.raises(ArgumentError, match="32 bytes are on the symmetric heap already"):
        shmem.register(np.asarray(a))


def test_device_arrays_can_be_registered(alone):
    a, b = shmem.zeros(3), shmem.to_device([1.0, 2.0, 3.0])
    handle = shmem.register(b)
    with pytest.raises(ArgumentError, match=r"24 bytes .* already registered"):
        shmem.register(handle)
    shmem.put(a, handle, 0)
    handle[1] = 5
    shmem.unregister(handle)
    with pytest.raises(ArgumentError, match="was used after unregister"):
        handle.numpy()
    assert a.numpy().tolist() == [1, 2, 3]
    assert b.numpy().tolist() == [1, 5, 3]
    with pytest.raises(ArgumentError, match="a DeviceArray is already device memory"):
        shmem.register(shmem.peer_array(a, 0))


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, [("a", "i1"), ("b", "f8")]])
def test_device_arrays_are_registered_with_their_dtype(alone, dtype):
    b = shmem.to_device(np.ones(3, dtype))
    assert shmem.register(b).dtype == b.dtype == dtype


@pytest.mark.parametrize(("start", "stop"), [(0, 10), (2, 6), (0, 3), (9, 10), (4, 8)])
def test_overlapping_registrations_are_refused_with_both_ranges(alone, start, stop):
    memory = np.zeros(30, "int32")
    handle = shmem.register(memory[2:10])
    at = memory.__array_interface__["data"][0]
    new = rf"{4 * (stop - start)} bytes at {at + 4 * start:#x} to {at + 4 * stop:#x}"
    old = rf"32 bytes at {at + 8:#x} to {at + 40:#x}"
    with pytest.raises(
        ArgumentError, match=f"register: {new} overlap {old}, which are already registered"
    ):
        shmem.register(memory[start:stop])
    shmem.register(memory[:2])  # neighbours do not overlap
    shmem.register(memory[10:])
    shmem.unregister(handle)
    shmem.register(memory[2:10])


# --- the end of a registration


def test_a_handle_is_not_used_after_unregister(alone):
    a, b = shmem.zeros(4), np.ones(4)
    handle = shmem.register(b)
    view = handle[1:]
    shmem.unregister(handle)
    assert repr(handle) == "DeviceArray(shape=(4,), dtype=float64, released by unregister)"
    for use in (
        handle.numpy, view.numpy, lambda: shmem.put(a, view, 0), lambda: negate[1, 1](handle),
        lambda: shmem.unregister(handle),
    ):  # fmt: skip
        with pytest.raises(ArgumentError, match=r"registered buffer of shape \(4,\), float64, was"):
            use()
    assert not a.numpy().any()


def test_unregistering_what_is_not_registered(alone):
    b = np.zeros(4)
    with pytest.raises(
        ArgumentError, match=r"ndarray \(4,\) float64 is not .* registered: nothing"
    ):
        shmem.unregister(b)
    handle = shmem.register(b)
    for part in (handle[1:], b[:2], np.zeros(4), shmem.zeros(4), 3):
        with pytest.raises(ArgumentError, match="as a whole; registered: 32 bytes at 0x"):
            shmem.unregister(part)
    shmem.unregister(b)
    with pytest.raises(ArgumentError, match="is not registered"):
        shmem.unregister(b)


def test_unregister_waits_for_kernels(alone):
    @shmem.jit
    def fill(x, times):
        for k in range(times):
            shmem.p(x, k + 1, 0)

    @shmem.jit
    def copy(x, y):
        y[0] = x[0]

    symmetric, b = shmem.zeros(1, "int64"), np.zeros(1, "int64")
    handle = shmem.register(b)
    fill[1, 1](symmetric, 20_000_000)
    copy[1, 1](symmetric, handle)
    shmem.unregister(handle)
    assert b[0] == 20_000_000


def test_finalize_unregisters():
    shmem.init()
    b = np.zeros(4)
    handle = shmem.register(b)
    shmem.finalize()
    with pytest.raises(ArgumentError, match="after finalize: register it again"):
        handle.numpy()
    with pytest.raises(NotInitializedError, match="register: call"):
        shmem.register(b)
    with pytest.raises(NotInitializedError, match="unregister: call"):
        shmem.unregister(handle)
    shmem.init()
    shmem.register(b)
    shmem.finalize()


# --- plain host memory


@pytest.mark.parametrize(
    ("local", "words"),
    [
        (np.zeros(4), r"\(ndarray \(4,\) float64\)"),
        (np.zeros((2, 4))[1], r"\(ndarray \(4,\) float64\)"),
        ([1.0, 2.0], r"\(list\)"),
        (3.0, r"\(float\)"),
        (np.float64(3), r"\(float64\)"),
    ],
)
def test_host_operations_refuse_plain_host_memory(alone, local, words):
    a = shmem.ones(4)
    shmem.register(np.zeros(4))  # another one
    calls = {
        "put: src": lambda: shmem.put(a, local, 0),
        "get: dst": lambda: shmem.get(local, a, 0),
        "iput: src": lambda: shmem.iput(a, local, 1, 1, 1, 0),
        "iget: dst": lambda: shmem.iget(local, a, 1, 1, 1, 0),
    }
    for start, call in calls.items():
        with pytest.raises(
            ArgumentError,
            match=rf"{start} {words} is ordinary host memory.*register\(it\).*to_device\(it\)",
        ):
            call()
    assert a.numpy().tolist() == [1] * 4


def test_tensors_that_are_not_registered_are_plain_host_memory(alone):
    torch = pytest.importorskip("torch")
    with pytest.raises(ArgumentError, match=r"put: src \(Tensor \(4,\) float32\) is ordinary"):
        shmem.put(shmem.zeros(4, "float32"), torch.zeros(4), 0)


def test_slices_that_leave_a_registered_buffer_are_refused(alone):
    a, memory = shmem.zeros(6), np.arange(10.0)
    shmem.register(memory[2:8])
    shmem.put(a, memory[2:8], 0)
    assert a.numpy().tolist() == [2, 3, 4, 5, 6, 7]
    for outside in (memory[1:4], memory[6:9], memory[7::-1], memory[:2]):
        with pytest.raises(ArgumentError, match="ordinary host memory"):
            shmem.put(a, outside, 0)


def test_device_and_symmetric_arrays_need_no_registration(alone):
    a, b = shmem.zeros(3), shmem.array([4.0, 5.0, 6.0])
    shmem.put(a, b, 0)
    shmem.put(a[:1], shmem.to_device([7.0]), 0)
    assert a.numpy().tolist() == [7, 5, 6]


def test_values_and_kernel_arguments_may_be_host_memory(alone):
    a = shmem.zeros(3)
    shmem.p(a, 4.0, 0)
    shmem.p(a[1:], np.float64(5), 0)
    send[1, 1](a[2:], np.array([6.0]), 0)
    assert a.numpy().tolist() == [4, 5, 6]
