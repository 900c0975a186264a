"""The ready kernels as they would be launched on 8 GPUs: plans on paper, of which nothing runs.

A plan is made for a team of 8 on the `null` backend, with the tuning of the nvshmem backend, and
its launches are noted. `CASES` has a line for each kernel, and a new kernel adds one.
"""

from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
from gpushmem.kernels.all_reduce import SUMMING

import gpushmem as shmem
from gpushmem import kernels as k
from gpushmem.backends import nvshmem
from gpushmem.ops.team import Team

N_PES = 8
HIDDEN = 8192  # numbers in a row of the norm, of halos and of grids
KIB, MIB = 1 << 10, 1 << 20
SIZES = 8 * KIB, 256 * KIB, 16 * MIB, 256 * MIB  # bytes of the largest array of a PE
HALF, SINGLE = "float16", "float32"
NOT_OURS = (  # on hosts
    "gemm", "gemm_batched", "put_signal", "on_stream", "signal_wait_until", "signal_op",
)  # fmt: skip


class OnPaper(Team):
    """A team of 8 whose memory can all be stored to."""

    __slots__ = ()
    my_pe, n_pes = 0, N_PES

    def translate_pe(self, pe, to):
        return pe


class Launch(NamedTuple):
    """A kernel, the Numba types of its arguments, and bytes of dynamic shared memory."""

    kernel: Any
    types: tuple[Any, ...]
    shared: int


@contextmanager
def on_paper(multiprocessors, capability):
    """In this block plans are made for GPUs, and their launches noted: a list of `Launch`."""
    from numba.cuda.typing.typeof import Purpose, typeof

    noted = []

    def launch_as(plan, shape, epochs, kernel, *args):
        if shape[0] < plan.blocks:
            return  # a kernel of one warp, which waits and tells
        given = [plan.on_device("x", a) if hasattr(a, "__dlpack__") else a for a in args]
        types = (typeof(arg, Purpose.argument) for arg in (*given, plan.team, epochs))
        noted.append(Launch(kernel, tuple(types), sum(shape[3:])))

    def nothing(*args, **options):
        """What the library and copy engines do."""

    def words(plan, count):
        return shmem.empty(count, "uint64")  # pages that nobody writes

    def tuning():
        return nvshmem.TUNING.on_gpus(multiprocessors, capability)

    shmem.init("null", heap_size="8G")
    try:
        with (
            mock.patch.object(k.Plan, "launch_as", launch_as),
            mock.patch.object(k.Plan, "_words", words),
            mock.patch.multiple(shmem, tuning=tuning, **dict.fromkeys(NOT_OURS, nothing)),
        ):
            yield noted
    finally:
        shmem.finalize()


@contextmanager
def made(name, dtype, nbytes=None, gpu=(132, 9)):
    """In this block: a case's plan for an array of so many bytes, and what it has launched.

    `gpu`: multiprocessors and major compute capability.
    """
    case = CASES[name]
    with on_paper(*gpu) as noted:
        yield case.make(dtype, nbytes or case.sizes[case.read]), noted


# --- cases


def empty(dtype, *shape):
    return shmem.device_array(shape, dtype)


def count(dtype, nbytes, parts=1):
    return max(1, nbytes // np.dtype(dtype).itemsize // parts)


def all_reduce(algorithm):
    def make(dtype, nbytes):
        size = count(dtype, nbytes)
        plan = k.AllReduce(size=size, dtype=dtype, algorithm=algorithm, team=OnPaper(0))
        plan(empty(dtype, size))
        return plan

    return make


def norm(algorithm):
    def make(dtype, nbytes):
        tokens = count(dtype, nbytes, HIDDEN)
        plan = k.AllReduceRMSNorm(
            tokens=tokens, hidden=HIDDEN, dtype=dtype, algorithm=algorithm, team=OnPaper(0)
        )
        x, residual, out = (empty(dtype, tokens, HIDDEN) for _ in range(3))
        plan(x, residual, empty(dtype, HIDDEN), out=out)
        return plan

    return make


def collective(which, of_x, of_out):
    def make(dtype, nbytes):
        size = count(dtype, nbytes, N_PES)
        plan = which(size=size, dtype=dtype, team=OnPaper(0))
        plan(empty(dtype, of_x * size), out=empty(dtype, of_out * size))
        return plan

    return make


def zero(clip, later=False):
    """Gradients of so many bytes."""

    def make(dtype, nbytes):
        size = count(dtype, nbytes)
        options = {"clip": clip, "overlap_param_gather": later}
        plan = k.ZeroAdam(size=size, dtype=dtype, team=OnPaper(0), **options)
        parameters = empty(dtype, size)
        plan(empty(dtype, size), parameters)
        if later:
            plan.gather(parameters)
        return plan

    return make


def muon(dtype, nbytes):
    """Matrices of a layer of a model with 4096 numbers a token, two layers."""
    shapes = [(4096, 4096)] * 16
    plan = k.ZeroMuon(shapes=shapes, dtype=dtype, product_dtype=dtype, team=OnPaper(0))
    plan(empty(dtype, plan.size), empty(dtype, plan.size))
    return plan


def broadcast(dtype, nbytes):
    plan = k.Broadcast(size=count(dtype, nbytes), dtype=dtype, team=OnPaper(0))
    plan(empty(dtype, plan.size))
    return plan


def rows(which, n_counts, of_out):
    def make(dtype, nbytes):
        many = count(dtype, nbytes, ROW * (1 if which is k.AllToAllV else N_PES))
        plan = which(rows=many, row=(ROW,), dtype=dtype, team=OnPaper(0))
        out, received = empty(dtype, of_out * many, ROW), empty("int64", N_PES)
        plan(empty(dtype, many, ROW), empty("int64", n_counts), out=out, received=received)
        return plan

    return make


ROW = 128
WIDE, NARROW = 8192, 3584  # a layer of 70 billion parameters over 8 PEs
SMALL = 1024, 512  # where a kernel multiplies
SHAPES = {8: SMALL, 4096: (WIDE, NARROW), 16384: (WIDE, NARROW)}  # by rows of the whole product


def product(which, rows, **options):
    gathers, scatters = which is k.AllGatherGemm, which is k.GemmReduceScatter
    n, inner = SHAPES[rows][::-1] if gathers else SHAPES[rows]
    part = rows // N_PES

    def make(dtype, nbytes):
        m = part if gathers or scatters else rows
        plan = which(m=m, n=n, k=inner, dtype=dtype, team=OnPaper(0), **options)
        a, b = empty(dtype, part if gathers else rows, inner), empty(dtype, inner, n)
        out = (shmem.empty if options else shmem.device_array)(
            (part if scatters else rows, n), dtype
        )
        more = {}
        if gathers and plan.method == "library":  # without it no kernel of the plan's moves data
            more["gathered"] = empty(dtype, rows, inner)
        plan(a, b, out=out, **more)
        return plan

    return make


MIXTURE = {"hidden": 7168, "experts": 256, "top_k": 8}  # of DeepSeek-V3
INNER = 2048


def dispatch(form, tokens, combines=False):
    def make(dtype, nbytes):
        plan = k.ExpertParallel(tokens=tokens, dtype=dtype, form=form, team=OnPaper(0), **MIXTURE)
        x, experts = empty(dtype, tokens, plan.hidden), empty("int32", tokens, plan.top_k)
        received = plan.dispatch(x, experts)
        if combines:
            weights = empty(SINGLE, tokens, plan.top_k)
            plan.combine(received.rows, weights, out=empty(dtype, tokens, plan.hidden))
        return plan

    return make


def mixture(tokens, method):
    def make(dtype, nbytes):
        plan = k.MoE(
            tokens=tokens, dtype=dtype, inner=INNER, method=method, team=OnPaper(0), **MIXTURE
        )
        x, experts = empty(dtype, tokens, plan.hidden), empty("int32", tokens, plan.top_k)
        weights, local = empty(SINGLE, tokens, plan.top_k), plan.local_experts
        w1, w2 = empty(dtype, local, plan.hidden, INNER), empty(dtype, local, INNER, plan.hidden)
        plan(x, experts, weights, w1, w2, out=empty(dtype, tokens, plan.hidden))
        return plan

    return make


ATTENTION = {"tokens": 4096, "heads": 32, "kv_heads": 8, "head_dim": 128}  # of Llama 3 8B


def attention(which, method="kernel"):
    def make(dtype, nbytes):
        plan = which(dtype=dtype, causal=True, method=method, team=OnPaper(0), **ATTENTION)
        tokens, heads, shared, size = ATTENTION.values()
        q, out, dout, dq = (empty(dtype, tokens, heads, size) for _ in range(4))
        keys, values, dk, dv = (empty(dtype, tokens, shared, size) for _ in range(4))
        lse = empty(SINGLE, heads, tokens)
        if which is k.RingAttention:
            plan(q, keys, values, out=out, lse=lse)
        else:
            plan(dout, q, keys, values, out, lse, dq=dq, dk=dk, dv=dv)
        return plan

    return make


def ulysses(back):
    def make(dtype, nbytes):
        tokens, heads, shared, size = ATTENTION.values()
        parts = heads, shared, shared
        plan = k.Ulysses(tokens=tokens, heads=parts, head_dim=size, dtype=dtype, team=OnPaper(0))
        qkv = empty(dtype, tokens, sum(parts), size)
        q, keys, values = (empty(dtype, N_PES * tokens, of // N_PES, size) for of in parts)
        cos, sin = (empty(SINGLE, tokens, size // 2) for _ in range(2))
        if back:
            plan.to_tokens(q, keys, values, out=qkv, cos=cos, sin=sin)
        else:
            plan.to_heads(qkv, q, keys, values, cos=cos, sin=sin)
        return plan

    return make


STAGE = {"rows": 2048, "hidden": 512, "layers": 2, "microbatches": 16}  # where a kernel multiplies


def layers(kind):
    def make(dtype, nbytes):
        plan = k.PipelinedLayers(dtype=dtype, kind=kind, team=OnPaper(0), **STAGE)
        hidden, batch = STAGE["hidden"], (STAGE["microbatches"], STAGE["rows"], STAGE["hidden"])
        weights, gradients = (empty(dtype, 1, STAGE["layers"], hidden, hidden) for _ in range(2))
        plan(weights, gradients=gradients, x=empty(dtype, *batch))
        return plan

    return make


def item(sends):
    """An item of so many bytes."""

    def make(dtype, nbytes):
        size = count(dtype, nbytes)
        plan = k.PipelineExchange(shape=(size,), dtype=dtype, team=OnPaper(0))
        if sends:
            plan.send_forward(empty(dtype, size))
        else:
            plan.recv_backward(out=empty(dtype, size))
        return plan

    return make


def halo(dtype, nbytes):
    rows = max(2, count(dtype, nbytes, HIDDEN))
    plan = k.HaloExchange(
        shape=(rows, HIDDEN), width=1, dtype=dtype, periodic=True, team=OnPaper(0)
    )
    plan(empty(dtype, rows, HIDDEN), out=empty(dtype, rows + 2, HIDDEN))
    return plan


def jacobi(dtype, nbytes):
    rows = max(2, count(dtype, nbytes, HIDDEN))
    shape = N_PES * rows, HIDDEN
    plan = k.Jacobi(shape=shape, grid=(N_PES, 1), dtype=dtype, periodic=True, team=OnPaper(0))
    plan(empty(dtype, rows + 2, HIDDEN + 2), 2)
    return plan


CACHE = {"page_size": 16, "kv_heads": 8, "head_dim": 128}  # of Llama 3 with 70 billion parameters
TOKENS = 8192


def pages_sent(prefill_tp, decode_tp, wire=None):
    def make(dtype, nbytes):
        pages, half = TOKENS // CACHE["page_size"], N_PES // 2
        plan = k.KVTransfer(
            layers=1, pages=pages, dtype=dtype, prefill=tuple(range(half)), prefill_tp=prefill_tp,
            decode=tuple(range(half, N_PES)), decode_tp=decode_tp, wire=wire, team=OnPaper(0),
            **CACHE,
        )  # fmt: skip
        plan._launch_one = lambda *_: None  # of one block, not what takes the time
        plan.start(0, np.arange(pages))
        plan.send(0, 0)
        return plan

    return make


def decoded(dtype, nbytes):
    pages, batch = TOKENS // CACHE["page_size"], 4
    plan = k.FlashDecode(
        batch=batch, heads=64, pages=batch * pages, most_pages=pages, dtype=dtype, team=OnPaper(0),
        **CACHE,
    )  # fmt: skip
    q, cache = empty(dtype, batch, 1, 64, 128), empty(dtype, batch * pages, 2, 16, 8, 128)
    tables, lengths = empty("int32", batch, pages), empty("int32", batch, 1)
    plan(q, cache, tables, lengths, out=empty(dtype, batch, 1, 64, 128))
    return plan


POINTS = 64, 128, 128  # of a PE, in a grid of three axes of which the first is cut: a ring


def stencil():
    """Of seven points, this PE's rows: `indptr` and `indices`."""
    points, rows = np.indices((*POINTS, 7), sparse=True), prod(POINTS)
    at = [np.broadcast_to(axis, (*POINTS, 7)).copy() for axis in points[:3]]
    for axis in range(3):
        for far, which in ((-1, 2 * axis), (1, 2 * axis + 1)):
            at[axis][..., which] += far
    shape = N_PES * POINTS[0], *POINTS[1:]
    indices = np.ravel_multi_index(tuple(at), shape, mode="wrap").reshape(-1)
    return SimpleNamespace(indptr=7 * np.arange(rows + 1), indices=indices)


def spmv(dtype, nbytes):
    matrix = stencil()
    matrix.data = np.ones(matrix.indices.size, dtype)
    plan = k.SpMV(matrix, team=OnPaper(0))
    plan(empty(dtype, plan.size), out=empty(dtype, plan.size))
    return plan


VERTICES, EDGES = 1 << 18, 16  # of a PE, and of each of them: of Graph500, smaller


def bfs(dtype, nbytes):
    ends = np.random.default_rng(0).integers(0, N_PES * VERTICES, VERTICES * EDGES)
    graph = SimpleNamespace(indptr=EDGES * np.arange(VERTICES + 1), indices=ends)
    plan, size = k.BFS(graph, team=OnPaper(0)), VERTICES
    plan(0, parents=empty("int64", size), distances=empty("int32", size))
    return plan


def fft(depth):
    def make(dtype, nbytes):
        size = count(dtype, nbytes, depth) * N_PES
        rows = 1 << (size.bit_length() - 1) // 2
        shape = (rows, size // rows, depth)[: 3 if depth > 1 else 2]
        plan = k.FFT(shape=shape, dtype=dtype, team=OnPaper(0))
        x, out = empty(dtype, len(plan.rows), *shape[1:]), (len(plan.columns), rows, *shape[2:])
        plan(x, out=empty(dtype, *out))
        return plan

    return make


BAGS = {"rows": 1 << 22, "dim": 128, "bags": 4096, "most": 32}  # of a table of recommendation


def bags(column_parts):
    def make(dtype, nbytes):
        plan = k.EmbeddingBags(dtype=dtype, column_parts=column_parts, team=OnPaper(0), **BAGS)
        table = empty(dtype, len(plan.rows), len(plan.columns))
        plan(table, empty("int32", plan.bags, plan.most), out=empty(dtype, plan.bags, plan.dim))
        return plan

    return make


@dataclass(frozen=True)
class Case:
    """`make(dtype, nbytes)` makes a plan and calls it; `sizes` are those that say something.

    `read`: the number of the size whose kernel is read.
    """

    make: Any
    sizes: tuple[Any, ...] = SIZES
    dtypes: tuple[str, ...] = (HALF, SINGLE)
    read: int = 0


ONE = (None,)
UP_TO = {"ll": 2, "ll128": 2, "ll128_two_shot": 3}  # so many of SIZES
CASES = {
    **{
        f"AllReduce {name}": Case(all_reduce(name), SIZES[: UP_TO.get(name, len(SIZES))])
        for name in SUMMING
    },
    **{f"AllReduceRMSNorm {name}": Case(norm(name)) for name in ("one_shot", "two_shot")},
    "AllReduceRMSNorm ll": Case(norm("ll"), SIZES[:2]),
    "AllGather": Case(collective(k.AllGather, 1, N_PES)),
    "AllToAll": Case(collective(k.AllToAll, N_PES, N_PES)),
    "ReduceScatter": Case(collective(k.ReduceScatter, N_PES, 1)),
    "ExclusiveScan": Case(collective(k.ExclusiveScan, 1, 1)),
    "AllGatherV": Case(rows(k.AllGatherV, 1, N_PES)),
    "AllToAllV": Case(rows(k.AllToAllV, N_PES, 1)),
    "Broadcast": Case(broadcast),
    "ZeroAdam": Case(zero(None)),
    "ZeroAdam clipped": Case(zero(1.0)),
    "ZeroAdam gathered later": Case(zero(None, later=True)),
    "ZeroMuon": Case(muon, ONE),
    **{
        f"{which.__name__} {rows}": Case(product(which, rows), ONE)
        for which in (k.AllGatherGemm, k.GemmReduceScatter, k.GemmAllReduce)
        for rows in SHAPES
    },
    "GemmAllReduce in place": Case(product(k.GemmAllReduce, 16384, in_place=True), ONE),
    "ExpertParallel low_latency": Case(dispatch("low_latency", 128), ONE),
    "ExpertParallel throughput": Case(dispatch("throughput", 1024), ONE),
    "ExpertParallel combine": Case(dispatch("low_latency", 128, combines=True), ONE),
    "MoE": Case(mixture(128, "kernel"), ONE),
    "MoE library": Case(mixture(128, "library"), ONE),
    "RingAttention": Case(attention(k.RingAttention), ONE),
    "RingAttention library": Case(attention(k.RingAttention, "library"), ONE, (HALF,)),
    "RingAttentionBackward": Case(attention(k.RingAttentionBackward), ONE),
    "Ulysses there": Case(ulysses(back=False), ONE),
    "Ulysses back": Case(ulysses(back=True), ONE),
    "KVTransfer pages": Case(pages_sent(4, 4), ONE),
    "KVTransfer regrouped": Case(pages_sent(4, 2), ONE),
    "KVTransfer 8 bits": Case(pages_sent(4, 4, "float8_e4m3"), ONE),
    "FlashDecode": Case(decoded, ONE),
    "PipelineExchange send": Case(item(sends=True)),
    "PipelineExchange receive": Case(item(sends=False)),
    "PipelinedLayers 1f1b": Case(layers("1f1b"), ONE),
    "PipelinedLayers zero_bubble": Case(layers("zero_bubble"), ONE),
    "FFT 2 axes": Case(fft(1), dtypes=("complex64",), read=-1),
    "FFT 3 axes": Case(fft(128), SIZES[2:], ("complex64",)),
    "SpMV": Case(spmv, ONE, (SINGLE, "float64")),
    "BFS": Case(bfs, ONE, ("int64",)),
    "EmbeddingBags rows": Case(bags(1), ONE),
    "EmbeddingBags columns": Case(bags(N_PES), ONE),
    "HaloExchange": Case(halo),
    "Jacobi": Case(jacobi),
}  # fmt: skip
