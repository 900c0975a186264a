"""Plans that users write: what `Plan` checks and supplies, and that the names are public."""

import dataclasses
import inspect
from itertools import pairwise

import numpy as np
import pytest
from gpushmem.kernels import (
    AllReduce,
    AllReduceRMSNorm,
    Plan,
    complete,
    get_tile,
    part_of,
    put_tile,
)

import gpushmem as shmem
from gpushmem import kernels
from gpushmem.backends import nvshmem
from gpushmem.backends.registry import BACKENDS, about
from tests.pes import to_send, whole_warps


class Sized(Plan):
    """Annotations are classes here, not texts: this file does not postpone them."""

    def __init__(self, *, size: int, dtype=np.float32, label: str | None = None):
        super().__init__()
        self.size, self.dtype, self.label = size, dtype, label

    def __call__(self, x, *, out):
        self.expect("x", x, (self.size,), self.dtype)
        self.expect("out", out, (self.size,), self.dtype)


def test_a_plan_is_checked_by_its_annotations(alone):
    plan = Sized(size=np.int64(4), dtype="float64")
    assert (plan.size, plan.dtype) == (4, np.float64)
    x = shmem.device_array(4)
    plan(x, out=x)
    for make, said in (
        (lambda: Sized(size=4.5), "Sized: size must be an integer, not 4.5"),
        (
            lambda: Sized(size=4, dtype="no such"),
            "Sized: dtype: 'no such' is not a supported dtype",
        ),
        (lambda: Sized(size=4, label=3), "Sized: label must be a str, not 3"),
        (lambda: Sized(4), "Sized: too many positional arguments"),
        (lambda: Sized(), "Sized: missing a required .*argument: 'size'"),
        (lambda: plan(x, x), "takes 2 positional arguments but 3 were given"),
        (lambda: plan(x, out=x[:3]), r"Sized: out has shape \(3,\) .*, the plan is for \(4,\)"),
        (lambda: plan(7, out=x), "Sized: x must be a device array, not 7"),
    ):
        with pytest.raises(shmem.ArgumentError, match=said):
            make()


@pytest.mark.parametrize(
    "name", [n for n in kernels.__all__ if inspect.isclass(getattr(kernels, n))]
)
def test_plans_take_sizes_and_outputs_by_keyword_only(name):
    plan = getattr(kernels, name)
    made = inspect.signature(plan.__init__).parameters
    names = {"size", "tokens", "hidden", "experts", "m", "n", "k", "shape", "grid", "dtype"}
    assert all(made[n].kind is inspect.Parameter.KEYWORD_ONLY for n in names & set(made))
    for method in (vars(plan).get(n) for n in ("__call__", "combine", "dispatch")):
        called = inspect.signature(method).parameters if method else {}
        # Gradients take what went out before.
        names = ("stream",) if name.endswith("Backward") else ("out", "stream")
        outputs = [called[n] for n in names if n in called]
        assert all(param.kind is inspect.Parameter.KEYWORD_ONLY for param in outputs)


def test_arrays_are_given_as_kernels_take_them(alone):
    x, host = shmem.zeros(4), np.arange(8.0, dtype="f4")
    assert shmem.on_device(x) is x
    shmem.register(host)
    part = shmem.on_device(host[2:5])
    host[3] = 70
    assert part.numpy().tolist() == [2, 70, 4]
    with pytest.raises(shmem.ArgumentError, match=r"on_device: array .* is ordinary host memory"):
        shmem.on_device(np.zeros(3))
    with pytest.raises(shmem.ArgumentError, match="Mean: x must be a device array, not 3"):
        shmem.on_device(3, "Mean", "x")
    with AllReduce(size=8, dtype="float32") as plan:
        plan(host)
        shmem.synchronize()
        assert plan.on_device("x", host) is plan.on_device("x", host)


def test_calls_with_the_arrays_of_the_call_before(alone):
    host = np.arange(8.0, dtype="f4")
    with AllReduce(size=8, dtype="float32") as plan:
        shmem.register(host)
        plan(host)
        plan(host)
        shmem.unregister(host)
        with pytest.raises(shmem.ArgumentError, match=r"x .* is ordinary host memory"):
            plan(host)
        shmem.register(host)  # the same array once more, in another registration
        plan(host)
        x = shmem.zeros(8, "float32")
        plan(x)
        plan(x)
        shmem.free(x)
        with pytest.raises(shmem.SymmetryError, match="was used after free"):
            plan(x)
        shmem.unregister(host)


def test_arrays_that_are_registered_once_more(alone):
    """The norm's kernel gets arrays as they were given."""
    x, residual, weight, out = (np.ones(shape, "f4") for shape in ((2, 8), (2, 8), 8, (2, 8)))
    arrays = x, residual, weight, out
    with AllReduceRMSNorm(tokens=2, hidden=8, dtype="float32") as plan:
        for k in range(1, 4):
            for array in arrays:
                shmem.register(array)
            for _ in range(2):
                plan(x, residual, weight, out=out)
            for array in arrays:
                shmem.unregister(array)
            assert residual[0, 0] == 1 + 2 * k
            with pytest.raises(shmem.ArgumentError, match="is ordinary host memory"):
                plan(x, residual, weight, out=out)


@pytest.fixture
def unrecorded(monkeypatch):
    """Nothing is recorded, as it is with `--gpushmem-check`: launches are as usual."""
    monkeypatch.delenv("GPUSHMEM_CHECK", raising=False)


def test_the_backend_says_how_kernels_are_launched(alone, unrecorded):
    tuning = shmem.tuning()
    backend = shmem.zeros(1)._backend
    known = about(backend.name).tuning
    assert tuning == (known.on_gpus(*backend.gpu) if backend.on_gpu else known)
    plan = Plan()
    assert (plan.threads, plan.blocks) == (tuning.threads, tuning.blocks)
    for name in BACKENDS:
        found = about(name).tuning
        assert isinstance(found, shmem.Tuning)
        assert min(found.threads, found.blocks, found.piece_bytes, *found.tile) >= 1


def made(name, **sizes):
    with getattr(kernels, name)(dtype="float16", **sizes) as plan:
        return plan.threads, plan.blocks, plan.describe()


H100, B200 = (132, 9), (148, 10)
GEMM = {"m": 128, "n": 128, "k": 128}
SHAPES = (
    ("AllReduce", {"size": 5}, H100, (256, 1)),
    ("AllReduce", {"size": 3 << 12}, H100, (256, 6)),
    ("AllReduce", {"size": 1 << 20}, H100, (256, 66)),
    ("AllReduce", {"size": 1 << 20}, B200, (256, 148)),
    ("AllReduce", {"size": 1 << 20, "blocks": 7, "threads": 64}, H100, (64, 7)),
    ("AllReduceRMSNorm", {"tokens": 8, "hidden": 64}, H100, (256, 8)),
    ("AllReduceRMSNorm", {"tokens": 999, "hidden": 64}, H100, (256, 132)),
    ("GemmAllReduce", GEMM, H100, (128, 264)),
    ("GemmAllReduce", GEMM | {"threads": 256}, H100, (256, 132)),
    ("Jacobi", {"shape": (9, 9)}, (66, 9), (512, 66)),
    ("HaloExchange", {"shape": (9, 9), "width": 1}, B200, (256, 148)),
    ("ExpertParallel", {"tokens": 4, "hidden": 8, "experts": 4, "top_k": 2}, H100, (256, 66)),
)


@pytest.mark.cpu_backend
@pytest.mark.parametrize(("name", "sizes", "gpu", "shape"), SHAPES)
def test_launches_follow_from_sizes_and_the_gpu(alone, monkeypatch, name, sizes, gpu, shape):
    usual = dataclasses.replace(nvshmem.TUNING.on_gpus(*gpu), piece_bytes=256, tile=(8, 8))
    monkeypatch.setattr(shmem, "tuning", lambda: usual)
    *found, said = made(name, **sizes)
    assert tuple(found) == shape
    assert f" {shape[1]}, blocks of {shape[0]} threads: " in said


@pytest.mark.cpu_backend
def test_a_plan_says_what_it_does(alone, unrecorded):
    with AllReduce(size=1000, dtype="float32", algorithm="two_shot") as plan:
        assert plan.describe().splitlines() == [
            "AllReduce, team of 1",
            "  grid       1, blocks of 128 threads: without a GPU few are best",
            "  algorithm  two_shot",
            "  piece      1000",
            "  pieces     1",
            f"  memory     {2 * (8000 + 16)} bytes on the heap",
            "  sends      0 bytes in 0 messages",
        ]
    assert "blocks of 3 threads: as asked for" in made("AllReduce", size=1, blocks=2, threads=3)[2]
    assert Plan().describe().startswith("Plan, team of 1\n  grid ")


@pytest.mark.cpu_backend
def test_while_accesses_are_recorded_a_block_has_few_threads(
    alone, unrecorded, monkeypatch, tmp_path
):
    usual = shmem.tuning()
    monkeypatch.setenv("GPUSHMEM_CHECK", str(tmp_path))
    found = shmem.tuning()
    assert (usual.threads, found.threads, Plan().threads) == (128, 1, 1)
    assert (found.blocks, found.tile) == (usual.blocks, usual.tile)
    assert found.over_a_network().threads == 32


def test_parts_that_divide_work_run_on_the_host_too():
    for size in (0, 1, 31, 100, 1000):
        ends = [part_of(size, 3, k) for k in range(3)]
        assert ends[0][0] == 0
        assert ends[-1][1] == size
        assert all(a[1] == b[0] for a, b in pairwise(ends))


@shmem.jit
def both_ways(dst, back, src, pe):
    put_tile(dst, (1, 2), src, (2, 0), (2, 3), pe)
    get_tile(back, (0, 1), src, (1, 1), (3, 2), pe)
    complete()


def test_tiles_of_matrices_are_sent_and_fetched(run_pes):
    def body():
        shmem.init()
        me, n = shmem.my_pe(), shmem.n_pes()
        src = [1000 * pe + np.arange(20).reshape(4, 5) for pe in range(n)]
        mine, dst = shmem.array(src[me]), shmem.full((4, 5), -1, "int64")
        back = to_send(np.full((3, 4), -1))
        both_ways[1, whole_warps(8)](dst, back, mine, (me + 1) % n)
        shmem.synchronize()
        shmem.barrier_all()
        wanted, fetched = np.full((4, 5), -1), np.full((3, 4), -1)
        wanted[1:3, 2:5] = src[me - 1][2:4, 0:3]
        fetched[:, 1:3] = src[(me + 1) % n][1:4, 1:3]
        np.testing.assert_array_equal(dst.numpy(), wanted)
        np.testing.assert_array_equal(back.numpy(), fetched)
        shmem.finalize()

    run_pes(body, 3)
