"""A PE of a ring passes on, in each step, the part for which it waits only in the next one."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 4


@shmem.jit
def kernel(parts, flags):
    me, n = shmem.my_pe(), shmem.n_pes()
    right = (me + 1) % n
    for step in range(n - 1):
        k = (me + n - step) % n
        flag, part = flags[k:], parts[k : k + 1]
        if step > 0 and FIXED:
            shmem.signal_wait_until(flag, shmem.CMP_EQ, 1)
        shmem.put_signal(part, part, flag, 1, shmem.SIGNAL_SET, right)  # <- 1 <- 2
        if step > 0 and not FIXED:
            shmem.signal_wait_until(flag, shmem.CMP_EQ, 1)


shmem.init()
kernel[1, 1](shmem.ones(4, dtype="float32"), shmem.zeros(4, dtype="uint64"))
shmem.finalize()
