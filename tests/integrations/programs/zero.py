"""A small model of DeepSpeed, trained by ranks of torchrun: zero.py BACKEND.

It is trained by each stage of ZeRO, with a mixture of experts, and on gpushmem by its optimizer, of
which a step is one kernel. Rank 0 prints a line of JSON for each: the backend, and the losses.
"""

import json
import sys

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.moe.layer import MoE
from deepspeed.moe.utils import split_params_into_different_moe_groups_for_optimizer
from deepspeed.utils import groups

from gpushmem.torch.optim import ZeroAdamW

HIDDEN, BATCH, STEPS = 64, 8, 10
ADAM = {"type": "AdamW", "params": {"lr": 1e-2, "weight_decay": 0.0, "torch_adam": True}}
CASES = "zero1", "zero2", "zero3", "moe"


def perceptron():
    return torch.nn.Sequential(
        torch.nn.Linear(HIDDEN, 4 * HIDDEN), torch.nn.GELU(), torch.nn.Linear(4 * HIDDEN, HIDDEN)
    )


class Experts(torch.nn.Module):
    """Four experts, two on each rank; a token goes to two of them."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(HIDDEN, HIDDEN)
        self.experts = MoE(HIDDEN, perceptron(), num_experts=4, ep_size=2, k=2, min_capacity=64)

    def forward(self, x):
        return x + self.experts(self.first(x))[0]


def engine_of(case):
    """A model in DeepSpeed's engine."""
    torch.manual_seed(0)
    model = Experts() if case == "moe" else perceptron()
    config = {
        "train_micro_batch_size_per_gpu": BATCH, "gradient_clipping": 1.0,
        "zero_allow_untested_optimizer": True,
    }  # fmt: skip
    if case == "kernel":
        optimizer = ZeroAdamW(model.parameters(), lr=1e-2, weight_decay=0.0, clip=1.0)
        config |= {"gradient_clipping": 0.0, "zero_optimization": {"stage": 0}}
        engine = deepspeed.initialize(model=model, optimizer=optimizer, config=config)[0]
        engine.enable_backward_allreduce = False  # the kernel averages gradients
        return engine
    stage = int(case[-1]) if case.startswith("zero") else 0
    config |= {"optimizer": ADAM, "zero_optimization": {"stage": stage}}
    given = model.parameters()
    if case == "moe":
        given = split_params_into_different_moe_groups_for_optimizer(
            {"params": [*given], "name": "all"}
        )
    return deepspeed.initialize(model=model, model_parameters=given, config=config)[0]


def train(case):
    """The losses, each the mean of all ranks'."""
    engine, losses = engine_of(case), []
    generator = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(STEPS):
        x = torch.randn(BATCH, HIDDEN, generator=generator)
        loss = torch.nn.functional.mse_loss(engine(x), x)
        engine.backward(loss)
        engine.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        losses.append(mean.item() / dist.get_world_size())
    return losses


def main(backend):
    torch.set_num_threads(1)
    deepspeed.init_distributed(dist_backend=backend)
    for case in CASES if backend == "gloo" else (*CASES, "kernel"):
        line = {"case": case, "losses": train(case), "backend": dist.get_backend()}
        line["experts"] = sorted(map(dist.get_backend, groups._EXPERT_PARALLEL_GROUP.values()))
        if dist.get_rank() == 0:
            print("\n" + json.dumps(line), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
