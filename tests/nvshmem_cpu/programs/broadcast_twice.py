"""Two broadcasts to the same array, which every PE reads after each."""

import numpy as np

import gpushmem as shmem

ROUNDS = 20


@shmem.jit
def repeat(dst, src, late):
    for turn in range(ROUNDS):
        src[0] = turn
        shmem.broadcast(shmem.TEAM_WORLD, dst, src)
        late[0] += dst[0] != turn


with shmem.session():
    dst, src, late = (shmem.zeros(1, np.int64) for _ in range(3))
    repeat[1, 1](dst, src, late)
    shmem.synchronize()
    print("overwritten", late.numpy()[0] > 0)
