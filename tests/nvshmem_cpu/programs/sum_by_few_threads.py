"""`reduce_block` of 64 elements by a block of as many threads as the argument says."""

import sys

import numpy as np

import gpushmem as shmem


@shmem.jit
def add(dst, src):
    shmem.reduce_block(shmem.TEAM_WORLD, dst, src, "sum")


with shmem.session():
    dst, src = shmem.zeros(64, np.int32), shmem.array(np.ones(64, np.int32))
    add[1, int(sys.argv[1])](dst, src)
    shmem.synchronize()
    if shmem.my_pe() == 0:
        print("sums", *set(dst.numpy().tolist()))
