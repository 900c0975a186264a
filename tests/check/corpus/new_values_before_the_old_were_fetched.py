"""A server counts a request as done when its answer is fetched, not when it has arrived."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def kernel(a, copy, ready, done):
    if shmem.my_pe() == 0:
        for step in range(1, 3):
            a[0] = step  # <- 2
            shmem.quiet()
            shmem.signal_op(ready, step, shmem.SIGNAL_SET, 1)
            shmem.signal_wait_until(done, shmem.CMP_GE, step)
    else:
        for step in range(1, 3):
            shmem.signal_wait_until(ready, shmem.CMP_GE, step)
            shmem.get_nbi(copy[step : step + 1], a, 0)  # <- 1
            if FIXED:
                shmem.quiet()
            shmem.signal_op(done, step, shmem.SIGNAL_SET, 0)
        shmem.quiet()


shmem.init()
a, copy = shmem.zeros(1, dtype="float32"), shmem.zeros(3, dtype="float32")
kernel[1, 1](a, copy, shmem.zeros(1, dtype="uint64"), shmem.zeros(1, dtype="uint64"))
shmem.finalize()
