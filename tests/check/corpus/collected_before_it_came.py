"""PEs collect what their neighbours have put, without waiting for it."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def kernel(all_parts, part, src, flag):
    me = shmem.my_pe()
    shmem.put_signal_nbi(part, src, flag, 1, shmem.SIGNAL_SET, 1 - me)  # <- 1
    if FIXED:
        shmem.signal_wait_until(flag, shmem.CMP_EQ, 1)
    shmem.collect(shmem.TEAM_WORLD, all_parts, part[: me + 1])  # <- 2
    shmem.quiet()


shmem.init()
part, src, all_parts = (shmem.ones(k, dtype="float32") for k in (2, 2, 3))
kernel[1, 1](all_parts, part, src, shmem.zeros(1, dtype="uint64"))
shmem.finalize()
