"""Two buffers are used in turn, but the sender takes the wrong one of them."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def kernel(buffers, src, out, flag):
    other = 1 - shmem.my_pe()
    for step in range(1, 5):
        half = 4 * (step % 2)
        shmem.fence()
        slot = buffers[half if FIXED else 0 :]
        shmem.put_signal(slot, src[step : step + 4], flag, step, shmem.SIGNAL_SET, other)  # <- 1
        shmem.signal_wait_until(flag, shmem.CMP_GE, step)
        out[step] = slot[0]  # <- 2


shmem.init()
src, buffers, out = (shmem.ones(k, dtype="float32") for k in (8, 8, 5))
kernel[1, 1](buffers, src, out, shmem.zeros(1, dtype="uint64"))
shmem.finalize()
