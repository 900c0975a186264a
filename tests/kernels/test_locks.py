"""Locks, queues and pools of tasks: nobody is lost, nobody is twice, nobody is last for ever."""

import time

import numpy as np
import pytest
from gpushmem.kernels import (
    NO_TASK,
    TaskPool,
    begin,
    end,
    mcs_lock,
    mcs_unlock,
    next_task,
    pop,
    push,
    push_task,
    ticket_lock,
    ticket_unlock,
    try_pop,
    try_push,
)
from numba import cuda

import gpushmem as shmem
from tests.pes import repeated, some_of, whole_warps

PES = (2, 5, *(pytest.param(n, marks=pytest.mark.sweep) for n in (1, 3, 8)))
ROUNDS = 30


@shmem.jit
def with_tickets(words, total, served, rounds, where):
    for k in range(rounds):
        ticket = ticket_lock(words, 0)
        shmem.p(total, shmem.g(total, where) + 1, where)
        ticket_unlock(words, ticket, 0)
        served[k] = ticket


@shmem.jit
def with_mcs(words, total, served, rounds, where):
    for k in range(rounds):
        mcs_lock(words, 0)
        now = shmem.g(total, where)
        shmem.p(total, now + 1, where)
        mcs_unlock(words, 0)
        served[k] = now


@pytest.mark.parametrize("n_pes", PES)
def test_one_at_a_time(run_pes, n_pes):
    """A number on the last PE is loaded, and stored with 1 more; the lock's home is the first."""

    def body():
        shmem.init()
        n, found = shmem.n_pes(), []
        for kernel in (with_tickets, with_mcs):
            words, total = shmem.zeros(3, "uint64"), shmem.zeros(1, "int64")
            served = shmem.device_array(ROUNDS, "int64")
            if shmem.my_pe() == 1:
                time.sleep(0.05)
            kernel[1, 1](words, total, served, ROUNDS, n - 1)
            served = served.numpy()
            shmem.barrier_all()
            found.append((served, shmem.g(total, n - 1)))
        return found

    for of_all in zip(*run_pes(body, n_pes), strict=True):
        assert {int(total) for _, total in of_all} == {n_pes * ROUNDS}
        served = np.concatenate([served for served, _ in of_all])
        assert sorted(served) == list(range(n_pes * ROUNDS))


@shmem.jit
def produce(words, cells, items, home, patient):
    for k in range(items.shape[0]):
        if patient:
            push(words, cells, items[k], home)
        else:
            while not try_push(words, cells, items[k], home):
                pass


@shmem.jit
def consume(words, cells, out, home, patient):
    for k in range(out.shape[0]):
        if patient:
            pop(words, cells, out[k], home)
        else:
            while not try_pop(words, cells, out[k], home):
                pass


# Blocks that try again and again meet each time: too much to record.
@pytest.mark.parametrize("patient", some_of([True, False], 2))
@pytest.mark.parametrize("n_pes", PES)
def test_items_are_popped_once_in_each_producers_order(run_pes, n_pes, patient):
    """Every PE pushes, the first and the last one pop; there are fewer cells than PEs."""

    def body():
        shmem.init()
        me, n, threads = shmem.my_pe(), shmem.n_pes(), whole_warps(4)
        words, cells = shmem.zeros(2 + 3, "uint64"), shmem.full((3, 4), -1, "int64")
        first = 1000000 * me + 10 * np.arange(ROUNDS)[:, None]
        items = shmem.array(first + np.arange(4))
        many = n * ROUNDS
        consumers = min(2, n)
        share = {0: many - many // 2 if n > 1 else many, n - 1: many // 2 if n > 1 else many}
        out = shmem.full((many, 4), -1, "int64")
        shmem.barrier_all()
        if me in share:
            mine, beside = share[me], shmem.stream(nonblocking=True)
            consume[1, threads, beside](words, cells, out[:mine], n // 2, patient)
        produce[1, threads](words, cells, items, n // 2, patient)
        shmem.synchronize()
        shmem.barrier_all()
        assert consumers == len(share)
        return out.numpy()[: share.get(me, 0)]

    got = [part for part in run_pes(body, n_pes) if len(part)]
    for part in got:
        assert (part - part[:, :1] == np.arange(4)).all()
        for pe in range(n_pes):
            mine = part[part[:, 0] // 1000000 == pe][:, 0]
            assert (np.diff(mine) > 0).all()
    first = 1000000 * np.arange(n_pes)[:, None] + 10 * np.arange(ROUNDS)
    assert sorted(np.concatenate(got)[:, 0]) == first.ravel().tolist()


@shmem.jit(collective=True)
def count(leaves, depth, late, tasks, team, epochs):
    """A tree whose right branches have one level less than the left ones; see `leaves_of`."""
    epoch, me = begin(epochs), shmem.team_my_pe(team)
    if me == shmem.team_n_pes(team) - 1 and cuda.blockIdx.x == 0 and cuda.threadIdx.x == 0:
        push_task(tasks, depth)
    while True:
        task = next_task(tasks, team, epoch)
        if task == NO_TASK:
            break
        if cuda.threadIdx.x == 0:
            shmem.atomic_add(leaves[epoch % 64 :], grow(tasks, task), 0)
    end(epochs)


@shmem.jit(device=True)
def grow(tasks, task):
    """Push right branches on the way to the leftmost leaf, count those there was no room for."""
    here = 1
    while task > 1:
        if not push_task(tasks, task - 2):
            here += leaves_of(task - 2)
        task -= 1
    return here


@shmem.jit(device=True)
def leaves_of(depth):
    before, now = 1, 1
    for _ in range(depth - 1):
        before, now = now, before + now
    return now


@pytest.mark.parametrize("places", [1, 64])
@pytest.mark.parametrize("n_pes", PES)
def test_each_task_is_done_once(run_pes, n_pes, places):
    calls, depth = repeated(20, 4), repeated(12, 6)

    def body():
        shmem.init()
        me = shmem.my_pe()
        leaves = shmem.zeros(64, "int64")
        with TaskPool(places=places, blocks=2, threads=whole_warps(4)) as pool:
            for call in range(calls):
                if me == call % 3:
                    time.sleep(0.003)
                pool(count, leaves, depth, 0)
            shmem.synchronize()
            shmem.barrier_all()
            spans = pool.tasks.numpy()[1:, 0] & 0xFFFFFFFF
        return leaves.numpy()[1 : 1 + calls], spans

    found = run_pes(body, n_pes)
    assert found[0][0].tolist() == [{12: 233, 6: 13}[depth]] * calls
    assert all((spans == 0).all() for _, spans in found)


def test_places_are_in_reason(alone):
    with pytest.raises(shmem.ArgumentError, match="TaskPool: places is 0; it must be from 1 to"):
        TaskPool(places=0)
