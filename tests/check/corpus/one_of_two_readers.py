"""A box has two readers, and is written again when one of them is done."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 3


@shmem.jit
def kernel(box, src, out, flag, done):
    me = shmem.my_pe()
    for step in range(1, 3):
        if me == 0:
            for pe in range(1, 3):
                shmem.put_signal(box, src, flag, step, shmem.SIGNAL_SET, pe)  # <- 1
            shmem.signal_wait_until(done, shmem.CMP_GE, 2 * step if FIXED else 2 * step - 1)
        else:
            shmem.signal_wait_until(flag, shmem.CMP_GE, step)  # <- 3
            out[step] = box[0]  # <- 2
            shmem.signal_op(done, 1, shmem.SIGNAL_ADD, 0)


shmem.init()
src, box = shmem.ones(8, dtype="float32"), shmem.zeros(8, dtype="float32")
flag, done = shmem.zeros(1, dtype="uint64"), shmem.zeros(1, dtype="uint64")
kernel[1, 1](box, src, shmem.zeros(3, dtype="float32"), flag, done)
shmem.finalize()
