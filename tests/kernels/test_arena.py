"""Plans for some PEs, made by them alone in an arena."""

import random
from contextlib import suppress

import numpy as np
import pytest
from gpushmem.kernels import AllReduce, Arena

import gpushmem as shmem


def summed(team, size):
    """Make a plan in the arena, call it twice, and return it; other PEs do something else."""
    plan = AllReduce(size=size, dtype="float32", team=team)
    members = [team.translate_pe(k, shmem.TEAM_WORLD) for k in range(team.n_pes)]
    x = shmem.to_device((np.arange(size) + 1000 * shmem.my_pe()).astype("float32"))
    plan(x)
    plan(x)
    one = len(members) * np.arange(size) + 1000 * sum(members)
    assert np.array_equal(x.numpy(), len(members) * one)
    return plan


def test_rows_and_columns_make_plans_by_themselves(run_pes):
    """PE 0 and 1 make many plans; those of the other row none, until the columns meet."""

    def body():
        shmem.init(heap_size="32M")
        arena, me = Arena(8 << 20), shmem.my_pe()
        rows, columns = shmem.team_split_2d(shmem.TEAM_WORLD, 2)
        with arena.plans():
            kept = [summed(rows, 100 * k) for k in range(1, 4)] if me < 2 else []
            column = summed(columns, 1000)
            again = summed(rows, 5000)
            for plan in (*kept, column, again):
                plan.free()
            whole = arena.allocate(shmem.TEAM_WORLD, 8 << 20)  # all has been given back
            assert not whole.numpy().any()
            arena.release(shmem.TEAM_WORLD, whole)
        shmem.sync_all()
        arena.free()
        assert shmem.heap_stats().used == 0

    run_pes(body, 4)


@pytest.mark.parametrize("seed", range(2))
def test_places_of_teams_that_overlap(run_pes, seed):
    """Members of a team get the same place, free on all of them, whatever each has of others."""

    def body():
        shmem.init(heap_size="16M")
        arena, n = Arena(1 << 16), shmem.n_pes()
        teams = []
        for members in range(1, 1 << n):
            pes = [pe for pe in range(n) if (1 << pe) & members]
            mine = shmem.my_pe() in pes
            teams.append((members, shmem.team_init(pes) if mine else shmem.TEAM_INVALID))
        chosen = random.Random(seed)  # the same on all PEs
        live, places = [], {}
        for step in range(120):
            if live and chosen.random() < 0.45:
                team, part, number = live.pop(chosen.randrange(len(live)))
                if part is not None:
                    assert (part.numpy() == number).all()
                    arena.release(team, part)
                continue
            (members, team), nbytes = chosen.choice(teams), chosen.choice([1, 256, 3000, 20_000])
            number, part = chosen.randrange(1, 256), None
            if team != shmem.TEAM_INVALID:
                with suppress(shmem.HeapExhausted):
                    part = arena.allocate(team, nbytes)
                    assert part.size == nbytes
                    assert not part.numpy().any()
                    part[...] = number
                places[step] = members, None if part is None else part.offset
            live.append((team, part, number))
        return places

    one, two, three = run_pes(body, 3)
    for first, second in ((one, two), (two, three), (one, three)):
        assert [first[k] for k in first if k in second] == [second[k] for k in second if k in first]
    assert any(place is None for _, place in one.values())


def test_an_arena_that_is_full(alone):
    arena = Arena(1000)
    part = arena.allocate(shmem.TEAM_WORLD, 300)
    with pytest.raises(
        shmem.HeapExhausted, match=r"1,000 bytes has no 512 .* this PE has 488 free"
    ):
        arena.allocate(shmem.TEAM_WORLD, 500)
    arena.release(shmem.TEAM_WORLD, part)
    arena.allocate(shmem.TEAM_WORLD, 500)
    arena.free()
