"""Other libraries on our memory: NumPy and PyTorch see what kernels and peers write, and back."""

import numpy as np
import pytest

import gpushmem as shmem
from gpushmem.errors import SymmetryError


@shmem.jit
def double(x):
    for i in range(x.size):
        x[i] *= 2


def numpy_views(array):
    return np.asarray(array), np.from_dlpack(array)


def torch_views(array):
    torch = pytest.importorskip("torch")
    return torch.from_dlpack(array), torch.as_tensor(array)


@pytest.mark.host_memory
@pytest.mark.parametrize("views", [numpy_views, torch_views])
def test_views_share_memory_with_kernels_and_peers(run_pes, views):
    if views is torch_views:
        pytest.importorskip("torch")

    def body():
        shmem.init()
        me, n = shmem.my_pe(), shmem.n_pes()
        right, left = (me + 1) % n, (me - 1) % n
        a, device = shmem.zeros((2, 4), "int32"), shmem.to_device(np.zeros(4, "int32"))
        for view in views(a):
            view[1, 2] = 1000 * me + 7  # seen by the kernel and by the peer
            double[1, 1](a[1])
            shmem.barrier_all()
            assert shmem.g(a[1, 2:], left) == 2 * (1000 * left + 7)
            shmem.barrier_all()
            shmem.p(a[0, 3:], 1000 * me + 9, right)  # written by the peer
            shmem.barrier_all()
            assert int(view[0, 3]) == 1000 * left + 9
            assert tuple(view.shape) == (2, 4)
        for view in views(device):
            view[0] = 5
            double[1, 1](device)
            shmem.synchronize()
            assert int(view[0]) == 10
        shmem.finalize()

    run_pes(body, 3)


@pytest.mark.host_memory
@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "uint8", "int16", "int32", "int64", "float16", "float32", "float64"]
)
def test_every_dtype_of_torch(alone, dtype):
    torch = pytest.importorskip("torch")
    a = shmem.array([1, 0, 1], dtype)
    tensor = torch.from_dlpack(a)
    assert tensor.dtype == getattr(torch, dtype)
    tensor[1] = 1
    assert a.numpy().tolist() == [1, 1, 1]


@pytest.mark.host_memory
def test_strided_views_keep_their_strides(alone):
    a = shmem.array(np.arange(12).reshape(3, 4))
    for view in (np.asarray(a[::2, 1::2]), np.from_dlpack(a[::2, 1::2])):
        assert view.tolist() == [[1, 3], [9, 11]]
        assert np.shares_memory(view, np.asarray(a))


@pytest.mark.host_memory
def test_dlpack_waits_for_the_kernels_before(alone):
    @shmem.jit
    def count(x, times):
        for k in range(times):
            shmem.p(x, k + 1, 0)

    a = shmem.zeros(1, "int64")
    count[1, 1](a, 1)  # compiled
    count[1, 1](a, 20_000_000)
    assert np.from_dlpack(a)[0] == 20_000_000


@pytest.mark.host_memory
def test_memory_of_the_host_is_not_offered_as_a_gpus(alone):
    for array in (shmem.zeros(3), shmem.device_array(3), shmem.register(np.zeros(3))):
        assert not hasattr(array, "__cuda_array_interface__")
        assert array.__dlpack_device__() == (1, 0)  # DLPack's kDLCPU


@pytest.mark.host_memory
def test_numpy_converts_and_copies_as_usual(alone):
    a = shmem.array([1, 2, 3], "int32")
    wide = np.asarray(a, "float64")
    wide[0] = 9
    assert np.array(a, copy=True).tolist() == [1, 2, 3]
    assert (np.add(a, 1).tolist(), (np.ones(3) + np.asarray(a)).tolist()) == ([2, 3, 4],) * 2
    assert a.__array__("float64").dtype == np.float64


@pytest.mark.host_memory
@pytest.mark.parametrize("way", ["free", "finalize", "unregister"])
def test_memory_that_is_gone_is_offered_to_nobody(way):
    shmem.init()
    a = shmem.register(np.zeros(4)) if way == "unregister" else shmem.zeros(4)
    {"free": shmem.free, "finalize": lambda _: None, "unregister": shmem.unregister}[way](a)
    shmem.finalize()
    kind = shmem.ArgumentError if way == "unregister" else SymmetryError
    for use in (
        np.asarray, np.from_dlpack, lambda x: x.__array_interface__, lambda x: x.__array__(),
        lambda x: x.__cuda_array_interface__, lambda x: x.__dlpack__(),
        lambda x: x.__dlpack_device__(), lambda x: x[1:], lambda x: x.view("int8"),
    ):  # fmt: skip
        with pytest.raises(kind, match=rf"shape \(4,\).* after {way}"):
            use(a)


# Python 3.13 tells of errors in PyTorch's questions for attributes.
@pytest.mark.filterwarnings("ignore:Exception ignored in PyObject_HasAttrString")
@pytest.mark.host_memory
def test_torch_takes_nothing_that_is_gone(alone):
    torch = pytest.importorskip("torch")
    a = shmem.zeros(4)
    shmem.free(a)
    for use in (torch.from_dlpack, torch.as_tensor):
        with pytest.raises(SymmetryError, match="after free"):
            use(a)


@pytest.mark.host_memory
def test_an_allocation_outlives_its_name_in_a_view(alone):
    view = np.asarray(shmem.full(4, 3.0))  # on the heap until freed, whoever still has the array
    shmem.zeros(4)
    assert view.tolist() == [3.0] * 4
