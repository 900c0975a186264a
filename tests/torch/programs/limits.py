"""Compile sums of a small and of a large product, with one and with two of PyTorch's threads.

Print what was fused in each, as the pass logs it.
"""

import logging
import sys

import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as collectives

logging.basicConfig(stream=sys.stdout, format="%(message)s")
logging.getLogger("gpushmem.torch").setLevel("INFO")
dist.init_process_group("gpushmem")


@torch.compile(fullgraph=True, dynamic=False)
def summed(a, b):
    return collectives.all_reduce(a @ b, "sum", dist.group.WORLD)


b = torch.ones(512, 512)
for threads, rows in (1, 256), (1, 512), (2, 512):
    torch._dynamo.reset()
    torch.set_num_threads(threads)
    assert torch.equal(summed(torch.ones(rows, 512), b), torch.full((rows, 512), 512.0))
dist.destroy_process_group()
