"""Stages of a module on ranks, by schedules: losses and gradients are those of one process."""

import pytest

import gpushmem as shmem
from tests.later import later
from tests.torch.test_group import world

torch = later("torch")
dist = later("torch.distributed")
pytestmark = pytest.mark.timeout(400)  # kernels are compiled

WIDTH, BATCH = 6, 24


def made(k, last):
    """Stage k: the first takes integers, the last gives another shape; some weights are frozen."""
    torch.manual_seed(k)
    norm, size = torch.nn.LayerNorm(WIDTH), WIDTH - 1 if last else WIDTH
    first = torch.nn.Embedding(9, WIDTH) if k == 0 else torch.nn.Linear(WIDTH, WIDTH)
    second = torch.nn.Linear(WIDTH, size, bias=k % 2 == 0)
    second.weight.requires_grad_(k != 1)
    return torch.nn.Sequential(first, torch.nn.Tanh(), norm, second)


def batch(step):
    rng = torch.Generator().manual_seed(step)
    return torch.randint(9, (BATCH, 3), generator=rng), torch.randn(
        BATCH, 3, WIDTH - 1, generator=rng
    )


def loss_of(out, target):
    return ((out.float() - target) ** 2).mean()


def same_as_alone(n, rank, pipeline, chunks, microbatches, off):
    """Two steps with gradients that are added up."""
    mine = pipeline.stages
    count = n * chunks
    alone = torch.nn.Sequential(*(made(k, k == count - 1) for k in range(count)))
    if next(mine[0].parameters()).dtype != torch.float32:
        alone.to(next(mine[0].parameters()).dtype)
    for step in range(2):
        x, target = batch(step)
        parts = zip(x.chunk(microbatches), target.chunk(microbatches), strict=True)
        wanted = sum(loss_of(alone(a), b) for a, b in parts) / microbatches
        wanted.backward()
        ends = {"x": x} if rank == 0 else {}
        ends |= {"target": target, "loss_fn": loss_of} if rank == n - 1 else {}
        loss = pipeline.step(**ends)
        assert (loss is None) == (rank < n - 1)
        if loss is not None:
            torch.testing.assert_close(loss, wanted.detach(), rtol=off, atol=off)
    for c, stage in enumerate(mine):
        for ours, theirs in zip(stage.parameters(), alone[c * n + rank].parameters(), strict=True):
            assert (ours.grad is None) == (theirs.grad is None)
            if ours.grad is not None:
                torch.testing.assert_close(ours.grad, theirs.grad, rtol=off, atol=off)


CASES = [
    ("1f1b", 1, "float32"), ("zero_bubble", 1, "float32"), ("interleaved", 2, "float32"),
    ("gpipe", 1, "bfloat16"),
]  # fmt: skip


def trained(tmp_path, cases):
    with world(tmp_path) as rank:
        from gpushmem.torch.pipeline import Pipeline

        n = dist.get_world_size()
        for schedule, chunks, dtype in cases:
            microbatches, kind = 2 * n, getattr(torch, dtype)
            stages = [
                made(c * n + rank, c * n + rank == n * chunks - 1).to(kind) for c in range(chunks)
            ]
            shape = BATCH // microbatches, 3, WIDTH
            given = stages if chunks > 1 else stages[0]
            pipeline = Pipeline(
                given, shape=shape, microbatches=microbatches, schedule=schedule, dtype=kind
            )
            off = 1e-5 if dtype == "float32" else 5e-2
            same_as_alone(n, rank, pipeline, chunks, microbatches, off)
            pipeline.free()
            assert not any("forward" in vars(each) for each in stages[0].modules())


@pytest.mark.parametrize("n", [2, 3, *(pytest.param(n, marks=pytest.mark.sweep) for n in (1, 4))])
def test_losses_and_gradients_are_those_of_one_process(run_pes, tmp_path, n):
    run_pes(trained, n, tmp_path, CASES[:3] if n == 2 else CASES, timeout=300)


def test_in_groups(run_pes, tmp_path):
    """Two pipelines of two ranks each; and what cannot be."""

    def body():
        with world(tmp_path) as rank:
            from gpushmem.torch.pipeline import Pipeline

            groups = [dist.new_group([k, k + 2]) for k in (0, 1)]
            stage, group = rank // 2, groups[rank % 2]
            sizes = {"shape": (BATCH // 4, 3, WIDTH), "microbatches": 4, "group": group}
            pipeline = Pipeline(made(stage, stage == 1), **sizes)
            same_as_alone(2, stage, pipeline, 1, 4, 1e-5)
            x, target = batch(7)
            if stage == 0:  # which has nothing to learn
                pipeline.stages[0].requires_grad_(False)
                assert pipeline.step(x=x) is None
            else:
                loss = pipeline.step(target=target, loss_fn=loss_of)
                wanted = loss_of(torch.nn.Sequential(made(0, False), made(1, True))(x), target)
                torch.testing.assert_close(loss, wanted.detach())
            with pytest.raises(shmem.ArgumentError, match=r"x has 0 along|target has 23 along"):
                pipeline.step(target=batch(0)[1][:-1])
            if stage == 1:
                with pytest.raises(shmem.ArgumentError, match="needs loss_fn"):
                    pipeline.step(target=batch(0)[1])
            with pytest.raises(shmem.ArgumentError, match="the schedule is for"):
                Pipeline([made(0, False)] * 2, **sizes, schedule=pipeline.schedule)
            if stage == 0:
                with pytest.raises(shmem.ArgumentError, match=r"a stage gives \(3, 3, 6\)"):
                    pipeline.step(x=batch(0)[0][:12])
            pipeline.free()

    run_pes(body, 4, timeout=300)
