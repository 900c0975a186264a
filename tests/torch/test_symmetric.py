"""Tensors in symmetric memory, made with PyTorch's keywords."""

import numpy as np
import pytest

import gpushmem as shmem
from tests.later import later

torch = later("torch")
import gpushmem.torch as symmetric  # noqa: E402

pytestmark = pytest.mark.host_memory
# Those that PyTorch has, too, and symmetric arrays have.
DTYPES = (
    "bool", "uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16",
    "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2", "complex64", "complex128",
)  # fmt: skip


@shmem.jit
def send(dst, src, pe):
    shmem.put(dst, src, pe)


def test_sizes_and_dtypes_are_those_of_torch(alone):
    for make in ("empty", "zeros", "ones"):
        ours, theirs = getattr(symmetric, make), getattr(torch, make)
        for size in (
            ((),),
            (3,),
            (2, 3),
            ([2, 3],),
            (torch.Size([4, 1]),),
            ((5,),),
            (np.int64(2),),
        ):
            made, expected = ours(*size), theirs(*size)
            assert (made.shape, made.dtype) == (expected.shape, expected.dtype)
            assert make == "empty" or torch.equal(made, expected)
            symmetric.free(made)
    for value in (True, 3, 2.5, 1j, torch.tensor(4.0)):
        made, expected = symmetric.full((2,), value), torch.full((2,), value)
        assert (made.dtype, made.tolist()) == (expected.dtype, expected.tolist())
    for dtype in (getattr(torch, name) for name in DTYPES):
        a = symmetric.zeros(2, 3, dtype=dtype)
        for b in (
            symmetric.ones_like(a),
            symmetric.full_like(a, 1),
            symmetric.tensor([[1] * 3] * 2, dtype=dtype),
        ):
            assert (b.shape, b.dtype) == (a.shape, dtype)
            if dtype in (torch.bfloat16, torch.float8_e5m2):
                send[1, 1](a[0], b[1], 0)
                shmem.synchronize()
            shmem.put(a[0], b[1], 0)
            shmem.put(a[1, 1:], b[0, :2], 0)
            assert [complex(x) for x in a.flatten()] == [1, 1, 1, 0, 1, 1]
            a.view(torch.uint8).zero_()
            symmetric.free(b)
    at = torch.float32
    assert symmetric.empty_like(a, dtype=at).dtype == symmetric.zeros_like(a, dtype=at).dtype == at
    given = torch.arange(6).reshape(2, 3).T  # not contiguous
    made = symmetric.tensor(given)
    assert made.is_contiguous()
    assert torch.equal(made, given)


def test_peers_and_operations(run_pes):
    def body():
        shmem.init()
        me, n = shmem.my_pe(), shmem.n_pes()
        right, left = (me + 1) % n, (me - 1) % n
        t = symmetric.full((4, 8), 1000.0 * me, dtype=torch.bfloat16)
        assert symmetric.peer(t, left)[2].tolist() == [1000.0 * left] * 8
        shmem.barrier_all()
        symmetric.peer(t[1], right).fill_(8 + me)  # a store to the other PE, by PyTorch
        shmem.put(t[2, :4], t[0, :4], right)
        shmem.barrier_all()
        assert t[1].tolist() == [8.0 + left] * 8
        assert t[2].tolist() == [1000.0 * left] * 4 + [1000.0 * me] * 4
        offset = shmem.heap_stats().allocations[0].offset
        line = str(shmem.heap_stats().allocations[0].where)
        assert line.startswith("test_symmetric.py:")
        symmetric.free(t)
        assert shmem.empty(8).offset == offset
        shmem.finalize()

    run_pes(body, 3)


def test_gradients_are_summed_where_backward_puts_them(run_pes):
    """A leaf and its gradient in symmetric memory: autograd adds to the gradient in place."""

    def body():
        shmem.init()
        me, n = shmem.my_pe(), shmem.n_pes()
        w = symmetric.ones(4, requires_grad=True)
        w.grad = symmetric.zeros_like(w)
        assert w.is_leaf
        assert symmetric.peer(w, (me + 1) % n).requires_grad is False
        for step in range(3):
            w.grad.zero_()
            (w * (me + 1 + step)).sum().backward()
            shmem.reduce(shmem.TEAM_WORLD, w.grad, w.grad, "sum")
            assert w.grad.tolist() == [sum(pe + 1.0 + step for pe in range(n))] * 4
        with pytest.raises(shmem.ArgumentError, match=r"requires its gradient: pass .*detach\(\)"):
            shmem.put(w, w.detach(), me)
        shmem.put(w.detach(), w.grad, me)
        assert w.tolist() == w.grad.tolist()
        symmetric.free(w)
        with pytest.raises(shmem.SymmetryError, match="that was freed"):
            symmetric.peer(w, me)
        shmem.finalize()

    run_pes(body, 3)


def test_what_is_refused_allocates_nothing(alone):
    refused = {
        "no gradient: use": lambda: symmetric.ones(2, dtype=torch.int64, requires_grad=True),
        "empty: give a size": symmetric.empty,
        "must be one of PyTorch's, not 'float32'": lambda: symmetric.zeros(2, dtype="float32"),
        "backend cpu is on cpu, not on cuda:0": lambda: symmetric.empty(2, device="cuda:0"),
        "have no address": lambda: symmetric.empty(0, 3),
        "unexpected keyword argument 'pin'": lambda: symmetric.empty_like(torch.ones(2), pin=1),
        "zeros_like takes a tensor of PyTorch, not 3": lambda: symmetric.zeros_like(3),
        "peer takes a tensor of PyTorch": lambda: symmetric.peer(shmem.TEAM_WORLD, 0),
        "free takes a tensor of PyTorch": lambda: symmetric.free(np.zeros(3)),
        "integers of 0 or more": lambda: symmetric.ones(2, -1),
        "pools of GPU memory only, and the backend cpu has none": symmetric.get_mem_pool,
        "not a symmetric array": lambda: symmetric.free(torch.zeros(3)),
    }  # fmt: skip
    for said, call in refused.items():
        with pytest.raises(shmem.ShmemError, match=said):
            call()
    assert shmem.heap_stats().allocations == ()
    with pytest.raises(AttributeError, match="no attribute 'randn'"):
        symmetric.randn(3)
