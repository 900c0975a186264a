"""`fcollect_block` of six elements of each PE, by a block of as many threads as the argument says."""

import sys

import numpy as np

import gpushmem as shmem

N = 6


@shmem.jit
def gather(dst, src):
    shmem.fcollect_block(shmem.TEAM_WORLD, dst, src)


with shmem.session():
    dst = shmem.zeros(N * shmem.n_pes(), np.int32)
    src = shmem.array(np.full(N, 1 + shmem.my_pe(), np.int32))
    gather[1, int(sys.argv[1])](dst, src)
    shmem.synchronize()
    if shmem.my_pe() == 0:
        print("has", *dst.numpy())
