"""Run the layer with PyTorch's tensors and operators, with gradients.

gpushmem run -n 4 examples/tutorial/6_torch.py
"""

import torch
import torch.distributed as dist

TOKENS, MODEL, HIDDEN = 64, 32, 96

dist.init_process_group("gpushmem")
me, n = dist.get_rank(), dist.get_world_size()
group = dist.group.WORLD.group_name
torch.manual_seed(1)  # the same numbers on all ranks
x, up, down = torch.randn(TOKENS, MODEL), torch.randn(MODEL, HIDDEN), torch.randn(HIDDEN, MODEL)
my_x = x.chunk(n)[me].requires_grad_()
my_up, my_down = up.chunk(n, dim=1)[me], down.chunk(n)[me]

inner = torch.ops.gpushmem.all_gather_gemm(my_x, my_up, group)
out = torch.ops.gpushmem.gemm_reduce_scatter(inner, my_down, group)
out.sum().backward()
assert torch.allclose(out, (x @ up @ down).chunk(n)[me], atol=1e-3)
assert torch.allclose(my_x.grad, (up @ down).sum(1).expand_as(my_x), atol=1e-3)
if me == 0:
    print(f"{n} ranks: the layer and its gradient are right")
dist.destroy_process_group()
