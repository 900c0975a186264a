"""PEs that share no memory: who is where, and bytes from PE 0, however they were started."""

import os
import re
import sys
import time

import pytest

from gpushmem.errors import BackendUnavailable, BootstrapError, PeerFailed
from gpushmem.job import board, ranks
from gpushmem.job import job as jobs
from gpushmem.start import bootstrap
from gpushmem.start.bootstrap import machines, mpi, node_layout, slurm
from gpushmem.start.bootstrap.channel import Channel
from tests.bootstrap.launchers import mpirun, need_mpi4py, need_torch, run
from tests.bootstrap.processes import Process, free_port, run_all, short, step
from tests.bootstrap.processes import tcp as tcp_env

PYTHON = sys.executable
PAYLOAD = bytes(range(128))


def met(on=lambda pe: 0, before=lambda pe: None):
    """Meet the others, PE k being on machine `on(k)`; then PE 0 gives the payload to all."""

    def body():
        place = {}

        def identity():
            return b'["h%d", ""]' % on(place["pe"])

        names = ("SLURM_PROCID", "GPUSHMEM_PE")
        place["pe"] = next((int(os.environ[n]) for n in names if n in os.environ), 0)
        machines.identity = identity
        before(place["pe"])
        found = bootstrap.find_peers()
        assert bootstrap.find_peers() is found is ranks.current()
        heard = found.broadcast(PAYLOAD if found.my_pe == 0 else None)
        assert heard == PAYLOAD
        time.sleep(0.1 * (found.my_pe == 1))
        found.close()
        return found.my_pe, found.n_pes, found.local_pe, found.n_local, found.bootstrap

    return body


def test_alone():
    (value,) = run_all(1, met(), lambda pe: {})
    assert value == (0, 1, 0, 1, "by itself")


def test_with_variables_and_a_directory(tmp_path):
    env = step(3, XDG_RUNTIME_DIR=str(tmp_path))
    values = run_all(3, met(before=lambda pe: time.sleep(0.1 * (pe == 0))), env)
    assert [value[:4] for value in values] == [(pe, 3, pe, 3) for pe in range(3)]
    assert values[0][4].startswith("found through slurm (step ")
    assert list(tmp_path.iterdir()) == [], "no file is left"


@pytest.mark.parametrize("n", [2, 5])
def test_tcp_between_machines(n):
    values = run_all(n, met(on=lambda pe: pe % 2), tcp_env(n, free_port()))
    local = [(pe // 2, (n + 1 - pe % 2) // 2) for pe in range(n)]
    assert [value[2:4] for value in values] == local
    assert values[0][4].startswith("found through tcp://localhost:")


def test_tcp_takes_its_places_from_the_launcher():
    port = free_port()
    env = {"GPUSHMEM_BOOTSTRAP": f"tcp://localhost:{port}", "GPUSHMEM_JOB_KEY": "a secret"}
    values = run_all(2, met(), step(2, SLURM_NNODES="2", **env))
    assert [value[0] for value in values] == [0, 1]
    assert values[1][4] == f"found through tcp://localhost:{port}"


@pytest.mark.parametrize("way", ["tcp", "directory"])
def test_a_pe_that_does_not_come_is_named_on_all(way, tmp_path):
    env = tcp_env(4, free_port()) if way == "tcp" else step(4, XDG_RUNTIME_DIR=str(tmp_path))
    processes = [Process(met(), **short(env)(pe)) for pe in (0, 1, 3)]
    for process in processes:
        assert "PE 2 of 4 has not arrived: PE 0 waited 1.5 s" in process.wait()


def test_pe_0_that_does_not_come(tmp_path):
    env = step(2, XDG_RUNTIME_DIR=str(tmp_path))
    text = Process(met(), **short(env)(1)).wait()
    assert re.search(r"PE 1 of 2 waited 1.5 s for PE 0 through .*: there is no such file", text)


def test_pe_0_that_gives_nothing():
    env = tcp_env(2, free_port())

    def leaves():
        bootstrap.find_peers()

    first, second = Process(leaves, **env(0)), Process(met(), **short(env)(1))
    assert "PE 1 of 2 waited 1.5 s for PE 0 at tcp://" in second.wait()
    first.wait()


class Repeating(Channel):
    """What PE 0 has announced can be read again and again, as in a store."""

    def answer(self, deadline):
        return b'{"machines":[0,0]}'


def test_pe_0_that_gives_nothing_but_repeats_itself(monkeypatch):
    monkeypatch.setenv("GPUSHMEM_BOOTSTRAP_TIMEOUT", "0.1")
    found = node_layout.exchange(Repeating(1, 2, "a store", "there", "nothing came"))
    assert (found.local_pe, found.n_local) == (1, 2)
    with pytest.raises(BootstrapError, match=r"PE 1 of 2 waited 0\.1 s for PE 0 there: nothing"):
        found.broadcast(None)


def test_a_backend_that_is_not_everybodys():
    env = tcp_env(2, free_port())
    first = Process(bootstrap.join, **short(env)(0))
    text = Process(bootstrap.find_peers, **env(1)).wait()
    assert "PE 0 uses the cpu backend: use the same backend on all PEs" in text
    first.wait()


def test_launchers_that_tell_of_other_machines(environment, monkeypatch):
    environment(step(4, SLURM_STEP_NUM_NODES="2")(1))
    with pytest.raises(BackendUnavailable, match="the cpu backend shares memory"):
        slurm.channel()
    with pytest.raises(BootstrapError, match=r"only PE 1 of 4 is .* find each other through MPI"):
        slurm.channel(several=True)
    monkeypatch.setattr(mpi, "_mpi4py", lambda: (None, "without mpi4py"))
    names = ("RANK", "SIZE", "LOCAL_SIZE")
    environment({f"OMPI_COMM_WORLD_{name}": k for name, k in zip(names, "142", strict=True)})
    with pytest.raises(BootstrapError, match=r"LOCAL_SIZE=2, this is PE 1\).*tcp://HOST:PORT"):
        mpi.channel(several=True)


def test_numbers_of_machines():
    said = {2: b"b", 0: b"x", 1: b"b", 3: b"a"}
    assert machines.numbers(said) == [0, 1, 1, 2]


# --- through the board of a job


@pytest.fixture
def job():
    made = jobs.create(3)
    yield made
    for fd in made.fds:
        os.close(fd)


def inherited(job, pe):
    return bootstrap.Inherited(job.of(pe))


def test_bytes_through_the_board(job, monkeypatch):
    all_pes = [inherited(job, pe) for pe in range(3)]
    assert all_pes[0].broadcast(PAYLOAD) == PAYLOAD
    assert [pe.broadcast(None) for pe in all_pes[1:]] == [PAYLOAD] * 2
    assert (all_pes[2].local_pe, all_pes[2].n_local) == (2, 3)
    with pytest.raises(ValueError, match="513 bytes are too many: the board"):
        job.board.announce(bytes(513))


def test_who_has_not_come_to_the_board(job, monkeypatch):
    monkeypatch.setenv("GPUSHMEM_BOOTSTRAP_TIMEOUT", "0.2")
    first = inherited(job, 0)
    with pytest.raises(BootstrapError, match=r"PEs 1, 2 of 3 have not arrived: PE 0 waited 0.2 s"):
        first.broadcast(PAYLOAD)
    monkeypatch.setattr("gpushmem.start.bootstrap.forked.GRACE", 0.1)
    with pytest.raises(BootstrapError, match=r"PE 2 of 3 waited 0.2 s for PE 0"):
        inherited(job, 2).broadcast(None)


def test_the_end_of_the_job_is_heard_at_once(job):
    first, second = inherited(job, 0), inherited(job, 1)
    job.board.mark_ended(2, 0)
    began = time.monotonic()
    with pytest.raises(BootstrapError, match="PE 2 of 3 ended without calling init"):
        first.broadcast(PAYLOAD)
    job.board.mark_ended(0, 0)
    with pytest.raises(BootstrapError, match="PE 0 of 3 ended before the others had met it"):
        second.broadcast(None)
    job.board.claim(board.FAILED, 2, "no good")
    for pe, given in ((first, PAYLOAD), (second, None)):
        with pytest.raises(PeerFailed, match="PE 2 failed: no good"):
            pe.broadcast(given)
    assert time.monotonic() - began < 1


# --- launchers

MEET = """
import sys
from gpushmem.start import bootstrap
from gpushmem.start.bootstrap import machines
{before}
found = bootstrap.find_peers()
heard = found.broadcast(b"1234" * 32 if found.my_pe == 0 else None)
sys.stdout.write(f"{{found.my_pe}} of {{found.n_pes}}, {{found.local_pe}} of {{found.n_local}}, "
                 f"{{found.bootstrap}}: {{heard == b'1234' * 32}}, {{'numba' in sys.modules}}\\n")
sys.stdout.flush()
{after}
found.close()
"""
BARRIER = "MPI.COMM_WORLD.Barrier()"  # as the start of NVSHMEM would be
APART = (
    "from mpi4py import MPI\n"
    'machines.identity = lambda: b\'["h%d", ""]\' % (MPI.COMM_WORLD.rank // 2)'
)


def script(tmp_path, before="", after="import time; time.sleep(0.3)"):
    path = tmp_path / "job.py"
    path.write_text(MEET.format(before=before, after=after))
    return path


def test_mpirun_on_two_machines(tmp_path):
    need_mpi4py()
    out, _ = run(*mpirun(), 3, PYTHON, script(tmp_path, APART, BARRIER))
    places = [(0, 0, 2), (1, 1, 2), (2, 0, 1)]
    for pe, local, n in places:
        assert f"{pe} of 3, {local} of {n}, found through mpi (mpi4py " in out
    assert out.count(": True, False\n") == 3


def test_mpirun_with_variables_only(tmp_path):
    without = "sys.modules['mpi4py'] = None"
    env = {"XDG_RUNTIME_DIR": str(tmp_path)}
    out, _ = run(*mpirun(), 2, PYTHON, script(tmp_path, without), **env)
    for pe in range(2):
        assert f"{pe} of 2, {pe} of 2, found through mpi (variables of" in out


@pytest.mark.sweep  # that of test_launchers.py finds its peers so, too
def test_torchrun(tmp_path):
    need_torch()
    words = ("-m", "torch.distributed.run", "--nproc-per-node", 2, script(tmp_path))
    out, _ = run(PYTHON, *words)
    for pe in range(2):
        assert f"{pe} of 2, {pe} of 2, found through torch (torchrun" in out
    assert out.count(": True, False\n") == 2
