"""A consumer waits for the step before the one whose data it uses."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def kernel(box, src, out, step_done):
    other = 1 - shmem.my_pe()
    for step in range(3):
        slot = box[4 * step : 4 * step + 4]
        shmem.put(slot, src, other)  # <- 1
        shmem.fence()
        shmem.signal_op(step_done, step + 1, shmem.SIGNAL_SET, other)
        shmem.signal_wait_until(step_done, shmem.CMP_GE, step + 1 if FIXED else step)
        out[step] = slot[0]  # <- 2


shmem.init()
src, box = shmem.ones(4, dtype="float32"), shmem.zeros(12, dtype="float32")
kernel[1, 1](box, src, shmem.zeros(3, dtype="float32"), shmem.zeros(1, dtype="uint64"))
shmem.finalize()
