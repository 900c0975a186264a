"""Data that a PE stores to another one's memory, and a flag, by a store that orders or does not."""

import sys

import gpushmem as shmem

STORE, N = "release.sys" if "fixed" in sys.argv else "relaxed.sys", 50


@shmem.jit
def kernel(x, flag, out):
    if shmem.my_pe() == 0:
        there, told = shmem.peer_array(x, 1), shmem.peer_array(flag, 1)
        for k in range(N):
            shmem.store_vector(there, 2 * k, (1, 1))
            shmem.store_vector(told, 0, (k + 1,), STORE)
    else:
        for k in range(N):
            while shmem.load_vector(flag, 0, 1, "acquire.sys")[0] <= k:
                pass
            out[k] = 1 - shmem.load_vector(x, 2 * k, 2)[1]


shmem.init()
x, flag = shmem.zeros(2 * N, "int64"), shmem.zeros(1, "int64")
out = shmem.device_array(N, "int64")
out.copy_from(0)
kernel[1, 1](x, flag, out)
shmem.barrier_all()
assert shmem.my_pe() == 0 or (x.numpy() == 1).all()
print(int(out.numpy().sum()))
shmem.finalize()
