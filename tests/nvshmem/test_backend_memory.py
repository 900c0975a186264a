"""The nvshmem backend's memory, on the emulated driver: the heap, arrays, sharing, registering."""

import numpy as np
import pytest

import gpushmem as shmem
from gpushmem.errors import (
    ArgumentError,
    CollectiveMismatch,
    HeapExhausted,
    ShmemError,
    SymmetryError,
)
from tests.nvshmem import emulation, host
from tests.nvshmem.emulation import driver

pytestmark = pytest.mark.skipif(emulation.missing() is not None, reason=str(emulation.missing()))

SIZES = [1, 2, 3]
POISON = -7


def own(me, n, dtype=np.int64):
    """`n` elements that name their writer."""
    return (1000 * me + np.arange(n)).astype(dtype)


# --- beginning and end


def three_times():
    used = []
    for round_, size in enumerate((1 << 20, 1 << 19, 1 << 20)):
        me, n = host.init(size)
        assert shmem.heap_stats().total == size
        x = shmem.array(own(me + 10 * round_, 5))
        y = shmem.full(5, POISON)
        shmem.put(y, x, (me + 1) % n)
        shmem.barrier_all()
        assert y.numpy().tolist() == own((me - 1) % n + 10 * round_, 5).tolist()
        shmem.finalize()
        used.append(driver.memory_used(me % 2))
        with pytest.raises(SymmetryError, match="used after finalize"):
            x.numpy()
    shmem.finalize()  # a second time: nothing
    return used


@pytest.mark.parametrize("n", SIZES)
def test_init_and_finalize_again(n):
    for used in host.run(n, three_times):
        assert used[2] - used[0] < 1 << 18, "the heap was given back each time"
        assert used[0] < 80 << 20, "what NVSHMEM takes suits the heap"


def heap_too_large():
    host.meet()
    with pytest.raises(HeapExhausted, match=r"cannot allocate \d+ bytes .*17179869184 on GPU 0"):
        shmem.init("nvshmem", heap_size="16G")
    shmem.init("nvshmem", heap_size="1M")
    shmem.finalize()
    return shmem.is_initialized()


def test_a_heap_that_the_gpu_has_not():
    env = {"EMULATION_MEMORY": 1 << 30, "NVSHMEM_SYMMETRIC_SIZE": "32G"}
    assert host.run(1, heap_too_large, **env) == [False]


def different_heaps():
    host.init(1 << 20)
    shmem.finalize()
    me, _ = host.meet()
    with pytest.raises(CollectiveMismatch) as error:
        shmem.init("nvshmem", heap_size=(1 << 20) - 512 * me)
    shmem.init("nvshmem", heap_size=1 << 20)
    shmem.finalize()
    return str(error.value)


def test_heaps_of_different_sizes():
    for text in host.run(2, different_heaps):
        assert "PE 0: init of 1048576 bytes; PE 1: init of 1048064 bytes" in text


# --- the heap


@host.job
def allocations(me, n):
    a, b = shmem.empty(100, np.uint8), shmem.zeros((3, 5), np.float32)
    c, d = shmem.ones(7, np.int16), shmem.full((2, 2), 1 + me)
    e, f = shmem.array([[me, 2]]), shmem.alloc_bytes(0)
    assert [x.offset for x in (a, b, c, d, e, f)] == [0, 256, 512, 768, 1024, 1280]
    assert (b.numpy() == 0).all()
    assert (c.numpy() == 1).all()
    assert d.numpy().tolist() == [[1 + me] * 2] * 2
    assert e.numpy().tolist() == [[me, 2]]
    assert f.numpy().shape == (0,)
    shmem.free(b)
    with pytest.raises(SymmetryError, match=r"offset 0x100 was used after free"):
        b.numpy()
    with pytest.raises(ShmemError, match="pass that one"):
        shmem.free(c[1:])
    with pytest.raises(SymmetryError, match="not a symmetric array"):
        shmem.free(shmem.to_device([1]))
    with shmem.zeros(1) as g:
        assert g.offset == 256
    with pytest.raises(HeapExhausted, match="1048577 bytes"):
        shmem.empty((1 << 20) + 1, np.uint8)
    whole = shmem.heap_stats().largest_free
    last = shmem.empty(whole, np.uint8)
    last.copy_from(me)
    assert last[-1] == me
    assert d.numpy().tolist() == [[1 + me] * 2] * 2, "nobody else's bytes"


@pytest.mark.parametrize("n", SIZES)
def test_allocations(n):
    host.run(n, allocations)


@host.job
def mismatches(me, n):
    texts = []
    with pytest.raises(CollectiveMismatch) as error:
        shmem.empty(100 + me // 2, np.int32)
    texts.append(str(error.value))
    a = shmem.zeros(8, np.int8)
    assert a.offset == 0
    calls = [lambda: shmem.zeros(4), lambda: shmem.empty(4), lambda: shmem.free(a)]
    with pytest.raises(CollectiveMismatch) as error:
        calls[me]()
    texts.append(str(error.value))
    return texts


def test_collective_calls_that_do_not_match():
    for sizes, calls in host.run(3, mismatches):
        assert sizes == (
            "PEs met in different collective calls: PE 0: empty of 400 bytes; "
            "PE 1: empty of 400 bytes; PE 2: empty of 404 bytes. Every PE must make the same "
            "collective calls in the same order"
        )
        assert "PE 0: zeros of 32 bytes; PE 1: empty of 32 bytes; PE 2: free at 0x0 of 8" in calls


# --- arrays: NumPy is the definition

INDICES = [
    (), ..., slice(None), slice(1, 3), slice(None, None, 2), slice(None, None, -1), slice(4, 1, -2),
    slice(2, 2), 0, -1, (1, 2), (1, 2, 3), (slice(None), 1), (slice(None), slice(None, None, -2)),
    (slice(None, None, -1), slice(1, 3), slice(None, None, -3)), (..., 0), (0, ..., -1),
    (slice(None), None, 1), (None, 2, slice(1, None, 2)), (slice(3, None, -3), 0, ...),
    (slice(None), slice(0, 1), slice(None, None, 2)), np.int32(2), (slice(5, 9),),
]  # fmt: skip


@host.in_pes(2)
def test_indexing(me, n):
    model = own(me, 4 * 3 * 5, np.int32).reshape(4, 3, 5)
    for make in (shmem.array, shmem.to_device):
        x = make(model)
        for index in INDICES:
            want, got = model[index], x[index]
            if isinstance(got, np.generic):
                assert (got, got.dtype) == (want, want.dtype), index
            else:
                assert (got.shape, got.dtype, got.ndim) == (want.shape, want.dtype, want.ndim)
                assert got.size == 0 or got.strides == want.strides, index
                copy = got.numpy()
                assert copy.shape == want.shape
                assert copy.flags.c_contiguous
                assert copy.flags.owndata or copy.base is None or copy.base.size == copy.size
                assert (copy == want).all(), index
            changed = model.copy()
            changed[index] = x[index] = 7 if me else np.arange(want.size).reshape(want.shape)
            assert (x.numpy() == changed).all(), index
            x.copy_from(model)
        assert len(x) == 4
        assert repr(x[0]).count("(3, 5)") == 1
        for wrong in (4, (0, 3), (0, 0, 0, 0)):
            with pytest.raises(IndexError):
                x[wrong]
        for wrong in ([0, 1], np.array([True] * 4), True, "a"):
            with pytest.raises((ArgumentError, IndexError)):
                x[wrong]
        with pytest.raises(ValueError, match="broadcast"):
            x[0] = np.zeros(4)
        with pytest.raises(ShmemError, match="numpy"):
            np.asarray(x)


DTYPES = ["?", "i1", "u2", "i8", "f2", "f4", "f8", "c8", "c16", "M8[s]", "bfloat16",
          "float8_e4m3fn", "float8_e5m2", [("a", "i4"), ("b", "f8")],
          [("x", "u1"), ("y", ("f4", 3))]]  # fmt: skip


@host.in_pes(1, 3)
def test_dtypes(me, n):
    for dtype in map(np.dtype, DTYPES):
        raw = (17 * np.arange(12 * dtype.itemsize) + me) % 120
        model = raw.astype(np.uint8).view(dtype).reshape(3, 4)
        if dtype.kind == "b":
            model = raw.reshape(3, 4) % 2 == 0
        x, y = shmem.array(model), shmem.empty((3, 4), dtype)
        y.view(np.uint8).copy_from(0xEE)
        assert (x.dtype, y.dtype, x.nbytes) == (dtype, dtype, 12 * dtype.itemsize)
        assert x.numpy().tobytes() == model.tobytes()
        assert x[1:, ::2].numpy().tobytes() == model[1:, ::2].tobytes()
        assert x[2, 1].tobytes() == model[2, 1].tobytes()
        shmem.barrier_all()
        shmem.put(y[1:], x[:2], (me + 1) % n)
        shmem.barrier_all()
        left = ((raw - me + (me - 1) % n) % 120).astype(np.uint8)
        if dtype.kind != "b":
            sent = left.view(dtype).reshape(3, 4)[:2]
            assert y[1:].numpy().tobytes() == sent.tobytes() or n == 1
        assert (y[0].view(np.uint8).numpy() == 0xEE).all(), "what was not written"
        assert shmem.g(x[2, 1:], me).tobytes() == model[2, 1].tobytes()
        shmem.p(y[0, 3:], model[1, 2], me)
        shmem.quiet()
        assert y[0, 3].tobytes() == model[1, 2].tobytes()
        assert (y[0, :3].view(np.uint8).numpy() == 0xEE).all()
    zero = shmem.full((), 3.5)
    assert (zero.shape, zero.numpy()[()], zero[()]) == ((), 3.5, 3.5)
    zero.copy_from(4)
    zero[...] = zero[()] + 1
    assert zero.numpy() == 5
    assert zero.reshape(1)[0] == 5
    with pytest.raises(TypeError, match="unsized"):
        len(zero)
    empty = shmem.zeros((0, 4))
    assert empty.numpy().shape == (0, 4)
    assert empty[:, 1].numpy().shape == (0,)
    empty.copy_from(1)
    with pytest.raises(ValueError):
        shmem.zeros(3, np.int32).view(np.int64)


@host.in_pes(1)
def test_operators_say_what_to_write(me, n):
    for a in (shmem.zeros(4), shmem.device_array(4)):
        for use, says in (
            (lambda a: a == 1, r"==: the host cannot access .*: write a.numpy\(\) == "),
            (lambda a: a < 2, r"write a.numpy\(\) < "), (lambda a: a + a, r"a.numpy\(\) \+ "),
            (lambda a: np.sqrt(a), r"write sqrt\(a.numpy\(\)\)"), (bool, r"bool\(a.numpy\(\)\)"),
            (lambda a: 1 in a, r"isin\(a.numpy\(\)\)"),
        ):  # fmt: skip
            with pytest.raises(shmem.ArgumentError, match=says):
                use(a)
        assert str(a) == repr(a)
        assert repr(a).startswith(f"{type(a).__name__}(shape=(4,), dtype=float64")
        a.copy_from(3)
        assert [float(x) for x in a] == [3] * 4


@host.in_pes(1)
def test_views_and_shapes(me, n):
    model = own(me, 24)
    x = shmem.array(model)
    for shape in ((2, 12), (4, -1), (2, 3, 4), (24,)):
        assert (x.reshape(shape).numpy() == model.reshape(shape)).all()
    assert x.reshape(2, 12).shape == (2, 12)
    assert (x.view(np.int32).numpy() == model.view(np.int32)).all()
    assert (x.reshape(4, 6)[1:3].reshape(-1).numpy() == model[6:18]).all()
    with pytest.raises(ValueError):
        x.reshape(5, 5)
    with pytest.raises(ValueError, match="without a copy"):
        x.reshape(4, 6)[:, 1:].reshape(-1)
    with pytest.raises(ValueError):
        x.reshape(4, 6)[:, ::2].view(np.int32)
    view = x.reshape(4, 6)[1:3, 2:]
    view.copy_from(POISON)
    model.reshape(4, 6)[1:3, 2:] = POISON
    assert (x.numpy() == model).all()
    x.copy_from(shmem.to_device(own(9, 24)))
    assert (x.numpy() == own(9, 24)).all()


@host.in_pes(1)
def test_slices_are_copied_in_few_pieces(me, n):
    """Reading and writing slices takes few calls of the driver."""
    from cuda.bindings import driver as cuda

    from gpushmem.backends.nvshmem.gpu import device

    calls = []

    class Counting:
        def __getattr__(self, name):
            if name.startswith("cuMemcpy"):
                calls.append(name)
            return getattr(cuda, name)

    device.driver = Counting()
    model = np.arange(60 * 70, dtype=np.int16).reshape(60, 70)
    x = shmem.to_device(model)
    for index, most in (
        (..., 1), (slice(None, None, -2), 1), ((slice(None), slice(3, 40)), 1),
        ((slice(None), 5), 1), ((slice(None), slice(None, None, 2)), 60),
    ):  # fmt: skip
        calls.clear()
        assert (x[index].numpy() == model[index]).all()
        assert len(calls) <= most, index
        calls.clear()
        x[index] = model[index]
        assert len(calls) <= most, index
    assert (x.numpy() == model).all()


# --- other libraries


@host.in_pes(2)
def test_array_interfaces(me, n):
    model = own(me, 24, np.float32).reshape(4, 6)
    whole = shmem.array(model)
    base = whole.__cuda_array_interface__["data"][0]
    seen = driver.view(base, (4, 6), np.float32)
    assert (seen == model).all()
    for index in (
        ...,
        slice(1, 3),
        (slice(None), slice(1, 4)),
        (slice(None, None, -1),),
        (2, 3, None),
    ):
        x, want = whole[index], model[index]
        about = x.__cuda_array_interface__
        offset = want.__array_interface__["data"][0] - model.__array_interface__["data"][0]
        assert about["version"] == 3
        assert about["stream"] is None
        assert about["data"] == (base + offset, False)
        assert about["shape"] == want.shape
        assert about["typestr"] == "<f4"
        assert about["strides"] is None or about["strides"] == want.strides
        assert (about["strides"] is None) == want.flags.c_contiguous
        assert x.__dlpack_device__() == (2, me)
        if all(step > 0 for step in want.strides):
            from cuda.core.utils import StridedMemoryView

            view = StridedMemoryView.from_dlpack(x, stream_ptr=-1)
            assert (view.ptr, view.shape) == (base + offset, want.shape)
            steps = view.strides or tuple(s // 4 for s in np.empty(want.shape, "f4").strides)
            assert steps == tuple(s // 4 for s in want.strides)
            assert view.is_device_accessible
            assert not view.readonly
    assert not hasattr(whole, "__array_interface__")
    for dtype in ("?", "i1", "u8", "f2", "c16"):
        shmem.device_array(3, dtype).__dlpack__()
    assert shmem.zeros((0, 3)).__cuda_array_interface__["shape"] == (0, 3)
    shmem.zeros((0, 3)).__dlpack__()
    array = shmem.to_device(model)
    capsule, address = array[1:].__dlpack__(), array[1:].__cuda_array_interface__["data"][0]
    del array
    assert (driver.view(address, (3, 6), np.float32) == model[1:]).all(), "the capsule keeps it"
    del capsule
    assert (driver.view(address, (3, 6), np.float32) == model[1:]).all(), "a kernel may use it yet"
    shmem.synchronize()
    with pytest.raises(ValueError, match="no device may use"):
        driver.view(address, (3, 6), np.float32)


class Foreign:
    """An array of another library, in a GPU's memory."""

    def __init__(self, array):
        self.array = array
        self.__cuda_array_interface__ = array.__cuda_array_interface__


@host.in_pes(1, 2)
def test_arrays_of_other_libraries(me, n):
    x, y = shmem.full(6, POISON), shmem.to_device(own(me, 6))
    shmem.put(x[:3], Foreign(y[2:5]), (me + 1) % n)
    shmem.barrier_all()
    left = (me - 1) % n
    assert x.numpy().tolist() == [*own(left, 6)[2:5], *[POISON] * 3]
    shmem.get(Foreign(y), x, me)
    assert y.numpy().tolist() == x.numpy().tolist()
    with pytest.raises(SymmetryError, match=r"put: the remote array .*not on the symmetric heap"):
        shmem.put(Foreign(y), y, 0)


@host.job
def tensors_of_the_heap(me, n):
    import torch

    for name in ("float32", "float8_e4m3fn"):
        x = shmem.zeros((2, 3), name)
        tensor, part = cuda_tensor(x), cuda_tensor(x[1])
        shmem.put(part, shmem.to_device(np.array([1, 2, me], name)), (me + 1) % n)
        shmem.barrier_all()
        assert x.numpy().tolist() == [[0, 0, 0], [1, 2, (me - 1) % n]]
        shmem.put(x[0], part, me)
        shmem.quiet()
        assert x.numpy()[0].tolist() == [1, 2, (me - 1) % n]
        with pytest.raises(ArgumentError, match="on the symmetric heap already"):
            shmem.register(tensor)
        with pytest.raises(ShmemError, match=r"view at offset .* pass that one"):
            shmem.free(part)
        shmem.barrier_all()
        shmem.free(tensor)
        for use in (lambda t: shmem.put(t, t, me), shmem.free):
            with pytest.raises(SymmetryError, match=r"is symmetric memory at offset .* was freed"):
                use(tensor)
    for like, says in ((torch, "PyTorch .* was built without CUDA"), (np, "numpy.. copies")):
        if like is np or torch.version.cuda is None:
            with pytest.raises(ArgumentError, match=f"like={like.__name__} is not .*{says}"):
                shmem.zeros(3, like=like)
    assert not shmem.heap_stats().allocations


def test_tensors_of_the_heap():
    pytest.importorskip("torch")
    host.run(2, tensors_of_the_heap)


# --- registered memory


def registering(me, n, make):
    """`make(values)` makes an array of the host's memory; returns it and NumPy's view of it."""
    x = shmem.full(6, POISON)
    array, seen = make(own(me, 6))
    registered = shmem.register(array)
    assert registered.numpy().tolist() == own(me, 6).tolist()
    address = seen.__array_interface__["data"][0]
    assert registered.__cuda_array_interface__["data"][0] == address
    assert (driver.view(address, 6, np.int64) == own(me, 6)).all(), "a device may use it"
    shmem.barrier_all()
    shmem.put(x[1:4], array[2:5], (me + 1) % n)
    shmem.barrier_all()
    left = (me - 1) % n
    assert x.numpy().tolist() == [POISON, *own(left, 6)[2:5], POISON, POISON]
    shmem.get(registered[:2], x[1:], me)
    assert seen.tolist() == [*own(left, 6)[2:4], *own(me, 6)[2:]]
    registered[5] = 3
    assert seen[5] == 3
    with pytest.raises(ArgumentError, match="already registered"):
        shmem.register(array)
    with pytest.raises(SymmetryError, match="not on the symmetric heap"):
        shmem.put(registered, x[:6], 0)
    shmem.unregister(array)
    with pytest.raises(ArgumentError, match="used after unregister"):
        registered.numpy()
    with pytest.raises(ArgumentError, match="ordinary host memory"):
        shmem.put(x, array, 0)
    with pytest.raises(ValueError, match="no device may use"):
        driver.view(address, 6, np.int64)
    again = shmem.register(array)
    shmem.unregister(again)
    shmem.register(array)  # left to finalize


@host.in_pes(*SIZES)
def test_registered_memory(me, n):
    registering(me, n, lambda values: (values, values))
    for wrong, match in (
        (np.zeros(4)[::2], "not contiguous"),
        (np.zeros(2, object), "Python objects"),
        (3, "not an array"),
        (shmem.zeros(2), "already device memory"),
    ):
        with pytest.raises(ArgumentError, match=match):
            shmem.register(wrong)
    with pytest.raises(ArgumentError, match="on the symmetric heap already"):
        shmem.register(Foreign(shmem.zeros(3)[1:]))
    with pytest.raises(ArgumentError, match="is not registered"):
        shmem.unregister(np.zeros(2))
    shmem.unregister(shmem.register(np.zeros(0)))


@host.job
def registered_tensor(me, n):
    import torch

    def make(values):
        tensor = torch.from_numpy(values.copy())
        return tensor, tensor.numpy()

    registering(me, n, make)


def test_registered_tensors():
    pytest.importorskip("torch")
    host.run(2, registered_tensor)


@host.in_pes(1)
def test_registered_memory_of_the_gpu(me, n):
    y = shmem.to_device(own(me, 4))
    for theirs in (Foreign(y), y):
        registered = shmem.register(theirs)
        x = shmem.full(4, POISON)
        shmem.put(x, registered, me)
        shmem.quiet()
        assert x.numpy().tolist() == own(me, 4).tolist()
        shmem.unregister(registered)
        assert y.numpy().tolist() == own(me, 4).tolist()


def cuda_tensor(array):
    """A tensor on the GPU, whatever PyTorch was built for: with the address of `array`."""
    import torch

    address = array.__cuda_array_interface__["data"][0]

    class CudaTensor(torch.Tensor):
        @staticmethod
        def __new__(cls, dtype):
            return torch.Tensor._make_wrapper_subclass(cls, array.shape, dtype=dtype, device="cuda")

        @classmethod
        def __torch_dispatch__(cls, function, *_):
            raise NotImplementedError(function)

        def data_ptr(self):
            return address

    return CudaTensor(getattr(torch, array.dtype.name))


@host.job
def registered_small_floats(me, n):
    for name in ("float8_e4m3fn", "float8_e5m2", "bfloat16", "float32"):
        there = shmem.to_device(own(me, 4) % 9).numpy().astype(name)
        y = shmem.to_device(there)
        tensor = cuda_tensor(y)
        if name.startswith("float8"):  # what is asked of tensors must not be this
            with pytest.raises(KeyError):
                hasattr(tensor, "__cuda_array_interface__")
        registered = shmem.register(tensor)
        assert registered.dtype == there.dtype
        x = shmem.zeros(4, name)
        shmem.put(x, tensor, me)
        shmem.put(x[2:], registered[:2], me)
        shmem.quiet()
        assert x.numpy().tolist() == [*there[:2].tolist(), *there[:2].tolist()]
        shmem.unregister(tensor)


def test_registered_small_floats_of_the_gpu():
    pytest.importorskip("torch")
    host.run(1, registered_small_floats)


# --- the user's memory as symmetric memory


GRANULE = 2 << 20
SMALL_GRANULES = {"NVSHMEM_CUMEM_GRANULARITY": GRANULE}


def virtual(nbytes, handle_type="posix_fd", rdma=True):
    from cuda.core import Device, VirtualMemoryResource, VirtualMemoryResourceOptions

    options = VirtualMemoryResourceOptions(handle_type=handle_type, gpu_direct_rdma=rdma)
    return VirtualMemoryResource(Device(), options).allocate(nbytes)


class Theirs:
    """Elements of a buffer of cuda.core, as another library has them."""

    def __init__(self, buffer, dtype, start=0, n=None):
        dtype = np.dtype(dtype)
        n = buffer.size // dtype.itemsize - start if n is None else n
        self.buffer, self.address = buffer, int(buffer.handle) + start * dtype.itemsize
        self.dtype, self.shape = dtype, (n,)
        self.__cuda_array_interface__ = {
            "data": (self.address, False), "shape": (n,), "version": 3,
            "typestr": dtype.str if dtype.isbuiltin == 1 else f"|V{dtype.itemsize}",
        }  # fmt: skip

    def seen(self):
        return driver.view(self.address, self.shape, self.dtype)


@host.job
def symmetric_buffers(me, n):
    right, left = (me + 1) % n, (me - 1) % n
    used = shmem.heap_stats().used
    theirs = Theirs(virtual(2 * GRANULE), np.int64, n=1000)
    theirs.seen()[:] = own(me, 1000)
    a = shmem.register_symmetric(theirs)
    assert isinstance(a, shmem.SymmetricArray)
    assert (a.shape, a.dtype) == ((1000,), np.int64)
    assert a.__cuda_array_interface__["data"][0] != theirs.address
    assert (a.numpy() == own(me, 1000)).all()
    shmem.barrier_all()
    stats = shmem.heap_stats()
    assert (stats.used, stats.allocations[-1].nbytes) == (used, 8000)
    assert "test_backend_memory.py" in str(stats)
    shmem.put(a[4:], shmem.to_device(own(me, 3)), right)
    shmem.barrier_all()
    assert theirs.seen()[4:7].tolist() == own(left, 3).tolist()
    theirs.seen()[9] = 7 * me
    shmem.barrier_all()
    assert shmem.g(a[9:], left) == 7 * left
    assert (shmem.peer_array(a, left)[9] == 7 * left).all()
    shmem.reduce(shmem.TEAM_WORLD, a[20:22], a[:2], "sum")
    total = sum(1000 * pe for pe in range(n))
    assert theirs.seen()[20:22].tolist() == [total, total + n]
    for again in (theirs, a):
        with pytest.raises(ArgumentError, match=r"symmetric already|is device memory"):
            shmem.register_symmetric(again)
    with pytest.raises(ArgumentError, match="use unregister_symmetric"):
        shmem.free(a)
    shmem.unregister_symmetric(a)
    with pytest.raises(SymmetryError, match="used after unregister_symmetric"):
        a.numpy()
    assert theirs.seen()[4:7].tolist() == own(left, 3).tolist(), "its contents are kept"
    b = shmem.register_symmetric(theirs)
    shmem.put(b, shmem.to_device(own(me, 3)), right)
    shmem.barrier_all()
    assert theirs.seen()[:3].tolist() == own(left, 3).tolist()
    return theirs  # left to finalize


@pytest.mark.parametrize("n", SIZES)
def test_symmetric_buffers(n):
    host.run(n, ended_symmetric_buffers, EMULATION_DEVICES=4, **SMALL_GRANULES)


def ended_symmetric_buffers():
    theirs = symmetric_buffers.__wrapped__(*host.init())
    shmem.finalize()
    theirs.seen()[:] = 5  # it is ordinary memory again


@host.job
def symmetric_tensors(me, n):
    theirs = Theirs(virtual(GRANULE), "float8_e5m2", n=64)
    theirs.seen()[:] = 2
    a = shmem.register_symmetric(cuda_tensor(theirs))
    assert a.dtype == "float8_e5m2"
    shmem.p(a[3:], 4, (me + 1) % n)
    shmem.barrier_all()
    assert theirs.seen()[:5].astype(float).tolist() == [2, 2, 2, 4, 2]


def test_symmetric_tensors_of_8_bit_floats():
    pytest.importorskip("torch")
    host.run(2, symmetric_tensors, EMULATION_DEVICES=2, **SMALL_GRANULES)


@host.in_pes(2, EMULATION_DEVICES=2, **SMALL_GRANULES)
def test_buffers_that_nvshmem_does_not_take(me, n):
    from cuda.core import Device

    pool = Device().allocate(GRANULE, stream=Device().create_stream())
    large = virtual(2 * GRANULE)
    for wrong, says in (
        (np.zeros(GRANULE), "is in host memory: pass one on GPU"),
        (Theirs(pool, "i8"), "not allocated by CUDA's virtual memory .*VirtualMemoryResource"),
        (
            Theirs(large, "i8", start=1),
            rf"are bytes 8 to {2 * GRANULE} of an allocation of .*begin",
        ),
        (Theirs(large, "i8", n=0), "the buffer is empty"),
        (Theirs(virtual(GRANULE, rdma=False), "i8"), "gpuDirectRDMACapable=0, NVSHMEM's heap with"),
        (Theirs(virtual(GRANULE, "fabric"), "i8"), "allocated with handle type .*use the same"),
        (shmem.zeros(4), "is device memory of gpushmem's"),
    ):
        with pytest.raises(ArgumentError, match=f"register_symmetric: .*{says}"):
            shmem.register_symmetric(wrong)
    with pytest.raises(CollectiveMismatch, match="PE 1: register_symmetric of 8008 bytes"):
        shmem.register_symmetric(Theirs(large, "i8", n=1000 + me))
    shmem.unregister_symmetric(shmem.register_symmetric(Theirs(large, "i8")))


@host.in_pes(1)
def test_granules_of_the_heap(me, n):
    says = rf"an allocation of {GRANULE}: .* in multiples of 8388608 bytes, here 8388608; NVSHMEM"
    with pytest.raises(ArgumentError, match=says):
        shmem.register_symmetric(Theirs(virtual(GRANULE), "i8"))
    shmem.register_symmetric(Theirs(virtual(4 * GRANULE), "i8", n=10))


# --- memory of others


@host.in_pes(*SIZES)
def test_memory_of_other_pes(me, n):
    x = shmem.array(own(me, 12).reshape(3, 4))
    shmem.barrier_all()
    for pe in range(n):
        other = shmem.peer_array(x, pe)
        assert (other.numpy() == own(pe, 12).reshape(3, 4)).all()
        for index in (
            slice(1, 2), (slice(None), slice(None, None, 2)), slice(None, None, -1), slice(3, 3),
            (slice(None), slice(None, None, -3)),
        ):  # fmt: skip
            assert (other[index].numpy() == own(pe, 12).reshape(3, 4)[index]).all()
        assert shmem.peer_array(x[1:2], pe).numpy().tolist() == [own(pe, 12)[4:8].tolist()]
        assert shmem.peer_array(x[3:], pe).shape == (0, 4)
        with pytest.raises(ArgumentError, match="peer_array: the remote array is not contiguous"):
            shmem.peer_array(x[:, ::2], pe)
    shmem.barrier_all()
    right = (me + 1) % n
    shmem.peer_array(x, right)[:, ::-2][1] = 5000 + me
    shmem.barrier_all()
    want = own(me, 12).reshape(3, 4)
    want[1, ::-2] = 5000 + (me - 1) % n
    assert (x.numpy() == want).all()
    shmem.barrier_all()
    m = shmem.multicast_array(x, shmem.TEAM_WORLD)
    if me == n - 1:
        m[0, 1:3] = 7000 + me
        m[2, 3] = 1
    shmem.barrier_all()
    want[0, 1:3], want[2, 3] = 7000 + n - 1, 1
    assert (x.numpy() == want).all()
    shmem.barrier_all()
    if me == 0:
        m.copy_from(3)
    shmem.barrier_all()
    assert (x.numpy() == 3).all()
    assert f"{n} PEs" in repr(m)
    with pytest.raises(ArgumentError, match=f"peer_array: there is no PE {n}"):
        shmem.peer_array(x, n)
    with pytest.raises(SymmetryError, match="not on the symmetric heap"):
        shmem.peer_array(shmem.to_device([1]), me)
    shmem.barrier_all()
    shmem.free(x)
    with pytest.raises(SymmetryError, match="used after free"):
        other.numpy()


@host.in_pes(4, EMULATION_NODE_PES=2)
def test_pes_on_several_machines(me, n):
    x = shmem.array(own(me, 2))
    shmem.barrier_all()
    near, far = me // 2 * 2, (me // 2 * 2 + 2) % 4
    assert shmem.peer_array(x, near).numpy().tolist() == own(near, 2).tolist()
    with pytest.raises(SymmetryError, match=f"PE {far} cannot be reached by loads and stores"):
        shmem.peer_array(x, far)
    assert shmem.TEAM_SHARED.n_pes == 2
    assert shmem.g(x, far) == 1000 * far
    shmem.barrier_all()


# --- PEs behind a network, whose adapters know no more memory than they are told of


@host.in_pes(4, EMULATION_NODE_PES=2, EMULATION_DEVICES=4)
def test_device_arrays_are_sent_to_other_nodes(me, n):
    far = (me + 2) % n
    x = shmem.full(6, POISON)
    kept = [shmem.to_device(own(me, 6)) for _ in range(3)]
    shmem.put(x[:2], kept[0][2:4], far)
    shmem.put(x[2:4], kept[2][4:6], far, stream=shmem.stream())
    shmem.barrier_all()
    assert x.numpy().tolist() == [*own(far, 6)[2:6], POISON, POISON]
    large = shmem.device_array(40 << 20, np.uint8)  # more than the first block has
    shmem.get(kept[1], x, far)
    shmem.get(large[:48].view(np.int64), x, far)
    assert kept[1].numpy().tolist() == [*own(me, 6)[2:6], POISON, POISON]
    registered = shmem.register(kept[0])  # as programs for any backend do
    shmem.put(x[4:], registered[:2], far)
    shmem.barrier_all()
    assert x.numpy()[4:].tolist() == own(far, 6)[:2].tolist()
    shmem.unregister(registered)
    shmem.put(x[4:], kept[0][:2], far)


@host.in_pes(4, EMULATION_NODE_PES=2, EMULATION_DEVICES=4)
def test_memory_of_other_libraries_is_refused_over_a_network(me, n):
    from cuda.core import Device

    buffer = Device().allocate(48, stream=Device().create_stream())
    near, far = me ^ 1, (me + 2) % n

    class Theirs:
        __cuda_array_interface__ = {
            "data": (int(buffer.handle), False), "shape": (6,), "typestr": "<i8", "version": 3
        }  # fmt: skip

    x, theirs = shmem.zeros(6, np.int64), Theirs()
    shmem.put(x, theirs, near)
    for call in (lambda: shmem.put(x, theirs, far), lambda: shmem.get(theirs, x, far)):
        with pytest.raises(ArgumentError, match=rf"PE {far} is on another .*gpushmem.register\("):
            call()
    shmem.put(x[1:3], shmem.register(theirs)[1:3], far)
    shmem.barrier_all()
    shmem.unregister(theirs)


@host.in_pes(2, EMULATION_NODE_PES=1)
def test_registered_blocks_are_reused(me, n):
    """Blocks are used again, and more are taken only when these are full."""
    before = driver.memory_used(me)
    for _ in range(50):
        shmem.to_device(np.zeros(1 << 20, np.uint8))
    shmem.synchronize()
    used = driver.memory_used(me) - before
    assert used <= 32 << 20, used


# --- queue pairs


@host.in_pes(*SIZES)
def test_queue_pairs_are_nvshmems(me, n):
    first, more = shmem.qp_create(3), shmem.qp_create(1)
    assert (first.dtype, first.shape, more.shape) == (np.int32, (3,), (1,))
    numbers = [*first.numpy().tolist(), *more.numpy().tolist()]
    assert len({*numbers, shmem.QP_DEFAULT}) == 5
    if n > 1:
        with pytest.raises(CollectiveMismatch, match=r"qp_create\(1\)"):
            shmem.qp_create(1 + (me == 0))
