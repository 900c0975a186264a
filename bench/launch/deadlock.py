"""PE 0 waits for a signal that nobody sends; the others wait for PE 0."""

import time

import gpushmem as shmem


@shmem.jit
def wait_for(signal, value):
    shmem.signal_wait_until(signal, shmem.CMP_EQ, value)


shmem.init()
flag = shmem.zeros(1, "uint64")
wait_for[1, 1](flag, 0)
shmem.barrier_all()
print("now", time.monotonic(), flush=True)
if shmem.my_pe() == 0:
    wait_for[1, 1](flag, 1)
shmem.barrier_all()
