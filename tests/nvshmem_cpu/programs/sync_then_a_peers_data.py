"""PE 0 stores to its own memory between two `sync_all`; PE 1 reads it before and after."""

import gpushmem as shmem

N = 8


@shmem.jit
def read_again(data, seen):
    there = shmem.peer_array(data, 0)
    if shmem.my_pe() == 1:
        for i in range(N):
            seen[i] = there[i]
    shmem.sync_all()
    if shmem.my_pe() == 0:
        for i in range(N):
            data[i] = 7
    shmem.sync_all()
    if shmem.my_pe() == 1:
        for i in range(N):
            seen[i] = there[i]


with shmem.session():
    data, seen = shmem.zeros(N), shmem.zeros(N)
    read_again[1, 1](data, seen)
    shmem.synchronize()
    if shmem.my_pe() == 1:
        print("sees", *seen.numpy().astype(int))
