"""The index that test_any returns is -1 as long as nothing has come."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def kernel(dst, src, out, flags, go):
    if shmem.my_pe() == 0:
        k = shmem.test_any(flags, None, shmem.CMP_GT, 0)
        shmem.p(go, 1, 1)
        while FIXED and k < 0:
            k = shmem.test_any(flags, None, shmem.CMP_GT, 0)
        out[0] = dst[k % 2]  # <- 2
    else:
        shmem.wait_until(go, shmem.CMP_EQ, 1)
        shmem.put_signal(dst[1:], src, flags[1:], 5, shmem.SIGNAL_ADD, 0)  # <- 1


shmem.init()
src, dst = shmem.ones(1, dtype="float32"), shmem.zeros(2, dtype="float32")
flags, go = shmem.zeros(2, dtype="uint64"), shmem.zeros(1, dtype="int32")
kernel[1, 1](dst, src, shmem.zeros(1, dtype="float32"), flags, go)
shmem.finalize()
