"""PEs that have not met, or not all of them.

Each function is a program: the first argument is its name.
"""

import sys

from numba import cuda

import gpushmem as shmem

FIXED = "fixed" in sys.argv


def collected_before_it_came(pes=2):
    """PEs collect what their neighbours have put, without waiting for it."""

    @shmem.jit
    def kernel(all_parts, part, src, flag):
        me = shmem.my_pe()
        shmem.put_signal_nbi(part, src, flag, 1, shmem.SIGNAL_SET, 1 - me)  # <- 1
        if FIXED:
            shmem.signal_wait_until(flag, shmem.CMP_EQ, 1)
        shmem.collect(shmem.TEAM_WORLD, all_parts, part[: me + 1])  # <- 2
        shmem.quiet()

    part, src, all_parts = (shmem.ones(k, dtype="float32") for k in (2, 2, 3))
    kernel[1, 1](all_parts, part, src, shmem.zeros(1, dtype="uint64"))


def get_before_it_is_written(pes=2):
    """A PE gets what its owner is still writing."""

    @shmem.jit
    def kernel(src, out):
        src[0] = shmem.my_pe()  # <- 2
        if FIXED:
            shmem.sync_all()
        shmem.get(out, src, 1 - shmem.my_pe())  # <- 1

    src, out = shmem.zeros(1, dtype="float32"), shmem.zeros(1, dtype="float32")
    kernel[1, 1](src, out)


def leader_of_a_node(pes=4):
    """The leader of a team sends on what its members have put, without a barrier of the team."""

    @shmem.jit
    def kernel(parts, own, far, team):
        me = shmem.my_pe()
        leader = me // 2 * 2
        shmem.put(parts[me % 2 :], own, leader)  # <- 1
        if FIXED:
            shmem.barrier(team)
        if me == leader:
            shmem.put(far, parts, (me + 2) % 4)  # <- 2

    parts, own, far = (shmem.ones(k, dtype="float32") for k in (2, 1, 2))
    team, _ = shmem.team_split_2d(shmem.TEAM_WORLD, 2)
    kernel[1, 1](parts, own, far, team)


def loads_from_a_peer(pes=2):
    """Threads load from a peer's array what its threads may not have stored yet."""

    @shmem.jit
    def kernel(a, out):
        i = cuda.threadIdx.x
        a[i] = i  # <- 2
        cuda.syncthreads()
        if FIXED:
            shmem.sync_all_block()
        there = shmem.peer_array(a, 1 - shmem.my_pe())
        out[i] = there[63 - i]  # <- 1

    kernel[1, 64](shmem.zeros(64, dtype="int32"), shmem.zeros(64, dtype="int32"))


def multicast_and_nobody_waits(pes=2):
    """A store reaches all PEs of a team, and none of them waits for it."""

    @shmem.jit
    def kernel(dst, out):
        i = cuda.threadIdx.x
        if shmem.my_pe() == 0:
            shmem.multicast_array(dst, shmem.TEAM_WORLD)[i] = i  # <- 1
        if FIXED:
            cuda.syncthreads()
            shmem.barrier_all_block()
        out[i] = dst[i]  # <- 2

    kernel[1, 32](shmem.zeros(32, dtype="float32"), shmem.zeros(32, dtype="float32"))


def neighbours_number(pes=3):
    """Each PE stores a number, and g reads the neighbour's before it is there."""

    @shmem.jit
    def kernel(numbers, out):
        me, n = shmem.my_pe(), shmem.n_pes()
        numbers[0] = 10 * me  # <- 2
        if FIXED:
            shmem.sync_all()
        out[0] = shmem.g(numbers, (me + 1) % n)  # <- 1

    kernel[1, 1](shmem.zeros(1, dtype="int32"), shmem.zeros(1, dtype="int32"))


def number_in_the_team(pes=4):
    """A team's barrier completes what its members have put to each other, but this went
    elsewhere."""

    @shmem.jit
    def kernel(dst, src, out, team):
        me = shmem.team_my_pe(team)
        pe = 1 - me
        if FIXED:
            pe = shmem.team_translate_pe(team, pe, shmem.TEAM_WORLD)
        if shmem.my_pe() > 1:
            shmem.put(dst, src, pe)  # <- 1
        shmem.barrier(team)
        out[0] = dst[0]  # <- 2

    src, dst, out = (shmem.ones(8, dtype="int32") for _ in range(3))
    team, _ = shmem.team_split_2d(shmem.TEAM_WORLD, 2)
    kernel[1, 1](dst, src, out, team)


def reader_outside_the_team(pes=3):
    """The reader is not in the team whose barrier completes the data."""

    @shmem.jit
    def kernel(dst, src, out, team):
        me = shmem.my_pe()
        if me == 0:
            shmem.put(dst, src, 2)  # <- 1
        if FIXED:
            shmem.barrier_all()
        elif me < 2:
            shmem.barrier(team)
        if me == 2:
            out[0] = dst[0]  # <- 2

    src, dst = shmem.ones(8, dtype="float32"), shmem.zeros(8, dtype="float32")
    pair = shmem.team_split_strided(shmem.TEAM_WORLD, 0, 1, 2)
    kernel[1, 1](dst, src, shmem.zeros(1, dtype="float32"), pair)


def result_of_another_pe(pes=3):
    """A collective is complete on the PE that returns from it; others may still be in it."""

    @shmem.jit
    def kernel(dst, src, out):
        me, n = shmem.my_pe(), shmem.n_pes()
        shmem.fcollect(shmem.TEAM_WORLD, dst, src)  # <- 1
        if FIXED:
            shmem.sync_all()
        shmem.get(out, dst, (me + 1) % n)  # <- 2

    src, dst, out = (shmem.ones(k, dtype="float32") for k in (4, 12, 12))
    kernel[1, 1](dst, src, out)


def row_for_column(pes=4):
    """Data go to the next PE of the column, and the barrier is that of the row."""

    @shmem.jit
    def kernel(dst, src, out, row, column):
        me = shmem.team_my_pe(column)
        below = shmem.team_translate_pe(column, 1 - me, shmem.TEAM_WORLD)
        shmem.put(dst, src, below)  # <- 1
        shmem.barrier(column if FIXED else row)
        out[0] = dst[0]  # <- 2

    src, dst, out = (shmem.ones(8, dtype="float32") for _ in range(3))
    row, column = shmem.team_split_2d(shmem.TEAM_WORLD, 2)
    kernel[1, 1](dst, src, out, row, column)


def scattered_sums_changed(pes=2):
    """A PE puts into its neighbour's part of a sum, which is still being made."""

    @shmem.jit
    def kernel(part, src, bonus):
        other = 1 - shmem.my_pe()
        shmem.reducescatter(shmem.TEAM_WORLD, part, src, "sum")  # <- 2
        if FIXED:
            shmem.sync_all()
        shmem.put(part, bonus, other)  # <- 1

    part, src, bonus = (shmem.ones(k, dtype="float64") for k in (3, 6, 3))
    kernel[1, 1](part, src, bonus)


def sent_to_the_root_then_broadcast(pes=3):
    """PEs put their parts into what the root broadcasts, and meet by sync, which completes
    nothing."""

    @shmem.jit
    def kernel(table, src, copy):
        me = shmem.my_pe()
        shmem.put(table[2 * me :], src, 1)  # <- 1
        if FIXED:
            shmem.barrier_all()
        else:
            shmem.sync_all()
        shmem.broadcast(shmem.TEAM_WORLD, copy, table, 1)  # <- 2

    table, src, copy = (shmem.ones(k, dtype="int32") for k in (6, 2, 6))
    kernel[1, 1](table, src, copy)


def strides_that_meet(pes=3):
    """Two PEs send every second and every third element, and meet at every sixth."""

    @shmem.jit
    def kernel(dst, src):
        me = shmem.my_pe()
        if me == 1:
            shmem.iput_block(dst, src, 2, 1, 16, 0)  # <- 1
        elif me == 2:
            step = 2 if FIXED else 3
            shmem.iput_block(dst[1 if FIXED else 0 :], src, step, 1, 10, 0)  # <- 2

    src, dst = shmem.ones(16, dtype="int64"), shmem.zeros(32, dtype="int64")
    kernel[1, 32](dst, src)


def sum_in_place_and_get(pes=2):
    """A sum replaces its argument in place, while another PE still gets the old values."""

    @shmem.jit
    def kernel(a, old):
        shmem.get_block(old, a, 1 - shmem.my_pe())  # <- 1
        if FIXED:
            shmem.sync_all_block()
        shmem.reduce_block(shmem.TEAM_WORLD, a, a, "sum")  # <- 2

    kernel[1, 32](shmem.ones(32, dtype="float32"), shmem.zeros(32, dtype="float32"))


def two_senders_one_place(pes=3):
    """Two PEs write to the same place of a third."""

    @shmem.jit
    def kernel(dst, src):
        me = shmem.my_pe()
        if me > 0:
            shmem.put(dst[me if FIXED else 0 :], src[:1], 0)  # <- 1 <- 2

    src = shmem.full(64, shmem.my_pe(), dtype="float32")
    dst = shmem.zeros(64, dtype="float32")
    kernel[1, 1](dst, src)


shmem.init()
globals()[sys.argv[1]]()
shmem.finalize()
