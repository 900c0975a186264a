"""Each way of being launched leads to one job. srun is not here: its variables are set by hand."""

import os
import runpy

import pytest

from gpushmem.errors import ArgumentError, BootstrapError
from gpushmem.start.bootstrap import join as join_job
from gpushmem.start.bootstrap import mpi, shared_memory, slurm, torch
from gpushmem.start.launch import local
from tests.bootstrap.processes import JOB, free_port, joined, run_all, step, tcp

# What launchers set for PE 1 of 4, from their documentation and as seen.
TORCHRUN = {
    "RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "none", "LOCAL_WORLD_SIZE": "4",
}  # fmt: skip
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4", "PMIX_RANK": "1"}
HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "4", "MPI_LOCALNRANKS": "4", "PMI_FD": "9"}
SRUN = step(4)(1)
BATCH = {"SLURM_JOB_ID": "5", "SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_NNODES": "2"}


@pytest.mark.parametrize(
    ("name", "env"),
    [
        ("local", {}),
        ("torch", TORCHRUN),
        ("torch", {k: v for k, v in TORCHRUN.items() if not k.startswith("TORCHEL")}),
        ("torch", SRUN | TORCHRUN),  # one torchrun a node, started by srun
        ("mpi", OPEN_MPI),
        ("mpi", HYDRA),
        ("mpi", {"PMI_RANK": "1", "PMI_SIZE": "4"}),
        ("mpi", {"PMIX_RANK": "1", "PMIX_NAMESPACE": "x"}),
        ("mpi", SRUN | OPEN_MPI),  # mpirun's helpers, started by srun
        ("mpi", SRUN | {"SLURM_STEP_NUM_TASKS": "1"} | HYDRA),
        ("mpi", BATCH | OPEN_MPI),
        ("slurm", SRUN),
        ("slurm", SRUN | {"PMIX_RANK": "1", "PMIX_NAMESPACE": "slurm.pmix.5.0"}),
        ("slurm", SRUN | {"PMI_RANK": "1", "PMI_SIZE": "4"}),  # srun --mpi=pmi2
        ("local", BATCH),
        ("local", BATCH | {"SLURM_STEP_ID": str(0xFFFFFFFB)}),
        ("local", BATCH | {"SLURM_STEP_ID": str(0xFFFFFFFA)}),  # the shell of salloc
        ("local", {"RANK": "1", "WORLD_SIZE": "4"}),  # somebody else's names
    ],
)
def test_the_launcher_is_recognised(name, env, environment):
    from gpushmem.start.bootstrap import _way

    environment(env)
    assert _way("auto", given=False).name == name


def test_a_process_of_its_own_is_a_job_of_one():
    (value,) = run_all(1, joined(), lambda pe: BATCH)
    assert value == (0, 1, "by itself")


@pytest.mark.parametrize("n", [2, 3, 8])
def test_the_variables_of_srun(n):
    found = run_all(n, joined(), step(n))
    assert found == [(pe, n, f"found through slurm (step {JOB}.0)") for pe in range(n)]


def test_the_variables_of_mpirun_without_mpi4py():
    def body():
        import sys

        sys.modules["mpi4py"] = None
        return joined()()

    found = run_all(
        3, body, lambda pe: {"PMI_RANK": str(pe), "PMI_SIZE": "3", "MPI_LOCALNRANKS": "3"}
    )
    assert found[2] == (2, 3, "found through mpi (variables of Hydra; without mpi4py)")


@pytest.mark.parametrize("n", [2, 12])
def test_tcp(n):
    port = free_port()
    found = run_all(n, joined(), tcp(n, port))
    assert found == [(pe, n, f"found through tcp://localhost:{port}") for pe in range(n)]


def test_tcp_of_one_pe_needs_no_listener():
    assert run_all(1, joined(), tcp(1, 1)) == [(0, 1, "by itself")]


def test_a_kernel_runs_in_such_a_job():
    local.preload("cpu")

    def body():
        import gpushmem as shmem

        runpy.run_path("examples/ring.py")
        shmem.init(heap_size="1M", bootstrap="mpi")  # anew: the job is there already
        n = shmem.n_pes()
        shmem.finalize()
        return n

    assert run_all(2, body, step(2, GPUSHMEM_HEAP_SIZE="1M"), timeout=120) == [2, 2]


def test_many_more_pes_than_cores_and_descriptors_in_several_messages(monkeypatch):
    monkeypatch.setattr(shared_memory, "AT_ONCE", 25)
    n = 60
    assert [pe for pe, _, _ in run_all(n, joined(), step(n))] == list(range(n))


@pytest.mark.sweep
def test_three_hundred_pes():
    """More descriptors than a message takes, and far more PEs than cores."""
    n = 300
    found = run_all(n, joined(), step(n, GPUSHMEM_BOOTSTRAP_TIMEOUT="100"), timeout=120)
    assert [pe for pe, _, _ in found] == list(range(n))


def test_too_many_pes_for_the_limit_of_open_files(environment):
    environment(step(60000)(0))
    with pytest.raises(BootstrapError, match=r"60000 PEs needs 120064 open files .*ulimit -n"):
        join_job()


def test_cores_are_divided_among_the_pes_that_may_use_them():
    def body():
        join_job()
        return os.environ.get("GPUSHMEM_THREADS")

    cores = len(os.sched_getaffinity(0))
    assert run_all(2, body, step(2)) == [str(max(1, cores // 2))] * 2
    env = step(2, GPUSHMEM_THREADS="7")
    assert run_all(2, body, env) == ["7", "7"]

    def bound():
        os.sched_setaffinity(0, [sorted(os.sched_getaffinity(0))[int(os.environ["SLURM_PROCID"])]])
        return body()

    if cores > 1:
        assert run_all(2, bound, step(2)) == ["1", "1"]


# --- overrides


def test_an_unknown_name_lists_those_there_are(environment):
    environment({})
    with pytest.raises(ArgumentError, match=r"init: unknown bootstrap 'mip'; known are auto, "):
        join_job("mip")
    environment({"GPUSHMEM_BOOTSTRAP": "MPI"})
    with pytest.raises(ArgumentError, match=r"GPUSHMEM_BOOTSTRAP: unknown bootstrap 'MPI'"):
        join_job()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("slurm", ["SLURM_STEP_ID, SLURM_PROCID", "srun"]),
        ("torch", ["RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT not set", "torchrun"]),
        ("tcp://localhost:29500", ["GPUSHMEM_PE, GPUSHMEM_N_PES, GPUSHMEM_JOB_KEY not set"]),
    ],
)
def test_what_an_override_lacks_is_said(name, words, environment):
    environment({})
    with pytest.raises(BootstrapError) as failure:
        join_job(name)
    for word in words:
        assert word in str(failure.value)


def test_mpi_is_not_made_up():
    def body():
        import sys

        sys.modules["mpi4py"] = None
        with pytest.raises(BootstrapError, match=r"without mpi4py: start .* mpirun"):
            join_job("mpi")
        return True

    assert run_all(1, body, lambda pe: {}) == [True]


def test_an_override_wins_over_what_is_recognised():
    assert run_all(1, joined("local"), step(3)) == [(0, 1, "by itself")]
    port = free_port()
    found = run_all(
        2, joined(f"tcp://localhost:{port}"), lambda pe: tcp(2, port)(pe) | step(5)(3 - pe)
    )
    assert [pe for pe, _, _ in found] == [0, 1]


@pytest.mark.parametrize(
    "address",
    ["tcp://", "tcp://host", "tcp://host:0", "tcp://host:65536", "tcp://:5", "tcp://::1:5",
     "tcp://a b:5", "tcp://host:5x", "tcp://host:5/", "tcp://h:٣"],
)  # fmt: skip
def test_addresses_that_are_none(address, environment):
    environment({})
    with pytest.raises(ArgumentError, match="not of the form tcp://host:port"):
        join_job(address)


@pytest.mark.parametrize("way", [mpi, slurm, torch])
def test_one_process_of_a_launcher_is_a_job_of_one(way, environment):
    environment(
        {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "x", "MASTER_PORT": "1"}
        | {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}
        | step(1)(0)
    )
    assert way.channel() is None
