"""Pass an array to the right-hand neighbour, with a signal that says it is there.

gpushmem run -n 4 examples/ring.py
"""

from numba import cuda

import gpushmem as shmem


@shmem.jit
def shift(dst, src, signal):
    right = (shmem.my_pe() + 1) % shmem.n_pes()
    shmem.put_signal_block(dst, src, signal, 1, shmem.SIGNAL_SET, right)
    if cuda.threadIdx.x == 0:
        shmem.signal_wait_until(signal, shmem.CMP_EQ, 1)
    cuda.syncthreads()


with shmem.session() as world:
    src = shmem.full(1024, world.my_pe, dtype="float32")
    dst = shmem.empty(1024, dtype="float32")
    signal = shmem.zeros(1, dtype="uint64")
    shift[1, 128](dst, src, signal)
    shmem.barrier_all()
    print(f"PE {world.my_pe} got {dst.numpy()[0]:.0f}")
    assert (dst.numpy() == (world.my_pe - 1) % world.n_pes).all()
