"""Tensors of PyTorch in symmetric memory, on the host and in a kernel."""

import nvshmem.core as nv
import torch
from common import begin, rank, size
from numba import cuda
from nvshmem.core.device.numba import my_pe, n_pes, put, sync_all


@cuda.jit
def send(dst, src):
    put(dst, src, (my_pe() + 1) % n_pes())
    sync_all()


device = begin()
stream = device.create_stream()
src = nv.tensor((4, 8), dtype=torch.float32)
dst = nv.tensor((4, 8), dtype=torch.float32)
src.fill_(rank)
nv.barrier_all(stream)
stream.sync()
send[1, 1, stream](dst, src)
stream.sync()
assert (dst == (rank - 1) % size).all()
half = nv.tensor((16,), dtype=torch.bfloat16)
half.fill_(1.5)
total = nv.tensor((16,), dtype=torch.bfloat16)
nv.barrier_all(stream)
nv.reduce(nv.Teams.TEAM_WORLD, total, half, "sum", stream=stream)
stream.sync()
assert (total == 1.5 * size).all()
assert (nv.get_peer_tensor(src, 0) == 0).all()
assert nv.bytetensor((10,)).dtype == torch.uint8
for each in (src, dst, half, total):
    nv.free_tensor(each)
nv.finalize()
print(f"{rank} done")
