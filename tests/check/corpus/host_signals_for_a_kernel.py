"""A host calls quiet and signals, while its kernel may still be putting."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def send(dst, src, other):
    shmem.put_block(dst, src, other)  # <- 1


@shmem.jit
def use(dst, out, flag):
    shmem.signal_wait_until(flag, shmem.CMP_EQ, 1)
    out[0] = dst[0]  # <- 2


shmem.init()
src, dst = shmem.ones(32, dtype="int32"), shmem.zeros(32, dtype="int32")
out, flag = shmem.zeros(1, dtype="int32"), shmem.zeros(1, dtype="uint64")
if shmem.my_pe() == 0:
    send[1, 32](dst, src, 1)
    if FIXED:
        shmem.synchronize()
    shmem.quiet()
    shmem.signal_op(flag, 1, shmem.SIGNAL_SET, 1)
else:
    use[1, 1](dst, out, flag)
shmem.finalize()
