"""Each PE puts an array to its right neighbour, and waits for the one from its left."""

import sys

import nvshmem.core
from common import begin, rank, size
from numba import cuda
from nvshmem.core.device.numba import my_pe, n_pes, put_signal_block, signal_wait

SET = nvshmem.core.SignalOp.SIGNAL_SET.value
GE = nvshmem.core.ComparisonType.CMP_GE.value
MODE = sys.argv[2]


@cuda.jit
def shift(dst, src, signal, wanted):
    right = (my_pe() + 1) % n_pes()
    put_signal_block(dst, src, signal, 1, SET, right)
    if cuda.threadIdx.x == 0:
        signal_wait(signal, GE, wanted)
    cuda.syncthreads()


device = begin()
stream = device.create_stream()
src = nvshmem.core.array((1024,), dtype="float32")
dst = nvshmem.core.array((1024,), dtype="float32")
signal = nvshmem.core.array((1,), dtype="uint64")
src[:] = rank + 1
dst[:] = -1
signal[:] = 0
nvshmem.core.barrier_all(stream)
target = dst[:1000] if MODE == "short" else dst
wanted = {"stuck": 2, "early": 0}.get(MODE, 1)
shift[1, 128, stream](target, src, signal, wanted)
stream.sync()
got = dst.get()
left = (rank - 1) % size + 1
if MODE == "ring":
    assert (got == left).all(), got
elif MODE == "short":
    assert (got[:1000] == left).all(), got
    assert (got[1000:] == -1).all(), got
for each in (src, dst, signal):
    nvshmem.core.free_array(each)
nvshmem.core.finalize()
print(f"{rank} done")
