"""A group of SGLang's: its backend, and what its collectives give."""

import json
import os

import torch
import torch.distributed as dist
from sglang.srt.distributed import parallel_state
from sglang.srt.platforms import current_platform

rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
backend = parallel_state.get_default_distributed_backend("cpu")
parallel_state.init_distributed_environment(
    world_size=ranks, rank=rank, local_rank=rank, backend=backend, distributed_init_method="env://"
)
group = parallel_state.init_model_parallel_group(
    [list(range(ranks))], rank, backend, group_name="tp"
)
x = torch.arange(4.0) + rank
said = {
    "platform": type(current_platform).__name__,
    "backend": dist.get_backend(group.device_group),
    "sum": group.all_reduce(x.clone()).tolist(),
    "all": group.all_gather(x[None], dim=0).tolist(),
}
if not rank:
    print(json.dumps(said), flush=True)
dist.barrier()
dist.destroy_process_group()
