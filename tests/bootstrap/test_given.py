"""Communicators of MPI: their ranks as PEs and as teams, and teams as communicators."""

import re
import sys

from tests.bootstrap.launchers import mpirun, need_mpi4py, run

WORLD = """
import sys
import pytest
from mpi4py import MPI
import gpushmem as shmem

world = MPI.COMM_WORLD
me, n = world.rank, world.size
backwards = world.Split(0, -me)
with pytest.raises(shmem.ArgumentError, match="comm must be a communicator of mpi4py, not a int"):
    shmem.init(comm=3)
with pytest.raises(shmem.ArgumentError, match="init: give comm or process_group, not both"):
    shmem.init(comm=world, process_group=world)
with pytest.raises(shmem.ArgumentError, match="process_group must be .* not a Intracomm"):
    shmem.init(process_group=world)
with pytest.raises(shmem.ArgumentError, match="comm is COMM_NULL"):
    shmem.init(comm=MPI.COMM_NULL)
with shmem.session(comm=backwards) as all_:
    assert (all_.my_pe, all_.n_pes) == (n - 1 - me, n)
    forwards = shmem.team_from(world)
    assert forwards.my_pe == me
    assert [forwards.translate_pe(k, shmem.TEAM_WORLD) for k in range(n)] == [2, 1, 0]
    assert MPI.Comm.Compare(shmem.comm_from(forwards), world) == MPI.CONGRUENT
    assert MPI.Comm.Compare(shmem.comm_from(all_), backwards) == MPI.CONGRUENT

    two = world.Split(0 if me else MPI.UNDEFINED, -me)  # ranks 2, 1: PEs 0, 1
    team = shmem.team_from(two)
    assert bool(team) == (me > 0)
    assert team.my_pe == {0: -1, 1: 1, 2: 0}[me]
    dst = shmem.zeros(1, "int64")
    if team:
        shmem.p(dst, 1000 * me, team.translate_pe(1 - team.my_pe, shmem.TEAM_WORLD))
        shmem.quiet()
        team.sync()
    assert dst.numpy()[0] == {0: 0, 1: 2000, 2: 1000}[me]
    comm = shmem.comm_from(team)
    assert comm.allgather(me) == [2, 1] if team else comm == MPI.COMM_NULL

    inter = world.Split(me % 2, 0).Create_intercomm(0, world, 1 - me % 2)
    for use in (shmem.team_from, lambda comm: (shmem.finalize(), shmem.init(comm=comm))):
        with pytest.raises(shmem.ArgumentError, match="intercommunicator, of [12] and [12] ranks"):
            use(inter)
    assert not shmem.is_initialized()
    shmem.init()
    with pytest.raises(shmem.ArgumentError, match="team_from: group must be a communicator"):
        shmem.team_from([0, 1])
    with pytest.raises(shmem.ArgumentError, match="comm_from: team must be a Team, not 0"):
        shmem.comm_from(0)
    with pytest.raises(shmem.ArgumentError, match="call torch.distributed.init_process_group"):
        shmem.process_group_from(team)
    shmem.finalize()
    wrong = f"is rank {me} of 3 in the communicator, and PE {n - 1 - me} of 3 in the job"
    wrong = "the first one, 3, but other ranks, or in another order" if me == 1 else wrong
    with pytest.raises(shmem.ArgumentError, match=wrong):
        shmem.init(comm=world)
    shmem.init()
    backwards.Free()
    assert shmem.comm_from(shmem.TEAM_WORLD).allgather(me) == [2, 1, 0]
sys.stdout.write(f"{me} is done\\n")
"""
HALVES = """
import sys
import pytest
from mpi4py import MPI
import gpushmem as shmem

world = MPI.COMM_WORLD
me = world.rank
half = world.Split(me % 2, -me)  # ranks 2, 0; rank 1
half.name = "a half"
shmem.init(comm=half)
assert (shmem.my_pe(), shmem.n_pes()) == {0: (1, 2), 1: (0, 1), 2: (0, 2)}[me]
dst = shmem.zeros(1, "int64")
shmem.p(dst, 1000 * me, shmem.n_pes() - 1 - shmem.my_pe())
shmem.barrier_all()
assert dst.numpy()[0] == {0: 2000, 1: 1000, 2: 0}[me]
assert shmem.team_from(half).my_pe == shmem.my_pe()
others = "ranks 0, 2 are not PEs, of the 3 of this group: a team is of the 1 PE"
others = others if me == 1 else "rank 1 is not a PE, of the 3 of this group: a team is of the 2 PE"
with pytest.raises(shmem.ArgumentError, match=others):
    shmem.team_from(world)
assert shmem.comm_from(shmem.TEAM_WORLD).allgather(me) == half.allgather(me)
shmem.finalize()
other = world.Split(me // 2, -me)  # ranks 1, 0: rank 0 has the number of its PE; rank 2
wrong = "other ranks, or in another order" if me == 0 else "ranks and PEs must be the same"
with pytest.raises(shmem.ArgumentError, match=wrong):
    shmem.init(comm=other)
shmem.init(comm=half.Dup())
sys.stdout.write(f"{me} is done\\n")
"""
LATE = """
import os
import time
from mpi4py import MPI
from gpushmem.errors import BootstrapError
from gpushmem.start import bootstrap
from gpushmem.start.bootstrap.existing_groups import GivenComm

half = MPI.COMM_WORLD.Split(MPI.COMM_WORLD.rank % 2, 0)
half.name = "a half"
time.sleep(3 if MPI.COMM_WORLD.rank == 2 else 0)
try:
    bootstrap.join(None, GivenComm(half).channel())
except BootstrapError as error:
    os.write(1, f"{MPI.COMM_WORLD.rank}: {error}\\n".encode())
    os._exit(0)
"""


PEERS = """
import os
from mpi4py import MPI
from gpushmem.start import bootstrap
from gpushmem.start.bootstrap.existing_groups import GivenComm

half = MPI.COMM_WORLD.Split(MPI.COMM_WORLD.rank % 2, -MPI.COMM_WORLD.rank)
found = bootstrap.find_peers(None, GivenComm(half).channel())
heard = found.broadcast(b"%d" % MPI.COMM_WORLD.rank if found.my_pe == 0 else None)
found.close()
about = MPI.COMM_WORLD.rank, found.my_pe, found.n_pes, heard
os.write(1, b"%d: PE %d of %d heard %s.\\n" % about)
"""


def printed(tmp_path, code, n, code_is=0, **env):
    need_mpi4py()
    script = tmp_path / "job.py"
    script.write_text(code)
    return run(*mpirun(), n, sys.executable, script, code=code_is, GPUSHMEM_VERBOSE="", **env)[0]


def test_communicators_are_teams_and_teams_communicators(tmp_path):
    assert len(re.findall("is done", printed(tmp_path, WORLD, 3))) == 3


def test_a_part_of_a_job_of_mpi_is_a_job(tmp_path):
    assert len(re.findall("is done", printed(tmp_path, HALVES, 3))) == 3


def test_a_rank_that_does_not_come_is_named(tmp_path):
    said = printed(tmp_path, LATE, 4, None, GPUSHMEM_BOOTSTRAP_TIMEOUT="1.5")
    assert "0: PE 1 of 2 has not arrived: PE 0 waited 1.5 s" in said
    assert "(in a half)" in said
    assert "1: " not in said


def test_pes_without_shared_memory_meet_in_a_communicator_too(tmp_path):
    said = printed(tmp_path, PEERS, 4)
    for rank, pe, root in ((0, 1, 2), (1, 1, 3), (2, 0, 2), (3, 0, 3)):
        assert f"{rank}: PE {pe} of 2 heard {root}." in said
