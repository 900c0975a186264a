"""Steps that use the memory of the step before, or wait for its signal.

Each function is a program: the first argument is its name.
"""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv


def both_halves_in_one_buffer(pes=2):
    """Two buffers are used in turn, but the sender takes the wrong one of them."""

    @shmem.jit
    def kernel(buffers, src, out, flag):
        other = 1 - shmem.my_pe()
        for step in range(1, 5):
            half = 4 * (step % 2)
            shmem.fence()
            slot = buffers[half if FIXED else 0 :]
            shmem.put_signal(  # <- 1
                slot, src[step : step + 4], flag, step, shmem.SIGNAL_SET, other
            )
            shmem.signal_wait_until(flag, shmem.CMP_GE, step)
            out[step] = slot[0]  # <- 2

    src, buffers, out = (shmem.ones(k, dtype="float32") for k in (8, 8, 5))
    kernel[1, 1](buffers, src, out, shmem.zeros(1, dtype="uint64"))


def children_before_the_parent(pes=4):
    """A tree of PEs passes a table down; an inner PE does so before its parent has sent it."""

    @shmem.jit
    def kernel(table, flag):
        i, me, n = cuda.threadIdx.x, shmem.my_pe(), shmem.n_pes()
        if me > 0 and i == 0 and (FIXED or 2 * me + 1 >= n):
            shmem.signal_wait_until(flag, shmem.CMP_EQ, 1)
        cuda.syncthreads()
        for child in range(2 * me + 1, min(2 * me + 3, n)):
            shmem.put_signal_block(table, table, flag, 1, shmem.SIGNAL_SET, child)  # <- 1 <- 2

    table = shmem.full(32, shmem.my_pe(), dtype="int32")
    kernel[1, 32](table, shmem.zeros(1, dtype="uint64"))


def cleared_after_the_allocation(pes=2):
    """The owner clears its flags in a kernel, when the neighbour may have set them already."""

    @shmem.jit
    def clear(flags):
        flags[cuda.threadIdx.x] = 0  # <- 2

    @shmem.jit
    def send(dst, src, flags):
        other = 1 - shmem.my_pe()
        shmem.put_signal(dst, src, flags, 1, shmem.SIGNAL_SET, other)  # <- 1

    src, dst = shmem.ones(8, dtype="float32"), shmem.zeros(8, dtype="float32")
    flags = shmem.empty(4, dtype="uint64")
    clear[1, 4](flags)
    if FIXED:
        shmem.barrier_all()
    send[1, 1](dst, src, flags)


def kernel_ends_before_all_came(pes=3):
    """A kernel ends when all has been sent; the next one reads what others send to this PE."""

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

    src, tokens = shmem.ones(4, dtype="float32"), shmem.zeros(12, dtype="float32")
    arrived, out = shmem.zeros(1, dtype="uint64"), shmem.zeros(1, dtype="float32")
    dispatch[1, 1](tokens, src, arrived)
    combine[1, 1](tokens, out)


def no_barrier_at_the_beginning(pes=2):
    """A kernel adds what the kernels before it have filled on all PEs, which may be late."""

    @shmem.jit
    def fill(arg):
        arg[cuda.threadIdx.x] = shmem.my_pe()  # <- 2

    @shmem.jit
    def add(total, arg):
        i = cuda.threadIdx.x
        if FIXED:
            shmem.sync_all_block()
        total[i] = arg[i] + shmem.peer_array(arg, 1 - shmem.my_pe())[i]  # <- 1

    arg, total = shmem.zeros(32, dtype="float32"), shmem.zeros(32, dtype="float32")
    fill[1, 32](arg)
    add[1, 32](total, arg)


def no_barrier_at_the_end(pes=3):
    """A kernel adds its peers' arguments and ends; the next one writes an argument still being
    read."""

    # A good report: race, the loads at 1 and the store at 2; missing: PE 0 has to tell PE 1.
    @shmem.jit
    def fill(arg, step):
        arg[cuda.threadIdx.x] = step  # <- 2

    @shmem.jit
    def add(total, arg, step):
        i = cuda.threadIdx.x
        shmem.sync_all_block()
        for pe in range(shmem.n_pes()):
            total[32 * step + i] += shmem.peer_array(arg, pe)[i]  # <- 1
        if FIXED:
            cuda.syncthreads()
            shmem.sync_all_block()

    arg, total = shmem.zeros(32, dtype="float32"), shmem.zeros(64, dtype="float32")
    for step in range(2):
        fill[1, 32](arg, step)
        add[1, 32](total, arg, step)


def one_barrier_per_step(pes=2):
    """A loop has a barrier before data are read, but none before they are written again."""

    @shmem.jit
    def kernel(dst, src, out):
        other = 1 - shmem.my_pe()
        for step in range(3):
            shmem.put(dst, src[step:], other)  # <- 1
            shmem.barrier_all()
            out[step] = dst[0]  # <- 2
            if FIXED:
                shmem.sync_all()

    src, dst, out = (shmem.ones(4, dtype="float32") for _ in range(3))
    kernel[1, 1](dst, src, out)


def one_of_two_readers(pes=3):
    """A box has two readers, and is written again when one of them is done."""

    @shmem.jit
    def kernel(box, src, out, flag, done):
        me = shmem.my_pe()
        for step in range(1, 3):
            if me == 0:
                for pe in range(1, 3):
                    shmem.put_signal(box, src, flag, step, shmem.SIGNAL_SET, pe)  # <- 1
                shmem.signal_wait_until(done, shmem.CMP_GE, 2 * step if FIXED else 2 * step - 1)
            else:
                shmem.signal_wait_until(flag, shmem.CMP_GE, step)  # <- 3
                out[step] = box[0]  # <- 2
                shmem.signal_op(done, 1, shmem.SIGNAL_ADD, 0)

    src, box = shmem.ones(8, dtype="float32"), shmem.zeros(8, dtype="float32")
    flag, done = shmem.zeros(1, dtype="uint64"), shmem.zeros(1, dtype="uint64")
    kernel[1, 1](box, src, shmem.zeros(3, dtype="float32"), flag, done)


def one_slot_too_few(pes=2):
    """A sender may be two messages ahead, but there is only one slot more than are being read."""

    @shmem.jit
    def kernel(slots, src, out, sent, taken):
        depth = 3 if FIXED else 2
        for step in range(6):
            slot = 6 * (step % depth)
            shmem.fence()
            if shmem.my_pe() == 0:
                if step > 2:
                    shmem.signal_wait_until(taken, shmem.CMP_GE, step - 2)
                shmem.put_signal(  # <- 1
                    slots[slot:], src[step:], sent, step + 1, shmem.SIGNAL_SET, 1
                )
            else:
                shmem.signal_wait_until(sent, shmem.CMP_GE, step + 1)
                out[step] = slots[slot]  # <- 2
                shmem.signal_op(taken, step + 1, shmem.SIGNAL_SET, 0)

    src, slots = shmem.ones(6, dtype="float32"), shmem.zeros(18, dtype="float32")
    sent, taken = shmem.zeros(1, dtype="uint64"), shmem.zeros(1, dtype="uint64")
    kernel[1, 1](slots, src, shmem.zeros(6, dtype="float32"), sent, taken)


def one_step_behind(pes=2):
    """A consumer waits for the step before the one whose data it uses."""

    @shmem.jit
    def kernel(box, src, out, step_done):
        other = 1 - shmem.my_pe()
        for step in range(3):
            slot = box[4 * step : 4 * step + 4]
            shmem.put(slot, src, other)  # <- 1
            shmem.fence()
            shmem.signal_op(step_done, step + 1, shmem.SIGNAL_SET, other)
            shmem.signal_wait_until(step_done, shmem.CMP_GE, step + 1 if FIXED else step)
            out[step] = slot[0]  # <- 2

    src, box = shmem.ones(4, dtype="float32"), shmem.zeros(12, dtype="float32")
    kernel[1, 1](box, src, shmem.zeros(3, dtype="float32"), shmem.zeros(1, dtype="uint64"))


def packed_again_while_fetched(pes=2):
    """A PE packs its boundary again while its neighbour still gets the last one."""

    @shmem.jit
    def kernel(face, ghost, ready):
        i, other = cuda.threadIdx.x, 1 - shmem.my_pe()
        for step in range(1, 4):
            at = 32 * (step % 2) if FIXED else 0
            face[at + i] = step  # <- 2
            cuda.syncthreads()
            if i == 0:
                shmem.quiet()
                shmem.signal_op(ready, step, shmem.SIGNAL_SET, other)
                shmem.signal_wait_until(ready, shmem.CMP_GE, step)
            cuda.syncthreads()
            shmem.get_block(ghost[32 * step - 32 : 32 * step], face[at : at + 32], other)  # <- 1

    face, ghost = shmem.zeros(64, dtype="float32"), shmem.zeros(96, dtype="float32")
    kernel[1, 32](face, ghost, shmem.zeros(1, dtype="uint64"))


def partial_sum_overwritten(pes=3):
    """A ring adds partial sums; the left neighbour sends the next one before this one is used."""

    @shmem.jit
    def kernel(box, total, flag, taken):
        me, n = shmem.my_pe(), shmem.n_pes()
        for step in range(1, n):
            shmem.put_signal(box, total, flag, step, shmem.SIGNAL_SET, (me + 1) % n)  # <- 1
            shmem.signal_wait_until(flag, shmem.CMP_GE, step)  # <- 3
            total[0] += box[0]  # <- 2
            if FIXED:
                shmem.signal_op(taken, step, shmem.SIGNAL_SET, (me + n - 1) % n)
                shmem.signal_wait_until(taken, shmem.CMP_GE, step)

    box, total = shmem.zeros(1, dtype="float32"), shmem.ones(1, dtype="float32")
    kernel[1, 1](box, total, shmem.zeros(1, dtype="uint64"), shmem.zeros(1, dtype="uint64"))


def passed_on_before_it_came(pes=3):
    """A PE of a ring passes its box on without having waited for what comes into it."""

    @shmem.jit
    def kernel(box, flag):
        me, n = shmem.my_pe(), shmem.n_pes()
        if me > 0 and FIXED:
            shmem.signal_wait_until(flag, shmem.CMP_EQ, 1)
        if me < n - 1:
            shmem.put_signal(box, box, flag, 1, shmem.SIGNAL_SET, me + 1)  # <- 1 <- 2

    kernel[1, 1](shmem.full(16, shmem.my_pe(), dtype="float32"), shmem.zeros(1, dtype="uint64"))


def reset_after_the_acknowledgement(pes=2):
    """A reader lets the writer go on, and only then resets the flag, perhaps after the next
    message."""

    @shmem.jit
    def kernel(dst, src, out, flag, ack):
        if shmem.my_pe() == 0:
            shmem.put_signal(dst, src, flag, 1, shmem.SIGNAL_SET, 1)
            shmem.signal_wait_until(ack, shmem.CMP_EQ, 1)
            shmem.put_signal(dst, src, flag, 1, shmem.SIGNAL_SET, 1)  # <- 1
        else:
            shmem.signal_wait_until(flag, shmem.CMP_EQ, 1)
            out[0] = dst[0]
            if FIXED:
                flag[0] = 0
                shmem.quiet()
            shmem.signal_op(ack, 1, shmem.SIGNAL_SET, 0)
            if not FIXED:
                flag[0] = 0  # <- 2

    src, dst = shmem.ones(8, dtype="float32"), shmem.zeros(8, dtype="float32")
    flag, ack = shmem.zeros(1, dtype="uint64"), shmem.zeros(1, dtype="uint64")
    kernel[1, 1](dst, src, shmem.zeros(1, dtype="float32"), flag, ack)


def reset_by_a_plain_store(pes=2):
    """A flag is set to 1 in each step, and is not reset in between."""

    @shmem.jit
    def kernel(slots, src, out, flag, ack):
        for step in range(1, 4):
            if shmem.my_pe() == 0:
                shmem.put_signal(slots[step:], src, flag, 1, shmem.SIGNAL_SET, 1)  # <- 1
                shmem.signal_wait_until(ack, shmem.CMP_GE, step if FIXED else 0)
            else:
                shmem.signal_wait_until(flag, shmem.CMP_EQ, 1)
                out[step] = slots[step]  # <- 2
                if FIXED:
                    flag[0] = 0
                    shmem.quiet()
                    shmem.signal_op(ack, step, shmem.SIGNAL_SET, 0)

    src, slots, out = (shmem.ones(k, dtype="float32") for k in (1, 4, 4))
    kernel[1, 1](slots, src, out, shmem.zeros(1, dtype="uint64"), shmem.zeros(1, dtype="uint64"))


def ring_a_step_ahead(pes=4):
    """A PE of a ring passes on, in each step, the part for which it waits only in the next one."""

    @shmem.jit
    def kernel(parts, flags):
        me, n = shmem.my_pe(), shmem.n_pes()
        right = (me + 1) % n
        for step in range(n - 1):
            k = (me + n - step) % n
            flag, part = flags[k:], parts[k : k + 1]
            if step > 0 and FIXED:
                shmem.signal_wait_until(flag, shmem.CMP_EQ, 1)
            shmem.put_signal(part, part, flag, 1, shmem.SIGNAL_SET, right)  # <- 1 <- 2
            if step > 0 and not FIXED:
                shmem.signal_wait_until(flag, shmem.CMP_EQ, 1)

    kernel[1, 1](shmem.ones(4, dtype="float32"), shmem.zeros(4, dtype="uint64"))


def value_that_may_be_missed(pes=2):
    """A signal is set to the next step, when a slow PE may still wait for the last one."""

    @shmem.jit
    def kernel(flag, out, ack):
        for step in range(1, 3):
            if shmem.my_pe() == 0:
                shmem.fence()
                shmem.signal_op(flag, step, shmem.SIGNAL_SET, 1)  # <- 1
                if FIXED:
                    shmem.signal_wait_until(ack, shmem.CMP_GE, step)
            else:
                out[step] = shmem.signal_wait_until(flag, shmem.CMP_EQ, step, 10**8)  # <- 2
                shmem.signal_op(ack, step, shmem.SIGNAL_SET, 0)

    flag, ack = shmem.zeros(1, dtype="uint64"), shmem.zeros(1, dtype="uint64")
    kernel[1, 1](flag, shmem.zeros(3, dtype="int32"), ack)


def exchange_then_gather(pes=2):
    """After an exchange a fast PE sends into the workspace that a slow one is still reading."""

    @shmem.jit
    def kernel(work, src, out, flag):
        i, other = cuda.threadIdx.x, 1 - shmem.my_pe()
        shmem.alltoall_block(shmem.TEAM_WORLD, work, src)
        shmem.barrier_all_block()
        out[i] = work[i]  # <- 2
        cuda.syncthreads()
        if FIXED:
            shmem.sync_all_block()
        shmem.put_signal_block(work, src, flag, 1, shmem.SIGNAL_SET, other)  # <- 1
        if i == 0:
            shmem.signal_wait_until(flag, shmem.CMP_EQ, 1)

    work, src, out = (shmem.ones(32, dtype="float32") for _ in range(3))
    kernel[1, 32](work, src, out, shmem.zeros(1, dtype="uint64"))


def argument_still_read(pes=2):
    """A kernel adds its peer's argument and ends; the next one changes an argument still being
    read."""

    @shmem.jit
    def fill(arg, step):
        arg[cuda.threadIdx.x] = step  # <- 2

    @shmem.jit
    def add(total, arg):
        i = cuda.threadIdx.x
        shmem.barrier_all_block()
        total[i] = arg[i] + shmem.peer_array(arg, 1 - shmem.my_pe())[i]  # <- 1
        if FIXED:
            cuda.syncthreads()
            shmem.sync_all_block()

    arg, total = shmem.zeros(32, dtype="float32"), shmem.zeros(32, dtype="float32")
    fill[1, 32](arg, 1)
    shmem.synchronize()
    add[1, 32](total, arg)
    fill[1, 32](arg, 2)


def argument_of_a_slow_pe(pes=2):
    """A PE that has its sum puts to the source of another one, which may still be adding."""

    @shmem.jit
    def kernel(total, arg, two):
        shmem.reduce(shmem.TEAM_WORLD, total, arg, "sum")  # <- 2
        if FIXED:
            shmem.sync_all()
        if shmem.my_pe() == 1:
            shmem.put(arg, two, 0)  # <- 1

    arg, total, two = (shmem.ones(1, dtype="int32") for _ in range(3))
    kernel[1, 1](total, arg, two)


shmem.init()
globals()[sys.argv[1]]()
shmem.finalize()
