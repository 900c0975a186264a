"""Blocks, threads and kernels of one PE, whose atomic operations may come in another order.

Each function is a program: the first argument is its name.
"""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv


def total_set_by_the_last_block(pes=1):
    """The last block sets the total to 0 after it has come, as if nobody came later."""

    @shmem.jit
    def kernel(parts, total, come):
        b, n = cuda.blockIdx.x, cuda.gridDim.x
        if b == n - 1 and FIXED:
            total[0] = 0
        parts[b] = b
        cuda.threadfence()
        ticket = cuda.atomic.add(come, 0, 1)
        if b == n - 1 and not FIXED:
            total[0] = 0  # <- 1
        if ticket == n - 1:
            cuda.threadfence()
            for k in range(n):
                total[0] += parts[k]  # <- 2

    parts, total = shmem.zeros(3, dtype="int32"), shmem.zeros(1, dtype="int32")
    kernel[3, 1](parts, total, shmem.zeros(1, dtype="int32"))


def section_entered_without_the_lock(pes=1):
    """A block that does not get a lock does what it had to do all the same."""

    @shmem.jit
    def kernel(lock, total, missed):
        got = cuda.atomic.cas(lock, 0, 0, 1) == 0
        if not got:
            cuda.atomic.add(missed, 0, 1)
        if got or not FIXED:
            cuda.threadfence()
            total[0] += 1  # <- 1 <- 2
        if got:
            cuda.threadfence()
            cuda.atomic.exch(lock, 0, 0)

    kernel[2, 1](*(shmem.zeros(1, dtype="int32") for _ in range(3)))


def lock_of_another_given_back(pes=1):
    """A block gives a lock back that it has not got."""

    @shmem.jit
    def kernel(lock, total):
        got = cuda.atomic.exch(lock, 0, 1) == 0
        if got:
            cuda.threadfence()
            total[0] += 1  # <- 1 <- 2
            cuda.threadfence()
        if got or not FIXED:
            cuda.atomic.exch(lock, 0, 0)

    kernel[3, 1](shmem.zeros(1, dtype="int32"), shmem.zeros(1, dtype="int32"))


def the_greatest_so_far(pes=1):
    """Each block that has found a greater number than the ones before stores where."""

    @shmem.jit
    def kernel(best, where):
        b = cuda.blockIdx.x
        mine = 10 - b
        if FIXED:
            cuda.atomic.max(best, 0, mine * 16 + b)
        elif cuda.atomic.max(best, 0, mine) < mine:
            where[0] = b  # <- 1 <- 2

    kernel[2, 1](shmem.zeros(1, dtype="int32"), shmem.zeros(1, dtype="int32"))


def bits_of_blocks(pes=1):
    """The block that completes a set of bits adds what all have stored; the last block, which
    usually is that one, has no fence."""

    @shmem.jit
    def kernel(parts, total, bits):
        b, n = cuda.blockIdx.x, cuda.gridDim.x
        parts[b] = b  # <- 1
        if b < n - 1 or FIXED:
            cuda.threadfence()
        if cuda.atomic.or_(bits, 0, 1 << b) | 1 << b == (1 << n) - 1:
            cuda.threadfence()
            for k in range(n):
                total[0] += parts[k]  # <- 2

    parts, total = shmem.zeros(3, dtype="int32"), shmem.zeros(1, dtype="int32")
    kernel[3, 1](parts, total, shmem.zeros(1, dtype="int32"))


def last_thread_of_a_block(pes=1):
    """The last of a block's threads to count itself in shared memory adds what they have stored;
    one of them has no fence."""

    @shmem.jit
    def kernel(parts, total):
        i, n = cuda.threadIdx.x, cuda.blockDim.x
        count = cuda.shared.array(1, dtype="int32")
        if i == 0:
            count[0] = 0
        cuda.syncthreads()
        parts[i] = i  # <- 1
        if i < n - 1 or FIXED:
            cuda.threadfence()
        if cuda.atomic.add(count, 0, 1) == n - 1:
            cuda.threadfence()
            for k in range(n):
                total[0] += parts[k]  # <- 2

    kernel[1, 3](shmem.zeros(3, dtype="int32"), shmem.zeros(1, dtype="int32"))


def counter_cleared_atomically(pes=1):
    """As above; the counter is cleared by an atomic operation, which others wait for."""

    @shmem.jit
    def kernel(parts, total):
        i, n = cuda.threadIdx.x, cuda.blockDim.x
        count = cuda.shared.array(1, dtype="int32")
        if i == 0:
            cuda.atomic.exch(count, 0, 0)
        cuda.syncthreads()
        parts[i] = i  # <- 1
        if i < n - 1 or FIXED:
            cuda.threadfence()
        if cuda.atomic.add(count, 0, 1) == n - 1:
            cuda.threadfence()
            for k in range(n):
                total[0] += parts[k]  # <- 2

    kernel[1, 3](shmem.zeros(3, dtype="int32"), shmem.zeros(1, dtype="int32"))


def fence_of_the_block(pes=1):
    """As above; the fence is of the block only, which is enough for its threads."""

    @shmem.jit
    def kernel(parts, total):
        i, n = cuda.threadIdx.x, cuda.blockDim.x
        count = cuda.shared.array(1, dtype="int32")
        if i == 0:
            count[0] = 0
        cuda.syncthreads()
        parts[i] = i  # <- 1
        if i < n - 1 or FIXED:
            cuda.threadfence_block()
        if cuda.atomic.add(count, 0, 1) == n - 1:
            cuda.threadfence_block()
            for k in range(n):
                total[0] += parts[k]  # <- 2

    kernel[1, 3](shmem.zeros(3, dtype="int32"), shmem.zeros(1, dtype="int32"))


def the_second_of_two_streams(pes=1):
    """Of two kernels on two streams the second to end adds both parts; one has no fence."""

    @shmem.jit
    def kernel(parts, total, ended, k, fenced):
        parts[k] = k + 1  # <- 1
        if fenced:
            cuda.threadfence()
        if cuda.atomic.add(ended, 0, 1) == 1:
            cuda.threadfence()
            total[0] = parts[0] + parts[1]  # <- 2

    parts, total = shmem.zeros(2, dtype="int32"), shmem.zeros(1, dtype="int32")
    ended, first, second = shmem.zeros(1, dtype="int32"), shmem.stream(), shmem.stream()
    kernel[1, 1, first](parts, total, ended, 0, True)
    kernel[1, 1, second](parts, total, ended, 1, FIXED)


def two_streams_ask_and_add(pes=1):
    """Kernels on two streams take a slot each: what is free is read and then counted."""

    @shmem.jit
    def kernel(slots, free, value):
        if FIXED:
            slot = shmem.atomic_fetch_inc(free, 0)
        else:
            slot = shmem.atomic_fetch(free, 0)
            shmem.atomic_inc(free, 0)
        slots[slot] = value  # <- 1 <- 2

    slots, free = shmem.zeros(2, dtype="int32"), shmem.zeros(1, dtype="int32")
    first, second = shmem.stream(), shmem.stream()
    kernel[1, 1, first](slots, free, 1)
    kernel[1, 1, second](slots, free, 2)


def block_that_finds_a_message(pes=2):
    """One of two blocks takes a message from another PE; block 1 has not waited for it, but seen
    by g that it is there."""

    @shmem.jit
    def kernel(box, src, out, flag, taken):
        b = cuda.blockIdx.x
        if shmem.my_pe() == 1:
            if b == 0:
                shmem.put_signal(box, src, flag, 1, shmem.SIGNAL_SET, 0)  # <- 1
        elif cuda.atomic.add(taken, 0, 1) == 0:
            if b == 0 or FIXED:
                shmem.signal_wait_until(flag, shmem.CMP_EQ, 1)
                out[0] = box[0]
            elif shmem.g(flag, 0) == 1:
                out[0] = box[0]  # <- 2

    box, src, out = (shmem.ones(1, dtype="float32") for _ in range(3))
    flag, taken = shmem.zeros(1, dtype="uint64"), shmem.zeros(1, dtype="int32")
    kernel[2, 1](box, src, out, flag, taken)


def cleared_after_it_was_set(pes=1):
    """One block clears a word in which another one leaves a number."""

    @shmem.jit
    def kernel(word):
        if cuda.blockIdx.x == 1:
            cuda.atomic.exch(word, 0, 7)
        elif not FIXED:
            cuda.atomic.exch(word, 0, 0)  # <- fails

    word = shmem.zeros(1, dtype="int32")
    kernel[2, 1](word)
    if word.numpy()[0] != 7:
        raise RuntimeError("the number is lost")


def taken_by_who_is_not_asked(pes=1):
    """A block takes a word if it is still free, without a look at whether it has got it, which
    its owner thinks to be the only one to count in."""

    @shmem.jit
    def kernel(word):
        if cuda.blockIdx.x == 0:
            cuda.atomic.add(word, 0, 1)
        elif not FIXED:
            cuda.atomic.cas(word, 0, 0, 5)  # <- fails

    word = shmem.zeros(1, dtype="int32")
    kernel[2, 1](word)
    if word.numpy()[0] != 1:
        raise RuntimeError("the count is wrong")


shmem.init()
globals()[sys.argv[1]]()
shmem.finalize()
