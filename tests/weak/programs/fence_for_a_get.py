"""How many of the gets before a fence, or a quiet, fetch what is written after the signal."""

import sys

import gpushmem as shmem

FIXED, ROUNDS = "fixed" in sys.argv, 40


@shmem.jit
def kernel(a, copy, done, ready, late):
    for k in range(1, ROUNDS + 1):
        if shmem.my_pe() == 0:
            shmem.signal_wait_until(done, shmem.CMP_GE, k)
            a[0] = k
            shmem.quiet()
            shmem.signal_op(ready, k, shmem.SIGNAL_SET, 1)
        else:
            shmem.get_nbi(copy, a, 0)
            if FIXED:
                shmem.quiet()
            else:
                shmem.fence()
            shmem.signal_op(done, k, shmem.SIGNAL_SET, 0)
            shmem.signal_wait_until(ready, shmem.CMP_GE, k)
            shmem.quiet()
            late[0] += copy[0] == k


shmem.init(heap_size="16M")
a, copy, late = (shmem.zeros(1, dtype="int64") for _ in range(3))
done, ready = (shmem.zeros(1, dtype="uint64") for _ in range(2))
kernel[1, 1](a, copy, done, ready, late)
shmem.barrier_all()
if shmem.my_pe() == 1:
    print(late.numpy()[0])
shmem.finalize()
