"""Send arrays around a ring with many blocks: the same file on CPUs and on GPUs.

gpushmem run -n 4 examples/tutorial/7_on_gpus.py
"""

import numpy as np
from gpushmem.kernels import part_of
from numba import cuda

import gpushmem as shmem

SIZE, BLOCKS, THREADS = 100_000, 8, 128


@shmem.jit(collective=True)
def shift(dst, src, arrived):
    """Each block sends its part of `src`, and waits for the same part of `dst`."""
    b = cuda.blockIdx.x
    first, last = part_of(src.size, cuda.gridDim.x, b)
    right = (shmem.my_pe() + 1) % shmem.n_pes()
    shmem.put_signal_block(
        dst[first:last], src[first:last], arrived[b:], 1, shmem.SIGNAL_SET, right
    )
    if cuda.threadIdx.x == 0:
        shmem.signal_wait_until(arrived[b:], shmem.CMP_EQ, 1)
    cuda.syncthreads()


with shmem.session() as world:
    me, n = world.my_pe, world.n_pes
    src = shmem.array(np.arange(SIZE, dtype="float32") + 1000 * me)
    dst = shmem.empty(SIZE, dtype="float32")
    arrived = shmem.zeros(BLOCKS, dtype="uint64")
    shift[BLOCKS, THREADS](dst, src, arrived)
    got = dst.numpy()  # waits for the kernel, and copies to the host
    assert np.array_equal(got, np.arange(SIZE, dtype="float32") + 1000 * ((me - 1) % n))
    print(f"PE {me}: {SIZE} numbers from PE {(me - 1) % n}")
