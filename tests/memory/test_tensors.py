"""PyTorch's tensors are taken wherever NumPy's arrays are."""

import ml_dtypes
import numpy as np
import pytest
from gpushmem.kernels import AllReduce

import gpushmem as shmem
from gpushmem.artifacts.argument_packing import as_numpy
from gpushmem.errors import ArgumentError
from gpushmem.memory.tensors import GpuTensor, layout_of
from tests.later import later

torch = later("torch")
EXTENDED = ["bfloat16", "float8_e4m3fn", "float8_e5m2"]  # what NumPy itself has not


@shmem.jit
def double(x, y):
    for i in range(x.shape[0]):
        y[i] = x[i] + x[i]


def test_kernels_take_tensors_as_they_take_arrays(alone):
    x, y = torch.arange(4.0), torch.zeros(8)
    double[1, 1](x, y[::2])  # also one that is not contiguous
    assert y.tolist() == [0, 0, 2, 0, 4, 0, 6, 0]
    shmem.register(y)
    double[1, 1](x, y)
    assert y.tolist() == [0, 2, 4, 6, 4, 0, 6, 0]
    for name in EXTENDED:
        half = torch.ones(2).to(getattr(torch, name))
        double[1, 1](half, half)
        assert half.tolist() == [2, 2]
    with pytest.raises(ArgumentError, match="bind takes arrays of the device, not of the host"):
        double[1, 1].bind(x, y)


@pytest.mark.parametrize("dtype", ["float32", "int64", "complex64", "bool", *EXTENDED])
def test_values_of_tensors(alone, dtype):
    t = torch.tensor([[1, 0], [1, 1]]).to(getattr(torch, dtype))
    wanted = np.array([[1, 0], [1, 1]], getattr(ml_dtypes, dtype, dtype))
    a = shmem.zeros((2, 2), t.dtype)
    a.copy_from(t.T)
    b = shmem.device_array(4, t.dtype)
    b[:2] = t[0]
    for got, want in (
        (shmem.array(t), wanted), (shmem.to_device(t), wanted), (a, wanted.T),
        (b[:2], wanted[0]), (shmem.full(2, t[0, 0]), wanted[0, :1].repeat(2)),
    ):  # fmt: skip
        assert got.dtype == want.dtype
        assert got.numpy().tobytes() == want.tobytes()
    if dtype == "float32":
        assert ((a == t.T).all(), (t.T.numpy() == a).all()) == (True, True)


@pytest.mark.parametrize("dtype", EXTENDED)
def test_dlpack_of_dtypes_that_numpy_has_not(alone, dtype):
    for a in (shmem.zeros((2, 3), dtype), shmem.to_device(np.zeros((2, 3), "i1")).view(dtype)
              if "8_" in dtype else shmem.ones(3, dtype)):  # fmt: skip
        for t in (torch.from_dlpack(a), torch.from_dlpack(a[1:])):
            assert t.dtype == getattr(torch, dtype)
            t[...] = 2
        assert (a[1:].numpy().astype(float) == 2).all()
    capsule = a.__dlpack__()  # of before DLPack 1.0; nobody takes it
    assert "dltensor" in repr(capsule)


@pytest.mark.parametrize("name", ["float32", "float16", "int64", "bool", "complex64", *EXTENDED])
def test_dtypes_of_torch_are_taken_wherever_dtypes_are(alone, name):
    dtype, wanted = getattr(torch, name), np.dtype(name)
    for a in (
        shmem.zeros(3, dtype), shmem.ones(3, dtype), shmem.empty(3, dtype),
        shmem.full(3, 1, dtype), shmem.array([1, 0, 1], dtype), shmem.device_array(3, dtype),
        shmem.alloc_bytes(3 * wanted.itemsize).view(dtype),
    ):  # fmt: skip
        assert (a.dtype, a.shape) == (wanted, (3,))


def test_plans_take_dtypes_of_torch(alone):
    with AllReduce(size=8, dtype=torch.bfloat16) as plan:
        x = shmem.full(8, 1.5, torch.bfloat16)
        plan(x)
        assert x.numpy().tolist() == [1.5] * 8
        plan.expect("x", x, (8,), torch.bfloat16)
        plan.fits("x", torch.zeros(8, dtype=torch.bfloat16), (8,), "bfloat16")
        with pytest.raises(ArgumentError, match=r"and dtype bfloat16, the plan is for .* float32"):
            plan.expect("x", x, (8,), torch.float32)


@pytest.mark.parametrize("dtype", ["float32", *EXTENDED])
def test_the_layout_of_a_tensor_is_known_without_its_interfaces(dtype):
    """That of those on GPUs, whose interface has no 8-bit floats, is found in this way."""
    t = torch.arange(12.0).reshape(3, 4).to(getattr(torch, dtype))[1:, ::2]
    found = layout_of("register", t)
    assert (found.dtype, found.shape) == (dtype, (2, 2))
    assert found.astype(float).tolist() == [[4, 6], [8, 10]]
    seen = as_numpy(GpuTensor("put", t))
    t[0, 1] = 1
    for array in (found, seen):
        assert array[0, 1] == 1
        assert (array.dtype, array.shape, array.strides) == (found.dtype, t.shape, found.strides)


@pytest.mark.parametrize("name", EXTENDED)
def test_a_registered_tensor_is_memory_of_operations_and_plans(run_pes, name):
    dtype = getattr(torch, name)

    def body():
        shmem.init()
        me, n = shmem.my_pe(), shmem.n_pes()
        t, half = torch.full((64,), 10.0**me), torch.full((4,), 1.0 + me).to(dtype)
        shmem.register(t)
        handle = shmem.register(half)
        there = shmem.zeros(4, dtype)
        shmem.put(there, half, (me + 1) % n)
        shmem.barrier_all()
        assert there.numpy().tolist() == [1.0 + (me - 1) % n] * 4
        shmem.get(half[1:], there[1:], me)
        assert half.tolist() == [1.0 + me] + [1.0 + (me - 1) % n] * 3
        shmem.unregister(half)
        with pytest.raises(ArgumentError, match="after unregister"):
            handle.numpy()
        with AllReduce(size=32, dtype=torch.float32) as plan:
            for _ in range(2):
                plan(t[:32])
            shmem.synchronize()
            with pytest.raises(
                ArgumentError, match=r"x \(Tensor \(32,\) float32\) is ordinary host"
            ):
                plan(torch.zeros(32))
            with pytest.raises(
                ArgumentError, match=r"\(32,\) and dtype int32, the plan is for .*32"
            ):
                plan(shmem.zeros(32, "int32"))
            shmem.unregister(t)
            with pytest.raises(ArgumentError, match="ordinary host memory"):
                plan(t[:32])
        total = sum(10.0**pe for pe in range(n))
        assert t.tolist() == [n * total] * 32 + [10.0**me] * 32
        shmem.finalize()

    run_pes(body, 2)


def unlike(reason):
    """A tensor that shares no memory with NumPy."""
    t = torch.zeros(4, dtype=torch.complex64)
    return {
        "detach": torch.zeros(4, requires_grad=True), "to_dense": torch.eye(4).to_sparse(),
        "cpu": torch.zeros(4, device="meta"), "resolve_conj": t.conj(),
        "resolve_neg": torch.ops.aten._neg_view(torch.zeros(4)),
    }[reason]  # fmt: skip


@pytest.mark.parametrize("reason", ["detach", "to_dense", "cpu", "resolve_conj", "resolve_neg"])
def test_tensors_that_share_no_memory_say_what_to_pass(alone, reason):
    t, a = unlike(reason), shmem.zeros(4)
    says = rf"this tensor .* pass tensor\.{reason}\(\)"
    for use in (
        shmem.register, shmem.unregister, lambda t: double[1, 1](t, a),
        lambda t: shmem.put(a, t, 0),
    ):  # fmt: skip
        with pytest.raises(ArgumentError, match=says):
            use(t)
    if reason.startswith("resolve"):  # where a copy is made, that is done
        assert shmem.to_device(t).numpy().tolist() == t.tolist()
        return
    for use in (shmem.array, shmem.to_device, a.copy_from, lambda t: shmem.full(4, t)):
        with pytest.raises(ArgumentError, match=says):
            use(t)


def test_dtypes_that_only_torch_has(alone):
    with pytest.raises(
        TypeError, match=r"zeros: torch.qint8 is not a supported dtype; supported are bool, int8 to"
    ):
        shmem.zeros(3, torch.qint8)


def test_arguments_of_operations_that_may_be_host_memory(alone):
    flags = shmem.array(np.array([0, 5, 5], "int64"))
    found = torch.full((3,), -1)
    status = torch.tensor([0, 1, 0], dtype=torch.int32)
    n = shmem.test_some(flags, found, status, shmem.CMP_EQ, 5)
    assert (n, found.tolist()) == (1, [2, -1, -1])
    shmem.p(flags, torch.tensor(9), 0)
    assert flags[0] == 9
