"""A small model trained by accelerate's data parallelism: accelerated.py BACKEND.

Rank 0 prints a line of JSON: the backend, what accelerate reduces and gathers, and the losses.
"""

import json
import sys

import torch
import torch.distributed as dist
from accelerate import Accelerator


def main(backend):
    torch.set_num_threads(1)
    dist.init_process_group(backend)  # accelerate takes the group that there is
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.GELU(), torch.nn.Linear(32, 8))
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.5))
    generator = torch.Generator().manual_seed(accelerator.process_index)
    losses = []
    for _ in range(10):
        x = torch.randn(4, 8, generator=generator)
        loss = (model(x) - x).pow(2).mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(accelerator.reduce(loss.detach(), "mean").item())
    line = {
        "backend": dist.get_backend(), "model": type(model).__name__, "losses": losses,
        "gathered": accelerator.gather(torch.tensor([10 + accelerator.process_index])).tolist(),
    }  # fmt: skip
    if accelerator.is_main_process:
        print(json.dumps(line), flush=True)
    accelerator.wait_for_everyone()  # Gloo's threads may abort where the other rank has gone
    accelerator.end_training()  # it destroys the group


if __name__ == "__main__":
    main(*sys.argv[1:])
