"""Rows that a block copies to memory of another PE, or of all, and signals, with a fence or not."""

import sys

import gpushmem as shmem

FENCE, ALL, N = "fixed" in sys.argv, "all" in sys.argv, 50


@shmem.jit
def kernel(x, y, signal, out):
    other = 1 - shmem.my_pe()
    for k in range(N):
        if ALL:
            shmem.multimem_store_block(x[k, shmem.my_pe()], y[k], shmem.TEAM_WORLD)
        else:
            shmem.copy_block(shmem.peer_array(x[k, shmem.my_pe()], other), y[k])
        if FENCE:
            shmem.fence()
        shmem.signal_op(signal, k + 1, shmem.SIGNAL_SET, other)
        shmem.signal_wait_until(signal, shmem.CMP_GE, k + 1)
        out[k] = x[k, other, 7]


shmem.init()
x, y, signal = shmem.zeros((N, 2, 8)), shmem.ones((N, 8)), shmem.zeros(1, "uint64")
out = shmem.device_array(N)
kernel[1, 1](x, y, signal, out)
shmem.barrier_all()
assert (x.numpy()[:, [0, 1] if ALL else [1 - shmem.my_pe()]] == 1).all()
print(int((out.numpy() == 0).sum()))
shmem.finalize()
