"""Plans as operators of PyTorch: results, gradients, and what PyTorch asks of operators."""

import pytest

import gpushmem as shmem
from tests.later import later
from tests.torch.test_group import world

torch = later("torch")
dist = later("torch.distributed")
pytestmark = pytest.mark.timeout(400)  # many kernels are compiled

ROWS, K, N, EPS = 12, 10, 14, 1e-5


def factors(n, dtype=None):
    """a and b of all ranks; a has rows along two axes."""
    dtype = dtype or torch.float32
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


def surrounded(every, me, width, dim, periodic):
    """The part of a rank with its neighbours' edges."""

    def edge(k, start):
        inside = periodic or 0 <= k < len(every)
        return (every[k % len(every)] * inside).narrow(dim, start, width)

    last = every[me].shape[dim] - width
    return torch.cat([edge(me - 1, last), every[me], edge(me + 1, 0)], dim)


def added(every, me, width, dim, periodic):
    """The middle of a rank's part, and what others have of it."""
    rows = every[me].shape[dim] - 2 * width
    total = every[me].narrow(dim, width, rows).clone()
    for k, at, start in ((me - 1, 0, rows + width), (me + 1, rows - width, 0)):
        if periodic or 0 <= k < len(every):
            total.narrow(dim, at, width).add_(every[k % len(every)].narrow(dim, start, width))
    return total


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
        "halo_exchange": ((a, 2, -2, True), (surrounded(every, me, 2, 1, True),)),
        "halo_accumulate": ((a, 3, 0, False), (added(every, me, 3, 0, False),)),
    }


def as_tuple(results):
    return results if isinstance(results, tuple) else (results,)


@pytest.mark.parametrize(("n", "dtype", "nodes"), [(1, "float32", 1), (3, "float64", 3)])
def test_results_are_pytorchs_and_so_are_out_forms(run_pes, tmp_path, monkeypatch, n, dtype, nodes):
    """On several nodes what is sent must be registered: tensors of users are not."""
    monkeypatch.setenv("GPUSHMEM_NODES", str(nodes))

    def body():
        with world(tmp_path) as me:
            group = dist.group.WORLD.group_name
            given = factors(n, getattr(torch, dtype))
            for name, (args, wanted) in cases(n, me, given).items():
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

    run_pes(body, n, timeout=300)


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
            given = torch.randn(3, 8), torch.rand(3, 2), torch.randn(2, 8, 6), torch.randn(2, 6, 8)
            x, *others = (t.requires_grad_() for t in given)
            ops, sizes = torch.ops.gpushmem, (4, 3, "silu", group)
            torch.library.opcheck(ops.moe.default, (x, experts, *others, *sizes))
            given = torch.randn(3, 8), *(t.detach() for t in (x, experts, *others))
            torch.library.opcheck(ops.moe_backward.default, (*given, 4, "silu", group))
            torch.library.opcheck(ops.flash_decode.default, (*decoding(2, me)[0], group))
            return [*names, "moe", "moe_backward", "flash_decode"]

    names, _ = run_pes(body, 2, timeout=300)
    from gpushmem.torch import attention, embedding, exchange
    from gpushmem.torch.operators import OPERATORS

    tested = attention, embedding, exchange  # in files of their own
    asked = [each for module in tested for each in module.OPERATORS]
    wanted = [each.schema.partition("(")[0] for each in OPERATORS if each not in asked]
    assert sorted(names) == sorted(wanted)


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

    run_pes(body, n, timeout=300)


EXPERTS, HIDDEN, INNER, TOP_K = 5, 6, 7, 2


def tokens_of(n, dtype=None):
    """For each rank x, experts, weights; and w1, w2 of all. Of four ranks one has no token."""
    dtype = dtype or torch.float32
    made = torch.Generator().manual_seed(n)
    draw = lambda *shape: torch.randn(*shape, generator=made, dtype=torch.float64).to(dtype)  # noqa: E731
    parts = []
    for rank in range(n):
        t = (4, 9, 0, 1)[rank]
        experts = torch.rand(t, EXPERTS, generator=made).topk(TOP_K).indices
        parts.append((draw(t, HIDDEN), experts.masked_fill(experts == 1, -1), draw(t, TOP_K)))
    return parts, draw(EXPERTS, HIDDEN, INNER), draw(EXPERTS, INNER, HIDDEN)


def dense(x, experts, weights, w1, w2, activation):
    """All experts of all tokens, of which the chosen ones count."""
    inner = getattr(torch.nn.functional, activation)(torch.einsum("th,ehf->tef", x, w1))
    each = torch.einsum("tef,efd->ted", inner, w2)
    share = torch.zeros(len(x), EXPERTS, dtype=x.dtype)
    return torch.einsum("te,ted->td", share.scatter_add(
        1, experts.clamp(min=0), weights * (experts >= 0)
    ), each)  # fmt: skip


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize(("n", "activation"), [(1, "silu"), (3, "relu"), (4, "silu")])
def test_gradients_of_experts_are_those_of_one_process(run_pes, tmp_path, n, activation):
    def body():
        with world(tmp_path) as me:
            parts, *matrices = tokens_of(n)
            share = -(-EXPERTS // n)
            mine = slice(me * share, (me + 1) * share)
            leaves = [[t.clone().requires_grad_() for t in (x, w)] for x, _, w in parts]
            matrices = [t.requires_grad_() for t in matrices]
            x, weights = (t.detach().clone().requires_grad_() for t in leaves[me])
            own = [t.detach()[mine].clone().requires_grad_() for t in matrices]
            sizes = EXPERTS, 9, activation, dist.group.WORLD.group_name
            scales = [torch.linspace(-1, 2, x.numel()).view(x.shape) for x, _, _ in parts]
            whole = [
                dense(leaf, experts, weight, *matrices, activation)
                for (leaf, weight), (_, experts, _) in zip(leaves, parts, strict=True)
            ]
            sum((y * scale).sum() for y, scale in zip(whole, scales, strict=True)).backward()
            wanted = [t.grad for t in leaves[me]] + [t.grad[mine] for t in matrices]
            moe = torch.ops.gpushmem.moe
            for function in (moe, torch.compile(moe, backend="aot_eager", fullgraph=True)):
                y = function(x, parts[me][1], weights, *own, *sizes)
                torch.testing.assert_close(y, whole[me])
                got = torch.autograd.grad((y * scales[me]).sum(), (x, weights, *own))
                for one, want in zip(got, wanted, strict=True):
                    torch.testing.assert_close(one, want)

    run_pes(body, n, timeout=300)


def test_experts_that_the_kernel_has_no_memory_for(run_pes, tmp_path):
    def body():
        with world(tmp_path) as me:
            group, used = dist.group.WORLD.group_name, shmem.heap_stats().used
            for dtype in (torch.float64, torch.bfloat16):
                parts, *matrices = tokens_of(3, dtype)
                wanted = dense(*(t if t.dtype == torch.int64 else t.double() for t in (
                    *parts[me], *matrices)), "silu")  # fmt: skip
                own = [t[2 * me : 2 * me + 2] for t in matrices]
                for _ in range(2):
                    y = torch.ops.gpushmem.moe(*parts[me], *own, EXPERTS, 10**8, "silu", group)
                    assert y.dtype == dtype
                    error = (y.double() - wanted).norm() if len(y) else torch.tensor(0)
                    assert error <= (1e-12 if dtype == torch.float64 else 0.02) * wanted.norm()
            assert shmem.heap_stats().used == used  # no plan was made

    run_pes(body, 3, timeout=300)


def test_halos_in_compiled_programs_of_parts_of_different_lengths(run_pes, tmp_path):
    def body():
        with world(tmp_path) as me:
            group, ops = dist.group.WORLD.group_name, torch.ops.gpushmem
            whole = torch.arange(66.0).view(3, 22).requires_grad_()
            parts = whole.split([6, 9, 7], 1)
            filters = torch.tensor([[[0.5, -1.0, 2.0]]])

            def smooth(x):
                wide = ops.halo_exchange(x, 1, 1, False, group)
                return torch.nn.functional.conv1d(wide.unsqueeze(1), filters).squeeze(1)

            x = parts[me].detach().clone().requires_grad_()
            y = torch.compile(smooth, backend="aot_eager", fullgraph=True)(x)
            wanted = torch.nn.functional.conv1d(whole.unsqueeze(1), filters, padding=1).squeeze(1)
            torch.testing.assert_close(y, wanted.split([6, 9, 7], 1)[me])
            scale = torch.linspace(-1, 1, 66).view(3, 22)
            (y * scale.split([6, 9, 7], 1)[me]).sum().backward()
            (wanted * scale).sum().backward()
            torch.testing.assert_close(x.grad, whole.grad.split([6, 9, 7], 1)[me])
            with pytest.raises(shmem.ArgumentError, match="part has 2 rows along dim 1, a halo 3"):
                ops.halo_exchange(x[:, :2], 3, 1, False, group)
            with pytest.raises(shmem.ArgumentError, match="part has 1 rows along dim 1, a halo 2"):
                ops.halo_accumulate(x[:, :5], 2, 1, False, group)
            with pytest.raises(IndexError, match="out of range"):
                ops.halo_exchange(x, 1, 2, False, group)

    run_pes(body, 3, timeout=300)


def decoding(n, me):
    """Arguments of `flash_decode`, and what one process computes: keys are cut among ranks."""
    made = torch.Generator().manual_seed(7)
    draw = lambda *shape: torch.randn(*shape, generator=made)  # noqa: E731
    q, cache = draw(2, 3, 4, 8), draw(n, 6, 2, 5, 2, 8)
    tables = torch.tensor([[4, 0, 2], [1, 3, 5]], dtype=torch.int32)
    lengths = torch.tensor([[9, 10, 11], [0, 3, 15]], dtype=torch.int32)  # of each rank's keys
    made = []
    for b in range(2):
        k, v = cache[:, tables[b]].unbind(2)
        k, v = (x.reshape(n * 15, 2, 8).repeat_interleave(2, 1) for x in (k, v))
        seen = (torch.arange(15) < lengths[b][:, None]).repeat(1, n)
        scores = torch.einsum("qhd,khd->hqk", q[b], k) * 0.5
        weights = scores.masked_fill(~seen, float("-inf")).softmax(-1).nan_to_num()
        made.append(torch.einsum("hqk,khd->qhd", weights, v))
    return (q, cache[me].clone(), tables, lengths, 0.5, False, False), torch.stack(made)


def test_decoding_is_pytorchs(run_pes, tmp_path):
    def body():
        with world(tmp_path) as me:
            group, ops = dist.group.WORLD.group_name, torch.ops.gpushmem
            args, wanted = decoding(2, me)
            torch.testing.assert_close(ops.flash_decode(*args, group), wanted)
            q, cache, tables, lengths, scale, *_ = args
            apart = cache.transpose(0, 1).contiguous()
            got = ops.flash_decode(q, apart, tables.long(), lengths, scale, True, True, group)
            torch.testing.assert_close(got, wanted.chunk(2, 2)[me])
            with pytest.raises(shmem.ArgumentError, match="1 heads of keys cannot be divided"):
                ops.flash_decode(q, cache[..., :1, :], tables, lengths, 1.0, False, True, group)

    run_pes(body, 2, timeout=300)


def test_pages_of_tensors_travel_while_layers_are_computed(run_pes, tmp_path):
    def body():
        from gpushmem.torch.kv import KVTransfer

        with world(tmp_path) as me:
            kv = KVTransfer(
                layers=2, pages=4, page_size=2, kv_heads=2, head_dim=4, dtype=torch.bfloat16,
                prefill=(0, 1), prefill_tp=2, decode=(2,), group=dist.group.WORLD.group_name,
            )  # fmt: skip
            whole = torch.arange(2 * 4 * 2 * 2 * 2 * 4).view(2, 4, 2, 2, 2, 4).bfloat16()
            if me == 2:
                kv.receive(5, torch.tensor([3, 1]))
            else:
                kv.start(5, [0, 2])
            for layer in range(2):
                if me == 2:
                    kv.wait(5, layer)
                    assert torch.equal(kv.cache[layer][[3, 1]], whole[layer][[0, 2]])
                else:
                    own = whole[layer, ..., me : me + 1, :].contiguous()
                    kv.cache[layer].copy_(own)
                    kv.send(5, layer, cache=own if layer else None)
            while not kv.finished(5):
                pass
            kv.free()

    run_pes(body, 3, timeout=300)


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

    run_pes(body, 4, timeout=300)


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

    run_pes(body, 2, timeout=300)
