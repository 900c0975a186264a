"""Barriers of all PEs and of teams, in every scope, in kernels and on hosts, on streams."""

import time

import numpy as np
import pytest
from numba import cuda

import gpushmem as shmem
from tests.conformance.test_collectives import PES, THREADS, teams_of
from tests.pes import compile_first, repeated


@shmem.jit
def barriers(kind, scope, team, turns, delays, table, wrong):
    """Everybody tells everybody the turn, which after the barrier all have been told."""
    t = cuda.threadIdx.x
    me, n = shmem.team_my_pe(team), shmem.team_n_pes(team)
    for k in range(turns):
        if t == 0:
            for _ in range(delays[k]):
                cuda.atomic.add(wrong, 1, 1)
            for rank in range(n):
                pe = shmem.team_translate_pe(team, rank, shmem.TEAM_WORLD)
                shmem.p(table[me:], k, pe)
        meet(kind, scope, team)
        for rank in range(n):
            if table[rank] != k:
                cuda.atomic.add(wrong, 0, 1)
        meet(kind, scope, team)


@shmem.jit(device=True)
def meet(kind, scope, team):  # noqa: PLR0912
    if kind >= 2:
        shmem.quiet()
    if kind == 0:
        if scope == 0:
            shmem.barrier(team)
        elif scope == 1:
            shmem.barrier_warp(team)
        else:
            shmem.barrier_block(team)
    elif kind == 1:
        if scope == 0:
            shmem.barrier_all()
        elif scope == 1:
            shmem.barrier_all_warp()
        else:
            shmem.barrier_all_block()
    elif kind == 2:
        if scope == 0:
            shmem.sync(team)
        elif scope == 1:
            shmem.sync_warp(team)
        else:
            shmem.sync_block(team)
    elif scope == 0:
        shmem.sync_all()
    elif scope == 1:
        shmem.sync_all_warp()
    else:
        shmem.sync_all_block()


@shmem.jit
def meet_once(kind, team):
    meet(kind, 0, team)


BARRIERS = ("barrier", "barrier_all", "sync", "sync_all")


def meet_from_host(kind, team, stream=None):
    function = getattr(shmem, BARRIERS[kind])
    function(*([team] if kind in (0, 2) else []), stream=stream)


@pytest.fixture
def barriers_compiled():
    ints = np.zeros(1, np.int64)
    compile_first(barriers, 0, 0, shmem.TEAM_WORLD, 0, ints, ints, ints)
    for function in (shmem.barrier, shmem.sync):
        compile_first(function, 0)


@pytest.mark.parametrize("n_pes", PES)
def test_barriers_in_kernels(run_pes, barriers_compiled, n_pes):
    turns = repeated(300, 3)

    def body():
        shmem.init()
        late = np.random.default_rng(shmem.my_pe())
        delays = np.where(late.random(turns) < 0.1, late.integers(0, 20_000, turns), 0)
        wrong = np.zeros(2, np.int64)
        for members in teams_of(n_pes):
            table = shmem.full(n_pes, -1, dtype="int64")
            for kind, name in enumerate(BARRIERS):
                if name.endswith("_all") and members.team != shmem.TEAM_WORLD:
                    continue
                for scope, threads in enumerate(THREADS):
                    if shmem.my_pe() in members.pes:
                        barriers[1, threads](kind, scope, members.team, turns, delays, table, wrong)
        shmem.finalize()
        return int(wrong[0])

    assert run_pes(body, n_pes) == [0] * n_pes


@pytest.mark.backwards
@pytest.mark.parametrize("n_pes", [2, 3])
@pytest.mark.parametrize("kind", range(4), ids=BARRIERS)
def test_hosts_and_kernels_meet(run_pes, barriers_compiled, kind, n_pes):
    """In turn some PEs come from a kernel, others from the host, and others from a stream."""

    compile_first(meet_once, 0, shmem.TEAM_WORLD)

    def body():
        shmem.init()
        me, wrong, team = shmem.my_pe(), 0, shmem.TEAM_WORLD
        if not BARRIERS[kind].endswith("_all"):
            team = shmem.team_split_strided(team, n_pes - 1, -1, n_pes)
        table, late = shmem.full(n_pes, -1, dtype="int64"), np.random.default_rng(me)
        stream = shmem.stream()
        for k in range(60):
            time.sleep(late.choice((0, 0.003)))
            for pe in range(n_pes):
                shmem.p(table[me:], k, pe)
            for turn in range(2):
                how = (k + turn + me) % 3
                if how == 0:
                    meet_once[1, 1](kind, team)
                    shmem.synchronize()
                else:
                    meet_from_host(kind, team, (None, stream)[how - 1])
                    stream.synchronize()
                if turn == 0:
                    wrong += int((np.asarray(table) != k).sum())
        shmem.finalize()
        return wrong

    assert run_pes(body, n_pes) == [0] * n_pes


def test_calls_on_a_stream_wait_for_their_turn_only(run_pes):
    """Not for all streams, as the host's calls do: that would be for themselves, too."""

    @shmem.jit
    def until(signal):
        shmem.signal_wait_until(signal, shmem.CMP_EQ, 1)

    def body():
        shmem.init()
        first, second = shmem.stream(), shmem.stream()
        signal = shmem.zeros(1, "uint64")
        until[1, 1, first](signal)
        for function in (shmem.barrier_all, shmem.sync_all):
            function(stream=second)
        second.synchronize()  # while `first` still waits
        for function in (shmem.barrier_all, shmem.sync_all):
            function(stream=first)
        shmem.signal_wait_until(signal, shmem.CMP_EQ, 1, stream=second)
        shmem.signal_op(signal, 1, shmem.SIGNAL_SET, shmem.my_pe())
        shmem.synchronize()
        shmem.finalize()

    run_pes(body, 2, timeout=20)


@pytest.mark.cpu_backend  # on others `dst` may be written before the PE calls again
@pytest.mark.parametrize("n_pes", [8])
def test_a_host_does_not_overtake_kernels(run_pes, n_pes):
    """The root of a broadcast waits for nobody; its host must not meet others too early."""

    @shmem.jit
    def twice(dst, src, k, wrong):
        for turn in range(2):
            src[0] = 2 * k + turn + 1000 * shmem.my_pe()
            shmem.broadcast(shmem.TEAM_WORLD, dst, src)
            wrong[0] += dst[0] != 2 * k + turn

    ints = np.zeros(1, np.int64)
    compile_first(twice, ints, ints, 0, ints)

    def body():
        shmem.init()
        dst, src, wrong = (shmem.zeros(1, "int64") for _ in range(3))
        for k in range(repeated(300, 20)):
            twice[1, 1](dst, src, k, wrong)
            shmem.barrier_all()
        result = int(wrong.numpy()[0])
        shmem.finalize()
        return result

    assert run_pes(body, n_pes) == [0] * n_pes


@pytest.mark.reports
def test_who_has_given_up_waits_for_nothing(run_pes):
    """After the error the report on SIGUSR1 does not show the wait any more."""

    def body():
        shmem.init()
        if shmem.my_pe() == 0:
            with pytest.raises(shmem.CollectiveMismatch, match="waits for PE 1, which ended"):
                shmem.barrier_all()
            time.sleep(100)

    with pytest.raises(shmem.ShmemError) as failure:
        run_pes(body, 2, timeout=2)
    assert "PE 0: is not waiting in gpushmem" in str(failure.value)
