"""A server answers two clients, and one client looks into the box of the other."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 3


@shmem.jit
def kernel(request, answer, got, asked, answered):
    me = shmem.my_pe()
    if me > 0:
        shmem.put_signal(request[me:], got[:1], asked[me:], 1, shmem.SIGNAL_SET, 0)
        shmem.signal_wait_until(answered, shmem.CMP_EQ, 1)
        shmem.get(got, answer[me if FIXED else 3 - me :], 0)  # <- 1
    else:
        for pe in range(1, 3):
            shmem.signal_wait_until(asked[pe:], shmem.CMP_EQ, 1)
            answer[pe] = 2 * request[pe]  # <- 2
            shmem.quiet()
            shmem.signal_op(answered, 1, shmem.SIGNAL_SET, pe)


shmem.init()
request, answer = shmem.ones(3, dtype="int32"), shmem.zeros(3, dtype="int32")
got = shmem.ones(1, dtype="int32")
kernel[1, 1](request, answer, got, shmem.zeros(3, dtype="uint64"), shmem.zeros(1, dtype="uint64"))
shmem.finalize()
