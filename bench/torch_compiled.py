"""Layers that torch.compile makes of parallelize_module: `python bench/torch_compiled.py`.

A step of training of two linear layers, with biases, divided over 2 and 4 ranks of one thread each:
with the operators of gpushmem put in, and as PyTorch compiles it, on the same process group. Tokens
are whole on each rank (`tensor`), or divided, too (`sequence`). Both ways take turns, in series of
steps; the best series counts, as rank 0 measures it.
"""

import os
from importlib.metadata import version

import torch
import torch.distributed as dist
from harness import report, row
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch_collectives import by_turns, found_by

HIDDEN, INNER, TOKENS = 512, 2048, (512, 2048)


class MLP(torch.nn.Module):
    """Two layers that know nothing of ranks."""

    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(HIDDEN, INNER), torch.nn.Linear(INNER, HIDDEN)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


def step_of(fuse, divided, mesh, x):
    """A step of the compiled layers, as a function of nothing; it has been compiled."""
    os.environ["GPUSHMEM_TORCH_FUSE"] = fuse
    tokens, back = (
        ({"input_layouts": Shard(0)}, {"output_layouts": Shard(0)}) if divided else ({}, {})
    )
    layers = parallelize_module(
        MLP(), mesh, {"up": ColwiseParallel(**tokens), "down": RowwiseParallel(**back)}
    )
    compiled = torch.compile(layers, fullgraph=True, dynamic=False)

    def step():
        compiled(x).sum().backward()

    step()
    return step


def measure(n):
    mesh = dist.device_mesh.init_device_mesh("cpu", (n,))
    for kind in ("tensor", "sequence"):
        for tokens in TOKENS:
            torch._dynamo.reset()
            divided = kind == "sequence"
            x = torch.randn(tokens // n if divided else tokens, HIDDEN)
            ways = {fuse: step_of(fuse, divided, mesh, x) for fuse in "10"}
            yield kind, tokens, by_turns(ways)


def rows():
    os.environ["TORCHINDUCTOR_FX_GRAPH_CACHE"] = "0"  # of the ranks
    for n in (2, 4):
        for kind, tokens, best in found_by(measure, "gpushmem", n):
            what = f"{kind}, {tokens} x {HIDDEN} x {INNER} x {HIDDEN}, {n} ranks"
            yield row(what, best["1"], "unfused", best["0"], "speed >= 1", best["0"] / best["1"])


if __name__ == "__main__":
    report("torch_compiled", rows(), torch=version("torch"))
