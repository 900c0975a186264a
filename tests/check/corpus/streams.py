"""Two streams of a PE, one of which does not wait for the other.

Each function is a program: the first argument is its name.
"""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv


def beside_the_default_stream(pes=1):
    """A stream that is not ordered with the default stream uses what a kernel there writes."""

    @shmem.jit
    def fill(a):
        a[cuda.threadIdx.x] = 1  # <- 1

    @shmem.jit
    def double(a, out):
        out[cuda.threadIdx.x] = 2 * a[cuda.threadIdx.x]  # <- 2

    a, out = shmem.zeros(64, dtype="int32"), shmem.zeros(64, dtype="int32")
    beside = shmem.stream(nonblocking=not FIXED)
    fill[1, 64](a)
    double[1, 64, beside](a, out)


def fence_on_another_stream(pes=2):
    """One kernel puts, and one on another stream calls fence and signals."""

    @shmem.jit
    def send(dst, src, other):
        shmem.put_block(dst, src, other)  # <- 1

    @shmem.jit
    def notify(dst, out, flag, other):
        shmem.fence()
        shmem.signal_op(flag, 1, shmem.SIGNAL_SET, other)
        shmem.signal_wait_until(flag, shmem.CMP_EQ, 1)
        out[0] = dst[0]  # <- 2

    src, dst, out = (shmem.ones(32, dtype="float32") for _ in range(3))
    flag, other = shmem.zeros(1, dtype="uint64"), 1 - shmem.my_pe()
    first, second = shmem.stream(), shmem.stream()
    send[1, 32, first](dst, src, other)
    notify[1, 1, first if FIXED else second](dst, out, flag, other)


def gradients_of_the_next_step(pes=2):
    """The next step's gradients are computed on one stream while the last ones are sent on
    another."""

    @shmem.jit
    def compute(gradient, step):
        gradient[cuda.threadIdx.x] = step  # <- 2

    @shmem.jit
    def send(there, gradient, step):
        shmem.put_nbi_block(there[32 * step :], gradient, 1 - shmem.my_pe())  # <- 1
        shmem.quiet()

    gradient, there = shmem.zeros(32, dtype="float32"), shmem.zeros(96, dtype="float32")
    first, second = shmem.stream(), shmem.stream()
    for step in range(3):
        compute[1, 32, first](gradient, step)
        first.synchronize()
        send[1, 32, second](there, gradient, step)
        if FIXED:
            second.synchronize()


def put_on_another_stream(pes=2):
    """A put is queued on one stream, the kernel that computes its source on another one."""

    # A good report: race, the store at 2 and put; missing: the host has to wait for the kernel, or
    # both run on one stream.
    @shmem.jit
    def compute(a):
        a[cuda.threadIdx.x] = cuda.threadIdx.x  # <- 2

    a, b = shmem.zeros(32, dtype="float32"), shmem.zeros(32, dtype="float32")
    first, second = shmem.stream(), shmem.stream()
    compute[1, 32, first](a)
    shmem.put(b, a, 1 - shmem.my_pe(), stream=first if FIXED else second)  # <- 1


def result_on_another_stream(pes=2):
    """A collective is queued on one stream, a kernel of another one uses its result."""

    # A good report: race, broadcast at 1 and the read; missing: the host has to wait, or both run
    # on one stream.
    @shmem.jit
    def use(dst, out):
        out[cuda.threadIdx.x] = dst[cuda.threadIdx.x]  # <- 2

    src, dst, out = (shmem.ones(32, dtype="float32") for _ in range(3))
    first, second = shmem.stream(), shmem.stream()
    shmem.broadcast(shmem.TEAM_WORLD, dst, src, 0, stream=first)  # <- 1
    if FIXED:
        first.synchronize()
    use[1, 32, second](dst, out)


def sent_and_filled_again(pes=2):
    """A put_signal is queued on a stream, and a kernel of another one fills its source again."""

    # A good report: race, put_signal and the store at 2; missing: the host has to wait, or both run
    # on one stream.
    @shmem.jit
    def fill(a):
        a[cuda.threadIdx.x] = 1  # <- 2

    src, dst = shmem.zeros(32, dtype="float32"), shmem.zeros(32, dtype="float32")
    flag, other = shmem.zeros(1, dtype="uint64"), 1 - shmem.my_pe()
    sending, computing = shmem.stream(), shmem.stream()
    shmem.put_signal(dst, src, flag, 1, shmem.SIGNAL_SET, other, stream=sending)  # <- 1
    if FIXED:
        sending.synchronize()
    fill[1, 32, computing](src)


def streams_of_a_graph(pes=1):
    """Two streams in a graph, of which the second does not wait for a kernel of the first."""

    @shmem.jit
    def fill(a):
        a[cuda.threadIdx.x] = 1  # <- 1

    @shmem.jit
    def double(a, out):
        out[cuda.threadIdx.x] = 2 * a[cuda.threadIdx.x]  # <- 2

    a, out = shmem.zeros(64, dtype="int32"), shmem.zeros(64, dtype="int32")
    first, second = shmem.stream(), shmem.stream()
    with shmem.capture(first) as graph:
        shmem.wait_stream(second, first)
        fill[1, 64, first](a)
        if FIXED:
            shmem.wait_stream(second, first)
        double[1, 64, second](a, out)
        shmem.wait_stream(first, second)
    for _ in range(2):
        graph.launch(first)


def sum_on_another_stream(pes=2):
    """A kernel reduces on one stream, and one of another stream uses the sum."""

    @shmem.jit
    def reduce(total, part):
        shmem.reduce_warp(shmem.TEAM_WORLD, total, part, "sum")  # <- 1

    @shmem.jit
    def use(total, out):
        out[cuda.threadIdx.x] = total[cuda.threadIdx.x]  # <- 2

    total, part, out = (shmem.ones(32, dtype="float32") for _ in range(3))
    communicate, compute = shmem.stream(), shmem.stream()
    reduce[1, 32, communicate](total, part)
    use[1, 32, communicate if FIXED else compute](total, out)


def two_streams(pes=1):
    """Two kernels on two streams use one array."""

    @shmem.jit
    def fill(a):
        a[cuda.threadIdx.x] = 1  # <- 1

    @shmem.jit
    def double(a, out):
        out[cuda.threadIdx.x] = 2 * a[cuda.threadIdx.x]  # <- 2

    a, out = shmem.zeros(64, dtype="int32"), shmem.zeros(64, dtype="int32")
    first, second = shmem.stream(), shmem.stream()
    fill[1, 64, first](a)
    if FIXED:
        shmem.wait_stream(second, first)
    double[1, 64, second](a, out)


def unpacked_while_packed(pes=2):
    """What has come is added to an array on one stream, from which another one still packs."""

    @shmem.jit
    def pack(field, face):
        face[cuda.threadIdx.x] = field[cuda.threadIdx.x]  # <- 1

    @shmem.jit
    def unpack(field, ghost, flag):
        if cuda.threadIdx.x == 0:
            shmem.signal_wait_until(flag, shmem.CMP_EQ, 1)
        cuda.syncthreads()
        field[cuda.threadIdx.x] += ghost[cuda.threadIdx.x]  # <- 2

    field, face, ghost, sent = (shmem.ones(32, dtype="float32") for _ in range(4))
    flag, other = shmem.zeros(1, dtype="uint64"), 1 - shmem.my_pe()
    first, second = shmem.stream(), shmem.stream()
    pack[1, 32, first](field, face)
    if FIXED:
        first.synchronize()
    shmem.put_signal(ghost, sent, flag, 1, shmem.SIGNAL_SET, other, stream=second)
    unpack[1, 32, second](field, ghost, flag)


def wait_on_another_stream(pes=2):
    """A kernel waits for the data, one on another stream uses them."""

    @shmem.jit
    def exchange(dst, src, flag):
        shmem.put_signal(dst, src, flag, 1, shmem.SIGNAL_SET, 1 - shmem.my_pe())  # <- 1
        shmem.signal_wait_until(flag, shmem.CMP_EQ, 1)

    @shmem.jit
    def use(dst, out):
        out[cuda.threadIdx.x] = dst[cuda.threadIdx.x]  # <- 2

    src, dst, out = (shmem.ones(32, dtype="float32") for _ in range(3))
    first, second = shmem.stream(), shmem.stream()
    exchange[1, 1, first](dst, src, shmem.zeros(1, dtype="uint64"))
    if FIXED:
        first.synchronize()
    use[1, 32, second](dst, out)


def waited_for_on_another_stream(pes=2):
    """One stream waits for the signal, a kernel of another one uses the data."""

    # A good report: race, put_signal and the read; missing: both run on one stream.
    @shmem.jit
    def use(dst, out):
        out[cuda.threadIdx.x] = dst[cuda.threadIdx.x]  # <- 2

    src, dst, out = (shmem.ones(32, dtype="float32") for _ in range(3))
    flag, other = shmem.zeros(1, dtype="uint64"), 1 - shmem.my_pe()
    first, second = shmem.stream(), shmem.stream()
    shmem.put_signal(dst, src, flag, 1, shmem.SIGNAL_SET, other, stream=first)  # <- 1
    shmem.signal_wait_until(flag, shmem.CMP_EQ, 1, stream=first)
    use[1, 32, first if FIXED else second](dst, out)


shmem.init()
globals()[sys.argv[1]]()
shmem.finalize()
