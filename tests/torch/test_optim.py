"""An optimizer whose state is divided over the ranks: PyTorch's AdamW on one, to rounding."""

import pytest

import gpushmem as shmem
from tests.later import later
from tests.torch.test_group import world

torch = later("torch")
pytestmark = pytest.mark.timeout(400)  # kernels are compiled

SAMPLES, INPUTS, INNER = 6, 5, 9


def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(INPUTS, INNER), torch.nn.Tanh(), torch.nn.Linear(INNER, 1)
    )


def batch(step):
    x = torch.randn(SAMPLES, INPUTS, generator=torch.Generator().manual_seed(step))
    return x, x.sum(1, keepdim=True)


def groups(module, several):
    """Weights and biases, with a decay of their own; or all parameters."""
    if not several:
        return module.parameters()
    named = dict(module.named_parameters())
    biases = [p for name, p in named.items() if name.endswith("bias")]
    weights = [p for name, p in named.items() if name.endswith("weight")]
    return [{"params": weights}, {"params": biases, "weight_decay": 0.0, "lr": 0.1}]


def trained(module, optimizer, steps, mine, clip=None):
    """Take steps, with a rate that falls."""
    for step in steps:
        x, y = (each[mine] for each in batch(step))
        (optimizer, module)[step % 2].zero_grad()  # the module drops gradients
        ((module(x) - y) ** 2).mean().backward()
        if clip is not None:
            norm = torch.nn.utils.clip_grad_norm_(module.parameters(), clip)
        optimizer.step()
        for group in optimizer.param_groups:
            group["lr"] *= 0.9
    return None if clip is None else norm


@pytest.mark.parametrize("clip", [None, 0.5])
@pytest.mark.parametrize("cap", [None, 3e-5])  # MiB: 8 numbers
def test_steps_are_those_of_one_process(run_pes, tmp_path, clip, cap):
    """Also after a checkpoint; and, in buckets, with parameters that come with the next pass."""

    def body():
        with world(tmp_path) as me:
            from gpushmem.torch.optim import ZeroAdamW

            mine, rules, several = slice(me, None, 2), {"lr": 0.05}, clip is None
            options = {"clip": clip, "bucket_cap_mb": cap, **rules}
            alone, ours, again = model(), model(), model()
            later = [{"overlap_param_gather": each if cap else None} for each in (ours, again)]
            plain = torch.optim.AdamW(groups(alone, several), **rules)
            optimizer = ZeroAdamW(groups(ours, several), **options, **later[0])
            norm = trained(alone, plain, range(6), slice(None), clip)
            trained(ours, optimizer, range(4), mine)
            optimizer.gather()
            kept, weights = optimizer.state_dict(), ours.state_dict()
            again.load_state_dict(weights)
            optimizer.free()
            optimizer = ZeroAdamW(groups(again, several), **options, **later[1])
            optimizer.load_state_dict(kept)
            trained(again, optimizer, range(4, 6), mine)
            turns, seen = optimizer._turns, []
            for layer in again[::2]:
                layer.register_forward_hook(lambda *_: seen.append((turns._left, turns._there)))
            again(batch(0)[0])
            assert seen == ([(0, 1), (0, 0)] if cap else [(0, 0)] * 2)  # the last one is on its way
            found = sum(flat.plan.buckets for flat in optimizer._flats)
            assert found == (3 if cap else 1 + several)
            for wanted, got in zip(alone.parameters(), again.parameters(), strict=True):
                torch.testing.assert_close(got, wanted)
            if clip is not None:
                torch.testing.assert_close(optimizer.norm[0], norm)
                with pytest.raises(shmem.ArgumentError, match="there are several"):
                    ZeroAdamW(groups(model(), several=True), clip=clip)
            mixed = [torch.nn.Parameter(torch.ones(2, dtype=kind)) for kind in (
                torch.float32, torch.float16
            )]  # fmt: skip
            with pytest.raises(shmem.ArgumentError, match="one dtype and device"):
                ZeroAdamW(mixed)

    run_pes(body, 2, timeout=300)


@pytest.mark.parametrize("clip", [None, 0.5])
def test_buckets_begin_in_backward_in_one_order(run_pes, tmp_path, clip):
    """Though ranks get gradients in different orders, and some none; and only in the last pass."""

    def body():
        with world(tmp_path) as me:
            from gpushmem.torch.optim import ZeroAdamW

            torch.manual_seed(0)
            first = [torch.nn.Parameter(torch.randn(40)) for _ in range(4)]
            wanted = [torch.nn.Parameter(each.detach().clone()) for each in first]
            ours = ZeroAdamW(first, lr=0.1, clip=clip, bucket_cap_mb=1e-4)
            plain = torch.optim.AdamW(wanted, lr=0.1)
            begun, turns = [], ours._turns
            queue = turns.plans.queue
            turns.plans.queue = lambda call, *given: (begun.append(call), queue(call, *given))

            def loss(parameters, rank, step):
                """Of all but one, used in an order of the rank's own."""
                order = [k for k in range(4) if k != (rank + step) % 3]
                total = parameters[3].sum() * (step + 1)
                for k in order[:: 1 - 2 * rank]:
                    total = torch.sin(total + (parameters[k] * (k + 1 + rank)).sum())
                return total

            for step in range(4):
                with ours.no_sync():
                    loss(first, me, step).backward()
                assert not begun
                loss(first, me, step + 1).backward()
                assert len(begun) == 3 - (me + step + 1) % 3  # up to the one without a gradient
                ours.step()
                assert len(begun) == 4
                begun.clear()
                for rank in range(2):
                    (loss(wanted, rank, step) + loss(wanted, rank, step + 1)).backward()
                for each in wanted:
                    each.grad /= 2
                if clip is not None:
                    torch.nn.utils.clip_grad_norm_(wanted, clip)
                plain.step()
                ours.zero_grad()
                plain.zero_grad()
                for x, y in zip(first, wanted, strict=True):
                    torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-4)
            loss(first, 0, 0).backward()
            with pytest.raises(shmem.ArgumentError, match="let all calls of backward but the last"):
                loss(first, 0, 0).backward()

    run_pes(body, 2, timeout=300)


@pytest.mark.parametrize(
    ("products", "off", "rules"),
    [
        ("bfloat16", 0.04, {}),
        ("float32", 1e-4, {"nesterov": False, "adjust_lr_fn": "match_rms_adamw"}),
    ],
)
def test_muon_is_pytorchs(run_pes, tmp_path, monkeypatch, products, off, rules):
    """To rounding: of products to bfloat16 each is 1 to 2 % off; or PyTorch has them as float32."""
    if products == "float32":
        monkeypatch.setattr(torch.Tensor, "bfloat16", lambda x: x.clone())

    def body():
        with world(tmp_path) as me:
            from gpushmem.torch.optim import ZeroMuon

            torch.manual_seed(0)
            shapes = (16, 24), (24, 16), (1, 9), (40, 40)
            ours = [torch.nn.Parameter(torch.randn(shape)) for shape in shapes]
            wanted = [torch.nn.Parameter(each.detach().clone()) for each in ours]
            options = {"lr": 0.05, "weight_decay": 0.3, **rules}
            plain = torch.optim.Muon(wanted, **options)
            options |= {"bucket_cap_mb": 1e-3, "overlap_param_gather": torch.nn.ParameterList(ours)}
            optimizer = ZeroMuon(ours, product_dtype=products, **options)
            (flat,) = optimizer._flats
            assert flat.plan.buckets == 3
            assert set(flat.plan.owners) == {0, 1}

            def gradients(rank, step):
                torch.manual_seed(10 * step + rank)
                return [torch.randn(shape) for shape in shapes]

            for step in range(3):
                for each, grad in zip(ours, gradients(me, step), strict=True):
                    (each * grad).sum().backward()
                for each, *both in zip(wanted, gradients(0, step), gradients(1, step), strict=True):
                    each.grad = sum(both) / 2
                before = [each.detach().clone() for each in ours]
                optimizer.step()
                optimizer.gather()
                optimizer.zero_grad()
                plain.step()
                for x, y, old in zip(ours, wanted, before, strict=True):
                    moved = (x - old).norm()
                    assert (x - y).norm() < off * (step + 1) * moved, (step, x.shape)
            kept = optimizer.state_dict()
            assert kept["state"][0]["step"] == 3
            assert kept["param_groups"][0]["ns_steps"] == 5
            optimizer.load_state_dict(kept)
            optimizer.free()
            with pytest.raises(shmem.ArgumentError, match="must be a list of"):
                ZeroMuon([torch.nn.Parameter(torch.zeros(3))])

    run_pes(body, 2, timeout=300)
