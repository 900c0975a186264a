"""Trains a small model in several ways: train.py BACKEND. It knows nothing of gpushmem.

Rank 0 prints a line with the losses for each: of one process, DDP, FSDP2, one process with
larger gradients and FSDP2 with those, tensor parallelism.
"""

import sys
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import checkpoint
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

dist.init_process_group(sys.argv[1])
rank, n = dist.get_rank(), dist.get_world_size()
torch.manual_seed(1)
X, Y = torch.randn(8, 16), torch.randn(8, 8)


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8))


def train(what, module, x, y, rate=1.0):
    optimizer = torch.optim.SGD(module.parameters(), 0.1 * rate)
    losses = []
    for _ in range(3):
        loss = ((module(x) - y) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean, op=dist.ReduceOp.AVG)
        losses.append(mean.item())
    if rank == 0:
        print(what, *(f"{loss:.6f}" for loss in losses))
    return module


def sharded(factor=None):
    """A model cut by FSDP2; gradients are sums over the ranks, divided by `factor` or their number.

    Another number than that of ranks is what FSDP2 asks for by PREMUL_SUM.
    """
    module = model()
    for layer in (module[0], module[2], module):
        fully_shard(layer, mesh=mesh)
        if factor is not None:
            layer.set_gradient_divide_factor(factor)
    return module


mesh = init_device_mesh("cpu", (n,))
mine = slice(rank, None, n)
train("one", model(), X, Y)
train("ddp", nn.parallel.DistributedDataParallel(model()), X[mine], Y[mine])
kept = train("fsdp", sharded(), X[mine], Y[mine])
train("by3", model(), X, Y, n / 3)
train("fsdp3", sharded(3.0), X[mine], Y[mine])
styles = {"0": ColwiseParallel(), "2": RowwiseParallel()}
train("tp", parallelize_module(model(), mesh, styles), X, Y)

folder = [tempfile.mkdtemp() if rank == 0 else None]
dist.broadcast_object_list(folder)
checkpoint.save({"model": kept.state_dict()}, checkpoint_id=folder[0])
again = sharded()
state = {"model": again.state_dict()}
checkpoint.load(state, checkpoint_id=folder[0])
pairs = zip(kept.parameters(), again.parameters(), strict=True)
same = all(torch.equal(a.full_tensor(), b.full_tensor()) for a, b in pairs)
shape = init_device_mesh("cpu", (n // 2, 2), mesh_dim_names=("rows", "columns"))
total = torch.tensor([rank])
dist.all_reduce(total, group=shape["columns"].get_group())
if rank == 0:
    print("checkpoint", same, "columns", total.item())
dist.destroy_process_group()
