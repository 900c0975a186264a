"""Teams from process groups and meshes, and process groups from teams; a process group's job."""

import os
from contextlib import contextmanager
from datetime import timedelta

import pytest

import gpushmem as shmem
import gpushmem.torch
from gpushmem.job import job
from tests.bootstrap.processes import run_all
from tests.later import later

torch = later("torch")
dist = later("torch.distributed")
device_mesh = later("torch.distributed.device_mesh")


@contextmanager
def ranks(path, backend, n, rank):
    """The default group of `n` processes."""
    gpushmem.torch.register()
    store = dist.FileStore(str(path / "store"), n)
    dist.init_process_group(
        backend, store=store, rank=rank, world_size=n, timeout=timedelta(seconds=60)
    )
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("backend", ["gloo", "gpushmem"])
def test_groups_are_teams_and_teams_groups(run_pes, tmp_path, backend):
    def body():
        here = job.current()
        with ranks(tmp_path, backend, here.n_pes, here.my_pe):
            if not shmem.is_initialized():
                shmem.init()
            me, other = here.my_pe, [pe for pe in (3, 0, 2) if pe != here.my_pe]
            assert shmem.team_from(dist.group.WORLD).my_pe == me
            some = dist.new_group([3, 0, 2], sort_ranks=False)
            team = shmem.team_from(some)
            assert team.my_pe == {3: 0, 0: 1, 2: 2}.get(me, -1)
            src, dst = shmem.full(1, 1000 * me, "int64"), shmem.zeros(3, "int64")
            if team:
                for pe in other:
                    shmem.p(dst[team.my_pe :], 1000 * me, pe)
                team.barrier()
                at = [dst.numpy().tolist()[k] for k in range(3) if k != team.my_pe]
                assert at == [1000 * pe for pe in (3, 0, 2) if pe != me]
                back = shmem.process_group_from(team, timeout=timedelta(seconds=50))
                assert back.rank() == some.rank() == team.my_pe
                assert dist.get_process_group_ranks(back) == [3, 0, 2]
                x = torch.tensor([me + 1])
                dist.all_reduce(x, group=back)
                assert x.item() == 4 + 1 + 3
                dist.broadcast(x, 3, group=back)
                dist.destroy_process_group(back)
            else:
                back = shmem.process_group_from(team)
                assert back == dist.GroupMember.NON_GROUP_MEMBER
            assert shmem.team_from(dist.new_group([me], use_local_synchronization=True)).n_pes == 1
            of_mesh(me)
            refused(src)
            shmem.barrier_all()
        shmem.finalize()

    run_pes(body, 4)


def of_mesh(me):
    mesh = device_mesh.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    assert shmem.team_from(mesh["tp"]).my_pe == me % 2
    assert shmem.team_from(mesh["dp"]).my_pe == me // 2
    row = [2 * (me // 2), 2 * (me // 2) + 1]
    team = shmem.team_from(mesh["tp"])
    assert [team.translate_pe(k, shmem.TEAM_WORLD) for k in (0, 1)] == row
    said = r'this mesh has 2 dimensions, of \(2, 2\) ranks: pass one .* mesh\["tp"\]'
    with pytest.raises(shmem.ArgumentError, match=said):
        shmem.team_from(mesh)
    part = device_mesh.DeviceMesh("cpu", [1, 2])
    assert shmem.team_from(part).my_pe == {1: 0, 2: 1}.get(me, -1)


def refused(array):
    for value in (3, [0, 1], array, array.numpy(), torch.zeros(2), "tp"):
        with pytest.raises(shmem.ArgumentError, match=r"team_from: group must be a communicator"):
            shmem.team_from(value)
    gone = dist.new_group([dist.get_rank()], use_local_synchronization=True)
    dist.destroy_process_group(gone)
    with pytest.raises(shmem.ArgumentError, match="has been destroyed, or is not of this process"):
        shmem.team_from(gone)
    with pytest.raises(shmem.ArgumentError, match=r"comm_from: this process has not imported"):
        shmem.comm_from(shmem.TEAM_WORLD)
    with pytest.raises(shmem.TeamError):
        shmem.process_group_from(shmem.ops.team.Team(77))


def test_pes_that_are_other_ranks_are_refused(run_pes, tmp_path):
    def body():
        me, n = job.current().my_pe, job.current().n_pes
        with ranks(tmp_path, "gloo", n, n - 1 - me):
            with pytest.raises(shmem.ArgumentError, match=f"rank {1 - me} of 2 in .* PE {me} of 2"):
                shmem.init(process_group=dist.group.WORLD)
            shmem.init()
            for use in (
                lambda: shmem.team_from(dist.group.WORLD),
                lambda: shmem.process_group_from(shmem.TEAM_WORLD),
            ):
                said = rf"PE {me} of 2, and rank {1 - me} of 2 .* init their group, process_group="
                with pytest.raises(shmem.ArgumentError, match=said):
                    use()
            shmem.finalize()

    run_pes(body, 2)


def test_a_process_group_is_a_job(tmp_path):
    def body_of(rank):
        with ranks(tmp_path, "gloo", 3, rank):
            two = dist.new_group([2, 0], sort_ranks=False)
            alone = dist.new_group([1])
            mine = alone if rank == 1 else two
            shmem.init(process_group=mine, heap_size="1M")
            assert (shmem.my_pe(), shmem.n_pes()) == {2: (0, 2), 0: (1, 2), 1: (0, 1)}[rank]
            assert shmem.team_from(mine).my_pe == shmem.my_pe()
            back = shmem.process_group_from(shmem.TEAM_WORLD)
            assert dist.get_process_group_ranks(back) == ([1] if rank == 1 else [2, 0])
            with pytest.raises(shmem.ArgumentError, match=r"not (a PE|PEs), of the 3 of this"):
                shmem.team_from(dist.group.WORLD)
            shmem.finalize()
            return True

    assert run_all(3, lambda: body_of(int(os.environ["RANK"])), lambda pe: {"RANK": str(pe)})
