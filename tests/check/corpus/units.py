"""Units of LL that are taken for others, or for an order of other data.

Each function is a program: the first argument is its name.
"""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv
N = 5


def memory():
    """Two boxes, what is sent, and what is received."""
    return shmem.zeros((2, N), "uint64"), shmem.ones(N, "float32"), shmem.zeros(N, "float32")


def flag_again(pes=2):
    """The second message has the flag of the first."""

    @shmem.jit
    def kernel(boxes, x, out):
        me = shmem.my_pe()
        for m in range(2):
            flag, answer = m + 1 if FIXED else 1, boxes[m : m + 1]
            if me == 0:
                shmem.put_ll_block(boxes[0], x, flag, 1)  # <- 1
                shmem.reduce_ll_block(out, answer, 1, "sum")
                x[0] += 1
            else:
                shmem.reduce_ll_block(out, boxes[:1], flag, "sum")  # <- 2
                shmem.put_ll_block(answer[0], x, 1, 0)

    kernel[1, 1](*memory())


def flag_of_a_line_again(pes=2):
    """The same by LL128."""

    @shmem.jit
    def kernel(boxes, x, out):
        me = shmem.my_pe()
        for m in range(2):
            flag, answer = m + 1 if FIXED else 1, boxes[m : m + 1]
            if me == 0:
                shmem.put_ll128_block(boxes[0], x, flag, 1)  # <- 1
                shmem.reduce_ll128_block(out, answer, 1, "sum")
                if cuda.threadIdx.x == 0:
                    x[0] += 1
                cuda.syncthreads()
            else:
                shmem.reduce_ll128_block(out, boxes[:1], flag, "sum")  # <- 2
                shmem.put_ll128_block(answer[0], x, 1, 0)

    kernel[1, 32](shmem.zeros((2, 32), "uint64"), *memory()[1:])


def loaded_unit(pes=2):
    """A unit has come, and another one is loaded as if it had."""

    @shmem.jit
    def kernel(boxes, x, out):
        if shmem.my_pe() == 0:
            shmem.put_ll_block(boxes[0], x, 1, 1)  # <- 1
        elif FIXED:
            shmem.reduce_ll_block(out, boxes[:1], 1, "sum")
        else:
            shmem.reduce_ll_block(out[:1], boxes[:1], 1, "sum")
            out[1] = boxes[0, 1]  # <- 2

    kernel[1, 1](*memory())


def units_for_a_signal(pes=2):
    """Units are taken to say that what was put before has come, too."""

    @shmem.jit
    def kernel(boxes, x, out, data, signal):
        if shmem.my_pe() == 0:
            shmem.put_block(data, x, 1)  # <- 1
            shmem.put_ll_block(boxes[0], x, 1, 1)
            shmem.fence()
            shmem.signal_op(signal, 1, shmem.SIGNAL_SET, 1)
        else:
            shmem.reduce_ll_block(out, boxes[:1], 1, "sum")
            if FIXED:
                shmem.signal_wait_until(signal, shmem.CMP_EQ, 1)
            out[0] += data[0]  # <- 2

    kernel[1, 1](*memory(), shmem.zeros(N, "float32"), shmem.zeros(1, "uint64"))


def put_over_units(pes=2):
    """Units are put as any other words."""

    @shmem.jit
    def kernel(boxes, x, out, made):
        if shmem.my_pe() == 0:
            if FIXED:
                shmem.put_ll_block(boxes[0], x, 1, 1)
            else:
                for i in range(N):
                    made[i] = 1 << 32
                cuda.syncthreads()
                shmem.put_block(boxes[0], made, 1)  # <- 1
        else:
            shmem.reduce_ll_block(out, boxes[:1], 1, "sum")  # <- 2

    kernel[1, 1](*memory(), shmem.zeros(N, "uint64"))


shmem.init()
globals()[sys.argv[1]]()
shmem.finalize()
