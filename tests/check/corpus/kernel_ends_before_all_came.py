"""A kernel ends when all has been sent; the next one reads what others send to this PE."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 3


@shmem.jit
def dispatch(tokens, src, arrived):
    me, n = shmem.my_pe(), shmem.n_pes()
    for k in range(1, n):
        pe = (me + k) % n
        shmem.put_signal(tokens[4 * me :], src, arrived, 1, shmem.SIGNAL_ADD, pe)  # <- 1
    shmem.quiet()
    if FIXED:
        shmem.signal_wait_until(arrived, shmem.CMP_EQ, n - 1)


@shmem.jit
def combine(tokens, out):
    me, n = shmem.my_pe(), shmem.n_pes()
    for k in range(1, n):
        out[0] += tokens[4 * ((me + k) % n)]  # <- 2


shmem.init()
src, tokens = shmem.ones(4, dtype="float32"), shmem.zeros(12, dtype="float32")
arrived, out = shmem.zeros(1, dtype="uint64"), shmem.zeros(1, dtype="float32")
dispatch[1, 1](tokens, src, arrived)
combine[1, 1](tokens, out)
shmem.finalize()
