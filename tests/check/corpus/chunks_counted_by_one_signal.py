"""A counter tells how many chunks have come, not which: those of put_signal_nbi may overtake."""

import sys

import gpushmem as shmem

FIXED = "fixed" in sys.argv

PES = 2


@shmem.jit
def kernel(dst, src, out, done):
    other = 1 - shmem.my_pe()
    for k in range(3):
        chunk = slice(8 * k, 8 * k + 8)
        signal = done[k:] if FIXED else done
        shmem.put_signal_nbi(dst[chunk], src[chunk], signal, 1, shmem.SIGNAL_ADD, other)  # <- 1
    for k in range(3):
        signal = done[k:] if FIXED else done
        shmem.signal_wait_until(signal, shmem.CMP_GE, 1 if FIXED else k + 1)
        out[k] = dst[8 * k]  # <- 2


shmem.init()
src, dst = shmem.ones(24, dtype="float32"), shmem.zeros(24, dtype="float32")
kernel[1, 1](dst, src, shmem.zeros(3, dtype="float32"), shmem.zeros(3, dtype="uint64"))
shmem.finalize()
