"""Tensors of PyTorch in symmetric memory, on the host and in a kernel."""

import nvshmem.core as nv
import nvshmem.core.interop.cupy
import nvshmem.core.interop.torch
import torch
from common import begin, rank, size
from numba import cuda
from nvshmem.core.device.numba import my_pe, n_pes, put, sync_all


@cuda.jit
def send(dst, src):
    put(dst, src, (my_pe() + 1) % n_pes())
    sync_all()


assert nvshmem.core.interop.torch.tensor is nv.tensor
device = begin()
stream = device.create_stream()
src = nv.tensor((4, 8), dtype=torch.float32)
dst = nv.tensor((4, 8), dtype=torch.float32)
src.fill_(1000 + rank)
nv.barrier_all(stream)
stream.sync()
send[1, 1, stream](dst, src)
stream.sync()
assert (dst == 1000 + (rank - 1) % size).all()
half = nv.tensor((16,), dtype=torch.bfloat16)
half.fill_(rank + 1)
total = nv.tensor((16,), dtype=torch.bfloat16)
nv.barrier_all(stream)
nv.reduce(nv.Teams.TEAM_WORLD, total, half, "sum", stream=stream)
stream.sync()
assert (total == size * (size + 1) / 2).all()
for pe in range(size):
    src[0, 0] = rank
    assert (nv.get_peer_tensor(src, pe)[1:] == 1000 + pe).all()
    assert nv.get_peer_tensor(src[:2], pe).shape == (2, 8)
    assert (nv.get_peer_tensor(src[:2], pe)[1] == 1000 + pe).all()
assert nv.bytetensor((10,)).dtype == torch.uint8
for each in (src, dst, half, total):
    nv.free_tensor(each)
nv.finalize()
print(f"{rank} done")
