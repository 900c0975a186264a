"""A sender may be two messages ahead, but there is only one slot more than are being read."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def kernel(slots, src, out, sent, taken):
    depth = 3 if FIXED else 2
    for step in range(6):
        slot = 6 * (step % depth)
        shmem.fence()
        if shmem.my_pe() == 0:
            if step > 2:
                shmem.signal_wait_until(taken, shmem.CMP_GE, step - 2)
            shmem.put_signal(slots[slot:], src[step:], sent, step + 1, shmem.SIGNAL_SET, 1)  # <- 1
        else:
            shmem.signal_wait_until(sent, shmem.CMP_GE, step + 1)
            out[step] = slots[slot]  # <- 2
            shmem.signal_op(taken, step + 1, shmem.SIGNAL_SET, 0)


shmem.init()
src, slots = shmem.ones(6, dtype="float32"), shmem.zeros(18, dtype="float32")
sent, taken = shmem.zeros(1, dtype="uint64"), shmem.zeros(1, dtype="uint64")
kernel[1, 1](slots, src, shmem.zeros(6, dtype="float32"), sent, taken)
shmem.finalize()
