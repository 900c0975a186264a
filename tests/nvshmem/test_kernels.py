"""The ready kernels compile for GPUs, and link."""

import numpy as np
import pytest

pytest.importorskip("nvshmem")

from gpushmem.kernels import (
    AllGatherGemm,
    AllReduce,
    AllReduceRMSNorm,
    ExpertParallel,
    GemmAllReduce,
    GemmReduceScatter,
    Jacobi,
    MoE,
    route,
)
from gpushmem.kernels.all_reduce import SUMMING
from numba.cuda.typing.typeof import Purpose, typeof

import gpushmem as shmem
from gpushmem.backends.nvshmem import ahead, compiler
from gpushmem.jit import launched

ARCHS = ("sm_80", "sm_90", "sm_100")


def make(*shape, dtype="float32"):
    return shmem.to_device(np.zeros(shape, dtype))


def reduce_all():
    for algorithm in SUMMING:
        AllReduce(8, "float32", algorithm=algorithm)(make(8))
        given = [make(*shape, dtype="float16") for shape in ((2, 8), (2, 8), (8,), (2, 8))]
        AllReduceRMSNorm(2, 8, "float16", algorithm=algorithm)(*given)


def multiply():
    for dtype in ("float16", "float32"):
        square = [make(4, 4, dtype=dtype) for _ in range(3)]
        AllGatherGemm(4, 4, 4, dtype)(*square)
        for plan in (GemmReduceScatter, GemmAllReduce):
            plan(4, 4, 4, dtype)(*square)


def mix():
    experts, weights = make(4, 2, dtype="int32"), make(4, 2)
    route(make(4, 4), experts, weights)
    x, y = make(4, 8), make(4, 8)
    MoE(4, 8, 16, 4, 2, "float32")(x, experts, weights, make(4, 8, 16), make(4, 16, 8), y)
    for form in ("low_latency", "throughput"):
        for wire in (None, "int8"):
            plan = ExpertParallel(4, 8, 4, 2, "float32", form=form, wire=wire)
            received = plan.dispatch(x, experts)
            plan.combine(received.rows, weights, y)


def iterate():
    for shape in ((4, 4), (4, 4, 4)):
        plan = Jacobi(shape, dtype="float32")
        u = plan.scatter(np.zeros([n + 2 for n in shape], "float32"))
        plan(u, 2)
        plan.exchange(u)
        plan.residual(u)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "arch", [a if a == "sm_90" else pytest.param(a, marks=pytest.mark.slow) for a in ARCHS]
)
@pytest.mark.parametrize("family", [reduce_all, multiply, mix, iterate], ids=lambda f: f.__name__)
def test_the_kernels_of_a_family_link(alone, family, arch):
    """Each of them, of the types that it is launched with."""
    seen = {}

    def note(kernel, args):
        types = tuple(typeof(arg, Purpose.argument) for arg in args)
        seen[kernel.py_func, types] = kernel

    launched.append(note)
    try:
        family()
    finally:
        launched.remove(note)
    options = {"cache", "collective"}
    for (function, types), kernel in seen.items():
        kept = {k: v for k, v in kernel.options.items() if k not in options}
        made = compiler.compile_kernel(function, types, kept, compiler.Arch.of(arch))
        needs = ahead.needs_of(compiler.link(made).log, made.entry)
        assert 8 <= needs.registers <= 255
        assert needs.spill_stores == 0, f"{function.__name__} {types}"
        assert needs.shared <= 48 << 10
    assert len(seen) >= 3
