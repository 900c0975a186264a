"""What get_nbi fetches is put to the next PE before it has arrived."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 3


@shmem.jit
def kernel(here, box, src):
    me, n = shmem.my_pe(), shmem.n_pes()
    shmem.get_nbi_block(here, src, (me + n - 1) % n)  # <- 1
    if FIXED:
        shmem.quiet()
    shmem.put_block(box, here, (me + 1) % n)  # <- 2


shmem.init()
src, here, box = (shmem.ones(64, dtype="float32") for _ in range(3))
kernel[1, 32](here, box, src)
shmem.finalize()
