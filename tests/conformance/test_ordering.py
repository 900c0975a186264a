"""What docs/memory-model.md promises of order, as litmus tests: many rounds with random delays.

Each kernel draws a delay before each step, checks what it sees itself and counts what is wrong,
per way of ordering and way of looking, so that a failure names the pair.
"""
# ruff: noqa: PLR0912  (kernels that switch between the ways)

import os

import numpy as np
import pytest
from numba import cuda

import gpushmem as shmem
from tests import pes
from tests.pes import compile_first, repeated, sendable, to_send, whole_warps

PES = [3, *(pytest.param(n, marks=pytest.mark.sweep) for n in (2, 4))]
# More PEs than cores take turns, which takes time.
ROUNDS = {2: 100_000, 3: 30_000, 4: 20_000}
if pes.NODES > 1:
    ROUNDS = {2: 2000, 3: 500, 4: 300}
if os.environ.get("GPUSHMEM_MEMORY") == "weak":  # each round is in an order of its own: few will do
    ROUNDS = {2: 500, 3: 300, 4: 200}
if pes.CHECKED:
    ROUNDS = dict.fromkeys(ROUNDS, 100)
W = 12  # elements of a message
POISON = -7


def in_pes(run_pes, n_pes, body):
    """What `body` returns in each of `n_pes` PEs, between `init` and `finalize`."""

    def whole():
        shmem.init()
        result = body()
        shmem.barrier_all()
        shmem.finalize()
        return result

    return run_pes(whole, n_pes, timeout=40)


def named(counts, *names):
    """The counts that are not 0, with what they count; several PEs' together."""
    total = np.sum(counts, axis=0)
    return {
        tuple(of[i] for of, i in zip(names, where, strict=True)): int(total[tuple(where)])
        for where in np.argwhere(total)
    }


@shmem.jit(device=True)
def delayed(state):
    """Spin for a random time, from nothing to about the time that a cache line takes to travel."""
    state = state * 6364136223846793005 + 1442695040888963407
    for _ in range((state >> 33) & ((1 << ((state >> 29) & 7)) - 1)):
        state = state * 6364136223846793005 + 1442695040888963407
    return state


def seed(pe):
    return 88172645463325252 + 7919 * pe


# --- ways of sending, of ordering and of looking


@shmem.jit(device=True)
def by_p(row, src, pe):
    for i in range(src.size):
        shmem.p(row[i:], src[i], pe)


@shmem.jit(device=True)
def by_put(row, src, pe):
    shmem.put(row, src, pe)


@shmem.jit(device=True)
def by_put_nbi(row, src, pe):
    shmem.put_nbi(row, src, pe)


@shmem.jit(device=True)
def by_iput(row, src, pe):
    half = src.size // 2
    shmem.iput(row[1:], src[1:], 2, 2, half, pe)
    shmem.iput(row, src, 2, 2, half, pe)


@shmem.jit(device=True)
def by_store(row, src, pe):
    there = shmem.peer_array(row, pe)
    if there.ctypes.data == 0:  # on another node
        by_p(row, src, pe)
        return
    for i in range(src.size):
        there[i] = src[i]


@shmem.jit(device=True)
def store(place, value, pe):
    there = shmem.peer_array(place, pe)
    if there.ctypes.data == 0:
        shmem.p(place, value, pe)
    else:
        there[0] = value


SENDS = {"p": by_p, "put": by_put, "put_nbi": by_put_nbi, "iput": by_iput, "store": by_store}
ORDERS = ["fence, SIGNAL_SET", "fence, SIGNAL_ADD", "fence, p", "fence, atomic_set",
          "fence, atomic_inc", "fence, put_signal", "fence, atomic_swap", "fence, atomic_fetch_add",
          "quiet, signal_op", "barrier_all"]  # fmt: skip
BARRIER = len(ORDERS) - 1


@shmem.jit(device=True)
def announce(order, k, flag, more, src, pe):
    """Say in `flag` on `pe` that message k is there, in order after the data."""
    if order < 8:
        shmem.fence()
    if order == 0:
        shmem.signal_op(flag, k, shmem.SIGNAL_SET, pe)
    elif order == 1:
        shmem.signal_op(flag, 1, shmem.SIGNAL_ADD, pe)
    elif order == 2:
        shmem.p(flag, k, pe)
    elif order == 3:
        shmem.atomic_set(flag, k, pe)
    elif order == 4:
        shmem.atomic_inc(flag, pe)
    elif order == 5:
        shmem.put_signal(more, src, flag, k, shmem.SIGNAL_SET, pe)
    elif order == 6:
        shmem.atomic_swap(flag, k, pe)
    elif order == 7:
        shmem.atomic_fetch_add(flag, 1, pe)
    elif order == 8:
        shmem.quiet()
        shmem.signal_op(flag, k, shmem.SIGNAL_SET, pe)
    else:
        shmem.p(flag, k, pe)  # for the next round, which may add to it
        shmem.barrier_all()


LOOKS = ["signal_wait_until", "wait_until", "wait_until_any", "wait_until_some",
         "wait_until_all", "wait_until_all_vector", "signal_fetch", "test", "test_any",
         "test_some", "test_all"]  # fmt: skip


@shmem.jit(device=True)
def look(how, k, flags, only_first, values, indices):
    """Come back when `flags[0]` says that message k is there. `flags[1]` stays 0."""
    if how == 0:
        shmem.signal_wait_until(flags, shmem.CMP_GE, k)
    elif how == 1:
        shmem.wait_until(flags, shmem.CMP_GE, k)
    elif how == 2:
        shmem.wait_until_any(flags, None, shmem.CMP_GE, k)
    elif how == 3:
        shmem.wait_until_some(flags, indices, None, shmem.CMP_GE, k)
    elif how == 4:
        shmem.wait_until_all(flags, only_first, shmem.CMP_GE, k)
    elif how == 5:
        values[0] = k
        shmem.wait_until_all_vector(flags, None, shmem.CMP_GE, values)
    elif how == 6:
        while shmem.signal_fetch(flags) < k:
            pass
    elif how == 7:
        while not shmem.test(flags, shmem.CMP_GE, k):
            pass
    elif how == 8:
        while shmem.test_any(flags, None, shmem.CMP_GE, k) < 0:
            pass
    elif how == 9:
        while shmem.test_some(flags, indices, None, shmem.CMP_GE, k) == 0:
            pass
    else:
        while not shmem.test_all(flags, only_first, shmem.CMP_GE, k):
            pass


N_LOOKS = len(LOOKS)


def ring_of_messages(send, early_reuse):
    """A kernel that sends to the right and checks what comes from the left.

    `early_reuse`: it overwrites the source as soon as `send` has returned.
    """

    @shmem.jit
    def message_passing(data, more, src, flags, ack, only_first, values, indices, wrong, rounds):
        me, n = shmem.my_pe(), shmem.n_pes()
        right, left = (me + 1) % n, (me - 1) % n
        state, choice = seed_of(me), seed_of(99)
        for k in range(1, rounds + 1):
            choice = choice * 6364136223846793005 + 1442695040888963407  # the same on all PEs
            order, how = (choice >> 33) % N_ORDERS, (choice >> 45) % N_LOOKS
            row = data[k % 2]
            for i in range(src.size):
                src[i] = 1000 * k + 100 * me + i
            state = delayed(state)
            send(row, src, right)
            if early_reuse:
                for i in range(src.size):
                    src[i] = POISON
            state = delayed(state)
            announce(order, k, flags, more, src, right)
            state = delayed(state)
            if order != BARRIER:
                look(how, k, flags, only_first, values, indices)
            for i in range(src.size - 1, -1, -1):
                if row[i] != 1000 * k + 100 * left + i:
                    wrong[order, how] += 1
            # Who sends to a row again knows that the message before the last has been read.
            shmem.signal_op(ack, k, shmem.SIGNAL_SET, left)
            shmem.signal_wait_until(ack, shmem.CMP_GE, k - 1)
            shmem.quiet()

    return message_passing


seed_of = shmem.jit(seed, device=True)
N_ORDERS = len(ORDERS)


@pytest.mark.parametrize("n_pes", PES)
@pytest.mark.parametrize("name", SENDS)
def test_who_sees_the_message_after_a_fence_sees_the_data(run_pes, name, n_pes):
    """What is sent, then `fence` or `quiet` or a barrier, then a flag: the flag arrives last.

    However it was sent, however the flag is written, and however the receiver looks at it. The
    source may be reused when `p`, `put` and `iput` have returned, that of `put_nbi` after `quiet`.
    """
    kernel = ring_of_messages(SENDS[name], name != "put_nbi")
    rounds = ROUNDS[n_pes]
    words, numbers = np.zeros(2, np.uint64), np.zeros(W, np.int64)
    compile_first(kernel, np.zeros((2, W), np.int64), numbers, numbers, words, words,
             np.zeros(2, np.int32), words, np.zeros(2, np.int64), np.zeros((1, 1), np.int64),
             rounds)  # fmt: skip

    def body():
        data, more = shmem.full((2, W), POISON), shmem.full(W, POISON)
        src, flags, ack = (
            shmem.zeros(W, "int64"),
            shmem.zeros(2, "uint64"),
            shmem.zeros(1, "uint64"),
        )
        wrong = shmem.to_device(np.zeros((N_ORDERS, N_LOOKS), np.int64))
        only_first = shmem.to_device(np.array([0, 1], np.int32))
        values, indices = shmem.to_device(np.zeros(2, np.uint64)), shmem.device_array(2, "int64")
        kernel[1, 1](data, more, src, flags, ack, only_first, values, indices, wrong, rounds)
        return wrong.numpy()

    assert named(in_pes(run_pes, n_pes, body), ORDERS, LOOKS) == {}


# --- put_signal


@shmem.jit
def signalled(data, src, signal, total, wrong, rounds):
    """All PEs to all, `total` counts arrivals, `signal` says who sent last."""
    me, n = shmem.my_pe(), shmem.n_pes()
    state = seed_of(me)
    for k in range(1, rounds + 1):
        state = delayed(state)
        nbi, adding = (k >> 1) & 1, k & 1
        for j in range(n):  # itself first: then it looks at once
            pe, row, mine = (me + j) % n, data[k % 2, me], src[k % 2]
            for i in range(mine.size):
                mine[i] = 1000 * k + 100 * me + i
            state = delayed(state)
            if nbi and adding:
                shmem.put_signal_nbi(row, mine, total, 1, shmem.SIGNAL_ADD, pe)
            elif nbi:
                shmem.put_signal_nbi(row, mine, signal[me:], k, shmem.SIGNAL_SET, pe)
            elif adding:
                shmem.put_signal(row, mine, total, 1, shmem.SIGNAL_ADD, pe)
            else:
                shmem.put_signal(row, mine, signal[me:], k, shmem.SIGNAL_SET, pe)
            if nbi:
                shmem.quiet()
            for i in range(mine.size):
                mine[i] = POISON
        if adding:
            seen = shmem.signal_wait_until(total, shmem.CMP_GE, n * ((k + 1) // 2))
            if seen != n * ((k + 1) // 2):
                wrong[2, 0] += 1
        else:
            shmem.wait_until_all(signal, None, shmem.CMP_GE, k)
        for pe in range(n):
            for i in range(data.shape[2] - 1, -1, -1):
                if data[k % 2, pe, i] != 1000 * k + 100 * pe + i:
                    wrong[nbi, adding] += 1
        shmem.barrier_all()


@pytest.mark.parametrize("n_pes", PES)
@pytest.mark.parametrize("width", [1, 1000])
def test_who_sees_the_signal_sees_the_data_of_all_who_signalled(run_pes, n_pes, width):
    """`put_signal` and `put_signal_nbi` make their data arrive before the signal, set or added to.

    From all PEs to all: a signal that has been added to by all of them says that the data of all
    are there, and counts exactly. The source may be reused on return, or after `quiet`.
    """
    rounds = ROUNDS[n_pes] // 4
    numbers, words = np.zeros((1, 1, 1), np.int64), np.zeros(1, np.uint64)
    compile_first(signalled, numbers, numbers[0], words, words, numbers[0], rounds)

    def body():
        data, src = shmem.full((2, n_pes, width), POISON), shmem.zeros((2, width), "int64")
        signal, total = shmem.zeros(n_pes, "uint64"), shmem.zeros(1, "uint64")
        wrong = shmem.to_device(np.zeros((3, 2), np.int64))
        signalled[1, 1](data, src, signal, total, wrong, rounds)
        return wrong.numpy()

    names = ["put_signal", "put_signal_nbi", "count"], ["SIGNAL_SET", "SIGNAL_ADD"]
    assert named(in_pes(run_pes, n_pes, body), *names) == {}


# --- several targets, several threads


@shmem.jit
def to_all(data, src, flags, wrong, rounds):
    me, n = shmem.my_pe(), shmem.n_pes()
    state = seed_of(me)
    for k in range(1, rounds + 1):
        for i in range(src.size):
            src[i] = 1000 * k + 100 * me + i
        for j in range(1, n):
            state = delayed(state)
            shmem.put_nbi(data[k % 2, me], src, (me + j) % n)
        shmem.fence()
        for j in range(1, n):
            state = delayed(state)
            shmem.p(flags[me:], k, (me + j) % n)
        for j in range(1, n):
            pe = (me + j) % n
            shmem.wait_until(flags[pe:], shmem.CMP_GE, k)
            for i in range(src.size - 1, -1, -1):
                if data[k % 2, pe, i] != 1000 * k + 100 * pe + i:
                    wrong[0] += 1
        shmem.barrier_all()


@pytest.mark.parametrize("n_pes", PES)
def test_one_fence_orders_what_goes_to_each_of_several_pes(run_pes, n_pes):
    """`fence` is per target: on each PE, what was sent to it before arrives before what follows."""
    rounds = ROUNDS[n_pes] // 2
    numbers = np.zeros((1, 1, 1), np.int64)
    compile_first(to_all, numbers, numbers[0, 0], np.zeros(1, np.int32), numbers[0, 0], rounds)

    def body():
        data, src = shmem.full((2, n_pes, W), POISON), shmem.zeros(W, "int64")
        flags, wrong = shmem.zeros(n_pes, "int32"), shmem.to_device(np.zeros(1, np.int64))
        to_all[1, 1](data, src, flags, wrong, rounds)
        return wrong.numpy()

    assert named(in_pes(run_pes, n_pes, body), ["data"]) == {}


def block_kernel(send):
    @shmem.jit
    def in_blocks(data, src, flag, ack, wrong, rounds):
        me, n = shmem.my_pe(), shmem.n_pes()
        right, left = (me + 1) % n, (me - 1) % n
        t, size = cuda.threadIdx.x, cuda.blockDim.x
        state = seed_of(me)
        for k in range(1, rounds + 1):
            row = data[k % 2]
            for i in range(t, src.size, size):
                src[i] = 1000 * k + 100 * me + i
            cuda.syncthreads()
            send(row, src, right)
            cuda.syncthreads()
            if t == 0:
                state = delayed(state)
                shmem.fence()
                shmem.signal_op(flag, k, shmem.SIGNAL_SET, right)
                shmem.signal_wait_until(flag, shmem.CMP_GE, k)
            cuda.syncthreads()
            for i in range(t, src.size, size):
                if row[i] != 1000 * k + 100 * left + i:
                    cuda.atomic.add(wrong, 0, 1)
            cuda.syncthreads()
            if t == 0:
                shmem.signal_op(ack, k, shmem.SIGNAL_SET, left)
                shmem.signal_wait_until(ack, shmem.CMP_GE, k - 1)
                shmem.quiet()
            cuda.syncthreads()

    return in_blocks


@shmem.jit(device=True)
def each_its_part(row, src, pe):
    for i in range(cuda.threadIdx.x, src.size, cuda.blockDim.x):
        shmem.p(row[i:], src[i], pe)


@shmem.jit(device=True)
def strided_in_block(row, src, pe):
    shmem.iput_block(row, src, 1, 1, src.size, pe)


GROUPS = {"each thread": (each_its_part, 8), "put_block": (shmem.put_block, whole_warps(8)),
          "put_nbi_block": (shmem.put_nbi_block, whole_warps(40)),
          "put_warp": (shmem.put_warp, 32),
          "iput_block": (strided_in_block, whole_warps(8))}  # fmt: skip


@pytest.mark.parametrize("n_pes", PES)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.sweep] * (name in ("put_warp", "iput_block")))
        for name in GROUPS
    ],
)
def test_a_fence_covers_threads_that_were_synchronised_with(run_pes, name, n_pes):
    """`fence` covers what other threads sent before a `syncthreads`, and what the group sent.

    Who waited for the signal shares what arrived with its block by `syncthreads`.
    """
    send, threads = GROUPS[name]
    rounds = ROUNDS[n_pes] // 10
    kernel = block_kernel(send)
    numbers, words = np.zeros((1, 1), np.int64), np.zeros(1, np.uint64)
    compile_first(kernel, numbers, numbers[0], words, words, numbers[0], rounds)

    def body():
        data, src = shmem.full((2, 100), POISON), shmem.zeros(100, "int64")
        flag, ack = shmem.zeros(1, "uint64"), shmem.zeros(1, "uint64")
        wrong = shmem.to_device(np.zeros(1, np.int64))
        kernel[1, threads](data, src, flag, ack, wrong, rounds)
        return wrong.numpy()

    assert named(in_pes(run_pes, n_pes, body), ["data"]) == {}


# --- store buffering

WRITES = ["p", "put_nbi", "signal_op", "atomic_add", "store"]
READS = ["g", "get", "get_nbi", "atomic_fetch"]
N_WRITES, N_READS = len(WRITES), len(READS)


@shmem.jit
def store_buffering(x, turn, one, got, seen, rounds):
    me, n = shmem.my_pe(), shmem.n_pes()
    other = (me + 1) % 2
    state, choice = seed_of(me), seed_of(99)
    for k in range(1, rounds + 1):
        choice = choice * 6364136223846793005 + 1442695040888963407
        write, read = (choice >> 33) % N_WRITES, (choice >> 45) % N_READS
        home = (choice >> 37) % n  # of PE 0's element; of PE 1's the next PE
        mine, theirs = (home + me) % n, (home + other) % n
        # Meet the other, so that both are at it at the same time.
        shmem.signal_op(turn, k, shmem.SIGNAL_SET, other)
        shmem.signal_wait_until(turn, shmem.CMP_GE, k)
        state = delayed(state)
        place, there = x[k:, me], x[k:, other]
        if write == 0:
            shmem.p(place, 1, mine)
        elif write == 1:
            shmem.put_nbi(x[k, me : me + 1], one, mine)
        elif write == 2:
            shmem.signal_op(place, 1, shmem.SIGNAL_SET, mine)
        elif write == 3:
            shmem.atomic_add(place, 1, mine)
        else:
            store(x[k, me : me + 1], 1, mine)
        shmem.quiet()
        if read == 0:
            seen[k] = shmem.g(there, theirs)
        elif read == 1:
            shmem.get(seen[k : k + 1], x[k, other : other + 1], theirs)
        elif read == 2:
            shmem.get_nbi(seen[k : k + 1], x[k, other : other + 1], theirs)
            shmem.quiet()
        else:
            seen[k] = shmem.atomic_fetch(there, theirs)
        got[k] = write * N_READS + read


@pytest.mark.gpushmem_check(False)  # its accesses are in no order: that is what it is about
@pytest.mark.parametrize("n_pes", PES)
def test_who_writes_quiets_and_reads_is_seen_or_sees(run_pes, n_pes):
    """`quiet` completes: of two PEs that write, then quiet, then read the other's, one sees it."""
    rounds = 6 * ROUNDS[n_pes]
    words = np.zeros((2, 2), np.uint64)
    compile_first(
        store_buffering, words, words[0], words[0], np.zeros(2, np.int64), words[0], rounds
    )

    def body():
        x, turn = shmem.zeros((rounds + 1, 2), "uint64"), shmem.zeros(1, "uint64")
        got = shmem.to_device(np.zeros(rounds + 1, np.int64))
        seen = to_send(np.ones(rounds + 1, np.uint64))
        one = to_send(np.ones(1, np.uint64))
        if shmem.my_pe() < 2:
            store_buffering[1, 1](x, turn, one, got, seen, rounds)
        return seen.numpy(), got.numpy()

    (first, ways), (second, _), *_ = in_pes(run_pes, n_pes, body)
    wrong = np.bincount(ways[(first == 0) & (second == 0)], minlength=N_WRITES * N_READS)
    assert named([wrong.reshape(N_WRITES, N_READS)], WRITES, READS) == {}


# --- three PEs: what one has seen, it can pass on


@shmem.jit(device=True)
def sent(how, row, src, pe):
    if how == 0:
        by_p(row, src, pe)
    elif how == 1:
        shmem.put(row, src, pe)
    elif how == 2:
        shmem.put_nbi(row, src, pe)
    else:
        by_store(row, src, pe)


RELAYED = ["p", "put", "put_nbi", "store"]
TOLD = ["quiet, signal_op", "quiet, p", "put_signal"]


@shmem.jit
def relay(data, src, told, fetched, wrong, rounds):
    """A writes to C and tells B; B tells C; C looks. In some rounds A writes to B, C gets from it.

    A, B and C take turns at their parts, so nobody has to wait for the end of a round but C.
    """
    me, n = shmem.my_pe(), shmem.n_pes()
    state, choice = seed_of(me), seed_of(99)
    for k in range(1, rounds + 1):
        choice = choice * 6364136223846793005 + 1442695040888963407
        how, order = (choice >> 33) % 4, (choice >> 45) % 3
        a, b, c = k % n, (k + 1) % n, (k + 2) % n
        row = data[k % 4]
        if me == a:
            for i in range(src.size):
                src[i] = 1000 * k + i
            state = delayed(state)
            if order == 2:
                shmem.put_signal(row, src, told, k, shmem.SIGNAL_SET, b)
            else:
                sent(how, row, src, c)
                shmem.quiet()
                if order == 0:
                    shmem.signal_op(told, k, shmem.SIGNAL_SET, b)
                else:
                    shmem.p(told, k, b)
        elif me == b:
            shmem.wait_until(told, shmem.CMP_GE, k)
            state = delayed(state)
            shmem.signal_op(told[1:], k, shmem.SIGNAL_SET, c)
        elif me == c:
            shmem.signal_wait_until(told[1:], shmem.CMP_GE, k)
            if order == 2:
                shmem.get(fetched, row, b)
                for i in range(src.size - 1, -1, -1):
                    if fetched[i] != 1000 * k + i:
                        wrong[0, order] += 1
            else:
                for i in range(src.size - 1, -1, -1):
                    if row[i] != 1000 * k + i:
                        wrong[how, order] += 1
        if k % 4 == 0:  # the rows are used again
            shmem.barrier_all()


@pytest.mark.parametrize("n_pes", [3, pytest.param(4, marks=pytest.mark.sweep)])
def test_who_is_told_by_who_was_told_sees_what_the_first_wrote(run_pes, n_pes):
    """What is complete is visible to all: to whom a PE tells that has been told of it, too."""
    rounds = ROUNDS[n_pes]
    numbers, words = np.zeros((2, 2), np.int64), np.zeros(2, np.uint64)
    compile_first(relay, numbers, numbers[0], words, numbers[0], numbers, rounds)

    def body():
        data, src, told = (
            shmem.full((4, W), POISON),
            shmem.zeros(W, "int64"),
            shmem.zeros(2, "uint64"),
        )
        wrong = shmem.to_device(np.zeros((len(RELAYED), len(TOLD)), np.int64))
        fetched = sendable(shmem.device_array(W, "int64"))
        relay[1, 1](data, src, told, fetched, wrong, rounds)
        return wrong.numpy()

    assert named(in_pes(run_pes, n_pes, body), RELAYED, TOLD) == {}


# --- one element

GROWN_BY = ["p", "put", "signal_op", "atomic_set", "store", "SIGNAL_ADD", "atomic_inc"]
FIRST_ADDING = 5
SEEN_BY = ["g", "atomic_fetch", "signal_fetch"]
WAYS = len(GROWN_BY)


@shmem.jit(device=True)
def grow(way, place, k, one):
    if way == 0:
        shmem.p(place, k, 1)
    elif way == 1:
        one[0] = k
        shmem.put(place, one[:1], 1)
    elif way == 2:
        shmem.signal_op(place, k, shmem.SIGNAL_SET, 1)
    elif way == 3:
        shmem.atomic_set(place, k, 1)
    elif way == 4:
        store(place, k, 1)
    elif way == 5:
        shmem.signal_op(place, 1, shmem.SIGNAL_ADD, 1)
    else:
        shmem.atomic_inc(place, 1)
    if way < FIRST_ADDING:
        shmem.fence()


@shmem.jit(device=True)
def read(how, place, pe):
    if how == 0:
        return shmem.g(place, pe)
    if how == 1:
        return shmem.atomic_fetch(place, pe)
    return shmem.signal_fetch(place)


@shmem.jit
def grow_and_look(x, one, done, looked, wrong, seen, rounds):
    """PE 0 writes growing values to PE 1; all others look at them, there, each before the half."""
    me, others = shmem.my_pe(), shmem.n_pes() - 1
    state = seed_of(me)
    for way in range(WAYS):
        place = x[way, :1]
        if me == 0:
            for k in range(1, rounds + 1):
                state = delayed(state)
                grow(way, place, k, one)
                if k == rounds // 2:
                    shmem.quiet()
                    shmem.signal_wait_until(looked, shmem.CMP_EQ, (way + 1) * others)
            shmem.quiet()
            for pe in range(1, shmem.n_pes()):
                shmem.signal_op(done, way + 1, shmem.SIGNAL_SET, pe)
        else:
            last = one[1]  # 0
            while shmem.signal_fetch(done) <= way:
                how = (state >> 33) % (3 if me == 1 else 2)
                state = delayed(state)
                value = read(how, place, 1)
                if value < last:
                    wrong[way, how] += 1
                if value != last:
                    if seen[way] == 0:
                        shmem.signal_op(looked, 1, shmem.SIGNAL_ADD, 0)
                    seen[way] += 1
                last = value
            if shmem.g(place, 1) != rounds:
                wrong[way, 0] += 1
        shmem.barrier_all()


@pytest.mark.gpushmem_check(False)  # its accesses are in no order: that is what it is about
@pytest.mark.parametrize("n_pes", PES)
def test_one_element_is_never_seen_to_go_back(run_pes, n_pes):
    """Values that are written to an element one after the other, fenced, are seen in that order.

    Additions need no fence. Whoever looks, by whatever operation that reads one element.
    """
    rounds = 5 * ROUNDS[n_pes]
    words = np.zeros((2, 2), np.uint64)
    compile_first(grow_and_look, words, *[words[0]] * 3, words, words[0], rounds)

    def body():
        x, done, looked = (shmem.zeros(n, "uint64") for n in ((WAYS, 8), 1, 1))
        one = to_send(np.zeros(2, np.uint64))
        wrong = shmem.to_device(np.zeros((WAYS, len(SEEN_BY)), np.uint64))
        seen = shmem.to_device(np.zeros(WAYS, np.uint64))
        grow_and_look[1, 1](x, one, done, looked, wrong, seen, rounds)
        return wrong.numpy(), seen.numpy()

    wrong, seen = zip(*in_pes(run_pes, n_pes, body), strict=True)
    assert named(wrong, GROWN_BY, SEEN_BY) == {}
    assert np.min(seen[1:]) >= 1  # the others looked meanwhile


# --- tickets


@shmem.jit
def queue(next_, data, ready, order, wrong, rounds):
    """All PEs put to the queue on the last PE by ticket; it takes out in order."""
    me, n = shmem.my_pe(), shmem.n_pes()
    home = n - 1
    state = seed_of(me)
    for k in range(rounds):
        state = delayed(state)
        ticket = shmem.atomic_fetch_add(next_, 1, home)
        order[k] = ticket
        state = delayed(state)
        shmem.p(data[ticket:], 1000 * ticket + me, home)
        if k % 2:
            shmem.fence()
        else:
            shmem.quiet()
        shmem.signal_op(ready[ticket:], 1 + me, shmem.SIGNAL_SET, home)
        if me == home:  # ticket k has been taken: the PE that has it will come
            who = shmem.signal_wait_until(ready[k:], shmem.CMP_NE, 0)
            if data[k] != 1000 * k + who - 1:
                wrong[0] += 1


@pytest.mark.parametrize("n_pes", PES)
def test_tickets_are_handed_out_once_and_in_order(run_pes, n_pes):
    """`atomic_fetch_add` gives every caller another number: with data and signals, a queue."""
    rounds = repeated(ROUNDS[n_pes])
    numbers, words = np.zeros(1, np.int64), np.zeros(1, np.uint64)
    compile_first(queue, numbers, numbers, words, numbers, numbers, rounds)

    def body():
        next_, data = shmem.zeros(1, "int64"), shmem.full(rounds * n_pes, POISON)
        ready, order = shmem.zeros(rounds * n_pes, "uint64"), shmem.device_array(rounds, "int64")
        wrong = shmem.to_device(np.zeros(1, np.int64))
        queue[1, 1](next_, data, ready, order, wrong, rounds)
        return wrong.numpy(), order.numpy()

    wrong, orders = zip(*in_pes(run_pes, n_pes, body), strict=True)
    assert named(wrong, ["data"]) == {}
    assert all((np.diff(order) > 0).all() for order in orders)
    assert sorted(np.concatenate(orders)) == list(range(rounds * n_pes))


# --- meeting

MEETINGS = ["barrier_all", "sync_all", "quiet, sync_all", "barrier", "quiet, signals"]
FETCHES = ["get", "get_nbi", "iget", "g", "load from peer_array"]


@shmem.jit
def meet_and_fetch(data, other, src, told, fetched, wrong, rounds):
    """All store to their own memory and put to others', meet, and fetch from the right."""
    me, n = shmem.my_pe(), shmem.n_pes()
    right, left = (me + 1) % n, (me - 1) % n
    state, choice = seed_of(me), seed_of(99)
    for k in range(1, rounds + 1):
        choice = choice * 6364136223846793005 + 1442695040888963407
        meeting, how = (choice >> 33) % 5, (choice >> 45) % 5
        row, sent_to = data[k % 2], other[k % 2]
        state = delayed(state)
        for i in range(row.size):
            row[i] = 1000 * k + 100 * me + i
            src[i] = -row[i]
        shmem.put_nbi(sent_to, src, right)
        state = delayed(state)
        if meeting == 0:
            shmem.barrier_all()
        elif meeting == 1:
            shmem.sync_all()
        elif meeting == 2:
            shmem.quiet()
            shmem.sync_all()
        elif meeting == 3:
            shmem.barrier(shmem.TEAM_WORLD)
        else:
            shmem.quiet()
            shmem.signal_op(told, k, shmem.SIGNAL_SET, left)
            shmem.signal_op(told[1:], k, shmem.SIGNAL_SET, right)
            shmem.signal_wait_until(told, shmem.CMP_GE, k)
            shmem.signal_wait_until(told[1:], shmem.CMP_GE, k)
        if how == 0:
            shmem.get(fetched, row, right)
        elif how == 1:
            shmem.get_nbi(fetched, row, right)
            shmem.quiet()
        elif how == 2:
            shmem.iget(fetched, row, 1, 1, row.size, right)
        elif how == 3:
            for i in range(row.size):
                fetched[i] = shmem.g(row[i:], right)
        else:
            there = shmem.peer_array(row, right)
            if there.ctypes.data == 0:
                shmem.get(fetched, row, right)
            else:
                for i in range(row.size):
                    fetched[i] = there[i]
        for i in range(row.size):
            if fetched[i] != 1000 * k + 100 * right + i:
                wrong[meeting, how, 0] += 1
            if meeting != 1 and sent_to[i] != -(1000 * k + 100 * left + i):
                wrong[meeting, how, 1] += 1
        shmem.quiet()  # after a sync_all alone the source is still in use
        if meeting == 4:
            shmem.sync_all()  # nobody overwrites what another has not read


@pytest.mark.parametrize("n_pes", PES)
def test_who_has_met_the_others_sees_what_they_wrote_before(run_pes, n_pes):
    """What PEs stored to their own memory is there for all after `barrier` and `sync`.

    And for whom they signal after `quiet`. What they put to others is there after a barrier, after
    `quiet` and `sync`, and after `quiet` and a signal.
    """
    rounds = ROUNDS[n_pes] // 2
    numbers = np.zeros((2, 2, 2), np.int64)
    rows, row, words = numbers[0], numbers[0, 0], np.zeros(2, np.uint64)
    compile_first(meet_and_fetch, rows, rows, row, words, row, numbers, rounds)

    def body():
        data, other = shmem.full((2, W), POISON), shmem.full((2, W), POISON)
        src, fetched = shmem.zeros(W, "int64"), sendable(shmem.device_array(W, "int64"))
        told = shmem.zeros(2, "uint64")
        wrong = shmem.to_device(np.zeros((len(MEETINGS), len(FETCHES), 2), np.int64))
        meet_and_fetch[1, 1](data, other, src, told, fetched, wrong, rounds)
        return wrong.numpy()

    assert named(in_pes(run_pes, n_pes, body), MEETINGS, FETCHES, ["stored", "put"]) == {}
