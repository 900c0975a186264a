"""The last thread of a block sends, then all fence together, then the first tells."""

from numba import cuda

import gpushmem as shmem

ROUNDS, THREADS = 20, 64


@shmem.jit
def kernel(dst, src, signal, out, qps):
    t, other = cuda.threadIdx.x, 1 - shmem.my_pe()
    for k in range(1, ROUNDS + 1):
        if t == THREADS - 1:
            src[0] = k
            shmem.qp_p(dst, k, other, qps[0])
        shmem.qp_fence_block(other, qps)
        if t == 0:
            shmem.qp_signal_op(signal, k, shmem.SIGNAL_SET, other, qps[0])
            shmem.signal_wait_until(signal, shmem.CMP_GE, k)
            if shmem.g(dst, shmem.my_pe()) < k:
                out[0] += 1
        cuda.syncthreads()


shmem.init()
qps = shmem.qp_create(1)
dst, src, out = shmem.zeros(1, "int64"), shmem.zeros(1, "int64"), shmem.zeros(1, "int64")
kernel[1, THREADS](dst, src, shmem.zeros(1, "uint64"), out, qps)
print(f"sees {out.numpy()[0]} too old")
shmem.finalize()
