"""The ways in which memory is written; what is read afterwards is written."""

import sys

import numpy as np
from numba import cuda

import gpushmem as shmem

RECORD = np.dtype([("a", "f4"), ("b", "i8"), ("c", "i1")], align=True)


def empty(*shape, dtype="float32"):
    return shmem.empty(shape, dtype)


@shmem.jit
def total(a, out):
    for k in range(a.size):
        out[0] += a[k]


@shmem.jit
def total_of_rows(a, out):
    for i in range(a.shape[0]):
        for j in range(a.shape[1]):
            out[0] += a[i, j]


def read(a):
    """In a kernel, when all PEs have written."""
    shmem.barrier_all()
    (total if a.ndim == 1 else total_of_rows)[1, 1](a, shmem.zeros(1))
    shmem.synchronize()


# --- the host


def by_elements(a):
    for k in range(a.size):
        a[k] = k


def every_other(a):
    a[::2], a[1::2] = 1, 2


def backwards(a):
    a[::-1] = np.arange(a.size)


def in_place(a):
    a += 1


LINES = (
    by_elements, every_other, backwards, in_place,
    lambda a: np.asarray(a).fill(1),
    lambda a: np.from_dlpack(a).fill(1),
    lambda a: np.add(a, 1, out=a),
    lambda a: a.view("int32").copy_from(0),
    lambda a: shmem.peer_array(a, right()).copy_from(1),
    lambda a: np.asarray(shmem.peer_array(a, right())).fill(1),
)  # fmt: skip


def frame(a):
    a[1:-1, 1:-1] = 0
    a[0] = a[-1] = a[1:-1, 0] = a[1:-1, -1] = 0


def columns(a):
    a[:, ::2], a[:, 1::2] = 1, 2


def parts(a):
    whole = a.reshape(2, 3, 8)
    for k in range(3):
        whole[:, k] = k


ROWS = (
    frame, columns, parts,
    lambda a: a.T.copy_from(np.ones((8, 6))),
    lambda a: a.T[::-1].copy_from(np.ones((8, 6))),
)  # fmt: skip


def host():
    for write in LINES:
        a = empty(8)
        write(a)
        read(a)
    for write in ROWS:
        a = empty(6, 8)
        write(a)
        read(a)
    a = empty(8)
    if shmem.my_pe() == 0:
        shmem.multicast_array(a, shmem.TEAM_WORLD)[...] = 3
    read(a)


# --- operations


def right():
    return (shmem.my_pe() + 1) % shmem.n_pes()


def operations():
    n, world = shmem.n_pes(), shmem.TEAM_WORLD
    one, all_ = shmem.ones(8, "float32"), shmem.ones(8 * n, "float32")

    def strided(a):
        shmem.iput(a, one, 2, 1, 4, right())
        shmem.iput(a[1:], one, 2, 1, 4, right())

    def elements(a):
        for k in range(a.size):
            shmem.p(a[k:], 1, right())

    for write in (
        lambda a: shmem.put(a, one, right()),
        lambda a: shmem.get(a, one, right()),
        strided,
        elements,
        lambda a: shmem.broadcast(world, a, one),
        lambda a: shmem.reduce(world, a, one, "sum"),
        lambda a: shmem.reducescatter(world, a, all_, "sum"),
    ):
        a = empty(8)
        write(a)
        read(a)
    for write in (
        lambda a: shmem.fcollect(world, a, one),
        lambda a: shmem.collect(world, a, one),
        lambda a: shmem.alltoall(world, a, all_),
    ):
        a = empty(8 * n)
        write(a)
        read(a)


# --- kernels


@shmem.jit
def slices(a):
    a[1:5] = 3
    a[0] = 1
    a[5:] = 2


@shmem.jit
def fills(a):
    a.fill(1)


@shmem.jit
def to_peers(a):
    there = shmem.peer_array(a, (shmem.my_pe() + 1) % shmem.n_pes())
    for k in range(a.size):
        there[k] = k


@shmem.jit
def to_all(a):
    if shmem.my_pe() == 0:
        there = shmem.multicast_array(a, shmem.TEAM_WORLD)
        for k in range(a.size):
            there[k] = k


@shmem.jit
def from_the_one_before(a):
    a[0] = 1
    for k in range(1, a.size):
        a[k] = a[k - 1] + 1


@shmem.jit
def records(a, out):
    for k in range(a.size):
        a[k].a = a[k].b = a[k].c = k
    for k in range(a.size):
        out[0] += a[k].a + a[k].b + a[k].c


@shmem.jit
def counters(a, b):
    pe = (shmem.my_pe() + 1) % shmem.n_pes()
    shmem.atomic_set(a, 0, pe)
    shmem.p(b, 0, pe)
    shmem.barrier_all()
    shmem.atomic_add(a, 1, 0)
    shmem.atomic_fetch_add(b, 1, 0)
    shmem.barrier_all()
    cuda.atomic.add(a, 0, 1)


@shmem.jit
def clear(a):
    a[cuda.threadIdx.x] = 0


@shmem.jit
def waits(signals, status, dst, src):
    me, n = shmem.my_pe(), shmem.n_pes()
    for pe in range(n):
        shmem.put_signal(dst[me:], src, signals[me:], 1, shmem.SIGNAL_ADD, pe)
    shmem.wait_until_all(signals, status, shmem.CMP_GE, 1)
    for pe in range(n):
        src[0] = dst[pe]


@shmem.jit
def locked(lock, data, full):
    """Who finds it empty fills it."""
    while shmem.atomic_compare_swap(lock, 0, 1, 0) != 0:
        pass
    if shmem.g(full, 0) == 0:
        shmem.p(data, 5, 0)
        shmem.p(full, 1, 0)
    else:
        shmem.p(data, shmem.g(data, 0) + 1, 0)
    shmem.quiet()
    shmem.atomic_set(lock, 0, 0)


def kernels():
    for write in (slices, fills, to_peers, to_all, from_the_one_before):
        a = empty(8)
        write[1, 1](a)
        read(a)
    records[1, 1](shmem.empty(5, RECORD), shmem.zeros(1))
    counters[1, 1](empty(1, dtype="int64"), empty(1, dtype="int64"))
    n = shmem.n_pes()
    signals, status = empty(n + 2, dtype="uint64"), np.zeros(n + 2, "int32")
    status[n:] = 1  # nobody looks at those
    clear[1, n](signals)
    dst, src = empty(n), shmem.ones(1, "float32")
    shmem.barrier_all()
    waits[1, 1](signals, shmem.to_device(status), dst, src)
    locked[1, 1](shmem.zeros(1, "int64"), empty(1, dtype="int64"), shmem.zeros(1, "int64"))
    one, other, a = shmem.stream(), shmem.stream(), empty(16)
    clear[1, 16, one](a)
    one.synchronize()
    total[1, 1, other](a, shmem.zeros(1))


# --- shared memory


@shmem.jit
def tree(out):
    sums = cuda.shared.array(64, "float32")
    t = cuda.threadIdx.x
    sums[t] = t
    k = 32
    while k:
        cuda.syncthreads()
        if t < k:
            sums[t] += sums[t + k]
        k //= 2
    if t == 0:
        out[cuda.blockIdx.x] = sums[0]


@shmem.jit
def dynamic(out):
    s = cuda.shared.array(0, "float32")
    t = cuda.threadIdx.x
    for k in range(t, 100, cuda.blockDim.x):
        s[k] = k
    cuda.syncthreads()
    for k in range(t, 100, cuda.blockDim.x):
        out[cuda.blockIdx.x, k] = s[99 - k]


@shmem.jit
def transposed(out, src):
    tile = cuda.shared.array((8, 9), "float32")
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    tile[y, x] = src[y, x]
    cuda.syncthreads()
    out[y, x] = tile[x, y]


@shmem.jit
def fetched(src, out):
    s = cuda.shared.array(16, "float32")
    shmem.get_block(s, src, (shmem.my_pe() + 1) % shmem.n_pes())
    out[cuda.threadIdx.x] = s[cuda.threadIdx.x % 16]


@shmem.jit
def bins(out):
    s = cuda.shared.array(16, "float32")
    t = cuda.threadIdx.x
    if t < 16:
        s[t] = 0
    cuda.syncthreads()
    cuda.atomic.add(s, t % 16, 1.5)
    cuda.atomic.max(s, t % 16, 3.0)
    cuda.syncthreads()
    if t < 16:
        cuda.atomic.add(out, t, s[t])


@shmem.jit
def last_block(parts, count, out):
    flag = cuda.shared.array(1, "int32")
    if cuda.threadIdx.x == 0:
        parts[cuda.blockIdx.x] = 1
        cuda.threadfence()
        flag[0] = cuda.atomic.add(count, 0, 1) == cuda.gridDim.x - 1
    cuda.syncthreads()
    if flag[0] and cuda.threadIdx.x == 0:
        for k in range(parts.size):
            out[0] += parts[k]


def shared():
    tree[4, 64](shmem.zeros(4))
    dynamic[3, 32, 0, 400](shmem.zeros((3, 100)))
    transposed[1, (8, 8)](shmem.zeros((8, 8)), shmem.ones((8, 8)))
    fetched[1, 32](shmem.ones(16, "float32"), shmem.zeros(32))
    bins[2, 32](shmem.zeros(16))
    last_block[4, 32](empty(4), shmem.zeros(1, "int32"), shmem.zeros(1))


if __name__ == "__main__":
    shmem.init()
    {"host": host, "operations": operations, "kernels": kernels, "shared": shared}[sys.argv[1]]()
    shmem.finalize()
