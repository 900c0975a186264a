"""Rows that a block copies to another PE's memory, and signals, with a fence or without."""

import sys

import gpushmem as shmem

FENCE, N = "fixed" in sys.argv, 50


@shmem.jit
def kernel(x, y, signal, out):
    other = 1 - shmem.my_pe()
    for k in range(N):
        shmem.copy_block(shmem.peer_array(x[k], other), y[k])
        if FENCE:
            shmem.fence()
        shmem.signal_op(signal, k + 1, shmem.SIGNAL_SET, other)
        shmem.signal_wait_until(signal, shmem.CMP_GE, k + 1)
        out[k] = x[k, 7]


shmem.init()
x, y, signal = shmem.zeros((N, 8)), shmem.ones((N, 8)), shmem.zeros(1, "uint64")
out = shmem.device_array(N)
kernel[1, 1](x, y, signal, out)
shmem.barrier_all()
assert (x.numpy() == 1).all()
print(int((out.numpy() == 0).sum()))
shmem.finalize()
