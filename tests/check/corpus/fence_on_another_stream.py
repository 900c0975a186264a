"""One kernel puts, and one on another stream calls fence and signals."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def send(dst, src, other):
    shmem.put_block(dst, src, other)  # <- 1


@shmem.jit
def notify(dst, out, flag, other):
    shmem.fence()
    shmem.signal_op(flag, 1, shmem.SIGNAL_SET, other)
    shmem.signal_wait_until(flag, shmem.CMP_EQ, 1)
    out[0] = dst[0]  # <- 2


shmem.init()
src, dst, out = (shmem.ones(32, dtype="float32") for _ in range(3))
flag, other = shmem.zeros(1, dtype="uint64"), 1 - shmem.my_pe()
first, second = shmem.stream(), shmem.stream()
send[1, 32, first](dst, src, other)
notify[1, 1, first if FIXED else second](dst, out, flag, other)
shmem.finalize()
