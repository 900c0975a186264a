"""PE 0 sets a signal to 0 and 1 in turn; does PE 1, which waits for 1, get a 0?"""

import numpy as np

import gpushmem as shmem

ROUNDS = 100_000


@shmem.jit
def flip(signal, end):
    while shmem.signal_fetch(end) == 0:
        for k in range(100):
            shmem.signal_op(signal, k % 2, shmem.SIGNAL_SET, 1)


@shmem.jit
def wait(signal, end, zeros):
    for _ in range(ROUNDS):
        if shmem.signal_wait_until(signal, shmem.CMP_EQ, 1) != 1:
            zeros[0] += 1
    shmem.signal_op(end, 1, shmem.SIGNAL_SET, 0)


with shmem.session():
    signal, end = shmem.zeros(1, np.uint64), shmem.zeros(1, np.uint64)
    zeros = shmem.zeros(1, np.int64)
    if shmem.my_pe() == 0:
        flip[1, 1](signal, end)
    else:
        wait[1, 1](signal, end, zeros)
    shmem.synchronize()
    if shmem.my_pe() == 1:
        print("gets 0" if zeros.numpy()[0] else "gets 1")
