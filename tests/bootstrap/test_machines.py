"""PEs on several machines, which the cpu backend has no use for."""

import os

import pytest

from gpushmem.errors import BackendUnavailable
from gpushmem.start.bootstrap import join as join_job
from tests.bootstrap.processes import free_port, joined, run_all, step, tcp

HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "4", "MPI_LOCALNRANKS": "2"}


def test_pes_on_several_machines_are_told_who_is_where():
    def body():
        from gpushmem.start.bootstrap import machines

        if os.environ["GPUSHMEM_PE"] in "12":
            machines.identity = lambda: b'["other", "0123456789"]'
        with pytest.raises(BackendUnavailable) as failure:
            join_job()
        return str(failure.value)

    texts = run_all(4, body, tcp(4, free_port()))
    assert "PEs 1, 2 of 4 on host other (boot 01234567)" in texts[0]
    assert "PEs 0, 3 of 4 on host" in texts[0]
    assert "gpushmem run -n 4" in texts[0]
    assert len(set(texts)) == 1


@pytest.mark.parametrize(
    ("env", "words"),
    [
        (step(4, SLURM_NNODES="2", SLURM_GTIDS="0,1"), ["PEs 0, 1 of 4 are", "SLURM_NNODES=2"]),
        (
            step(4, SLURM_NNODES="2", SLURM_STEP_NUM_NODES="3", SLURM_STEP_NODELIST="a[1-3]"),
            ["SLURM_STEP_NUM_NODES=3", "nodes a[1-3]", "PE 1 of 4 is"],
        ),
        (lambda pe: HYDRA, ["2 of the 4 PEs are", "MPI_LOCALNRANKS=2"]),
    ],
)
def test_the_launcher_itself_tells_of_other_machines(env, words):
    def body():
        import sys

        sys.modules["mpi4py"] = None
        with pytest.raises(BackendUnavailable) as failure:
            join_job()
        return str(failure.value)

    (text,) = run_all(1, body, lambda _: env(1))
    for word in words:
        assert word in text


def test_a_step_on_one_of_the_nodes_of_an_allocation():
    assert len(run_all(2, joined(), step(2, SLURM_NNODES="4", SLURM_STEP_NUM_NODES="1"))) == 2
