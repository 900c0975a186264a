"""The ready kernels compile for GPUs, and link."""

import warnings
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("nvshmem")

from gpushmem.kernels import (
    BFS,
    FFT,
    AllGatherGemm,
    AllReduce,
    AllReduceRMSNorm,
    AllToAll,
    AllToAllV,
    Broadcast,
    EmbeddingBags,
    ExclusiveScan,
    ExpertParallel,
    FlashDecode,
    GemmAllReduce,
    GemmReduceScatter,
    HaloExchange,
    Jacobi,
    KVTransfer,
    MoE,
    PipelinedLayers,
    PipelineExchange,
    ReduceScatter,
    RingAttention,
    RingAttentionBackward,
    SampleSort,
    SpMV,
    Ulysses,
    ZeroAdam,
    ZeroMuon,
    route,
)
from gpushmem.kernels.all_reduce import SUMMING, WIRED
from numba.cuda.typing.typeof import Purpose, typeof

import gpushmem as shmem
from gpushmem.backends.cpu.backend import CpuBackend
from gpushmem.backends.nvshmem.compile import aot, compiler
from gpushmem.kernel import launch_hooks

ARCHS = ("sm_80", "sm_90", "sm_100")


def make(*shape, dtype="float32"):
    return shmem.to_device(np.zeros(shape, dtype))


def reduce_all(few):
    for algorithm in SUMMING:
        AllReduce(size=8, dtype="float32", algorithm=algorithm)(make(8))
    for algorithm in () if few else WIRED:
        plan = AllReduce(size=8, dtype="bfloat16", algorithm=algorithm, wire="float8_e4m3")
        plan(make(8, dtype="bfloat16"))
    x = make(4 * shmem.n_pes())
    for plan in () if few else (AllToAll, ReduceScatter):
        plan(size=4, dtype="float32")(x, out=make(4 * shmem.n_pes()))
    if not few:
        Broadcast(size=4, dtype="float32")(make(4))
        plan = ZeroMuon(shapes=[(4, 8)], dtype="bfloat16")
        plan(make(32, dtype="bfloat16"), make(32, dtype="bfloat16"))
    for clip in (1.0,) if few else (None, 1.0):
        plan = ZeroAdam(size=4, dtype="bfloat16", gradient_dtype="float32", clip=clip)
        plan(make(4), make(4, dtype="bfloat16"))
    for algorithm in ("two_shot",) if few else SUMMING:
        given = [make(*shape, dtype="float16") for shape in ((2, 8), (2, 8), (8,), (2, 8))]
        AllReduceRMSNorm(tokens=2, hidden=8, dtype="float16", algorithm=algorithm)(
            *given[:3], out=given[3]
        )


def multiply(few):
    for dtype in ("float16",) if few else ("float16", "float32"):
        a, b, out = (make(4, 4, dtype=dtype) for _ in range(3))
        for plan in (AllGatherGemm, GemmReduceScatter, GemmAllReduce):
            plan(m=4, n=4, k=4, dtype=dtype)(a, b, out=out)


def exchange(few):
    n = shmem.n_pes()
    counts, received = make(n, dtype="int64"), make(n, dtype="int64")
    for dtype in ("int32",) if few else ("int32", "bfloat16", "complex128"):
        plan = AllToAllV(rows=4, row=(2,), dtype=dtype)
        plan(make(4, 2, dtype=dtype), counts, out=make(9, 2, dtype=dtype), received=received)
    ExclusiveScan(size=4, dtype="float16")(make(4, dtype="float16"), out=make(4, dtype="float16"))
    for values in (None,) if few else (None, "float32"):
        plan = SampleSort(size=8, dtype="int32", values=values, method="kernel", threads=32)
        more = {"values": make(8), "out_values": make(plan.capacity)} if values else {}
        out = make(plan.capacity, dtype="int32")
        plan(make(8, dtype="int32"), out=out, received=received, **more)


def mix(few):
    experts, weights = make(4, 2, dtype="int32"), make(4, 2)
    route(make(4, 4), experts=experts, weights=weights)
    x, y = make(4, 8), make(4, 8)
    sizes = {"tokens": 4, "hidden": 8, "experts": 4, "top_k": 2, "dtype": "float32"}
    w1, w2 = make(4, 8, 16), make(4, 16, 8)
    MoE(**sizes, inner=16)(x, experts, weights, w1, w2, out=y)
    forms = [("low_latency", None), ("throughput", "int8")]
    for form, wire in forms if few else [*forms, ("low_latency", "int8"), ("throughput", None)]:
        plan = ExpertParallel(**sizes, form=form, wire=wire)
        received = plan.dispatch(x, experts)
        plan.combine(received.rows, weights, out=y)


def iterate(few):
    for shape in ((4, 4, 4),) if few else ((4, 4), (4, 4, 4)):
        plan = Jacobi(shape=shape, dtype="float32")
        u = plan.scatter(np.zeros([n + 2 for n in shape], "float32"))
        plan(u, 2)
        plan.exchange(u)
        plan.residual(u)
    plan = HaloExchange(shape=(4, 4), width=1, dtype="float32")
    plan(make(4, 4), out=make(6, 4))
    plan.accumulate(make(6, 4), out=make(4, 4))


def attend(few):
    sizes = {"tokens": 4, "heads": 2, "head_dim": 4, "causal": True}
    for dtype in ("float16",) if few else ("float16", "bfloat16", "float32"):
        q, k, v, out, dq, dk, dv = (make(4, 2, 4, dtype=dtype) for _ in range(7))
        lse = make(2, 4)
        RingAttention(**sizes, dtype=dtype)(q, k, v, out=out, lse=lse)
        plan = RingAttentionBackward(**sizes, dtype=dtype)
        plan(out, q, k, v, out, lse, dq=dq, dk=dk, dv=dv)
        n = shmem.n_pes()
        plan = Ulysses(tokens=4, heads=(n, n, n), head_dim=4, dtype=dtype)
        x, parts = make(4, 3 * n, 4, dtype=dtype), [make(4 * n, 1, 4, dtype=dtype)] * 3
        plan.to_heads(x, *parts)
        plan.to_tokens(*parts, out=x)


def serve(few):
    cache, lengths = {"page_size": 4, "kv_heads": 2, "head_dim": 16}, make(1, 1, dtype="int32")
    for dtype in ("bfloat16",) if few else ("bfloat16", "float32"):
        plan = FlashDecode(batch=1, heads=4, pages=2, dtype=dtype, **cache)
        q, pages = make(1, 1, 4, 16, dtype=dtype), make(2, 2, 4, 2, 16, dtype=dtype)
        plan(q, pages, make(1, 2, dtype="int32"), lengths, out=make(1, 1, 4, 16, dtype=dtype))
    for wire in (None,) if few else (None, "float8_e4m3"):
        plan = KVTransfer(
            layers=1, pages=2, dtype="bfloat16", prefill=(0,), decode=(0,), wire=wire, **cache
        )
        plan.receive(0, [1])
        plan.start(0, [0])
        plan.send(0, 0)
        plan.wait(0, 0)
        plan.abort(0)


def follow(few):
    sizes = {"rows": 4, "hidden": 8, "layers": 1, "microbatches": 2}
    for dtype in ("bfloat16",) if few else ("bfloat16", "float32"):
        weights, batch = make(1, 1, 8, 8, dtype=dtype), make(2, 4, 8, dtype=dtype)
        plan = PipelinedLayers(**sizes, dtype=dtype)
        plan(weights, gradients=weights, x=batch, target=batch, loss=make(2, 4))
        plan, x = PipelineExchange(shape=(4,), dtype=dtype, ring=True), make(4, dtype=dtype)
        plan.send_forward(x)
        plan.recv_forward(out=x)


def transform(few):
    for shape in ((4, 4),) if few else ((4, 4), (4, 4, 4)):
        for dtype in ("complex64",) if few else ("complex64", "complex128"):
            FFT(shape=shape, dtype=dtype)(make(*shape, dtype=dtype), out=make(*shape, dtype=dtype))
    for dtype in ("float32",) if few else ("float32", "float64"):
        data = {"indptr": np.arange(5), "indices": np.arange(4), "data": np.ones(4, dtype)}
        SpMV(SimpleNamespace(**data))(make(4, dtype=dtype), out=make(4, dtype=dtype))
    for dtype in ("float16",) if few else ("float16", "bfloat16", "float32", "float64"):
        plan = EmbeddingBags(rows=4, dim=4, bags=2, most=3, dtype=dtype)
        plan(make(4, 4, dtype=dtype), make(2, 3, dtype="int32"), out=make(2, 4, dtype=dtype))
    parents, distances = make(4, dtype="int64"), make(4, dtype="int32")
    BFS(SimpleNamespace(**data))(0, parents=parents, distances=distances)


FAMILIES = {
    f.__name__: f
    for f in (
        reduce_all,
        exchange,
        multiply,
        mix,
        iterate,
        attend,
        serve,
        follow,
        transform,
    )
}
FEW = "reduce_all", "multiply"  # outside the sweep
SPILLING = ("attend",)  # a product, and a softmax, beside what travels


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("arch", "largest"),
    [("sm_90", 1), *(pytest.param(a, None, marks=pytest.mark.sweep) for a in ARCHS)],
)
@pytest.mark.parametrize(
    "family",
    [pytest.param(f, marks=[pytest.mark.sweep] * (f not in FEW)) for f in FAMILIES],
)
def test_the_kernels_of_a_family_compile_and_link(elsewhere, family, arch, largest):
    """Most compile, of the types that they are launched with, and the largest links; or all."""
    compiled, found = elsewhere.submit(linked, family, arch, largest).result()
    assert compiled >= 3
    assert len(found) == (largest or compiled)
    for kernel, needs in found:
        assert 8 <= needs.registers <= 255
        assert needs.spill_stores == 0 or family in SPILLING, kernel
        assert needs.shared <= 48 << 10


def linked(family, arch, largest):
    """How many kernels a family launches on the cpu backend, and what some need on GPUs."""
    seen = {}

    def note(kernel, args):
        types = tuple(typeof(arg, Purpose.argument) for arg in args)
        seen[kernel.py_func, types] = kernel

    CpuBackend.prepare = lambda *_: lambda: None  # noted, not run: results are not looked at
    shmem.init("cpu", heap_size="64M")
    launch_hooks.append(note)
    FAMILIES[family](few=largest is not None)
    warnings.simplefilter("ignore")
    shmem.finalize()
    launch_hooks.remove(note)
    made = []
    for (function, types), kernel in seen.items():
        kept = {k: v for k, v in kernel.options.items() if k not in ("cache", "collective")}
        compiled = compiler.compile_kernel(function, types, kept, compiler.Arch.of(arch))
        made.append((f"{function.__name__} {types}", compiled))
    made.sort(key=lambda pair: -len(pair[1].parts[0].code))
    return len(made), [
        (name, aot.needs_of(compiler.link(compiled).log, compiled.entry))
        for name, compiled in made[:largest]
    ]
