"""Values of environment variables that make no sense: errors that name them, nothing else."""

import os
import random
import string
import sys
import traceback

import pytest

from gpushmem.errors import ShmemError
from gpushmem.settings import SETTINGS
from tests.bootstrap.launchers import run
from tests.bootstrap.processes import Process, free_port, joined, step, tcp

NONSENSE = ["-1", "x", "1.5.2", "0x10", "1e400", "nan", " ", "9" * 40, "٣", "\udcff", "a\nb", "1,2"]
# Anything is a key, and a name of a backend is looked at later.
CHECKED = sorted(SETTINGS.keys() - {"GPUSHMEM_JOB_KEY", "GPUSHMEM_BACKEND"})


def attempt(env):
    """What `join` says, with all of our variables in use."""

    def body():
        try:
            joined()()
        except ShmemError as error:
            shown = "".join(traceback.format_exception(error))
            return str(error), shown.count("Traceback (most recent call last)")
        return None, 1

    process = Process(body, **env)
    text = process.wait()
    assert text == ""
    said, tracebacks = process.value
    assert tracebacks == 1, "no chain of errors inside us"
    return said


@pytest.mark.parametrize("value", NONSENSE)
@pytest.mark.parametrize("name", ["PE", "N_PES", "BOOTSTRAP_TIMEOUT", "BOOTSTRAP"])
def test_our_variables(name, value):
    name = f"GPUSHMEM_{name}"
    env = tcp(2, free_port())(1) | {"GPUSHMEM_BOOTSTRAP_TIMEOUT": "0.1", name: value}
    if not value.strip():
        return  # as if it were not set, or nearly so
    assert f"variable {name}" in attempt(env).replace("variables ", "variable ")


@pytest.mark.parametrize("value", [*NONSENSE, ""])
@pytest.mark.parametrize(
    ("name", "env"),
    [
        ("SLURM_PROCID", step(2)(0)),
        ("SLURM_STEP_NUM_NODES", step(2, SLURM_STEP_NUM_NODES="1")(0)),
        ("OMPI_COMM_WORLD_SIZE", {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}),
        ("PMI_RANK", {"PMI_RANK": "0", "PMI_SIZE": "2"}),
        ("WORLD_SIZE", {"RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}),
    ],
)
def test_launchers_variables(name, value, env):
    said = attempt({"GPUSHMEM_BOOTSTRAP_TIMEOUT": "0.1", **env, name: value})
    assert f"variable {name}=" in said or "have not arrived" in said or "has not arrived" in said


def test_numbers_that_contradict_each_other():
    said = attempt(step(2)(2))
    assert "SLURM_PROCID=2 and SLURM_STEP_NUM_TASKS=2 contradict each other" in said
    assert "GPUSHMEM_PE=7 and GPUSHMEM_N_PES=3 contradict" in attempt(tcp(3, 9)(7))


@pytest.mark.parametrize("missing", ["PE", "N_PES", "JOB_KEY"])
def test_what_tcp_needs(missing):
    env = tcp(3, 9)(1) | {f"GPUSHMEM_{missing}": ""}
    assert f": GPUSHMEM_{missing} not set; each PE needs" in attempt(env)


def test_random_values_end_in_a_job_or_an_error_of_ours():
    rng = random.Random(7)
    for _ in range(60):
        env = tcp(2, free_port())(1) | {"GPUSHMEM_BOOTSTRAP_TIMEOUT": "0.05"}
        for name in rng.sample(CHECKED, 3):
            length = rng.randint(1, 12)
            env[name] = "".join(rng.choices(string.printable[:95], k=length))
            if name == "GPUSHMEM_BOOTSTRAP_TIMEOUT" and env[name].strip().isdecimal():
                env[name] = "0.05"
        attempt(env)


def test_as_the_user_sees_it():
    """The whole way, once: the exit code, and no chain of errors inside us."""
    code = "import gpushmem; gpushmem.init()"
    env = {"GPUSHMEM_BOOTSTRAP": "torchrun", "PATH": os.environ["PATH"]}
    _, err = run(sys.executable, "-c", code, code=1, **env)
    assert "ArgumentError: environment variable GPUSHMEM_BOOTSTRAP: unknown bootstrap" in err
    assert err.count("Traceback") == 1
