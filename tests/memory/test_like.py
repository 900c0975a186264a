"""Tensors and NumPy arrays in symmetric memory: made with `like=`, and taken where arrays are."""

import ml_dtypes
import numpy as np
import pytest
from gpushmem.kernels import AllReduce

import gpushmem as shmem
from gpushmem.errors import ArgumentError, ShmemError, SymmetryError
from tests.later import later

torch = later("torch")
pytestmark = pytest.mark.host_memory
SHARED = [
    "bool", "uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16",
    "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2", "complex64", "complex128",
]  # fmt: skip


@shmem.jit
def send(dst, src, pe):
    shmem.put(dst, src, pe)


@shmem.jit
def double(x):
    for i in range(x.size):
        x[i] = x[i] + x[i]


@shmem.jit
def double_later(x, flag):
    shmem.signal_wait_until(flag, shmem.CMP_EQ, 1)
    for i in range(x.size):
        x[i] = x[i] + x[i]


def own(me, n):
    return [1000.0 * me + i for i in range(n)]


@pytest.mark.parametrize("n_pes", [1, 3, 8])
def test_tensors_are_taken_by_kernels_and_operations(run_pes, n_pes):
    def body():
        shmem.init()
        me, n = shmem.my_pe(), shmem.n_pes()
        right, left = (me + 1) % n, (me - 1) % n
        t = shmem.full((4, 8), -1, "float32", like=torch)
        assert isinstance(t, torch.Tensor)
        assert (t.shape, t.dtype, t.device.type) == ((4, 8), torch.float32, "cpu")
        src = shmem.array(own(me, 8), "float32", like=t)
        shmem.put(t[1], src, right)
        send[1, 1](t[2, 3:5], src[3:5], right)
        bound = send[1, 1].bind(t[3], src, right)
        bound()
        shmem.barrier_all()
        assert t[1].tolist() == t[3].tolist() == own(left, 8)
        assert t[2].tolist() == [-1] * 3 + own(left, 8)[3:5] + [-1] * 3
        assert t[0].tolist() == [-1] * 8
        there = shmem.peer_array(t[1:], left)
        assert isinstance(there, torch.Tensor)
        assert there[0].tolist() == own((left - 1) % n, 8)
        shmem.barrier_all()
        there[1, :3] = 7000 + me  # a store to the other PE
        double[1, 1](there[1, :2])  # and by a kernel that gets the tensor of its memory
        shmem.barrier_all()
        assert t[2, :3].tolist() == [2 * (7000 + right)] * 2 + [7000 + right]
        shmem.reduce(shmem.TEAM_WORLD, t[0], src, "sum")
        assert t[0].tolist() == [sum(own(pe, 8)[i] for pe in range(n)) for i in range(8)]
        word = shmem.zeros(1, "uint64", like=torch)
        shmem.put_signal(t[0], src, word, 5, shmem.SIGNAL_SET, right)
        shmem.signal_wait_until(word, shmem.CMP_EQ, 5)
        assert t[0].tolist() == own(left, 8)
        with AllReduce(size=8, dtype=torch.float32) as plan:
            plan(src)
            shmem.synchronize()
        assert src.tolist() == [sum(own(pe, 8)[i] for pe in range(n)) for i in range(8)]
        offset = shmem.heap_stats().allocations[0].offset
        shmem.free(t)
        assert shmem.empty(128, "u1").offset == offset
        shmem.finalize()

    run_pes(body, n_pes)


def test_kernels_get_the_memory_itself(run_pes):
    """They do not copy it, which would undo what peers have written, and do not wait."""

    def body():
        shmem.init()
        t, flag = shmem.ones(4, "int64", like=torch), shmem.zeros(1, "uint64")
        double_later[1, 1](t[:2], flag)  # returns at once
        t[3] = 9
        shmem.p(flag, 1, shmem.my_pe())
        shmem.synchronize()
        assert t.tolist() == [2, 2, 1, 9]
        x = np.asarray(shmem.array([1, 2, 3]))  # NumPy's views, too
        double[1, 1](x[::2])
        shmem.synchronize()
        assert x.tolist() == [2, 2, 6]
        shmem.finalize()

    run_pes(body, 2)


@pytest.mark.parametrize("name", SHARED)
def test_every_dtype_of_both(alone, name):
    dtype = np.dtype(getattr(ml_dtypes, name, name))
    for asked in (name, dtype, getattr(torch, name)):
        t = shmem.ones((2, 3), asked, like=torch)
        assert (t.dtype, t.shape) == (getattr(torch, name), (2, 3))
    assert [complex(x) for x in t.flatten()] == [1] * 6
    send[1, 1](t[0], shmem.zeros(3, dtype, like=torch), 0)
    shmem.synchronize()
    shmem.put(t[1, 1:], t[0, :2], 0)
    assert [complex(x) for x in t.flatten()] == [0, 0, 0, 1, 0, 0]
    shmem.free(t)


@pytest.mark.parametrize("like", [np, "torch", np.zeros(3), "tensor", None, "gpushmem"])
def test_like_is_a_library_or_an_array_of_it(alone, like):
    like = {"torch": torch, "tensor": torch.zeros(2)}.get(str(like), like)
    if isinstance(like, str):
        like = shmem.zeros(1)
    if like is None or isinstance(like, shmem.DeviceArray):
        kind = shmem.SymmetricArray
    else:
        kind = np.ndarray if like is np or isinstance(like, np.ndarray) else torch.Tensor
    made = [
        shmem.empty(3, "int32", like=like), shmem.zeros(3, "int32", like=like),
        shmem.ones(3, "int32", like=like), shmem.full(3, 5, "int32", like=like),
        shmem.array([1, 2, 3], "int32", like=like),
    ]  # fmt: skip
    assert all(isinstance(a, kind) for a in made)
    assert [[int(x) for x in a] for a in made[1:]] == [[0] * 3, [1] * 3, [5] * 3, [1, 2, 3]]
    assert len(shmem.heap_stats().allocations) >= 5
    for a in made:
        shmem.free(a)


def test_what_is_not_possible_is_said_before_anything_is_allocated(alone):
    for like in (3, "torch", torch.float32, np.float32, np.float32(3), object(), pytest, [1]):
        with pytest.raises(ArgumentError, match=r"zeros: like must be numpy, torch, cupy, or an"):
            shmem.zeros(3, like=like)
    for dtype in ("M8[s]", [("a", "i4"), ("b", "f8")]):
        with pytest.raises(ArgumentError, match=r"like=torch is not possible: it has no dtype"):
            shmem.empty(3, dtype, like=torch)
        assert shmem.empty(3, dtype, like=np).dtype == dtype
    with pytest.raises(ArgumentError, match=r"like=torch is not possible: .* have no address"):
        shmem.empty((0, 3), like=torch)
    assert len(shmem.heap_stats().allocations) == 2


def test_tensors_of_memory_that_is_gone():
    shmem.init()
    kept, t = shmem.zeros(4, like=torch), shmem.zeros(4, like=torch)
    part = t[1:]
    shmem.free(t)
    for use in (
        lambda: shmem.put(part, kept[:3], 0), lambda: shmem.put(kept, t, 0),
        lambda: shmem.get(t, kept, 0), lambda: double[1, 1](part), lambda: shmem.free(t),
        lambda: shmem.peer_array(t, 0), lambda: double[1, 1].bind(t),
        lambda: shmem.preload(double[1, 1], t), lambda: shmem.on_device(part),
    ):  # fmt: skip
        with pytest.raises(SymmetryError, match=r"Tensor .* is symmetric memory .* that was freed"):
            use()
    shmem.finalize()
    shmem.init()
    with pytest.raises(SymmetryError, match="that was freed"):
        shmem.put(kept, kept, 0)
    shmem.zeros(1)
    with pytest.raises(SymmetryError, match="that was freed"):  # and only partly used again
        shmem.put(kept, kept, 0)
    shmem.finalize()


def test_views_of_all_kinds(alone):
    t = shmem.array(np.arange(24.0).reshape(4, 6), like=torch)
    double[1, 1](t.T[2])
    double[1, 1](t[::2, 5])
    shmem.synchronize()
    assert t[:, 2].tolist() == [4, 16, 28, 40]
    assert t[:, 5].tolist() == [10, 11, 34, 23]
    with pytest.raises(ArgumentError, match="not contiguous"):
        shmem.put(t[:, 1], t[0, :4], 0)
    with pytest.raises(ShmemError, match=r"this is a view at offset 0x30 .*; pass that one"):
        shmem.free(t[1:])
    with pytest.raises(ArgumentError, match=r"on the symmetric heap already|already device memory"):
        shmem.register(t)
    none = shmem.zeros((0, 3), like=np)
    shmem.put(none, none, 0)
    shmem.free(none)
    scalar = shmem.full((), 5, like=torch)
    shmem.p(scalar, 6, 0)
    assert scalar.item() == 6


def test_a_tensor_of_its_own_memory_is_copied_as_before(alone):
    t, a = torch.ones(3), shmem.zeros(3, "float32")
    double[1, 1](t)
    assert t.tolist() == [2, 2, 2]
    with pytest.raises(ArgumentError, match="ordinary host memory"):
        shmem.put(a, t, 0)
    with pytest.raises(SymmetryError, match="not a symmetric array but Tensor"):
        shmem.free(t)
    with pytest.raises(SymmetryError, match="not on the symmetric heap"):
        shmem.put(t, a, 0)


def test_null_backend():
    with shmem.session("null"):
        t = shmem.zeros((2, 3), "bfloat16", like=torch)
        shmem.p(t[1, 1:], 3, 0)
        shmem.put(t[0], t[1], 0)
        assert t.tolist() == [[0, 3, 0], [0, 3, 0]]
        shmem.free(t)
        with pytest.raises(SymmetryError, match="that was freed"):
            shmem.put(t[0], t[1], 0)
