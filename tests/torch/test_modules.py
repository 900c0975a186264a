"""Divided layers: with the weights of plain ones they give the same, and the same gradients."""

import pytest

import gpushmem as shmem
from tests.later import later
from tests.torch.test_group import world

torch = later("torch")
dist = later("torch.distributed")
pytestmark = pytest.mark.timeout(400)  # many kernels are compiled

SEQUENCE, BATCH, MODEL, INNER, VOCABULARY = 8, 3, 6, 12, 10


def plain_layers():
    torch.manual_seed(0)
    return {
        "embed": torch.nn.Embedding(VOCABULARY, MODEL),
        "up": torch.nn.Linear(MODEL, INNER),
        "down": torch.nn.Linear(INNER, MODEL),
    }


def in_one(layers, tokens):
    return layers["down"](torch.tanh(layers["up"](layers["embed"](tokens))))


def divided(plain, **options):
    from gpushmem.torch import modules

    scatter = options.get("sequence_parallel", False)
    made = {
        "embed": modules.VocabParallelEmbedding(
            VOCABULARY, MODEL, reduce_scatter_embeddings=scatter
        ),
        "up": modules.ColumnParallelLinear(MODEL, INNER, **options),
        "down": modules.RowParallelLinear(INNER, MODEL, **options),
    }
    for name, layer in made.items():
        layer.load_state_dict(plain[name].state_dict())
    return made


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_layers_are_plain_ones_divided(run_pes, tmp_path, sequence_parallel):
    def body():
        with world(tmp_path) as me:
            plain = plain_layers()
            tokens = torch.arange(SEQUENCE * BATCH).view(SEQUENCE, BATCH) * 7 % VOCABULARY
            ours = divided(plain, sequence_parallel=sequence_parallel)
            x = ours["embed"](tokens)
            y, none = ours["down"](torch.tanh(ours["up"](x)[0]))
            assert none is None
            wanted = in_one(plain, tokens)
            scale = torch.linspace(-1, 1, wanted.numel()).view(wanted.shape)
            own = (lambda t: t.chunk(2)[me]) if sequence_parallel else lambda t: t
            torch.testing.assert_close(y, own(wanted))
            (y * own(scale)).sum().backward()
            (wanted * scale).sum().backward()
            for name, layer in ours.items():
                for key, parameter in layer.named_parameters():
                    whole = dict(plain[name].named_parameters())[key].grad
                    axis = layer.axes.get(key)
                    part = whole if axis is None else whole.chunk(2, axis)[me]
                    grad = parameter.grad
                    if sequence_parallel and axis is None:  # as in Megatron: summed by the trainer
                        dist.all_reduce(grad)
                    torch.testing.assert_close(grad, part, msg=f"{name}.{key}")

    run_pes(body, 2, timeout=300)


def test_options_of_layers(run_pes, tmp_path):
    def body():
        with world(tmp_path) as me:
            from gpushmem.torch import modules

            plain, x = plain_layers(), torch.randn(4, MODEL)
            up = modules.ColumnParallelLinear(MODEL, INNER, gather_output=True, skip_bias_add=True)
            up.load_state_dict(plain["up"].state_dict())
            y, bias = up(x)
            assert torch.equal(bias, plain["up"].bias.chunk(2)[me])
            torch.testing.assert_close(y, x @ plain["up"].weight.T)
            down = modules.RowParallelLinear(INNER, MODEL, bias=False, input_is_parallel=False)
            down.load_state_dict({"weight": plain["down"].weight})
            whole = y.detach().requires_grad_()
            z, _ = down(whole)
            torch.testing.assert_close(z, whole @ plain["down"].weight.T)
            z.sum().backward()
            wanted = plain["down"].weight.sum(0).expand(4, INNER)
            torch.testing.assert_close(whole.grad, wanted)
            norm = modules.AllReduceRMSNorm(MODEL)
            out, total = norm((me + 1) * x, x)
            torch.testing.assert_close(total, 4 * x)
            torch.testing.assert_close(out, torch.nn.functional.rms_norm(4 * x, (MODEL,), eps=1e-6))
            every = torch.arange(24).view(2, 3, 4) * 7 % VOCABULARY  # of each rank 3 bags
            whole = torch.nn.EmbeddingBag(VOCABULARY, MODEL, mode="sum")
            bags = modules.ParallelEmbeddingBag(VOCABULARY, MODEL, mode="sum")
            bags.load_state_dict(whole.state_dict())
            out = bags(every[me])
            torch.testing.assert_close(out, whole(every[me]))
            (out * (me + 1)).sum().backward()
            (whole(every[0]) + 2 * whole(every[1])).sum().backward()
            torch.testing.assert_close(bags.weight.grad, whole.weight.grad.chunk(2)[me])
            with pytest.raises(shmem.ArgumentError, match="7, which cannot be divided among 2"):
                modules.ColumnParallelLinear(MODEL, 7)

    torch.manual_seed(2)
    run_pes(body, 2, timeout=300)


def test_experts_give_the_same_with_and_without_gradients(run_pes, tmp_path):
    n, experts, top_k = 3, 6, 2

    def body():
        with world(tmp_path) as me:
            from gpushmem.torch import modules

            torch.manual_seed(3)
            layer = modules.MoELayer(MODEL, INNER, experts, top_k)
            whole = [layer.router.weight.detach(), *(gathered(w) for w in (layer.w1, layer.w2))]
            whole = [w.clone().requires_grad_() for w in whole]
            tokens = [torch.randn(5 * rank, MODEL) for rank in range(n)]
            with torch.no_grad():
                quick = layer(tokens[me])
            loss, wanted = 0, []
            for x in tokens:
                weights, chosen = (x @ whole[0].T).softmax(-1).topk(top_k, -1)
                weights = weights / weights.sum(-1, keepdim=True)
                each = torch.nn.functional.silu(torch.einsum("th,ehf->etf", x, whole[1]))
                each = torch.einsum("etf,efd->ted", each, whole[2])
                wanted.append(
                    (
                        each.gather(1, chosen.unsqueeze(-1).expand(-1, -1, MODEL))
                        * weights.unsqueeze(-1)
                    ).sum(1)
                )
                loss = loss + wanted[-1].square().sum()
            got = layer(tokens[me])
            torch.testing.assert_close(got, wanted[me])
            assert torch.equal(quick, got)
            got.square().sum().backward()
            loss.backward()
            dist.all_reduce(layer.router.weight.grad)
            torch.testing.assert_close(layer.router.weight.grad, whole[0].grad)
            for own, of_all in ((layer.w1, whole[1]), (layer.w2, whole[2])):
                torch.testing.assert_close(own.grad, of_all.grad.chunk(n)[me])

    def gathered(part):
        parts = [torch.empty_like(part) for _ in range(n)]
        dist.all_gather(parts, part.detach())
        return torch.cat(parts)

    run_pes(body, n, timeout=300)
