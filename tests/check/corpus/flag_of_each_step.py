"""Each step has a flag of its own, which the host allocates or clears, and lacks the fence."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def exchange(dst, src, flag):
    other = 1 - shmem.my_pe()
    shmem.put(dst, src, other)  # <- 1
    if FIXED:
        shmem.fence()
    shmem.signal_op(flag, 1, shmem.SIGNAL_SET, other)
    shmem.signal_wait_until(flag, shmem.CMP_EQ, 1)
    for i in range(dst.size):
        src[i] += dst[i]  # <- 2


shmem.init()
src, dst = shmem.ones(8, dtype="float32"), shmem.zeros(8, dtype="float32")
for _ in range(2):
    flag = shmem.zeros(1, dtype="uint64")  # where the one before has been
    for _ in range(2):
        exchange[1, 1](dst, src, flag)
        shmem.barrier_all()
        flag.copy_from(0)
        shmem.barrier_all()
    exchange[1, 1](dst, src, flag)
    shmem.free(flag)
shmem.finalize()
