"""PE 0 puts data, a fence, and a signal, which PE 1 polls with `signal_fetch`."""

import numpy as np

import gpushmem as shmem

N = 8


@shmem.jit
def send(data, flag, ready):
    shmem.signal_wait_until(ready, shmem.CMP_EQ, 1)
    for i in range(N):
        shmem.p(data[i:], 7.0, 1)
    shmem.fence()
    shmem.signal_op(flag, 1, shmem.SIGNAL_SET, 1)


@shmem.jit
def receive(data, flag, ready, seen):
    for i in range(N):
        seen[i] = data[i]
    shmem.signal_op(ready, 1, shmem.SIGNAL_SET, 0)
    while shmem.signal_fetch(flag) != 1:
        pass
    for i in range(N):
        seen[i] = data[i]


with shmem.session():
    data, flag, ready = shmem.zeros(N), shmem.zeros(1, np.uint64), shmem.zeros(1, np.uint64)
    seen = shmem.zeros(N)
    if shmem.my_pe() == 0:
        send[1, 1](data, flag, ready)
    else:
        receive[1, 1](data, flag, ready, seen)
    shmem.synchronize()
    if shmem.my_pe() == 1:
        print("sees", *seen.numpy().astype(int))
