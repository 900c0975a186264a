"""Plans as operators of PyTorch: results, gradients, and what PyTorch asks of operators."""

import pytest

import gpushmem as shmem
from tests.torch.test_group import world

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")
pytestmark = pytest.mark.timeout(400)  # many kernels are compiled

ROWS, K, N, EPS = 12, 10, 14, 1e-5


def factors(n, dtype=torch.float32):
    """a and b of all ranks; a has rows along two axes."""
    made = torch.Generator().manual_seed(n)
    draw = lambda *shape: torch.randn(*shape, generator=made, dtype=torch.float64)  # noqa: E731
    return [
        (
            draw(ROWS * n, 2, K).to(dtype),
            draw(N, K).T.to(dtype) if rank % 2 else draw(K, N).to(dtype),
        )
        for rank in range(n)
    ]


def rms_norm(x, weight):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * weight


def cases(n, me, given):
    """For each operator: its arguments, and all its results, as one process computes them."""
    (a, b), every = given[me], [x for x, _ in given]
    total = sum(x @ y for x, y in given)
    rows, weight = torch.cat(every), torch.linspace(0.5, 2, K, dtype=a.dtype)
    residual = every[0].detach() * 2
    summed = residual + sum(every)
    return {
        "all_reduce": ((a,), (sum(every),)),
        "all_reduce_rms_norm": ((a, residual, weight, EPS), (rms_norm(summed, weight), summed)),
        "all_gather_gemm": ((a, b), (rows @ b,)),
        "all_gather_gemm_gathered": ((a, b), (rows @ b, rows)),
        "gemm_all_reduce": ((a, b), (total,)),
        "gemm_reduce_scatter": ((a, b), (total.chunk(n)[me],)),
    }


def as_tuple(results):
    return results if isinstance(results, tuple) else (results,)


@pytest.mark.parametrize(("n", "dtype"), [(1, torch.float32), (3, torch.float64)])
def test_results_are_pytorchs_and_so_are_out_forms(run_pes, tmp_path, n, dtype):
    def body():
        with world(tmp_path) as me:
            group = dist.group.WORLD.group_name
            for name, (args, wanted) in cases(n, me, factors(n, dtype)).items():
                packet = getattr(torch.ops.gpushmem, name)
                kept = [x.clone() for x in args if isinstance(x, torch.Tensor)]
                got = as_tuple(packet(*args, group))
                out = [torch.full_like(x, -1000 - me) for x in got]
                names = ("out",) if len(out) == 1 else ("out0", "out1")
                packet.out(*args, group, **dict(zip(names, out, strict=True)))
                for one, other, want in zip(got, out, wanted, strict=True):
                    torch.testing.assert_close(one, want, msg=lambda m, name=name: f"{name}: {m}")
                    assert torch.equal(one, other)
                for x, before in zip(args, kept, strict=False):
                    assert torch.equal(x, before)  # arguments stay as they are

    run_pes(n, body, timeout=300)


def test_what_pytorch_asks_of_operators(run_pes, tmp_path):
    def body():
        with world(tmp_path) as me:
            group, names = dist.group.WORLD.group_name, []
            for name, (args, _) in cases(2, me, factors(2)).items():
                given = [x.clone().requires_grad_() if hasattr(x, "clone") else x for x in args]
                found = torch.library.opcheck(
                    getattr(torch.ops.gpushmem, name).default, (*given, group)
                )
                assert set(found.values()) == {"SUCCESS"}, (name, found)
                names.append(name)
            experts = torch.tensor([[0, 1], [1, -1], [3, 2]], dtype=torch.int32)
            given = torch.randn(3, 8), experts, torch.rand(3, 2), torch.randn(2, 8, 6)
            torch.library.opcheck(
                torch.ops.gpushmem.moe.default, (*given, torch.randn(2, 6, 8), 4, 3, "silu", group)
            )
            return [*names, "moe"]

    names, _ = run_pes(2, body, timeout=300)
    from gpushmem.torch.operators import OPERATORS

    assert names == [each.schema.partition("(")[0] for each in OPERATORS]


SHARED = "all_reduce", "all_reduce_rms_norm", "gemm_all_reduce"  # all ranks have the same results


def loss(name, results, rank):
    """A number that depends on each element differently; of what ranks have alone, on the rank."""
    scale = 1 if name in SHARED else rank + 1
    each = (torch.linspace(-1, 2, x.numel(), dtype=x.dtype).view(x.shape) * x for x in results)
    return scale * sum(x.sum() for x in each)


def test_gradients_are_those_of_one_process(run_pes, tmp_path):
    n = 3

    def body():
        with world(tmp_path) as me:
            group, given = dist.group.WORLD.group_name, factors(n, torch.float64)
            leaves = [tuple(x.clone().requires_grad_() for x in pair) for pair in given]
            for name, (args, _) in cases(n, me, given).items():
                mine = [x.clone().requires_grad_() if hasattr(x, "clone") else x for x in args]
                loss(name, as_tuple(getattr(torch.ops.gpushmem, name)(*mine, group)), me).backward()
                whole = sum(
                    loss(name, cases(n, rank, leaves)[name][1], rank)
                    for rank in ([0] if name in SHARED else range(n))
                )
                wanted = torch.autograd.grad(whole, leaves[me], allow_unused=True)
                torch.testing.assert_close(
                    mine[0].grad, wanted[0], msg=lambda m, name=name: name + m
                )
                if "gemm" in name:
                    torch.testing.assert_close(
                        mine[1].grad, wanted[1], msg=lambda m, name=name: f"{name}, b: {m}"
                    )
                elif "norm" in name:
                    assert torch.equal(mine[1].grad, mine[0].grad)
                    assert torch.autograd.gradcheck(
                        lambda weight, mine=mine, name=name: loss(
                            name, torch.ops.gpushmem.all_reduce_rms_norm(
                                mine[0].detach(), mine[1].detach(), weight, EPS, group
                            ), 0,
                        ), mine[2],
                    )  # fmt: skip

    run_pes(n, body, timeout=300)


def test_groups_make_plans_by_themselves(run_pes, tmp_path):
    """Rows of a mesh make different calls; PyTorch is asked for nothing of the other ranks."""

    def body():
        with world(tmp_path) as me:
            mesh = dist.device_mesh.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
            tp, dp = mesh["tp"].get_group().group_name, mesh["dp"].get_group().group_name
            used = shmem.heap_stats().used
            for size in range(1, 70) if me < 2 else (5,):  # more plans than are kept
                x = torch.full((size,), 10.0**me)
                wanted = 11.0 if me < 2 else 1100.0
                assert (torch.ops.gpushmem.all_reduce(x, tp) == wanted).all()
            given = factors(4)
            a, b = given[me]
            got = torch.ops.gpushmem.gemm_all_reduce(a, b, dp)
            other, (c, d) = (me + 2) % 4, given[(me + 2) % 4]
            torch.testing.assert_close(got, a @ b + c @ d)
            assert other != me
            assert shmem.heap_stats().used == used

    run_pes(4, body, timeout=300)


def test_what_does_not_fit(run_pes, tmp_path):
    def body():
        with world(tmp_path):
            group, ops = dist.group.WORLD.group_name, torch.ops.gpushmem
            a, b = torch.ones(4, 3), torch.ones(3, 2)
            for call, said in (
                (
                    lambda: ops.gemm_all_reduce(a, a, group),
                    r"a has shape \(4, 3\) and torch.float32, b",
                ),
                (
                    lambda: ops.gemm_reduce_scatter(a[:3], b, group),
                    "first axis of 3 .* among 2 ranks",
                ),
                (
                    lambda: ops.gemm_all_reduce.out(a, b, group, out=torch.ones(2, 2)),
                    r"shape \(2, 2\) and torch.float32; it must be \(4, 2\)",
                ),
                (lambda: ops.gemm_all_reduce(a.int(), b.int(), group), "dtype is int32; it can be"),
            ):
                with pytest.raises(shmem.ArgumentError, match=said):
                    call()

    run_pes(2, body, timeout=300)
