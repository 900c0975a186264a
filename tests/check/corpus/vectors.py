"""Loads and stores of several elements, in an order that is too weak.

Each function is a program: the first argument is its name.
"""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv


def relaxed_store_of_a_flag(pes=2):
    """A PE stores to another one's memory, and then a flag, by a store that orders nothing."""
    how = "release.sys" if FIXED else "relaxed.sys"

    @shmem.jit
    def kernel(x, flag, out):
        me, other = shmem.my_pe(), 1 - shmem.my_pe()
        there = shmem.peer_array(x, other)
        for i in range(0, 8, 2):
            shmem.store_vector(there, i, (me, i))  # <- 1
        shmem.store_vector(shmem.peer_array(flag, other), 0, (1,), how)
        while shmem.load_vector(flag, 0, 1, "acquire.sys")[0] == 0:
            pass
        for i in range(8):
            out[i] = x[i]  # <- 2

    x, flag, out = shmem.zeros(8), shmem.zeros(2, "int32"), shmem.device_array(8)
    kernel[1, 1](x, flag, out)


def release_for_one_gpu(pes=2):
    """As before, but the store orders for the PE's own GPU only."""
    how = "release.sys" if FIXED else "release.gpu"

    @shmem.jit
    def kernel(x, flag, out):
        if shmem.my_pe() == 0:
            shmem.peer_array(x, 1)[0] = 1  # <- 1
            shmem.store_vector(shmem.peer_array(flag, 1), 0, (1, 1), how)  # <- 3
        else:
            while shmem.load_vector(flag, 0, 2, "acquire.sys")[1] == 0:  # <- 3
                pass
            out[0] = x[0]  # <- 2

    kernel[1, 1](shmem.zeros(8), shmem.zeros(2, "int32"), shmem.device_array(8))


def relaxed_load_of_a_flag(pes=1):
    """A block reads what another one has written, after a load that orders nothing."""
    how = "acquire.gpu" if FIXED else "relaxed.gpu"

    @shmem.jit(collective=True)
    def kernel(x, flag, out):
        if cuda.blockIdx.x == 0:
            shmem.store_vector(x, 0, (1.0, 2.0))  # <- 1
            shmem.store_vector(flag, 0, (1,), "release.gpu")
        else:
            while shmem.load_vector(flag, 0, 1, how)[0] == 0:
                pass
            v = shmem.load_vector(x, 0, 2)  # <- 2
            out[0] = v[0] + v[1]

    x, flag = shmem.device_array(2), shmem.device_array(1, "int64")
    x.copy_from(0)
    flag.copy_from(0)
    kernel[2, 1](x, flag, shmem.device_array(1))


def plain_load_of_what_is_stored(pes=2):
    """A PE loads data and flag as one, but not by a load that is atomic."""
    how = "relaxed.sys" if FIXED else "weak"

    @shmem.jit
    def kernel(x, out):
        me, other = shmem.my_pe(), 1 - shmem.my_pe()
        shmem.store_vector(shmem.peer_array(x, other), 0, (me, 1), "relaxed.sys")  # <- 1
        while shmem.load_vector(x, 0, 2, how)[1] == 0:  # <- 2
            pass
        out[0] = 1

    kernel[1, 1](shmem.zeros(2, "float32"), shmem.device_array(1, "float32"))


shmem.init()
globals()[sys.argv[1]]()
shmem.finalize()
