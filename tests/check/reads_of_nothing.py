"""Reads of memory that nobody has written: what `# <-` marks is found, and nothing else."""

from numba import cuda

import gpushmem as shmem

SIGNAL = "uint64"


def empty(*shape, dtype="float32"):
    return shmem.empty(shape, dtype)


@shmem.jit
def operations(number, added, placed, fetched, tested, swapped, exchanged, half, cleared, out):
    pe = (shmem.my_pe() + 1) % shmem.n_pes()
    out[0] = shmem.g(number, pe)  # <-
    shmem.signal_op(added, 1, shmem.SIGNAL_ADD, pe)  # <-
    shmem.signal_op(placed, 1, shmem.SIGNAL_SET, pe)
    out[1] = shmem.signal_fetch(fetched)  # <-
    out[2] = shmem.test_any(tested, None, shmem.CMP_EQ, 77)  # <-
    cuda.atomic.cas(swapped, 0, 0, 1)  # <-
    cuda.atomic.exch(exchanged, 0, 1)
    out[3] = half[0]
    out[4] = half[1]  # <-
    shmem.atomic_set(cleared, 0, pe)


@shmem.jit
def reversed_in_shared_memory(src, out):
    s = cuda.shared.array(64, "float32")
    t = cuda.threadIdx.x
    s[t] = src[t]  # <-
    cuda.syncthreads()
    out[t] = s[63 - t]


@shmem.jit
def incremented(a):
    a[cuda.threadIdx.x] += 1  # <-


@shmem.jit
def in_shared_memory(out):
    fixed, sized = cuda.shared.array(64, "float32"), cuda.shared.array(0, "float32")
    t = cuda.threadIdx.x
    if t:
        sized[t] = 0
    out[t] = fixed[t]  # <-
    cuda.syncthreads()
    out[t] = sized[0]  # <-


@shmem.jit
def product(a, b, c):
    shmem.gemm_block(c, a, b, False)  # <-


shmem.init()
me, n = shmem.my_pe(), shmem.n_pes()
right = (me + 1) % n

total = shmem.zeros(8, "float32")
nothing, some = empty(8), empty(8)
some[:1] = 1
shmem.reduce(shmem.TEAM_WORLD, total, nothing, "sum")  # <-
shmem.reduce(shmem.TEAM_WORLD, total, some, "sum")

signals, numbers = [empty(4, dtype=SIGNAL) for _ in range(5)], empty(1, dtype="int64")
half = empty(2)
half[:1] = 1
operations[1, 1](
    empty(1), *signals[:4], numbers, empty(1, dtype="int64"), half, signals[4], shmem.zeros(8)
)
shmem.barrier_all()

flags = empty(2, dtype=SIGNAL)
flags[:1] = 0
shmem.barrier_all()
for k in range(2):
    shmem.p(flags[k:], 3, right)
shmem.wait_until_all(flags, None, shmem.CMP_NE, 0)  # <-
shmem.barrier_all()
shmem.atomic_add(empty(1, dtype=SIGNAL), 1, 0)  # <-
shmem.barrier_all()

most = empty(64)
most[:63] = 1
reversed_in_shared_memory[1, 64](most, shmem.zeros(64))
incremented[1, 64](empty(64))
in_shared_memory[1, 64, 0, 256](shmem.zeros(64))
square = shmem.zeros((4, 4), "float32")
product[1, 32](empty(4, 4), square, shmem.zeros((4, 4), "float32"))
shmem.finalize()
